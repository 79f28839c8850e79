// fp8_linear.cuh   the GEMMs of linear.cuh in fp8, for --fp8 (Micikevicius et al., 2022)
//   x and w are rounded to e4m3, dy to e5m2. Each tensor is scaled by the largest power of two that keeps its
//   largest value within the format's range ("current scaling": nothing is kept from step to step). Sums are
//   fp32, in forward with FAST_ACCUM's fewer bits (base/gemm.h); y, dx are floatX; dw, db real. All sizes are
//   multiples of 16. An fp8 GEMM wants the summed dimension last in both operands, so backward uses
//   transposed copies.
//   kept:  w in fp8, also transposed, rounded once a pass over the micro-batches (2 bytes a weight); backward
//          rounds x again
//   communicates: nothing    cost: that of linear.cuh at twice the rate; and for each rounding two reads of x
//                            or dy (once for the largest value) and one or two writes in fp8; for w, once a
//                            pass
#pragma once
#include "fp8.h"
#include "../base/gemm.h"

constexpr int fp8_parts = 1024;  // of a tensor, whose largest values are found in parallel

// cuBLASLt reads `inverse` through a pointer, which must be aligned to 16 bytes
struct alignas(16) Fp8Scale { float inverse, scale; };

// weight matrices in fp8, at the same offsets as among the parameters
struct Fp8Weights {
    const floatX* parameters;  // the first parameter that has copies here
    e4m3 *copies, *transposed;
    Fp8Scale* scales;
    long spacing;  // elements per scale: at most those of the smallest matrix, so that each has its own scale

    e4m3* copy(const floatX* w) const { return copies + (w - parameters); }
    e4m3* transpose(const floatX* w) const { return transposed + (w - parameters); }
    Fp8Scale* scale(const floatX* w) const { return scales + (w - parameters) / spacing; }
};

// x, dy, dy_t: N * max(C, OC) numbers each; scales: of x and dy; parts: fp8_parts
struct Fp8Scratch {
    uint8_t *x, *dy, *dy_t;
    Fp8Scale* scales;
    float* parts;
    Fp8Weights weights;
};

// the power of two that a tensor is scaled by; 1 if its largest value is 0 or not finite
HOST_DEVICE inline Fp8Scale fp8_scale(float largest, float format_largest) {
    float scale = 1;
    if (largest > 0 && largest <= 3e38f) {
        if (largest < 1e-30f) largest = 1e-30f;  // so that the quotient is finite
        int e;
        frexpf(format_largest / largest, &e);  // in [0.5, 1) * 2^e
        e = e - 1 < -120 ? -120 : e - 1 > 120 ? 120 : e - 1;
        scale = ldexpf(1, e);
    }
    return {1 / scale, scale};
}

namespace ref {

// q (N, C) and q_t (C, N), where not nullptr, from x (N, C)
template <class T8>
void fp8_round(T8* q, T8* q_t, Fp8Scale* scale, float*, const floatX* x, int N, int C, Stream) {
    float most = 0;
    #pragma omp parallel for reduction(max : most)
    for (long i = 0; i < (long)N * C; i++) {
        float a = std::abs((float)real(x[i]));
        if (a > most) most = a;  // NaN is ignored
    }

    *scale = fp8_scale(most, T8::largest);
    #pragma omp parallel for
    for (int n = 0; n < N; n++)
        for (int c = 0; c < C; c++) {
            T8 value = T8::of((float)real(x[(long)n * C + c]) * scale->scale);
            if (q) q[(long)n * C + c] = value;
            if (q_t) q_t[(long)c * N + n] = value;
        }
}

}  // namespace ref

#if HAS_KERNELS
namespace gpu {

__global__ void fp8_largest_kernel(float* parts, const floatX* x, long n) {
    SHARED(float, lane, 8);
    float most = 0;
    for (long i = ((long)blockIdx.x * blockDim.x + threadIdx.x) * vec_size; i < n;
         i += (long)gridDim.x * blockDim.x * vec_size) {
        Vec<floatX> v = load16(x + i);
        UNROLL(unroll)
        for (int k = 0; k < vec_size; k++) most = fmaxf(most, fabsf((float)real(v.at[k])));
    }

    for (int d = 16; d > 0; d /= 2) most = fmaxf(most, __shfl_xor_sync(all_lanes, most, d));
    if (threadIdx.x % 32 == 0) lane[threadIdx.x / 32] = most;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int w = 1; w < 8; w++) most = fmaxf(most, lane[w]);
    parts[blockIdx.x] = most;
}

__global__ void fp8_scale_kernel(Fp8Scale* scale, const float* parts, int count, float largest) {
    float most = 0;
    for (int i = threadIdx.x; i < count; i += 32) most = fmaxf(most, parts[i]);
    for (int d = 16; d > 0; d /= 2) most = fmaxf(most, __shfl_xor_sync(all_lanes, most, d));
    if (threadIdx.x == 0) *scale = fp8_scale(most, largest);
}

// one block of 256 threads per 64 x 64 tile, which is read once; sizes are multiples of 16
constexpr int fp8_tile = 64;
template <class T8>
__global__ void fp8_round_kernel(T8* q, T8* q_t, const Fp8Scale* scale, const floatX* x, int N,
                                 int C) {
    constexpr int pitch = fp8_tile + 4;  // bytes of a tile's row, so that a column uses different banks
    SHARED(uint32_t, tile_words, fp8_tile * pitch / 4);
    const uint8_t* tile = (const uint8_t*)tile_words;
    int n0 = blockIdx.y * fp8_tile, c0 = blockIdx.x * fp8_tile;
    float times = scale->scale;

    // the rounded tile, in shared memory and to q
    for (int i = threadIdx.x; i < fp8_tile * fp8_tile / vec_size; i += blockDim.x) {
        int n = i / (fp8_tile / vec_size), c = i % (fp8_tile / vec_size) * vec_size;
        if (n0 + n >= N || c0 + c >= C) continue;
        long at = (long)(n0 + n) * C + c0 + c;
        Vec<floatX> v = load16(x + at);
        Values<T8, vec_size> out;
        UNROLL(unroll)
        for (int k = 0; k < vec_size; k++) out.at[k] = T8::of((float)real(v.at[k]) * times);
        uint32_t words[vec_size / 4];
        memcpy(words, &out, sizeof words);
        UNROLL(unroll)
        for (int k = 0; k < vec_size / 4; k++) tile_words[(n * pitch + c) / 4 + k] = words[k];
        if (q) store_values(q + at, out);
    }

    if (!q_t) return;
    __syncthreads();

    // its columns, to q_t
    for (int i = threadIdx.x; i < fp8_tile * fp8_tile / 16; i += blockDim.x) {
        int c = i / (fp8_tile / 16), n = i % (fp8_tile / 16) * 16;
        if (n0 + n >= N || c0 + c >= C) continue;
        Vec<uint8_t> out;
        UNROLL(unroll)
        for (int k = 0; k < 16; k++) out.at[k] = tile[(n + k) * pitch + c];
        store16((uint8_t*)q_t + (long)(c0 + c) * N + n0 + n, out);
    }
}

template <class T8>
void fp8_round(T8* q, T8* q_t, Fp8Scale* scale, float* parts, const floatX* x, int N, int C,
               Stream s) {
    long n = (long)N * C;
    int count = std::min(fp8_parts, ceil_div(n, 256 * vec_size));
    LAUNCH(fp8_largest_kernel, count, 256, 0, s, parts, x, n);
    LAUNCH(fp8_scale_kernel, 1, 32, 0, s, scale, parts, count, T8::largest);
    LAUNCH(fp8_round_kernel<T8>, dim3(ceil_div(C, fp8_tile), ceil_div(N, fp8_tile)), 256, 0, s, q, q_t, scale,
           x, N, C);
}

}  // namespace gpu
#endif

// the GEMMs, in terms of dev::fp8_round and dev::gemm
namespace fp8 {

// w (OC, C) and its transpose in fp8, which the GEMMs use until w changes
inline void round_weight(const floatX* w, const Fp8Scratch& f, int C, int OC, Stream s) {
    dev::fp8_round(f.weights.copy(w), f.weights.transpose(w), f.weights.scale(w), f.parts, w, OC, C, s);
}

inline void matmul_forward(floatX* y, const floatX* x, const floatX* w, const floatX* b, const Fp8Scratch& f,
                           int N, int C, int OC, Stream s) {
    dev::fp8_round((e4m3*)f.x, (e4m3*)nullptr, f.scales, f.parts, x, N, C, s);
    dev::gemm(Gemm<floatX, e4m3, e4m3>{.out = y, .a = (e4m3*)f.x, .b = f.weights.copy(w), .m = N, .n = OC,
                                       .k = C, .transpose_b = true, .bias = b,
                                       .scale_a = &f.scales[0].inverse,
                                       .scale_b = &f.weights.scale(w)->inverse}, s);
}

inline void matmul_backward(floatX* dx, real* dw, const floatX* dy, const floatX* x, const floatX* w,
                            const Fp8Scratch& f, int N, int C, int OC, bool accumulate, Stream s) {
    dev::fp8_round((e4m3*)nullptr, (e4m3*)f.x, f.scales, f.parts, x, N, C, s);
    dev::fp8_round((e5m2*)f.dy, (e5m2*)f.dy_t, f.scales + 1, f.parts, dy, N, OC, s);
    dev::gemm(Gemm<real, e5m2, e4m3>{.out = dw, .a = (e5m2*)f.dy_t, .b = (e4m3*)f.x, .m = OC, .n = C, .k = N,
                                     .transpose_b = true, .beta = real(accumulate),
                                     .scale_a = &f.scales[1].inverse, .scale_b = &f.scales[0].inverse}, s);
    dev::gemm(Gemm<floatX, e5m2, e4m3>{.out = dx, .a = (e5m2*)f.dy, .b = f.weights.transpose(w), .m = N,
                                       .n = C, .k = OC, .transpose_b = true,
                                       .scale_a = &f.scales[1].inverse,
                                       .scale_b = &f.weights.scale(w)->inverse}, s);
}

}  // namespace fp8
