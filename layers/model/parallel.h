// parallel.h   tensor parallelism as a block sees it: which rows a rank holds; gathering and reducing them
//   Over t tensor-parallel ranks (Megatron-LM) GEMMs into a layer are cut by columns, GEMMs out of it
//   by rows: what comes out is a partial sum over all N rows, and is reduced. With sequence parallelism the
//   residual stream's rows are cut over the ranks as well: rank r holds rows [r N / t, (r + 1) N / t);
//   reductions become reduce-scatters, and all rows are gathered again before the next GEMM. N_r = N / t
//   then, else N_r = N. To add a collective: a line with its label and what each rank holds before and after,
//   here or in a layer's function; the same call in layers/plan/cost.h. A run ends with "plan and run DIFFER"
//   where that is forgotten.
#pragma once
#include <algorithm>
#include "../../comm/comm.h"

struct TensorParallel {
    comm::Group group;
    bool sequence_parallel = false;  // rows of the residual stream are cut over the group
    bool generates = false;          // text is generated as well, whose few rows are never cut
    int rows(int N) const { return sequence_parallel ? N / group.size : N; }  // N_r
    // rows that a buffer of the residual stream must hold
    long row_capacity(long B, long T) const {
        if (!sequence_parallel) return B * T;
        return generates ? std::max(B * T / group.size, T) : B * T / group.size;
    }
};

// this rank's rows -> all N rows
inline const floatX* gather_rows(const TensorParallel& tp, floatX* all, const floatX* own, int N, int C,
                                 const char* label, Stream s) {
    if (!tp.sequence_parallel) return own;
    comm::all_gather(tp.group, all, own, (long)tp.rows(N) * C, label, s);  // N / t rows -> N rows
    return all;
}

// partial sums over all N rows -> whole sums over this rank's rows; returns where they are
inline floatX* reduce_rows(const TensorParallel& tp, floatX* own, floatX* partial, int N, int C,
                           const char* label, Stream s) {
    if (tp.sequence_parallel) {
        // N partial -> N / t whole
        comm::reduce_scatter(tp.group, own, partial, (long)tp.rows(N) * C, label, s);
        return own;
    }
    comm::all_reduce(tp.group, partial, (long)N * C, comm::Op::Sum, label, s);  // N partial -> N whole
    return partial;
}
