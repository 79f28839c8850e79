// activity.h   what a step's code says about itself, and who listens
//   An operation or a call (comm.h) is announced as an Activity: its name, stream, place and source line, the
//   tensors that it reads and writes and, where these do not say it all, its work: GEMMs, bytes moved; a call
//   also says whom it communicates with. The listeners (Listener):
//     layers/plan/dry_run.h   the step with nothing executed: its calls, FLOPs and bytes, for plans
//     layers/plan/profile.h   the time of each operation beside its floor
//     layers/plan/trace.h     when each began and ended, and who waited
//     layers/plan/record.h    all of it, in order, with values
//     layers/plan/invariants.h   in a run's first step or two: what the code of a step relies on
//   Without listeners an announcement costs an NVTX range in CUDA builds, and nothing else.
//   Nothing here computes: to follow a step, skip this file.
#pragma once
#include <exception>
#include <memory>
#include <source_location>
#include <type_traits>
#include <vector>
#include "device.h"
#if defined(DEVICE_CUDA)
#include <nvtx3/nvToolsExt.h>
#endif

// ---- what is read and written ----------------------------------------------------------------------------

enum class Element : uint8_t { X, Real, Fp64, Fp32, Bf16, Int64, Int32, Int16, Byte };  // X: floatX

inline double element_bytes(Element e, const Precision& precision = {}) {
    switch (e) {
        case Element::X: return (double)precision.x;
        case Element::Real: return (double)precision.real;
        case Element::Fp32:
        case Element::Int32: return 4;
        case Element::Bf16:
        case Element::Int16: return 2;
        case Element::Byte: return 1;
        default: return 8;
    }
}

// A plan may be for another precision than this build's, where floatX and real may be the same type: so in a
// dry run pointers are not addresses, but tags that tell the two apart. These are the first of each (arena.h)
constexpr uintptr_t nowhere_x = 1UL << 60, nowhere_real = 2UL << 60, nowhere_else = 3UL << 60;
inline uintptr_t nowhere(const void* p) {  // one of the above, or 0 for actual memory
    uintptr_t part = (uintptr_t)p >> 60;
    return part >= 1 && part <= 3 ? part << 60 : 0;
}

template <class T>
constexpr Element element_of() {
    if (std::is_same_v<T, double>) return Element::Fp64;
    if (std::is_same_v<T, float>) return Element::Fp32;
    if (std::is_same_v<T, bf16>) return Element::Bf16;
    return sizeof(T) == 8 ? Element::Int64 : sizeof(T) == 4 ? Element::Int32 : sizeof(T) == 2 ? Element::Int16
        : Element::Byte;
}

template <class T>
Element element_at(const T* p) {
    uintptr_t part = nowhere(p);
    if (part == nowhere_x || (!part && std::is_same_v<T, floatX>)) return Element::X;
    if (part == nowhere_real || (!part && std::is_same_v<T, real>)) return Element::Real;
    return element_of<T>();
}

// (rows, columns) values that an operation reads, writes, or both (an update)
struct TensorAccess {
    enum Use : uint8_t { Read, Written, Updated } use;
    Element element;
    const char* name;
    const void* data;
    long rows, columns;
    double bytes(const Precision& precision) const {
        return (double)rows * (double)columns * element_bytes(element, precision) * (use == Updated ? 2 : 1);
    }
};
template <class T>
TensorAccess reads(const char* name, const T* p, long rows, long columns = 1) {
    return {TensorAccess::Read, element_at(p), name, p, p ? rows : 0, columns};
}

template <class T>
TensorAccess writes(const char* name, T* p, long rows, long columns = 1) {
    return {TensorAccess::Written, element_at(p), name, p, p ? rows : 0, columns};
}

template <class T>
TensorAccess updates(const char* name, T* p, long rows, long columns = 1) {
    return {TensorAccess::Updated, element_at(p), name, p, p ? rows : 0, columns};
}

inline double tensor_bytes(const std::vector<TensorAccess>& tensors, const Precision& precision = {}) {
    double bytes = 0;
    for (auto& tensor : tensors) bytes += tensor.bytes(precision);
    return bytes;
}

// set or, with `accumulate`, added to
template <class T>
TensorAccess sums_to(const char* name, T* p, bool accumulate, long rows, long columns = 1) {
    return accumulate ? updates(name, p, rows, columns) : writes(name, p, rows, columns);
}

// ---- works -----------------------------------------------------------------------------------------------

// one GEMM, or `batch` of them: (m, k) times (k, n)
struct GemmShape {
    long m, n, k, batch = 1;
    double flops() const { return 2.0 * (double)m * (double)n * (double)k * (double)batch; }
};

// the work of one kernel, or of several that read the same data. Bytes are of device memory
struct Work {
    enum Kind : uint8_t { Memory, Linear, Attention } kind = Memory;
    bool fp8 = false;               // the operands are fp8
    GemmShape gemm = {0, 0, 0, 1};
    double x = 0, reals = 0, others = 0;  // values of floatX and real, and other bytes, that are moved
    double bytes(const Precision& precision) const {
        return x * (double)precision.x + reals * (double)precision.real + others;
    }
};
inline Work moves(double x, double reals = 0, double others = 0) {
    return {.x = x, .reals = reals, .others = others};
}

// one of attention's matmuls, over all heads, with operands and result in memory
inline Work scores_product(GemmShape p) {
    return {.kind = Work::Attention, .gemm = p,
            .x = (double)p.batch * (double)(p.m * p.k + p.k * p.n + p.m * p.n)};
}

// ---- calls -----------------------------------------------------------------------------------------------

enum class Collective : uint8_t { AllReduce, ReduceScatter, AllGather, Send, Receive };
constexpr const char* name_of(Collective kind) {
    switch (kind) {
        case Collective::AllReduce: return "all_reduce";
        case Collective::ReduceScatter: return "reduce_scatter";
        case Collective::AllGather: return "all_gather";
        case Collective::Send: return "send";
        case Collective::Receive: return "receive";
    }
    return nullptr;
}

// whom a call communicates with, and how much: `count` values, the slices of all ranks together
struct Communication {
    Collective kind = Collective::AllReduce;
    const char* group = "";
    const std::vector<int>* members = nullptr;  // world ranks
    int rank = 0, size = 1;                     // this process's rank in the group; the group's size
    long count = 0;
    bool on_comm_stream = false;                // otherwise on the compute stream
    long number = 0;                            // its number in a dry run: see comm::StreamEvent
    bool in_group = false;                      // posted together with others, when the group ends
};

// ---- who listens -----------------------------------------------------------------------------------------

enum class Pass : int8_t { None = -1, Forward, Backward, Message, Reduce, Gather, Update };
constexpr const char* pass_names[] = {"forward", "backward", "message", "reduce", "gather", "update"};

// what an operation belongs to; -1: none
struct Place {
    Pass pass = Pass::None;
    int micro_batch = -1, chunk = -1;
    int bucket = -1;  // of gradients or parameters, on this stage
    int layer = -1;   // of the whole model
};
inline Place current_place;

struct Activity {
    enum Kind { Section, Compute, Communicate, Wait } kind;
    const char* name;
    Stream stream;  // on which it is enqueued
    Place place = {};
    std::vector<TensorAccess> tensors = {};
    std::vector<Work> works = {};
    Communication call = {};
    const char* label = "";      // of a call or a wait: its purpose
    Stream awaited = nullptr;    // Wait: until that stream has reached `position`
    long position = 0;
    std::source_location where = {};

    bool ends_later() const {  // than the function that makes it
        return kind == Communicate && (call.on_comm_stream || call.in_group);
    }
};

struct Listener {
    virtual ~Listener() = default;
    virtual bool executes() const { return true; }  // false: the step is only announced
    virtual void begin(const Activity&) = 0;        // before it is enqueued
    virtual void end(const Activity&) {}
};
inline std::vector<Listener*> listeners;  // in the training thread

inline bool is_dry_run() {
    for (auto* l : listeners)
        if (!l->executes()) return true;
    return false;
}

// announces an activity's begin and end to the listeners, and its name to NVIDIA's profilers
class ActivityScope {
    std::unique_ptr<Activity> activity;
    int exceptions = std::uncaught_exceptions();

public:
    template <class Make>
    ActivityScope([[maybe_unused]] const char* name, Make make) {
#if defined(DEVICE_CUDA)
        nvtxRangePushA(name);
#endif
        if (listeners.empty()) return;
        activity = std::make_unique<Activity>(make());
        activity->place = current_place;
        for (auto* l : listeners) l->begin(*activity);
    }

    // listeners hear of the end in reverse order; the end of an activity that threw is not announced
    ~ActivityScope() noexcept(false) {
#if defined(DEVICE_CUDA)
        nvtxRangePop();
#endif
        if (!activity || std::uncaught_exceptions() > exceptions) return;
        for (size_t i = listeners.size(); i-- > 0;) listeners[i]->end(*activity);
    }

    ActivityScope(const ActivityScope&) = delete;
};
