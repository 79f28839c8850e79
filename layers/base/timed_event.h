// timed_event.h   when a stream reaches a point; the emulated device's is in emulator/streams_on_cpu.h, the
//   host's in no_device.h
#pragma once
#include "device.h"

#if defined(DEVICE_CUDA)
// the time at which a stream reaches a point; must live until then
struct TimedEvent {
    cudaEvent_t event = nullptr;
    TimedEvent() = default;
    ~TimedEvent() { if (event) cudaEventDestroy(event); }
    void record(Stream s) {
        if (!event) check_cuda(cudaEventCreate(&event), "an event");
        check_cuda(cudaEventRecord(event, s), "recording an event");
    }

    bool reached() const {
        cudaError_t e = cudaEventQuery(event);
        if (e == cudaErrorNotReady) cudaGetLastError();  // "not ready" is no error
        else check_cuda(e, "asking for an event");
        return e == cudaSuccess;
    }

    double since(const TimedEvent& begin) const {  // seconds
        float ms = 0;
        check_cuda(cudaEventElapsedTime(&ms, begin.event, event), "the time between events");
        return ms * 1e-3;
    }
    TimedEvent(const TimedEvent&) = delete;
};
#endif
