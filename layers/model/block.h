// block.h   a pre-layer-norm transformer block; backward uses the same step numbers as forward
//   mid = x + attention(layernorm(x))      y = mid + mlp(layernorm(mid))
//   With t tensor-parallel ranks (Megatron-LM) each has NH_r = NH / t heads and 4 C / t channels of the MLP.
//   The GEMMs into a branch (qkv, up) are column-parallel and need no reduction in forward; those out of it
//   (out, down) are row-parallel: their partial sums are reduced, and then the bias is added, once.
//   comm/grid.h says which rows a rank holds.
//   x, y, mid (N_r, C): this rank's share of the N = B * T rows; sequence 0 comes first
//   kept:  the tensors in BlockActivations
//   communicates, with t > 1 and sequence parallelism: in forward, an all-gather before qkv and a
//   reduce-scatter after out, and the same before up and after down; in backward, an all-gather of down's dy,
//   another of up's input, a reduce-scatter of up's dx, and the same three for out and qkv. Without sequence
//   parallelism: in forward, an all-reduce after out and one after down; in backward, one of up's dx and one
//   of qkv's dx. Full recomputation repeats forward's calls in backward, but for that after down
//   With t = 1 nothing is communicated: gather_rows returns its input, reduce_rows the partial sums.
//   backward: dx (N_r, C) is the gradient of y on entry and that of x on return
//   A packed batch (evaluation, generation) runs forward only; the buffer qkv is its KV cache (queries are
//   stored there too, but not read again).
#pragma once
#include "activations.h"
#include "params.h"

// 1. layer norm: called for a chunk's first block, and when backward recomputes a block; elsewhere the
// preceding block's add_branch_and_norm() has already computed it
inline void ln1_forward(const BlockActivations& a, const floatX* const* w, const LayerContext& ctx,
                        BatchShape batch) {
    layernorm_forward(a.ln1, a.ln1_stats, a.x, w[LN1_W], w[LN1_B], ctx.tp.rows(batch.rows()),
                      ctx.shape.C, ctx.stream);
}

// --fp8: in a pass's first micro-batch (layers_forward, stage.h), rounds the weight matrices to the 8-bit
// copies that the GEMMs read
inline void round_weights(const floatX* const* w, const LayerContext& ctx) {
    const LinearScratch& linear = ctx.scratch.linear;
    int C = ctx.shape.C, C_r = C / ctx.tp.group.size;
    round_weight(w[QKV_W], linear, C, 3 * C_r, ctx.stream);
    round_weight(w[OUT_W], linear, C_r, C, ctx.stream);
    round_weight(w[UP_W], linear, C, 4 * C_r, ctx.stream);
    round_weight(w[DOWN_W], linear, 4 * C_r, C, ctx.stream);
}

// From a.ln1 to the output of the MLP branch (N_r, C), without its bias. If not wants_output: computes only
// what backward reads and returns nullptr. w[BlockTensor]: this rank's shards of the block's parameters
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

    // 4. output projection, added to the residual stream, and 5. layer norm
    linear_forward(scratch.partial, a.o, w[OUT_W], nullptr, linear, N, C_r, C, s);
    const floatX* branch =
        reduce_rows(ctx.tp, scratch.reduced, scratch.partial, N, C, "sum of attention", s);
    residual_layernorm_forward(a.mid, a.ln2, a.ln2_stats, a.x, branch, w[OUT_B], w[LN2_W], w[LN2_B], N_r, C,
                               s);

    // 6. up to this rank's share of 4C, and 7. GELU
    rows = gather_rows(ctx.tp, scratch.all_rows, a.ln2, N, C, "rows for up", s);
    linear_gelu_forward(a.act, a.up, rows, w[UP_W], w[UP_B], linear, N, C, 4 * C_r, s);
    if (!wants_output) return nullptr;

    // 8. down to C
    linear_forward(scratch.partial, a.act, w[DOWN_W], nullptr, linear, N, 4 * C_r, C, s);
    return reduce_rows(ctx.tp, scratch.reduced, scratch.partial, N, C, "sum of mlp", s);
}

// After block_forward: y = a.mid + branch + bias; fused with step 1 of the next block, if the chunk has one
inline void add_branch_and_norm(floatX* y, const BlockActivations& a, const floatX* branch,
                                const floatX* bias, const BlockActivations* next,
                                const floatX* const* next_w, const LayerContext& ctx, BatchShape batch) {
    int N_r = ctx.tp.rows(batch.rows()), C = ctx.shape.C;
    if (!next) return residual_forward(y, a.mid, branch, bias, N_r, C, ctx.stream);
    residual_layernorm_forward(y, next->ln1, next->ln1_stats, a.mid, branch, bias, next_w[LN1_W],
                               next_w[LN1_B], N_r, C, ctx.stream);
}

// g[tensor] (real): gradients of w[tensor], set or, with ctx.accumulate, added to. DOWN_B's gradient is the
// sum of the incoming dx's rows, so it is computed where dx is produced or received, not here. In turn, this
// block computes d_bias, the gradient of the preceding block's DOWN_B (nullptr: not wanted). With sequence
// parallelism, gradients of replicated tensors cover only this rank's rows; optimizer.h sums them over the
// tensor-parallel ranks, once per step.
inline void block_backward(floatX* dx, real* const* g, real* d_bias, const BlockActivations& a,
                           const floatX* const* w, const LayerContext& ctx, BatchShape batch) {
    const Scratch& scratch = ctx.scratch;
    Stream s = ctx.stream;
    bool accumulate = ctx.accumulate;
    int N = batch.rows(), N_r = ctx.tp.rows(N), t = ctx.tp.group.size;
    int C = ctx.shape.C, C_r = C / t, NH_r = ctx.shape.NH / t;
    // one buffer each, in turn: `wide` holds d_up in steps 8 to 6, then d_qkv; `partial` holds the gradient
    // of step 6's input, then d_o, then that of step 2's input
    floatX *d_up = scratch.wide, *d_qkv = scratch.wide;
    const LinearScratch& linear = scratch.linear;
    real* sums = linear.sums;

    // 8. dx is also the gradient of the MLP branch; and 7. back through GELU
    if (a.light) gelu_forward(a.act, a.up, N, 4 * C_r, s);
    const floatX* rows = gather_rows(ctx.tp, scratch.all_rows, dx, N, C, "gradient rows for down", s);
    linear_of_gelu_backward(d_up, g[DOWN_W], rows, a.act, a.up, w[DOWN_W], linear, N, 4 * C_r, C, accumulate,
                            s);

    // 6.
    if (a.light) layernorm_forward(a.ln2, a.ln2_stats, a.mid, w[LN2_W], w[LN2_B], N_r, C, s);
    rows = gather_rows(ctx.tp, scratch.all_rows, a.ln2, N, C, "rows for up, again", s);
    linear_backward(scratch.partial, g[UP_W], g[UP_B], d_up, rows, w[UP_W], linear, N, C, 4 * C_r, accumulate,
                    s);
    floatX* d_ln = reduce_rows(ctx.tp, scratch.reduced, scratch.partial, N, C, "sum of up's gradient", s);

    // 5. adds to dx, the residual stream's gradient; the sum of its rows is the gradient of OUT_B (step 4)
    layernorm_backward(dx, {g[LN2_W], g[LN2_B], g[OUT_B]}, d_ln, a.mid, w[LN2_W], a.ln2_stats, sums, N_r, C,
                       accumulate, s);

    // 4.
    floatX* d_o = scratch.partial;
    rows = gather_rows(ctx.tp, scratch.all_rows, dx, N, C, "gradient rows for out", s);
    linear_backward(d_o, g[OUT_W], nullptr, rows, a.o, w[OUT_W], linear, N, C_r, C, accumulate, s);

    // 3.
    AttentionShape heads = {batch.B, batch.T, NH_r, ctx.shape.HS()};
    if (a.lse) flash_attention_backward(d_qkv, scratch.flash, d_o, a.o, a.lse, a.qkv, heads, s);
    else attention_backward(d_qkv, scratch.scores_gradient, d_o, a.probabilities, a.qkv, heads, s);

    // 2.
    if (a.light) ln1_forward(a, w, ctx, batch);
    rows = gather_rows(ctx.tp, scratch.all_rows, a.ln1, N, C, "rows for qkv, again", s);
    linear_backward(scratch.partial, g[QKV_W], g[QKV_B], d_qkv, rows, w[QKV_W], linear, N, C, 3 * C_r,
                    accumulate, s);
    d_ln = reduce_rows(ctx.tp, scratch.reduced, scratch.partial, N, C, "sum of qkv's gradient", s);

    // 1. adds to the residual stream's gradient
    layernorm_backward(dx, {g[LN1_W], g[LN1_B], d_bias}, d_ln, a.x, w[LN1_W], a.ln1_stats, sums, N_r, C,
                       accumulate, s);
}
