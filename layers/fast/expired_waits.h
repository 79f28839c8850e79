// expired_waits.h   whether a kernel has given up waiting for another block: wait_until, in mma.h
#pragma once
#include "../base/device.h"

// since the last call; waits for the stream
#if HAS_KERNELS
bool take_expired_wait(Stream s);
#else
inline bool take_expired_wait(Stream) { return false; }
#endif

// the results of `what` are refused if a wait of the kernels that made them has expired; waits for the stream
inline void refuse_expired_waits(const char* what, Stream s) {
    if (take_expired_wait(s))
        fail("%s: a wait in flash attention's kernels has expired: results are wrong; go on from the last "
             "checkpoint with --attention materialised, and report it", what);
}
