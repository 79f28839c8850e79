// flash_dispatch.cuh   gpu() of flash attention's operations: the faster of sm_80's and sm_90a's kernels
//   sm_90a's kernels run where all of these hold, for each shape, and separately for forward and backward:
//     the device is an sm_90, the program has code for sm_90a, and the head size is 64, 80, 96 or 128;
//     they were faster for this shape when timed at the start (untimed, sm_80's run). The choice is the
//     run's, shared by its ranks and kept in its checkpoints (autotune.h); that both agree is a check of
//     ./test_gpt hopper.
//   Otherwise, or with TRAIN_GPT_SM80_ATTENTION=1 in the environment of all ranks, flash_attention.cuh's run:
//   should sm_90a's be wrong on some GPU, or for a comparison. Whether a run uses flash attention at all is
//   decided before it starts, by uses_flash (run/setup.h); without it, attention.cuh keeps the scores in
//   memory.
#pragma once
#include <utility>
#include "autotune.h"
#include "../base/hardware.h"
#include "flash_attention.cuh"
#include "flash_attention_hopper.cuh"
#include "flash_backward_hopper.cuh"

#if KERNELS_HERE
namespace gpu {

// calls `call` with the head size as a constant; a template, so that only a bf16 floatX compiles the kernels
template <class Function>
void with_head_size(int HS, Function call) {
    if constexpr (sizeof(floatX) != 2) fail("flash attention on this device requires bf16");
    else if (HS == 64) call(Constant<64>());
    else if (HS == 80) call(Constant<80>());
    else if (HS == 96) call(Constant<96>());
    else if (HS == 128) call(Constant<128>());
    else if (HS == 160) call(Constant<160>());
    else fail("flash attention: a head size of %d: expected 64, 80, 96, 128 or 160", HS);
}

// whether this program has sm_90a's code: a build for another architecture has these kernels too, but empty
__global__ void has_wgmma_kernel(int* out) { *out = has_wgmma; }
inline bool has_hopper_code(Stream s) {
    static const bool has = [s] {
        int* on_device = (int*)device_malloc(sizeof(int), "a question");
        LAUNCH(has_wgmma_kernel, 1, 1, 0, s, on_device);
        int answer = 0;
        copy_to_host(&answer, on_device, sizeof answer, s);
        device_free(on_device);
        return answer != 0;
    }();
    return has;
}

// whether o.compute_with(true, s), by sm_90a's kernels, is faster (on other GPUs: false at once), decided
// once per shape. On the emulated device only checks use those kernels
template <class Operation>
bool takes_hopper(const Operation& o, const char* what, AttentionShape a, Stream s) {
    static AutotuneCache<std::tuple<int, int, int, int>, bool> chosen;  // one for each operation
    static const char* sm80 = getenv("TRAIN_GPT_SM80_ATTENTION");
    if (host_is_device || (sm80 && !strcmp(sm80, "1"))) return false;
    return chosen.get({a.B, a.T, a.NH, a.HS}, [&] {
        if (!has_hopper_kernels(a.HS) || !device_is_hopper() || !has_hopper_code(s)) return false;
        // change the 6 with the kernels, so that choices timed with the old ones are not reused
        std::string key = text("flash attention 6 %s %d x %d, %d heads of %d", what, a.B, a.T, a.NH, a.HS);
        return autotuner.choose(key, 2, 0, s, [&](int way) {
            o.compute_with(way == 1, s);
            return true;
        }) == 1;
    });
}

// ---- what both kernels of backward read ------------------------------------------------------------------

// what backward needs of each query: lse, and delta = sum(dout * o); delta_lanes lanes a row, 16 bytes each
template <int HS>
constexpr int delta_lanes = HS > 128 ? 32 : HS > 64 ? 16 : 8;
template <int HS>
__global__ void flash_delta_kernel(float2* query_terms, const bf16* dout, const bf16* o, const real* lse,
                                   AttentionShape a) {
    constexpr int vectors = HS / vec_size, lanes = delta_lanes<HS>;
    int rows = a.T * a.NH, each = blockDim.x / lanes, blocks = (rows + each - 1) / each;  // of one sequence
    int b = blockIdx.x / blocks, row = blockIdx.x % blocks * each + threadIdx.x / lanes;
    int lane = threadIdx.x % lanes;

    float sum = 0;
    if (row < rows && lane < vectors) {
        long at = ((long)b * rows + row) * HS + lane * vec_size;
        Vec<bf16> ds = load16(dout + at), os = load16(o + at);
        for (int k = 0; k < vec_size; k++) sum += float(ds.at[k]) * float(os.at[k]);
    }
    for (int d = lanes / 2; d > 0; d /= 2) sum += __shfl_xor_sync(all_lanes, sum, d);

    if (row >= rows || lane > 0) return;
    long query = ((long)b * a.NH + row % a.NH) * a.T + row / a.NH;
    query_terms[query] = {lse[query] * log2_e, sum};
}

}  // namespace gpu

// ---- the operations --------------------------------------------------------------------------------------

void FlashForward::gpu(Stream s) const { compute_with(gpu::takes_hopper(*this, "forward", a, s), s); }
void FlashBackward::gpu(Stream s) const { compute_with(gpu::takes_hopper(*this, "backward", a, s), s); }

void FlashForward::compute_with(bool hopper, Stream s) const {
    gpu::with_head_size(a.HS, [&](auto head_size) {
        constexpr int HS = decltype(head_size)::value;
        if constexpr (gpu::has_hopper_kernels(HS))
            if (hopper) return gpu::flash_forward_hopper<HS>(o, lse, qkv, a, s);
        gpu::flash_forward<HS>(o, lse, qkv, a, s);
    });
}

// sm_90a's kernel leaves column sums of dqkv in fp32 (FlashScratch); after sm_80's, dqkv is read once more
void FlashBackward::compute_with(bool hopper, Stream s) const {
    set_zero(scratch.turns, flash_turns(a.B, a.NH, a.T) * sizeof(int), s);
    gpu::with_head_size(a.HS, [&](auto head_size) {
        constexpr int HS = decltype(head_size)::value;
        LAUNCH(gpu::flash_delta_kernel<HS>, a.B * ceil_div(a.T * a.NH, 128 / gpu::delta_lanes<HS>), 128, 0, s,
               (float2*)scratch.query_terms, dout, o, lse, a);
        if constexpr (gpu::has_hopper_kernels(HS))
            if (hopper) return gpu::flash_backward_hopper<HS>(dqkv, scratch, dout, qkv, a, s);
        gpu::flash_backward<HS>(dqkv, scratch, dout, qkv, a, s);
    });

    if (!db) return;
    int row = (int)a.ld_qkv();
    if (hopper)
        gpu::column_sum(db, scratch.dqkv_sums, column_scratch, a.B * ceil_div(a.T, 128), row,
                        accumulate, s);
    else gpu::column_sum(db, dqkv, column_scratch, (int)a.rows(), row, accumulate, s);
}
#endif
