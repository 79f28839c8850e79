// cross_entropy.cuh   loss[n] = log(sum over v of exp(logits[n][v])) - logits[n][target[n]]
//   one kernel does it. If the vocabulary is split over tensor-parallel ranks, it takes three
//   steps, between which the ranks reduce N and 2 N values, never logits:
//     1. largest[n] = max of this rank's logits                                 then MAX over the ranks
//     2. exp_sums[0][n] = sum of exp(logit - largest), [1][n] = target's logit  then SUM over the ranks
//     3. losses[n] = log(exp_sums[0]) + largest - exp_sums[1]; the logits become (softmax - onehot) * dloss
//   logits (N, v.size): the first v.valid columns belong to tokens v.first, v.first + 1, … Either the whole
//   vocabulary, (N, Vp) with V valid columns, or a tensor-parallel rank's shard.
//   targets (N) int; largest, losses (N), exp_sums (2, N) real. dlogits is 0 beyond the valid columns, except
//   in a row whose loss is not finite. A row with a negative target is ignored: its loss stays 0, as
//   clear_losses left it, and its gradient is 0 where its logits are finite (--loss-on answers).
//   kept:  nothing (the gradient overwrites the logits)
//   communicates: nothing here (model/vocabulary.h makes the calls between the steps)
//   cost: 4*N*V flops; logits read and written once if a row fits in shared memory; else, and in three
//   steps, read three times: memory bound
#pragma once
#include "base/operation.h"
#include "embedding.cuh"

// ---- the operations --------------------------------------------------------------------------------------

struct CrossEntropyMax {
    real* largest;
    const floatX* logits;
    int N;
    VocabularyShard v;

    static constexpr const char* name = "cross_entropy_max";
    std::vector<TensorAccess> tensors() const {
        return {reads("logits", logits, N, v.size), writes("largest", largest, N)};
    }
    void ref(Stream) const;
    void gpu(Stream) const;
};

struct CrossEntropySum {
    real* exp_sums;
    const real* largest;
    const floatX* logits;
    const int* targets;
    int N;
    VocabularyShard v;

    static constexpr const char* name = "cross_entropy_sum";
    std::vector<TensorAccess> tensors() const {
        return {reads("logits", logits, N, v.size), reads("targets", targets, N),
                reads("largest", largest, N), writes("exp_sums", exp_sums, 2, N)};
    }
    void ref(Stream) const;
    void gpu(Stream) const;
};

// the logits become their gradient, or are left as they are
inline TensorAccess logits_of(floatX* logits, real dloss, int N, VocabularyShard v) {
    return dloss != 0 ? updates("logits", logits, N, v.size) : reads("logits", logits, N, v.size);
}

struct CrossEntropyFinish {
    real* losses;
    floatX* logits;
    const real *largest, *exp_sums;
    const int* targets;
    real dloss;  // 0: no gradient is wanted
    int N;
    VocabularyShard v;

    static constexpr const char* name = "cross_entropy_finish";
    std::vector<TensorAccess> tensors() const {
        return {reads("largest", largest, N), reads("exp_sums", exp_sums, 2, N), reads("targets", targets, N),
                logits_of(logits, dloss, N, v), updates("losses", losses, N)};
    }
    void ref(Stream) const;
    void gpu(Stream) const;
};

// all three steps of one rank that has the whole vocabulary; largest and exp_sums are scratch
struct CrossEntropy {
    real* losses;
    floatX* logits;
    real *largest, *exp_sums;
    const int* targets;
    real dloss;  // 0: no gradient is wanted
    int N;
    VocabularyShard v;

    CrossEntropyMax largest_of_rows() const { return {largest, logits, N, v}; }
    CrossEntropySum sums_of_rows() const { return {exp_sums, largest, logits, targets, N, v}; }
    CrossEntropyFinish finish() const {
        return {losses, logits, largest, exp_sums, targets, dloss, N, v};
    }

    static constexpr const char* name = "cross_entropy";
    std::vector<TensorAccess> tensors() const {
        return {reads("targets", targets, N), logits_of(logits, dloss, N, v),
                updates("losses", losses, N)};
    }
    void ref(Stream) const;
    void gpu(Stream) const;
};

// ---- ref -------------------------------------------------------------------------------------------------

#if REF_HERE
void CrossEntropyMax::ref(Stream) const {
    #pragma omp parallel for
    for (int n = 0; n < N; n++) {
        const floatX* row = logits + (long)n * v.size;
        real most = -std::numeric_limits<real>::infinity();
        #pragma omp simd reduction(max : most)
        for (int c = 0; c < v.valid; c++) most = real(row[c]) > most ? real(row[c]) : most;
        largest[n] = most;
    }
}

void CrossEntropySum::ref(Stream) const {
    #pragma omp parallel for
    for (int n = 0; n < N; n++) {
        const floatX* row = logits + (long)n * v.size;
        real sum = 0, most = largest[n];
        // at most 1 each, as the largest is subtracted: no exp overflows
        #pragma omp simd reduction(+ : sum)
        for (int c = 0; c < v.valid; c++) sum += vector_exp(real(row[c]) - most);
        int column = targets[n] - v.first;  // the target's; within [0, v.valid) if this rank has it
        exp_sums[n] = sum;
        exp_sums[N + n] = column >= 0 && column < v.valid ? real(row[column]) : 0;
    }
}

void CrossEntropyFinish::ref(Stream) const {
    #pragma omp parallel for
    for (int n = 0; n < N; n++) {
        floatX* row = logits + (long)n * v.size;
        bool counts = targets[n] >= 0;
        real log_sum = largest[n] + std::log(exp_sums[n]), scale = counts ? dloss : 0;
        if (counts) losses[n] = log_sum - exp_sums[N + n];

        if (dloss == 0) continue;
        // softmax, less 1 at the target, times dloss
        #pragma omp simd
        for (int c = 0; c < v.valid; c++) row[c] = floatX(vector_exp(real(row[c]) - log_sum) * scale);
        for (int c = v.valid; c < v.size; c++) row[c] = floatX(0);

        int column = targets[n] - v.first;
        if (column >= 0 && column < v.valid)
            row[column] = floatX((vector_exp(exp_sums[N + n] - log_sum) - 1) * dloss);
    }
}

void CrossEntropy::ref(Stream s) const {
    largest_of_rows().ref(s);
    sums_of_rows().ref(s);
    finish().ref(s);
}
#endif

#if KERNELS_HERE
namespace gpu {

constexpr int cross_entropy_block = 512;  // one block per row, in all kernels

// bf16 logits are accurate to 2^-8 only, so the GPU's approximate 2^x, one instruction, is accurate enough
__device__ inline real exp_of(real x) {
    if constexpr (sizeof(floatX) == 2) return exp2_of(float(x) * log2_e);
    else return exp(x);
}

// calls f(vector, its column) for this thread's vectors of a row; loads of four are in flight at a time
template <class F>
__device__ void each_vector(const floatX* row, VocabularyShard v, F f) {
    constexpr int step = cross_entropy_block * vec_size, together = 4;
    if (v.size % vec_size) {
        for (int c = threadIdx.x * vec_size; c < v.size; c += step) f(load_row(row, c, v.size), c);
        return;
    }
    for (int first = threadIdx.x * vec_size; first < v.size; first += together * step) {
        Vec<floatX> x[together];
        #pragma unroll
        for (int i = 0; i < together; i++)
            x[i] = load16_if(first + i * step < v.size, row + first + i * step);
        #pragma unroll
        for (int i = 0; i < together; i++)
            if (first + i * step < v.size) f(x[i], first + i * step);
    }
}

// a vector's logits; columns from v.valid on, all in the last vectors, are -infinity, whose exp is 0
__device__ inline Values<real, vec_size> logits_of(const Vec<floatX>& x, int c, VocabularyShard v) {
    auto out = to_reals(x);
    for (int k = 0; c + vec_size > v.valid && k < vec_size; k++)
        if (c + k >= v.valid) out.at[k] = -INFINITY;
    return out;
}
__device__ inline void take_largest(real& most, const Values<real, vec_size>& x) {
    for (int k = 0; k < vec_size; k++) most = fmax(most, x.at[k]);
}
__device__ inline void add_exp(real& sum, const Values<real, vec_size>& x, real most) {
    for (int k = 0; k < vec_size; k++) sum += exp_of(x.at[k] - most);
}
// whether this thread has the vector with column c: it stores the target's gradient, after the vector's
__device__ inline bool has_column(int c) {
    return threadIdx.x == (unsigned)(c / vec_size % cross_entropy_block);
}
// the gradient for tokens other than the target
__device__ inline Vec<floatX> loss_gradients(Values<real, vec_size> x, real log_sum, real dloss) {
    for (int k = 0; k < vec_size; k++) x.at[k] = exp_of(x.at[k] - log_sum) * dloss;
    return rounded(x);
}

__global__ void cross_entropy_max_kernel(real* largest, const floatX* logits, VocabularyShard v) {
    SHARED(real, lane, cross_entropy_block / 32);
    real most = -INFINITY;
    each_vector(logits + (long)blockIdx.x * v.size, v,
                [&](const Vec<floatX>& x, int c) { take_largest(most, logits_of(x, c, v)); });
    most = max_over_block(most, lane);
    if (threadIdx.x == 0) largest[blockIdx.x] = most;
}

__global__ void cross_entropy_sum_kernel(real* exp_sums, const real* largest, const floatX* logits,
                                         const int* targets, VocabularyShard v) {
    SHARED(real, lane, cross_entropy_block / 32);
    int n = blockIdx.x, N = gridDim.x, column = targets[n] - v.first;
    const floatX* row = logits + (long)n * v.size;
    real sum = 0, most = largest[n];
    each_vector(row, v, [&](const Vec<floatX>& x, int c) { add_exp(sum, logits_of(x, c, v), most); });
    sum = sum_over_block(sum, lane);
    if (threadIdx.x == 0) {
        exp_sums[n] = sum;
        exp_sums[N + n] = column >= 0 && column < v.valid ? real(row[column]) : 0;
    }
}

__global__ void cross_entropy_finish_kernel(real* losses, floatX* logits, const real* largest,
                                            const real* exp_sums, const int* targets, real dloss,
                                            VocabularyShard v) {
    int n = blockIdx.x, N = gridDim.x, column = targets[n] - v.first;
    bool counts = targets[n] >= 0;
    floatX* row = logits + (long)n * v.size;
    real log_sum = counts ? largest[n] + log(exp_sums[n]) : INFINITY;  // makes all gradients 0
    if (threadIdx.x == 0 && counts) losses[n] = log_sum - exp_sums[N + n];
    if (dloss == 0) return;
    each_vector(row, v, [&](const Vec<floatX>& x, int c) {
        store_row(row, c, v.size, loss_gradients(logits_of(x, c, v), log_sum, dloss));
    });
    if (column >= 0 && column < v.valid && has_column(column))
        row[column] = floatX((exp_of(exp_sums[N + n] - log_sum) - 1) * dloss);
}

// the whole vocabulary on one rank: a row is read once, kept in shared memory, and written once
__global__ void __launch_bounds__(cross_entropy_block)
cross_entropy_kernel(real* losses, floatX* logits, const int* targets, real dloss,
                     VocabularyShard v) {
    DYNAMIC_SHARED(floatX, in_shared);
    SHARED(real, most_lane, cross_entropy_block / 32);
    SHARED(real, sum_lane, cross_entropy_block / 32);
    int n = blockIdx.x, column = targets[n];
    bool counts = column >= 0;
    floatX* row = logits + (long)n * v.size;
    constexpr int step = cross_entropy_block * vec_size;

    // 1. the largest logit, while the row is copied to shared memory
    real most = -INFINITY, sum = 0;
    each_vector(row, v, [&](const Vec<floatX>& x, int c) {
        auto valid = logits_of(x, c, v);
        store16(in_shared + c, rounded(valid));  // as they were
        take_largest(most, valid);
    });
    most = max_over_block(most, most_lane);

    // 2. the sum of exp; each thread reads only what it has stored itself
    #pragma unroll 4
    for (int c = threadIdx.x * vec_size; c < v.size; c += step)
        add_exp(sum, to_reals(load16(in_shared + c)), most);
    sum = sum_over_block(sum, sum_lane);

    // 3. the loss, and the gradient in the logits' place; INFINITY makes all gradients 0
    real log_sum = counts ? most + log(sum) : INFINITY, target = counts ? real(in_shared[column]) : 0;
    if (threadIdx.x == 0 && counts) losses[n] = log_sum - target;
    if (dloss == 0) return;

    #pragma unroll 4
    for (int c = threadIdx.x * vec_size; c < v.size; c += step)
        store_row(row, c, v.size, loss_gradients(to_reals(load16(in_shared + c)), log_sum, dloss));
    if (counts && has_column(column)) row[column] = floatX((exp_of(target - log_sum) - 1) * dloss);
}

}  // namespace gpu

void CrossEntropyMax::gpu(Stream s) const {
    LAUNCH(gpu::cross_entropy_max_kernel, N, gpu::cross_entropy_block, 0, s, largest, logits, v);
}

void CrossEntropySum::gpu(Stream s) const {
    LAUNCH(gpu::cross_entropy_sum_kernel, N, gpu::cross_entropy_block, 0, s, exp_sums, largest, logits,
           targets, v);
}

void CrossEntropyFinish::gpu(Stream s) const {
    LAUNCH(gpu::cross_entropy_finish_kernel, N, gpu::cross_entropy_block, 0, s, losses, logits, largest,
           exp_sums, targets, dloss, v);
}

void CrossEntropy::gpu(Stream s) const {
    size_t row = (size_t)ceil_div(v.size, vec_size) * sizeof(Vec<floatX>);
    if (row + 256 > largest_shared()) {  // 256: at least the kernel's static shared memory
        largest_of_rows().gpu(s);
        sums_of_rows().gpu(s);
        finish().gpu(s);
        return;
    }
    allow_shared(gpu::cross_entropy_kernel, row);
    LAUNCH(gpu::cross_entropy_kernel, N, gpu::cross_entropy_block, row, s, losses, logits, targets, dloss,
           v);
}
#endif
