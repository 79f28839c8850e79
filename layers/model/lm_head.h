// lm_head.h   the end of the model: final layer norm, logits, loss; vocabulary-parallel
//   logits = layernorm(x) wte^T, of which a tensor-parallel rank has Vp_r = Vp / t columns; they are not
//   gathered for the loss (see cross_entropy.cuh). Forward ends with logits and losses; where the gradient is
//   wanted (dloss is not 0) the logits become their own gradient at once, and backward begins there.
//   The exception is Setup.loss_in_backward: where the logits of a micro-batch are not all held
//   (--loss-chunk), or would not outlive the next forward, forward leaves them out, and backward computes
//   logits, loss and gradients, some rows at a time.
//   x (N_r, C)   losses, is_greedy (outputs) real
#pragma once
#include "embedding.h"

struct LmHeadWeights { const floatX *ln_w, *ln_b, *wte; };
struct LmHeadGradients { real *ln_w, *ln_b, *wte; };

struct LossOf {
    real *losses, *is_greedy;  // (outputs): losses are added to; is_greedy set where it is not nullptr
    const int* targets;        // (outputs)
    real dloss;                // the gradient of a loss; 0: no gradients are wanted
    LossOf from(long row) const {
        return {losses + row, is_greedy ? is_greedy + row : nullptr, targets + row, dloss};
    }
};

// x -> the normalised rows (outputs, C) that the logits are made of; of a packed batch only those asked for
inline const floatX* lm_head_rows(const LmHeadActivations& a, const floatX* x, const LmHeadWeights& w,
                                  const LayerContext& at, BatchShape batch) {
    Stream s = at.stream;
    int N = batch.rows(), C = at.shape.C;
    {
        Section timed("layer norm", s);
        dev::layernorm_forward(a.ln, a.stats, x, w.ln_w, w.ln_b, at.tp.rows(N), C, s);
    }
    Section timed("linears", s);
    floatX* all = a.rows ? a.rows : at.scratch.all_rows;
    const floatX* rows = gather_rows(at.tp, all, a.ln, N, C, "rows for the logits", s);
    if (!batch.segments) return rows;
    // rows[logit_rows[i]]: a table looked up, as the embedding is
    dev::embedding_forward(at.scratch.partial, batch.segments->logit_rows, rows, 0, N, batch.outputs(), C, s);
    return at.scratch.partial;
}

// logits (n, Vp_r), n at most a.rows_held, of rows (n, C)
inline void logits_forward(const LmHeadActivations& a, const floatX* rows, const floatX* wte, int n,
                           const LayerContext& at) {
    Section timed("linears", at.stream);
    dev::matmul_forward(a.logits, rows, wte, nullptr, n, at.shape.C, at.shape.Vp / at.tp.group.size,
                        at.stream);
}

// of n rows of logits
inline void loss_forward(const LossOf& loss, const LmHeadActivations& a, int n, const LayerContext& at) {
    Stream s = at.stream;
    Section timed("cross entropy", s);
    VocabularyShard v = vocabulary_shard(at.shape, at.tp);
    const comm::Group& tp = at.tp.group;
    bool want_gradient = loss.dloss != 0;
    if (tp.size == 1)
        return dev::cross_entropy(loss.losses, loss.is_greedy, a.logits, a.largest, a.sums, loss.targets,
                                  loss.dloss, want_gradient, n, v, s);
    dev::cross_entropy_max(a.largest, a.logits, n, v, s);
    comm::all_reduce(tp, a.largest, n, comm::Op::Max, "largest logit", s);  // of my columns -> of all
    dev::cross_entropy_sum(a.sums, a.largest, a.logits, loss.targets, n, v, s);
    comm::all_reduce(tp, a.sums, 2L * n, comm::Op::Sum, "sum of exp and target", s);  // my columns' -> all's
    dev::cross_entropy_finish(loss.losses, loss.is_greedy, a.logits, a.largest, a.sums, loss.targets,
                              loss.dloss, want_gradient, n, v, s);
}

// a.rows_held rows of logits at a time
inline void lm_head_forward(const LossOf& loss, const LmHeadActivations& a, const floatX* x,
                            const LmHeadWeights& w, const LayerContext& at, BatchShape batch) {
    const floatX* rows = lm_head_rows(a, x, w, at, batch);
    for (int first = 0; first < batch.outputs(); first += a.rows_held) {
        int n = std::min(a.rows_held, batch.outputs() - first);
        logits_forward(a, rows + (long)first * at.shape.C, w.wte, n, at);
        loss_forward(loss.from(first), a, n, at);
    }
}

// dx (N_r, C) becomes dloss times the gradient of x; g is set or, with at.accumulate, added to.
// loss: nullptr where forward has computed it, and the logits are their gradient
inline void lm_head_backward(floatX* dx, const LmHeadGradients& g, const LossOf* loss,
                             const LmHeadActivations& a, const floatX* x, const LmHeadWeights& w,
                             const LayerContext& at, BatchShape batch) {
    Stream s = at.stream;
    const Scratch& scratch = at.scratch;
    int N = batch.rows(), N_r = at.tp.rows(N), C = at.shape.C, Vp_r = at.shape.Vp / at.tp.group.size;
    const floatX* rows = loss ? lm_head_rows(a, x, w, at, batch) : a.rows ? a.rows : a.ln;
    for (int first = 0; first < N; first += a.rows_held) {
        int n = std::min(a.rows_held, N - first);
        const floatX* some = rows + (long)first * C;
        if (loss) {
            logits_forward(a, some, w.wte, n, at);
            loss_forward(loss->from(first), a, n, at);
        }
        Section timed("linears", s);
        dev::matmul_backward(scratch.partial + (long)first * C, g.wte, nullptr, a.logits, some, w.wte,
                             scratch.linear.sums, n, C, Vp_r, at.accumulate || first > 0, s);
    }
    const floatX* dln =
        reduce_rows(at.tp, scratch.reduced, scratch.partial, N, C, "sum of the logits' gradient", s);
    Section timed("layer norm", s);
    set_zero(dx, (size_t)N_r * C * sizeof(floatX), s);
    dev::layernorm_backward(dx, g.ln_w, g.ln_b, dln, x, w.ln_w, a.stats, scratch.linear.sums, N_r, C,
                            at.accumulate, s);
}
