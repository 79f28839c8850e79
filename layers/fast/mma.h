// mma.h   tensor-core building blocks, on the GPU and in emulation (PTX ISA: mma.m16n8k16, ldmatrix)
//   Of lane l let g = l / 4 and c = 2 * (l % 4). Each 32-bit register holds two bf16, the lower column first.
//     a[0] = A[g][c, c+1]   a[1] = A[g+8][c, c+1]   a[2] = A[g][c+8, c+9]   a[3] = A[g+8][c+8, c+9]
//     b[0] = B[c, c+1][g]   b[1] = B[c+8, c+9][g]
//     d[0], d[1] = D[g][c, c+1]   d[2], d[3] = D[g+8][c, c+1]
//   copy_async (PTX cp.async) copies 8 or 16 bytes from global to shared memory, or zeros; copy_async_wait<n>
//   returns when all but the last n committed groups of this thread have arrived. In emulation they arrive
//   exactly then.
#pragma once
#include "../base/device.h"

#if KERNELS_HERE
// rounds two values into one register, `low` in its lower half
__device__ inline uint32_t pack_bf16(float low, float high) {
#if defined(__CUDACC__)
    uint32_t both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
#else
    return bf16(low).bits | (uint32_t)bf16(high).bits << 16;
#endif
}

#if defined(__CUDACC__)
// D (16, 8) += A (16, 16) B (16, 8), over the lanes of a warp
__device__ inline void mma_16x8x16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// four 8 x 8 matrices from shared memory: lanes 8i … 8i+7 give the rows of matrix i (16 bytes, aligned);
// r[i] = M_i[g][c, c+1], or with transpose M_i[c, c+1][g]
template <bool transpose>
__device__ inline void ldmatrix_x4(uint32_t (&r)[4], const bf16* row) {
    uint32_t address = (uint32_t)__cvta_generic_to_shared(row);
    if constexpr (transpose)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}

template <int bytes>
__device__ inline void copy_async(void* shared, const void* global, bool copy) {
    uint32_t address = (uint32_t)__cvta_generic_to_shared(shared);
    int wanted = copy ? bytes : 0;  // the rest is 0
    if constexpr (bytes == 16)  // .cg bypasses the L1 cache, and takes 16 bytes only
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(address), "l"(global), "r"(wanted)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" :: "r"(address), "l"(global),
                     "r"(wanted), "n"(bytes) : "memory");
}

__device__ inline void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int groups>
__device__ inline void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
}

#else
inline void mma_16x8x16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                        emulated::Site site = emulated::Site::current()) {
    struct Args {
        float* d;
        const uint32_t *a, *b;
    } mine = {d, a, b};
    emulated::warp_collective<Args>(all_lanes, mine, site, [](Args* lanes[32], unsigned) {
        float A[16][16], B[16][8];
        auto half = [](uint32_t word, int i) {
            bf16 x;
            x.bits = (uint16_t)(word >> 16 * i);
            return (float)x;
        };

        for (int l = 0; l < 32; l++)
            for (int i = 0; i < 2; i++) {
                int g = l / 4, c = 2 * (l % 4) + i;
                A[g][c] = half(lanes[l]->a[0], i);
                A[g + 8][c] = half(lanes[l]->a[1], i);
                A[g][c + 8] = half(lanes[l]->a[2], i);
                A[g + 8][c + 8] = half(lanes[l]->a[3], i);
                B[c][g] = half(lanes[l]->b[0], i);
                B[c + 8][g] = half(lanes[l]->b[1], i);
            }

        for (int l = 0; l < 32; l++)
            for (int i = 0; i < 4; i++) {
                int row = l / 4 + i / 2 * 8, column = 2 * (l % 4) + i % 2;
                for (int k = 0; k < 16; k++) lanes[l]->d[i] += A[row][k] * B[k][column];
            }
    });
}

template <bool transpose>
void ldmatrix_x4(uint32_t (&r)[4], const bf16* row, emulated::Site site = emulated::Site::current()) {
    struct Args {
        uint32_t* r;
        const bf16* row;
    } mine = {r, row};
    if ((uintptr_t)row % 16) fail("ldmatrix: a row at %p is not aligned to 16 bytes", (const void*)row);
    emulated::watch::read(row, 8 * sizeof(bf16));
    emulated::warp_collective<Args>(all_lanes, mine, site, [](Args* lanes[32], unsigned) {
        [[maybe_unused]] emulated::watch::Unwatched emulator;
        for (int l = 0; l < 32; l++)
            for (int m = 0; m < 4; m++) {
                int g = l / 4, c = 2 * (l % 4);
                bf16 low = transpose ? lanes[8 * m + c]->row[g] : lanes[8 * m + g]->row[c];
                bf16 high = transpose ? lanes[8 * m + c + 1]->row[g] : lanes[8 * m + g]->row[c + 1];
                lanes[l]->r[m] = low.bits | (uint32_t)high.bits << 16;
            }
    });
}

template <int bytes>
void copy_async(void* shared, const void* global, bool copy) {
    static_assert(bytes == 8 || bytes == 16);
    if ((uintptr_t)shared % bytes || (uintptr_t)global % bytes)
        fail("copy_async: %p from %p is not aligned to %d bytes", shared, global, bytes);
    emulated::begin_copy(shared, copy ? global : nullptr, bytes);
}

inline void copy_async_commit() { emulated::worker->copies_of_thread().emplace_back(); }
template <int groups>
void copy_async_wait() {
    emulated::finish_copies(groups);
}

#endif

namespace gpu {

// whether this is compiled for sm_90; of the host's code it says nothing (there: true)
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ / 100 != 9
constexpr bool is_hopper = false;
#else
constexpr bool is_hopper = true;
#endif

// ---- tiles in shared memory ------------------------------------------------------------------------------
// A row of HS values is padded to HS + 8: an odd number of 16-byte pieces, so that the eight rows of an 8 x 8
// matrix are in different banks. The fragments are drawn at the head of this file.

template <int rows, int HS>
__device__ inline void load_tile(bf16* tile, const bf16* from, long row, int first, int T) {
    constexpr int pieces = HS / 8;
    #pragma unroll 1  // more would spill registers
    for (int i = threadIdx.x; i < rows * pieces; i += blockDim.x) {
        int r = i / pieces, c = i % pieces * 8;
        bool inside = first + r < T;  // rows beyond the sequence are 0
        copy_async<16>(tile + r * (HS + 8) + c, from + (inside ? first + r : 0) * row + c, inside);
    }
}

// A (16, 16) from a tile's rows r.. and columns c..
__device__ inline void load_a(uint32_t (&a)[4], const bf16* tile, int stride, int r, int c) {
    int lane = threadIdx.x % 32;
    ldmatrix_x4<false>(a, tile + (r + lane % 16) * stride + c + lane / 16 * 8);
}

// A (16, 16) of the tile's transpose: its columns r.. are A's rows
__device__ inline void load_a_transposed(uint32_t (&a)[4], const bf16* tile, int stride, int r, int c) {
    int lane = threadIdx.x % 32, matrix = lane / 8;
    ldmatrix_x4<true>(a, tile + (c + matrix / 2 * 8 + lane % 8) * stride + r + matrix % 2 * 8);
}

// two B (16, 8) side by side: B[k][n] = tile[n][k], the rows n.. of the tile
__device__ inline void load_b_rows(uint32_t (&b)[4], const bf16* tile, int stride, int n, int k) {
    int lane = threadIdx.x % 32, matrix = lane / 8;
    ldmatrix_x4<false>(b, tile + (n + matrix / 2 * 8 + lane % 8) * stride + k + matrix % 2 * 8);
}

// two B (16, 8) side by side: B[k][n] = tile[k][n]
__device__ inline void load_b_columns(uint32_t (&b)[4], const bf16* tile, int stride, int k, int n) {
    int lane = threadIdx.x % 32, matrix = lane / 8;
    ldmatrix_x4<true>(b, tile + (k + matrix % 2 * 8 + lane % 8) * stride + n + matrix / 2 * 8);
}

__device__ inline void mma_pair(float (&d0)[4], float (&d1)[4], const uint32_t (&a)[4],
                                const uint32_t (&b)[4]) {
    uint32_t left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
    mma_16x8x16(d0, a, left);
    mma_16x8x16(d1, a, right);
}

// two adjacent accumulators, rounded, are the A operand of the next product
__device__ inline void as_a(uint32_t (&a)[4], const float (&d0)[4], const float (&d1)[4]) {
    a[0] = pack_bf16(d0[0], d0[1]);
    a[1] = pack_bf16(d0[2], d0[3]);
    a[2] = pack_bf16(d1[0], d1[1]);
    a[3] = pack_bf16(d1[2], d1[3]);
}

}  // namespace gpu
#endif
