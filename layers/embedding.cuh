// embedding.cuh   x[n] = wte[tokens[n]] + wpe[position of n]
//   tokens (N) int   wte (v.size, C): the vocabulary's tokens from v.first on; others give 0, so that the sum
//   over the tensor-parallel ranks, one of which adds wpe, is x   wpe (positions, C)   x, dx (N, C)
//   dwte, dwpe real
//   The position of row n is positions[n] or, if positions is nullptr, n % T, as in a batch (B, T). For dwpe,
//   dx has only the rows that this rank holds: the batch's from `offset` on.
//   kept:  nothing
//   backward (of whole sequences): adds to dwte; sets dwpe (T, C) or, with `accumulate`, adds to it. The
//   order of the sums does not depend on threads: the host sorts the rows by token (sorted_rows)
//   communicates: nothing    cost: rows read, x written; backward reads dx twice: memory bound
#pragma once
#include <algorithm>
#include <vector>
#include "base/operation.h"

// a tensor-parallel rank's tokens, or all: `size` from `first` on with padding, of which `valid` are real
struct VocabularyShard { int valid, size, first; };

// sorted_rows (N): the batch's rows sorted by token, equal tokens by row; run_starts (N + 1): run i is
// sorted_rows[run_starts[i]] … up to, but excluding, sorted_rows[run_starts[i + 1]]; after the last run all
// starts are N. Made on the host
inline void sort_tokens(int* rows, int* starts, const int* tokens, int N, int V) {
    std::vector<int> counts(V + 1, 0);
    for (int n = 0; n < N; n++) counts[tokens[n] + 1]++;
    // a counting sort: first how many rows each token has, then where its rows begin
    int run = 0;
    for (size_t v = 1; v < counts.size(); v++) {
        if (counts[v]) starts[run++] = counts[v - 1];
        counts[v] += counts[v - 1];
    }
    while (run <= N) starts[run++] = N;
    for (int n = 0; n < N; n++) rows[counts[tokens[n]]++] = n;
}

// ---- the operations --------------------------------------------------------------------------------------

// of wte, only the rows that are looked up are read; those of wpe are few. wpe nullptr: another rank adds it,
// or there is none
struct EmbeddingForward {
    floatX* x;
    const int* tokens;
    const floatX* wte;
    int N, C;
    VocabularyShard v;
    const floatX* wpe = nullptr;
    const int* positions = nullptr;
    int T = 1;

    static constexpr const char* name = "embedding_forward";
    std::vector<TensorAccess> tensors() const {
        return {reads("tokens", tokens, N), reads("wte", wte, v.size, C),
                reads("wpe", wpe, positions ? N : T, C), writes("x", x, N, C)};
    }
    std::vector<Work> works() const { return {moves(2.0 * N * C)}; }
    void ref(Stream) const;
    void gpu(Stream) const;
};

struct EmbeddingBackward {
    real* dwte;
    const int *tokens, *sorted_rows, *run_starts;
    const floatX* dx;
    int N, C;
    VocabularyShard v;

    static constexpr const char* name = "embedding_backward";
    std::vector<TensorAccess> tensors() const {
        return {reads("tokens", tokens, N), reads("dx", dx, N, C), updates("dwte", dwte, v.size, C)};
    }
    std::vector<Work> works() const { return {moves(1.0 * N * C, 2.0 * N * C)}; }
    void ref(Stream) const;
    void gpu(Stream) const;
};

struct PositionBackward {
    real* dwpe;
    const floatX* dx;
    int offset, N, T, C;
    bool accumulate;

    static constexpr const char* name = "position_backward";
    std::vector<TensorAccess> tensors() const {
        return {reads("dx", dx, N, C), sums_to("dwpe", dwpe, accumulate, T, C)};
    }
    void ref(Stream) const;
    void gpu(Stream) const;
};

// ---- ref -------------------------------------------------------------------------------------------------

#if REF_HERE
void EmbeddingForward::ref(Stream) const {
    #pragma omp parallel for
    for (int n = 0; n < N; n++) {
        long own = tokens[n] - v.first, position = positions ? positions[n] : n % T;
        bool is_own = own >= 0 && own < v.size;
        for (int c = 0; c < C; c++)
            x[(long)n * C + c] = floatX((is_own ? real(wte[own * C + c]) : 0) +
                                        (wpe ? real(wpe[position * C + c]) : 0));
    }
}

void EmbeddingBackward::ref(Stream) const {
    #pragma omp parallel for schedule(dynamic, 16)
    for (int run = 0; run < N; run++) {
        int first = run_starts[run], last = run_starts[run + 1];
        long own = first < N ? tokens[sorted_rows[first]] - v.first : -1;
        if (own < 0 || own >= v.size) continue;
        for (int i = first; i < last; i++) {
            const floatX* d = dx + (long)sorted_rows[i] * C;
            #pragma omp simd
            for (int c = 0; c < C; c++) dwte[own * C + c] += real(d[c]);
        }
    }
}

void PositionBackward::ref(Stream) const {
    #pragma omp parallel for
    for (int t = 0; t < T; t++) {
        real* position = dwpe + (long)t * C;
        if (!accumulate) std::fill(position, position + C, real(0));
        for (long n = ((t - offset) % T + T) % T; n < N; n += T) {
            #pragma omp simd
            for (int c = 0; c < C; c++) position[c] += real(dx[n * C + c]);
        }
    }
}
#endif

#if KERNELS_HERE
namespace gpu {

// a thread has 16 bytes of row n, from column c on; fewer at the end of a row whose length is not a multiple
// of the vector size
__global__ void embedding_forward_kernel(floatX* x, const int* tokens, const floatX* wte, const floatX* wpe,
                                         const int* positions, int N, int T, int C, VocabularyShard v) {
    long i = (long)blockIdx.x * blockDim.x + threadIdx.x, each = (C + vec_size - 1) / vec_size, n = i / each;
    int c = (int)(i % each) * vec_size;
    if (n >= N) return;
    int row = tokens[n] - v.first, position = positions ? positions[n] : (int)n % T;
    Vec<floatX> values = {}, p = {};
    if (row >= 0 && row < v.size) values = load_row(wte + (long)row * C, c, C);
    if (wpe) p = load_row(wpe + (long)position * C, c, C);
    for (int k = 0; k < vec_size; k++) values.at[k] = floatX(real(values.at[k]) + real(p.at[k]));
    store_row(x + n * C, c, C, values);
}

// block (32, 8): one run of equal tokens, 32 vectors of columns. Each warp sums every 8th row; then the
// warps' sums are added in order
constexpr int embedding_warps = 8;
__global__ void embedding_backward_kernel(real* dwte, const int* tokens, const int* sorted_rows,
                                          const int* run_starts, const floatX* dx, int N, int C,
                                          VocabularyShard v) {
    constexpr int pitch = 32 + 32 / vec_size;  // lanes with neighbouring columns use different banks
    SHARED(real, sums, embedding_warps * vec_size * pitch);

    int first = run_starts[blockIdx.x], last = run_starts[blockIdx.x + 1];
    if (first >= N) return;
    int own = tokens[sorted_rows[first]] - v.first, c = (blockIdx.y * 32 + threadIdx.x) * vec_size;
    if (own < 0 || own >= v.size) return;

    real sum[vec_size] = {};
    if (c < C) {
        #pragma unroll 4
        for (int i = first + threadIdx.y; i < last; i += embedding_warps) {
            Vec<floatX> d = load_row(dx + (long)sorted_rows[i] * C, c, C);
            for (int k = 0; k < vec_size; k++) sum[k] += real(d.at[k]);
        }
    }

    for (int k = 0; k < vec_size; k++) sums[(threadIdx.y * vec_size + k) * pitch + threadIdx.x] = sum[k];
    __syncthreads();

    // one column per thread: the sum of the warps' sums
    int t = threadIdx.y * 32 + threadIdx.x, column = blockIdx.y * 32 * vec_size + t;
    if (t >= 32 * vec_size || column >= C) return;
    real whole = 0;
    for (int w = 0; w < embedding_warps && w < last - first; w++)
        whole += sums[(w * vec_size + t % vec_size) * pitch + t / vec_size];
    dwte[(long)own * C + column] += whole;
}

// one thread per value of dwpe
__global__ void position_backward_kernel(real* dwpe, const floatX* dx, int offset, int N, int T, int C,
                                         bool accumulate) {
    long i = (long)blockIdx.x * blockDim.x + threadIdx.x, t = i / C;
    if (t >= T) return;
    long first = (t - offset % T + T) % T;
    real sum = 0;
    #pragma unroll 8
    for (int k = 0; k < (N - first + T - 1) / T; k++) sum += real(dx[(first + (long)k * T) * C + i % C]);
    dwpe[i] = (accumulate ? dwpe[i] : 0) + sum;
}

}  // namespace gpu

void EmbeddingForward::gpu(Stream s) const {
    LAUNCH(gpu::embedding_forward_kernel, ceil_div((long)N * ceil_div(C, vec_size), 256), 256, 0, s, x,
           tokens, wte, wpe, positions, N, T, C, v);
}

void EmbeddingBackward::gpu(Stream s) const {
    static_assert(vec_size <= gpu::embedding_warps);
    LAUNCH(gpu::embedding_backward_kernel, dim3(N, ceil_div(C, 32 * vec_size)),
           dim3(32, gpu::embedding_warps), 0, s, dwte, tokens, sorted_rows, run_starts, dx, N, C, v);
}

void PositionBackward::gpu(Stream s) const {
    LAUNCH(gpu::position_backward_kernel, ceil_div((long)T * C, 256), 256, 0, s, dwpe, dx, offset, N, T, C,
           accumulate);
}
#endif
