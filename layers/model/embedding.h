// embedding.h   x = wte[tokens] + wpe[positions], vocabulary-parallel
//   Rank r of t tensor-parallel ranks has rows [r Vp / t, (r + 1) Vp / t) of the token embedding, which is
//   also the weight of the logits. A token of another rank looks up 0, and the sum over the ranks is the
//   whole.
//   x (N_r, C)   tokens (N) int   wte (Vp_r, C)   wpe (T, C)
#pragma once
#include "../base/operation.h"
#include "activations.h"

// this rank's share of the vocabulary
inline VocabularyShard vocabulary_shard(const ModelShape& shape, const TensorParallel& tp) {
    int Vp_r = shape.Vp / tp.group.size, first = Vp_r * tp.group.rank;
    return {std::clamp(shape.V - first, 0, Vp_r), Vp_r, first};
}

// the first of this rank's rows in the batch
inline int first_row(const TensorParallel& tp, int N_r) {
    return tp.sequence_parallel ? tp.group.rank * N_r : 0;
}

inline void embed_forward(floatX* x, const int* tokens, const floatX* wte, const floatX* wpe,
                          const LayerContext& at, BatchShape batch) {
    Stream s = at.stream;
    Section timed("embedding", s);
    int N = batch.rows(), N_r = at.tp.rows(N), C = at.shape.C;
    VocabularyShard v = vocabulary_shard(at.shape, at.tp);
    dev::embedding_forward(at.scratch.partial, tokens, wte, v.first, v.Vp, N, C, s);
    floatX* own = reduce_rows(at.tp, x, at.scratch.partial, N, C, "sum of embeddings", s);
    if (own != x) copy_on_device(x, own, (size_t)N_r * C * sizeof(floatX), s);
    const int* positions = batch.segments ? batch.segments->positions : nullptr;
    dev::position_forward(x, wpe, positions, first_row(at.tp, N_r), N_r, batch.T, C, s);
}

// dwte is added to, dwpe set or, with at.accumulate, added to
inline void embed_backward(real* dwte, real* dwpe, const floatX* dx, const int* tokens, SortedTokens sorted,
                           const LayerContext& at, BatchShape batch) {
    Stream s = at.stream;
    Section timed("embedding", s);
    int N = batch.rows(), N_r = at.tp.rows(N), C = at.shape.C;
    VocabularyShard v = vocabulary_shard(at.shape, at.tp);
    dev::position_backward(dwpe, dx, first_row(at.tp, N_r), N_r, batch.T, C, at.accumulate, s);
    const floatX* rows =
        gather_rows(at.tp, at.scratch.all_rows, dx, N, C, "gradient rows for the embedding", s);
    dev::embedding_backward(dwte, tokens, sorted, rows, v.first, v.Vp, N, C, s);
}
