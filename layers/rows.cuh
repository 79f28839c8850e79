// rows.cuh   how kernels hold rows in registers, and column sums, of which bias gradients are made
//   In kernels that need whole rows (layer norms), a row is held in the registers of 1, 4, 16 or 32 warps, at
//   most 32 values a thread, 16 bytes a read. column_sum sums x (N, C) over its rows, in fixed order.
//   communicates: nothing    cost: reads x once: memory bound
#pragma once
#include "base/operation.h"

// column_sum: out[c] = sum over n of x[n][c], always in the same order: in at most this many parts of the
// rows, then over the parts
constexpr int most_column_parts = 32;
inline int column_parts(int N) { return N < 64 * most_column_parts ? ceil_div(N, 64) : most_column_parts; }
inline long column_sum_scratch(int C) { return (long)most_column_parts * C; }

// Backward distributes the rows over groups of warps (those that share a row), each with its own sums:
// used_groups(), at most most_row_groups(C). The number depends on N and C alone: the order of summation is
// the same on every GPU
constexpr int longest_summed_row = 4096;  // for longer rows LayerNormBackward has no registers to sum dx too
constexpr int most_row_groups(int C) { return C <= 1024 ? 1536 : C <= 4096 ? 512 : C <= 16384 ? 128 : 0; }
constexpr int most_row_sums = 3;  // of a row's columns: dw, db and the bias gradient of the branch before
inline long row_scratch(int C) { return most_row_sums * (most_row_groups(C) * C + column_sum_scratch(C)); }

// ---- ref -------------------------------------------------------------------------------------------------

#if REF_HERE
namespace ref {

inline void column_sum(real* out, const floatX* x, real*, int N, int C, bool accumulate, Stream) {
    constexpr int strip = 64;
    #pragma omp parallel for
    for (int c0 = 0; c0 < C; c0 += strip) {
        real sum[strip] = {};
        int cs = C - c0 < strip ? C - c0 : strip;
        for (int n = 0; n < N; n++) {
            const floatX* xn = x + (long)n * C + c0;
            #pragma omp simd
            for (int c = 0; c < cs; c++) sum[c] += real(xn[c]);
        }
        for (int c = 0; c < cs; c++) out[c0 + c] = (accumulate ? out[c0 + c] : 0) + sum[c];
    }
}

}  // namespace ref
#endif

#if KERNELS_HERE
namespace gpu {

// ---- rows in registers -----------------------------------------------------------------------------------

constexpr int row_vectors = 32 / vec_size;  // per thread, at most

// warps per row of C values; 0: use the plain kernels
inline int row_warps(int C) {
    if (C % vec_size || C > 32768) return 0;
    return C <= 1024 ? 1 : C <= 4096 ? 4 : C <= 16384 ? 16 : 32;
}
constexpr int row_threads(int warps) { return warps < 4 ? 128 : warps * 32; }  // threads

// the sum over a row's threads, the same in each of them
template <int WARPS>
__device__ inline real row_sum(real x) {
    SHARED(real, warps, WARPS);
    x = warp_sum(x);
    if (WARPS == 1) return x;
    __syncthreads();  // the values of the previous call have been read
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
    __syncthreads();
    x = warps[0];
    for (int w = 1; w < WARPS; w++) x += warps[w];
    return x;
}

// a thread's rows are row_first, row_first + gridDim.x * rows_per_block, …, and its k-th vector begins at
// column row_column(k)
template <int WARPS>
__device__ inline int rows_per_block() {
    return blockDim.x / (WARPS * 32);
}
template <int WARPS>
__device__ inline int row_first() {
    return blockIdx.x * rows_per_block<WARPS>() + threadIdx.x / (WARPS * 32);
}
template <int WARPS>
__device__ inline int row_column(int k) {
    return (k * WARPS * 32 + threadIdx.x % (WARPS * 32)) * vec_size;
}

// this thread's k-th vector of a row; 0 beyond the row. There is no branch, so that all loads of a row are in
// flight together
template <int WARPS>
__device__ inline Vec<floatX> row_vector(const floatX* row, int k, int C) {
    int c = row_column<WARPS>(k);
    return c < C ? load16(row + c) : Vec<floatX>{};
}
template <int WARPS, int VECTORS>
__device__ inline void load_row_vectors(Vec<floatX> (&v)[VECTORS], const floatX* row, int C) {
    #pragma unroll
    for (int k = 0; k < VECTORS; k++) v[k] = row_vector<WARPS>(row, k, C);
}
template <int WARPS>
__device__ inline void store_row_vector(floatX* row, int k, const Vec<floatX>& v, int C) {
    if (row_column<WARPS>(k) < C) store16(row + row_column<WARPS>(k), v);
}
template <int WARPS, int VECTORS>
__device__ inline void store_row_vectors(floatX* row, const Vec<floatX> (&v)[VECTORS], int C) {
    #pragma unroll
    for (int k = 0; k < VECTORS; k++) store_row_vector<WARPS>(row, k, v[k], C);
}

template <int value>
using Constant = std::integral_constant<int, value>;

// call(Constant<WARPS>(), Constant<VECTORS>()) for rows of C values: fewer vectors leave room for more rows
template <class Function>
void with_row_warps(int C, Function call) {
    Constant<row_vectors> all;
    if (C <= 768) call(Constant<1>(), Constant<row_vectors * 3 / 4>());
    else if (row_warps(C) == 1) call(Constant<1>(), all);
    else if (C <= 2048) call(Constant<4>(), Constant<row_vectors / 2>());
    else if (row_warps(C) == 4) call(Constant<4>(), all);
    else if (row_warps(C) == 16) call(Constant<16>(), all);
    else call(Constant<32>(), all);
}

// ---- column sums ------------------------------------------------------------------------------------------

constexpr int column_lanes = 8, column_rows = 32;  // a block's threads: columns, 16 bytes each, by rows

// a block's share of the sums: blockIdx.y is the part of the rows; term(sum, n, c) adds row n's values from c
template <int EACH, class Term>
__device__ void sum_columns_of_block(real* parts, Term term, int N, int C) {
    constexpr int wide = column_lanes * EACH, plane = (column_rows + 1) * column_lanes;
    SHARED(real, sums, EACH * plane);  // one plane for each thread's k-th column, without bank conflicts
    int c = blockIdx.x * wide + threadIdx.x * EACH, own = threadIdx.y * column_lanes + threadIdx.x;
    int part = (N + gridDim.y - 1) / gridDim.y, first = blockIdx.y * part;
    int last = first + part < N ? first + part : N;

    real sum[EACH] = {};
    if (c < C) {
        #pragma unroll 4
        for (int n = first + threadIdx.y; n < last; n += column_rows) term(sum, n, c);
    }

    for (int k = 0; k < EACH; k++) sums[k * plane + own] = sum[k];
    __syncthreads();

    int lane = own % column_lanes, k = own / column_lanes, column = blockIdx.x * wide + lane * EACH + k;
    if (own >= wide || column >= C) return;
    real whole = 0;
    for (int y = 0; y < column_rows; y++) whole += sums[k * plane + y * column_lanes + lane];
    parts[(long)blockIdx.y * C + column] = whole;
}

// blockIdx.z: which of several matrices x (N, C), one after the other
template <class T>
__global__ void column_sum_kernel(real* parts, const T* x, int N, int C) {
    constexpr int each = Vec<T>::size;
    x += (long)blockIdx.z * N * C;
    parts += (long)blockIdx.z * gridDim.y * C;
    sum_columns_of_block<each>(parts, [=](real (&sum)[each], int n, int c) {
        Vec<T> v = load_row(x + (long)n * C, c, C);
        for (int k = 0; k < each; k++) sum[k] += real(v.at[k]);
    }, N, C);
}

struct ColumnSums {
    real* out[most_row_sums];
};

// blockIdx.y: whose parts, and where they are summed to
__global__ void column_sum_finish_kernel(ColumnSums sums, const real* parts, int count, int C,
                                         bool accumulate) {
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= C) return;
    real *out = sums.out[blockIdx.y], sum = 0;
    parts += (long)blockIdx.y * count * C;
    for (int p = 0; p < count; p++) sum += parts[(long)p * C + c];
    out[c] = (accumulate ? out[c] : 0) + sum;
}

template <int EACH>
dim3 column_blocks(int C, int parts, int matrices = 1) {
    return dim3(ceil_div(C, column_lanes * EACH), parts, matrices);
}

// the sums of `count` parts, for each of `matrices` matrices
inline void column_sum_finish(ColumnSums to, int matrices, const real* parts, int count, int C,
                              bool accumulate, Stream s) {
    LAUNCH(column_sum_finish_kernel, dim3(ceil_div(C, 128), matrices), 128, 0, s, to, parts, count, C,
           accumulate);
}

// of `matrices` matrices x (N, C), one after the other, each to its own out;
// scratch: matrices * column_sum_scratch(C)
template <class T>
void column_sums(ColumnSums to, int matrices, const T* x, real* scratch, int N, int C, bool accumulate,
                 Stream s) {
    int parts = column_parts(N);
    LAUNCH(column_sum_kernel<T>, column_blocks<Vec<T>::size>(C, parts, matrices),
           dim3(column_lanes, column_rows), 0, s, scratch, x, N, C);
    column_sum_finish(to, matrices, scratch, parts, C, accumulate, s);
}

template <class T>
void column_sum(real* out, const T* x, real* scratch, int N, int C, bool accumulate, Stream s) {
    column_sums(ColumnSums{{out}}, 1, x, scratch, N, C, accumulate, s);
}

// the number of groups that share N rows
inline int used_groups(int N, int C) { return std::min(most_row_groups(C), ceil_div(N, 4) * 4); }
// whether LayerNormBackward sums the new dx as well
inline bool sums_on_the_way(int C) { return row_warps(C) > 0 && C <= longest_summed_row; }

}  // namespace gpu
#endif
