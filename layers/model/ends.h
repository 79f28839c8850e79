// ends.h   what stands before the first block and after the last: embedding, logits, loss
//   The vocabulary lies over the tensor-parallel ranks: rank r has rows [r Vp / t, (r + 1) Vp / t) of the
//   token embedding, which is also the weight of the logits. A token of another rank looks up 0, and the sum
//   over the ranks is the whole; logits are never gathered in training (see cross_entropy.cuh).
#pragma once
#include "block.h"

struct EndActivations {
    floatX *ln, *logits;                      // (N_r, C)  (rows, Vp / t)
    real *mean, *rstd;                        // (N_r)
    real *losses, *hits = nullptr;            // (Setup.losses, N) each; hits: see cross_entropy.cuh
    real *largest, *sums;                     // (rows)  (2, rows)
    int rows;                                 // of logits that are held at once

    // outputs: rows of logits in a batch, at most
    void place(Arena& arena, const ModelShape& m, const Ranks& ranks, int B, int outputs, int held,
               int micro_batches, bool scores) {
        rows = held;
        long N_r = ranks.room(B, m.T);
        losses = arena.take_real((long)micro_batches * outputs);
        if (scores) hits = arena.take_real((long)micro_batches * outputs);
        ln = arena.take_x(N_r * m.C);
        logits = arena.take_x((long)rows * (m.Vp / ranks.tp.size));
        mean = arena.take_real(N_r);
        rstd = arena.take_real(N_r);
        largest = arena.take_real(rows);
        sums = arena.take_real(2L * rows);
    }
};

// this rank's share of the vocabulary
inline Vocabularies own_vocabulary(const ModelShape& m, const Ranks& ranks) {
    int Vp_r = m.Vp / ranks.tp.size, first = Vp_r * ranks.tp.rank;
    return {std::clamp(m.V - first, 0, Vp_r), Vp_r, first};
}

// x (N_r, C)
inline void embed_forward(floatX* x, const int* tokens, const floatX* wte, const floatX* wpe,
                          const Scratch& scratch, const ModelShape& m, const Ranks& ranks, Batch batch,
                          Stream s) {
    Section timed("embedding", s);
    int N = batch.rows(), N_r = ranks.rows(N);
    Vocabularies v = own_vocabulary(m, ranks);
    dev::embedding_forward(scratch.branch, tokens, wte, v.first, v.Vp, N, m.C, s);
    floatX* own = reduce_rows(ranks, x, scratch.branch, N, m.C, "sum of embeddings", s);
    if (own != x) copy_on_device(x, own, (size_t)N_r * m.C * sizeof(floatX), s);
    dev::position_forward(x, wpe, batch.segments ? batch.segments->positions : nullptr,
                          ranks.sequence ? ranks.tp.rank * N_r : 0, N_r, batch.T, m.C, s);
}

// d (N_r, C): the gradient of x; dwte is added to, dwpe set or, with `add`, added to
inline void embed_backward(real* dwte, real* dwpe, const floatX* d, const int* tokens, SortedTokens sorted,
                           const Scratch& scratch, const ModelShape& m, const Ranks& ranks, Batch batch,
                           bool add, Stream s) {
    Section timed("embedding", s);
    int N = batch.rows(), N_r = ranks.rows(N);
    Vocabularies v = own_vocabulary(m, ranks);
    dev::position_backward(dwpe, d, ranks.sequence ? ranks.tp.rank * N_r : 0, N_r, batch.T, m.C, add, s);
    const floatX* rows = gather_rows(ranks, scratch.full, d, N, m.C,
                                     "gradient rows for the embedding", s);
    dev::embedding_backward(dwte, tokens, sorted, rows, v.first, v.Vp, N, m.C, s);
}

// x (N_r, C) -> the rows (outputs, C), normalised, that the logits are made of; of a batch of segments only
// those that are wanted
inline const floatX* logits_input(const EndActivations& e, const floatX* x, const floatX* w, const floatX* b,
                                  const Scratch& scratch, const ModelShape& m, const Ranks& ranks,
                                  Batch batch, Stream s) {
    int N = batch.rows();
    {
        Section timed("layer norm", s);
        dev::layernorm_forward(e.ln, e.mean, e.rstd, x, w, b, ranks.rows(N), m.C, s);
    }
    Section timed("linears", s);
    const floatX* rows = gather_rows(ranks, scratch.full, e.ln, N, m.C, "rows for the logits", s);
    if (!batch.segments) return rows;
    // rows[wanted[i]]: a table looked up, as the embedding is
    dev::embedding_forward(scratch.branch, batch.segments->wanted, rows, 0, N, batch.outputs(), m.C, s);
    return scratch.branch;
}

// logits (n, Vp_r), n at most e.rows, from rows (n, C)
inline void logits_forward(const EndActivations& e, const floatX* rows, const floatX* wte, int n,
                           const ModelShape& m, const Ranks& ranks, Stream s) {
    Section timed("linears", s);
    dev::matmul_forward(e.logits, rows, wte, nullptr, n, m.C, m.Vp / ranks.tp.size, s);
}

// from n rows of logits: losses (n) added to, hits (n) set where they are not nullptr; with want_gradient the
// logits become dloss * their gradient
inline void loss_of_logits(real* losses, real* hits, const EndActivations& e, const int* targets, real dloss,
                           bool want_gradient, int n, const ModelShape& m, const Ranks& ranks, Stream s) {
    Section timed("cross entropy", s);
    Vocabularies v = own_vocabulary(m, ranks);
    if (ranks.tp.size == 1)
        return dev::cross_entropy(losses, hits, e.logits, e.largest, e.sums, targets, dloss, want_gradient, n,
                                  v, s);
    dev::cross_entropy_max(e.largest, e.logits, n, v, s);
    comm::all_reduce(ranks.tp, e.largest, n, comm::Op::Max, "largest logit", s);  // of my columns -> of all
    dev::cross_entropy_sum(e.sums, e.largest, e.logits, targets, n, v, s);
    // my columns -> all
    comm::all_reduce(ranks.tp, e.sums, 2L * n, comm::Op::Sum, "sum of exp and target", s);
    dev::cross_entropy_finish(losses, hits, e.logits, e.largest, e.sums, targets, dloss, want_gradient, n, v,
                              s);
}

// losses (outputs) of rows (outputs, C), e.rows of them at a time
inline void loss_forward(real* losses, real* hits, const EndActivations& e, const floatX* rows,
                         const floatX* wte, const int* targets, int outputs, const ModelShape& m,
                         const Ranks& ranks, Stream s) {
    for (int first = 0; first < outputs; first += e.rows) {
        int n = std::min(e.rows, outputs - first);
        logits_forward(e, rows + (long)first * m.C, wte, n, m, ranks, s);
        loss_of_logits(losses + first, hits ? hits + first : nullptr, e, targets + first, 0, false, n, m,
                       ranks, s);
    }
}

// the same, and back: d (N_r, C) becomes the gradient of x times dloss; dw, db, dwte are set or, with `add`,
// added to
inline void loss_backward(floatX* d, real* losses, const EndActivations& e, const floatX* rows,
                          const floatX* x, const floatX* w, const floatX* wte, real* dw, real* db, real* dwte,
                          const int* targets, real dloss, const Scratch& scratch, const ModelShape& m,
                          const Ranks& ranks, Batch batch, bool add, Stream s) {
    int N = batch.rows(), N_r = ranks.rows(N), C = m.C;
    for (int first = 0; first < N; first += e.rows) {
        int n = std::min(e.rows, N - first);
        const floatX* some = rows + (long)first * C;
        logits_forward(e, some, wte, n, m, ranks, s);
        loss_of_logits(losses + first, nullptr, e, targets + first, dloss, true, n, m, ranks, s);
        Section timed("linears", s);
        dev::matmul_backward(scratch.branch + (long)first * C, dwte, nullptr, e.logits, some, wte,
                             scratch.sums, n, C, m.Vp / ranks.tp.size, add || first > 0, s);
    }
    const floatX* dln =
        reduce_rows(ranks, scratch.part, scratch.branch, N, C, "sum of the logits' gradient", s);
    Section timed("layer norm", s);
    set_zero(d, (size_t)N_r * C * sizeof(floatX), s);
    dev::layernorm_backward(d, dw, db, dln, x, w, e.mean, e.rstd, scratch.sums, N_r, C, add, s);
}
