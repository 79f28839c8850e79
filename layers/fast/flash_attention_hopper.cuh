// flash_attention_hopper.cuh   flash_attention.cuh's forward on sm_90a, with TMA loads and wgmma
//   The same function and sums, in other tiles of 128 queries by 128 keys. A CTA takes several tiles of
//   queries, one after the other (QueryTiles), so that the loads of the next hide behind the output of the
//   last. Its first warpgroup is the producer: it loads tiles of keys and values, the last keys first, into a
//   ring of two stages, which goes on from one tile of queries to the next. The other two are consumers with
//   64 queries each. While a consumer computes its softmax, the tensor cores run its previous p v and the
//   other consumer's GEMMs: named barriers 1 and 2 say whose turn it is to start its own (3 and 4: a
//   consumer's warps have read its queries, whose tile then takes its output).
//     tiles     (128, 64) of q, k or v, rows swizzled; one or two of them side by side
//     *_full    mbarrier of a stage: its bytes have arrived       the consumers wait for it
//     *_free    mbarrier of a stage: eight warps are done         the producer waits for it
//   communicates: nothing    cost: that of flash_attention.cuh
//   gpu: bf16, HS 64, 80, 96 or 128, any T; shared memory 1 + columns * 1.5 KB. A head's values take one or
//   two tiles of 64 columns; beyond those of a head of 80 or 96 TMA brings zeros, which add nothing
#pragma once
#include "hopper.h"
#include "../attention.cuh"
#include "../base/hardware.h"
#include "mma.h"

#if KERNELS_HERE
namespace gpu {

constexpr bool has_hopper_kernels(int HS) { return has_flash_kernels(HS) && HS <= 128; }

// a CTA's tiles, for 64 queries per consumer warpgroup; *_tile, all_* and `bytes` are in bytes
template <int HS>
struct HopperTiles {
    static constexpr int queries = 128, keys = 128, stages = 2, columns = flash_columns(HS);
    static constexpr int warps = queries / 16, threads = 128 + 32 * warps;
    static constexpr int query_tile = queries * 64 * sizeof(bf16), all_queries = columns / 64 * query_tile;
    static constexpr int key_tile = keys * 64 * sizeof(bf16), all_keys = columns / 64 * key_tile;
    static constexpr int bytes = 1024 + stages * (all_queries + 2 * all_keys);  // 1024: for aligning them
};

struct HopperBarriers {
    Mbarrier queries_full[2], queries_free[2], keys_full[2], keys_free[2], values_full[2], values_free[2];
};

// All tiles of queries are numbered by head, of a head the last queries, which see most keys, first. A CTA
// has those from first_of(its number) up to first_of(the next one's): all have about as many tiles of keys
struct QueryTiles {
    int tiles, heads;  // tiles: of queries, in a head

    __device__ int first_of(int cta, int ctas) const {
        long of_head = tiles * (tiles + 1L) / 2, from = (of_head * heads * cta + ctas - 1) / ctas;
        int head = (int)(from / of_head), place = 0;
        for (long left = from % of_head; left > 0; place++) left -= tiles - place;  // before `from`
        return head * tiles + place;
    }
};

// one of them: the tiles of keys that it sees are 0 … tile
struct QueryTile {
    int head, b, h, tile;

    __device__ QueryTile(int number, int tiles, int NH)
        : head(number / tiles), b(head / NH), h(head % NH), tile(tiles - 1 - number % tiles) {}
};

__device__ inline void init_barriers(HopperBarriers& at, int warps) {
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) {
            mbarrier_init(&at.queries_full[i], 1);
            mbarrier_init(&at.keys_full[i], 1);
            mbarrier_init(&at.values_full[i], 1);
            mbarrier_init(&at.queries_free[i], warps);
            mbarrier_init(&at.keys_free[i], warps);
            mbarrier_init(&at.values_free[i], warps);
        }
        mbarrier_fence_init();
    }
    __syncthreads();
}

// loads `rows` rows, from `first` on; head_part: 3 h for q of head h, 3 h + 1 for its k, 3 h + 2 for its v
template <int HS, int rows>
__device__ inline void ask_for_tiles(char* to, const TensorMap& qkv, Mbarrier* full, int head_part,
                                     int first, int b) {
    mbarrier_arrive_expect(full, HopperTiles<HS>::columns / 64 * rows * 128);
    for (int x = 0; x < HS; x += 64) tma_load(to + x / 64 * rows * 128, qkv, full, x, head_part, first, b);
}

// a tile's scores -> their exponentials. So far, for this lane's rows g and g + 8: largest, of the scores
// times scale_log2, over the row; sum, over this lane's columns alone (write_rows adds those of the four
// lanes). The output accumulated so far must be multiplied by shrink
template <int N>
__device__ inline void softmax_tile(float (&s)[N], float (&largest)[2], float (&sum)[2], float (&shrink)[2],
                                    float scale_log2) {
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        float most = -INFINITY;
        #pragma unroll
        for (int i = 2 * half; i < N; i += 4) most = fmaxf(most, fmaxf(s[i], s[i + 1]));
        most = fmaxf(largest[half], most * scale_log2);
        for (int lanes = 1; lanes < 4; lanes *= 2)
            most = fmaxf(most, __shfl_xor_sync(all_lanes, most, lanes));

        float part = 0;  // the maximum is finite: every row sees a key of the first tile
        shrink[half] = exp2_of(largest[half] - most);
        #pragma unroll
        for (int i = 2 * half; i < N; i += 4)
            #pragma unroll
            for (int j = i; j < i + 2; j++) part += s[j] = exp2_of(s[j] * scale_log2 - most);
        sum[half] = sum[half] * shrink[half] + part;
        largest[half] = most;
    }
}
// rounds them to bf16, as the A operand of the next product
template <int N>
__device__ inline void round_probabilities(uint32_t (&p)[N / 8][4], const float (&s)[N]) {
    #pragma unroll
    for (int i = 0; i < N / 2; i++) p[i / 4][i % 4] = pack_bf16(s[2 * i], s[2 * i + 1]);
}

// The producer thread, for the CTA's n-th tile of queries; so far it has asked for `done` tiles of keys
template <int HS>
__device__ inline void ask_for_all(HopperBarriers& at, char* q, const TensorMap& qkv, const QueryTile& own,
                                   int n, int done) {
    using Tiles = HopperTiles<HS>;
    constexpr int rows = Tiles::keys, stages = Tiles::stages;  // rows: and queries
    char *k = q + stages * Tiles::all_queries, *v = k + stages * Tiles::all_keys;
    mbarrier_wait(&at.queries_free[n % stages], (n / stages + 1) % 2);
    ask_for_tiles<HS, rows>(q + n % stages * Tiles::all_queries, qkv, &at.queries_full[n % stages],
                            3 * own.h, own.tile * rows, own.b);
    for (int tile = own.tile; tile >= 0; tile--, done++) {
        int stage = done % stages, before = (done / stages + 1) % 2, here = stage * Tiles::all_keys;
        mbarrier_wait(&at.keys_free[stage], before);
        ask_for_tiles<HS, rows>(k + here, qkv, &at.keys_full[stage], 3 * own.h + 1, tile * rows, own.b);
        mbarrier_wait(&at.values_free[stage], before);
        ask_for_tiles<HS, rows>(v + here, qkv, &at.values_full[stage], 3 * own.h + 2, tile * rows, own.b);
    }
}

// for this lane's rows g and g + 8: the output so far, to be divided by sum at the end
template <int HS>
struct Attended {
    float out[HopperTiles<HS>::columns / 2] = {}, largest[2] = {-INFINITY, -INFINITY}, sum[2] = {};
};

// One warpgroup's 64 queries attend to `count` tiles of keys, the CTA's from the done-th on. q: address of
// its rows; k: of the first stage's keys. mask(s, i) masks the scores of tile i
template <int HS, class Mask>
__device__ inline void attend(Attended<HS>& a, HopperBarriers& at, uint32_t q, uint32_t k, int count,
                              int done, float scale_log2, Mask mask) {
    using Tiles = HopperTiles<HS>;
    constexpr int keys = Tiles::keys, stages = Tiles::stages, abreast = HS > 64 ? Tiles::key_tile : 0;
    uint32_t v = k + stages * Tiles::all_keys;
    int lane = threadIdx.x % 32;

    float s[keys / 2], shrink[2];
    uint32_t p[keys / 16][4];
    auto scores = [&](int i) {  // starts the scores of tile i
        int stage = (done + i) % stages;
        mbarrier_wait(&at.keys_full[stage], (done + i) / stages % 2);
        wgmma_fence();
        #pragma unroll
        for (int x = 0; x < HS; x += 16)
            wgmma<keys>(s, rows_descriptor(q + x / 64 * Tiles::query_tile, x % 64),
                        rows_descriptor(k + stage * Tiles::all_keys + x / 64 * Tiles::key_tile, x % 64),
                        x > 0);
        wgmma_commit();
    };

    auto add_values = [&](int i) {  // starts the product with tile i's values
        int stage = (done + i) % stages;
        mbarrier_wait(&at.values_full[stage], (done + i) / stages % 2);
        wgmma_fence();
        #pragma unroll
        for (int j = 0; j < keys / 16; j++)
            wgmma<Tiles::columns>(a.out, p[j],
                                  columns_descriptor(v + stage * Tiles::all_keys, 16 * j, abreast), true);
        wgmma_commit();
    };

    scores(0);
    wgmma_wait<0>(s);
    if (lane == 0) mbarrier_arrive(&at.keys_free[done % stages]);
    mask(s, 0);
    softmax_tile(s, a.largest, a.sum, shrink, scale_log2);
    round_probabilities(p, s);

    // two warpgroups start their products in turn, so that one's run during the other's softmax
    int group = warpgroup_index() - 1;
    if (group == 1 && count > 1) named_barrier_arrive<256>(1);
    for (int i = 1; i < count; i++) {
        named_barrier<256>(1 + group);
        scores(i);
        add_values(i - 1);
        if (group == 0 || i < count - 1) named_barrier_arrive<256>(2 - group);
        wgmma_wait<1>(s);
        if (lane == 0) mbarrier_arrive(&at.keys_free[(done + i) % stages]);

        mask(s, i);
        softmax_tile(s, a.largest, a.sum, shrink, scale_log2);
        wgmma_wait<0>(a.out);
        if (lane == 0) mbarrier_arrive(&at.values_free[(done + i - 1) % stages]);
        #pragma unroll
        for (int j = 0; j < Tiles::columns / 2; j++) a.out[j] *= shrink[j / 2 % 2];
        round_probabilities(p, s);
    }

    add_values(count - 1);
    wgmma_wait<0>(a.out);
    if (lane == 0) mbarrier_arrive(&at.values_free[(done + count - 1) % stages]);
}

// Writes 16 rows of 64 columns that a warp holds as accumulators, d[first] on, times the factors of its rows
// g and g + 8; `to`: the address of row 0; only `rows` rows and `columns` columns exist. They go through 2 KB
// of shared memory of this warp's own, so that a store writes four rows of 128 bytes, not eight pieces of 16
template <int first, int size>
__device__ inline void store_rows(bf16* to, const float (&d)[size], const float (&factor)[2], char* own,
                                  int rows, int columns, long stride) {
    int lane = threadIdx.x % 32;
    #pragma unroll
    for (int j = 0; j < 4; j++) {
        uint32_t packed[4];  // of columns 16 j on: rows g and g + 8, then 8 columns further
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            int at = first + 8 * j + 2 * i;
            packed[i] = pack_bf16(d[at] * factor[i % 2], d[at + 1] * factor[i % 2]);
        }
        stmatrix_x4(own + swizzled(0, lane % 16, (16 * j + lane / 16 * 8) * 2), packed);
    }
    __syncwarp();
    #pragma unroll
    for (int k = 0; k < 4; k++) {
        int row = 4 * k + lane / 8, column = lane % 8 * 8;
        uint4 values = *(const uint4*)(own + swizzled(0, row, column * 2));  // Values may be stored in parts
        if (row < rows && column < columns) *(uint4*)(to + row * stride + column) = values;
    }
    __syncwarp();  // the next stores may overwrite this memory
}

// a warp's rows of a head's output, from `row` on, if they are below `rows`; o, lse: of row 0; q: the tile of
// queries, which its warpgroup no longer needs
template <int HS>
__device__ inline void write_rows(bf16* o, real* lse, const Attended<HS>& a, char* q, int row, int rows,
                                  long stride) {
    int g = threadIdx.x % 32 / 4;
    float inverse[2];
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        float all = a.sum[half];
        for (int lanes = 1; lanes < 4; lanes *= 2) all += __shfl_xor_sync(all_lanes, all, lanes);
        inverse[half] = 1 / all;
        int query = row + g + half * 8;
        if (threadIdx.x % 4 == 0 && query < rows) lse[query] = a.largest[half] / log2_e + logf(all);
    }

    int group = warpgroup_index() - 1, warp = threadIdx.x / 32 - 4;
    named_barrier<128>(3 + group);  // all warps' products with the queries are complete
    char* its_queries = q + warp * 16 * 128;
    bf16* to = o + row * stride;
    store_rows<0>(to, a.out, inverse, its_queries, rows - row, 64, stride);
    if constexpr (HS > 64) store_rows<32>(to + 64, a.out, inverse, its_queries, rows - row, HS - 64, stride);
}

template <int HS>
__global__ void __launch_bounds__(HopperTiles<HS>::threads, 1)
flash_forward_hopper_kernel(const __grid_constant__ TensorMap qkv, bf16* o, real* lse, AttentionShape a,
                            float scale_log2) {
    if (!has_wgmma) return;  // also compiled for other GPUs, but never launched there
    using Tiles = HopperTiles<HS>;
    constexpr int rows = Tiles::keys, stages = Tiles::stages;  // rows: and queries
    DYNAMIC_SHARED(char, shared);
    SHARED(HopperBarriers, barriers, 1);
    HopperBarriers& at = barriers[0];
    char* q = shared + (1024 - shared_address(shared) % 1024) % 1024;

    int tiles = (a.T + rows - 1) / rows, done = 0;
    QueryTiles all = {tiles, a.B * a.NH};
    int first = all.first_of(blockIdx.x, gridDim.x), last = all.first_of(blockIdx.x + 1, gridDim.x);
    init_barriers(at, Tiles::warps);

    // the first warpgroup is the producer: only its first thread works
    if (threadIdx.x < 128) {
        fewer_registers<24>();
        for (int number = first; number < last && threadIdx.x == 0; number++) {
            QueryTile own(number, tiles, a.NH);
            ask_for_all<HS>(at, q, qkv, own, number - first, done);
            done += own.tile + 1;
        }
        return;
    }

    more_registers<240>();  // 2 x 128 x 240 + 128 x 24: 64,512 of the SM's 65,536
    int group = warpgroup_index() - 1, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    int own_row = group * 64 + warp * 16, c = lane % 4 * 2;
    auto mask = [&](auto& s, int i) {  // the first tile has the diagonal: no query sees a later key
        if (i > 0) return;
        #pragma unroll
        for (int j = 0; j < rows / 2; j++)
            if (j / 4 * 8 + c + j % 2 > own_row + lane / 4 + j / 2 % 2 * 8) s[j] = -INFINITY;
    };

    uint32_t k = shared_address(q) + stages * Tiles::all_queries;
    for (int number = first; number < last; number++) {
        QueryTile own(number, tiles, a.NH);
        int n = number - first, stage = n % stages;
        char* q_now = q + stage * Tiles::all_queries;
        Attended<HS> attended;
        mbarrier_wait(&at.queries_full[stage], n / stages % 2);
        attend(attended, at, shared_address(q_now) + (uint32_t)group * 64 * 128, k, own.tile + 1, done,
               scale_log2, mask);
        done += own.tile + 1;

        bf16* o_head = o + (long)own.b * a.T * a.NH * HS + own.h * HS;
        write_rows(o_head, lse + (long)own.head * a.T, attended, q_now, own.tile * rows + own_row, a.T,
                   (long)a.NH * HS);
        fence_for_async();  // TMA writes there next
        __syncwarp();
        if (lane == 0) mbarrier_arrive(&at.queries_free[stage]);
    }
}

// map of x (B, T, NH * parts, HS): boxes of 64 columns and `rows` positions of one head's part
template <int HS>
TensorMap tiles_of(const bf16* x, int parts, int rows, AttentionShape a) {
    uint64_t all = (uint64_t)a.NH * parts, row = all * HS * sizeof(bf16);
    return make_tensor_map(x, {(uint64_t)HS, all, (uint64_t)a.T, (uint64_t)a.B},
                           {0, HS * sizeof(bf16), row, (uint64_t)a.T * row}, {64, 1, (uint32_t)rows, 1});
}

// ctas: how many share the work, at most. One fits an SM; eight for each, so that SMs that are free take what
// others, which NCCL may hold, do not
template <int HS>
void flash_forward_hopper(bf16* o, real* lse, const bf16* qkv, AttentionShape a, Stream s,
                          int ctas = 8 * multiprocessors()) {
    using Tiles = HopperTiles<HS>;
    TensorMap map = tiles_of<HS>(qkv, 3, Tiles::keys, a);
    allow_shared(flash_forward_hopper_kernel<HS>, Tiles::bytes);
    ctas = std::min(ctas, ceil_div(a.T, Tiles::queries) * a.B * a.NH);
    LAUNCH(flash_forward_hopper_kernel<HS>, ctas, Tiles::threads, Tiles::bytes, s, map, o, lse, a,
           (float)a.scale() * log2_e);
}

}  // namespace gpu
#endif
