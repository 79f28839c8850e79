// sum_bits.cuh   a checksum of values on the device, for --check-every (monitor.h, replicas.h)
#pragma once
#include "../adamw.cuh"

// sum += a checksum of the bits of x (n): flipping any one bit changes it
template <class T>
struct SumBits {
    unsigned long long* sum;
    const T* x;
    long n;

    static constexpr const char* name = "sum_bits";
    std::vector<TensorAccess> tensors() const { return {reads("x", x, n)}; }
    void ref(Stream) const;
    void gpu(Stream) const;
};

#if REF_HERE
template <class T>
void SumBits<T>::ref(Stream) const {
    unsigned long long all = 0;
    #pragma omp parallel for reduction(+ : all)
    for (long i = 0; i < n; i++) all += StateCheck::product((uint32_t)i * 2 + 1, x[i]);
    *sum += all;
}
#endif

#if KERNELS_HERE
namespace gpu {

template <class T>
__global__ void sum_bits_kernel(unsigned long long* sum, const T* x, long n) {
    unsigned long long all = 0;
    for (long i = (long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (long)gridDim.x * blockDim.x)
        all += StateCheck::product((uint32_t)i * 2 + 1, x[i]);
    SHARED(unsigned long long, lane, adamw_block / 32);
    all = sum_over_block(all, lane);
    if (threadIdx.x == 0) atomicAdd(sum, all);
}

}  // namespace gpu

template <class T>
void SumBits<T>::gpu(Stream s) const {
    LAUNCH(gpu::sum_bits_kernel<T>, std::min(1024, ceil_div(n, gpu::adamw_block)), gpu::adamw_block, 0, s,
           sum, x, n);
}
#endif
