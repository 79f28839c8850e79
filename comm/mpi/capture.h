// capture.h   calls that become part of a CUDA graph
#pragma once
#include "../comm.h"

namespace comm {

// Calls between these two become part of a CUDA graph captured on `compute`, which comm streams join by
// wait_stream. Events from before the capture must not be awaited within it, nor its events after it;
// end_capture() makes `compute` wait for all streams that joined
extern const bool can_capture;  // not with MPI, whose calls the host makes
void begin_capture();
void end_capture(Stream compute);
void watch_graph(const Group& world, Stream compute);  // after each launch: watched as one call of all ranks

}  // namespace comm
