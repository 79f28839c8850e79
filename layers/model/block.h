// block.h   a pre-layer-norm transformer block; backward uses the same step numbers as forward
//   mid = x + attention(layernorm(x))      y = mid + mlp(layernorm(mid))
//   With t tensor-parallel ranks (Megatron-LM) each has NH_r = NH / t heads and 4 C / t channels of the MLP.
//   The GEMMs into a branch (qkv, up) are column-parallel and need no reduction in forward; those out of it
//   (out, down) are row-parallel: their partial sums are reduced; bias and residual are then added, once.
//   comm/grid.h says which rows a rank holds.
//   x, y, mid (N_r, C): this rank's share of the N = B * T rows; sequence 0 comes first
//   kept:  the tensors in BlockActivations
//   communicates, with t > 1 and sequence parallelism: in forward, an all-gather before qkv and a
//   reduce-scatter after out, and the same before up and after down; in backward, an all-gather of down's dy,
//   another of up's input, a reduce-scatter of up's dx, and the same three for out and qkv. Without sequence
//   parallelism: in forward, an all-reduce after out and one after down; in backward, one of up's dx and one
//   of qkv's dx. With --fp8 backward gathers no inputs: their 8-bit copies hold all rows. Full recomputation
//   repeats forward's calls in backward, except the one after down. Each call: N C values
//   With t = 1 nothing is communicated: gather_rows and reduce_rows return what they are given.
//   backward: d_residual (N_r, C), the residual stream's gradient, is that of y on entry, that of x on return
#pragma once
#include "activations.h"
#include "params.h"

// 1. layer norm
inline void ln1_forward(const BlockActivations& a, const BlockWeights& w, const LayerContext& ctx) {
    compute(LayerNormForward{.y = a.ln1, .stats = a.ln1_stats, .x = a.x, .w = w[LN1_W], .b = w[LN1_B],
                             .N = ctx.grid.rows(ctx.N), .C = ctx.shape.C}, ctx.stream);
}

// --fp8: in a pass's first micro-batch (forward, stage.h), rounds the weight matrices to the 8-bit
// copies that the GEMMs read
inline void round_weights(const BlockWeights& w, const LayerContext& ctx) {
    const Fp8Scratch& fp8 = *ctx.scratch.fp8;
    int C = ctx.shape.C, C_r = C / ctx.grid.t;
    round_weight(w[QKV_W], 3 * C_r, C, fp8, ctx.stream);
    round_weight(w[OUT_W], C, C_r, fp8, ctx.stream);
    round_weight(w[UP_W], 4 * C_r, C, fp8, ctx.stream);
    round_weight(w[DOWN_W], C, 4 * C_r, fp8, ctx.stream);
}

// Steps 1 to 3, from a.x to a.o. w[BlockTensor]: this rank's shards of the block's parameters. For packed
// batches: packed_attention(), inference/packed_batch.h
inline void block_attention(const BlockActivations& a, const BlockWeights& w, const LayerContext& ctx) {
    Stream s = ctx.stream;
    int N = ctx.N, C = ctx.shape.C, t = ctx.grid.t;
    ln1_forward(a, w, ctx);

    // 2. queries, keys and values of this rank's heads
    const floatX* rows = gather_rows(ctx.grid, ctx.scratch.all_rows, a.ln1, N, C, "rows for qkv", s);
    compute_linear(LinearForward{.y = a.qkv, .x = rows, .w = w[QKV_W], .b = w[QKV_B], .N = N, .C = C,
                                 .OC = 3 * C / t}, a.qkv_fp8.get(), ctx);

    // 3. attention, head by head; only flash attention has an lse
    AttentionShape heads = {N / ctx.shape.T, ctx.shape.T, ctx.shape.NH / t, ctx.shape.HS()};
    if (a.lse) compute(FlashForward{.o = a.o, .lse = a.lse, .qkv = a.qkv, .a = heads}, s);
    else compute(AttentionForward{.o = a.o, .p = a.probabilities, .qkv = a.qkv, .a = heads}, s);
}

// The last layer of a branch, y = residual + x w^T + b. With t = 1 LinearForward adds all three, and
// nullptr is returned (not with --fp8, where cuBLASLt may be unable to). Otherwise x w^T, summed over t, is
// returned, to which the caller adds residual and bias, once
inline const floatX* end_branch(LinearForward layer, const Fp8Inputs* fp8, const char* label,
                                const LayerContext& ctx,
                                std::source_location where = std::source_location::current()) {
    bool adds_all = ctx.grid.t == 1 && !ctx.fp8;
    if (!adds_all) {
        layer.y = ctx.scratch.unreduced;
        layer.b = layer.residual = nullptr;
    }
    compute_linear(layer, fp8, ctx, where);
    if (adds_all) return nullptr;
    return reduce_rows(ctx.grid, ctx.scratch.reduced, layer.y, layer.N, layer.OC, label, ctx.stream, where);
}

// Steps 4 to 7; with those before, they compute all that backward reads
inline void after_attention_forward(const BlockActivations& a, const BlockWeights& w,
                                    const LayerContext& ctx) {
    Stream s = ctx.stream;
    int N = ctx.N, C = ctx.shape.C, C_r = C / ctx.grid.t;

    // 4. output projection, added to the residual stream: mid; and 5. its layer norm. With t > 1 or --fp8 the
    // layer norm computes mid = residual + f + bias; otherwise f is nullptr, mid has all three, and residual
    // and bias are not read
    const floatX* f = end_branch(LinearForward{.y = a.mid, .x = a.o, .w = w[OUT_W], .b = w[OUT_B], .N = N,
                                               .C = C_r, .OC = C, .residual = a.x}, a.out_fp8.get(),
                                 "sum of attention", ctx);
    compute(LayerNormForward{.y = a.ln2, .stats = a.ln2_stats, .x = a.mid, .w = w[LN2_W], .b = w[LN2_B],
                             .N = ctx.grid.rows(N), .C = C, .mid = a.mid, .residual = a.x, .f = f,
                             .bias = w[OUT_B]}, s);

    // 6. up to this rank's share of 4C, and 7. GELU
    const floatX* rows = gather_rows(ctx.grid, ctx.scratch.all_rows, a.ln2, N, C, "rows for up", s);
    compute_linear(LinearGeluForward{.y = a.act, .up = a.up, .x = rows, .w = w[UP_W], .b = w[UP_B], .N = N,
                                     .C = C, .OC = 4 * C_r}, a.up_fp8.get(), ctx);
}

// 8. down to C: y (N_r, C), the block's output. Full recomputation does not repeat this step
inline void down_forward(floatX* y, const BlockActivations& a, const BlockWeights& w,
                         const LayerContext& ctx) {
    int N = ctx.N, C = ctx.shape.C, C_r = C / ctx.grid.t;
    const floatX* f = end_branch(LinearForward{.y = y, .x = a.act, .w = w[DOWN_W], .b = w[DOWN_B], .N = N,
                                               .C = 4 * C_r, .OC = C, .residual = a.mid}, a.down_fp8.get(),
                                 "sum of mlp", ctx);
    if (f)
        compute(ResidualForward{.y = y, .residual = a.mid, .f = f, .bias = w[DOWN_B], .N = ctx.grid.rows(N),
                                .C = C}, ctx.stream);
}

// whether backward recomputes what all blocks share: ln1, ln2 and act
inline bool recomputes_shared(const BlockActivations& a, const LayerContext& ctx) {
    return a.shares_outputs && !ctx.fp8;
}

// a linear layer's input x (N_r, C), gathered over the tensor-parallel ranks for its backward; with --fp8
// nullptr, as backward then reads what forward has left in 8 bits (a.up_fp8, a.qkv_fp8)
inline const floatX* gathered_input(const LayerContext& ctx, const floatX* x, int N, const char* label) {
    if (ctx.fp8) return nullptr;
    return gather_rows(ctx.grid, ctx.scratch.all_rows, x, N, ctx.shape.C, label, ctx.stream);
}

// w[tensor], g[tensor] (real): pointers into the flat buffers of parameters and gradients, by BlockTensor
// (params.h); gradients are set or, with ctx.accumulate, added to. The gradient of a linear
// layer's bias, a column sum, is computed where the rows to be summed are at hand:
//   DOWN_B  in step 8, of d_residual
//   UP_B    in step 7, of d_up
//   OUT_B   in step 4, of d_residual
//   QKV_B   in step 3, of d_qkv, by attention's backward (fast/flash_dispatch.cuh)
// With sequence parallelism, gradients of replicated tensors cover only this rank's rows; optimizer.h sums
// them over the tensor-parallel ranks, once per step.
// Scratch is reused within the block, in the order of one stream. Without sequence parallelism, so with
// t = 1, there is no `reduced`: the gradients of ln2 and ln1 stay in `unreduced` up to steps 5 and 1:
//                steps 8, 7   6                    5      4      3        2                    1
//   mlp_or_qkv   d_up         d_up                               d_qkv    d_qkv
//   unreduced                 gradient of ln2             d_o    d_o      gradient of ln1
//   reduced                   its sum over t       read                   its sum over t       read
// All steps but 6 and 2 use `columns`, step 3 also attention's scratch, each within one operation

// Steps 8 to 5: d_residual, the gradient of y, becomes that of mid
inline void mlp_backward(floatX* d_residual, const BlockGradients& g, const BlockActivations& a,
                         const BlockWeights& w, const LayerContext& ctx) {
    const Scratch& scratch = ctx.scratch;
    const Grid& grid = ctx.grid;
    Stream s = ctx.stream;
    int N = ctx.N, N_r = grid.rows(N), C = ctx.shape.C, C_r = C / grid.t;
    floatX* d_up = scratch.mlp_or_qkv;

    // 8. d_residual is also the gradient of the MLP branch
    compute(BiasBackward{.db = g[DOWN_B], .dy = d_residual, .column_scratch = scratch.columns, .N = N_r,
                         .C = C, .accumulate = ctx.accumulate}, s);

    // 8. and 7. back through GELU
    if (recomputes_shared(a, ctx)) compute(GeluForward{.y = a.act, .x = a.up, .N = N, .C = 4 * C_r}, s);
    const floatX* rows = gather_rows(grid, scratch.all_rows, d_residual, N, C, "gradient rows for down", s);
    compute_linear(LinearOfGeluBackward{.d_up = d_up, .dw = g[DOWN_W], .d_up_bias = g[UP_B], .dy = rows,
                                        .x = a.act, .up = a.up, .w = w[DOWN_W],
                                        .column_scratch = scratch.columns, .N = N, .C = 4 * C_r, .OC = C,
                                        .accumulate = ctx.accumulate},
                   a.down_fp8.get(), ctx);

    // 6.
    if (recomputes_shared(a, ctx))
        compute(LayerNormForward{.y = a.ln2, .stats = a.ln2_stats, .x = a.mid, .w = w[LN2_W], .b = w[LN2_B],
                                 .N = N_r, .C = C}, s);
    compute_linear(LinearBackward{.dx = scratch.unreduced, .dw = g[UP_W], .dy = d_up,
                                  .x = gathered_input(ctx, a.ln2, N, "rows for up, again"), .w = w[UP_W],
                                  .N = N, .C = C, .OC = 4 * C_r, .accumulate = ctx.accumulate},
                   a.up_fp8.get(), ctx);
    floatX* d_ln = reduce_rows(grid, scratch.reduced, scratch.unreduced, N, C, "sum of up's gradient", s);

    // 5. adds to d_residual
    compute(LayerNormBackward{.dx = d_residual, .dw = g[LN2_W], .db = g[LN2_B], .dy = d_ln, .x = a.mid,
                              .w = w[LN2_W], .stats = a.ln2_stats, .column_scratch = scratch.columns,
                              .N = N_r, .C = C, .accumulate = ctx.accumulate}, s);
}

// Steps 4 to 1: d_residual becomes the gradient of x
inline void attention_backward(floatX* d_residual, const BlockGradients& g, const BlockActivations& a,
                               const BlockWeights& w, const LayerContext& ctx) {
    const Scratch& scratch = ctx.scratch;
    const Grid& grid = ctx.grid;
    Stream s = ctx.stream;
    int N = ctx.N, N_r = grid.rows(N), t = grid.t, C = ctx.shape.C, C_r = C / t;
    floatX *d_qkv = scratch.mlp_or_qkv, *d_o = scratch.unreduced;

    // 4. d_residual is also the gradient of the attention branch
    compute(BiasBackward{.db = g[OUT_B], .dy = d_residual, .column_scratch = scratch.columns, .N = N_r,
                         .C = C, .accumulate = ctx.accumulate}, s);
    const floatX* rows = gather_rows(grid, scratch.all_rows, d_residual, N, C, "gradient rows for out", s);
    compute_linear(LinearBackward{.dx = d_o, .dw = g[OUT_W], .dy = rows, .x = a.o, .w = w[OUT_W], .N = N,
                                  .C = C_r, .OC = C, .accumulate = ctx.accumulate}, a.out_fp8.get(), ctx);

    // 3. attention, and the gradient of QKV_B: d_qkv's column sums
    AttentionShape heads = {N / ctx.shape.T, ctx.shape.T, ctx.shape.NH / t, ctx.shape.HS()};
    if (a.lse)
        compute(FlashBackward{.dqkv = d_qkv, .scratch = scratch.flash, .dout = d_o, .o = a.o, .lse = a.lse,
                              .qkv = a.qkv, .a = heads, .db = g[QKV_B], .column_scratch = scratch.columns,
                              .accumulate = ctx.accumulate}, s);
    else
        compute(AttentionBackward{.dqkv = d_qkv, .dp = scratch.scores_gradient, .dout = d_o,
                                  .p = a.probabilities, .qkv = a.qkv, .a = heads, .db = g[QKV_B],
                                  .column_scratch = scratch.columns, .accumulate = ctx.accumulate}, s);

    // 2.
    if (recomputes_shared(a, ctx)) ln1_forward(a, w, ctx);
    compute_linear(LinearBackward{.dx = scratch.unreduced, .dw = g[QKV_W], .dy = d_qkv,
                                  .x = gathered_input(ctx, a.ln1, N, "rows for qkv, again"), .w = w[QKV_W],
                                  .N = N, .C = C, .OC = 3 * C_r, .accumulate = ctx.accumulate},
                   a.qkv_fp8.get(), ctx);
    floatX* d_ln = reduce_rows(grid, scratch.reduced, scratch.unreduced, N, C, "sum of qkv's gradient", s);

    // 1. adds to d_residual
    compute(LayerNormBackward{.dx = d_residual, .dw = g[LN1_W], .db = g[LN1_B], .dy = d_ln, .x = a.x,
                              .w = w[LN1_W], .stats = a.ln1_stats, .column_scratch = scratch.columns,
                              .N = N_r, .C = C, .accumulate = ctx.accumulate}, s);
}
