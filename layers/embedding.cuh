// embedding.cuh   x[n] = wte[tokens[n]] + wpe[position of n]
//   tokens (N) int   wte (rows, C): the vocabulary's rows from `row` on; tokens outside them give 0, so that
//   the
//   sum over tensor-parallel ranks is the whole   wpe (positions, C)   x, dx (N, C)   dwte, dwpe real
//   The rows of x are rows `offset`, … of a batch: row n stands at positions[offset + n], or where these are
//   nullptr, in a batch (B, T), at (offset + n) % T.
//   kept:  nothing
//   backward (of whole sequences): dwte, dwpe are added to, in an order that does not depend on threads
//   talks: nobody          cost: x written, then read and written: memory bound
#pragma once
#include "base/device.h"

namespace ref {

inline void embedding_forward(floatX* x, const int* tokens, const floatX* wte, int row, int rows, int N,
                              int C, Stream) {
    #pragma omp parallel for
    for (int n = 0; n < N; n++) {
        long own = tokens[n] - row;
        for (int c = 0; c < C; c++)
            x[(long)n * C + c] = own >= 0 && own < rows ? wte[own * C + c] : floatX(0);
    }
}

inline void position_forward(floatX* x, const floatX* wpe, const int* positions, int offset, int N, int T,
                             int C, Stream) {
    #pragma omp parallel for
    for (int n = 0; n < N; n++) {
        const floatX* position = wpe + (long)(positions ? positions[offset + n] : (offset + n) % T) * C;
        #pragma omp simd
        for (int c = 0; c < C; c++) x[(long)n * C + c] = floatX(real(x[(long)n * C + c]) + real(position[c]));
    }
}

constexpr int embedding_strip = 64;  // a thread owns columns, so no two add to the same place

inline void embedding_backward(real* dwte, const int* tokens, const floatX* dx, int row, int rows, int N,
                               int C, Stream) {
    #pragma omp parallel for
    for (int c0 = 0; c0 < C; c0 += embedding_strip) {
        int cs = C - c0 < embedding_strip ? C - c0 : embedding_strip;
        for (int n = 0; n < N; n++) {
            long own = tokens[n] - row;
            if (own < 0 || own >= rows) continue;
            #pragma omp simd
            for (int c = c0; c < c0 + cs; c++) dwte[own * C + c] += real(dx[(long)n * C + c]);
        }
    }
}

inline void position_backward(real* dwpe, const floatX* dx, int offset, int N, int T, int C, Stream) {
    #pragma omp parallel for
    for (int c0 = 0; c0 < C; c0 += embedding_strip) {
        int cs = C - c0 < embedding_strip ? C - c0 : embedding_strip;
        for (int n = 0; n < N; n++) {
            real* position = dwpe + (long)((offset + n) % T) * C;
            #pragma omp simd
            for (int c = c0; c < c0 + cs; c++) position[c] += real(dx[(long)n * C + c]);
        }
    }
}

}  // namespace ref

#if HAS_KERNELS
namespace gpu {

__global__ void embedding_forward_kernel(floatX* x, const int* tokens, const floatX* wte, int row, int rows,
                                         int N, int C) {
    long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (long)N * C) return;
    int own = tokens[i / C] - row;
    x[i] = own >= 0 && own < rows ? wte[(long)own * C + i % C] : floatX(0);
}

__global__ void position_forward_kernel(floatX* x, const floatX* wpe, const int* positions, int offset, int N,
                                        int T, int C) {
    long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (long)N * C) return;
    int n = offset + (int)(i / C), position = positions ? positions[n] : n % T;
    x[i] = floatX(real(x[i]) + real(wpe[(long)position * C + i % C]));
}

// A block stands at position n. Where its token already stood before n there is nothing to do; else the block
// walks on through all later positions, 128 at a time, and adds the rows of those with the same token, in
// order. The integer comparisons, N*N in all, take the place of float atomics, whose order would not repeat.
constexpr int embedding_block = 128, embedding_columns = 4;
__global__ void embedding_backward_kernel(real* dwte, const int* tokens, const floatX* dx, int row, int rows,
                                          int N, int C) {
    SHARED(unsigned, same, embedding_block / 32);
    int n = blockIdx.x, token = tokens[n], warp = threadIdx.x / 32, own = token - row;
    int c0 = blockIdx.y * embedding_block * embedding_columns + threadIdx.x;
    if (own < 0 || own >= rows) return;
    real sum[embedding_columns] = {};
    for (int base = 0; base < N; base += embedding_block) {
        int j = base + threadIdx.x;
        unsigned votes = __ballot_sync(all_lanes, j < N && tokens[j] == token);
        if (threadIdx.x % 32 == 0) same[warp] = votes;
        __syncthreads();
        for (int w = 0; w < embedding_block / 32; w++) {
            for (unsigned left = same[w]; left; left &= left - 1) {
                int found = base + 32 * w + __ffs(left) - 1;
                if (found < n) return;  // an earlier block has this token: the same answer in every thread
                for (int k = 0; k < embedding_columns; k++) {
                    int c = c0 + k * embedding_block;
                    if (c < C) sum[k] += real(dx[(long)found * C + c]);
                }
            }
        }
        __syncthreads();
    }
    for (int k = 0; k < embedding_columns; k++) {
        int c = c0 + k * embedding_block;
        if (c < C) dwte[(long)own * C + c] += sum[k];
    }
}

// a thread a position and channel
__global__ void position_backward_kernel(real* dwpe, const floatX* dx, int offset, int N, int T, int C) {
    long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (long)T * C) return;
    real sum = 0;
    for (long n = ((int)(i / C) - offset % T + T) % T; n < N; n += T) sum += real(dx[n * C + i % C]);
    dwpe[i] += sum;
}

inline void embedding_forward(floatX* x, const int* tokens, const floatX* wte, int row, int rows, int N,
                              int C, Stream s) {
    LAUNCH(embedding_forward_kernel, ceil_div((long)N * C, 256), 256, 0, s, x, tokens, wte, row, rows, N, C);
}
inline void position_forward(floatX* x, const floatX* wpe, const int* positions, int offset, int N, int T,
                             int C, Stream s) {
    LAUNCH(position_forward_kernel, ceil_div((long)N * C, 256), 256, 0, s, x, wpe, positions, offset, N, T,
           C);
}
inline void embedding_backward(real* dwte, const int* tokens, const floatX* dx, int row, int rows, int N,
                               int C, Stream s) {
    LAUNCH(embedding_backward_kernel, dim3(N, ceil_div(C, embedding_block * embedding_columns)),
           embedding_block, 0, s, dwte, tokens, dx, row, rows, N, C);
}
inline void position_backward(real* dwpe, const floatX* dx, int offset, int N, int T, int C, Stream s) {
    LAUNCH(position_backward_kernel, ceil_div((long)T * C, 256), 256, 0, s, dwpe, dx, offset, N, T, C);
}

}  // namespace gpu
#endif
