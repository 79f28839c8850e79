// values.h   values of parameters and optimizer state, between steps: initialised, copied to the host (for a
//   save), written back (by a resume)
#pragma once
#include <algorithm>
#include <vector>
#include "../base/random.h"
#include "allocate.h"
#include "packed_state.cuh"

// where values of the state are stored as real; nullptr: they are stored in another format
inline real* kept_as_real(const Model& model, const Optimizer& optimizer, StateKind kind, long at,
                          long state_offset) {
    if (kind == Master) return master_is_parameter ? (real*)model.weights + at : nullptr;
    if (model.setup.bf16_moments) return nullptr;
    return (real*)(kind == MomentM ? optimizer.m : optimizer.v) + state_offset;
}

// runs an operation between steps, when no listener is attached
template <class Operation>
void compute_now(const Operation& o, Stream s) {
    if constexpr (HAS_KERNELS) o.gpu(s);
    else o.ref(s);
}

// Copies n values of the state to the host; write_state() copies them back. Values not stored as real are
// converted in the gradient buffer, which is free between steps. It is zeroed afterwards, because its padding
// must stay 0
inline void copy_state_to_host(real* to, Model& model, const Optimizer& optimizer, StateKind kind, long at,
                       long state_offset, long n) {
    const real* from = kept_as_real(model, optimizer, kind, at, state_offset);
    if (!from)
        optimizer.with_state(model, at, state_offset, [&](auto state) {
            compute_now(CopyState<decltype(state)>{model.gradients, state, kind, n}, model.stream);
        });
    copy_to_host(to, from ? from : model.gradients, n * sizeof(real), model.stream);
    if (!from) set_zero(model.gradients, n * sizeof(real), model.stream);
}

inline void write_state(Model& model, const Optimizer& optimizer, StateKind kind, long at, long state_offset,
                        const real* values, long n) {
    real* to = kept_as_real(model, optimizer, kind, at, state_offset);
    copy_to_device(to ? to : model.gradients, values, n * sizeof(real), model.stream);
    if (to) return synchronize(model.stream);  // before `values` is freed
    optimizer.with_state(model, at, state_offset, [&](auto state) {
        compute_now(CopyState<decltype(state)>{model.gradients, state, kind, n, true}, model.stream);
    });
    set_zero(model.gradients, n * sizeof(real), model.stream);
    synchronize(model.stream);
}

// writes parameters [at, at + n) of the flat buffers, rounded from master weights
inline void write_parameters(Model& model, long at, const real* values, long n) {
    std::vector<floatX> rounded(n);
    for (long i = 0; i < n; i++) rounded[i] = split_master(values[i]).parameter;
    copy_to_device(model.weights + at, rounded.data(), n * sizeof(floatX), model.stream);
    synchronize(model.stream);  // before `rounded` is freed
}

// Stores this rank's shard of parameter model.table.list[i] (its size in values, padding included) as
// parameters and, where this rank owns them, as master weights
inline void store_parameter(Model& model, Optimizer* optimizer, int i, const std::vector<real>& values) {
    const Parameter& p = model.table.list[i];
    write_parameters(model, p.offset, values.data(), p.size);
    if (!optimizer || master_is_parameter) return;
    TensorPart part = owned_part(i, p, optimizer->slices[p.bucket]);
    if (part.n > 0)
        write_state(model, *optimizer, Master, part.at, part.state_offset,
                    values.data() + (part.at - p.offset), part.n);
}

// calls run(first element in the whole tensor, first element in the shard, length) per contiguous run
template <class Run>
void for_each_run(const Parameter& p, Run run) {
    long inner = 1, at = 0;  // inner: elements per index of the split dimension
    size_t dim = p.shape.size();
    while (dim > 0 && p.count[dim - 1] == p.shape[dim - 1]) inner *= p.shape[--dim];
    long length = dim ? p.count[dim - 1] * inner : inner, rows = 1;
    for (size_t i = 0; i + 1 < dim; i++) rows *= p.shape[i];
    for (long row = 0; row < rows; row++, at += length)
        run(dim ? (row * p.shape[dim - 1] + p.start[dim - 1]) * inner : 0, at, length);
}

// values depend only on seed, tensor name and index in the whole tensor; padded vocabulary rows stay 0
inline void initialise_parameters(Model& model, Optimizer* optimizer, uint64_t seed) {
    for (size_t i = 0; i < model.table.list.size(); i++) {
        const Parameter& p = model.table.list[i];
        std::vector<real> values(p.size, 0);
        if (p.init_std == 0) std::fill(values.begin(), values.end(), (real)p.constant);
        else
            for_each_run(p, [&](long whole, long shard, long n) {
                normals(values.data() + shard, seed, purpose(p.name), (uint64_t)whole, n, p.init_std);
            });
        store_parameter(model, optimizer, (int)i, values);
    }
}
