// flash_attention.cuh   causal self-attention without a (T, T) tensor (FlashAttention-2, arXiv 2307.08691)
//   o = softmax(q k^T / sqrt(HS)) v over the keys up to the query's own position, in tiles that stay on chip;
//   lse = log-sum-exp of a query's scores, from which backward recomputes each tile
//   qkv, dqkv (B, T, NH, 3, HS)   o, dout (B, T, NH, HS)   lse (B, NH, T) real
//   kept:  lse (the block keeps qkv and o)
//   backward: sets dqkv; sets qkv's bias gradient, its column sums, or adds to it; scratch: query_terms
//             (B, NH, T, 2) real, dq (flash_dq()) real, turns (flash_turns()) int, dqkv_sums
//             (flash_dqkv_sums()) real: see ../attention.cuh
//             p = exp(q k^T / sqrt(HS) - lse)   dv = p^T dout   dp = dout v^T   delta = sum(dout * o)
//             ds = p * (dp - delta)   dq = ds k / sqrt(HS)   dk = ds^T q / sqrt(HS)
//   communicates: nothing    cost: 2*B*NH*T*T*HS flops forward, 5*B*NH*T*T*HS backward: half of the scores
//   gpu: bf16, HS 64, 80, 96, 128 or 160, any T; mma.sync, ldmatrix and cp.async (sm_80 and later). With TMA
//   and wgmma (sm_90a): flash_attention_hopper.cuh, flash_backward_hopper.cuh. flash_dispatch.cuh defines
//   FlashForward::gpu and FlashBackward::gpu, which call those or flash_forward and flash_backward below
#pragma once
#include "../attention.cuh"
#include "../base/hardware.h"
#include "mma.h"
#include "turns.h"

// ---- ref -------------------------------------------------------------------------------------------------

#if REF_HERE
namespace ref {

// rows [t0, t0 + rows) of a head: their scaled scores over `keys` keys; those beyond the diagonal are invalid
inline void flash_scores(real* p, const floatX* q, const floatX* k, int t0, int rows, int keys,
                         AttentionShape a, Stream s) {
    gemm<real>({.out = p, .a = q + t0 * a.ld_qkv(), .b = k, .m = rows, .n = keys, .k = a.HS,
                .transpose_b = true, .alpha = a.scale(), .lda = a.ld_qkv(), .ldb = a.ld_qkv(),
                .ldc = keys}, s);
}

}  // namespace ref

void FlashForward::ref(Stream s) const {
    #pragma omp parallel for collapse(2)
    for (int b = 0; b < a.B; b++)
        for (int h = 0; h < a.NH; h++) {
            const floatX* q = qkv + b * a.T * a.ld_qkv() + 3L * h * a.HS;
            floatX* ob = o + b * a.T * a.ld_o() + (long)h * a.HS;
            std::vector<real> p((size_t)ref::attention_rows * a.T);
            std::vector<floatX> rounded(p.size());

            for (int t0 = 0; t0 < a.T; t0 += ref::attention_rows) {
                int rows = std::min(ref::attention_rows, a.T - t0), keys = t0 + rows;
                ref::flash_scores(p.data(), q, q + a.HS, t0, rows, keys, a, s);
                for (int t = 0; t < rows; t++)
                    lse[((long)b * a.NH + h) * a.T + t0 + t] =
                        ref::softmax_row(rounded.data() + (long)t * keys, p.data() + (long)t * keys,
                                         t0 + t + 1, keys);
                ref::gemm<floatX>({.out = ob + t0 * a.ld_o(), .a = rounded.data(), .b = q + 2 * a.HS,
                                   .m = rows, .n = a.HS, .k = keys, .lda = keys, .ldb = a.ld_qkv(),
                                   .ldc = a.ld_o()}, s);
            }
        }
}

void FlashBackward::ref(Stream s) const {
    #pragma omp parallel for collapse(2)
    for (int b = 0; b < a.B; b++)
        for (int h = 0; h < a.NH; h++) {
            long at = b * a.T * a.ld_qkv() + 3L * h * a.HS, out = b * a.T * a.ld_o() + (long)h * a.HS;
            const floatX *q = qkv + at, *k = q + a.HS, *v = k + a.HS;
            std::vector<real> p((size_t)ref::attention_rows * a.T), dp(p.size()), dk((size_t)a.T * a.HS, 0),
                dv(dk);
            std::vector<floatX> pX(p.size()), dsX(p.size());

            for (int t0 = 0; t0 < a.T; t0 += ref::attention_rows) {
                int rows = std::min(ref::attention_rows, a.T - t0), keys = t0 + rows;
                const floatX* d = dout + out + t0 * a.ld_o();
                ref::flash_scores(p.data(), q, k, t0, rows, keys, a, s);
                ref::gemm<real>({.out = dp.data(), .a = d, .b = v, .m = rows, .n = keys, .k = a.HS,
                                 .transpose_b = true, .lda = a.ld_o(), .ldb = a.ld_qkv(), .ldc = keys}, s);

                // ds = p (dp - delta), delta the sum over c of dout o
                for (int t = 0; t < rows; t++) {
                    real delta = 0, log_sum = lse[((long)b * a.NH + h) * a.T + t0 + t];
                    for (int c = 0; c < a.HS; c++)
                        delta += real(d[t * a.ld_o() + c]) * real(o[out + (t0 + t) * a.ld_o() + c]);
                    long row = (long)t * keys, seen = t0 + t + 1;
                    floatX *p_row = pX.data() + row, *ds_row = dsX.data() + row;
                    #pragma omp simd
                    for (long j = 0; j < seen; j++) {
                        real x = vector_exp(p[row + j] - log_sum);
                        p_row[j] = floatX(x);
                        ds_row[j] = floatX(x * (dp[row + j] - delta));
                    }
                    std::fill(p_row + seen, p_row + keys, floatX(0));
                    std::fill(ds_row + seen, ds_row + keys, floatX(0));
                }

                ref::gemm<real>({.out = dv.data(), .a = pX.data(), .b = d, .m = keys, .n = a.HS, .k = rows,
                                 .transpose_a = true, .beta = 1, .lda = keys, .ldb = a.ld_o(),
                                 .ldc = a.HS}, s);
                ref::gemm<real>({.out = dk.data(), .a = dsX.data(), .b = q + t0 * a.ld_qkv(), .m = keys,
                                 .n = a.HS, .k = rows, .transpose_a = true, .alpha = a.scale(), .beta = 1,
                                 .lda = keys, .ldb = a.ld_qkv(), .ldc = a.HS}, s);
                ref::gemm<floatX>({.out = dqkv + at + t0 * a.ld_qkv(), .a = dsX.data(), .b = k, .m = rows,
                                   .n = a.HS, .k = keys, .alpha = a.scale(), .lda = keys, .ldb = a.ld_qkv(),
                                   .ldc = a.ld_qkv()}, s);
            }

            for (int t = 0; t < a.T; t++)
                for (int c = 0; c < a.HS; c++) {
                    dqkv[at + t * a.ld_qkv() + a.HS + c] = floatX(dk[(long)t * a.HS + c]);
                    dqkv[at + t * a.ld_qkv() + 2 * a.HS + c] = floatX(dv[(long)t * a.HS + c]);
                }
        }
    if (db) ref::column_sum(db, dqkv, column_scratch, (int)a.rows(), (int)a.ld_qkv(), accumulate, s);
}
#endif

#if KERNELS_HERE
namespace gpu {

// ---- forward: a block has BM queries, a warp 16 M of them; keys come BN at a time, the last first ---------

template <int M, int N>
__device__ inline void online_softmax(float (&s)[M][N][4], float (&largest)[M][2], float (&sum)[M][2],
                                      float (&shrink)[M][2], float scale) {
    for (int m = 0; m < M; m++)
        for (int half = 0; half < 2; half++) {  // this lane's rows g and g + 8
            float most = largest[m][half];
            for (int n = 0; n < N; n++)
                most = fmaxf(most, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]) * scale);
            for (int lanes = 1; lanes < 4; lanes *= 2)
                most = fmaxf(most, __shfl_xor_sync(all_lanes, most, lanes));

            float base = most == -INFINITY ? 0 : most, part = 0;  // a row may have no key in this tile
            shrink[m][half] = exp2_of(largest[m][half] - base);
            for (int n = 0; n < N; n++)
                for (int i = 2 * half; i < 2 * half + 2; i++)
                    part += s[m][n][i] = exp2_of(s[m][n][i] * scale - base);
            sum[m][half] = sum[m][half] * shrink[m][half] + part;  // of this lane's columns
            largest[m][half] = most;
        }
}

// for this lane's rows g and g + 8 of each 16: the output so far, to be divided by sum at the end
template <int HS, int M>
struct AttendedRows {
    float out[M][HS / 8][4] = {}, largest[M][2], sum[M][2] = {};
};

// A warp's 16 M queries, whose tile has been requested, attend to `count` tiles of BN keys; qkv: the head's.
// load_rows(to, from, i) loads the rows of tile i; mask(s, i) sets the masked ones of its scores to -infinity
template <int BN, int HS, int M, class LoadRows, class Mask>
__device__ inline void attend_rows(AttendedRows<HS, M>& all, const bf16* q, bf16* k, const bf16* qkv,
                                   int count, float scale_log2, LoadRows load_rows, Mask mask) {
    constexpr int stride = HS + 8;
    bf16* v = k + BN * stride;
    int warp = threadIdx.x / 32;
    float shrink[M][2];
    for (int m = 0; m < M; m++) all.largest[m][0] = all.largest[m][1] = -INFINITY;

    load_rows(k, qkv + HS, 0);
    copy_async_commit();
    for (int i = 0; i < count; i++) {
        copy_async_wait<0>();
        __syncthreads();  // these keys have arrived, and all warps are done with the previous values
        load_rows(v, qkv + 2 * HS, i);
        copy_async_commit();

        float s[M][BN / 8][4] = {};  // = q k^T
        for (int x = 0; x < HS; x += 16) {
            uint32_t qa[M][4], kb[4];
            for (int m = 0; m < M; m++) load_a(qa[m], q, stride, warp * 16 * M + m * 16, x);
            for (int n = 0; n < BN; n += 16) {
                load_b_rows(kb, k, stride, n, x);
                for (int m = 0; m < M; m++) mma_pair(s[m][n / 8], s[m][n / 8 + 1], qa[m], kb);
            }
        }

        copy_async_wait<0>();
        __syncthreads();  // the values have arrived, and all warps are done with the keys
        if (i + 1 < count) load_rows(k, qkv + HS, i + 1);
        copy_async_commit();

        mask(s, i);
        online_softmax(s, all.largest, all.sum, shrink, scale_log2);
        for (int m = 0; m < M; m++)
            for (int n = 0; n < HS / 8; n++)
                for (int j = 0; j < 4; j++) all.out[m][n][j] *= shrink[m][j / 2];
        for (int x = 0; x < BN; x += 16) {  // out += p v
            uint32_t pa[M][4], vb[4];
            for (int m = 0; m < M; m++) as_a(pa[m], s[m][x / 8], s[m][x / 8 + 1]);
            for (int n = 0; n < HS; n += 16) {
                load_b_columns(vb, v, stride, x, n);
                for (int m = 0; m < M; m++) mma_pair(all.out[m][n / 8], all.out[m][n / 8 + 1], pa[m], vb);
            }
        }
    }
}

// a warp's rows from `own` on, if below `rows`; o (rows `stride` apart), lse (or nullptr): of the head
template <int HS, int M>
__device__ inline void write_attended(bf16* o, real* lse, const AttendedRows<HS, M>& all, int own, int rows,
                                      long stride) {
    int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4 * 2;
    for (int m = 0; m < M; m++)
        for (int half = 0; half < 2; half++) {
            int t = own + m * 16 + g + half * 8;
            float sum = all.sum[m][half];
            for (int lanes = 1; lanes < 4; lanes *= 2) sum += __shfl_xor_sync(all_lanes, sum, lanes);
            if (t >= rows) continue;
            float inverse = 1 / sum;
            for (int n = 0; n < HS / 8; n++)
                *(uint32_t*)(o + t * stride + n * 8 + c) =
                    pack_bf16(all.out[m][n][2 * half] * inverse, all.out[m][n][2 * half + 1] * inverse);
            if (lse && c == 0) lse[t] = all.largest[m][half] / log2_e + logf(sum);
        }
}

// blocks (of 4 warps) per SM to compile for, which limits registers
constexpr int forward_blocks(int HS) { return HS == 128 ? 4 : 3; }
constexpr int backward_blocks(int HS) { return HS == 64 && is_hopper ? 3 : 2; }  // others would spill with 3

template <int HS, int M, int BN, int warps>
__global__ void __launch_bounds__(warps * 32, forward_blocks(HS))
flash_forward_kernel(bf16* o, real* lse, const bf16* qkv, AttentionShape a, float scale_log2) {
    constexpr int BM = 16 * M * warps;
    DYNAMIC_SHARED(bf16, q);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4 * 2;
    int tiles = (a.T + BM - 1) / BM, head = blockIdx.x / tiles, b = head / a.NH, h = head % a.NH;
    int first = (tiles - 1 - (int)blockIdx.x % tiles) * BM, own = first + warp * 16 * M;  // longest first

    long row = 3L * a.NH * HS, out_row = (long)a.NH * HS;
    const bf16* from = qkv + b * a.T * row + 3L * h * HS;
    int last_row = first + BM - 1 < a.T - 1 ? first + BM - 1 : a.T - 1, last = last_row / BN * BN;

    auto load_rows = [&](bf16* to, const bf16* part, int i) {
        load_tile<BN, HS>(to, part, row, last - i * BN, a.T);
    };
    auto mask = [&](auto& s, int i) {  // on the diagonal: no query sees a later key
        int keys = last - i * BN;
        for (int m = 0; m < M && keys + BN - 1 > own; m++)
            for (int n = 0; n < BN / 8; n++)
                for (int j = 0; j < 4; j++)
                    if (keys + n * 8 + c + j % 2 > own + m * 16 + g + j / 2 * 8) s[m][n][j] = -INFINITY;
    };

    AttendedRows<HS, M> all;
    load_tile<BM, HS>(q, from, row, first, a.T);
    attend_rows<BN>(all, q, q + BM * (HS + 8), from, last / BN + 1, scale_log2, load_rows, mask);
    write_attended(o + b * a.T * out_row + (long)h * HS, lse + (long)head * a.T, all, own, a.T, out_row);
}

// ---- backward --------------------------------------------------------------------------------------------

// out (16, 8 N) += rows r … r + 15 of one tile times the other tile, transposed
template <int HS, int N>
__device__ inline void transposed_scores(float (&out)[N][4], const bf16* left, const bf16* right, int r) {
    [[maybe_unused]] constexpr int times = N > 4 ? 1 : 2;
    #pragma unroll times  // more would spill registers
    for (int x = 0; x < HS; x += 16) {
        uint32_t a[4], b[4];
        load_a(a, left, HS + 8, r, x);
        for (int n = 0; n < N; n += 2) {
            load_b_rows(b, right, HS + 8, n * 8, x);
            mma_pair(out[n], out[n + 1], a, b);
        }
    }
}

// a warp's 16 keys, from `own` on; dqkv: of the head
template <int HS>
__device__ inline void store_dk_dv(bf16* dqkv, const float (&dk)[HS / 8][4], const float (&dv)[HS / 8][4],
                                   int own, const AttentionShape& a, real scale) {
    int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4 * 2;
    for (int n = 0; n < HS / 8; n++)
        for (int half = 0; half < 2; half++) {
            int t = own + g + half * 8;
            if (t >= a.T) continue;
            bf16* row = dqkv + t * 3L * a.NH * HS + n * 8 + c;
            *(uint32_t*)(row + HS) = pack_bf16(dk[n][2 * half] * scale, dk[n][2 * half + 1] * scale);
            *(uint32_t*)(row + 2 * HS) = pack_bf16(dv[n][2 * half], dv[n][2 * half + 1]);
        }
}

// A block has 16 keys per warp and loops over the queries from the diagonal down, BM at a time, prefetching
// the next tile. Scores are transposed, keys by queries, so that a warp's rows of p^T and ds^T are already in
// registers as the A operand of dv and dk. dq is summed in global memory in a fixed order: blocks take turns
// to add to a tile of BM queries, from the block on the diagonal down to the one with the first keys, which
// also rounds. `turns` says whose turn it is. A block's number is a ticket that it draws when it starts, so
// that every block it waits for has started before it.
template <int HS, int BM, int warps>
__global__ void __launch_bounds__(warps * 32, backward_blocks(HS))
flash_backward_kernel(bf16* dqkv, FlashScratch scratch, const bf16* dout, const bf16* qkv, AttentionShape a,
                      real scale) {
    constexpr int BN = 16 * warps, stride = HS + 8, ds_stride = BM + 8, rows = BM / 16, parts = warps / rows;
    constexpr int width = HS / parts;  // columns of dq per warp
    static_assert(warps % rows == 0 && width % 16 == 0 && BM <= warps * 32);
    DYNAMIC_SHARED(bf16, k);
    bf16 *v = k + BN * stride, *ds = v + BN * stride;
    bf16* queries = ds + BN * ds_stride;  // two stages of q and dout
    SHARED(float2, query_terms, 2 * BM);
    SHARED(int, number, 1);

    if (threadIdx.x == 0) number[0] = atomicAdd(scratch.turns, 1);
    __syncthreads();
    int blocks = (a.T + BN - 1) / BN, tiles = (a.T + BM - 1) / BM;
    int head = number[0] / blocks, block = blocks - 1 - number[0] % blocks;
    int b = head / a.NH, h = head % a.NH, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int g = lane / 4, c = lane % 4 * 2, own = block * BN + warp * 16;  // this warp's first key

    long qkv_row = 3L * a.NH * HS, out_row = (long)a.NH * HS, at = b * a.T * qkv_row + 3L * h * HS;
    const bf16 *from = qkv + at, *dfrom = dout + b * a.T * out_row + (long)h * HS;
    const float2* from_terms = (const float2*)scratch.query_terms + (long)head * a.T;
    float dk[HS / 8][4] = {}, dv[HS / 8][4] = {};
    int first_tile = block * BN / BM;

    auto stage = [&](int tile) { return queries + (tile - first_tile) % 2 * 2 * BM * stride; };
    auto terms = [&](int tile) { return query_terms + (tile - first_tile) % 2 * BM; };
    auto load_queries = [&](int tile) {  // beyond the sequence: zeros, which add nothing
        load_tile<BM, HS>(stage(tile), from, qkv_row, tile * BM, a.T);
        load_tile<BM, HS>(stage(tile) + BM * stride, dfrom, out_row, tile * BM, a.T);
        int t = tile * BM + threadIdx.x, last = t < a.T ? t : a.T - 1;
        if (threadIdx.x < BM)
            copy_async<8>(terms(tile) + threadIdx.x, from_terms + last, t < a.T);
    };

    load_tile<BN, HS>(k, from + HS, qkv_row, block * BN, a.T);
    load_tile<BN, HS>(v, from + 2 * HS, qkv_row, block * BN, a.T);
    load_queries(first_tile);
    copy_async_commit();
    copy_async_wait<0>();
    __syncthreads();
    for (int tile = first_tile; tile < tiles; tile++) {
        const bf16 *q = stage(tile), *d = q + BM * stride;
        if (tile + 1 < tiles) load_queries(tile + 1);
        copy_async_commit();

        float p[BM / 8][4] = {}, dp[BM / 8][4] = {};
        transposed_scores<HS>(p, k, q, warp * 16);   // p^T = k q^T
        transposed_scores<HS>(dp, v, d, warp * 16);  // dp^T = v dout^T
        for (int n = 0; n < BM / 8; n++)
            for (int i = 0; i < 4; i++) {
                int column = n * 8 + c + i % 2, query = tile * BM + column, key = own + g + i / 2 * 8;
                float2 term = terms(tile)[column];
                float x = exp2_of(p[n][i] * (scale * log2_e) - term.x);
                p[n][i] = key <= query ? x : 0;
                dp[n][i] = p[n][i] * (dp[n][i] - term.y);  // ds^T
            }

        for (int x = 0; x < BM; x += 16) {  // dv += p^T dout
            uint32_t pa[4], right[4];
            as_a(pa, p[x / 8], p[x / 8 + 1]);
            for (int n = 0; n < HS; n += 16) {
                load_b_columns(right, d, stride, x, n);
                mma_pair(dv[n / 8], dv[n / 8 + 1], pa, right);
            }
        }
        for (int x = 0; x < BM; x += 16) {  // dk += ds^T q
            uint32_t sa[4], right[4];
            as_a(sa, dp[x / 8], dp[x / 8 + 1]);
            for (int n = 0; n < HS; n += 16) {
                load_b_columns(right, q, stride, x, n);
                mma_pair(dk[n / 8], dk[n / 8 + 1], sa, right);
            }
            for (int half = 0; half < 2; half++) {
                bf16* row = ds + (warp * 16 + g + half * 8) * ds_stride + x + c;
                *(uint32_t*)row = sa[half];
                *(uint32_t*)(row + 8) = sa[half + 2];
            }
        }

        int diagonal = (tile * BM + BM - 1) / BN < blocks - 1 ? (tile * BM + BM - 1) / BN : blocks - 1;
        int* turn = scratch.turns + 1 + (long)head * tiles + tile;
        if (threadIdx.x == 0) wait_until(turn, diagonal - block);
        __syncthreads();  // the ds of all keys are written, and it is this block's turn

        // dq continues from the sum of the blocks before
        float dq[width / 8][4] = {};
        int row = warp % rows * 16, column = warp / rows * width, query[2];
        float* sums[2];
        for (int half = 0; half < 2; half++) {
            query[half] = tile * BM + row + g + half * 8;
            sums[half] = scratch.dq + ((long)head * tiles * BM + query[half]) * HS + column + c;
        }
        if (block < diagonal)
            for (int n = 0; n < width / 8; n++)
                for (int half = 0; half < 2; half++) {
                    float2 sum = load_from_l2((const float2*)(sums[half] + n * 8));
                    dq[n][2 * half] = sum.x;
                    dq[n][2 * half + 1] = sum.y;
                }
        for (int x = 0; x < BN; x += 16) {  // dq += ds k
            uint32_t sa[4], kb[4];
            load_a_transposed(sa, ds, ds_stride, row, x);
            for (int n = 0; n < width; n += 16) {
                load_b_columns(kb, k, stride, x, column + n);
                mma_pair(dq[n / 8], dq[n / 8 + 1], sa, kb);
            }
        }

        for (int half = 0; half < 2; half++) {
            bf16* last = dqkv + at + query[half] * qkv_row + column + c;
            if (block > 0)
                for (int n = 0; n < width / 8; n++)
                    store_whole((float2*)(sums[half] + n * 8), {dq[n][2 * half], dq[n][2 * half + 1]});
            else if (query[half] < a.T)
                for (int n = 0; n < width / 8; n++)
                    *(uint32_t*)(last + n * 8) =
                        pack_bf16(dq[n][2 * half] * scale, dq[n][2 * half + 1] * scale);
        }

        copy_async_wait<0>();
        __syncthreads();  // all have added dq and are done with q, dout and ds; the next queries have arrived
        if (threadIdx.x == 0) publish(turn, diagonal - block + 1);
    }

    store_dk_dv<HS>(dqkv + at, dk, dv, own, a, scale);
}

// ---- which tiles for which head size ---------------------------------------------------------------------

template <int HS>
void flash_forward(bf16* o, real* lse, const bf16* qkv, AttentionShape a, Stream s) {
    constexpr int M = HS == 64 ? 2 : 1, BN = 64, warps = 4, BM = 16 * M * warps;
    constexpr size_t bytes = (BM + 2 * BN) * (HS + 8) * sizeof(bf16);
    allow_shared(flash_forward_kernel<HS, M, BN, warps>, bytes);
    LAUNCH((flash_forward_kernel<HS, M, BN, warps>), ceil_div(a.T, BM) * a.B * a.NH, warps * 32, bytes, s,
           o, lse, qkv, a, (float)a.scale() * log2_e);
}

template <int HS, int BM, int BN>
constexpr size_t backward_bytes = (2 * (BN + 2 * BM) * (HS + 8) + BN * (BM + 8)) * sizeof(bf16);

template <int HS, int BM>
void flash_backward_tiles(bf16* dqkv, const FlashScratch& scratch, const bf16* dout, const bf16* qkv,
                          AttentionShape a, Stream s) {
    constexpr int warps = 4, BN = 16 * warps;
    allow_shared(flash_backward_kernel<HS, BM, warps>, backward_bytes<HS, BM, BN>);
    LAUNCH((flash_backward_kernel<HS, BM, warps>), ceil_div(a.T, BN) * a.B * a.NH, warps * 32,
           (backward_bytes<HS, BM, BN>), s, dqkv, scratch, dout, qkv, a, a.scale());
}

template <int HS>
void flash_backward(bf16* dqkv, const FlashScratch& scratch, const bf16* dout, const bf16* qkv,
                    AttentionShape a, Stream s) {
    // 64 queries at a time where a block has room for them, but 32 where that leaves room for a second block
    // (head sizes 96 and 128 on an A100)
    constexpr size_t own = 2048;  // bytes of shared memory beside the tiles
    constexpr size_t large = backward_bytes<HS, 64, 64> + own, small = backward_bytes<HS, 32, 64> + own;
    size_t all = shared_of_multiprocessor();
    if constexpr (HS >= 96)
        if (HS > 128 || large > largest_shared() || (2 * large > all && 2 * small <= all))
            return flash_backward_tiles<HS, 32>(dqkv, scratch, dout, qkv, a, s);
    if constexpr (HS <= 128) flash_backward_tiles<HS, 64>(dqkv, scratch, dout, qkv, a, s);
}

}  // namespace gpu

#endif
