// cost.h   what a rank does in a step, piece by piece: the cost of block.h, vocabulary.h, stage.h
//   A piece is what stands between two buckets of parameters: the embedding, a layer, the LM head.
//   Its works stand in the order of the code, under the same numbers. GEMMs and calls are exact, and every
//   training run is held against them at its end; bytes are what the kernels read and write in device memory.
#pragma once
#include <string>
#include <vector>
#include "../model/optimizer.h"
#include "machines.h"

struct Work {
    enum Kind { Linear, AttentionGemm, Memory, Call } kind;  // AttentionGemm: the matmuls of attention
    GemmShape gemm = {0, 0, 0, 1};
    double bytes = 0;  // in device memory; of a Call: of the whole, over the tensor-parallel ranks
    comm::Collective call = comm::Collective::AllReduce;
    bool fp8 = false;          // the gemm is of 8-bit numbers
    const char* section = "";  // of the code that does it, see base/operation.h
};

struct Piece {
    std::vector<Work> works;
    std::vector<int> buckets;  // forward: awaited before it; backward: complete after it, in this order
};

// the works of a stage; sizes are those of block.h
struct CostWriter {
    const ModelShape& m;
    const TensorParallel& tp;
    Precision precision;
    long N, N_r, C, C_r, t;
    double x, r;  // bytes of floatX and real
    bool flash, light, fp8;
    std::vector<Work>* out = nullptr;
    const char* section = "";

    CostWriter(const Model& model)
        : m(model.shape), tp(model.tp), precision(model.setup.precision),
          N((long)model.setup.B * m.T), N_r(tp.rows((int)N)), C(m.C), C_r(C / tp.group.size),
          t(tp.group.size), x((double)precision.x), r((double)precision.real), flash(model.setup.flash),
          light(model.setup.recompute == Recompute::Light), fp8(model.setup.fp8) {}

    void in(const char* name) { section = name; }
    void add(Work work) {
        work.section = section;
        out->push_back(work);
    }
    void memory(double bytes) { add({.kind = Work::Memory, .bytes = bytes}); }
    void call(comm::Collective kind, double bytes) {
        if (t > 1) add({.kind = Work::Call, .bytes = bytes, .call = kind});
    }
    void gather(long width) {
        if (tp.sequence_parallel) call(comm::Collective::AllGather, (double)(N * width) * x);
    }
    void reduce(long width) {
        double bytes = (double)(N * width) * x;
        call(tp.sequence_parallel ? comm::Collective::ReduceScatter : comm::Collective::AllReduce, bytes);
    }
    void gemm(Work::Kind kind, GemmShape p, double result, bool added = false) {
        double bytes = (double)p.batch * ((double)(p.m * p.k + p.k * p.n) * x +
                                          (double)(p.m * p.n) * result * (added ? 2 : 1));
        add({.kind = kind, .gemm = p, .bytes = bytes});
    }
    // of n values: their largest is looked for, then they are read again and written `copies` times
    double fp8_bytes(long n, int copies) const { return (double)n * (2 * x + copies); }
    void linear(long in, long wide) {
        if (fp8) memory(fp8_bytes(N * in, 1));
        gemm(Work::Linear, {N, wide, in}, x);
        out->back().fp8 = fp8;
    }
    void linear_backward(long in, long wide, bool bias) {
        if (bias) memory((double)(N * wide) * x);
        if (fp8) {
            memory(fp8_bytes(N * in, 1));
            memory(fp8_bytes(N * wide, 2));
        }
        gemm(Work::Linear, {wide, in, N}, r, true);
        out->back().fp8 = fp8;
        gemm(Work::Linear, {N, in, wide}, x);
        out->back().fp8 = fp8;
    }
    void layernorm() { memory(2 * (double)(N_r * C) * x); }
    // x, dy, d read, d written, which longer rows read once more for the bias in front
    void layernorm_backward(bool bias) {
        memory((4 + (bias && C > longest_summed_row)) * (double)(N_r * C) * x);
    }
    void residual_layernorm() { memory(4 * (double)(N_r * C) * x); }  // x, f read, their sum and y written
    void gelu() { memory(2.0 * (double)(N * 4 * C_r) * x); }
    void residual() { memory(3 * (double)(N_r * C) * x); }

    // flash: the causal half of the scores, in tiles that never leave the chip
    void flash_gemms(int gemms, double passes) {
        long heads = (long)(N / m.T) * m.NH / t;
        GemmShape half = {m.T, m.T / 2, m.HS(), heads * gemms};
        add({.kind = Work::AttentionGemm, .gemm = half, .bytes = passes * (double)(N * C_r) * x});
    }
    void attention() {
        long heads = (long)(N / m.T) * m.NH / t;
        if (flash) return flash_gemms(2, 4);  // reads q, k, v, writes o
        gemm(Work::AttentionGemm, {m.T, m.T, m.HS(), heads}, x);
        memory(2 * (double)(heads * m.T) * m.T * x);
        gemm(Work::AttentionGemm, {m.T, m.HS(), m.T, heads}, x);
    }
    void attention_backward() {
        long heads = (long)(N / m.T) * m.NH / t;
        // reads o, dout, q, k, v, dout; writes and reads dq in fp32 for every 64 keys, half of them
        if (flash) return flash_gemms(5, 9 + (double)m.T / 64 * r / x);
        gemm(Work::AttentionGemm, {m.T, m.HS(), m.T, heads}, x);
        gemm(Work::AttentionGemm, {m.T, m.T, m.HS(), heads}, x);
        memory(3 * (double)(heads * m.T) * m.T * x);
        gemm(Work::AttentionGemm, {m.T, m.HS(), m.T, heads}, x);
        gemm(Work::AttentionGemm, {m.T, m.HS(), m.T, heads}, x);
    }

    // ---- block.h ---------------------------------------------------------------------------------------

    void first_layernorm() {
        in("layer norm");
        layernorm();  // 1.
    }
    void block(bool wants_output) {  // else only what backward reads
        in("linears");
        gather(C);
        linear(C, 3 * C_r);  // 2.
        in("attention");
        attention();  // 3.
        in("linears");
        linear(C_r, C);
        reduce(C);  // 4.
        in("layer norm");
        residual_layernorm();  // … and 5.
        in("linears and gelu");
        gather(C);
        linear(C, 4 * C_r);
        gelu();  // 6. 7.
        if (!wants_output) return;
        in("linears");
        linear(4 * C_r, C);
        reduce(C);  // 8.
    }
    void add_branch(bool has_next) {
        in(has_next ? "layer norm" : "residual");
        if (has_next) residual_layernorm();
        else residual();
    }
    void block_backward(bool bias_before) {
        if (light) {
            in("gelu");
            gelu();
        }
        in("linears and gelu");
        gather(C);  // 8.
        linear_backward(4 * C_r, C, false);
        memory(3.0 * (double)(N * 4 * C_r) * x);  // 7.
        if (light) {
            in("layer norm");
            layernorm();
        }
        in("linears");
        gather(C);
        linear_backward(C, 4 * C_r, false);  // its bias in the weight gradient's epilogue
        reduce(C);  // 6.
        in("layer norm");
        layernorm_backward(true);  // 5., and 4.'s bias
        in("linears");
        gather(C);
        linear_backward(C_r, C, false);  // 4.
        in("attention");
        attention_backward();  // 3.
        if (light) first_layernorm();
        in("linears");
        gather(C);
        linear_backward(C, 3 * C_r, true);
        reduce(C);  // 2.
        in("layer norm");
        layernorm_backward(bias_before);  // 1.
    }

    // of the bias that was added to the chunk's output last
    void residual_bias() {
        in("residual");
        memory((double)(N_r * C) * x);
    }

    // ---- vocabulary.h ----------------------------------------------------------------------------------

    void embedding() {
        in("embedding");
        memory(2 * (double)(N * C) * x);
        reduce(C);
        memory(3 * (double)(N_r * C) * x);
    }
    void embedding_backward() {
        in("embedding");
        memory((double)(N_r * C) * (x + 2 * r));
        gather(C);
        memory((double)(N * C) * (x + 2 * r));
    }
    void lm_head_rows() {
        in("layer norm");
        layernorm();
        in("linears");
        gather(C);
    }
    void logits_and_loss(long n) {  // of n rows
        long wide = m.Vp / t;
        double logits = (double)(n * wide) * x;
        in("linears");
        gemm(Work::Linear, {n, wide, C}, x);
        in("cross entropy");
        if (t > 1) memory(2 * logits);  // else a row is read and written once
        call(comm::Collective::AllReduce, (double)n * r);
        call(comm::Collective::AllReduce, 2.0 * (double)n * r);
        memory(2 * logits);
    }
    void lm_head_forward() {
        lm_head_rows();
        logits_and_loss(N);
    }
    void lm_head_backward(long held, bool with_loss) {  // `held` rows of logits at a time
        long wide = m.Vp / t;
        if (with_loss) lm_head_rows();
        for (long first = 0; first < N; first += held) {
            long n = std::min(held, N - first);
            if (with_loss) logits_and_loss(n);
            in("linears");
            gemm(Work::Linear, {wide, C, n}, r, true);
            gemm(Work::Linear, {n, C, wide}, x);
        }
        reduce(C);
        in("layer norm");
        memory((double)(N_r * C) * x);
        layernorm_backward(true);
    }
};

// stage.h's forward
inline std::vector<Piece> forward_pieces(const Model& m, int chunk) {
    CostWriter w(m);
    std::vector<Piece> pieces;
    int n = m.chunk_layers();
    if (m.is_first_chunk(chunk)) {
        pieces.push_back({{}, {m.table.list[m.table.wte].bucket, m.table.list[m.table.wpe].bucket}});
        w.out = &pieces.back().works;
        w.embedding();
    }
    for (int l = 0; l < n; l++) {
        pieces.push_back({{}, {m.table.block(chunk * n + l, LN1_W).bucket}});
        w.out = &pieces.back().works;
        if (l == 0) w.first_layernorm();
        w.block(true);
        w.add_branch(l + 1 < n);
    }
    if (m.is_last_chunk(chunk) && !m.setup.loss_in_backward) {
        pieces.push_back({{}, {m.table.list[m.table.wte].bucket, m.table.list[m.table.lnf].bucket}});
        w.out = &pieces.back().works;
        w.lm_head_forward();
    }
    return pieces;
}

// stage.h's backward
inline std::vector<Piece> backward_pieces(const Model& m, int chunk) {
    CostWriter w(m);
    std::vector<Piece> pieces;
    const ParameterTable& t = m.table;
    int n = m.chunk_layers();
    if (!m.is_last_chunk(chunk)) {
        pieces.emplace_back();
        w.out = &pieces.back().works;
        w.residual_bias();
    } else {
        pieces.push_back({{}, {t.list[t.lnf].bucket}});
        if (m.grid.p > 1) pieces.back().buckets.push_back(t.list[t.wte].bucket);
        w.out = &pieces.back().works;
        w.lm_head_backward(m.lm_head.rows_held, m.setup.loss_in_backward);
    }
    for (int l = n - 1; l >= 0; l--) {
        pieces.push_back({{}, {t.block(chunk * n + l, LN1_W).bucket}});
        w.out = &pieces.back().works;
        if (m.setup.recompute == Recompute::Full) {
            w.first_layernorm();
            w.block(false);
        }
        w.block_backward(l > 0);
    }
    if (m.is_first_chunk(chunk)) {
        pieces.push_back({{}, {t.list[t.wte].bucket, t.list[t.wpe].bucket}});
        w.out = &pieces.back().works;
        w.embedding_backward();
    }
    return pieces;
}

// every work of a micro-batch on this stage
template <class F>
void for_each_work(const Model& m, F f) {
    for (int chunk = 0; chunk < m.setup.chunks; chunk++)
        for (auto& pieces : {forward_pieces(m, chunk), backward_pieces(m, chunk)})
            for (auto& piece : pieces)
                for (auto& work : piece.works) f(work);
}

// nodes: that the tensor-parallel ranks lie on
inline double seconds_of(const Hardware& h, const Work& w, int t, int nodes) {
    if (w.kind == Work::Memory) return memory_seconds(h, w.bytes);
    if (w.kind == Work::Call) return call_seconds(h, w.call, t, nodes, w.bytes);
    if (!w.fp8) return gemm_seconds(h, w.gemm, w.bytes);
    Hardware faster = h;
    faster.gpu.peak *= h.gpu.fp8;
    return gemm_seconds(faster, w.gemm, w.bytes);
}
