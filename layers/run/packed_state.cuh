// packed_state.cuh   converts optimizer state, however it is stored (adamw.cuh), to real values and back,
//   for saves and resumes
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

// values (n) = the state's, converted to real; or, with `back`, the state's = values
template <class State>
struct CopyState {
    real* values;
    State state;
    StateKind kind;
    long n;
    bool back = false;
    HOST_DEVICE void copy(long i) const {
        if (back) set_state(state, kind, i, values[i]);
        else values[i] = get_state(state, kind, i);
    }
    void ref(Stream) const;
    void gpu(Stream) const;
};

#if REF_HERE
template <class State>
void CopyState<State>::ref(Stream) const {
    #pragma omp parallel for
    for (long i = 0; i < n; i++) copy(i);
}
#endif

#if KERNELS_HERE
namespace gpu {

template <class State>
__global__ void copy_state_kernel(CopyState<State> given) {
    long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < given.n) given.copy(i);
}

}  // namespace gpu

template <class State>
void CopyState<State>::gpu(Stream s) const {
    LAUNCH(gpu::copy_state_kernel<State>, ceil_div(n, 256), 256, 0, s, *this);
}
#endif
