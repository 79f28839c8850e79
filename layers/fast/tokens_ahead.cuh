// tokens_ahead.cuh   how many tokens greedy decoding would take before a row's target: those with a larger
//   logit and, of those with the same, the earlier ones (as argmax does). 0: the target is the likeliest
//   logits (N, v.size) as in cross_entropy.cuh, before their gradient overwrites them   targets (N) int
//   target_logits (N): of all ranks; nullptr: this rank has the whole vocabulary   ahead (N) real; 1 where
//   a target is negative
//   kept:  nothing (evaluation only)
//   communicates: nothing (inference/packed_batch.h sums the tensor-parallel ranks' counts)
//   cost: reads the logits once: memory bound
#pragma once
#include "../cross_entropy.cuh"

struct TokensAhead {
    real* ahead;
    const floatX* logits;
    const real* target_logits;
    const int* targets;
    int N;
    VocabularyShard v;

    static constexpr const char* name = "tokens_ahead";
    std::vector<TensorAccess> tensors() const {
        return {reads("logits", logits, N, v.size), reads("target_logits", target_logits, N),
                reads("targets", targets, N), writes("ahead", ahead, N)};
    }
    void ref(Stream) const;
    void gpu(Stream) const;
};

// whether a token is before the target; not a number is, as then no target is the likeliest
HOST_DEVICE inline bool is_ahead(real logit, int token, real target_logit, int target) {
    return token != target && !(logit < target_logit || (logit == target_logit && token > target));
}

#if REF_HERE
void TokensAhead::ref(Stream) const {
    #pragma omp parallel for
    for (int n = 0; n < N; n++) {
        const floatX* row = logits + (long)n * v.size;
        int target = targets[n], count = target < 0;
        real its_logit = target < 0 ? 0 : target_logits ? target_logits[n] : real(row[target]);
        for (int c = 0; c < v.valid && target >= 0; c++)
            count += is_ahead(real(row[c]), v.first + c, its_logit, target);
        ahead[n] = real(count);
    }
}
#endif

#if KERNELS_HERE
namespace gpu {

// a block per row
__global__ void tokens_ahead_kernel(real* ahead, const floatX* logits, const real* target_logits,
                                    const int* targets, VocabularyShard v) {
    SHARED(real, lane, cross_entropy_block / 32);
    int n = blockIdx.x, target = targets[n];
    const floatX* row = logits + (long)n * v.size;
    real its_logit = target < 0 ? 0 : target_logits ? target_logits[n] : real(row[target]), count = 0;
    if (target >= 0)
        for (int c = threadIdx.x; c < v.valid; c += blockDim.x)
            count += is_ahead(real(row[c]), v.first + c, its_logit, target);
    count = sum_over_block(count, lane);
    if (threadIdx.x == 0) ahead[n] = target < 0 ? real(1) : count;
}

}  // namespace gpu

void TokensAhead::gpu(Stream s) const {
    LAUNCH(gpu::tokens_ahead_kernel, N, gpu::cross_entropy_block, 0, s, ahead, logits, target_logits, targets,
           v);
}
#endif
