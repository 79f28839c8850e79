// packed_state.cuh   optimizer state, however it is stored (adamw_state.cuh), as real values, and back: for
//   saves and resumes
#pragma once
#include "../adamw_state.cuh"

enum StateKind { Master, MomentM, MomentV, state_kinds };

// one value of the state as a real
template <class State>
HOST_DEVICE real get_state(const State& state, StateKind kind, long i) {
    return kind == Master ? state.master(i) : real(kind == MomentM ? state.m[i] : state.v[i]);
}

// sets a master weight, or a moment rounded to nearest: a value that was a bf16 is restored exactly
template <class State>
HOST_DEVICE void set_state(const State& state, StateKind kind, long i, real x) {
    if (kind == Master) state.set_master(i, split_master(x));
    else round_stochastically((kind == MomentM ? state.m : state.v)[i], x, 0x8000);
}

namespace ref {

// n values of the state, however they are stored -> out, and back
template <class State>
void unpack_state(real* out, const State& state, StateKind kind, long n, Stream) {
    #pragma omp parallel for
    for (long i = 0; i < n; i++) out[i] = get_state(state, kind, i);
}

template <class State>
void pack_state(const State& state, StateKind kind, const real* values, long n, Stream) {
    #pragma omp parallel for
    for (long i = 0; i < n; i++) set_state(state, kind, i, values[i]);
}

}  // namespace ref

#if HAS_KERNELS
namespace gpu {
template <class State>
void unpack_state(real* out, const State& state, StateKind kind, long n, Stream s);
template <class State>
void pack_state(const State& state, StateKind kind, const real* values, long n, Stream s);
}  // namespace gpu
#endif

#if KERNELS_HERE
namespace gpu {

template <class State>
__global__ void unpack_state_kernel(real* out, State state, StateKind kind, long n) {
    long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = get_state(state, kind, i);
}
template <class State>
void unpack_state(real* out, const State& state, StateKind kind, long n, Stream s) {
    LAUNCH(unpack_state_kernel<State>, ceil_div(n, 256), 256, 0, s, out, state, kind, n);
}

template <class State>
__global__ void pack_state_kernel(State state, StateKind kind, const real* values, long n) {
    long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) set_state(state, kind, i, values[i]);
}
template <class State>
void pack_state(const State& state, StateKind kind, const real* values, long n, Stream s) {
    LAUNCH(pack_state_kernel<State>, ceil_div(n, 256), 256, 0, s, state, kind, values, n);
}

}  // namespace gpu
#endif
