// layernorm.cuh   y = (x - mean) * rstd * w + b, over the C values of each row, eps 1e-5; and, over several
//   tensor-parallel ranks or with --fp8, the residual addition: fused into a block's second layer norm, and
//   alone at the block's end
//   f is a branch's output, reduced over the ranks; its bias and the residual are added here, once. Otherwise
//   the branch's last GEMM adds them (linear.cuh). The addition's backward is the identity except for the
//   bias, whose gradient is the sum over the rows.
//   x, y, dx, dy, residual, f (N, C)   w, b, bias (C)   their gradients (C) real   stats.mean, .rstd (N) real
//   kept:  stats (the block keeps x)
//   backward: adds to dx (the residual's gradient flows there too); sets the others or, with `accumulate`,
//             adds to them; scratch: ln_scratch(C) values
//   communicates: nothing    cost: 8*N*C flops; forward reads x, writes y (with f it reads two
//                            and writes two); backward reads x, dy, dx and writes dx: memory bound
//   gpu: a row is held in the registers of 1, 4, 16 or 32 warps, at most 32 values a thread, 16 bytes a read
//   (backward with 16 warps, for C > 4096: read twice). In backward each group of warps strides over the rows
//   and keeps its own sums for dw and db. The plain kernels, which read more often, handle rows that are not
//   whole vectors, or longer than 32768 (backward: 16384, as 32 warps would have too few registers).
#pragma once
#include "column_sums.cuh"

constexpr real layernorm_epsilon = real(1e-5);

struct NormStats { real *mean, *rstd; };  // (N) each

// Backward distributes the rows over groups of warps (those that share a row), each with its own sums:
// used_groups(), at most max_row_groups(C). The number depends on N and C alone: the order of summation is
// the same on every GPU
constexpr int max_row_groups(int C) { return C <= 1024 ? 1536 : C <= 4096 ? 512 : C <= 16384 ? 128 : 0; }
// the groups' sums for dw and db, and scratch to add them up
inline long ln_scratch(int C) {
    return 2 * (max_row_groups(C) * C + column_sum_scratch(C));
}

// ---- the operations --------------------------------------------------------------------------------------

struct ResidualForward {
    floatX* y;
    const floatX *residual, *f, *bias;
    int N, C;

    static constexpr const char* name = "residual_forward";
    std::vector<TensorAccess> tensors() const {
        return {reads("residual", residual, N, C), reads("f", f, N, C), reads("bias", bias, C),
                writes("y", y, N, C)};
    }
    void ref(Stream) const;
    void gpu(Stream) const;
};

// y = the layer norm of x or, with a branch f, of mid = residual + f + bias, written first
struct LayerNormForward {
    floatX* y;
    NormStats stats;
    const floatX *x, *w, *b;
    int N, C;
    floatX* mid = nullptr;
    const floatX *residual = nullptr, *f = nullptr, *bias = nullptr;

    static constexpr const char* name = "layernorm_forward";
    std::vector<TensorAccess> tensors() const {
        return {reads("residual", f ? residual : nullptr, N, C), reads("f", f, N, C),
                reads("bias", f ? bias : nullptr, C), f ? writes("mid", mid, N, C) : reads("x", x, N, C),
                reads("w", w, C), reads("b", b, C), writes("y", y, N, C), writes("mean", stats.mean, N),
                writes("rstd", stats.rstd, N)};
    }
    void ref(Stream) const;
    void gpu(Stream) const;
};

struct LayerNormBackward {
    floatX* dx;
    real *dw, *db;
    const floatX *dy, *x, *w;
    NormStats stats;
    real* column_scratch;  // ln_scratch(C) values: (2, groups, C), and scratch to sum over the groups
    int N, C;
    bool accumulate;

    static constexpr const char* name = "layernorm_backward";
    std::vector<TensorAccess> tensors() const {
        return {reads("dy", dy, N, C), reads("x", x, N, C), reads("w", w, C), reads("mean", stats.mean, N),
                reads("rstd", stats.rstd, N), updates("dx", dx, N, C),
                sums_to("dw", dw, accumulate, C), sums_to("db", db, accumulate, C)};
    }
    void ref(Stream) const;
    void gpu(Stream) const;
};

// ---- ref -------------------------------------------------------------------------------------------------

#if REF_HERE
void ResidualForward::ref(Stream) const {
    #pragma omp parallel for
    for (int n = 0; n < N; n++) {
        long row = (long)n * C;
        #pragma omp simd
        for (int c = 0; c < C; c++)
            y[row + c] = floatX(real(residual[row + c]) + real(f[row + c]) + real(bias[c]));
    }
}

void LayerNormForward::ref(Stream s) const {
    if (f) ResidualForward{.y = mid, .residual = residual, .f = f, .bias = bias, .N = N, .C = C}.ref(s);
    const floatX* rows = f ? mid : x;

    #pragma omp parallel for
    for (int n = 0; n < N; n++) {
        const floatX* xn = rows + (long)n * C;
        real total = 0, square = 0;
        // the mean first, then the variance around it: E[x^2] - mean^2 would cancel
        #pragma omp simd reduction(+ : total)
        for (int c = 0; c < C; c++) total += real(xn[c]);
        real m = total / C;
        #pragma omp simd reduction(+ : square)
        for (int c = 0; c < C; c++) square += (real(xn[c]) - m) * (real(xn[c]) - m);
        real r = 1 / std::sqrt(square / C + layernorm_epsilon);

        floatX* yn = y + (long)n * C;
        #pragma omp simd
        for (int c = 0; c < C; c++) yn[c] = floatX((real(xn[c]) - m) * r * real(w[c]) + real(b[c]));
        stats.mean[n] = m;
        stats.rstd[n] = r;
    }
}

// with xhat = (x - mean) * rstd and g = dy * w:  dx += rstd * (g - mean(g) - xhat * mean(g * xhat))
void LayerNormBackward::ref(Stream) const {
    #pragma omp parallel for
    for (int n = 0; n < N; n++) {
        const floatX *xn = x + (long)n * C, *dyn = dy + (long)n * C;
        floatX* dxn = dx + (long)n * C;
        real m = stats.mean[n], r = stats.rstd[n], g_sum = 0, gx_sum = 0;

        // mean(g) and mean(g * xhat): how the gradient passes through the row's mean and rstd
        #pragma omp simd reduction(+ : g_sum, gx_sum)
        for (int c = 0; c < C; c++) {
            real g = real(dyn[c]) * real(w[c]);
            g_sum += g;
            gx_sum += g * (real(xn[c]) - m) * r;
        }
        g_sum /= C;
        gx_sum /= C;

        #pragma omp simd
        for (int c = 0; c < C; c++) {
            real g = real(dyn[c]) * real(w[c]), xhat = (real(xn[c]) - m) * r;
            dxn[c] = floatX(real(dxn[c]) + r * (g - g_sum - xhat * gx_sum));
        }
    }

    // dw = sum over rows of dy * xhat, db = sum of dy
    // each thread sums some columns, row after row: the order does not depend on the threads
    constexpr int strip = 64;
    #pragma omp parallel for
    for (int c0 = 0; c0 < C; c0 += strip) {
        real w_sum[strip] = {}, b_sum[strip] = {};
        int cs = C - c0 < strip ? C - c0 : strip;
        for (int n = 0; n < N; n++) {
            const floatX *xn = x + (long)n * C + c0, *dyn = dy + (long)n * C + c0;
            real m = stats.mean[n], r = stats.rstd[n];
            #pragma omp simd
            for (int c = 0; c < cs; c++) {
                w_sum[c] += real(dyn[c]) * (real(xn[c]) - m) * r;
                b_sum[c] += real(dyn[c]);
            }
        }

        for (int c = 0; c < cs; c++) {
            dw[c0 + c] = (accumulate ? dw[c0 + c] : 0) + w_sum[c];
            db[c0 + c] = (accumulate ? db[c0 + c] : 0) + b_sum[c];
        }
    }
}
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
// threads of a block: four rows of one warp each, or one row
constexpr int row_threads(int warps) { return warps < 4 ? 128 : warps * 32; }

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

// a thread's rows are thread_first_row, that + gridDim.x * rows_per_block, …, and its k-th vector begins at
// column row_column(k)
template <int WARPS>
__device__ inline int rows_per_block() {
    return blockDim.x / (WARPS * 32);
}
template <int WARPS>
__device__ inline int thread_first_row() {
    return blockIdx.x * rows_per_block<WARPS>() + threadIdx.x / (WARPS * 32);
}
template <int WARPS>
__device__ inline int row_column(int k) {
    return (k * WARPS * 32 + threadIdx.x % (WARPS * 32)) * vec_size;
}

// this thread's k-th vector of a row; 0 beyond the row. There is no branch, so that all loads of a row are in
// flight together. (In fp32, 16 warps have no registers for a choice by words: it would spill in backward)
template <int WARPS>
__device__ inline Vec<floatX> row_vector(const floatX* row, int k, int C) {
    int c = row_column<WARPS>(k);
    if constexpr (sizeof(floatX) > 2 && WARPS == 16) return c < C ? load16(row + c) : Vec<floatX>{};
    return load16_if(c < C, row + c);
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

// the number of groups that share N rows
inline int used_groups(int N, int C) { return std::min(max_row_groups(C), ceil_div(N, 4) * 4); }

// ---- the residual -----------------------------------------------------------------------------------------

// a thread has 16 bytes of a row
__global__ void residual_forward_kernel(floatX* y, const floatX* residual, const floatX* f,
                                        const floatX* bias, int N, int C) {
    long i = (long)blockIdx.x * blockDim.x + threadIdx.x, each = (C + vec_size - 1) / vec_size;
    long row = i / each * C;
    int c = (int)(i % each) * vec_size;
    if (i >= N * each) return;
    auto xs = to_reals(load_row(residual + row, c, C)), fs = to_reals(load_row(f + row, c, C));
    auto bs = to_reals(load_row(bias, c, C));
    for (int k = 0; k < vec_size; k++) xs.at[k] = xs.at[k] + fs.at[k] + bs.at[k];
    store_row(y + row, c, C, rounded(xs));
}

// ---- layer norm, with rows in registers ------------------------------------------------------------------

// with a branch f, the rows are residual + f + bias, written to `mid`; otherwise x
template <int WARPS, int VECTORS>
__global__ void __launch_bounds__(row_threads(WARPS))
layernorm_forward_rows_kernel(floatX* y, NormStats stats, const floatX* x, floatX* mid,
                              const floatX* residual, const floatX* f, const floatX* bias, const floatX* w,
                              const floatX* b, int N, int C) {
    int n = thread_first_row<WARPS>();
    if (n >= N) return;  // for all threads of the row
    long row = (long)n * C;
    Vec<floatX> v[VECTORS];
    real sum = 0, square = 0, inverse = 1 / real(C);

    // the row, read once: from here on it is in registers, rounded as it is stored
    load_row_vectors<WARPS>(v, (f ? residual : x) + row, C);
    if (f) {
        #pragma unroll
        for (int k = 0; k < VECTORS; k++) {
            auto xs = to_reals(v[k]), fs = to_reals(row_vector<WARPS>(f + row, k, C));
            auto bs = to_reals(row_vector<WARPS>(bias, k, C));
            for (int i = 0; i < vec_size; i++) v[k].at[i] = floatX(xs.at[i] + fs.at[i] + bs.at[i]);
        }
        store_row_vectors<WARPS>(mid + row, v, C);
    }

    // mean and variance
    #pragma unroll
    for (int k = 0; k < VECTORS; k++) {
        auto xs = to_reals(v[k]);
        for (int i = 0; i < vec_size; i++) sum += xs.at[i];
    }
    real m = row_sum<WARPS>(sum) * inverse;
    #pragma unroll
    for (int k = 0; k < VECTORS; k++) {
        auto xs = to_reals(v[k]);
        for (int i = 0; i < vec_size; i++)
            if (row_column<WARPS>(k) < C) square += (xs.at[i] - m) * (xs.at[i] - m);
    }

    real r = 1 / sqrt(row_sum<WARPS>(square) * inverse + layernorm_epsilon);
    #pragma unroll
    for (int k = 0; k < VECTORS; k++) {
        auto xs = to_reals(v[k]), ws = to_reals(row_vector<WARPS>(w, k, C));
        auto bs = to_reals(row_vector<WARPS>(b, k, C));
        for (int i = 0; i < vec_size; i++) v[k].at[i] = floatX((xs.at[i] - m) * r * ws.at[i] + bs.at[i]);
    }

    store_row_vectors<WARPS>(y + row, v, C);
    if (row_column<WARPS>(0) == 0) {
        stats.mean[n] = m;
        stats.rstd[n] = r;
    }
}

// how many blocks of backward a multiprocessor must have registers for: with three (rows of up to 768 values)
// or four (up to 2048), a Hopper GPU's 132 multiprocessors run all groups at once
constexpr int norm_backward_blocks(int warps, int vectors) {
    return vectors == row_vectors ? 1 : warps == 1 ? 3 : warps == 4 ? 4 : 1;
}

// parts (2, groups, C): each group's sums for dw and for db
template <int WARPS, int VECTORS>
__global__ void __launch_bounds__(row_threads(WARPS), norm_backward_blocks(WARPS, VECTORS))
layernorm_backward_rows_kernel(floatX* dx, real* parts, const floatX* dy, const floatX* x, const floatX* w,
                               NormStats stats, int N, int C) {
    int first = thread_first_row<WARPS>(), step = gridDim.x * rows_per_block<WARPS>();
    real dw[VECTORS][vec_size] = {}, db[VECTORS][vec_size] = {};
    constexpr bool keeps = WARPS < 16;  // 16 warps or more leave a thread too few registers: they read twice
    real inverse = 1 / real(C);

    for (int n = first; n < N; n += step) {
        long row = (long)n * C;
        Vec<floatX> xs[VECTORS], gs[VECTORS], out[VECTORS];
        if (keeps) {
            load_row_vectors<WARPS>(xs, x + row, C);
            load_row_vectors<WARPS>(gs, dy + row, C);
            load_row_vectors<WARPS>(out, dx + row, C);
        }

        // the row's two means, and on the way this group's sums for dw and db
        real m = stats.mean[n], r = stats.rstd[n], g_sum = 0, gx_sum = 0;
        #pragma unroll
        for (int k = 0; k < VECTORS; k++) {
            Vec<floatX> xk = keeps ? xs[k] : row_vector<WARPS>(x + row, k, C);
            Vec<floatX> gk = keeps ? gs[k] : row_vector<WARPS>(dy + row, k, C);
            Vec<floatX> wk = row_vector<WARPS>(w, k, C);
            for (int i = 0; i < vec_size; i++) {
                real xhat = (real(xk.at[i]) - m) * r, d = real(gk.at[i]), g = d * real(wk.at[i]);
                g_sum += g;
                gx_sum += g * xhat;
                dw[k][i] += d * xhat;
                db[k][i] += d;
            }
        }

        g_sum = row_sum<WARPS>(g_sum) * inverse;
        gx_sum = row_sum<WARPS>(gx_sum) * inverse;
        // dx, added to the residual stream's gradient so far
        #pragma unroll
        for (int k = 0; k < VECTORS; k++) {
            Vec<floatX> xk = keeps ? xs[k] : row_vector<WARPS>(x + row, k, C);
            Vec<floatX> gk = keeps ? gs[k] : row_vector<WARPS>(dy + row, k, C);
            Vec<floatX> dk = keeps ? out[k] : row_vector<WARPS>(dx + row, k, C);
            Vec<floatX> wk = row_vector<WARPS>(w, k, C);
            for (int i = 0; i < vec_size; i++) {
                real xhat = (real(xk.at[i]) - m) * r, g = real(gk.at[i]) * real(wk.at[i]);
                dk.at[i] = floatX(real(dk.at[i]) + r * (g - g_sum - xhat * gx_sum));
            }
            store_row_vector<WARPS>(dx + row, k, dk, C);
        }
    }

    // the group's sums; column_sums adds those of all groups
    #pragma unroll
    for (int k = 0; k < VECTORS; k++) {
        int c = row_column<WARPS>(k);
        if (c >= C) break;
        for (int i = 0; i < vec_size; i += Vec<real>::size) {
            store16(parts + (long)first * C + c + i, *(const Vec<real>*)&dw[k][i]);
            store16(parts + ((long)step + first) * C + c + i, *(const Vec<real>*)&db[k][i]);
        }
    }
}

// ---- rows of any length: one warp per row, its C values spread over the lanes ----------------------------

__global__ void layernorm_forward_kernel(floatX* y, NormStats stats, const floatX* x, const floatX* w,
                                         const floatX* b, int N, int C) {
    int lane = threadIdx.x % 32, n = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (n >= N) return;
    x += (long)n * C;
    y += (long)n * C;

    real sum = 0, square = 0;
    for (int c = lane; c < C; c += 32) sum += real(x[c]);
    real m = warp_sum(sum) / C;
    for (int c = lane; c < C; c += 32) square += (real(x[c]) - m) * (real(x[c]) - m);
    real r = 1 / sqrt(warp_sum(square) / C + layernorm_epsilon);
    for (int c = lane; c < C; c += 32) y[c] = floatX((real(x[c]) - m) * r * real(w[c]) + real(b[c]));

    if (lane == 0) {
        stats.mean[n] = m;
        stats.rstd[n] = r;
    }
}

__global__ void layernorm_backward_kernel(floatX* dx, const floatX* dy, const floatX* x, const floatX* w,
                                          NormStats stats, int N, int C) {
    int lane = threadIdx.x % 32, n = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (n >= N) return;
    x += (long)n * C;
    dx += (long)n * C;
    dy += (long)n * C;

    real m = stats.mean[n], r = stats.rstd[n], g_sum = 0, gx_sum = 0;
    for (int c = lane; c < C; c += 32) {
        real g = real(dy[c]) * real(w[c]);
        g_sum += g;
        gx_sum += g * (real(x[c]) - m) * r;
    }
    g_sum = warp_sum(g_sum) / C;
    gx_sum = warp_sum(gx_sum) / C;

    for (int c = lane; c < C; c += 32) {
        real g = real(dy[c]) * real(w[c]), xhat = (real(x[c]) - m) * r;
        dx[c] = floatX(real(dx[c]) + r * (g - g_sum - xhat * gx_sum));
    }
}

// dw, in parts: the column sums of dy * xhat
__global__ void column_sum_normalised_kernel(real* parts, const floatX* dy, const floatX* x, const real* mean,
                                             const real* rstd, int N, int C) {
    sum_columns_of_block<vec_size>(parts, [=](real (&sum)[vec_size], int n, int c) {
        Vec<floatX> d = load_row(dy + (long)n * C, c, C), v = load_row(x + (long)n * C, c, C);
        for (int k = 0; k < vec_size; k++) sum[k] += real(d.at[k]) * (real(v.at[k]) - mean[n]) * rstd[n];
    }, N, C);
}

constexpr int layernorm_block = 128;

}  // namespace gpu

void ResidualForward::gpu(Stream s) const {
    LAUNCH(gpu::residual_forward_kernel, ceil_div((long)N * ceil_div(C, vec_size), 256), 256, 0, s, y,
           residual, f, bias, N, C);
}

void LayerNormForward::gpu(Stream s) const {
    if (!gpu::row_warps(C)) {
        if (f) ResidualForward{.y = mid, .residual = residual, .f = f, .bias = bias, .N = N, .C = C}.gpu(s);
        LAUNCH(gpu::layernorm_forward_kernel, ceil_div(N, gpu::layernorm_block / 32), gpu::layernorm_block, 0,
               s, y, stats, f ? mid : x, w, b, N, C);
        return;
    }
    gpu::with_row_warps(C, [&](auto warps, auto vectors) {
        constexpr int W = warps, V = vectors, block = gpu::row_threads(W);
        LAUNCH((gpu::layernorm_forward_rows_kernel<W, V>), ceil_div(N, block / (W * 32)), block, 0, s, y,
               stats, x, mid, residual, f, bias, w, b, N, C);
    });
}

void LayerNormBackward::gpu(Stream s) const {
    int groups = gpu::used_groups(N, C);
    real* sums = column_scratch + 2L * max_row_groups(C) * C;
    if (!gpu::row_warps(C) || !groups) {
        LAUNCH(gpu::layernorm_backward_kernel, ceil_div(N, gpu::layernorm_block / 32), gpu::layernorm_block,
               0, s, dx, dy, x, w, stats, N, C);
        gpu::column_sum(db, dy, sums, N, C, accumulate, s);
        int parts = column_parts(N);
        LAUNCH(gpu::column_sum_normalised_kernel, gpu::column_blocks<vec_size>(C, parts),
               dim3(gpu::column_lanes, gpu::column_rows), 0, s, sums, dy, x, stats.mean, stats.rstd, N, C);
        gpu::column_sum_finish(dw, nullptr, sums, parts, C, accumulate, s);
        return;
    }

    // the row kernel leaves each group's column sums
    gpu::with_row_warps(C, [&](auto warps, auto vectors) {
        constexpr int W = std::min<int>(warps, 16), V = vectors, block = gpu::row_threads(W);
        LAUNCH((gpu::layernorm_backward_rows_kernel<W, V>), groups / (block / (W * 32)), block, 0, s, dx,
               column_scratch, dy, x, w, stats, N, C);
    });
    gpu::column_sums(dw, db, column_scratch, sums, groups, C, accumulate, s);
}
#endif
