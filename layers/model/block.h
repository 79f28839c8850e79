// block.h   one transformer block, pre-layer-norm, forward and backward under the same numbers
//   mid = x + attention(layernorm(x))      y = mid + mlp(layernorm(mid))
//   x, y, mid (B, T, C)
//   kept:  what BlockActivations lists
//   backward: the gradient d (B, T, C) of the block's output becomes that of its input
//   In generation (Batch.first > 0) one row is computed; the rows before it are in qkv, the key-value cache.
#pragma once
#include "../adamw.cuh"
#include "../attention.cuh"
#include "../base/arena.h"
#include "../base/profile.h"
#include "../cross_entropy.cuh"
#include "../embedding.cuh"
#include "../gelu.cuh"
#include "../layernorm.cuh"
#include "../matmul.cuh"
#include "../residual.cuh"
#include "params.h"

struct Batch {
    int B, T;
    int first = 0;  // position of the first token of each row; > 0: a step of generation, B = T = 1
    int rows() const { return B * T; }
};

struct BlockActivations {
    floatX *x, *ln1, *qkv, *p, *o, *mid, *ln2, *up, *act;
    real *ln1_mean, *ln1_rstd, *ln2_mean, *ln2_rstd;

    void place(Arena& arena, const ModelShape& m, int B) {
        long N = (long)B * m.T, NC = N * m.C;
        x = arena.take<floatX>(NC), ln1 = arena.take<floatX>(NC), qkv = arena.take<floatX>(3 * NC);
        p = arena.take<floatX>((long)B * m.NH * m.T * m.T), o = arena.take<floatX>(NC);
        mid = arena.take<floatX>(NC), ln2 = arena.take<floatX>(NC);
        up = arena.take<floatX>(4 * NC), act = arena.take<floatX>(4 * NC);
        ln1_mean = arena.take<real>(N), ln1_rstd = arena.take<real>(N);
        ln2_mean = arena.take<real>(N), ln2_rstd = arena.take<real>(N);
    }
};

// what no one needs after the call
struct Scratch {
    floatX *branch, *wide, *dp;  // (B, T, C)   (B, T, 4C): gradients of act, up and qkv   (B, NH, T, T)
    floatX* d;                   // (B, T, C): the gradient of the residual stream
    real *sums, *scores;         // column_sum's   attention_step's
    double *squares, *square_parts;  // one for each tensor   square_sum's

    void place(Arena& arena, const ModelShape& m, int B, int tensors, bool training) {
        long NC = (long)B * m.T * m.C;
        branch = arena.take<floatX>(NC);
        scores = arena.take<real>((long)m.NH * m.T);
        if (!training) return;
        wide = arena.take<floatX>(4 * NC), d = arena.take<floatX>(NC);
        dp = arena.take<floatX>((long)B * m.NH * m.T * m.T);
        sums = arena.take<real>(column_sum_scratch(4 * m.C));
        squares = arena.take<double>(tensors), square_parts = arena.take<double>(square_sum_parts);
    }
};

// w[t]: the block's parameters, by BlockTensor
inline void block_forward(floatX* y, const BlockActivations& a, const floatX* const* w,
                          const Scratch& scratch, const ModelShape& m, Batch batch, Stream s) {
    int N = batch.rows(), C = m.C;
    floatX* qkv = a.qkv + (long)batch.first * 3 * C;
    {   // 1. normalise
        Section timed("layer norm", s);
        dev::layernorm_forward(a.ln1, a.ln1_mean, a.ln1_rstd, a.x, w[LN1_W], w[LN1_B], N, C, s);
    }
    {   // 2. queries, keys and values of every head
        Section timed("linears", s);
        dev::matmul_forward(qkv, a.ln1, w[QKV_W], w[QKV_B], N, C, 3 * C, s);
    }
    {   // 3. attention, head by head
        Section timed("attention", s);
        AttentionShape shape = {batch.B, batch.T, m.NH, m.HS()};
        if (batch.first == 0) dev::attention_forward(a.o, a.p, a.qkv, shape, s);
        else dev::attention_step(a.o, scratch.scores, a.qkv, batch.first, shape, s);
    }
    {   // 4. mix the heads, add to the stream
        Section timed("linears", s);
        dev::matmul_forward(scratch.branch, a.o, w[OUT_W], nullptr, N, C, C, s);
    }
    {
        Section timed("residual", s);
        dev::residual_forward(a.mid, a.x, scratch.branch, w[OUT_B], N, C, s);
    }
    {   // 5. normalise
        Section timed("layer norm", s);
        dev::layernorm_forward(a.ln2, a.ln2_mean, a.ln2_rstd, a.mid, w[LN2_W], w[LN2_B], N, C, s);
    }
    {   // 6. up to 4C
        Section timed("linears", s);
        dev::matmul_forward(a.up, a.ln2, w[UP_W], w[UP_B], N, C, 4 * C, s);
    }
    {   // 7. the nonlinearity
        Section timed("gelu", s);
        dev::gelu_forward(a.act, a.up, 4L * N * C, s);
    }
    {   // 8. down to C, add to the stream
        Section timed("linears", s);
        dev::matmul_forward(scratch.branch, a.act, w[DOWN_W], nullptr, N, 4 * C, C, s);
    }
    Section timed("residual", s);
    dev::residual_forward(y, a.mid, scratch.branch, w[DOWN_B], N, C, s);
}

// scratch.d: the gradient of y on entry, of x on return; g[t] (real): gradients of w[t], added to
inline void block_backward(const BlockActivations& a, const floatX* const* w, real* const* g,
                           const Scratch& scratch, const ModelShape& m, Batch batch, Stream s) {
    int N = batch.rows(), C = m.C;
    floatX *d = scratch.d, *wide = scratch.wide, *branch = scratch.branch;
    real* sums = scratch.sums;
    {   // 8. the stream's gradient is also the branch's
        Section timed("linears", s);
        dev::matmul_backward(wide, g[DOWN_W], g[DOWN_B], d, a.act, w[DOWN_W], sums, N, 4 * C, C, s);
    }
    {   // 7.
        Section timed("gelu", s);
        dev::gelu_backward(wide, a.up, 4L * N * C, s);
    }
    {   // 6.
        Section timed("linears", s);
        dev::matmul_backward(branch, g[UP_W], g[UP_B], wide, a.ln2, w[UP_W], sums, N, C, 4 * C, s);
    }
    {   // 5. adds to the stream's gradient
        Section timed("layer norm", s);
        dev::layernorm_backward(d, g[LN2_W], g[LN2_B], branch, a.mid, w[LN2_W], a.ln2_mean, a.ln2_rstd, sums,
                                N, C, s);
    }
    {   // 4.
        Section timed("linears", s);
        dev::matmul_backward(branch, g[OUT_W], g[OUT_B], d, a.o, w[OUT_W], sums, N, C, C, s);
    }
    {   // 3. wide holds the gradient of qkv
        Section timed("attention", s);
        dev::attention_backward(wide, scratch.dp, branch, a.p, a.qkv, {batch.B, batch.T, m.NH, m.HS()}, s);
    }
    {   // 2.
        Section timed("linears", s);
        dev::matmul_backward(branch, g[QKV_W], g[QKV_B], wide, a.ln1, w[QKV_W], sums, N, C, 3 * C, s);
    }
    // 1. adds to the stream's gradient
    Section timed("layer norm", s);
    dev::layernorm_backward(d, g[LN1_W], g[LN1_B], branch, a.x, w[LN1_W], a.ln1_mean, a.ln1_rstd, sums, N, C,
                            s);
}
