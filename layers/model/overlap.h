// overlap.h   a block's GEMMs and their tensor-parallel calls, overlapped with --tensor-chunks k
//   The N rows are split into k chunks; chunk i starts at row i N / k. With sequence parallelism k divides t,
//   and a chunk is the rows of t / k ranks: each of them broadcasts its rows, or is the root of a reduce of
//   them. Without sequence parallelism nothing is gathered, and a chunk's partial sums are all-reduced.
//
//     k = 2              compute stream           tp_stream
//     gathered_gemm                               gather chunk 0
//                        GEMM of chunk 0          gather chunk 1
//                        GEMM of chunk 1
//     reduced_gemm       GEMM of chunk 0
//                        GEMM of chunk 1          reduce chunk 0
//                                                 reduce chunk 1
//     gathered_backward  dx                       gather the layer's input again
//                        dw                       reduce dx
//
//   gathered_backward needs no chunks (Megatron-LM does the same). With k = 1 everything is on the compute
//   stream. Results are the same, except that sums over ranks may be added in another order. GEMMs over fewer
//   rows may be slower: --plan predicts the gain.
#pragma once
#include "activations.h"

struct RowRange {
    int first, count;
    bool is_whole;  // all N rows
    long at(long width) const { return first * width; }  // offset of row `first` in a buffer (N, width)
};

// packed batches are not chunked: they can have any number of rows
inline int row_chunks_of(const LayerContext& ctx, BatchShape batch) {
    return batch.segments ? 1 : ctx.tp.row_chunks;
}

inline RowRange chunk_rows(int N, int chunk, int chunks) {
    int first = (int)((long)N * chunk / chunks), end = (int)((long)N * (chunk + 1) / chunks);
    return {first, end - first, chunks == 1};
}

// call(rank, its first row) for each rank that owns rows of a chunk, in one group of calls
template <class Call>
void for_each_owner(const TensorParallel& tp, RowRange rows, int N, Call call) {
    int each = tp.rows(N);
    comm::group_begin();
    for (int rank = rows.first / each; rank * each < rows.first + rows.count; rank++) call(rank, rank * each);
    comm::group_end();
}

// All-gathers `own` (N_r, C) chunk by chunk and calls gemm(rows, range) for each chunk; `rows` points to the
// first row of the range. Returns all N rows
template <class Gemm>
const floatX* gathered_gemm(const LayerContext& ctx, const floatX* own, BatchShape batch, const char* label,
                            Gemm gemm, comm::Where where = comm::Where::current()) {
    const TensorParallel& tp = ctx.tp;
    floatX* all = ctx.scratch.all_rows;
    int N = batch.rows(), C = ctx.shape.C, chunks = row_chunks_of(ctx, batch);
    if (chunks == 1 || !tp.sequence_parallel) {
        const floatX* rows = gather_rows(tp, all, own, N, C, label, ctx.stream, where);
        gemm(rows, {0, N, true});
        return rows;
    }

    // enqueues all gathers at once; each chunk's GEMM waits only for that chunk's gather
    std::vector<comm::StreamEvent> gathered;
    comm::wait_stream(tp.stream, ctx.stream);
    for (int i = 0; i < chunks; i++) {
        for_each_owner(tp, chunk_rows(N, i, chunks), N, [&](int rank, long first) {
            // the owner's N / t rows -> the same on all ranks
            comm::broadcast(tp.group, all + first * C, own, (long)tp.rows(N) * C, rank, label, tp.stream,
                            where);
        });
        gathered.push_back(comm::record_event(tp.stream));
    }

    for (int i = 0; i < chunks; i++) {
        comm::wait_event(ctx.stream, gathered[i], label);
        RowRange rows = chunk_rows(N, i, chunks);
        gemm(all + rows.at(C), rows);
    }
    return all;
}

// gemm(rows, range) computes this rank's partial sums for a range of the N rows; `rows` points to the first
// row of the range. Returns the sums over all ranks for this rank's rows
template <class Gemm>
const floatX* reduced_gemm(const LayerContext& ctx, BatchShape batch, const char* label, Gemm gemm,
                           comm::Where where = comm::Where::current()) {
    const TensorParallel& tp = ctx.tp;
    floatX *partial = ctx.scratch.partial, *reduced = ctx.scratch.reduced;
    int N = batch.rows(), C = ctx.shape.C, chunks = row_chunks_of(ctx, batch);
    if (chunks == 1) {
        gemm(partial, {0, N, true});
        return reduce_rows(tp, reduced, partial, N, C, label, ctx.stream, where);
    }

    for (int i = 0; i < chunks; i++) {
        RowRange rows = chunk_rows(N, i, chunks);
        gemm(partial + rows.at(C), rows);
        comm::wait_stream(tp.stream, ctx.stream);
        if (!tp.sequence_parallel) {
            // partial sums -> whole sums
            comm::all_reduce(tp.group, partial + rows.at(C), (long)rows.count * C, comm::Op::Sum, label,
                             tp.stream, where);
            continue;
        }
        for_each_owner(tp, rows, N, [&](int rank, long first) {
            // partial sums -> whole sums, on the owner of these N / t rows
            comm::reduce(tp.group, reduced, partial + first * C, (long)tp.rows(N) * C, rank, label, tp.stream,
                         where);
        });
    }

    comm::wait_event(ctx.stream, comm::record_event(tp.stream), label);
    return reduced;
}

// Backward of a column-parallel GEMM, whose input rows are gathered again. backward(dx, rows) sets dx (N, C)
// unless dx is nullptr, and computes the weight gradient from all rows unless `rows` is nullptr. Returns the
// sum of dx over all ranks for this rank's rows
template <class Backward>
floatX* gathered_backward(const LayerContext& ctx, const floatX* own, BatchShape batch,
                          const char* rows_label, const char* sum_label, Backward backward,
                          comm::Where where = comm::Where::current()) {
    const TensorParallel& tp = ctx.tp;
    const Scratch& scratch = ctx.scratch;
    int N = batch.rows(), C = ctx.shape.C;
    if (tp.row_chunks == 1) {
        const floatX* rows = gather_rows(tp, scratch.all_rows, own, N, C, rows_label, ctx.stream, where);
        backward(scratch.partial, rows);
        return reduce_rows(tp, scratch.reduced, scratch.partial, N, C, sum_label, ctx.stream, where);
    }

    comm::wait_stream(tp.stream, ctx.stream);
    const floatX* rows = gather_rows(tp, scratch.all_rows, own, N, C, rows_label, tp.stream, where);
    comm::StreamEvent gathered = comm::record_event(tp.stream);

    backward(scratch.partial, nullptr);
    comm::wait_stream(tp.stream, ctx.stream);
    floatX* reduced = reduce_rows(tp, scratch.reduced, scratch.partial, N, C, sum_label, tp.stream, where);
    if (tp.sequence_parallel) comm::wait_event(ctx.stream, gathered, rows_label);

    backward(nullptr, rows);
    comm::wait_event(ctx.stream, comm::record_event(tp.stream), sum_label);
    return reduced;
}
