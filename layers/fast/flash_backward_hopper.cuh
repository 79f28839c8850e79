// flash_backward_hopper.cuh   flash_attention.cuh's backward on sm_90a, with TMA loads and wgmma
//   A block has 128 keys, 64 per consumer warpgroup, and loops over the queries from the diagonal down, as
//   sm_80's kernel does: scores are transposed, keys by queries, so that p^T and ds^T are already in
//   registers as the A operand of dv and dk. ds goes through shared memory, two tiles in turn, for dq = ds k,
//   of which each warpgroup computes 64 columns (64 rows if HS is 64). While the tensor cores go on, one
//   thread for each warpgroup adds its dq to global memory when the block's turn comes: the order is always
//   the same. Block 0, whose turn is the last, gets the sum of the others from that thread, and writes dq
//   itself. With three blocks (T = 384), of the queries on block 2's diagonal block 2 stores its dq (turn 0),
//   block 1 adds to it (turn 1), and block 0 reads the sum (turn 2).
//   There is a CTA for each SM; it takes one block after the other, the next that no CTA has taken, so that
//   the loads of the next hide behind the output of the last. Stages and ds go on from block to block.
//     keys_full  mbarrier: a block's number and its k and v have arrived
//     keys_free  mbarrier: eight warps are done with k and v, and the two threads that add have the number
//     full       mbarrier of a stage: its queries, dout and their terms have arrived
//     free       mbarrier of a stage: eight warps are done with it
//     dq_ready   mbarrier of a warpgroup's dq in shared memory: there is room or, in block 0, the others' sum
//     dq_full    mbarrier of the same: it is there or, in block 0, the sum has been read
//     barrier 1  ds is complete; a block begins or ends
//   communicates: nothing    cost: that of flash_attention.cuh
//   gpu: bf16, HS 64, 80, 96 or 128, any T
#pragma once
#include "flash_attention_hopper.cuh"

#if KERNELS_HERE
namespace gpu {

template <int HS>
struct HopperBackwardTiles {
    static constexpr int keys = 128, queries = HS == 64 ? 128 : 64, threads = 384, stages = 2;
    static constexpr int columns = flash_columns(HS), chunks = columns / 64;
    static constexpr int key_tile = keys * 128, query_tile = queries * 128;  // bytes
    static constexpr int all_keys = chunks * key_tile, all_queries = chunks * query_tile;
    static constexpr int ds_bytes = queries / 64 * key_tile;
    static constexpr int dq_bytes = 128 * 32 * sizeof(float);  // a warpgroup's: 32 numbers a thread
    static constexpr int bytes =
        1024 + 2 * all_keys + stages * 2 * all_queries + 2 * ds_bytes + 2 * dq_bytes +
        8 * 3 * columns * (int)sizeof(float);
};

struct HopperBackwardBarriers {
    Mbarrier keys_full, keys_free, full[2], free[2], dq_ready[2], dq_full[2];
};

// A block's tiles of queries. All blocks are numbered by head, of a head the last keys first. To a tile's dq
// the block on the diagonal adds first, the one of keys 0 last
template <int HS>
struct KeyBlock {
    using Tiles = HopperBackwardTiles<HS>;
    int blocks, tiles, head, b, h, block, first_tile;

    __device__ KeyBlock(int number, int T, int NH) {
        blocks = (T + Tiles::keys - 1) / Tiles::keys;
        tiles = (T + Tiles::queries - 1) / Tiles::queries;
        head = number / blocks;
        b = head / NH;
        h = head % NH;
        block = blocks - 1 - number % blocks;
        first_tile = block * Tiles::keys / Tiles::queries;
    }

    // how many blocks add to a tile's dq before this one
    __device__ int turn_of(int tile) const { return tile * Tiles::queries / Tiles::keys - block; }
    __device__ int part(int tile, int group) const { return (head * tiles + tile) * 2 + group; }
};

// where a CTA's tiles lie in shared memory: a block's k, followed by its v; stages of q and dout; two of ds;
// dq by warpgroup
struct BackwardShared {
    char *k, *q, *ds, *dq;
    float* query_terms;  // of a stage: lse (base 2), then delta of the queries
    int* number;  // the block's, or -1: there are no more; [0]: as it was taken, [1]: for the consumers
    HopperBackwardBarriers& at;

    // behind dq, by consumer warp: the column sums of its dq (block 0 only), dk and dv
    template <int HS>
    __device__ float* bias_sums(int warp) const {
        using Tiles = HopperBackwardTiles<HS>;
        return (float*)(dq + 2 * Tiles::dq_bytes) + warp * 3 * Tiles::columns;
    }
};

// A warp: takes blocks, loads their tiles and copies the queries' terms. A block is taken when there is room
// for its first tile of queries. It waits for blocks of lower numbers only, which have been taken before, and
// a CTA's own come in order: the lowest that is not complete waits for none
template <int HS>
__device__ inline void load_backward_tiles(const BackwardShared& to, const TensorMap& keys_map,
                                           const TensorMap& queries_map, const TensorMap& dout_map,
                                           const FlashScratch& scratch, const AttentionShape& a) {
    using Tiles = HopperBackwardTiles<HS>;
    constexpr int BM = Tiles::queries, stages = Tiles::stages;
    HopperBackwardBarriers& at = to.at;
    int lane = threadIdx.x % 32, number = 0, blocks = 0, left = 0;  // left: tiles of the block

    for (int done = 0;; done++, left--) {
        int stage = done % stages;
        mbarrier_wait(&at.free[stage], (done / stages + 1) % 2);
        bool begins = left == 0;
        if (begins) number = __shfl_sync(all_lanes, lane == 0 ? atomicAdd(scratch.turns, 1) : 0, 0);
        KeyBlock<HS> own(number, a.T, a.NH);
        if (own.head >= a.B * a.NH) break;
        if (begins) left = own.tiles - own.first_tile;
        int first = (own.tiles - left) * BM, key = own.block * Tiles::keys, q_head = 3 * own.h;

        if (lane == 0) {
            mbarrier_arrive_expect(&at.full[stage], 2 * Tiles::all_queries);
            for (int j = 0; j < Tiles::chunks; j++) {
                char* tile = to.q + stage * 2 * Tiles::all_queries + j * Tiles::query_tile;
                tma_load(tile, queries_map, &at.full[stage], 64 * j, q_head, first, own.b);
                tma_load(tile + Tiles::all_queries, dout_map, &at.full[stage], 64 * j, own.h, first, own.b);
            }
        }

        float* terms = to.query_terms + stage * 2 * BM;
        const float2* from_terms = (const float2*)scratch.query_terms + own.head * a.T;
        for (int t = lane; t < BM; t += 32) {
            float2 term = first + t < a.T ? from_terms[first + t] : float2{0, 0};  // beyond: adds nothing
            terms[t] = term.x;
            terms[BM + t] = term.y;
        }
        mbarrier_arrive(&at.full[stage]);

        if (lane == 0 && begins) {
            mbarrier_wait(&at.keys_free, (blocks + 1) % 2);
            to.number[0] = number;
            mbarrier_arrive_expect(&at.keys_full, 2 * Tiles::all_keys);
            for (int i = 0; i < Tiles::chunks; i++) {
                char* tile = to.k + i * Tiles::key_tile;
                tma_load(tile, keys_map, &at.keys_full, 64 * i, q_head + 1, key, own.b);
                tma_load(tile + Tiles::all_keys, keys_map, &at.keys_full, 64 * i, q_head + 2, key, own.b);
            }
            blocks++;
        }
    }

    if (lane > 0) return;
    mbarrier_wait(&at.keys_free, (blocks + 1) % 2);
    to.number[0] = -1;
    mbarrier_arrive(&at.keys_full);
}

// A thread for each warpgroup: adds its dq, tile after tile; after bulk_wait it is in memory, and published.
// To block 0 it brings the others' sum instead
template <int HS>
__device__ inline void add_dq_in_turn(const BackwardShared& in, const FlashScratch& scratch,
                                      const AttentionShape& a, int group) {
    constexpr int bytes = HopperBackwardTiles<HS>::dq_bytes;
    Mbarrier *ready = &in.at.dq_ready[group], *full = &in.at.dq_full[group];
    char* dq = in.dq + group * bytes;
    mbarrier_arrive(ready);
    for (int n = 0, done = 0;; n++) {
        mbarrier_wait(&in.at.keys_full, n % 2);
        int number = in.number[0];
        mbarrier_arrive(&in.at.keys_free);
        if (number < 0) return;
        KeyBlock<HS> own(number, a.T, a.NH);

        for (int tile = own.first_tile; tile < own.tiles; tile++, done++) {
            int part = own.part(tile, group), before = own.turn_of(tile), *turn = scratch.turns + 1 + part;
            float* sums = scratch.dq + part * (bytes / 4L);
            bool reads = own.block == 0 && before > 0;
            wait_until(turn, before);
            if (reads) {
                mbarrier_arrive_expect(ready, bytes);
                bulk_load(dq, sums, bytes, ready);
            }

            mbarrier_wait(full, done % 2);
            if (own.block == 0) {
                bool next_reads = tile + 1 < own.tiles && own.turn_of(tile + 1) > 0;
                if (!next_reads) mbarrier_arrive(ready);  // a block's first tile reads nothing
                continue;
            }
            if (before == 0) bulk_store(sums, dq, bytes);
            else bulk_add(sums, dq, bytes);
            bulk_commit();
            bulk_wait_read();
            mbarrier_arrive(ready);
            bulk_wait();
            publish(turn, before + 1);
        }
    }
}

// The sums over a warp's rows of eight pairs of columns, which lane l holds for its rows, those of l / 4. In
// each of three steps two lanes exchange halves: one adds up the first four pairs, the other the rest, and so
// on. A lane is left with the sum of pair sum_pair()
__device__ inline float2 sum_over_rows(float2 (&x)[8]) {
    #pragma unroll
    for (int n = 4, lanes = 4; n > 0; n /= 2, lanes *= 2) {
        bool rest = threadIdx.x & lanes;
        #pragma unroll
        for (int i = 0; i < n; i++) {
            float2 own = rest ? x[i + n] : x[i], other = rest ? x[i] : x[i + n];
            x[i] = {own.x + __shfl_xor_sync(all_lanes, other.x, lanes),
                    own.y + __shfl_xor_sync(all_lanes, other.y, lanes)};
        }
    }
    return x[0];
}
__device__ inline int sum_pair() {
    int g = threadIdx.x % 32 / 4;
    return g % 2 * 4 + g / 2 % 2 * 2 + g / 4;
}

// the column sums of 16 rows of 64 columns that a warp holds as accumulators, d[first] on; adds: to `sums`
template <int first, int size>
__device__ inline void sum_columns(float* sums, const float (&d)[size], float scale, bool adds) {
    float2 pairs[8];  // rows g and g + 8: of columns 8 i + c and the next
    #pragma unroll
    for (int i = 0; i < 8; i++) {
        const float* x = d + first + 4 * i;
        pairs[i] = {(x[0] + x[2]) * scale, (x[1] + x[3]) * scale};
    }
    float2 sum = sum_over_rows(pairs), *to = (float2*)(sums + 8 * sum_pair() + threadIdx.x % 4 * 2);
    *to = adds ? float2{to->x + sum.x, to->y + sum.y} : sum;
}

// A warpgroup's dq of a tile of queries: to shared memory, from where it is added; in block 0, whose turn is
// the last, with the sum of the others to dqkv, by way of 2 KB of a warp's own at `free`
template <int HS>
__device__ inline void send_dq(const float (&dq)[32], const BackwardShared& in, const KeyBlock<HS>& own,
                               int group, int tile, int done, char* free, bf16* dqkv,
                               const AttentionShape& a, float scale) {
    using Tiles = HopperBackwardTiles<HS>;
    int warp = threadIdx.x / 32 % 4;
    char* here = in.dq + group * Tiles::dq_bytes + threadIdx.x % 128 * 16;
    mbarrier_wait(&in.at.dq_ready[group], done % 2);
    if (own.block > 0) {
        #pragma unroll
        for (int i = 0; i < 8; i++)
            store_for_async(here + i * 128 * 16,
                            Values<float, 4>{{dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]}});
        fence_for_async();
        mbarrier_arrive(&in.at.dq_full[group]);
        return;
    }

    float total[32];
    bool adds = own.turn_of(tile) > 0;
    #pragma unroll
    for (int i = 0; i < 8; i++) {
        Values<float, 4> others = {};
        if (adds) others = *(const Values<float, 4>*)(here + i * 128 * 16);
        for (int j = 0; j < 4; j++) total[4 * i + j] = dq[4 * i + j] + others.at[j];
    }
    mbarrier_arrive(&in.at.dq_full[group]);

    // queries beyond the sequence have zeros
    sum_columns<0>(in.bias_sums<HS>(group * 4 + warp) + (HS > 64) * group * 64, total, scale, true);
    int query = tile * Tiles::queries + (HS == 64) * group * 64 + warp * 16;
    long stride = 3L * a.NH * HS;
    bf16* to = dqkv + ((long)own.b * a.T + query) * stride + 3L * own.h * HS + (HS > 64) * group * 64;
    int columns = HS % 64 ? HS - 64 * group : 64;  // from its first one on
    store_rows<0>(to, total, {scale, scale}, free, a.T - query, columns, stride);
}

// a warp's dk and dv, by way of 2 KB of its own at `free`, and this block's share of the bias gradient
template <int HS, int size>
__device__ inline void write_keys(const float (&dk)[size], const float (&dv)[size], char* free,
                                  const BackwardShared& in, const KeyBlock<HS>& own, bf16* dqkv,
                                  const FlashScratch& scratch, const AttentionShape& a, float scale) {
    using Tiles = HopperBackwardTiles<HS>;
    int warp = threadIdx.x / 32 - 4, first_key = own.block * Tiles::keys + warp * 16;
    int keys_left = a.T - first_key;
    long stride = 3L * a.NH * HS;
    bf16* to = dqkv + ((long)own.b * a.T + first_key) * stride + 3L * own.h * HS;
    float *k_sums = in.bias_sums<HS>(warp) + Tiles::columns, *v_sums = k_sums + Tiles::columns;
    store_rows<0>(to + HS, dk, {scale, scale}, free, keys_left, 64, stride);
    store_rows<0>(to + 2 * HS, dv, {1, 1}, free, keys_left, 64, stride);
    sum_columns<0>(k_sums, dk, scale, false);  // keys beyond the sequence have zeros
    sum_columns<0>(v_sums, dv, 1, false);
    if constexpr (HS > 64) {
        store_rows<32>(to + HS + 64, dk, {scale, scale}, free, keys_left, HS - 64, stride);
        store_rows<32>(to + 2 * HS + 64, dv, {1, 1}, free, keys_left, HS - 64, stride);
        sum_columns<32>(k_sums + 64, dk, scale, false);
        sum_columns<32>(v_sums + 64, dv, 1, false);
    }

    named_barrier<256>(1);
    long block = (long)own.b * own.blocks + own.block;
    float* parts = scratch.dqkv_sums + block * 3 * a.NH * HS + 3L * own.h * HS;
    for (int i = (int)threadIdx.x - 128; i < 3 * HS; i += 256) {
        float sum = 0;
        int at = i / HS * Tiles::columns + i % HS;
        for (int w = 0; w < 8; w++) sum += in.bias_sums<HS>(w)[at];
        parts[i] = sum;
    }
}

// A consumer warpgroup's share of a block: dk and dv of its 64 keys, and its part of every tile's dq. done:
// the CTA's tiles of queries
template <int HS>
__device__ inline void attend_backward(const BackwardShared& in, const KeyBlock<HS>& own, int& done,
                                       bf16* dqkv, const FlashScratch& scratch, const AttentionShape& a,
                                       float scale) {
    using Tiles = HopperBackwardTiles<HS>;
    constexpr int BN = Tiles::keys, BM = Tiles::queries, stages = Tiles::stages, columns = Tiles::columns;
    int group = warpgroup_index() - 1, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    int g = lane / 4, c = lane % 4 * 2, in_block = (int)threadIdx.x / 32 * 16 - 64;  // this warp's first key
    int first_key = own.block * BN + in_block;
    uint32_t k_own = shared_address(in.k) + (uint32_t)group * 64 * 128, v_own = k_own + Tiles::all_keys;
    uint32_t k_tile = shared_address(in.k), q_tiles = shared_address(in.q), ds_tiles = shared_address(in.ds);

    // this warpgroup's share of dq: which columns of k; which queries' ds, see ds_now
    uint32_t k_now = k_tile + (uint32_t)((HS > 64) * group * Tiles::key_tile);
    constexpr int abreast = HS > 64 ? Tiles::query_tile : 0;

    float dk[columns / 2] = {}, dv[columns / 2] = {}, s[BM / 2], dp[BM / 2], dq[32];
    uint32_t p_rounded[BM / 16][4], ds_rounded[BM / 16][4];

    // starts the product of this warpgroup's rows of k or v with all of q or dout
    auto begin_scores = [&](float (&out)[BM / 2], uint32_t own_rows, uint32_t queries) {
        wgmma_fence();
        #pragma unroll
        for (int x = 0; x < HS; x += 16)
            wgmma<BM>(out, rows_descriptor(own_rows + x / 64 * Tiles::key_tile, x % 64),
                      rows_descriptor(queries + x / 64 * Tiles::query_tile, x % 64), x > 0);
        wgmma_commit();
    };

    for (int i = lane; i < columns; i += 32) in.bias_sums<HS>(group * 4 + warp)[i] = 0;
    __syncwarp();
    for (int tile = own.first_tile; tile < own.tiles; tile++, done++) {
        int stage = done % stages;
        uint32_t q_now = q_tiles + (uint32_t)stage * 2 * Tiles::all_queries;
        uint32_t dout_now = q_now + Tiles::all_queries;
        uint32_t ds_tile = ds_tiles + (uint32_t)(done % 2 * Tiles::ds_bytes);
        uint32_t ds_now = ds_tile + (uint32_t)((HS == 64) * group * Tiles::key_tile);
        mbarrier_wait(&in.at.full[stage], done / stages % 2);
        begin_scores(s, k_own, q_now);      // s^T = k q^T
        begin_scores(dp, v_own, dout_now);  // dp^T = v dout^T

        const float *lse_log2 = in.query_terms + stage * 2 * BM, *delta = lse_log2 + BM;
        wgmma_wait<1>(s);
        #pragma unroll
        for (int i = 0; i < BM / 2; i++)
            s[i] = exp2_of(s[i] * (scale * log2_e) - lse_log2[i / 4 * 8 + c + i % 2]);
        if (tile * BM < own.block * BN + BN) {  // no query sees a later key
            #pragma unroll
            for (int i = 0; i < BM / 2; i++) {
                int query = tile * BM + i / 4 * 8 + c + i % 2, key = first_key + g + i / 2 % 2 * 8;
                if (key > query) s[i] = 0;
            }
        }
        wgmma_wait<0>(dp);
        #pragma unroll
        for (int i = 0; i < BM / 4; i++) {
            const float* of_pair = delta + i / 2 * 8 + c;
            ds_rounded[i / 4][i % 4] = pack_bf16(s[2 * i] * (dp[2 * i] - of_pair[0]),
                                                 s[2 * i + 1] * (dp[2 * i + 1] - of_pair[1]));
        }
        round_probabilities(p_rounded, s);

        wgmma_fence();
        #pragma unroll
        for (int j = 0; j < BM / 16; j++)  // dv += p^T dout
            wgmma<columns>(dv, p_rounded[j], columns_descriptor(dout_now, 16 * j, abreast), true);
        wgmma_commit();

        // here lay the ds of two tiles ago, with which both warpgroups were done at the last barrier 1, or
        // since then rows of this warp's output
        #pragma unroll
        for (int j = 0; j < BM / 16; j++) {
            int row = in_block + lane % 16, column = 16 * j + lane / 16 * 8;
            uint32_t to = swizzled(ds_tile + column / 64 * Tiles::key_tile, row, column % 64 * 2);
            stmatrix_x4(in.ds + (to - ds_tiles), ds_rounded[j]);
        }
        fence_for_async();
        named_barrier<256>(1);  // the ds of all keys are written

        wgmma_fence();
        #pragma unroll
        for (int j = 0; j < BN / 16; j++)  // dq = ds k
            wgmma<64, true>(dq, columns_descriptor(ds_now, 16 * j, 0), columns_descriptor(k_now, 16 * j, 0),
                            j > 0);
        wgmma_commit();
        wgmma_fence();
        #pragma unroll
        for (int j = 0; j < BM / 16; j++)  // dk += ds^T q
            wgmma<columns>(dk, ds_rounded[j], columns_descriptor(q_now, 16 * j, abreast), true);
        wgmma_commit();

        // dq leaves while the tensor cores compute dk
        wgmma_wait<1>(dv, dq);
        if (lane == 0 && tile == own.tiles - 1) mbarrier_arrive(&in.at.keys_free);
        char* free = in.ds + (done + 1) % 2 * Tiles::ds_bytes + in_block * 128;  // where the next ds will be
        send_dq<HS>(dq, in, own, group, tile, done, free, dqkv, a, scale);

        wgmma_wait<0>(dk);
        // lane 0 arrives for its warp, whose reads of the stage's terms barrier 1 has ordered before
        if (lane == 0) mbarrier_arrive(&in.at.free[stage]);
    }

    char* free = in.ds + done % 2 * Tiles::ds_bytes + in_block * 128;
    write_keys<HS>(dk, dv, free, in, own, dqkv, scratch, a, scale);
}

// a consumer warpgroup. Both take the same blocks, even if a wait has expired: one thread reads the number
template <int HS>
__device__ inline void attend_blocks(const BackwardShared& in, bf16* dqkv, const FlashScratch& scratch,
                                     const AttentionShape& a, float scale) {
    for (int n = 0, done = 0;; n++) {
        mbarrier_wait(&in.at.keys_full, n % 2);
        if (threadIdx.x == 128) in.number[1] = in.number[0];
        named_barrier<256>(1);  // and the previous block's column sums have been read
        int number = in.number[1];
        if (number < 0) return;
        KeyBlock<HS> own(number, a.T, a.NH);
        attend_backward(in, own, done, dqkv, scratch, a, scale);
    }
}

template <int HS>
__global__ void __launch_bounds__(HopperBackwardTiles<HS>::threads, 1)
flash_backward_hopper_kernel(const __grid_constant__ TensorMap keys_map,
                             const __grid_constant__ TensorMap queries_map,
                             const __grid_constant__ TensorMap dout_map, bf16* dqkv, FlashScratch scratch,
                             AttentionShape a, float scale) {
    if (!has_wgmma) return;  // also compiled for other GPUs, but never launched there
    using Tiles = HopperBackwardTiles<HS>;
    constexpr int BM = Tiles::queries, stages = Tiles::stages;
    DYNAMIC_SHARED(char, shared);
    SHARED(HopperBackwardBarriers, barriers, 1);
    SHARED(float, query_terms, stages * 2 * BM);  // of a stage: lse (base 2), then delta of the queries
    SHARED(int, number, 2);
    HopperBackwardBarriers& at = barriers[0];
    char* k = shared + (1024 - shared_address(shared) % 1024) % 1024;
    char* q = k + 2 * Tiles::all_keys;  // behind k and v: stages of q and dout
    char *ds = q + stages * 2 * Tiles::all_queries, *dq = ds + 2 * Tiles::ds_bytes;

    if (threadIdx.x == 0) {
        number[0] = -1;
        mbarrier_init(&at.keys_full, 1);
        mbarrier_init(&at.keys_free, 10);  // the consumers' warps, and the threads that add their dq
        for (int i = 0; i < 2; i++) {
            mbarrier_init(&at.full[i], 33);      // TMA's thread, and its warp, which copies query_terms
            mbarrier_init(&at.free[i], 8);
            mbarrier_init(&at.dq_full[i], 128);  // a warpgroup
            mbarrier_init(&at.dq_ready[i], 1);   // the thread that adds its dq
        }
        mbarrier_fence_init();
    }
    __syncthreads();

    BackwardShared in = {k, q, ds, dq, query_terms, number, at};
    if (threadIdx.x < 128) {  // warp 0 loads, a thread of warps 1 and 2 each adds to dq
        fewer_registers<24>();
        int warp = threadIdx.x / 32;
        if (warp == 0) load_backward_tiles<HS>(in, keys_map, queries_map, dout_map, scratch, a);
        else if (warp < 3 && threadIdx.x % 32 == 0) add_dq_in_turn<HS>(in, scratch, a, warp - 1);
        return;
    }
    more_registers<240>();
    attend_blocks<HS>(in, dqkv, scratch, a, scale);
}

// ctas: how many share the blocks, at most; one fits an SM
template <int HS>
void flash_backward_hopper(bf16* dqkv, const FlashScratch& scratch, const bf16* dout, const bf16* qkv,
                           AttentionShape a, Stream s, int ctas = multiprocessors()) {
    using Tiles = HopperBackwardTiles<HS>;
    TensorMap keys = tiles_of<HS>(qkv, 3, Tiles::keys, a), queries = tiles_of<HS>(qkv, 3, Tiles::queries, a),
              douts = tiles_of<HS>(dout, 1, Tiles::queries, a);
    allow_shared(flash_backward_hopper_kernel<HS>, Tiles::bytes);

    ctas = std::min(ctas, ceil_div(a.T, Tiles::keys) * a.B * a.NH);
    LAUNCH(flash_backward_hopper_kernel<HS>, ctas, Tiles::threads, Tiles::bytes, s, keys, queries, douts,
           dqkv, scratch, a, (float)a.scale());
}

}  // namespace gpu
#endif
