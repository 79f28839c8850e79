// embedding.cuh   x[b][t] = wte[tokens[b][t]] + wpe[first + t]
//   tokens (B, T) int   wte (V, C)   wpe (positions, C)   x, dx (B, T, C)   dwte, dwpe real, as wte and wpe
//   first: the position of the first token of each row (0 in training)
//   kept:  nothing
//   backward (first = 0): dwte, dwpe are added to, in an order that does not depend on threads
//   talks: nobody          cost: x written once: memory bound
#pragma once
#include "base/device.h"

namespace ref {

inline void embedding_forward(floatX* x, const int* tokens, const floatX* wte, const floatX* wpe, int first,
                              int B, int T, int C, Stream) {
    #pragma omp parallel for
    for (int n = 0; n < B * T; n++) {
        const floatX *token = wte + (long)tokens[n] * C, *position = wpe + (long)(first + n % T) * C;
        #pragma omp simd
        for (int c = 0; c < C; c++) x[(long)n * C + c] = floatX(real(token[c]) + real(position[c]));
    }
}

inline void embedding_backward(real* dwte, real* dwpe, const int* tokens, const floatX* dx, int B, int T,
                               int C, Stream) {
    constexpr int strip = 64;  // a thread owns columns, so no two add to the same place
    #pragma omp parallel for
    for (int c0 = 0; c0 < C; c0 += strip) {
        int cs = C - c0 < strip ? C - c0 : strip;
        for (int n = 0; n < B * T; n++) {
            const floatX* d = dx + (long)n * C + c0;
            real *token = dwte + (long)tokens[n] * C + c0, *position = dwpe + (long)(n % T) * C + c0;
            #pragma omp simd
            for (int c = 0; c < cs; c++) token[c] += real(d[c]);
            #pragma omp simd
            for (int c = 0; c < cs; c++) position[c] += real(d[c]);
        }
    }
}

}  // namespace ref

#if HAS_KERNELS
namespace gpu {

__global__ void embedding_forward_kernel(floatX* x, const int* tokens, const floatX* wte, const floatX* wpe,
                                         int first, int N, int T, int C) {
    long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (long)N * C) return;
    int n = (int)(i / C), c = (int)(i % C);
    x[i] = floatX(real(wte[(long)tokens[n] * C + c]) + real(wpe[(long)(first + n % T) * C + c]));
}

// A block stands at position n. Where its token already stood before n there is nothing to do; else the block
// walks on through all later positions, 128 at a time, and adds the rows of those with the same token, in
// order. The integer comparisons, N*N in all, take the place of float atomics, whose order would not repeat.
constexpr int embedding_block = 128, embedding_columns = 4;
__global__ void embedding_token_backward_kernel(real* dwte, const int* tokens, const floatX* dx, int N,
                                                int C) {
    SHARED(unsigned, same, embedding_block / 32);
    int n = blockIdx.x, token = tokens[n], warp = threadIdx.x / 32;
    int c0 = blockIdx.y * embedding_block * embedding_columns + threadIdx.x;
    real sum[embedding_columns] = {};
    for (int base = 0; base < N; base += embedding_block) {
        int j = base + threadIdx.x;
        unsigned votes = __ballot_sync(all_lanes, j < N && tokens[j] == token);
        if (threadIdx.x % 32 == 0) same[warp] = votes;
        __syncthreads();
        for (int w = 0; w < embedding_block / 32; w++) {
            for (unsigned left = same[w]; left; left &= left - 1) {
                int row = base + 32 * w + __ffs(left) - 1;
                if (row < n) return;  // an earlier block has this token: the same answer in every thread
                for (int k = 0; k < embedding_columns; k++) {
                    int c = c0 + k * embedding_block;
                    if (c < C) sum[k] += real(dx[(long)row * C + c]);
                }
            }
        }
        __syncthreads();
    }
    for (int k = 0; k < embedding_columns; k++) {
        int c = c0 + k * embedding_block;
        if (c < C) dwte[(long)token * C + c] += sum[k];
    }
}

__global__ void embedding_position_backward_kernel(real* dwpe, const floatX* dx, int B, int T, int C) {
    long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (long)T * C) return;
    real sum = 0;
    for (int b = 0; b < B; b++) sum += real(dx[(long)b * T * C + i]);
    dwpe[i] += sum;
}

inline void embedding_forward(floatX* x, const int* tokens, const floatX* wte, const floatX* wpe, int first,
                              int B, int T, int C, Stream s) {
    LAUNCH(embedding_forward_kernel, ceil_div((long)B * T * C, 256), 256, 0, s, x, tokens, wte, wpe, first,
           B * T, T, C);
}

inline void embedding_backward(real* dwte, real* dwpe, const int* tokens, const floatX* dx, int B, int T,
                               int C, Stream s) {
    LAUNCH(embedding_token_backward_kernel, dim3(B * T, ceil_div(C, embedding_block * embedding_columns)),
           embedding_block, 0, s, dwte, tokens, dx, B * T, C);
    LAUNCH(embedding_position_backward_kernel, ceil_div((long)T * C, 256), 256, 0, s, dwpe, dx, B, T, C);
}

}  // namespace gpu
#endif
