// flash.h   flash attention's operations, and their memory; what they compute: flash_attention.cuh
#pragma once
#include <algorithm>
#include <vector>
#include "../attention.cuh"
#include "expired_waits.h"

struct FlashScratch {
    real *query_terms, *dq;  // query_terms: for each query, lse in base 2 and delta
    int* turns;  // [0]: blocks that have started; from [1] on: whose turn it is, for each tile of queries
    real* bias;  // column sums of dqkv, for every 128 keys of every sequence
};
inline long flash_query_terms(int B, int NH, int T) { return 2L * B * NH * T; }
// rounded up to whole tiles of queries: rows beyond the sequence only receive zeros, which nobody uses
inline long flash_dq(int B, int NH, int T, int HS) { return (long)B * NH * ceil_div(T, 128) * 128 * HS; }
// for tiles of 32 queries, the smallest that a kernel has
inline long flash_turns(int B, int NH, int T) { return 1 + (long)B * NH * ceil_div(T, 128) * 4; }
inline long flash_bias(const AttentionShape& a) { return (long)a.B * ceil_div(a.T, 128) * a.row(); }

// whether the kernels support this head size
constexpr bool flash_head_size(int HS) { return HS == 64 || HS == 80 || HS == 96 || HS == 128 || HS == 160; }

// ---- the operations --------------------------------------------------------------------------------------

// `products` matmuls over the causal half of the scores, in tiles that never leave the chip
inline Work flash_work(const AttentionShape& a, int products, double x, double reals = 0) {
    GemmShape half = {a.T, a.T / 2, a.HS, a.heads() * products};
    return {.kind = Work::Attention, .gemm = half, .x = x, .reals = reals};
}

struct FlashForward {
    floatX* o;
    real* lse;
    const floatX* qkv;
    AttentionShape a;

    static constexpr const char* name = "flash_attention_forward";
    std::vector<Tensor> tensors() const {
        return {qkv_of(qkv, a), writes("o", o, a.rows(), a.out()), writes("lse", lse, a.heads(), a.T)};
    }
    std::vector<Work> works() const { return {flash_work(a, 2, 4.0 * (double)a.rows() * (double)a.out())}; }
    void ref(Stream) const;
    void gpu(Stream) const;
    void compute_with(bool hopper, Stream) const;  // sm_90a's kernels, or sm_80's
};

struct FlashBackward {
    floatX* dqkv;
    FlashScratch scratch;
    const floatX *dout, *o;
    const real* lse;
    const floatX* qkv;
    AttentionShape a;
    QkvBiasGradient bias = {};

    static constexpr const char* name = "flash_attention_backward";
    std::vector<Tensor> tensors() const {
        return {qkv_of(qkv, a), reads("o", o, a.rows(), a.out()), reads("dout", dout, a.rows(), a.out()),
                reads("lse", lse, a.heads(), a.T), writes("dqkv", dqkv, a.rows(), a.row()),
                bias.tensor(a)};
    }
    // o and dout for delta; q, k, v, dout; dqkv. dq: updated in fp32 for every 64 keys, over the causal half
    std::vector<Work> works() const {
        double values = (double)a.rows() * (double)a.out();
        return {flash_work(a, 5, 9 * values, values * a.T / 64)};
    }
    void ref(Stream) const;
    void gpu(Stream) const;
    void compute_with(bool hopper, Stream) const;  // sm_90a's kernels, or sm_80's
};
