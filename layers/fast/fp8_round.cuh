// fp8_round.cuh   tensors of the linear layers in fp8, for --fp8 (Micikevicius et al., 2022)
//   x and w are rounded to e4m3, dy to e5m2. Each tensor is scaled by the largest power of two that keeps its
//   largest value within the format's range ("current scaling": nothing is kept from step to step). NaN stays
//   NaN; with an infinity all values become NaN, so that loss or norm shows it.
//   kept:  w in fp8, also transposed, rounded once a pass over the micro-batches (2 bytes a weight); of x its
//          transposed copy and scale, so that backward does not read x itself. GELU's output is only made in
//          fp8: its input is read instead
//   communicates: nothing    cost: for each rounding two reads of x or dy (the first for the largest value,
//                            but for GELU's dx, where it is found on the way, and the logits' gradient, whose
//                            bound is known) and two writes in fp8; for w, once a pass
//   Their GEMMs: fp8_linear.cuh
#pragma once
#include "fp8_linear.h"

// where a tensor's scale goes; its parts' largest values (most_fp8_parts); its format's largest value
struct WantedScale {
    Fp8Scale* scale = nullptr;
    float* parts = nullptr;
    float format_largest = 0;
};

// the power of two that a tensor is scaled by; 1 if its largest value is 0, NaN if it is infinite
HOST_DEVICE inline Fp8Scale fp8_scale(float largest, float format_largest) {
    float scale = largest < INFINITY ? 1 : NAN;
    if (largest > 0 && largest < INFINITY) {
        if (largest < 1e-30f) largest = 1e-30f;  // so that the quotient is finite
        int e;
        frexpf(format_largest / largest, &e);  // in [0.5, 1) * 2^e
        e = e - 1 < -120 ? -120 : e - 1 > 120 ? 120 : e - 1;
        scale = ldexpf(1, e);
    }
    return {1 / scale, scale};
}

namespace ref {

// what is rounded to fp8: x or, with GELU, GELU of x in floatX
template <bool GELU>
float value_to_round(floatX x) {
    if constexpr (GELU) x = floatX(gelu_of(real(x)));
    return (float)real(x);
}

template <bool GELU = false>
void fp8_find_scale(const WantedScale& wanted, const floatX* x, long n, Stream) {
    float most = 0;
    #pragma omp parallel for reduction(max : most)
    for (long i = 0; i < n; i++) {
        float a = std::abs(value_to_round<GELU>(x[i]));
        if (a > most) most = a;  // NaN is ignored
    }
    *wanted.scale = fp8_scale(most, wanted.format_largest);
}

inline void fp8_set_scale(Fp8Scale* scale, Fp8Scale value, Stream) { *scale = value; }

// q (N, C) and q_t (C, N) from x (N, C)
template <bool GELU = false, class T8>
void fp8_round(T8* q, T8* q_t, const Fp8Scale* scale, const floatX* x, int N, int C, Stream) {
    #pragma omp parallel for
    for (int n = 0; n < N; n++)
        for (int c = 0; c < C; c++) {
            T8 value = T8::of(value_to_round<GELU>(x[(long)n * C + c]) * scale->scale);
            q[(long)n * C + c] = q_t[(long)c * N + n] = value;
        }
}

#if REF_HERE
// GELU's backward, and the scale of its dx
inline void fp8_gelu_backward(floatX* dy, real* db, const floatX* x, real* sums, int N, int C,
                              bool accumulate, const WantedScale& wanted, Stream s) {
    ref::gelu_backward(dy, db, x, sums, N, C, accumulate, s);
    fp8_find_scale(wanted, dy, (long)N * C, s);
}
#endif

}  // namespace ref

#if KERNELS_HERE
namespace gpu {

template <bool GELU>
__device__ inline Values<real, vec_size> values_to_round(const Vec<floatX>& v) {
    auto x = to_reals(v);
    if constexpr (GELU) {
        for (int k = 0; k < vec_size; k++) x.at[k] = gelu_of(x.at[k]);
        x = to_reals(rounded(x));
    }
    return x;
}

// the largest of a block's values, which are not negative, in its first thread; NaN is ignored
__device__ inline float block_largest(float most) {
    SHARED(float, warps, 32);
    int thread = threadIdx.y * blockDim.x + threadIdx.x, count = blockDim.x * blockDim.y / 32;
    for (int d = 16; d > 0; d /= 2) most = fmaxf(most, __shfl_xor_sync(all_lanes, most, d));
    if (thread % 32 == 0) warps[thread / 32] = most;
    __syncthreads();
    for (int w = 1; thread == 0 && w < count; w++) most = fmaxf(most, warps[w]);
    return most;
}

template <bool GELU = false>
__device__ inline float larger(float most, const Vec<floatX>& v) {
    auto x = values_to_round<GELU>(v);
    for (int k = 0; k < vec_size; k++) most = fmaxf(most, fabsf((float)x.at[k]));
    return most;
}

template <bool GELU>
__global__ void fp8_largest_kernel(float* parts, const floatX* x, long n) {
    float most = 0;
    for (long i = ((long)blockIdx.x * blockDim.x + threadIdx.x) * vec_size; i < n;
         i += (long)gridDim.x * blockDim.x * vec_size) most = larger<GELU>(most, load16(x + i));
    most = block_largest(most);
    if (threadIdx.x == 0) parts[blockIdx.x] = most;
}

__global__ void fp8_scale_kernel(Fp8Scale* scale, const float* parts, int count, float format_largest) {
    float most = 0;
    for (int i = threadIdx.x; i < count; i += blockDim.x) most = fmaxf(most, parts[i]);
    most = block_largest(most);
    if (threadIdx.x == 0) *scale = fp8_scale(most, format_largest);
}

__global__ void fp8_set_scale_kernel(Fp8Scale* scale, Fp8Scale value) { *scale = value; }

inline void fp8_set_scale(Fp8Scale* scale, Fp8Scale value, Stream s) {
    LAUNCH(fp8_set_scale_kernel, 1, 1, 0, s, scale, value);
}

// from the largest values of `count` parts
inline void fp8_finish_scale(const WantedScale& wanted, int count, Stream s) {
    LAUNCH(fp8_scale_kernel, 1, 256, 0, s, wanted.scale, wanted.parts, count, wanted.format_largest);
}

template <bool GELU = false>
void fp8_find_scale(const WantedScale& wanted, const floatX* x, long n, Stream s) {
    int count = std::min(fp8_parts, ceil_div(n, 256 * vec_size));
    LAUNCH(fp8_largest_kernel<GELU>, count, 256, 0, s, wanted.parts, x, n);
    fp8_finish_scale(wanted, count, s);
}

// one block of 256 threads per 64 x 64 tile, which is read once; sizes are multiples of 16
constexpr int fp8_tile = 64;
template <class T8, bool GELU>
__global__ void fp8_round_kernel(T8* q, T8* q_t, const Fp8Scale* scale, const floatX* x, int N,
                                 int C) {
    constexpr int pitch = fp8_tile + 4;  // bytes of a tile's row, so that a column uses different banks
    SHARED(uint32_t, tile_words, fp8_tile * pitch / 4);
    const uint8_t* tile = (const uint8_t*)tile_words;
    int across = (C + fp8_tile - 1) / fp8_tile;  // tiles of a row; all lie along the grid's x, up to 2^31
    int n0 = blockIdx.x / across * fp8_tile, c0 = blockIdx.x % across * fp8_tile;
    float times = scale->scale;

    // the rounded tile, in shared memory and to q
    for (int i = threadIdx.x; i < fp8_tile * fp8_tile / vec_size; i += blockDim.x) {
        int n = i / (fp8_tile / vec_size), c = i % (fp8_tile / vec_size) * vec_size;
        if (n0 + n >= N || c0 + c >= C) continue;
        long at = (long)(n0 + n) * C + c0 + c;
        auto v = values_to_round<GELU>(load16(x + at));
        Values<T8, vec_size> out;
        #pragma unroll
        for (int k = 0; k < vec_size; k++) out.at[k] = T8::of((float)v.at[k] * times);
        uint32_t words[vec_size / 4];
        memcpy(words, &out, sizeof words);
        #pragma unroll
        for (int k = 0; k < vec_size / 4; k++) tile_words[(n * pitch + c) / 4 + k] = words[k];
        store_values(q + at, out);
    }
    __syncthreads();

    // its columns, to q_t
    for (int i = threadIdx.x; i < fp8_tile * fp8_tile / 16; i += blockDim.x) {
        int c = i / (fp8_tile / 16), n = i % (fp8_tile / 16) * 16;
        if (n0 + n >= N || c0 + c >= C) continue;
        Vec<uint8_t> out;
        #pragma unroll
        for (int k = 0; k < 16; k++) out.at[k] = tile[(n + k) * pitch + c];
        store16((uint8_t*)q_t + (long)(c0 + c) * N + n0 + n, out);
    }
}

template <bool GELU = false, class T8>
void fp8_round(T8* q, T8* q_t, const Fp8Scale* scale, const floatX* x, int N, int C, Stream s) {
    LAUNCH((fp8_round_kernel<T8, GELU>), ceil_div(C, fp8_tile) * ceil_div(N, fp8_tile), 256, 0, s, q, q_t,
           scale, x, N, C);
}

// linear.cuh's, and on the way the largest |dx| of each block
__global__ void fp8_gelu_backward_kernel(floatX* dy, real* sums, float* largest, const floatX* x, int N,
                                         int C) {
    float most = 0;
    sum_columns_of_block<vec_size>(sums, [&](real (&sum)[vec_size], int n, int c) {
        most = larger(most, gelu_backward_vector(dy + (long)n * C, x + (long)n * C, sum, c, C));
    }, N, C);
    most = block_largest(most);
    if (threadIdx.x == 0 && threadIdx.y == 0) largest[blockIdx.y * gridDim.x + blockIdx.x] = most;
}

inline void fp8_gelu_backward(floatX* dy, real* db, const floatX* x, real* sums, int N, int C,
                              bool accumulate, const WantedScale& wanted, Stream s) {
    int parts = column_parts(N);
    dim3 blocks = column_blocks<vec_size>(C, parts);
    LAUNCH(fp8_gelu_backward_kernel, blocks, dim3(column_lanes, column_rows), 0, s, dy, sums, wanted.parts, x,
           N, C);
    column_sum_finish(db, nullptr, sums, parts, C, accumulate, s);
    fp8_finish_scale(wanted, (int)(blocks.x * blocks.y), s);
}

}  // namespace gpu
#endif
