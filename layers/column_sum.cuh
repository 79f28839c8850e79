// column_sum.cuh   out[c] = sum over n of x[n][c]: the gradient of everything that is added to every row
//   x (N, C)   out (C) real, with `accumulate` added to   scratch: column_sum_scratch(C) values
//   normalised: the terms are dy[n][c] * (x[n][c] - mean[n]) * rstd[n], the gradient of a layer norm's weight
//   communicates: nothing    cost: N*C flops, x read once; always summed in the same order: memory bound
#pragma once
#include "base/device.h"

constexpr int column_sum_parts = 32;  // the rows are summed in this many parts at most, then the parts
inline int column_sum_cut(int N) { return N < 64 * column_sum_parts ? ceil_div(N, 64) : column_sum_parts; }
inline long column_sum_scratch(int C) { return (long)column_sum_parts * C; }

namespace ref {

inline void column_sum(real* out, const floatX* x, real*, int N, int C, bool accumulate, Stream) {
    constexpr int strip = 64;
    #pragma omp parallel for
    for (int c0 = 0; c0 < C; c0 += strip) {
        real sum[strip] = {};
        int cs = C - c0 < strip ? C - c0 : strip;
        for (int n = 0; n < N; n++) {
            const floatX* xn = x + (long)n * C + c0;
            #pragma omp simd
            for (int c = 0; c < cs; c++) sum[c] += real(xn[c]);
        }
        for (int c = 0; c < cs; c++) out[c0 + c] = (accumulate ? out[c0 + c] : 0) + sum[c];
    }
}

}  // namespace ref

#if HAS_KERNELS
namespace gpu {

constexpr int column_lanes = 8, column_rows = 32;  // of a block's threads: columns, 16 bytes each, and rows

// what a block adds up: blockIdx.y is the part of the rows; term(sum, n, c) adds row n's values from c on
template <int EACH, class Term>
__device__ void column_sum_part(real* parts, Term term, int N, int C) {
    constexpr int wide = column_lanes * EACH;
    SHARED(real, rows, column_rows * wide);
    int c = blockIdx.x * wide + threadIdx.x * EACH, own = threadIdx.y * column_lanes + threadIdx.x;
    int part = (N + gridDim.y - 1) / gridDim.y, first = blockIdx.y * part;
    int last = first + part < N ? first + part : N;
    real sum[EACH] = {};
    if (c < C) {
        UNROLL(unroll 4)
        for (int n = first + threadIdx.y; n < last; n += column_rows) term(sum, n, c);
    }
    for (int k = 0; k < EACH; k++) rows[threadIdx.y * wide + threadIdx.x * EACH + k] = sum[k];
    __syncthreads();
    if (own >= wide || (int)blockIdx.x * wide + own >= C) return;
    real whole = 0;
    for (int y = 0; y < column_rows; y++) whole += rows[y * wide + own];
    parts[(long)blockIdx.y * C + blockIdx.x * wide + own] = whole;
}

template <class T>
__global__ void column_sum_kernel(real* parts, const T* x, int N, int C) {
    constexpr int each = Vec<T>::size;
    column_sum_part<each>(parts, [=](real (&sum)[each], int n, int c) {
        Vec<T> v = load_row(x + (long)n * C, c, C);
        for (int k = 0; k < each; k++) sum[k] += real(v.at[k]);
    }, N, C);
}

__global__ void column_sum_normalised_kernel(real* parts, const floatX* dy, const floatX* x, const real* mean,
                                             const real* rstd, int N, int C) {
    column_sum_part<vec_size>(parts, [=](real (&sum)[vec_size], int n, int c) {
        Vec<floatX> d = load_row(dy + (long)n * C, c, C), v = load_row(x + (long)n * C, c, C);
        for (int k = 0; k < vec_size; k++) sum[k] += real(d.at[k]) * (real(v.at[k]) - mean[n]) * rstd[n];
    }, N, C);
}

__global__ void column_sum_finish_kernel(real* out, const real* parts, int count, int C, bool accumulate) {
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= C) return;
    real sum = 0;
    for (int p = 0; p < count; p++) sum += parts[(long)p * C + c];
    out[c] = (accumulate ? out[c] : 0) + sum;
}

template <int EACH>
dim3 column_blocks(int C, int parts) {
    return dim3(ceil_div(C, column_lanes * EACH), parts);
}

template <class T>
void column_sum(real* out, const T* x, real* scratch, int N, int C, bool accumulate, Stream s) {
    int parts = column_sum_cut(N);
    LAUNCH(column_sum_kernel<T>, column_blocks<Vec<T>::size>(C, parts), dim3(column_lanes, column_rows), 0, s,
           scratch, x, N, C);
    LAUNCH(column_sum_finish_kernel, ceil_div(C, 128), 128, 0, s, out, scratch, parts, C, accumulate);
}

inline void column_sum_normalised(real* out, const floatX* dy, const floatX* x, const real* mean,
                                  const real* rstd, real* scratch, int N, int C, bool accumulate, Stream s) {
    int parts = column_sum_cut(N);
    LAUNCH(column_sum_normalised_kernel, column_blocks<vec_size>(C, parts), dim3(column_lanes, column_rows),
           0, s, scratch, dy, x, mean, rstd, N, C);
    LAUNCH(column_sum_finish_kernel, ceil_div(C, 128), 128, 0, s, out, scratch, parts, C, accumulate);
}

}  // namespace gpu
#endif
