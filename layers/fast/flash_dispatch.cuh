// flash_dispatch.cuh   gpu() of flash attention's operations: the faster of sm_80's and sm_90a's kernels
//   sm_90a's kernels run where all of these hold, for each shape, and separately for forward and backward:
//     the device is an sm_90 and the head size is 64 or 128;
//     where they were timed, for this shape, they were faster; the choice is then the run's, shared by its
//     ranks and kept in its checkpoints (autotune.h). That both agree is a check of ./test_gpt hopper.
//   Otherwise flash_attention.cuh's run. Whether a run uses flash attention at all is decided before it
//   starts, by uses_flash (run/setup.h); without it, attention.cuh keeps the scores in memory.
#pragma once
#include <utility>
#include "autotune.h"
#include "../base/hardware.h"
#include "flash_attention_hopper.cuh"
#include "flash_backward_hopper.cuh"

#if KERNELS_HERE
namespace gpu {

// ---- of sm_80, for any head size that has a kernel -------------------------------------------------------

// call(the head size, as a constant); a template, so that kernels of bf16 are not compiled for another floatX
template <class Function>
void with_head_size(int HS, Function call) {
    if constexpr (sizeof(floatX) != 2) fail("flash attention on this device wants bf16");
    else if (HS == 64) call(std::integral_constant<int, 64>());
    else if (HS == 80) call(std::integral_constant<int, 80>());
    else if (HS == 96) call(std::integral_constant<int, 96>());
    else if (HS == 128) call(std::integral_constant<int, 128>());
    else if (HS == 160) call(std::integral_constant<int, 160>());
    else fail("flash attention: a head size of %d: wants 64, 80, 96, 128 or 160", HS);
}

// ---- of sm_90a, where they are the faster ----------------------------------------------------------------

// whether sm_90a's kernel is used (on another GPU: false at once), decided once per shape; also called for
// packed batches. On the emulated device only checks use that kernel. run(true): sm_90a's
template <class Run>
bool takes_hopper(const char* what, AttentionShape a, Stream s, Run run) {
    // one for each caller, as `run` has a type of its own
    static AutotuneCache<std::tuple<int, int, int, int>, bool> chosen;
    if (host_is_device || !hopper_head_size(a.HS) || !device_is_hopper()) return false;
    return chosen.get({a.B, a.T, a.NH, a.HS}, [&] {
        // change the 3 with the kernels, so that choices timed with the old ones are not reused
        std::string key = text("flash attention 3 %s %d x %d, %d heads of %d", what, a.B, a.T, a.NH, a.HS);
        return autotuner.choose(key, 2, 0, s, [&](int way) {
            run(way == 1);
            return true;
        }) == 1;
    });
}

}  // namespace gpu

// ---- the operations --------------------------------------------------------------------------------------

void FlashForward::compute_with(bool hopper, Stream s) const {
    if (hopper) return gpu::flash_attention_hopper_forward(o, lse, qkv, a, s);
    gpu::with_head_size(a.HS, [&](auto HS) {
        gpu::flash_forward<decltype(HS)::value>(o, lse, qkv, a, s);
    });
}

// sm_90a's kernel leaves column sums of dqkv, of 128 keys each; after sm_80's, dqkv is read once more
void FlashBackward::compute_with(bool hopper, Stream s) const {
    if (hopper) gpu::flash_attention_hopper_backward(dqkv, scratch, dout, o, lse, qkv, a, s);
    else
        gpu::with_head_size(a.HS, [&](auto HS) {
            gpu::flash_backward<decltype(HS)::value>(dqkv, scratch, dout, o, lse, qkv, a, s);
        });
    if (!bias.db) return;
    int row = (int)a.row(), parts = a.B * ceil_div(a.T, 128);
    if (hopper) gpu::column_sum(bias.db, scratch.bias, bias.column_scratch, parts, row, bias.accumulate, s);
    else gpu::column_sum(bias.db, dqkv, bias.column_scratch, (int)a.rows(), row, bias.accumulate, s);
}

void FlashForward::gpu(Stream s) const {
    auto run = [&](bool hopper) { compute_with(hopper, s); };
    run(gpu::takes_hopper("forward", a, s, run));
}

void FlashBackward::gpu(Stream s) const {
    auto run = [&](bool hopper) { compute_with(hopper, s); };
    run(gpu::takes_hopper("backward", a, s, run));
}
#endif
