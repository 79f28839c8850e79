// streams_on_cpu.h   streams, events and memory of the device that cuda_on_cpu.h emulates
//   Work enqueued on a stream is queued. It runs at the latest when the host waits for it; but whenever work
//   is enqueued or an event is queried, a random number of streams advance by a random amount, keyed by
//   emulated::seed. Work on one stream stays in order; across streams only events order it, so a missing
//   event makes results wrong for some seeds. Work may take several turns, with other work in between: a
//   collective (layers/emulator/nccl) moves at most one piece per channel in a turn. A stream holds a limited
//   amount of work: a call that enqueues more blocks until there is room, as in CUDA's driver.
#pragma once
#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include "cuda_on_cpu.h"

namespace emulated {
// the result of one turn of a stream's work: done, advanced, or waiting for another process
enum class Turn { Done, Went, Stuck };
}  // namespace emulated

struct EmulatedStream;
struct EmulatedCapture;
struct EmulatedEvent {
    EmulatedStream* stream = nullptr;
    uint64_t at = 0;  // reached when so many pieces of the stream's work are done; in a capture: its node
    std::shared_ptr<emulated::watch::Clock> clock = nullptr;
    std::shared_ptr<EmulatedCapture> capture = nullptr;  // in which it was recorded
};
struct EmulatedWork {
    std::function<emulated::Turn()> run;  // called again until it is done
    EmulatedEvent awaited;                // must be reached first
    emulated::watch::Clock after;
    std::function<EmulatedWork()> anew = nullptr;  // of stateful work: new work for each launch of a graph
};
struct EmulatedStream {
    std::deque<EmulatedWork> work;
    uint64_t given = 0, done = 0;
    emulated::watch::Progress progress;
    std::shared_ptr<EmulatedCapture> recording = nullptr;  // if set, work is recorded there instead
};
// a capture: the work of a stream and of those that joined it, by waiting for one of its events
struct EmulatedCapture {
    struct Node {
        size_t stream;
        EmulatedWork work;
        bool is_event = false;  // no work: an event is recorded
    };
    std::vector<EmulatedStream*> streams;  // the first began it
    std::vector<Node> nodes;               // in the order of the host
    bool ended = false;

    size_t index_of(const EmulatedStream* s) const {
        return std::find(streams.begin(), streams.end(), s) - streams.begin();
    }
};
using cudaStream_t = EmulatedStream*;
using cudaEvent_t = EmulatedEvent*;
enum cudaError_t {
    cudaSuccess,
    cudaErrorMemoryAllocation,
    cudaErrorNotReady,
    cudaErrorStreamCaptureUnsupported,
    cudaErrorStreamCaptureUnjoined,
    cudaErrorStreamCaptureIsolation,
    cudaErrorCapturedEvent
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };
constexpr unsigned cudaEventDisableTiming = 2, cudaStreamNonBlocking = 1;

namespace emulated {

inline EmulatedStream default_stream;
inline std::vector<EmulatedStream*> streams = {&default_stream};
inline uint64_t turns = 0;

inline EmulatedStream& stream_of(cudaStream_t s) { return s ? *s : default_stream; }

constexpr uint64_t stream_holds = 1024;            // pieces of work
inline uint64_t turns_taken = 0;                   // by all streams
inline void (*when_nothing_goes_on)() = nullptr;  // called when all that is left waits for other processes

// One turn of the stream's next work, or of what that waits for; false: nothing could advance
inline bool go_on(EmulatedStream& s) {
    if (s.done == s.given) return false;
    EmulatedWork& next = s.work.front();
    const EmulatedEvent& first = next.awaited;
    if (first.stream && first.stream->done < first.at) return go_on(*first.stream);

    auto finish = [&] {
        s.work.pop_front();
        s.done++;
    };

    Turn turn;
    try {
        [[maybe_unused]] watch::Work now(s.progress, next.after);
        turn = next.run();
    } catch (...) {
        finish();
        throw;
    }

    if (turn == Turn::Done) finish();
    if (turn != Turn::Stuck) turns_taken++;
    watch::reached(s.progress, s.done);
    watch::complain();
    return turn != Turn::Stuck;
}

// one turn of any stream that can advance; if none can, calls when_nothing_goes_on
inline void any_stream_goes_on() {
    uint64_t first = mix(mix(seed) + turns++) % streams.size();
    for (size_t i = 0; i < streams.size(); i++)
        if (go_on(*streams[(first + i) % streams.size()])) return;
    if (when_nothing_goes_on) when_nothing_goes_on();
}

inline void run_until(EmulatedStream& s, uint64_t at) {
    while (s.done < at)
        if (!go_on(s)) any_stream_goes_on();
}

// lets the device run for a while
inline void some_time_passes() {
    for (uint64_t luck = mix(mix(seed) + turns++); luck % 4 != 0; luck = mix(luck)) {
        EmulatedStream& s = *streams[luck / 4 % streams.size()];
        for (uint64_t left = luck / 1024 % 6; left > 0 && go_on(s); left--) {}
    }
}

inline void enqueue(cudaStream_t s, EmulatedWork work) {
    EmulatedStream& stream = stream_of(s);
    if (stream.recording)
        return stream.recording->nodes.push_back({stream.recording->index_of(&stream), std::move(work)});
    if (work.anew) work = work.anew();
    watch::complain();
    if (stream.given - stream.done >= stream_holds) run_until(stream, stream.given - stream_holds + 1);
    work.after = watch::given();
    stream.work.push_back(std::move(work));
    stream.given++;
    some_time_passes();
}

template <class Work>
void enqueue(cudaStream_t s, Work work) {  // that takes a single turn
    enqueue(s, EmulatedWork{[work = std::move(work)] {
        work();
        return Turn::Done;
    }, {}, {}});
}

// a kernel runs when its turn comes; its arguments are copied now
template <class Kernel, class... Arguments>
void launch_later(cudaStream_t s, emulated::Kernel of, dim3 grid, dim3 block, size_t shared_bytes,
                  Kernel kernel, Arguments... arguments) {
    enqueue(s, [=] { launch(of, grid, block, shared_bytes, [=] { kernel(arguments...); }); });
}

}  // namespace emulated

inline const char* cudaGetErrorString(cudaError_t e) {
    switch (e) {
        case cudaSuccess: return "no error";
        case cudaErrorNotReady: return "not ready";
        case cudaErrorStreamCaptureUnsupported: return "not allowed while the stream is captured";
        case cudaErrorStreamCaptureUnjoined: return "a stream that joined the capture was not waited for";
        case cudaErrorStreamCaptureIsolation: return "it waits for work outside of the capture";
        case cudaErrorCapturedEvent: return "an event that was recorded in a capture";
        default: return "out of memory";
    }
}

inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaStreamSynchronize(cudaStream_t s) {
    if (emulated::stream_of(s).recording) return cudaErrorNotReady;  // as on a device
    emulated::run_until(emulated::stream_of(s), emulated::stream_of(s).given);
    emulated::watch::learn(emulated::stream_of(s).progress.clock);
    emulated::watch::complain();
    return cudaSuccess;
}

// each query lets the stream advance by one turn, so that a host that polls it makes progress
inline cudaError_t cudaStreamQuery(cudaStream_t s) {
    EmulatedStream& stream = emulated::stream_of(s);
    if (stream.recording) return cudaErrorStreamCaptureUnsupported;
    if (stream.done == stream.given) return cudaStreamSynchronize(s);
    if (!emulated::go_on(stream)) emulated::any_stream_goes_on();
    return cudaErrorNotReady;
}

namespace emulated {
inline bool take_memory(void** p, size_t bytes) {
    if (watch::on) return (*p = watch::allocate(bytes));
    return !posix_memalign(p, 256, bytes);
}

inline void give_memory(void* p) {
    try {
        for (auto* s : streams) cudaStreamSynchronize(s);
    } catch (const std::exception& e) {
        fprintf(stderr, "%s\n", e.what());  // often in a destructor, where an exception ends the program
        throw;
    }
    if (watch::on) watch::release(p);
    else free(p);
}

using Ranges = std::map<const char*, size_t>;
inline Ranges on_device, pinned;  // from cudaMalloc and cudaMallocHost
inline bool lies_in(const Ranges& ranges, const void* p, size_t bytes) {
    auto after = ranges.upper_bound((const char*)p);
    if (after == ranges.begin()) return false;
    auto [begin, size] = *std::prev(after);
    return (const char*)p + bytes <= begin + size;
}
inline int captures = 0;  // in progress: meanwhile, memory can be neither allocated nor freed
}  // namespace emulated
inline cudaError_t cudaMalloc(void** p, size_t bytes) {
    if (emulated::captures) return cudaErrorStreamCaptureUnsupported;
    if (!emulated::take_memory(p, bytes)) return cudaErrorMemoryAllocation;
    memset(*p, 0xFF, bytes);
    emulated::on_device[(const char*)*p] = bytes;
    return cudaSuccess;
}

inline cudaError_t cudaFree(void* p) {
    if (emulated::captures) return cudaErrorStreamCaptureUnsupported;
    emulated::on_device.erase((const char*)p);
    emulated::give_memory(p);
    return cudaSuccess;
}

inline cudaError_t cudaMallocHost(void** p, size_t bytes) {
    if (emulated::captures) return cudaErrorStreamCaptureUnsupported;
    if (!emulated::take_memory(p, bytes)) return cudaErrorMemoryAllocation;
    emulated::pinned[(const char*)*p] = bytes;
    return cudaSuccess;
}

inline cudaError_t cudaFreeHost(void* p) {
    if (emulated::captures) return cudaErrorStreamCaptureUnsupported;
    emulated::pinned.erase((const char*)p);
    emulated::give_memory(p);
    return cudaSuccess;
}

// A copy is made when its turn comes. CUDA may stage pageable host memory earlier, but need not: the source
// must stay unchanged until then
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                                   cudaStream_t s) {
    if (kind == cudaMemcpyHostToDevice && !emulated::lies_in(emulated::pinned, from, bytes)) {
        if (emulated::stream_of(s).recording) return cudaErrorStreamCaptureUnsupported;
        std::string staged((const char*)from, bytes);
        emulated::enqueue(s, [to, from, staged = std::move(staged)] {
            if (memcmp(from, staged.data(), staged.size()))
                throw Defect(text("a copy of %zu bytes to the device waits for its turn, and the host's "
                                  "memory that it reads was written again or freed", staged.size()));
            memcpy(to, staged.data(), staged.size());
            emulated::watch::write(to, staged.size());
        });
    } else {
        emulated::enqueue(s, [to, from, bytes] {
            memcpy(to, from, bytes);
            emulated::watch::read(from, bytes);
            emulated::watch::write(to, bytes);
        });
    }
    return cudaSuccess;
}

inline cudaError_t cudaMemsetAsync(void* p, int value, size_t bytes, cudaStream_t s) {
    emulated::enqueue(s, [p, value, bytes] {
        memset(p, value, bytes);
        emulated::watch::write(p, bytes);
    });
    return cudaSuccess;
}

inline cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    *least = 0;
    *greatest = -5;  // as on GPUs: smaller means more urgent
    return cudaSuccess;
}

inline cudaError_t cudaStreamCreateWithPriority(cudaStream_t* s, unsigned, int) {
    emulated::streams.push_back(*s = new EmulatedStream);
    return cudaSuccess;
}

inline cudaError_t cudaStreamDestroy(cudaStream_t s) {
    cudaStreamSynchronize(s);
    std::erase(emulated::streams, s);
    delete s;
    return cudaSuccess;
}

inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) {
    *e = new EmulatedEvent;
    return cudaSuccess;
}

inline cudaError_t cudaEventDestroy(cudaEvent_t e) {
    delete e;
    return cudaSuccess;
}

inline cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
    EmulatedStream& stream = emulated::stream_of(s);
    if (auto& capture = stream.recording) {
        *e = {&stream, capture->nodes.size(), nullptr, capture};
        capture->nodes.push_back({capture->index_of(&stream), {}, true});
        return cudaSuccess;
    }
    *e = {&stream, stream.given, emulated::watch::at(stream.progress, stream.given, stream.done)};
    return cudaSuccess;
}

inline cudaError_t cudaEventQuery(cudaEvent_t e) {
    emulated::some_time_passes();
    if (!e->stream) return cudaSuccess;
    if (e->capture) return cudaErrorCapturedEvent;
    if (e->stream->done < e->at) {
        emulated::any_stream_goes_on();
        return cudaErrorNotReady;
    }
    if (e->clock) emulated::watch::learn(*e->clock);
    return cudaSuccess;
}

namespace emulated {
inline EmulatedWork wait_for(const EmulatedEvent& event) {
    return {[clock = event.clock] {
        if (clock) watch::learn(*clock);
        return Turn::Done;
    }, event, {}};
}
}  // namespace emulated
inline cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) {
    EmulatedEvent recorded = *e;  // as last recorded
    if (!recorded.stream) return cudaSuccess;
    EmulatedStream& stream = emulated::stream_of(s);
    if (recorded.capture && recorded.capture->ended) return cudaErrorCapturedEvent;
    if (recorded.capture && !stream.recording) {  // the stream joins the capture
        stream.recording = recorded.capture;
        recorded.capture->streams.push_back(&stream);
    }
    if (stream.recording != recorded.capture) return cudaErrorStreamCaptureIsolation;
    emulated::enqueue(s, emulated::wait_for(recorded));
    return cudaSuccess;
}

// A graph is the captured work, enqueued again at every launch. Work of streams that joined the capture goes
// to streams that the graph owns; its events are recorded and awaited anew
struct EmulatedGraph {
    std::shared_ptr<EmulatedCapture> capture;
    std::vector<EmulatedStream*> streams = {};  // the first stays null: the launch's own stream
};
using cudaGraph_t = EmulatedGraph*;
using cudaGraphExec_t = EmulatedGraph*;
constexpr int cudaStreamCaptureModeThreadLocal = 1;

inline cudaError_t cudaStreamBeginCapture(cudaStream_t s, int) {
    if (!s || s->recording) return cudaErrorNotReady;  // the default stream cannot be captured
    emulated::captures++;
    s->recording = std::make_shared<EmulatedCapture>();
    s->recording->streams = {s};
    return cudaSuccess;
}

inline cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t* graph) {
    std::shared_ptr<EmulatedCapture> capture = s->recording;

    std::vector<bool> open(capture->streams.size(), false);  // has work the first stream did not wait for
    for (auto& node : capture->nodes) {
        const EmulatedEvent& awaited = node.work.awaited;
        if (node.stream > 0) open[node.stream] = true;
        else if (awaited.capture) open[capture->nodes[awaited.at].stream] = false;
    }

    emulated::captures--;
    for (auto* stream : capture->streams) stream->recording = nullptr;
    capture->ended = true;
    *graph = nullptr;

    for (bool is_open : open)
        if (is_open) return cudaErrorStreamCaptureUnjoined;
    *graph = new EmulatedGraph{capture};
    return cudaSuccess;
}

inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t* whole, cudaGraph_t graph, int) {
    *whole = new EmulatedGraph(*graph);
    (*whole)->streams.assign(graph->capture->streams.size(), nullptr);
    for (size_t i = 1; i < (*whole)->streams.size(); i++)
        cudaStreamCreateWithPriority(&(*whole)->streams[i], cudaStreamNonBlocking, 0);
    return cudaSuccess;
}

inline cudaError_t cudaGraphLaunch(cudaGraphExec_t whole, cudaStream_t s) {
    std::vector<EmulatedEvent> events(whole->capture->nodes.size());
    for (size_t i = 0; i < events.size(); i++) {
        const EmulatedCapture::Node& node = whole->capture->nodes[i];
        cudaStream_t stream = node.stream ? whole->streams[node.stream] : s;
        const EmulatedEvent& awaited = node.work.awaited;
        if (node.is_event) cudaEventRecord(&events[i], stream);
        else emulated::enqueue(stream, awaited.capture ? emulated::wait_for(events[awaited.at]) : node.work);
    }
    return cudaSuccess;
}

inline cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    delete graph;
    return cudaSuccess;
}

inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t whole) {
    for (size_t i = 1; i < whole->streams.size(); i++) cudaStreamDestroy(whole->streams[i]);
    delete whole;
    return cudaSuccess;
}

// ---- what device.h offers beyond CUDA's own functions ----------------------------------------------------

inline void let_device_go_on() { emulated::any_stream_goes_on(); }
inline void note_progress() { emulated::turns_taken++; }  // counts as progress: no deadlock
inline int driver_version() { return 13000; }
inline int current_device() { return 0; }
inline void use_device(int) {}

struct TimedEvent {
    double at = 0;  // 0: not yet
    TimedEvent() = default;
    void record(cudaStream_t s) {
        at = 0;
        emulated::enqueue(s, [this] { at = seconds(); });
    }
    bool reached() const { return at > 0; }
    double since(const TimedEvent& begin) const { return at - begin.at; }
    TimedEvent(const TimedEvent&) = delete;
};

constexpr bool host_is_device = true;

template <class Kernel>
void allow_shared(Kernel kernel, size_t bytes) {
    if (bytes + 1024 <= emulated::usual_shared) return;
    if (bytes > emulated::largest_shared)
        fail("a kernel needs %zu bytes of shared memory, a device has %zu", bytes, emulated::largest_shared);
    emulated::allowed_shared[(const void*)kernel] = bytes;
}

inline size_t largest_shared() { return emulated::largest_shared; }
inline int multiprocessors() { return 132; }  // an H100's
inline size_t shared_of_multiprocessor() { return emulated::largest_shared + 1024; }  // as on all GPUs
