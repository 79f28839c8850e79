// cross_entropy.cuh   loss[n] = log(sum over v of exp(logits[n][v])) - logits[n][target[n]]
//   logits (N, Vp) of which the first V columns take part; targets (N) int; losses (N) real
//   backward, in place of the logits: dlogits = (softmax - onehot) * dloss, and 0 in the columns from V on
//   kept:  nothing more (the gradient replaces the logits)
//   talks: nobody          cost: 4*N*V flops, logits read twice and written once: memory bound
#pragma once
#include "base/device.h"
#include "base/vector_exp.h"

namespace ref {

// losses are added to; with want_gradient the logits become dlogits
inline void cross_entropy(real* losses, floatX* logits, const int* targets, real dloss, bool want_gradient,
                          int N, int V, int Vp, Stream) {
    #pragma omp parallel for
    for (int n = 0; n < N; n++) {
        floatX* row = logits + (long)n * Vp;
        real largest = real(row[0]), sum = 0;
        #pragma omp simd reduction(max : largest)
        for (int v = 0; v < V; v++) largest = real(row[v]) > largest ? real(row[v]) : largest;
        #pragma omp simd reduction(+ : sum)
        for (int v = 0; v < V; v++) sum += vector_exp(real(row[v]) - largest);
        real log_sum = largest + std::log(sum);
        losses[n] += log_sum - real(row[targets[n]]);
        if (!want_gradient) continue;
        real target = vector_exp(real(row[targets[n]]) - log_sum) - 1;
        #pragma omp simd
        for (int v = 0; v < V; v++) row[v] = floatX(vector_exp(real(row[v]) - log_sum) * dloss);
        row[targets[n]] = floatX(target * dloss);
        for (int v = V; v < Vp; v++) row[v] = floatX(0);
    }
}

}  // namespace ref

#if HAS_KERNELS
namespace gpu {

constexpr int cross_entropy_block = 256;

// the same in every thread of the block; `lane` holds one value per warp
template <class Combine>
__device__ real block_reduce(real x, real* lane, Combine combine) {
    for (int d = 16; d > 0; d /= 2) x = combine(x, __shfl_xor_sync(all_lanes, x, d));
    __syncthreads();  // the last reduction's values have been read
    if (threadIdx.x % 32 == 0) lane[threadIdx.x / 32] = x;
    __syncthreads();
    x = lane[0];
    for (int w = 1; w < cross_entropy_block / 32; w++) x = combine(x, lane[w]);
    return x;
}

// a block a row
__global__ void cross_entropy_kernel(real* losses, floatX* logits, const int* targets, real dloss,
                                     bool want_gradient, int V, int Vp) {
    SHARED(real, lane, cross_entropy_block / 32);
    int n = blockIdx.x, target = targets[n];
    floatX* row = logits + (long)n * Vp;
    real largest = real(row[0]), sum = 0;
    for (int v = threadIdx.x; v < V; v += blockDim.x)
        largest = real(row[v]) > largest ? real(row[v]) : largest;
    largest = block_reduce(largest, lane, [](real a, real b) { return a > b ? a : b; });
    for (int v = threadIdx.x; v < V; v += blockDim.x) sum += exp(real(row[v]) - largest);
    sum = block_reduce(sum, lane, [](real a, real b) { return a + b; });
    real log_sum = largest + log(sum);
    if (threadIdx.x == 0) losses[n] += log_sum - real(row[target]);
    if (!want_gradient) return;
    __syncthreads();  // row[target] has been read
    for (int v = threadIdx.x; v < Vp; v += blockDim.x) {
        real p = v < V ? exp(real(row[v]) - log_sum) - (v == target) : 0;
        row[v] = floatX(p * dloss);
    }
}

inline void cross_entropy(real* losses, floatX* logits, const int* targets, real dloss, bool want_gradient,
                          int N, int V, int Vp, Stream s) {
    LAUNCH(cross_entropy_kernel, N, cross_entropy_block, 0, s, losses, logits, targets, dloss, want_gradient,
           V, Vp);
}

}  // namespace gpu
#endif
