// cross_entropy.cuh   loss[n] = log(sum over v of exp(logits[n][v])) - logits[n][target[n]]
//   In three steps, so that the vocabulary may lie over tensor-parallel ranks; between them the ranks reduce
//   N and 2 N values, never logits:
//     1. largest[n] = max of this rank's logits                                 then MAX over the ranks
//     2. sums[0][n] = sum of exp(logit - largest), sums[1][n] = target's logit     then SUM over the ranks
//     3. losses[n] += log(sums[0]) + largest - sums[1]; the logits become dlogits = (softmax - onehot) *
//     dloss
//   logits (N, Vp) of which the first V columns take part, being entries first, … of the vocabulary; targets
//   (N) int; largest, losses (N), sums (2, N) real. dlogits is 0 in the columns from V on.
//   With hits (N), a row's is 1 where no logit is larger than the target's, else 0.
//   kept:  nothing more (the gradient replaces the logits)
//   talks: nobody          cost: 4*N*V flops, logits read three times and written once: memory bound
#pragma once
#include "base/device.h"
#include "base/vector_exp.h"

struct Vocabularies { int V, Vp, first; };  // columns that take part, all columns, entry of column 0

namespace ref {

inline void cross_entropy_max(real* largest, const floatX* logits, int N, Vocabularies v, Stream) {
    #pragma omp parallel for
    for (int n = 0; n < N; n++) {
        const floatX* row = logits + (long)n * v.Vp;
        real most = -std::numeric_limits<real>::infinity();
        #pragma omp simd reduction(max : most)
        for (int c = 0; c < v.V; c++) most = real(row[c]) > most ? real(row[c]) : most;
        largest[n] = most;
    }
}

inline void cross_entropy_sum(real* sums, const real* largest, const floatX* logits, const int* targets,
                              int N, Vocabularies v, Stream) {
    #pragma omp parallel for
    for (int n = 0; n < N; n++) {
        const floatX* row = logits + (long)n * v.Vp;
        real sum = 0, most = largest[n];
        #pragma omp simd reduction(+ : sum)
        for (int c = 0; c < v.V; c++) sum += vector_exp(real(row[c]) - most);
        int own = targets[n] - v.first;
        sums[n] = sum, sums[N + n] = own >= 0 && own < v.V ? real(row[own]) : 0;
    }
}

inline void cross_entropy_finish(real* losses, real* hits, floatX* logits, const real* largest,
                                 const real* sums, const int* targets, real dloss, bool want_gradient, int N,
                                 Vocabularies v, Stream) {
    #pragma omp parallel for
    for (int n = 0; n < N; n++) {
        floatX* row = logits + (long)n * v.Vp;
        real log_sum = largest[n] + std::log(sums[n]);
        losses[n] += log_sum - sums[N + n];
        if (hits) hits[n] = sums[N + n] >= largest[n];
        if (!want_gradient) continue;
        #pragma omp simd
        for (int c = 0; c < v.V; c++) row[c] = floatX(vector_exp(real(row[c]) - log_sum) * dloss);
        for (int c = v.V; c < v.Vp; c++) row[c] = floatX(0);
        int own = targets[n] - v.first;
        if (own >= 0 && own < v.V) row[own] = floatX((vector_exp(sums[N + n] - log_sum) - 1) * dloss);
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
    if (threadIdx.x % 32 == 0) lane[threadIdx.x / 32] = x;
    __syncthreads();
    x = lane[0];
    for (int w = 1; w < cross_entropy_block / 32; w++) x = combine(x, lane[w]);
    return x;
}

// a block a row, in all three
__global__ void cross_entropy_max_kernel(real* largest, const floatX* logits, Vocabularies v, real lowest) {
    SHARED(real, lane, cross_entropy_block / 32);
    const floatX* row = logits + (long)blockIdx.x * v.Vp;
    real most = lowest;
    for (int c = threadIdx.x; c < v.V; c += blockDim.x) most = real(row[c]) > most ? real(row[c]) : most;
    most = block_reduce(most, lane, [](real a, real b) { return a > b ? a : b; });
    if (threadIdx.x == 0) largest[blockIdx.x] = most;
}

__global__ void cross_entropy_sum_kernel(real* sums, const real* largest, const floatX* logits,
                                         const int* targets, Vocabularies v) {
    SHARED(real, lane, cross_entropy_block / 32);
    int n = blockIdx.x, N = gridDim.x, own = targets[n] - v.first;
    const floatX* row = logits + (long)n * v.Vp;
    real sum = 0, most = largest[n];
    for (int c = threadIdx.x; c < v.V; c += blockDim.x) sum += exp(real(row[c]) - most);
    sum = block_reduce(sum, lane, [](real a, real b) { return a + b; });
    if (threadIdx.x == 0) sums[n] = sum, sums[N + n] = own >= 0 && own < v.V ? real(row[own]) : 0;
}

__global__ void cross_entropy_finish_kernel(real* losses, real* hits, floatX* logits, const real* largest,
                                            const real* sums, const int* targets, real dloss,
                                            bool want_gradient, Vocabularies v) {
    int n = blockIdx.x, N = gridDim.x, own = targets[n] - v.first;
    floatX* row = logits + (long)n * v.Vp;
    real log_sum = largest[n] + log(sums[n]);
    if (threadIdx.x == 0) losses[n] += log_sum - sums[N + n];
    if (threadIdx.x == 0 && hits) hits[n] = sums[N + n] >= largest[n];
    if (!want_gradient) return;
    for (int c = threadIdx.x; c < v.Vp; c += blockDim.x) {
        real p = c < v.V ? exp(real(row[c]) - log_sum) - (c == own) : 0;
        row[c] = floatX(p * dloss);
    }
}

inline void cross_entropy_max(real* largest, const floatX* logits, int N, Vocabularies v, Stream s) {
    LAUNCH(cross_entropy_max_kernel, N, cross_entropy_block, 0, s, largest, logits, v,
           -std::numeric_limits<real>::infinity());
}
inline void cross_entropy_sum(real* sums, const real* largest, const floatX* logits, const int* targets,
                              int N, Vocabularies v, Stream s) {
    LAUNCH(cross_entropy_sum_kernel, N, cross_entropy_block, 0, s, sums, largest, logits, targets, v);
}
inline void cross_entropy_finish(real* losses, real* hits, floatX* logits, const real* largest,
                                 const real* sums, const int* targets, real dloss, bool want_gradient, int N,
                                 Vocabularies v, Stream s) {
    LAUNCH(cross_entropy_finish_kernel, N, cross_entropy_block, 0, s, losses, hits, logits, largest, sums,
           targets, dloss, want_gradient, v);
}

}  // namespace gpu
#endif
