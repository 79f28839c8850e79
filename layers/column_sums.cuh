// column_sums.cuh   sums over the rows of x (N, C): gradients of biases
//   out[c] = sum over n of x[n][c], always in the same order: in parts of the rows, then over the parts
//   communicates: nothing    cost: reads x once: memory bound
#pragma once
#include "base/operation.h"

constexpr int max_column_parts = 32;  // of the rows
inline int column_parts(int N) { return N < 64 * max_column_parts ? ceil_div(N, 64) : max_column_parts; }
inline long column_sum_scratch(int C) { return (long)max_column_parts * C; }

// the gradient of a bias: the column sums of dy
struct BiasBackward {
    real* db;
    const floatX* dy;
    real* column_scratch;  // column_sum_scratch(C) values
    int N, C;
    bool accumulate;

    static constexpr const char* name = "bias_backward";
    std::vector<TensorAccess> tensors() const {
        return {reads("dy", dy, N, C), sums_to("db", db, accumulate, C)};
    }
    void ref(Stream) const;
    void gpu(Stream) const;
};

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

void BiasBackward::ref(Stream s) const { ref::column_sum(db, dy, column_scratch, N, C, accumulate, s); }
#endif

#if KERNELS_HERE
namespace gpu {

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
        #pragma unroll 2
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
__global__ void __launch_bounds__(column_lanes * column_rows, 8)
column_sum_kernel(real* parts, const T* x, int N, int C) {
    constexpr int each = Vec<T>::size;
    x += (long)blockIdx.z * N * C;
    parts += (long)blockIdx.z * gridDim.y * C;
    sum_columns_of_block<each>(parts, [=](real (&sum)[each], int n, int c) {
        Vec<T> v = load_row(x + (long)n * C, c, C);
        auto xs = to_reals(v);
        for (int k = 0; k < each; k++) sum[k] += xs.at[k];
    }, N, C);
}

// blockIdx.y: whose parts, and where they are summed to
__global__ void column_sum_finish_kernel(real* first, real* second, const real* parts, int count, int C,
                                         bool accumulate) {
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= C) return;
    real *out = blockIdx.y ? second : first, sum = 0;
    parts += (long)blockIdx.y * count * C;
    for (int p = 0; p < count; p++) sum += parts[(long)p * C + c];
    out[c] = (accumulate ? out[c] : 0) + sum;
}

template <int EACH>
dim3 column_blocks(int C, int parts, int matrices = 1) {
    return dim3(ceil_div(C, column_lanes * EACH), parts, matrices);
}

// the sums of `count` parts to `first`; with a `second`, those of the next matrix's parts there
inline void column_sum_finish(real* first, real* second, const real* parts, int count, int C, bool accumulate,
                              Stream s) {
    LAUNCH(column_sum_finish_kernel, dim3(ceil_div(C, 128), second ? 2 : 1), 128, 0, s, first, second, parts,
           count, C, accumulate);
}

// of x (N, C) to `first`; with a `second`, those of a further matrix behind x there (layer norm's dw and db);
// scratch: column_sum_scratch(C) for each
template <class T>
void column_sums(real* first, real* second, const T* x, real* scratch, int N, int C, bool accumulate,
                 Stream s) {
    int parts = column_parts(N), matrices = second ? 2 : 1;
    LAUNCH(column_sum_kernel<T>, column_blocks<Vec<T>::size>(C, parts, matrices),
           dim3(column_lanes, column_rows), 0, s, scratch, x, N, C);
    column_sum_finish(first, second, scratch, parts, C, accumulate, s);
}

template <class T>
void column_sum(real* out, const T* x, real* scratch, int N, int C, bool accumulate, Stream s) {
    column_sums(out, nullptr, x, scratch, N, C, accumulate, s);
}

}  // namespace gpu

void BiasBackward::gpu(Stream s) const { gpu::column_sum(db, dy, column_scratch, N, C, accumulate, s); }
#endif
