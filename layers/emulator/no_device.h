// no_device.h   device.h's interface without kernels (DEVICE=cpu): memory is the host's, streams do nothing
#pragma once
#include <stdlib.h>
#include <string.h>
#include "../base/check.h"

struct NoStream {};
using Stream = NoStream*;

inline Stream make_stream(bool = false) { return nullptr; }
inline void destroy_stream(Stream) {}
inline void* device_malloc(size_t bytes, const char* what) {
    void* p = nullptr;
    if (posix_memalign(&p, 4096, bytes))
        fail("%s: %.2f GB cannot be allocated: choose more ranks, a smaller model or a smaller "
             "--micro-batch", what, bytes * 1e-9);
    return p;
}

inline void device_free(void* p) { free(p); }
inline void* host_malloc(size_t bytes, const char* what) {
    void* p = device_malloc(bytes ? bytes : 1, what);
    memset(p, 0, bytes);  // so that its pages exist, as those of CUDA's pinned memory do
    return p;
}

inline void host_free(void* p) { free(p); }
inline void copy_to_device(void* to, const void* from, size_t bytes, Stream) { memcpy(to, from, bytes); }
inline void copy_to_host(void* to, const void* from, size_t bytes, Stream) { memcpy(to, from, bytes); }
inline void copy_on_device(void* to, const void* from, size_t bytes, Stream) { memcpy(to, from, bytes); }
inline void set_zero(void* p, size_t bytes, Stream) { memset(p, 0, bytes); }
inline void synchronize(Stream) {}
inline void use_device(int) {}
inline void note_progress() {}

struct Event {  // computation is done when the call returns
    void record(Stream) {}
    void block(Stream) {}
    bool reached() { return true; }
};

struct TimedEvent {
    double at = 0;  // 0: not yet
    TimedEvent() = default;
    void record(Stream) { at = seconds(); }
    bool reached() const { return at > 0; }
    double since(const TimedEvent& begin) const { return at - begin.at; }
    TimedEvent(const TimedEvent&) = delete;
};

constexpr bool host_is_device = true;
