// device.h   where the program runs: one of three, chosen by the Makefile, distinguished only in this folder
//   DEVICE=cuda      nvcc; dev = gpu
//   DEVICE=emulated  g++ executes the same kernels through cuda_on_cpu.h; dev = gpu
//   DEVICE=cpu       g++; no kernels; dev = ref: memory is the host's, a Stream is nothing
// and in what numbers (PRECISION):
//   floatX  parameters and activations: bf16, fp32 or fp64
//   real    sums, gradients, master weights and moments: fp32, or fp64 in an fp64 build
#pragma once
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmath>
#include <limits>
#include "check.h"

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#define HAS_KERNELS 1
#define DEVICE_NAME "cuda"
#elif defined(DEVICE_EMULATED)
#include "cuda_on_cpu.h"
#define HAS_KERNELS 1
#define DEVICE_NAME "emulated"
#else
#define HAS_KERNELS 0
#define DEVICE_NAME "cpu"
#endif

#if defined(__CUDACC__)
using bf16 = __nv_bfloat16;
#else
struct bf16 {  // the upper half of a float, rounded to nearest even
    uint16_t bits;
    bf16() = default;
    explicit bf16(float f) {
        uint32_t u;
        memcpy(&u, &f, 4);
        bits = f != f ? (u >> 16) | 64 : (u + 0x7FFF + (u >> 16 & 1)) >> 16;
    }
    operator float() const {
        uint32_t u = (uint32_t)bits << 16;
        float f;
        memcpy(&f, &u, 4);
        return f;
    }
};
#endif

#if defined(PRECISION_BF16)
using floatX = bf16;
using real = float;
#define PRECISION_NAME "bf16"
#elif defined(PRECISION_FP64)
using floatX = double;
using real = double;
#define PRECISION_NAME "fp64"
#else
using floatX = float;
using real = float;
#define PRECISION_NAME "fp32"
#endif
constexpr bool master_is_parameter = sizeof(floatX) == sizeof(real);  // no second copy of the weights then

namespace ref {}
namespace gpu {}
#if HAS_KERNELS
namespace dev = gpu;
#else
namespace dev = ref;
#endif

// ---- launching: the one way, so that stream, error check and name are never forgotten ---------------------

#if HAS_KERNELS
struct DeviceError : std::runtime_error {  // the device itself, not what it was given to do
    using std::runtime_error::runtime_error;
};
inline void check_cuda(cudaError_t e, const char* what) {
    if (e != cudaSuccess) throw DeviceError(std::string(what) + ": " + cudaGetErrorString(e));
}
#endif

#if defined(__CUDACC__)
#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                   \
    do {                                                                         \
        kernel<<<(grid), (block), (shared_bytes), (stream)>>>(__VA_ARGS__);      \
        check_cuda(cudaGetLastError(), "launching " #kernel);                    \
    } while (0)
#define SHARED(type, name, count) __shared__ type name[count]
#elif HAS_KERNELS
#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
    ((void)(stream), emulated::launch(#kernel, (grid), (block), (shared_bytes), [&] { kernel(__VA_ARGS__); }))
#define SHARED(type, name, count) \
    static char name##_key;       \
    auto& name = *(type(*)[count])emulated::shared_array(&name##_key, sizeof(type) * (count))
#endif

// ---- memory and order -------------------------------------------------------------------------------------

#if HAS_KERNELS
using Stream = cudaStream_t;

inline void* device_malloc(size_t bytes, const char* what) {
    void* p = nullptr;
    cudaError_t e = cudaMalloc(&p, bytes);
    if (e != cudaErrorMemoryAllocation) check_cuda(e, what);
    else
        fail("%s: %.2f GB do not fit in the device's memory: lower --micro-batch or choose a smaller model",
             what, bytes * 1e-9);
    return p;
}
inline void device_free(void* p) { cudaFree(p); }
inline void copy_to_device(void* to, const void* from, size_t bytes, Stream s) {
    check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, s), "copy to the device");
}
inline void copy_to_host(void* to, const void* from, size_t bytes, Stream s) {  // waits for it
    check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, s), "copy to the host");
    check_cuda(cudaStreamSynchronize(s), "copy to the host");
}
inline void copy_on_device(void* to, const void* from, size_t bytes, Stream s) {
    check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, s), "copy on the device");
}
inline void set_zero(void* p, size_t bytes, Stream s) {
    check_cuda(cudaMemsetAsync(p, 0, bytes, s), "set to zero");
}
inline void synchronize(Stream s) { check_cuda(cudaStreamSynchronize(s), "waiting for the device"); }
#else
struct NoStream {};
using Stream = NoStream*;

inline void* device_malloc(size_t bytes, const char* what) {
    void* p = nullptr;
    if (posix_memalign(&p, 4096, bytes))
        fail("%s: %.2f GB cannot be allocated: lower --micro-batch or choose a smaller model", what,
             bytes * 1e-9);
    return p;
}
inline void device_free(void* p) { free(p); }
inline void copy_to_device(void* to, const void* from, size_t bytes, Stream) { memcpy(to, from, bytes); }
inline void copy_to_host(void* to, const void* from, size_t bytes, Stream) { memcpy(to, from, bytes); }
inline void copy_on_device(void* to, const void* from, size_t bytes, Stream) { memcpy(to, from, bytes); }
inline void set_zero(void* p, size_t bytes, Stream) { memset(p, 0, bytes); }
inline void synchronize(Stream) {}
#endif

#if defined(__CUDACC__)
constexpr bool host_is_device = false;
#else
constexpr bool host_is_device = true;
#endif

inline int ceil_div(long a, long b) { return (int)((a + b - 1) / b); }

#if HAS_KERNELS
constexpr unsigned all_lanes = 0xffffffffu;

// the sum, the same in every lane, always in the same order
__device__ inline real warp_sum(real x) {
    for (int lanes = 16; lanes > 0; lanes /= 2) x += __shfl_xor_sync(all_lanes, x, lanes);
    return x;
}
__device__ inline real warp_max(real x) {
    for (int lanes = 16; lanes > 0; lanes /= 2) {
        real other = __shfl_xor_sync(all_lanes, x, lanes);
        x = x > other ? x : other;
    }
    return x;
}
#endif
