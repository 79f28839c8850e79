// vocabulary.h   the vocabulary-parallel layers: embedding and LM head
//   x = wte[tokens] + wpe[positions];  logits = layernorm(y) wte^T    y: the last block's output
//   Rank r of t tensor-parallel ranks has rows [r Vp / t, (r + 1) Vp / t) of the token embedding, which is
//   also the LM head's weight. A token outside a rank's rows gives 0 there, so the sum over the ranks is the
//   embedding. A rank has Vp_r = Vp / t columns of the logits, which are not gathered for the loss (see
//   cross_entropy.cuh). Forward ends with logits and losses; if gradients are wanted (dloss is 0 in
//   validation and inference only), the logits are overwritten by their gradient at once, and backward starts
//   from it.
//   Exception: Setup.loss_in_backward, set with --loss-chunk (only some rows of logits are held) or if, in a
//   pipeline, the next forward would overwrite them. Then forward leaves out the logits, and backward
//   computes logits, loss and gradients: at once or, with --loss-chunk, some rows at a time.
//   x (N_r, C)   tokens (N) int   wte (Vp_r, C)   wpe (T, C)   losses (micro_batches, logit_rows) real
#pragma once
#include "activations.h"
#include "params.h"

// ---- embedding --------------------------------------------------------------------------------------------

// this rank's share of the vocabulary
inline VocabularyShard vocabulary_shard(const ModelShape& shape, const Grid& grid) {
    int Vp_r = shape.Vp / grid.t, first = Vp_r * grid.tensor;
    return {std::clamp(shape.V - first, 0, Vp_r), Vp_r, first};
}

inline void embed_forward(floatX* x, const int* tokens, const floatX* wte, const floatX* wpe,
                          const LayerContext& ctx, const int* positions = nullptr) {
    Stream s = ctx.stream;
    int N = ctx.N, C = ctx.shape.C;
    floatX* sums = ctx.grid.sequence_parallel ? ctx.scratch.unreduced : x;
    compute(EmbeddingForward{.x = sums, .tokens = tokens, .wte = wte, .N = N, .C = C,
                             .v = vocabulary_shard(ctx.shape, ctx.grid),
                             .wpe = ctx.grid.tensor == 0 ? wpe : nullptr, .positions = positions,
                             .T = ctx.shape.T}, s);
    reduce_rows(ctx.grid, x, sums, N, C, "sum of embeddings", s);
}

// adds to dwte; sets dwpe or, with ctx.accumulate, adds to it
inline void embed_backward(real* dwte, real* dwpe, const floatX* d_residual, const int* tokens,
                           const int* sorted_rows, const int* run_starts, const LayerContext& ctx) {
    Stream s = ctx.stream;
    int N = ctx.N, N_r = ctx.grid.rows(N), C = ctx.shape.C;
    VocabularyShard v = vocabulary_shard(ctx.shape, ctx.grid);

    int first_row = ctx.grid.sequence_parallel ? ctx.grid.tensor * N_r : 0;  // of this rank, in the batch
    compute(PositionBackward{.dwpe = dwpe, .dx = d_residual, .offset = first_row, .N = N_r, .T = ctx.shape.T,
                             .C = C, .accumulate = ctx.accumulate}, s);
    const floatX* rows =
        gather_rows(ctx.grid, ctx.scratch.all_rows, d_residual, N, C, "gradient rows for the embedding", s);
    compute(EmbeddingBackward{.dwte = dwte, .tokens = tokens, .sorted_rows = sorted_rows,
                              .run_starts = run_starts, .dx = rows, .N = N, .C = C, .v = v}, s);
}

// ---- LM head: final layer norm, logits, loss --------------------------------------------------------------

// w[LNF_W], w[LNF_B] (C), w[LOGITS_W] (Vp_r, C), which is wte; g: their gradients, real

// x -> normalised rows (N, C), input of the logits GEMM
inline const floatX* lm_head_rows(const LmHeadActivations& a, const floatX* x, const LmHeadWeights& w,
                                  const LayerContext& ctx) {
    Stream s = ctx.stream;
    int N = ctx.N, C = ctx.shape.C;
    compute(LayerNormForward{.y = a.ln, .stats = a.stats, .x = x, .w = w[LNF_W], .b = w[LNF_B],
                             .N = ctx.grid.rows(N), .C = C}, s);

    floatX* all = a.input_rows ? a.input_rows : ctx.scratch.all_rows;
    return gather_rows(ctx.grid, all, a.ln, N, C, "rows for the logits", s);
}

// --fp8-lm-head: wte in 8 bits, before a pass's first logits (block.h: round_weights)
inline void round_lm_head(const LmHeadActivations& a, const MicroBatch& mb, const floatX* wte,
                          const LayerContext& ctx) {
    if (!ctx.fp8 || !a.rows_fp8 || mb.index > 0) return;
    round_weight(wte, ctx.shape.Vp / ctx.grid.t, ctx.shape.C, *ctx.scratch.fp8, ctx.stream);
}

// rows (n, C) -> logits (n, Vp_r); n is at most a.logit_rows_held
inline void logits_forward(const LmHeadActivations& a, const floatX* rows, const floatX* wte, int n,
                           const LayerContext& ctx) {
    compute_linear(LinearForward{.y = a.logits, .x = rows, .w = wte, .b = nullptr, .N = n, .C = ctx.shape.C,
                                 .OC = ctx.shape.Vp / ctx.grid.t},
                   a.rows_fp8.get(), ctx);
}

// Sets the losses of n rows of logits, from the micro-batch's row `first` on. Unless mb.dloss is 0, the
// logits are overwritten by their gradient
inline void loss_forward(const LmHeadActivations& a, const MicroBatch& mb, int first, int n,
                         const LayerContext& ctx) {
    Stream s = ctx.stream;
    VocabularyShard v = vocabulary_shard(ctx.shape, ctx.grid);
    const comm::Group& tp = ctx.grid.tp;
    real* losses = a.losses + (long)mb.index * a.logit_rows + first;
    const int* targets = mb.in_flight.targets + first;

    // largest, exp_sums: used over several ranks, and for rows that exceed shared memory (on an H100 above
    // 116,000 in bf16); otherwise one kernel needs neither
    CrossEntropy loss = {.losses = losses, .logits = a.logits, .largest = a.largest, .exp_sums = a.exp_sums,
                         .targets = targets, .dloss = mb.dloss, .N = n, .v = v};
    if (tp.size == 1) return compute(loss, s);

    // over t ranks: the largest logit and the sum of a row come from all shards
    compute(loss.largest_of_rows(), s);
    // a shard's largest -> the row's
    comm::all_reduce(tp, a.largest, n, comm::ReduceOp::Max, "largest logit", s);
    compute(loss.sums_of_rows(), s);
    // a shard's sums -> the row's
    comm::all_reduce(tp, a.exp_sums, 2L * n, comm::ReduceOp::Sum, "sum of exp and target", s);
    compute(loss.finish(), s);
}

// the last block's output -> logits -> losses, a.logit_rows_held rows at a time
inline void lm_head_forward(const LmHeadActivations& a, const MicroBatch& mb, const LmHeadWeights& w,
                            const LayerContext& ctx) {
    const floatX* rows = lm_head_rows(a, mb.in_flight.y.x, w, ctx);
    round_lm_head(a, mb, w[LOGITS_W], ctx);
    for (int first = 0; first < ctx.N; first += a.logit_rows_held) {
        int n = std::min(a.logit_rows_held, ctx.N - first);
        logits_forward(a, rows + (long)first * ctx.shape.C, w[LOGITS_W], n, ctx);
        loss_forward(a, mb, first, n, ctx);
    }
}

// d_residual (N_r, C) becomes the gradient of x; g is set or, with ctx.accumulate, added to. The logits
// already hold their gradient, unless a.loss_in_backward
inline void lm_head_backward(floatX* d_residual, const LmHeadGradients& g, const LmHeadActivations& a,
                             const MicroBatch& mb, const LmHeadWeights& w, const LayerContext& ctx) {
    Stream s = ctx.stream;
    const Scratch& scratch = ctx.scratch;
    const floatX *x = mb.in_flight.y.x, *rows = a.input_rows ? a.input_rows : a.ln;
    int N = ctx.N, N_r = ctx.grid.rows(N), C = ctx.shape.C, Vp_r = ctx.shape.Vp / ctx.grid.t;

    if (a.loss_in_backward) {
        rows = lm_head_rows(a, x, w, ctx);
        round_lm_head(a, mb, w[LOGITS_W], ctx);
    }
    for (int first = 0; first < N; first += a.logit_rows_held) {
        int n = std::min(a.logit_rows_held, N - first);
        const floatX* some = rows + (long)first * C;
        if (a.loss_in_backward) {
            logits_forward(a, some, w[LOGITS_W], n, ctx);
            loss_forward(a, mb, first, n, ctx);
        }
        // g[LOGITS_W] is wte_gradient_from_logits (stage.h)
        compute_linear(LinearBackward{.dx = scratch.unreduced + (long)first * C, .dw = g[LOGITS_W],
                                      .dy = a.logits, .x = some, .w = w[LOGITS_W], .N = n, .C = C, .OC = Vp_r,
                                      .accumulate = ctx.accumulate || first > 0,
                                      .largest_dy = (float)mb.dloss},  // |softmax - onehot| * dloss
                       a.rows_fp8.get(), ctx);
    }

    const floatX* dln =
        reduce_rows(ctx.grid, scratch.reduced, scratch.unreduced, N, C, "sum of the logits' gradient", s);
    compute(ClearValues{"dx", d_residual, (long)N_r * C}, s);  // LayerNormBackward adds to it
    compute(LayerNormBackward{.dx = d_residual, .dw = g[LNF_W], .db = g[LNF_B], .dy = dln, .x = x,
                              .w = w[LNF_W], .stats = a.stats, .column_scratch = scratch.columns, .N = N_r,
                              .C = C, .accumulate = ctx.accumulate}, s);
}
