// adamw.cuh   Adam with decoupled weight decay (Loshchilov & Hutter, 2019), and sums over gradients
//   m = beta1 m + (1 - beta1) g      v = beta2 v + (1 - beta2) g^2
//   w = w - rate * (mhat / (sqrt(vhat) + epsilon) + decay * w)      mhat = m / (1 - beta1^step), vhat alike
//   parameters (n) floatX   master, m, v, gradients (n) real; master may be the parameters themselves
//   the parameters are the master weights, rounded
//   talks: nobody          cost: 30 bytes a parameter in bf16, 28 in fp32: memory bound
#pragma once
#include "base/device.h"

struct AdamW {
    real rate, beta1, beta2, epsilon, decay;
    real correction1, correction2;  // 1 - beta1^step, 1 - beta2^step
    real clip;                      // every gradient is multiplied by this

#if HAS_KERNELS
    __host__ __device__
#endif
    real update(real w, real& m, real& v, real gradient) const {
        real g = gradient * clip;
        m = beta1 * m + (1 - beta1) * g;
        v = beta2 * v + (1 - beta2) * g * g;
        return w - rate * (m / correction1 / (sqrt(v / correction2) + epsilon) + decay * w);
    }
};

constexpr int square_sum_parts = 256;  // at most; the parts depend on n alone, never on threads
inline int square_sum_cut(long n) {
    return n < 4096L * square_sum_parts ? ceil_div(n, 4096) : square_sum_parts;
}

namespace ref {

inline void adamw(floatX* parameters, real* master, real* m, real* v, const real* gradients,
                  const AdamW& rule, long n, Stream) {
    #pragma omp parallel for simd
    for (long i = 0; i < n; i++) {
        master[i] = rule.update(master[i], m[i], v[i], gradients[i]);
        parameters[i] = floatX(master[i]);
    }
}

// sum += x, of gradients (n) real
inline void add_to(real* sum, const real* x, long n, Stream) {
    #pragma omp parallel for simd
    for (long i = 0; i < n; i++) sum[i] += x[i];
}

// *out = sum of x^2; scratch: square_sum_parts values
inline void square_sum(double* out, const real* x, double* scratch, long n, Stream) {
    int parts = square_sum_cut(n);
    long part = (n + parts - 1) / parts;
    #pragma omp parallel for
    for (int p = 0; p < parts; p++) {
        double sum = 0;
        long last = (p + 1) * part < n ? (p + 1) * part : n;
        #pragma omp simd reduction(+ : sum)
        for (long i = p * part; i < last; i++) sum += (double)x[i] * x[i];
        scratch[p] = sum;
    }
    double sum = 0;
    for (int p = 0; p < parts; p++) sum += scratch[p];
    *out = sum;
}

}  // namespace ref

#if HAS_KERNELS
namespace gpu {

constexpr int adamw_each = Vec<real>::size;  // values of a thread: 16 bytes of master, m, v and gradient

__global__ void adamw_kernel(floatX* parameters, real* master, real* m, real* v, const real* gradients,
                             AdamW rule, long n) {
    long i = ((long)blockIdx.x * blockDim.x + threadIdx.x) * adamw_each;
    if (i + adamw_each <= n) {
        Vec<real> w = load16(master + i), ms = load16(m + i), vs = load16(v + i), g = load16(gradients + i);
        struct alignas(sizeof(floatX) * adamw_each) Rounded { floatX at[adamw_each]; } rounded;
        UNROLL(unroll)
        for (int k = 0; k < adamw_each; k++) {
            w.at[k] = rule.update(w.at[k], ms.at[k], vs.at[k], g.at[k]);
            rounded.at[k] = floatX(w.at[k]);
        }
        store16(master + i, w), store16(m + i, ms), store16(v + i, vs);
        *(Rounded*)(parameters + i) = rounded;  // the master weights themselves, where nothing is rounded
    } else {
        for (; i < n; i++) {
            real w = rule.update(master[i], m[i], v[i], gradients[i]);
            master[i] = w, parameters[i] = floatX(w);
        }
    }
}

inline void adamw(floatX* parameters, real* master, real* m, real* v, const real* gradients,
                  const AdamW& rule, long n, Stream s) {
    LAUNCH(adamw_kernel, ceil_div(n, 256 * adamw_each), 256, 0, s, parameters, master, m, v, gradients, rule,
           n);
}

__global__ void add_to_kernel(real* sum, const real* x, long n) {
    long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) sum[i] += x[i];
}
inline void add_to(real* sum, const real* x, long n, Stream s) {
    LAUNCH(add_to_kernel, ceil_div(n, 256), 256, 0, s, sum, x, n);
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

__global__ void square_sum_kernel(double* parts, const real* x, long n) {
    double sum = 0;
    for (long i = (long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (long)gridDim.x * blockDim.x)
        sum += (double)x[i] * x[i];
    block_sum_to(parts + blockIdx.x, sum);
}

__global__ void square_sum_add_kernel(double* out, const double* parts, int count) {
    static_assert(square_sum_parts <= square_sum_block);
    block_sum_to(out, (int)threadIdx.x < count ? parts[threadIdx.x] : 0);
}

inline void square_sum(double* out, const real* x, double* scratch, long n, Stream s) {
    int parts = square_sum_cut(n);
    LAUNCH(square_sum_kernel, parts, square_sum_block, 0, s, scratch, x, n);
    LAUNCH(square_sum_add_kernel, 1, square_sum_block, 0, s, out, scratch, parts);
}

}  // namespace gpu
#endif
