// block.h   one transformer block, pre-layer-norm, forward and backward under the same numbers
//   mid = x + attention(layernorm(x))      y = mid + mlp(layernorm(mid))
//   Over t tensor-parallel ranks (Megatron-LM): each has NH_r = NH / t heads and 4 C / t channels of the MLP.
//   The products that lead there (qkv, up) need no talk; those that lead back (out, down) give partial sums,
//   which are reduced, and the bias is added after that, once. With sequence parallelism the rows of the
//   stream are cut over the ranks between the products: reductions become reduce-scatters, and all rows are
//   gathered again before the next product; N_r = N / t, else N_r = N.
//   x, y, mid (N_r, C) with N = B * T rows, those of sequence 0 first
//   kept:  what BlockActivations lists
//   backward: the gradient d (N_r, C) of the block's output becomes that of its input
//   A batch of segments (evaluation on tasks, generation) is computed forward only; qkv is then the key-value
//   cache.
#pragma once
#include "../../comm/comm.h"
#include "../adamw.cuh"
#include "../base/arena.h"
#include "../base/profile.h"
#include "../cross_entropy.cuh"
#include "../embedding.cuh"
#include "../flash_attention.cuh"
#include "../fp8_matmul.cuh"
#include "../layernorm.cuh"
#include "../residual.cuh"
#include "../segment_attention.cuh"
#include "params.h"

// what a batch of N rows consists of where it is no whole sequences; the arrays lie on the device
struct Segments {
    const int* positions;  // (N)
    const int* places;     // (N): of the rows in the cache; nullptr: row n lies at n, and nothing is kept
    const int* wanted;     // (outputs): the rows whose logits are wanted; one may stand there several times
    const Tile* tiles;
    int tile_count, outputs;
};

struct Batch {
    int B, T;
    const Segments* segments = nullptr;  // then B = 1, T = N
    int rows() const { return B * T; }
    int outputs() const { return segments ? segments->outputs : rows(); }  // rows of logits
};

// the tensor-parallel ranks, as a block sees them
struct Ranks {
    comm::Group tp;
    bool sequence = false;  // rows are cut over tp between the products
    int rows(int N) const { return sequence ? N / tp.size : N; }
    bool samples = false;   // text is generated as well, which is never cut
    // rows that a buffer of the stream must hold
    long room(long B, long T) const {
        return !sequence ? B * T : samples ? std::max(B * T / tp.size, T) : B * T / tp.size;
    }
};

// what is not kept for backward, but computed again there
enum class Recompute {
    None,
    // outputs of layer norms and of GELU: cheap, and 6 of the 16 values kept for each of the stream's;
    Light,
            // the same to the last bit, but where a product's epilogue made GELU: then to rounding
    Full,   // all but the block's input
};

struct BlockActivations {
    floatX* x = nullptr;  // placed by who owns the blocks
    floatX *ln1, *qkv, *p = nullptr, *o, *mid, *ln2, *up, *act;
    bool light = false;   // ln1, ln2 and act are of the block at work: backward computes them again
    real *lse = nullptr;  // flash attention keeps this for backward, the other one p
    real *ln1_mean, *ln1_rstd, *ln2_mean, *ln2_rstd;

    // what light recomputation makes again
    void place_light(Arena& arena, const ModelShape& m, const Ranks& ranks, int B) {
        long N_r = ranks.room(B, m.T);
        ln1 = arena.take_x(N_r * m.C);
        ln2 = arena.take_x(N_r * m.C);
        act = arena.take_x((long)B * m.T * 4 * (m.C / ranks.tp.size));
        light = true;
    }
    void place(Arena& arena, const ModelShape& m, const Ranks& ranks, int B, bool training, bool flash) {
        long N = (long)B * m.T, N_r = ranks.room(B, m.T), C_r = m.C / ranks.tp.size;
        if (!light) {
            place_light(arena, m, ranks, B);
            light = false;
        }
        qkv = arena.take_x(N * 3 * C_r);
        if (training && flash) lse = arena.take_real(N * (m.NH / ranks.tp.size));
        else if (training) p = arena.take_x((long)B * m.NH / ranks.tp.size * m.T * m.T);
        o = arena.take_x(N * C_r);
        mid = arena.take_x(N_r * m.C);
        up = arena.take_x(N * 4 * C_r);
        ln1_mean = arena.take_real(N_r);
        ln1_rstd = arena.take_real(N_r);
        ln2_mean = arena.take_real(N_r);
        ln2_rstd = arena.take_real(N_r);
    }
};

// what no one needs after the call
struct Scratch {
    // (N, C) partial sums   (N_r, C) reduced   (N, C) gathered; of one rank: one
    floatX *branch, *part, *full;
    floatX *wide, *dp = nullptr;   // (N, 4 C / t): gradients of act, up and qkv; new qkv   (B, NH_r, T, T)
    FlashScratch flash = {};       // or this
    real* sums;                    // column_sum's, layernorm_backward's
    Fp8Scratch fp8 = {};

    void place(Arena& arena, const ModelShape& m, const Ranks& ranks, int B, bool training,
               bool flash_attention, bool in_fp8) {
        long N = (long)B * m.T, N_r = ranks.room(B, m.T), t = ranks.tp.size;
        branch = arena.take_x(N * m.C);
        part = ranks.sequence ? arena.take_x(N_r * m.C) : branch;
        full = ranks.sequence ? arena.take_x(N * m.C) : nullptr;
        wide = arena.take_x(N * 4 * m.C / t);
        if (!training) return;
        if (in_fp8) {
            long rows = N * std::max<long>(m.C, 4 * m.C / t);
            for (uint8_t** p : {&fp8.x, &fp8.dy, &fp8.dy_t}) *p = arena.take<uint8_t>(rows);
            fp8.w = arena.take<uint8_t>(4L * m.C * m.C / t);
            fp8.scales = arena.take<Fp8Scratch::Scale>(3);
            fp8.parts = arena.take<float>(fp8_parts);
        }
        if (flash_attention) {
            flash.delta = arena.take_real(N * (m.NH / t));
            flash.dq = arena.take_real(N * m.C / t);
            flash.turns = arena.take<int>(flash_turns(B, m.NH / (int)t, m.T));
        } else {
            dp = arena.take_x((long)B * m.NH / t * m.T * m.T);
        }
        sums = arena.take_real(std::max(column_sum_scratch(4 * m.C), layernorm_scratch(m.C)));
    }
};

// this rank's rows -> all rows
inline const floatX* gather_rows(const Ranks& ranks, floatX* full, const floatX* own, int N, int C,
                                 const char* label, Stream s) {
    if (!ranks.sequence) return own;
    comm::all_gather(ranks.tp, full, own, (long)ranks.rows(N) * C, label, s);  // N / t rows -> N rows
    return full;
}

// partial sums over all rows -> whole sums over this rank's rows
inline floatX* reduce_rows(const Ranks& ranks, floatX* own, floatX* partial, int N, int C, const char* label,
                           Stream s) {
    if (ranks.sequence) {
        // N partial -> N / t whole
        comm::reduce_scatter(ranks.tp, own, partial, (long)ranks.rows(N) * C, label, s);
        return own;
    }
    comm::all_reduce(ranks.tp, partial, (long)N * C, comm::Op::Sum, label, s);  // N partial -> N whole
    return partial;
}

// the block's linear layers, in floatX or in fp8; what stands for fp8 is nowhere else
inline void linear_forward(floatX* y, const floatX* x, const floatX* w, const floatX* b,
                           const Scratch& scratch, int N, int C, int OC, Stream s) {
    if (scratch.fp8.x) fp8::matmul_forward(y, x, w, b, scratch.fp8, N, C, OC, s);
    else dev::matmul_forward(y, x, w, b, N, C, OC, s);
}
inline void linear_gelu_forward(floatX* y, floatX* up, const floatX* x, const floatX* w, const floatX* b,
                                const Scratch& scratch, int N, int C, int OC, Stream s) {
    if (!scratch.fp8.x) return dev::matmul_gelu_forward(y, up, x, w, b, N, C, OC, s);
    fp8::matmul_forward(up, x, w, b, scratch.fp8, N, C, OC, s);
    dev::gelu_forward(y, up, (long)N * OC, s);
}
inline void linear_backward(floatX* dx, real* dw, real* db, const floatX* dy, const floatX* x,
                            const floatX* w, const Scratch& scratch, int N, int C, int OC, bool add,
                            Stream s) {
    if (scratch.fp8.x)
        fp8::matmul_backward(dx, dw, db, dy, x, w, scratch.sums, scratch.fp8, N, C, OC, add, s);
    else
        dev::matmul_backward(dx, dw, db, dy, x, w, scratch.sums, N, C, OC, add, s);
}
inline void linear_gelu_backward(floatX* dup, real* db_up, real* dw, const floatX* dy, const floatX* x,
                                 const floatX* up, const floatX* w, const Scratch& scratch, int N, int C,
                                 int OC, bool add, Stream s) {
    if (!scratch.fp8.x)
        return dev::matmul_gelu_backward(dup, db_up, dw, dy, x, up, w, scratch.sums, N, C, OC, add, s);
    linear_backward(dup, dw, nullptr, dy, x, w, scratch, N, C, OC, add, s);
    dev::gelu_backward(dup, db_up, up, scratch.sums, N, C, add, s);
}

// w[t]: this rank's boxes of the block's parameters, by BlockTensor; without y, only what backward reads is
// computed, again
inline void block_forward(floatX* y, const BlockActivations& a, const floatX* const* w,
                          const Scratch& scratch, const ModelShape& m, const Ranks& ranks, Batch batch,
                          Stream s) {
    int N = batch.rows(), N_r = ranks.rows(N), C = m.C, C_r = C / ranks.tp.size, NH_r = m.NH / ranks.tp.size;
    const Segments* segments = batch.segments;
    floatX* qkv = segments && segments->places ? scratch.wide : a.qkv;
    const floatX *rows, *branch;
    {   // 1. normalise
        Section timed("layer norm", s);
        dev::layernorm_forward(a.ln1, a.ln1_mean, a.ln1_rstd, a.x, w[LN1_W], w[LN1_B], N_r, C, s);
    }
    {   // 2. queries, keys and values of this rank's heads
        Section timed("linears", s);
        rows = gather_rows(ranks, scratch.full, a.ln1, N, C, "rows for qkv", s);
        linear_forward(qkv, rows, w[QKV_W], w[QKV_B], scratch, N, C, 3 * C_r, s);
        if (qkv != a.qkv) dev::place_rows(a.qkv, qkv, segments->places, N, 3 * C_r, s);
    }
    {   // 3. attention, head by head
        Section timed("attention", s);
        AttentionShape shape = {batch.B, batch.T, NH_r, m.HS()};
        if (segments) dev::segment_attention(a.o, a.qkv, segments->tiles, segments->tile_count, shape, s);
        else if (a.lse) dev::flash_attention_forward(a.o, a.lse, a.qkv, shape, s);
        else dev::attention_forward(a.o, a.p, a.qkv, shape, s);
    }
    {   // 4. mix the heads, add to the stream
        Section timed("linears", s);
        linear_forward(scratch.branch, a.o, w[OUT_W], nullptr, scratch, N, C_r, C, s);
        branch = reduce_rows(ranks, scratch.part, scratch.branch, N, C, "sum of attention", s);
    }
    {   // …and 5. normalise
        Section timed("layer norm", s);
        dev::residual_layernorm_forward(a.mid, a.ln2, a.ln2_mean, a.ln2_rstd, a.x, branch, w[OUT_B], w[LN2_W],
                                        w[LN2_B], N_r, C, s);
    }
    {   // 6. up to this rank's share of 4C, and 7. the nonlinearity
        Section timed("linears and gelu", s);
        rows = gather_rows(ranks, scratch.full, a.ln2, N, C, "rows for up", s);
        linear_gelu_forward(a.act, a.up, rows, w[UP_W], w[UP_B], scratch, N, C, 4 * C_r, s);
    }
    if (!y) return;
    {   // 8. down to C, add to the stream
        Section timed("linears", s);
        linear_forward(scratch.branch, a.act, w[DOWN_W], nullptr, scratch, N, 4 * C_r, C, s);
        branch = reduce_rows(ranks, scratch.part, scratch.branch, N, C, "sum of mlp", s);
    }
    Section timed("residual", s);
    dev::residual_forward(y, a.mid, branch, w[DOWN_B], N_r, C, s);
}

// d (N_r, C): the gradient of y on entry, of x on return; g[t] (real): gradients of w[t], set or, with `add`,
// added to. With
// sequence parallelism those of tensors that every rank holds whole are of its rows alone: to be summed once
// a step.
inline void block_backward(floatX* d, const BlockActivations& a, const floatX* const* w, real* const* g,
                           const Scratch& scratch, const ModelShape& m, const Ranks& ranks, Batch batch,
                           bool add, Stream s) {
    int N = batch.rows(), N_r = ranks.rows(N), C = m.C, C_r = C / ranks.tp.size, NH_r = m.NH / ranks.tp.size;
    floatX *wide = scratch.wide, *branch = scratch.branch;
    const floatX* rows;
    real* sums = scratch.sums;
    auto normalise_again = [&](floatX* y, real* mean, real* rstd, const floatX* x, BlockTensor weight) {
        Section timed("layer norm", s);
        if (a.light) dev::layernorm_forward(y, mean, rstd, x, w[weight], w[weight + 1], N_r, C, s);
    };
    if (a.light) {
        Section timed("gelu", s);
        dev::gelu_forward(a.act, a.up, 4L * N * C_r, s);
    }
    {   // 8. the stream's gradient is also the branch's; and 7.: wide holds the gradient of up
        Section timed("linears and gelu", s);
        dev::column_sum(g[DOWN_B], d, sums, N_r, C, add, s);
        rows = gather_rows(ranks, scratch.full, d, N, C, "gradient rows for down", s);
        linear_gelu_backward(wide, g[UP_B], g[DOWN_W], rows, a.act, a.up, w[DOWN_W], scratch, N, 4 * C_r, C,
                             add, s);
    }
    normalise_again(a.ln2, a.ln2_mean, a.ln2_rstd, a.mid, LN2_W);
    {   // 6.
        Section timed("linears", s);
        rows = gather_rows(ranks, scratch.full, a.ln2, N, C, "rows for up, again", s);
        linear_backward(branch, g[UP_W], nullptr, wide, rows, w[UP_W], scratch, N, C, 4 * C_r, add, s);
        branch = reduce_rows(ranks, scratch.part, branch, N, C, "sum of up's gradient", s);
    }
    {   // 5. adds to the stream's gradient
        Section timed("layer norm", s);
        dev::layernorm_backward(d, g[LN2_W], g[LN2_B], branch, a.mid, w[LN2_W], a.ln2_mean, a.ln2_rstd, sums,
                                N_r, C, add, s);
    }
    {   // 4.
        Section timed("linears", s);
        branch = scratch.branch;
        dev::column_sum(g[OUT_B], d, sums, N_r, C, add, s);
        rows = gather_rows(ranks, scratch.full, d, N, C, "gradient rows for out", s);
        linear_backward(branch, g[OUT_W], nullptr, rows, a.o, w[OUT_W], scratch, N, C_r, C, add, s);
    }
    {   // 3. wide holds the gradient of qkv
        Section timed("attention", s);
        AttentionShape shape = {batch.B, batch.T, NH_r, m.HS()};
        if (a.lse) dev::flash_attention_backward(wide, scratch.flash, branch, a.o, a.lse, a.qkv, shape, s);
        else dev::attention_backward(wide, scratch.dp, branch, a.p, a.qkv, shape, s);
    }
    normalise_again(a.ln1, a.ln1_mean, a.ln1_rstd, a.x, LN1_W);
    {   // 2.
        Section timed("linears", s);
        rows = gather_rows(ranks, scratch.full, a.ln1, N, C, "rows for qkv, again", s);
        linear_backward(branch, g[QKV_W], g[QKV_B], wide, rows, w[QKV_W], scratch, N, C, 3 * C_r, add, s);
        branch = reduce_rows(ranks, scratch.part, branch, N, C, "sum of qkv's gradient", s);
    }
    // 1. adds to the stream's gradient
    Section timed("layer norm", s);
    dev::layernorm_backward(d, g[LN1_W], g[LN1_B], branch, a.x, w[LN1_W], a.ln1_mean, a.ln1_rstd, sums, N_r,
                            C, add, s);
}
