// column_sum.cuh   out[c] += sum over n of x[n][c]: the gradient of everything that is added to every row
//   x (N, C)   out (C) real, added to   scratch: column_sum_scratch(C) values
//   normalised: the terms are dy[n][c] * (x[n][c] - mean[n]) * rstd[n], the gradient of a layer norm's weight
//   talks: nobody          cost: N*C flops, x read once; always summed in the same order
#pragma once
#include "base/device.h"

constexpr int column_sum_parts = 32;  // the rows are summed in this many parts at most, then the parts
inline int column_sum_cut(int N) { return N < 64 * column_sum_parts ? ceil_div(N, 64) : column_sum_parts; }
inline long column_sum_scratch(int C) { return (long)column_sum_parts * C; }

namespace ref {

inline void column_sum(real* out, const floatX* x, real*, int N, int C, Stream) {
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
        for (int c = 0; c < cs; c++) out[c0 + c] += sum[c];
    }
}

}  // namespace ref

#if HAS_KERNELS
namespace gpu {

// block (32, 8): 32 columns, 8 rows at a time; blockIdx.y is the part of the rows
template <class Term>
__device__ void column_sum_part(real* parts, Term term, int N, int C) {
    SHARED(real, rows, 8 * 32);
    int c = blockIdx.x * 32 + threadIdx.x;
    int part = (N + gridDim.y - 1) / gridDim.y, first = blockIdx.y * part;
    int last = first + part < N ? first + part : N;
    real sum = 0;
    if (c < C) for (int n = first + threadIdx.y; n < last; n += 8) sum += term(n, c);
    rows[threadIdx.y * 32 + threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && c < C) {
        for (int y = 1; y < 8; y++) sum += rows[y * 32 + threadIdx.x];
        parts[(long)blockIdx.y * C + c] = sum;
    }
}

template <class T>
__global__ void column_sum_kernel(real* parts, const T* x, int N, int C) {
    column_sum_part(parts, [=](int n, int c) { return real(x[(long)n * C + c]); }, N, C);
}

__global__ void column_sum_normalised_kernel(real* parts, const floatX* dy, const floatX* x, const real* mean,
                                             const real* rstd, int N, int C) {
    auto term = [=](int n, int c) {
        long i = (long)n * C + c;
        return real(dy[i]) * (real(x[i]) - mean[n]) * rstd[n];
    };
    column_sum_part(parts, term, N, C);
}

__global__ void column_sum_add_kernel(real* out, const real* parts, int count, int C) {
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= C) return;
    real sum = 0;
    for (int p = 0; p < count; p++) sum += parts[(long)p * C + c];
    out[c] += sum;
}

template <class T>
void column_sum(real* out, const T* x, real* scratch, int N, int C, Stream s) {
    int parts = column_sum_cut(N);
    LAUNCH(column_sum_kernel<T>, dim3(ceil_div(C, 32), parts), dim3(32, 8), 0, s, scratch, x, N, C);
    LAUNCH(column_sum_add_kernel, ceil_div(C, 128), 128, 0, s, out, scratch, parts, C);
}

inline void column_sum_normalised(real* out, const floatX* dy, const floatX* x, const real* mean,
                                  const real* rstd, real* scratch, int N, int C, Stream s) {
    int parts = column_sum_cut(N);
    LAUNCH(column_sum_normalised_kernel, dim3(ceil_div(C, 32), parts), dim3(32, 8), 0, s, scratch, dy, x,
           mean, rstd, N, C);
    LAUNCH(column_sum_add_kernel, ceil_div(C, 128), 128, 0, s, out, scratch, parts, C);
}

}  // namespace gpu
#endif
