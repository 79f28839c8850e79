// packed_state.cuh   optimizer state, however it is stored (adamw.cuh), as real values, and back: for
//   saves and resumes
#pragma once
#include "../adamw.cuh"
#include "../base/operation.h"

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

// out (n) = values of the state, however they are stored
template <class State>
struct UnpackState {
    real* out;
    State state;
    StateKind kind;
    long n;
    void ref(Stream) const;
    void gpu(Stream) const;
};

// values of the state = in (n)
template <class State>
struct PackState {
    State state;
    StateKind kind;
    const real* in;
    long n;
    void ref(Stream) const;
    void gpu(Stream) const;
};

#if REF_HERE
template <class State>
void UnpackState<State>::ref(Stream) const {
    #pragma omp parallel for
    for (long i = 0; i < n; i++) out[i] = get_state(state, kind, i);
}

template <class State>
void PackState<State>::ref(Stream) const {
    #pragma omp parallel for
    for (long i = 0; i < n; i++) set_state(state, kind, i, in[i]);
}
#endif

#if KERNELS_HERE
namespace gpu {

template <class State>
__global__ void unpack_state_kernel(real* out, State state, StateKind kind, long n) {
    long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = get_state(state, kind, i);
}

template <class State>
__global__ void pack_state_kernel(State state, StateKind kind, const real* in, long n) {
    long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) set_state(state, kind, i, in[i]);
}

}  // namespace gpu

template <class State>
void UnpackState<State>::gpu(Stream s) const {
    LAUNCH(gpu::unpack_state_kernel<State>, ceil_div(n, 256), 256, 0, s, out, state, kind, n);
}

template <class State>
void PackState<State>::gpu(Stream s) const {
    LAUNCH(gpu::pack_state_kernel<State>, ceil_div(n, 256), 256, 0, s, state, kind, in, n);
}
#endif
