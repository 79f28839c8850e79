// ends.h   what stands before the first block and after the last: embedding, logits, loss
//   The vocabulary lies over the tensor-parallel ranks: rank r has rows [r Vp / t, (r + 1) Vp / t) of the
//   token embedding, which is also the weight of the logits. A token of another rank looks up 0, and the sum
//   over the ranks is the whole; logits are never gathered in training (see cross_entropy.cuh).
#pragma once
#include "block.h"

struct EndActivations {
    floatX *ln, *logits;                      // (N_r, C)  (N, Vp / t)
    real *mean, *rstd;                        // (N_r)
    real *losses, *hits = nullptr;            // (Setup.losses, N) each; hits: see cross_entropy.cuh
    real *largest, *sums;                     // (N)  (2, N)

    // outputs: rows of logits at once, at most
    void place(Arena& arena, const ModelShape& m, const Ranks& ranks, int B, int outputs, int micro_batches,
               bool scores) {
        long N_r = ranks.room(B, m.T);
        losses = arena.take_real((long)micro_batches * outputs);
        if (scores) hits = arena.take_real((long)micro_batches * outputs);
        ln = arena.take_x(N_r * m.C);
        logits = arena.take_x((long)outputs * (m.Vp / ranks.tp.size));
        mean = arena.take_real(N_r), rstd = arena.take_real(N_r);
        largest = arena.take_real(outputs), sums = arena.take_real(2L * outputs);
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

// d (N_r, C): the gradient of x
inline void embed_backward(real* dwte, real* dwpe, const floatX* d, const int* tokens, const Scratch& scratch,
                           const ModelShape& m, const Ranks& ranks, Batch batch, Stream s) {
    Section timed("embedding", s);
    int N = batch.rows(), N_r = ranks.rows(N);
    Vocabularies v = own_vocabulary(m, ranks);
    dev::position_backward(dwpe, d, ranks.sequence ? ranks.tp.rank * N_r : 0, N_r, batch.T, m.C, s);
    const floatX* rows = gather_rows(ranks, scratch.full, d, N, m.C,
                                     "gradient rows for the embedding", s);
    dev::embedding_backward(dwte, tokens, rows, v.first, v.Vp, N, m.C, s);
}

// logits (N, Vp_r) from x (N_r, C); of a batch of segments only those that are wanted
inline void logits_forward(const EndActivations& e, const floatX* x, const floatX* w, const floatX* b,
                           const floatX* wte, const Scratch& scratch, const ModelShape& m, const Ranks& ranks,
                           Batch batch, Stream s) {
    int N = batch.rows();
    {
        Section timed("layer norm", s);
        dev::layernorm_forward(e.ln, e.mean, e.rstd, x, w, b, ranks.rows(N), m.C, s);
    }
    Section timed("linears", s);
    const floatX* rows = gather_rows(ranks, scratch.full, e.ln, N, m.C, "rows for the logits", s);
    if (batch.segments) {  // rows[wanted[i]]: a table looked up, as the embedding is
        dev::embedding_forward(scratch.branch, batch.segments->wanted, rows, 0, N, batch.outputs(), m.C, s);
        rows = scratch.branch;
    }
    dev::matmul_forward(e.logits, rows, wte, nullptr, batch.outputs(), m.C, m.Vp / ranks.tp.size, s);
}

// losses (N) added to, hits (N) set where they are not nullptr; with want_gradient the logits become dloss *
// their gradient
inline void loss_forward(real* losses, real* hits, const EndActivations& e, const int* targets, real dloss,
                         bool want_gradient, const ModelShape& m, const Ranks& ranks, Batch batch, Stream s) {
    Section timed("cross entropy", s);
    int N = batch.outputs();
    Vocabularies v = own_vocabulary(m, ranks);
    dev::cross_entropy_max(e.largest, e.logits, N, v, s);
    comm::all_reduce(ranks.tp, e.largest, N, comm::Op::Max, "largest logit", s);  // of my columns -> of all
    dev::cross_entropy_sum(e.sums, e.largest, e.logits, targets, N, v, s);
    // my columns -> all
    comm::all_reduce(ranks.tp, e.sums, 2L * N, comm::Op::Sum, "sum of exp and target", s);
    dev::cross_entropy_finish(losses, hits, e.logits, e.largest, e.sums, targets, dloss, want_gradient, N, v,
                              s);
}

// from dlogits: d (N_r, C) becomes the gradient of x; dw, db, dwte added to
inline void logits_backward(floatX* d, const EndActivations& e, const floatX* x, const floatX* w,
                            const floatX* wte, real* dw, real* db, real* dwte, const Scratch& scratch,
                            const ModelShape& m, const Ranks& ranks, Batch batch, Stream s) {
    int N = batch.rows(), N_r = ranks.rows(N), C = m.C;
    const floatX* dln;
    {
        Section timed("linears", s);
        const floatX* rows = gather_rows(ranks, scratch.full, e.ln, N, C, "rows for the logits, again", s);
        dev::matmul_backward(scratch.branch, dwte, nullptr, e.logits, rows, wte, scratch.sums, N, C,
                             m.Vp / ranks.tp.size, s);
        dln = reduce_rows(ranks, scratch.part, scratch.branch, N, C, "sum of the logits' gradient", s);
    }
    Section timed("layer norm", s);
    set_zero(d, (size_t)N_r * C * sizeof(floatX), s);
    dev::layernorm_backward(d, dw, db, dln, x, w, e.mean, e.rstd, scratch.sums, N_r, C, s);
}
