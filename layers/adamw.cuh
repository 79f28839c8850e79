// adamw.cuh   Adam with decoupled weight decay (Loshchilov & Hutter, 2019), and clipping by the norm
//   m = beta1 m + (1 - beta1) g      v = beta2 v + (1 - beta2) g^2      g: the gradient times scale
//   w = w - rate * (mhat / (sqrt(vhat) + epsilon) + decay * w)      mhat = m / (1 - beta1^step), vhat alike
//   scale = min(1, largest / (norm + 1e-6)), norm = L2 over all gradients; both stay on the device
//   parameters (n) floatX   master, m, v, gradients (n) real; master may be the parameters themselves
//   flags (n / 128): what holds of each 128 values, for tensors begin at multiples of 128; so is n
//   the parameters are the master weights, rounded
//   communicates: nothing    cost: 30 bytes a parameter in bf16, 28 in fp32; the norm 4: memory bound
#pragma once
#include "base/device.h"

constexpr int flag_span = 128;
constexpr uint8_t decays = 1, counts = 2;  // the weight decays; the gradient takes part in the norm

struct AdamW {
    real rate, beta1, beta2, epsilon, decay;
    real correction1, correction2;  // 1 - beta1^step, 1 - beta2^step

#if HAS_KERNELS
    __host__ __device__
#endif
    real update(real w, real& m, real& v, real g, bool decaying) const {
        m = beta1 * m + (1 - beta1) * g;
        v = beta2 * v + (1 - beta2) * g * g;
        return w - rate * (m / correction1 / (sqrt(v / correction2) + epsilon) + (decaying ? decay * w : 0));
    }
};

struct Clip {
    double norm;
    real scale;

#if HAS_KERNELS
    __host__ __device__
#endif
    void set(const double* sums, int count, double largest) {
        double sum = 0;
        for (int i = 0; i < count; i++) sum += sums[i];
        norm = sqrt(sum);
        double wanted = largest > 0 ? largest / (norm + 1e-6) : 1;
        scale = (real)(wanted < 1 ? wanted : 1);
    }
};

// n values that a rank owns, from `at` in the flat buffers; their sum of squares is number global_id
struct Slice {
    long at, n, state_offset;  // state_offset: in master, m, v and, in spans, flags
    int global_id, parts;
};
constexpr int square_sum_parts = 256;  // at most; the parts depend on n alone, never on threads
inline int square_sum_cut(long n) {
    return n < 4096L * square_sum_parts ? ceil_div(n, 4096) : square_sum_parts;
}

namespace ref {

inline void adamw(floatX* parameters, real* master, real* m, real* v, const real* gradients,
                  const uint8_t* flags, const AdamW* hyper, const Clip* clip, long n, Stream) {
    #pragma omp parallel for
    for (long first = 0; first < n; first += flag_span) {
        bool decaying = flags[first / flag_span] & decays;
        #pragma omp simd
        for (long i = first; i < first + flag_span; i++) {
            master[i] = hyper->update(master[i], m[i], v[i], gradients[i] * clip->scale, decaying);
            parameters[i] = floatX(master[i]);
        }
    }
}

// sum += x, of gradients (n) real; n is a multiple of 128
inline void add_values(real* sum, const real* x, long n, Stream) {
    #pragma omp parallel for simd
    for (long i = 0; i < n; i++) sum[i] += x[i];
}

// sums[slice.global_id] = sum of x^2 over what counts of each slice; parts: square_sum_parts for each
inline void square_sums(double* sums, double* parts, const real* x, const uint8_t* flags,
                        const Slice* slices, int count, Stream) {
    for (int k = 0; k < count; k++) {
        const Slice& slice = slices[k];
        long part = (slice.n / flag_span + slice.parts - 1) / slice.parts * flag_span;
        #pragma omp parallel for
        for (int p = 0; p < slice.parts; p++) {
            double sum = 0;
            long last = (p + 1) * part < slice.n ? (p + 1) * part : slice.n;
            for (long i = p * part; i < last; i += flag_span) {
                if (!(flags[(slice.state_offset + i) / flag_span] & counts)) continue;
                const real* values = x + slice.at + i;
                #pragma omp simd reduction(+ : sum)
                for (int j = 0; j < flag_span; j++) sum += (double)values[j] * values[j];
            }
            parts[p] = sum;
        }
        double sum = 0;
        for (int p = 0; p < slice.parts; p++) sum += parts[p];
        sums[slice.global_id] = sum;
    }
}

// from the sums of squares of all gradients
inline void clip_gradients(Clip* clip, const double* sums, int count, double largest, Stream) {
    clip->set(sums, count, largest);
}

}  // namespace ref

#if HAS_KERNELS
namespace gpu {

constexpr int real_each = Vec<real>::size;  // values of a thread: 16 bytes of real

__global__ void adamw_kernel(floatX* parameters, real* master, real* m, real* v, const real* gradients,
                             const uint8_t* flags, const AdamW* given, const Clip* clip, long n) {
    long i = ((long)blockIdx.x * blockDim.x + threadIdx.x) * real_each;
    if (i >= n) return;
    AdamW hyper = *given;
    real scale = clip->scale;
    bool decaying = flags[i / flag_span] & decays;
    Vec<real> w = load16(master + i), ms = load16(m + i), vs = load16(v + i), g = load16(gradients + i);
    struct alignas(sizeof(floatX) * real_each) Rounded { floatX at[real_each]; } rounded;
    UNROLL(unroll)
    for (int k = 0; k < real_each; k++) {
        w.at[k] = hyper.update(w.at[k], ms.at[k], vs.at[k], g.at[k] * scale, decaying);
        rounded.at[k] = floatX(w.at[k]);
    }
    store16(master + i, w);
    store16(m + i, ms);
    store16(v + i, vs);
    *(Rounded*)(parameters + i) = rounded;  // the master weights themselves, where nothing is rounded
}

inline void adamw(floatX* parameters, real* master, real* m, real* v, const real* gradients,
                  const uint8_t* flags, const AdamW* hyper, const Clip* clip, long n, Stream s) {
    LAUNCH(adamw_kernel, ceil_div(n, 256 * real_each), 256, 0, s, parameters, master, m, v, gradients, flags,
           hyper, clip, n);
}

__global__ void add_values_kernel(real* sum, const real* x, long n) {
    long i = ((long)blockIdx.x * blockDim.x + threadIdx.x) * real_each;
    if (i >= n) return;
    Vec<real> a = load16(sum + i), b = load16(x + i);
    UNROLL(unroll)
    for (int k = 0; k < real_each; k++) a.at[k] += b.at[k];
    store16(sum + i, a);
}
inline void add_values(real* sum, const real* x, long n, Stream s) {
    LAUNCH(add_values_kernel, ceil_div(n, 256 * real_each), 256, 0, s, sum, x, n);
}

constexpr int square_sum_block = 256;

__device__ inline void block_sum_to(double* out, double sum) {
    SHARED(double, lane, square_sum_block / 32);
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(all_lanes, sum, d);
    if (threadIdx.x % 32 == 0) lane[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int w = 1; w < square_sum_block / 32; w++) sum += lane[w];
    *out = sum;
}

// block (part, slice)
__global__ void square_sums_kernel(double* parts, const real* x, const uint8_t* flags, const Slice* slices) {
    Slice slice = slices[blockIdx.y];
    if ((int)blockIdx.x >= slice.parts) return;
    double sum = 0;
    for (long i = ((long)blockIdx.x * blockDim.x + threadIdx.x) * real_each; i < slice.n;
         i += (long)slice.parts * blockDim.x * real_each) {
        if (!(flags[(slice.state_offset + i) / flag_span] & counts)) continue;
        Vec<real> v = load16(x + slice.at + i);
        UNROLL(unroll)
        for (int k = 0; k < real_each; k++) sum += (double)v.at[k] * v.at[k];
    }
    block_sum_to(parts + (long)blockIdx.y * square_sum_parts + blockIdx.x, sum);
}

// block: slice
__global__ void square_sums_add_kernel(double* sums, const double* parts, const Slice* slices) {
    static_assert(square_sum_parts <= square_sum_block);
    Slice slice = slices[blockIdx.x];
    bool mine = (int)threadIdx.x < slice.parts;
    block_sum_to(sums + slice.global_id, mine ? parts[(long)blockIdx.x * square_sum_parts + threadIdx.x] : 0);
}

inline void square_sums(double* sums, double* parts, const real* x, const uint8_t* flags,
                        const Slice* slices, int count, Stream s) {
    LAUNCH(square_sums_kernel, dim3(square_sum_parts, count), square_sum_block, 0, s, parts, x, flags,
           slices);
    LAUNCH(square_sums_add_kernel, count, square_sum_block, 0, s, sums, parts, slices);
}

__global__ void clip_gradients_kernel(Clip* clip, const double* sums, int count, double largest) {
    clip->set(sums, count, largest);
}
inline void clip_gradients(Clip* clip, const double* sums, int count, double largest, Stream s) {
    LAUNCH(clip_gradients_kernel, 1, 1, 0, s, clip, sums, count, largest);
}

}  // namespace gpu
#endif
