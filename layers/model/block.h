// block.h   a transformer block, pre-layer-norm, forward and backward under the same numbers
//   mid = x + attention(layernorm(x))      y = mid + mlp(layernorm(mid))
//   Over t tensor-parallel ranks (Megatron-LM): each has NH_r = NH / t heads and 4 C / t channels of the MLP.
//   The GEMMs into a branch (qkv, up) need no communication; those out of it (out, down) give partial sums,
//   which are reduced, and the bias is added after that, once. comm/grid.h says which rows a rank holds.
//   x, y, mid (N_r, C) with N = B * T rows, those of sequence 0 first
//   kept:  what BlockActivations lists
//   backward: dx (N_r, C), the gradient of y on entry, becomes that of x
//   A packed batch (evaluation, generation) is computed forward only; qkv is then the key-value cache.
#pragma once
#include "activations.h"
#include "params.h"

// 1. normalise: in a chunk's first block, and where backward computes a block again; elsewhere the block
// before has done it, in add_branch()
inline void ln1_forward(const BlockActivations& a, const floatX* const* w, const LayerContext& ctx,
                        BatchShape batch) {
    layernorm_forward(a.ln1, a.ln1_stats, a.x, w[LN1_W], w[LN1_B], ctx.tp.rows(batch.rows()),
                      ctx.shape.C, ctx.stream);
}

// --fp8: the matrices in 8 bits, once a step: what its GEMMs read until the matrices change
inline void round_weights(const floatX* const* w, const LayerContext& ctx) {
    const LinearScratch& linear = ctx.scratch.linear;
    int C = ctx.shape.C, C_r = C / ctx.tp.group.size;
    round_weight(w[QKV_W], linear, C, 3 * C_r, ctx.stream);
    round_weight(w[OUT_W], linear, C_r, C, ctx.stream);
    round_weight(w[UP_W], linear, C, 4 * C_r, ctx.stream);
    round_weight(w[DOWN_W], linear, 4 * C_r, C, ctx.stream);
}

// From a.ln1 to the MLP's branch (N_r, C), without its bias; nullptr where only what backward reads is wanted
// w[tensor]: this rank's shards of the block's parameters, by BlockTensor
inline const floatX* block_forward(const BlockActivations& a, const floatX* const* w, const LayerContext& ctx,
                                   BatchShape batch, bool wants_output) {
    const Scratch& scratch = ctx.scratch;
    Stream s = ctx.stream;
    int N = batch.rows(), N_r = ctx.tp.rows(N), t = ctx.tp.group.size;
    int C = ctx.shape.C, C_r = C / t, NH_r = ctx.shape.NH / t;
    const PackedSegments* packed = batch.segments;
    LinearScratch linear = scratch.linear_of(batch);
    floatX* qkv = packed && packed->cache_slots ? scratch.wide : a.qkv;
    // 2. queries, keys and values of this rank's heads
    const floatX* rows = gather_rows(ctx.tp, scratch.all_rows, a.ln1, N, C, "rows for qkv", s);
    linear_forward(qkv, rows, w[QKV_W], w[QKV_B], linear, N, C, 3 * C_r, s);
    if (qkv != a.qkv) store_cache_rows(a.qkv, qkv, packed->cache_slots, N, 3 * C_r, s);

    // 3. attention, head by head
    AttentionShape heads = {batch.B, batch.T, NH_r, ctx.shape.HS()};
    if (packed) packed_attention(a.o, a.qkv, packed->tiles, packed->tile_count, packed->cache_rows, heads, s);
    else if (a.lse) flash_attention_forward(a.o, a.lse, a.qkv, heads, s);
    else attention_forward(a.o, a.probabilities, a.qkv, heads, s);

    // 4. mix the heads, add to the residual stream, and 5. normalise
    linear_forward(scratch.partial, a.o, w[OUT_W], nullptr, linear, N, C_r, C, s);
    floatX* branch = reduce_rows(ctx.tp, scratch.reduced, scratch.partial, N, C, "sum of attention", s);
    residual_layernorm_forward(a.mid, a.ln2, a.ln2_stats, a.x, branch, w[OUT_B], w[LN2_W], w[LN2_B], N_r, C,
                               s);

    // 6. up to this rank's share of 4C, and 7. the nonlinearity
    rows = gather_rows(ctx.tp, scratch.all_rows, a.ln2, N, C, "rows for up", s);
    linear_gelu_forward(a.act, a.up, rows, w[UP_W], w[UP_B], linear, N, C, 4 * C_r, s);
    if (!wants_output) return nullptr;

    // 8. down to C
    linear_forward(scratch.partial, a.act, w[DOWN_W], nullptr, linear, N, 4 * C_r, C, s);
    return reduce_rows(ctx.tp, scratch.reduced, scratch.partial, N, C, "sum of mlp", s);
}

// …adds the branch to the residual stream: the block's output y; with the next block its 1. as well
inline void add_branch(floatX* y, const BlockActivations& a, const floatX* branch, const floatX* bias,
                       const BlockActivations* next, const floatX* const* next_w, const LayerContext& ctx,
                       BatchShape batch) {
    int N_r = ctx.tp.rows(batch.rows()), C = ctx.shape.C;
    if (!next) return residual_forward(y, a.mid, branch, bias, N_r, C, ctx.stream);
    residual_layernorm_forward(y, next->ln1, next->ln1_stats, a.mid, branch, bias, next_w[LN1_W],
                               next_w[LN1_B], N_r, C, ctx.stream);
}

// g[tensor] (real): gradients of w[tensor], set or, with ctx.accumulate, added to; but for DOWN_B, whose
// gradient is the sum of dx's rows, and is made where dx was made. d_bias: of the bias that was added to x
// last, the DOWN_B of the block before; nullptr: not wanted. With sequence parallelism those of tensors that
// are whole on every rank are of its rows alone: they are summed once a step, in optimizer.h.
inline void block_backward(floatX* dx, real* const* g, real* d_bias, const BlockActivations& a,
                           const floatX* const* w, const LayerContext& ctx, BatchShape batch) {
    const Scratch& scratch = ctx.scratch;
    Stream s = ctx.stream;
    bool accumulate = ctx.accumulate;
    int N = batch.rows(), N_r = ctx.tp.rows(N), t = ctx.tp.group.size;
    int C = ctx.shape.C, C_r = C / t, NH_r = ctx.shape.NH / t;
    floatX *d_up = scratch.wide, *d_qkv = scratch.wide, *partial = scratch.partial;
    real* sums = scratch.linear.sums;

    // 8. the residual stream's gradient is also the branch's; and 7.: back through GELU
    if (a.light) gelu_forward(a.act, a.up, N, 4 * C_r, s);
    const floatX* rows = gather_rows(ctx.tp, scratch.all_rows, dx, N, C, "gradient rows for down", s);
    linear_after_gelu_backward(d_up, g[DOWN_W], rows, {a.act, a.up}, w[DOWN_W], scratch.linear, N, 4 * C_r, C,
                               accumulate, s);

    // 6.
    if (a.light) layernorm_forward(a.ln2, a.ln2_stats, a.mid, w[LN2_W], w[LN2_B], N_r, C, s);
    rows = gather_rows(ctx.tp, scratch.all_rows, a.ln2, N, C, "rows for up, again", s);
    linear_backward(partial, g[UP_W], g[UP_B], d_up, rows, w[UP_W], scratch.linear, N, C, 4 * C_r, accumulate,
                    s);
    floatX* d_ln = reduce_rows(ctx.tp, scratch.reduced, partial, N, C, "sum of up's gradient", s);

    // 5. adds to the residual stream's gradient, whose sum is also the gradient of 4.'s bias
    layernorm_backward(dx, {g[LN2_W], g[LN2_B], g[OUT_B]}, d_ln, a.mid, w[LN2_W], a.ln2_stats, sums, N_r, C,
                       accumulate, s);

    // 4.
    rows = gather_rows(ctx.tp, scratch.all_rows, dx, N, C, "gradient rows for out", s);
    linear_backward(partial, g[OUT_W], nullptr, rows, a.o, w[OUT_W], scratch.linear, N, C_r, C, accumulate,
                    s);

    // 3. partial holds the gradient of o
    AttentionShape heads = {batch.B, batch.T, NH_r, ctx.shape.HS()};
    if (a.lse) flash_attention_backward(d_qkv, scratch.flash, partial, a.o, a.lse, a.qkv, heads, s);
    else attention_backward(d_qkv, scratch.scores_gradient, partial, a.probabilities, a.qkv, heads, s);

    // 2.
    if (a.light) ln1_forward(a, w, ctx, batch);
    rows = gather_rows(ctx.tp, scratch.all_rows, a.ln1, N, C, "rows for qkv, again", s);
    linear_backward(partial, g[QKV_W], g[QKV_B], d_qkv, rows, w[QKV_W], scratch.linear, N, C, 3 * C_r,
                    accumulate, s);
    d_ln = reduce_rows(ctx.tp, scratch.reduced, partial, N, C, "sum of qkv's gradient", s);

    // 1. adds to the residual stream's gradient
    layernorm_backward(dx, {g[LN1_W], g[LN1_B], d_bias}, d_ln, a.x, w[LN1_W], a.ln1_stats, sums, N_r, C,
                       accumulate, s);
}
