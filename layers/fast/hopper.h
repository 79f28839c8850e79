// hopper.h   sm_90a's tensor cores and copies, on the GPU and in emulation (PTX ISA: mbarrier,
//            cp.async.bulk.tensor, wgmma, setmaxnreg)
//   mbarrier   a counter in shared memory. A phase ends when all its arrivals and expected bytes have come;
//              mbarrier_wait(b, parity) returns once the phase of that parity has ended. For a new barrier,
//              the phase before its first, of parity 1, counts as ended
//   TMA        one thread requests a box of a tensor; it arrives asynchronously: rows of 64 bf16, one after
//              the other, their 16-byte pieces permuted (128-byte swizzle), with 0 outside of the tensor
//   wgmma      D (64, N) += A (64, 16) B (16, N) by the four warps of a warpgroup, also asynchronous. A and B
//              in shared memory are given by descriptors; A may be in registers. With g = 16 w + l / 4
//              and c = l % 4 * 2, thread l of warp w holds these elements of D, for i < N / 2, and of A:
//                d[i] = D[g + i / 2 % 2 * 8][i / 4 * 8 + c + i % 2]
//                a[i] = A[g + i % 2 * 8][i / 2 * 8 + c, c + 1]: two bf16, the first in the lower half
//              A group of products: wgmma_fence, products, wgmma_commit; their registers must not be touched
//              until wgmma_wait<n>, which returns when all but the last n groups are done
//   bulk       one thread copies contiguous bytes from shared to global memory, or adds fp32 numbers to what
//              is there (each sum is rounded once), asynchronously. bulk_wait_read returns when the shared
//              memory may be overwritten, bulk_wait when the results may be published. In the other
//              direction, from global to shared memory, the bytes arrive at an mbarrier, as TMA's do
#pragma once
#include "turns.h"

#if KERNELS_HERE
#if defined(__CUDACC__)
#include <cuda.h>

using TensorMap = CUtensorMap;
struct alignas(8) Mbarrier { uint64_t state; };

// dimension 0 is contiguous; stride[i] in bytes, of dimension i (stride[0] is not used). For bf16, in
// swizzled boxes
inline TensorMap make_tensor_map(const void* base, const uint64_t (&size)[4], const uint64_t (&stride)[4],
                                 const uint32_t (&box)[4]) {
    static const auto encode = [] {
        void* found = nullptr;
        cudaDriverEntryPointQueryResult how;
        check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000,
                                                    cudaEnableDefault, &how),
                   "the driver's cuTensorMapEncodeTiled");
        if (how != cudaDriverEntryPointSuccess || !found)
            throw DeviceError("the driver has no cuTensorMapEncodeTiled");
        return (decltype(&cuTensorMapEncodeTiled))found;
    }();

    TensorMap map;
    const uint32_t steps[4] = {1, 1, 1, 1};
    CUresult e = encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, (void*)base, size, stride + 1, box, steps,
                        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (e != CUDA_SUCCESS) throw DeviceError(text("a tensor map: the driver's error %d", (int)e));
    return map;
}

__device__ inline uint32_t shared_address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }

__device__ inline void mbarrier_init(Mbarrier* b, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(shared_address(b)), "r"(arrivals)
                 : "memory");
}

// makes initialised mbarriers visible to TMA; a barrier of the block's threads must follow
__device__ inline void mbarrier_fence_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ inline void mbarrier_arrive(Mbarrier* b) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(shared_address(b)) : "memory");
}

__device__ inline void mbarrier_arrive_expect(Mbarrier* b, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(shared_address(b)),
                 "r"(bytes) : "memory");
}

// gives up as wait_until does (turns.h)
__device__ inline void mbarrier_wait(Mbarrier* b, int parity) {
    uint32_t done = 0;
    uint64_t began = 0;
    for (uint32_t polls = 1; !done; polls++) {
        asm volatile("{\n\t.reg .pred done;\n\t"
                     "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n\t"
                     "selp.u32 %0, 1, 0, done;\n\t}"
                     : "=r"(done) : "r"(shared_address(b)), "r"(parity) : "memory");
        if (!done && gives_up(polls, began)) return;
    }
}

__device__ inline void tma_load(void* to, const TensorMap& map, Mbarrier* b, int x0, int x1, int x2, int x3) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
                 "[%1, {%3, %4, %5, %6}], [%2];"
                 :: "r"(shared_address(to)), "l"(&map), "r"(shared_address(b)), "r"(x0), "r"(x1), "r"(x2),
                 "r"(x3) : "memory");
}

__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// d: accumulators that are complete now; keeps the compiler from reading them earlier
template <int size>
__device__ inline void pin_registers(float (&d)[size]) {
    #pragma unroll
    for (int i = 0; i < size; i++) asm volatile("" : "+f"(d[i]) :: "memory");
}

template <int groups, int... sizes>
__device__ inline void wgmma_wait(float (&... registers)[sizes]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(groups) : "memory");
    (pin_registers(registers), ...);
}

// stores 16 bytes to shared memory that wgmma or a bulk copy will read: the storing thread must call
// fence_for_async(), then a barrier
template <class V>
__device__ inline void store_for_async(void* to, const V& values) {
    static_assert(sizeof(V) == 16);
    *(uint4*)to = *(const uint4*)&values;
}
// makes this thread's writes to shared memory visible to wgmma and bulk copies; a barrier must follow
__device__ inline void fence_for_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ inline void bulk_store(float* to, const void* from, int bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                 :: "l"(__cvta_generic_to_global(to)), "r"(shared_address(from)), "r"(bytes) : "memory");
}
// after a wait_until for the blocks that added before
__device__ inline void bulk_add(float* to, const void* from, int bytes) {
    asm volatile("fence.proxy.async.global;\n\t"
                 "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;"
                 :: "l"(__cvta_generic_to_global(to)), "r"(shared_address(from)), "r"(bytes) : "memory");
}
// after a wait_until for the blocks that wrote there
__device__ inline void bulk_load(void* to, const float* from, int bytes, Mbarrier* b) {
    asm volatile("fence.proxy.async.global;\n\t"
                 "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(shared_address(to)), "l"(__cvta_generic_to_global(from)), "r"(bytes),
                 "r"(shared_address(b)) : "memory");
}
__device__ inline void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
__device__ inline void bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ inline void bulk_wait() {
    asm volatile("cp.async.bulk.wait_group 0;\n\tfence.proxy.async.global;" ::: "memory");
}
// for `threads` threads, whole warps; id 0 is that of __syncthreads
template <int threads>
__device__ inline void named_barrier(int id) {
    asm volatile("bar.sync %0, %1;" :: "r"(id), "n"(threads) : "memory");
}
// counts as the calling threads' arrival; they go on without waiting
template <int threads>
__device__ inline void named_barrier_arrive(int id) {
    asm volatile("bar.arrive %0, %1;" :: "r"(id), "n"(threads) : "memory");
}

// stores four 8 x 8 matrices to shared memory, in the layout that ldmatrix_x4 reads
__device__ inline void stmatrix_x4(void* row, const uint32_t (&r)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};"
                 :: "r"(shared_address(row)), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
}

template <int count>
__device__ inline void more_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(count));
}

template <int count>
__device__ inline void fewer_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(count));
}

#define IN_OUT_4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define IN_OUT_8(d, i) IN_OUT_4(d, i), IN_OUT_4(d, i + 4)
#define IN_OUT_32(d, i) IN_OUT_8(d, i), IN_OUT_8(d, i + 8), IN_OUT_8(d, i + 16), IN_OUT_8(d, i + 24)
#define D_32 \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23," \
    "%24,%25,%26,%27,%28,%29,%30,%31}"
#define D_64 \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23," \
    "%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45," \
    "%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}"

// both operands in shared memory. Contiguous in their tiles' rows: K or, with `columns`, M (of A), N (of B)
template <int N, bool columns = false>
__device__ inline void wgmma(float (&d)[N / 2], uint64_t a, uint64_t b, bool adds) {
    static_assert(N == 64 || N == 128);
    if constexpr (N == 64)
        asm volatile("{\n\t.reg .pred adds;\n\tsetp.ne.b32 adds, %34, 0;\n\t"
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " D_32
                     ", %32, %33, adds, 1, 1, %35, %35;\n\t}"
                     : IN_OUT_32(d, 0) : "l"(a), "l"(b), "r"((int)adds), "n"((int)columns));
    else
        asm volatile("{\n\t.reg .pred adds;\n\tsetp.ne.b32 adds, %66, 0;\n\t"
                     "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " D_64
                     ", %64, %65, adds, 1, 1, %67, %67;\n\t}"
                     : IN_OUT_32(d, 0), IN_OUT_32(d, 32)
                     : "l"(a), "l"(b), "r"((int)adds), "n"((int)columns));
}

// A in registers; in B's tiles N is contiguous
template <int N>
__device__ inline void wgmma(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, bool adds) {
    static_assert(N == 64 || N == 128);
    if constexpr (N == 64)
        asm volatile("{\n\t.reg .pred adds;\n\tsetp.ne.b32 adds, %37, 0;\n\t"
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " D_32
                     ", {%32,%33,%34,%35}, %36, adds, 1, 1, 1;\n\t}"
                     : IN_OUT_32(d, 0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)adds));
    else
        asm volatile("{\n\t.reg .pred adds;\n\tsetp.ne.b32 adds, %69, 0;\n\t"
                     "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " D_64
                     ", {%64,%65,%66,%67}, %68, adds, 1, 1, 1;\n\t}"
                     : IN_OUT_32(d, 0), IN_OUT_32(d, 32)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)adds));
}
#else
#include "../emulator/hopper_on_cpu.h"
#define __grid_constant__

using emulated::Mbarrier, emulated::TensorMap, emulated::make_tensor_map;

inline uint32_t shared_address(const void* p) { return emulated::shared_offset(p, "an address"); }

inline void mbarrier_init(Mbarrier* b, int arrivals) { emulated::init_mbarrier(b, arrivals); }
inline void mbarrier_fence_init() { emulated::fence_mbarriers(); }
inline void mbarrier_arrive(Mbarrier* b) { b->arrive(); }
inline void mbarrier_arrive_expect(Mbarrier* b, int bytes) {
    b->check("mbarrier.expect_tx");
    b->bytes += bytes;
    b->arrive();
}

inline void mbarrier_wait(Mbarrier* b, int parity) { emulated::wait_mbarrier(b, parity); }

inline void tma_load(void* to, const TensorMap& map, Mbarrier* b, int x0, int x1, int x2, int x3) {
    emulated::begin_box(to, map, b, {x0, x1, x2, x3});
}

inline void wgmma_fence(emulated::Site site = emulated::Site::current()) {
    emulated::as_warp(site, [] { emulated::warp_products().fenced = true; });
}

inline void wgmma_commit(emulated::Site site = emulated::Site::current()) {
    emulated::as_warp(site, [] { emulated::commit_products(); });
}

template <int groups, int... sizes>
void wgmma_wait([[maybe_unused]] float (&... registers)[sizes]) {
    emulated::as_warp(emulated::Site::current(), [] { emulated::warp_products().wait(groups); });
}

inline void fence_for_async() { emulated::fence_written(); }
template <class V>
void store_for_async(void* to, const V& values) {
    static_assert(sizeof(V) == 16);
    emulated::store_for_async(to, &values);
}

inline void bulk_store(float* to, const void* from, int bytes) {
    emulated::begin_bulk(to, from, bytes, false);
}
inline void bulk_add(float* to, const void* from, int bytes) { emulated::begin_bulk(to, from, bytes, true); }
inline void bulk_load(void* to, const float* from, int bytes, Mbarrier* b) {
    emulated::begin_bulk_load(to, from, bytes, b);
}
inline void bulk_commit() { emulated::commit_bulk(); }
inline void bulk_wait_read() { emulated::read_bulk(); }
inline void bulk_wait() { emulated::finish_bulk(); }
template <int threads>
void named_barrier(int id) {
    emulated::worker->named_barrier(id, threads, true);
}
template <int threads>
void named_barrier_arrive(int id) {
    emulated::worker->named_barrier(id, threads, false);
}

inline void stmatrix_x4(void* row, const uint32_t (&r)[4], emulated::Site site = emulated::Site::current()) {
    emulated::stmatrix(row, r, site);
}

template <int count>
void more_registers() {
    static_assert(count % 8 == 0 && count >= 24 && count <= 256);
}

template <int count>
void fewer_registers() {
    static_assert(count % 8 == 0 && count >= 24 && count <= 256);
}

template <int N, bool columns = false>
void wgmma(float (&d)[N / 2], uint64_t a, uint64_t b, bool adds,
           emulated::Site site = emulated::Site::current()) {
    emulated::wgmma({d, a, b, nullptr, !columns, !columns, adds, N}, site);
}

template <int N>
void wgmma(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, bool adds,
           emulated::Site site = emulated::Site::current()) {
    emulated::wgmma({d, 0, b, a, true, false, adds, N}, site);
}
#endif

namespace gpu {

// the address of byte `column` of a row in a swizzled tile
HOST_DEVICE inline uint32_t swizzled(uint32_t tile, int row, int column) {
    uint32_t address = tile + (uint32_t)row * 128 + (uint32_t)column;
    return address ^ (address >> 3 & 0x70);
}

// of this thread: by a shuffle, as nvcc could not know otherwise that all lanes have the same, and would keep
// descriptors in registers of each lane
__device__ inline int warpgroup_index() { return __shfl_sync(all_lanes, (int)threadIdx.x / 128, 0); }

// whether this is compiled for a device that has all of the above
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr bool has_wgmma = false;
#else
constexpr bool has_wgmma = true;
#endif

// ---- descriptors of tiles loaded by TMA, (rows, 64) each, aligned to 1024 bytes --------------------------

// of `offset` bytes behind the tile. A sum of three terms, of which only the first depends on where the tile
// is: products of one tile share it
HOST_DEVICE constexpr uint64_t swizzled_descriptor(uint32_t tile, uint32_t offset, uint32_t leading,
                                                   uint32_t stride) {
    uint32_t low = ((tile & 0x3FFFF) >> 4) + (offset >> 4) + ((leading >> 4) << 16);
    return (uint64_t)low | (uint64_t)(stride >> 4 | 1u << 30) << 32;
}

// the tile's rows are the operand's M or N, its columns k … k + 15 are K
HOST_DEVICE inline uint64_t rows_descriptor(uint32_t tile, int k) {
    return swizzled_descriptor(tile, 2 * (uint32_t)k, 16, 1024);
}

// the tile's rows k … k + 15 are the operand's K, its columns are M or N; columns beyond 64 are in the
// tiles that follow, `tile_bytes` apart
HOST_DEVICE inline uint64_t columns_descriptor(uint32_t tile, int k, uint32_t tile_bytes) {
    return swizzled_descriptor(tile, 128 * (uint32_t)k, tile_bytes, 1024);
}

}  // namespace gpu
#endif
