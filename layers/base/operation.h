// operation.h   what a step consists of: operations, each declared once
//   compute(ResidualForward{.y = y, .residual = x, …}, s);
//   An operation is a struct whose fields are tensors and sizes. It declares its name, the tensors() that it
//   reads and writes and, where these do not say it all, its works(): for listeners alone (activity.h, which
//   a reader of a step can skip), so that no plan or profile keeps a second list of what a step does. Scratch
//   is left out, and often what takes next to no bandwidth: flags, positions, hyper-parameters.
//   ref() computes it with loops on the host, gpu() with kernels; if both do the same, it has execute().
//   Section declares what the operations up to the closing brace belong to: which pass of which micro-batch.
#pragma once
#include "activity.h"

// ---- in the code of a step -------------------------------------------------------------------------------

// set over several ranks by comm_nccl.cpp: after operations and in GEMMs, the host waits if it is far ahead
// of the device (nccl_watch.h)
inline void (*after_operation)(Stream) = nullptr;

// Announces an operation and, unless this is a dry run, computes it (enqueues its kernels). Without works()
// it counts as one pass over each of its tensors. ref() and gpu() are further down in the layer's file
// (flash attention's in fast/: flash_attention.cuh, flash_dispatch.cuh), compiled in layers/compute.cu
template <class Operation>
void compute(const Operation& o, Stream s, std::source_location where = std::source_location::current()) {
    ActivityScope announced(Operation::name, [&] {
        Activity activity = {.kind = Activity::Compute, .name = Operation::name, .stream = s, .place = {},
                             .tensors = o.tensors(), .where = where};
        if constexpr (requires { o.works(); }) activity.works = o.works();
        return activity;
    });
    if (is_dry_run()) return;
    if constexpr (requires { o.execute(s); }) o.execute(s);
    else if constexpr (HAS_KERNELS) o.gpu(s);
    else o.ref(s);
    if (after_operation) after_operation(s);
}

// sets what the operations up to the closing brace belong to
class PlaceScope {
    Place before = current_place;

public:
    explicit PlaceScope(const Place& now) { current_place = now; }
    ~PlaceScope() { current_place = before; }
    PlaceScope(const PlaceScope&) = delete;
};

// does the same, and is itself an activity
class Section {
    PlaceScope here;
    ActivityScope announced;

public:
    Section(const Place& place, Stream s)
        : here(place), announced(pass_names[(int)place.pass], [&] {
              return Activity{.kind = Activity::Section, .name = pass_names[(int)place.pass], .stream = s};
          }) {}
};

// ---- memory, as an operation -----------------------------------------------------------------------------

// a structure is declared as its bytes
template <class T>
TensorAccess written_values(const char* name, T* p, long n) {
    if constexpr (std::is_class_v<T> && !std::is_same_v<T, floatX> && !std::is_same_v<T, bf16>)
        return writes(name, (char*)p, n, sizeof(T));
    else return writes(name, p, n);
}

template <class T>
struct ClearValues {
    const char* tensor;
    T* p;
    long n;

    static constexpr const char* name = "clear_values";
    std::vector<TensorAccess> tensors() const { return {written_values(tensor, p, n)}; }
    void execute(Stream s) const { set_zero(p, n * sizeof(T), s); }
};

template <class T>
ClearValues(const char*, T*, long) -> ClearValues<T>;

// copies from pinned host memory, asynchronously: it must stay as it is until the copy has run
template <class T>
struct UploadValues {
    const char* tensor;
    T* to;
    const T* from;
    long n;

    static constexpr const char* name = "upload_values";
    std::vector<TensorAccess> tensors() const { return {written_values(tensor, to, n)}; }
    void execute(Stream s) const { copy_to_device(to, from, n * sizeof(T), s); }
};

template <class T>
UploadValues(const char*, T*, const T*, long) -> UploadValues<T>;
