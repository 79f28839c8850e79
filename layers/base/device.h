// device.h   where the program runs: one of three, chosen by the Makefile
//   DEVICE=cuda      dev = gpu: kernels, compiled by nvcc
//   DEVICE=emulated  dev = gpu: the same kernels, compiled by g++ and executed by cuda_on_cpu.h
//   DEVICE=cpu       dev = ref: no kernels; memory is the host's, a Stream means nothing
//   What computes is compiled once, in layers/compute.cu (COMPUTES_HERE): each layer's file fences ref with
//   REF_HERE, kernels with KERNELS_HERE. All else sees operations only; the host's compiler compiles it.
#pragma once
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <algorithm>
#include <cmath>
#include <limits>
#include "check.h"

#if defined(DEVICE_CUDA)
#include <cuda_runtime.h>
#define HAS_KERNELS 1
#define DEVICE_NAME "cuda"
#elif defined(DEVICE_EMULATED)
#include "../emulator/streams_on_cpu.h"
#define HAS_KERNELS 1
#define DEVICE_NAME "emulated"
#else
#include "../emulator/no_device.h"
#define HAS_KERNELS 0
#define DEVICE_NAME "cpu"
#endif
#if defined(COMPUTES_HERE)
#define KERNELS_HERE HAS_KERNELS
#else
#define KERNELS_HERE 0
#endif
#if defined(COMPUTES_HERE) && (!HAS_KERNELS || defined(WITH_REF))  // the checks compare the two
#define REF_HERE 1
#else
#define REF_HERE 0
#endif

#include "numbers.h"

namespace ref {}
namespace gpu {}
#if HAS_KERNELS
namespace dev = gpu;
#else
namespace dev = ref;
#endif

// ---- launching: the one way, so that stream, error check and name are never forgotten --------------------

struct DeviceError : std::runtime_error {  // a failure of the device itself, not a bad request
    using std::runtime_error::runtime_error;
};
#if HAS_KERNELS
inline void check_cuda(cudaError_t e, const char* what) {
    if (e == cudaSuccess) return;
    cudaGetLastError();  // clears the error: if a caller recovers, its next launch must not report it again
    throw DeviceError(std::string(what) + ": " + cudaGetErrorString(e));
}
#endif

// Shared memory is declared by macros, for the emulated device, where it starts as NaN and is watched
#if defined(DEVICE_CUDA)
#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                   \
    do {                                                                         \
        kernel<<<(grid), (block), (shared_bytes), (stream)>>>(__VA_ARGS__);      \
        check_cuda(cudaGetLastError(), "launching " #kernel);                    \
    } while (0)
#define SHARED(type, name, count) __shared__ type name[count]
#define DYNAMIC_SHARED(type, name)                             \
    extern __shared__ __align__(16) char dynamic_shared[];     \
    type* name = (type*)dynamic_shared
#elif HAS_KERNELS
#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
    emulated::launch_later((stream), {#kernel, (const void*)(kernel)}, (grid), (block), (shared_bytes), \
                           [](auto... arguments) { kernel(arguments...); }, __VA_ARGS__)
#define SHARED(type, name, count) \
    static char name##_key;       \
    auto& name = *(type(*)[count])emulated::shared_array(&name##_key, sizeof(type) * (count))
#define DYNAMIC_SHARED(type, name) type* name = (type*)emulated::worker->dynamic_shared.bytes
#endif

// ---- memory and order ------------------------------------------------------------------------------------

#if HAS_KERNELS
using Stream = cudaStream_t;

// urgent: its kernels are scheduled first, before the pending blocks of other streams
inline Stream make_stream(bool urgent = false) {
    Stream s;
    int least = 0, greatest = 0;
    check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), "priorities of streams");
    int priority = urgent ? greatest : least;
    check_cuda(cudaStreamCreateWithPriority(&s, cudaStreamNonBlocking, priority), "a stream");
    return s;
}

inline void destroy_stream(Stream s) { cudaStreamDestroy(s); }

// called when a run starts (most by run/allocate.h): within a step nothing is allocated
inline void* device_malloc(size_t bytes, const char* what) {
    void* p = nullptr;
    cudaError_t e = cudaMalloc(&p, bytes);
    if (e != cudaErrorMemoryAllocation) check_cuda(e, what);
    else {
        cudaGetLastError();  // or the next launch would report it
        fail("%s: %.2f GB do not fit in the device's memory: choose more ranks, a smaller model or a smaller "
             "--micro-batch", what, bytes * 1e-9);
    }
    return p;
}

inline void device_free(void* p) { cudaFree(p); }

// pinned host memory: copies to the device read it when their turn comes, and the host does not wait
inline void* host_malloc(size_t bytes, const char* what) {
    void* p = nullptr;
    if (cudaMallocHost(&p, bytes ? bytes : 1) != cudaSuccess)
        fail("%s: %.2f GB of the host's memory cannot be allocated: use more ranks, fewer of them per host, "
             "or a lower --batch", what, (double)bytes * 1e-9);
    return p;
}

inline void host_free(void* p) { cudaFreeHost(p); }

// `from` is read when the copy's turn comes, and must stay unchanged until then
inline void copy_to_device(void* to, const void* from, size_t bytes, Stream s) {
    check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, s), "copy to the device");
}

inline void copy_on_device(void* to, const void* from, size_t bytes, Stream s) {
    check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, s), "copy on the device");
}

inline void set_zero(void* p, size_t bytes, Stream s) {
    check_cuda(cudaMemsetAsync(p, 0, bytes, s), "set to zero");
}

inline void (*while_waiting)() = nullptr;  // set by comm_nccl.cpp: called now and then while the host waits
inline void synchronize(Stream s) {
    for (long turn = 0; while_waiting; turn++) {
        cudaError_t e = cudaStreamQuery(s);
        if (e != cudaErrorNotReady) return check_cuda(e, "waiting for the device");
        cudaGetLastError();  // "not ready" is no error
        if (turn % 1024 == 1023) while_waiting();
        if (turn % 64 == 63) sched_yield();  // NCCL's threads may share this core
    }
    check_cuda(cudaStreamSynchronize(s), "waiting for the device");
}

// waits for all that the stream has to do, and for the copy
inline void copy_to_host(void* to, const void* from, size_t bytes, Stream s) {
    synchronize(s);  // here, where while_waiting is called, and not inside the copy
    check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, s), "copy to the host");
    synchronize(s);
}

// a point in a stream; record() moves it
struct Event {
    cudaEvent_t event;
    Event() { check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "an event"); }
    ~Event() { cudaEventDestroy(event); }
    Event(const Event&) = delete;
    void record(Stream s) { check_cuda(cudaEventRecord(event, s), "recording an event"); }
    void block(Stream s) { check_cuda(cudaStreamWaitEvent(s, event, 0), "waiting for an event"); }
    bool reached() {
        cudaError_t e = cudaEventQuery(event);
        if (e == cudaErrorNotReady) cudaGetLastError();  // "not ready" is no error
        else check_cuda(e, "asking for an event");
        return e == cudaSuccess;
    }
};
#endif

// ---- what the device has ---------------------------------------------------------------------------------

#if defined(DEVICE_CUDA)  // the others: emulator/streams_on_cpu.h, emulator/no_device.h
constexpr bool host_is_device = false;
inline int current_device() {
    int device = 0;
    check_cuda(cudaGetDevice(&device), "the device");
    return device;
}

// allows a kernel to be launched with this much dynamic shared memory
template <class Kernel>
void allow_shared(Kernel kernel, size_t bytes) {
    if (bytes + 1024 <= 48 << 10) return;  // 1024: for the kernel's static shared memory
    cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (e != cudaSuccess)
        fail("this GPU has less than the %zu bytes of shared memory that a kernel needs: choose --attention "
             "materialised", bytes);
}

// bytes of shared memory that a block may have
inline size_t largest_shared() {
    static const int bytes = [] {
        int most = 0;
        check_cuda(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, current_device()),
                   "the size of shared memory");
        return most;
    }();
    return (size_t)bytes;
}
#endif

// ---- in kernels ------------------------------------------------------------------------------------------

inline int ceil_div(long a, long b) { return (int)((a + b - 1) / b); }

#if KERNELS_HERE
constexpr unsigned all_lanes = 0xffffffffu;
template <int value>
using Constant = std::integral_constant<int, value>;  // a template argument, handed to a lambda

// n adjacent values, read or written in one access: pointers must be aligned to their whole size. A kernel
// that is bound by memory is fastest if each thread moves 16 bytes at once, and a warp 512 adjacent ones
template <class T, int n>
struct alignas(n * sizeof(T)) Values {
    static constexpr int size = n;
    T at[n];
};
template <class T>
using Vec = Values<T, 16 / sizeof(T)>;  // 16 bytes, the most that one access takes
constexpr int vec_size = Vec<floatX>::size;

// load_whole, store_whole: in one access, which the emulated device checks
#if defined(DEVICE_EMULATED)
using emulated::load_whole, emulated::store_whole;
#else
template <class V>
__device__ inline V load_whole(const V* p) { return *p; }
template <class V>
__device__ inline void store_whole(V* p, const V& v) { *p = v; }
#endif

template <int n, class T>
__device__ inline Values<T, n> load_values(const T* p) { return load_whole((const Values<T, n>*)p); }
template <class T, int n>
__device__ inline void store_values(T* p, const Values<T, n>& v) { store_whole((Values<T, n>*)p, v); }
template <class T>
__device__ inline Vec<T> load16(const T* p) { return load_whole((const Vec<T>*)p); }
template <class T>
__device__ inline void store16(T* p, const Vec<T>& v) { store_whole((Vec<T>*)p, v); }

// 16 bytes at p or, unless `there`, zeros; chosen by words, as nvcc would choose each value by itself
template <class T>
__device__ inline Vec<T> load16_if(bool there, const T* p) {
    Vec<uint32_t> words = {};
    if (there) words = load16((const uint32_t*)p);
    return bits_as<Vec<T>>(words);
}

// as reals. A bf16 is the upper half of a float: one instruction makes it one, of a word with two
template <class T, int n>
__device__ inline Values<real, n> to_reals(const Values<T, n>& v) {
    Values<real, n> out;
    if constexpr (std::is_same_v<T, bf16> && n % 2 == 0) {
        auto words = bits_as<Values<uint32_t, n / 2>>(v);
        for (int k = 0; k < n; k++)
            out.at[k] = bits_as<float>(k % 2 ? words.at[k / 2] & 0xFFFF0000u : words.at[k / 2] << 16);
    } else {
        for (int k = 0; k < n; k++) out.at[k] = real(v.at[k]);
    }
    return out;
}

__device__ inline Vec<floatX> rounded(const Values<real, vec_size>& x) {
    Vec<floatX> out;
    for (int k = 0; k < vec_size; k++) out.at[k] = floatX(x.at[k]);
    return out;
}

// 16 bytes from column c of a row of C values; beyond the end of a row that is not whole vectors, 0
template <class T>
__device__ inline Vec<T> load_row(const T* row, int c, int C) {
    if (C % Vec<T>::size == 0) return load16(row + c);
    Vec<T> v;
    for (int k = 0; k < Vec<T>::size; k++) v.at[k] = c + k < C ? row[c + k] : T(0);
    return v;
}

template <class T>
__device__ inline void store_row(T* row, int c, int C, const Vec<T>& v) {
    if (C % Vec<T>::size == 0) return store16(row + c, v);
    for (int k = 0; k < Vec<T>::size && c + k < C; k++) row[c + k] = v.at[k];
}

// x combined over the warp's lanes or the block's threads: the same in all of them, always in the same order
template <class T, class Combine>
__device__ T reduce_warp(T x, Combine combine) {
    for (int lanes = 16; lanes > 0; lanes /= 2) x = combine(x, __shfl_xor_sync(all_lanes, x, lanes));
    return x;
}
__device__ inline real warp_sum(real x) { return reduce_warp(x, [](real a, real b) { return a + b; }); }
__device__ inline real warp_max(real x) { return reduce_warp(x, [](real a, real b) { return fmax(a, b); }); }

// lane: shared memory, for this call alone
template <int WARPS, class T, class Combine>
__device__ T reduce_block(T x, T (&lane)[WARPS], Combine combine) {
    x = reduce_warp(x, combine);
    if (threadIdx.x % 32 == 0) lane[threadIdx.x / 32] = x;
    __syncthreads();
    x = lane[0];
    for (int w = 1; w < WARPS; w++) x = combine(x, lane[w]);
    return x;
}
template <int WARPS, class T>
__device__ T sum_over_block(T x, T (&lane)[WARPS]) {
    return reduce_block(x, lane, [](T a, T b) { return a + b; });
}
template <int WARPS, class T>
__device__ T max_over_block(T x, T (&lane)[WARPS]) {
    return reduce_block(x, lane, [](T a, T b) { return fmax(a, b); });
}

constexpr float log2_e = 1.4426950408889634f;  // e^x = 2^(x log2_e)

// 2^x, on a GPU in one instruction; unlike exp2f, it flushes results below 2^-126 to 0
__device__ inline float exp2_of(float x) {
#if defined(__CUDACC__)
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
#else
    float y = exp2f(x);
    if (y < std::numeric_limits<float>::min()) y = 0;
#endif
    return y;
}
// 1 / x, to its last bit or so, in one instruction
__device__ inline float reciprocal_of(float x) {
#if defined(__CUDACC__)
    asm("rcp.approx.ftz.f32 %0, %0;" : "+f"(x));
    return x;
#else
    return 1 / x;
#endif
}
#endif
