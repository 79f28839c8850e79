// attention.cuh   causal self-attention with the scores in memory: the readable version and the reference
//   p = softmax(q k^T / sqrt(HS)) over the keys up to the query's own position;  o = p v
//   qkv, dqkv (B, T, NH, 3, HS): q, k and v of a head are adjacent
//   o, dout (B, T, NH, HS)   p, dp (B, NH, T, T)
//   kept:  p (the block keeps qkv)
//   backward: dqkv is set, and its column sums are qkv's bias gradient; dp is scratch
//             dv = p^T dout   dp = dout v^T   ds = p * (dp - sum(p * dp)) / sqrt(HS)
//             dq = ds k   dk = ds^T q
//   communicates: nothing    cost: 4*B*NH*T*T*HS flops forward, 8*B*NH*T*T*HS backward: over all scores,
//                                though p is 0 above the diagonal
//   FlashForward, FlashBackward: the same without (T, T) tensors (fast/flash_dispatch.cuh). All kernels are
//   compared with this file (by the chapters of ./test_gpt in brackets): flash_attention.cuh, a reference and
//   sm_80's kernels [gradients kernels]; flash_attention_hopper.cuh and flash_backward_hopper.cuh, sm_90a's
//   [hopper]; packed_attention.cuh, for packed batches [packed scores]
#pragma once
#include <algorithm>
#include "base/gemm.h"
#include "column_sums.cuh"

struct AttentionShape {
    int B, T, NH, HS;  // NH: heads of this rank, the model's from NH * rank on
    long rows() const { return (long)B * T; }
    long heads() const { return (long)B * NH; }
    // leading dimensions: elements of qkv, or of o, from one position to the next
    long ld_qkv() const { return 3L * NH * HS; }
    long ld_o() const { return (long)NH * HS; }
    real scale() const { return 1 / std::sqrt(real(HS)); }
};

// ---- the operations --------------------------------------------------------------------------------------

inline TensorAccess qkv_of(const floatX* qkv, const AttentionShape& a) {
    return reads("qkv", qkv, (long)a.B * a.T, a.ld_qkv());
}

struct AttentionForward {
    floatX *o, *p;
    const floatX* qkv;
    AttentionShape a;

    static constexpr const char* name = "attention_forward";
    std::vector<TensorAccess> tensors() const {
        return {qkv_of(qkv, a), writes("p", p, a.heads() * a.T, a.T), writes("o", o, a.rows(), a.ld_o())};
    }
    std::vector<Work> works() const {
        return {scores_product({a.T, a.T, a.HS, a.heads()}), moves(2.0 * (double)a.heads() * a.T * a.T),
                scores_product({a.T, a.HS, a.T, a.heads()})};
    }
    void ref(Stream) const;
    void gpu(Stream) const;
};

// db (3 * NH * HS): the gradient of qkv's bias, dqkv's column sums; nullptr: not computed
struct AttentionBackward {
    floatX *dqkv, *dp;
    const floatX *dout, *p, *qkv;
    AttentionShape a;
    real *db = nullptr, *column_scratch = nullptr;  // column_sum_scratch(3 * NH * HS) values
    bool accumulate = false;

    static constexpr const char* name = "attention_backward";
    std::vector<TensorAccess> tensors() const {
        return {qkv_of(qkv, a), reads("p", p, a.heads() * a.T, a.T), reads("dout", dout, a.rows(), a.ld_o()),
                writes("dp", dp, a.heads() * a.T, a.T), writes("dqkv", dqkv, a.rows(), a.ld_qkv()),
                sums_to("db", db, accumulate, a.ld_qkv())};
    }
    std::vector<Work> works() const {
        Work values = scores_product({a.T, a.HS, a.T, a.heads()});
        return {values, scores_product({a.T, a.T, a.HS, a.heads()}),
                moves(3.0 * (double)a.heads() * a.T * a.T), values, values,
                db ? moves((double)a.rows() * (double)a.ld_qkv()) : Work{}};
    }
    void ref(Stream) const;
    void gpu(Stream) const;
};

// ---- flash attention: its memory, and its operations -----------------------------------------------------

struct FlashScratch {
    real* query_terms;  // (B, NH, T) pairs: lse in base 2, and delta (FlashBackward)
    // partial sums of dq. Blocks of keys take turns, from the diagonal to keys 0: the first stores, others
    // add; the last, of keys 0, adds its part in registers and writes dq to dqkv. So dq is not cleared
    real* dq;
    // cleared first. [0]: blocks that have been taken, which numbers them; from [1] on: whose turn to add
    // to dq, for each tile of queries, or on sm_90a for each half of a tile
    int* turns;
    // sm_90a: (B, ceil(T / 128), NH, 3, HS): row i has the sums of dk and dv over keys 128 i to 128 i + 127,
    // row 0 also those of dq, over all queries; dq's are 0 in the others. Every row is set: not cleared
    real* dqkv_sums;
};
inline long flash_query_terms(int B, int NH, int T) { return 2L * B * NH * T; }
// sm_90a's kernels have a head's values in tiles of 64 columns: 80 or 96 take two, as 128 do
constexpr int flash_columns(int HS) { return HS <= 128 ? (HS + 63) / 64 * 64 : HS; }
// whole tiles of queries and columns: what lies beyond the tensor receives only zeros, and is not used
inline long flash_dq(int B, int NH, int T, int HS) {
    return (long)B * NH * ceil_div(T, 128) * 128 * flash_columns(HS);
}
// for tiles of 32 queries, the smallest that a kernel has
inline long flash_turns(int B, int NH, int T) { return 1 + (long)B * NH * ceil_div(T, 128) * 4; }
inline long flash_dqkv_sums(const AttentionShape& a) { return (long)a.B * ceil_div(a.T, 128) * a.ld_qkv(); }

// whether the kernels support this head size
constexpr bool has_flash_kernels(int HS) {
    return HS == 64 || HS == 80 || HS == 96 || HS == 128 || HS == 160;
}

// `products` matmuls over the causal half of the scores, in tiles that never leave the chip
inline Work flash_work(const AttentionShape& a, int products, double x, double reals = 0) {
    GemmShape half = {a.T, (a.T + 1) / 2, a.HS, a.heads() * products};
    return {.kind = Work::Attention, .gemm = half, .x = x, .reals = reals};
}

// o as in AttentionForward; lse: for each query, the log of the sum of exp of its scores
struct FlashForward {
    floatX* o;
    real* lse;
    const floatX* qkv;
    AttentionShape a;

    static constexpr const char* name = "flash_attention_forward";
    std::vector<TensorAccess> tensors() const {
        return {qkv_of(qkv, a), writes("o", o, a.rows(), a.ld_o()), writes("lse", lse, a.heads(), a.T)};
    }
    std::vector<Work> works() const { return {flash_work(a, 2, 4.0 * (double)a.rows() * (double)a.ld_o())}; }
    void ref(Stream) const;
    void gpu(Stream) const;
    void compute_with(bool hopper, Stream) const;  // sm_90a's kernels, or sm_80's
};

// computes p = exp(score - lse) again; delta = sum(dout * o), which is sum(p * dp). db: the column
// sums of dqkv, by sm_90a's kernel before it is rounded
struct FlashBackward {
    floatX* dqkv;
    FlashScratch scratch;
    const floatX *dout, *o;
    const real* lse;
    const floatX* qkv;
    AttentionShape a;
    real *db = nullptr, *column_scratch = nullptr;  // column_sum_scratch(3 * NH * HS) values
    bool accumulate = false;

    static constexpr const char* name = "flash_attention_backward";
    std::vector<TensorAccess> tensors() const {
        return {qkv_of(qkv, a), reads("o", o, a.rows(), a.ld_o()), reads("dout", dout, a.rows(), a.ld_o()),
                reads("lse", lse, a.heads(), a.T), writes("dqkv", dqkv, a.rows(), a.ld_qkv()),
                sums_to("db", db, accumulate, a.ld_qkv())};
    }
    // bytes: of o and dout for delta; q, k, v, dout; dqkv; dq, updated in fp32 for every 64 keys (on sm_90a:
    // 128), over the causal half
    std::vector<Work> works() const {
        double values = (double)a.rows() * (double)a.ld_o();
        return {flash_work(a, 5, 9 * values, values * a.T / 64)};
    }
    void ref(Stream) const;
    void gpu(Stream) const;
    void compute_with(bool hopper, Stream) const;  // sm_90a's kernels, or sm_80's
};

// ---- ref -------------------------------------------------------------------------------------------------

#if REF_HERE
namespace ref {

constexpr int attention_rows = 64;  // queries at a time, with the keys up to the last of them

// p (n) = softmax of the first `seen` of n scores, 0 beyond them; the scores are overwritten. Returns their
// log-sum-exp
inline real softmax_row(floatX* p, real* scores, int seen, int n) {
    real largest = *std::max_element(scores, scores + seen), sum = 0;
    #pragma omp simd reduction(+ : sum)
    for (int j = 0; j < seen; j++) sum += scores[j] = vector_exp(scores[j] - largest);
    real inverse = 1 / sum;
    #pragma omp simd
    for (int j = 0; j < seen; j++) p[j] = floatX(scores[j] * inverse);
    std::fill(p + seen, p + n, floatX(0));
    return largest + std::log(sum);
}

}  // namespace ref

void AttentionForward::ref(Stream s) const {
    #pragma omp parallel for collapse(2)
    for (int b = 0; b < a.B; b++)
        for (int h = 0; h < a.NH; h++) {
            const floatX* q = qkv + b * a.T * a.ld_qkv() + 3L * h * a.HS;
            const floatX *k = q + a.HS, *v = k + a.HS;
            floatX* ob = o + b * a.T * a.ld_o() + (long)h * a.HS;
            floatX* pb = p + ((long)b * a.NH + h) * a.T * a.T;
            std::vector<real> scores(a.T);  // of a query

            for (int t0 = 0; t0 < a.T; t0 += ref::attention_rows) {
                int rows = std::min(ref::attention_rows, a.T - t0), keys = t0 + rows;
                // scores = q k^T / sqrt(HS), then p
                ref::gemm<floatX>({.out = pb + (long)t0 * a.T, .a = q + t0 * a.ld_qkv(), .b = k, .m = rows,
                                   .n = keys, .k = a.HS, .transpose_b = true, .alpha = a.scale(),
                                   .lda = a.ld_qkv(), .ldb = a.ld_qkv(), .ldc = a.T}, s);
                for (int t = t0; t < keys; t++) {
                    floatX* row = pb + (long)t * a.T;
                    std::copy(row, row + t + 1, scores.begin());
                    ref::softmax_row(row, scores.data(), t + 1, a.T);
                }

                // o = p v
                ref::gemm<floatX>({.out = ob + t0 * a.ld_o(), .a = pb + (long)t0 * a.T, .b = v, .m = rows,
                                   .n = a.HS, .k = keys, .lda = a.T, .ldb = a.ld_qkv(), .ldc = a.ld_o()}, s);
            }
        }
}

void AttentionBackward::ref(Stream s) const {
    #pragma omp parallel for collapse(2)
    for (int b = 0; b < a.B; b++)
        for (int h = 0; h < a.NH; h++) {
            long at = b * a.T * a.ld_qkv() + 3L * h * a.HS;
            const floatX *q = qkv + at, *k = q + a.HS, *v = k + a.HS;
            floatX *dq = dqkv + at, *dk = dq + a.HS, *dv = dk + a.HS;
            const floatX* dout_b = dout + b * a.T * a.ld_o() + (long)h * a.HS;
            const floatX* pb = p + ((long)b * a.NH + h) * a.T * a.T;
            floatX* dpb = dp + ((long)b * a.NH + h) * a.T * a.T;

            // from the last rows, which see every key and so set all of dk and dv, to the first, which add
            real beta = 0;
            constexpr int step = ref::attention_rows;
            for (int t0 = (a.T - 1) / step * step; t0 >= 0; t0 -= step, beta = 1) {
                int rows = std::min(step, a.T - t0), keys = t0 + rows;
                const floatX *dt = dout_b + t0 * a.ld_o(), *pt = pb + (long)t0 * a.T;
                floatX* dpt = dpb + (long)t0 * a.T;

                // dv += p^T dout, dp = dout v^T
                ref::gemm<floatX>({.out = dv, .a = pt, .b = dt, .m = keys, .n = a.HS, .k = rows,
                                   .transpose_a = true, .beta = beta, .lda = a.T, .ldb = a.ld_o(),
                                   .ldc = a.ld_qkv()}, s);
                ref::gemm<floatX>({.out = dpt, .a = dt, .b = v, .m = rows, .n = keys, .k = a.HS,
                                   .transpose_b = true, .lda = a.ld_o(), .ldb = a.ld_qkv(), .ldc = a.T}, s);

                // ds, in place of dp
                for (int t = 0; t < rows; t++) {
                    floatX* d = dpt + (long)t * a.T;
                    const floatX* pr = pt + (long)t * a.T;
                    real sum = 0;
                    #pragma omp simd reduction(+ : sum)
                    for (int j = 0; j < keys; j++) sum += real(pr[j]) * real(d[j]);
                    #pragma omp simd
                    for (int j = 0; j < keys; j++)
                        d[j] = floatX(real(pr[j]) * (real(d[j]) - sum) * a.scale());
                }

                // dq = ds k, dk += ds^T q
                ref::gemm<floatX>({.out = dq + t0 * a.ld_qkv(), .a = dpt, .b = k, .m = rows, .n = a.HS,
                                   .k = keys, .lda = a.T, .ldb = a.ld_qkv(), .ldc = a.ld_qkv()}, s);
                ref::gemm<floatX>({.out = dk, .a = dpt, .b = q + t0 * a.ld_qkv(), .m = keys, .n = a.HS,
                                   .k = rows, .transpose_a = true, .beta = beta, .lda = a.T,
                                   .ldb = a.ld_qkv(), .ldc = a.ld_qkv()}, s);
            }
        }
    if (db) ref::column_sum(db, dqkv, column_scratch, (int)a.rows(), (int)a.ld_qkv(), accumulate, s);
}
#endif

#if KERNELS_HERE
namespace gpu {

constexpr int attention_block = 128;

// one warp per row of the scores, in place
__global__ void softmax_forward_kernel(floatX* p, long rows, int T) {
    int lane = threadIdx.x % 32;
    long r = (long)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (r >= rows) return;
    int t = (int)(r % T);
    p += r * T;
    real largest = -INFINITY, sum = 0;
    for (int j = lane; j <= t; j += 32) largest = real(p[j]) > largest ? real(p[j]) : largest;
    largest = warp_max(largest);
    for (int j = lane; j <= t; j += 32) sum += exp(real(p[j]) - largest);
    real inverse = 1 / warp_sum(sum);
    for (int j = lane; j < T; j += 32) p[j] = floatX(j <= t ? exp(real(p[j]) - largest) * inverse : 0);
}

// dp becomes the gradient of the unscaled scores, in place; beyond the diagonal it is 0, because p is
__global__ void softmax_backward_kernel(floatX* dp, const floatX* p, real scale, long rows, int T) {
    int lane = threadIdx.x % 32;
    long r = (long)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (r >= rows) return;
    dp += r * T;
    p += r * T;
    real sum = 0;
    for (int j = lane; j < T; j += 32) sum += real(p[j]) * real(dp[j]);
    sum = warp_sum(sum);
    for (int j = lane; j < T; j += 32) dp[j] = floatX(real(p[j]) * (real(dp[j]) - sum) * scale);
}

}  // namespace gpu

// one batched GEMM over the heads per sequence: no single stride covers both B and NH
void AttentionForward::gpu(Stream s) const {
    long square = (long)a.T * a.T, head = 3L * a.HS;
    // p: first the scores, q k^T / sqrt(HS)
    for (int b = 0; b < a.B; b++) {
        const floatX* q = qkv + b * a.T * a.ld_qkv();
        gpu::gemm<floatX>({.out = p + b * a.NH * square, .a = q, .b = q + a.HS, .m = a.T, .n = a.T, .k = a.HS,
                           .transpose_b = true, .alpha = a.scale(), .lda = a.ld_qkv(), .ldb = a.ld_qkv(),
                           .batch = a.NH, .stride_a = head, .stride_b = head, .stride_out = square}, s);
    }

    long rows = (long)a.B * a.NH * a.T;
    LAUNCH(gpu::softmax_forward_kernel, ceil_div(rows, gpu::attention_block / 32), gpu::attention_block, 0, s,
           p, rows, a.T);

    // o = p v
    for (int b = 0; b < a.B; b++) {
        const floatX* v = qkv + b * a.T * a.ld_qkv() + 2 * a.HS;
        gpu::gemm<floatX>({.out = o + b * a.T * a.ld_o(), .a = p + b * a.NH * square, .b = v, .m = a.T,
                           .n = a.HS, .k = a.T, .ldb = a.ld_qkv(), .ldc = a.ld_o(), .batch = a.NH,
                           .stride_a = square, .stride_b = head, .stride_out = a.HS}, s);
    }
}

void AttentionBackward::gpu(Stream s) const {
    long square = (long)a.T * a.T, head = 3L * a.HS;
    for (int b = 0; b < a.B; b++) {
        long at = b * a.T * a.ld_qkv();
        const floatX* dout_b = dout + b * a.T * a.ld_o();
        const floatX *pb = p + b * a.NH * square, *v = qkv + at + 2 * a.HS;
        // dv = p^T dout, dp = dout v^T
        gpu::gemm<floatX>({.out = dqkv + at + 2 * a.HS, .a = pb, .b = dout_b, .m = a.T, .n = a.HS, .k = a.T,
                           .transpose_a = true, .ldb = a.ld_o(), .ldc = a.ld_qkv(), .batch = a.NH,
                           .stride_a = square, .stride_b = a.HS, .stride_out = head}, s);
        gpu::gemm<floatX>({.out = dp + b * a.NH * square, .a = dout_b, .b = v, .m = a.T, .n = a.T, .k = a.HS,
                           .transpose_b = true, .lda = a.ld_o(), .ldb = a.ld_qkv(), .batch = a.NH,
                           .stride_a = a.HS, .stride_b = head, .stride_out = square}, s);
    }

    long rows = (long)a.B * a.NH * a.T;
    LAUNCH(gpu::softmax_backward_kernel, ceil_div(rows, gpu::attention_block / 32), gpu::attention_block, 0,
           s, dp, p, a.scale(), rows, a.T);

    for (int b = 0; b < a.B; b++) {
        long at = b * a.T * a.ld_qkv();
        const floatX *q = qkv + at, *k = q + a.HS, *ds = dp + b * a.NH * square;
        // dq = ds k, dk = ds^T q
        gpu::gemm<floatX>({.out = dqkv + at, .a = ds, .b = k, .m = a.T, .n = a.HS, .k = a.T,
                           .ldb = a.ld_qkv(), .ldc = a.ld_qkv(), .batch = a.NH, .stride_a = square,
                           .stride_b = head, .stride_out = head}, s);
        gpu::gemm<floatX>({.out = dqkv + at + a.HS, .a = ds, .b = q, .m = a.T, .n = a.HS, .k = a.T,
                           .transpose_a = true, .ldb = a.ld_qkv(), .ldc = a.ld_qkv(), .batch = a.NH,
                           .stride_a = square, .stride_b = head, .stride_out = head}, s);
    }
    if (db) gpu::column_sum(db, dqkv, column_scratch, (int)a.rows(), (int)a.ld_qkv(), accumulate, s);
}
#endif
