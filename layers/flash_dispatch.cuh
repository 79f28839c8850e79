// flash_dispatch.cuh   flash attention as an operation of a step: the faster of sm_80's and sm_90a's kernels
//   sm_90a's kernels run where all of these hold, for each shape, and separately for forward and backward:
//     the device is an sm_90 and the head size is 64 or 128;
//     where they were timed, for this shape, they agreed with sm_80's to rounding and were faster; the
//     choice is then the run's, shared by its ranks and kept in its checkpoints (autotune.h).
//   Otherwise flash_attention.cuh's run. Whether a run uses flash attention at all is decided before it
//   starts, by uses_flash (model/setup.h); without it, attention.cuh keeps the scores in memory.
#pragma once
#include <utility>
#include "base/autotune.h"
#include "base/hardware.h"
#include "flash_attention_hopper.cuh"
#include "flash_backward_hopper.cuh"

#if HAS_KERNELS
namespace gpu {

// ---- of sm_80, for any head size that has a kernel -------------------------------------------------------

template <class Function>
void with_head_size(int HS, Function call) {
    if (HS == 64) call(std::integral_constant<int, 64>());
    else if (HS == 80) call(std::integral_constant<int, 80>());
    else if (HS == 96) call(std::integral_constant<int, 96>());
    else if (HS == 128) call(std::integral_constant<int, 128>());
    else if (HS == 160) call(std::integral_constant<int, 160>());
    else fail("flash attention: a head size of %d: wants 64, 80, 96, 128 or 160", HS);
}

template <class X>
void flash_attention_sm80_forward(X* o, real* lse, const X* qkv, AttentionShape a, Stream s) {
    if constexpr (sizeof(X) == 2)
        with_head_size(a.HS, [&](auto HS) { flash_forward<decltype(HS)::value>(o, lse, qkv, a, s); });
    else fail("flash attention on this device wants bf16");
}

template <class X>
void flash_attention_sm80_backward(X* dqkv, const FlashScratch& scratch, const X* dout, const X* o,
                                   const real* lse, const X* qkv, AttentionShape a, Stream s) {
    if constexpr (sizeof(X) == 2)
        with_head_size(a.HS, [&](auto HS) {
            flash_backward<decltype(HS)::value>(dqkv, scratch, dout, o, lse, qkv, a, s);
        });
    else fail("flash attention on this device wants bf16");
}

// ---- of sm_90a, where they agree and are the faster ------------------------------------------------------

// "" if two ways to compute the n values at x agree, else by how much they differ (relative rms). Each rounds
// to bf16 twice, by at most 2^-8 and on average by less: an rms difference of 2^-8 is too much
template <class T, class Run>
std::string ways_differ(const char* what, const T* x, size_t n, Stream s, Run run) {
    std::vector<T> values[2];
    for (bool way : {false, true}) {
        try {
            run(way);
            if (take_expired_wait(s)) return "a wait for an mbarrier has expired";
        } catch (const DeviceError& e) {
            if (!way) throw;
            return e.what();
        }
        values[way].resize(n);
        copy_to_host(values[way].data(), x, n * sizeof(T), s);
    }

    double difference = 0, square = 0;
    for (size_t i = 0; i < n; i++) {
        double wanted = real(values[0][i]), off = real(values[1][i]) - wanted;
        difference += off * off;
        square += wanted * wanted;
    }
    double off = std::sqrt(difference / square);
    return off < std::ldexp(1, -8) ? "" : text("%s differ by %.2g (relative rms)", what, off);
}

// whether sm_90a's kernel is used, decided once per shape; also called for packed batches. On the emulated
// device only checks use that kernel. run(true): sm_90a's; differ(): "" or how results differ
template <class Run, class Differ>
bool takes_hopper(const char* what, AttentionShape a, Stream s, Run run, Differ differ) {
    static AutotuneCache<std::tuple<int, int, int, int>, bool> chosen;  // one per type of `run`
    if (host_is_device || !hopper_head_size(a.HS) || !device_is_hopper()) return false;
    return chosen.get({a.B, a.T, a.NH, a.HS}, [&] {
        // change the 1 with the kernels, so that choices timed with the old ones are not reused
        std::string key = text("flash attention 1 %s %d x %d, %d heads of %d", what, a.B, a.T, a.NH, a.HS);
        return autotuner.choose(key, 2, 0, s, [&, is_first = true](int way) mutable {
            std::string wrong = way && std::exchange(is_first, false) ? differ() : "";
            if (wrong.empty()) run(way == 1);
            else fprintf(stderr, "note: flash attention %s of sm_90a is not used: %s\n", what, wrong.c_str());
            return wrong.empty();
        }) == 1;
    });
}

template <class X>
void forward_of(bool hopper, X* o, real* lse, const X* qkv, AttentionShape a, Stream s) {
    if (hopper) flash_attention_hopper_forward(o, lse, qkv, a, s);
    else flash_attention_sm80_forward(o, lse, qkv, a, s);
}

template <class X>
void backward_of(bool hopper, X* dqkv, const FlashScratch& scratch, const X* dout, const X* o,
                 const real* lse, const X* qkv, AttentionShape a, Stream s) {
    if (hopper) flash_attention_hopper_backward(dqkv, scratch, dout, o, lse, qkv, a, s);
    else flash_attention_sm80_backward(dqkv, scratch, dout, o, lse, qkv, a, s);
}

// both compare one sequence
template <class X>
std::string forward_differs(X* o, real* lse, const X* qkv, AttentionShape a, Stream s) {
    a.B = 1;
    auto run = [&](bool hopper) { forward_of(hopper, o, lse, qkv, a, s); };
    std::string wrong = ways_differ("outputs", o, (size_t)a.T * a.out(), s, run);
    return wrong.empty() ? ways_differ("lse", lse, (size_t)a.NH * a.T, s, run) : wrong;
}

template <class X>
std::string backward_differs(X* dqkv, const FlashScratch& scratch, const X* dout, const X* o,
                             const real* lse, const X* qkv, AttentionShape a, Stream s) {
    a.B = 1;
    return ways_differ("gradients", dqkv, (size_t)a.T * a.row(), s, [&](bool hopper) {
        backward_of(hopper, dqkv, scratch, dout, o, lse, qkv, a, s);
    });
}

template <class X>
void flash_attention_forward(X* o, real* lse, const X* qkv, AttentionShape a, Stream s) {
    auto run = [&](bool hopper) { forward_of(hopper, o, lse, qkv, a, s); };
    run(takes_hopper("forward", a, s, run, [&] { return forward_differs(o, lse, qkv, a, s); }));
}

template <class X>
void flash_attention_backward(X* dqkv, const FlashScratch& scratch, const X* dout, const X* o,
                              const real* lse, const X* qkv, AttentionShape a, Stream s) {
    auto run = [&](bool hopper) { backward_of(hopper, dqkv, scratch, dout, o, lse, qkv, a, s); };
    auto differ = [&] { return backward_differs(dqkv, scratch, dout, o, lse, qkv, a, s); };
    run(takes_hopper("backward", a, s, run, differ));
}

}  // namespace gpu
#endif

// ---- as operations of a step -----------------------------------------------------------------------------

// `products` matmuls over the causal half of the scores, in tiles that never leave the chip
inline Work flash_work(const AttentionShape& a, int products, double x, double reals = 0) {
    GemmShape half = {a.T, a.T / 2, a.HS, (long)a.B * a.NH * products};
    return {.kind = Work::Attention, .gemm = half, .x = x, .reals = reals};
}

inline void flash_attention_forward(floatX* o, real* lse, const floatX* qkv, AttentionShape a, Stream s) {
    long rows = attention_rows_of(a);
    if (Operation op{"flash_attention_forward", s, {qkv_of(qkv, a), writes("o", o, rows, a.out()),
                                                    writes("lse", lse, (long)a.B * a.NH, a.T)},
                     {flash_work(a, 2, 4.0 * (double)rows * (double)a.out())}})
        dev::flash_attention_forward(o, lse, qkv, a, s);
}

inline void flash_attention_backward(floatX* dqkv, const FlashScratch& scratch, const floatX* dout,
                                     const floatX* o, const real* lse, const floatX* qkv, AttentionShape a,
                                     Stream s) {
    long rows = attention_rows_of(a);
    double values = (double)rows * (double)a.out();
    // o and dout for delta; q, k, v, dout; dqkv. dq: updated in fp32 for every 64 keys, over the causal half
    if (Operation op{"flash_attention_backward", s,
                     {qkv_of(qkv, a), reads("o", o, rows, a.out()), reads("dout", dout, rows, a.out()),
                      reads("lse", lse, (long)a.B * a.NH, a.T), writes("dqkv", dqkv, rows, a.row())},
                     {flash_work(a, 5, 9 * values, values * a.T / 64)}})
        dev::flash_attention_backward(dqkv, scratch, dout, o, lse, qkv, a, s);
}
