// cost.h   what a rank does in a step, piece by piece, beside the code that does it: block.h, ends.h, stage.h
//   A piece is what stands between two buckets of parameters: the embedding, a layer, the end. Its works
//   stand in the order of the code, under the same numbers. Products and calls are exact, and every training
//   run is held against them at its end; bytes are what the kernels read and write in device memory.
#pragma once
#include <string>
#include <vector>
#include "../layers/model/optimizer.h"
#include "hardware.h"

struct Work {
    enum Kind { Linear, Scores, Memory, Call } kind;  // Scores: the products of attention
    Product product = {0, 0, 0, 1};
    double bytes = 0;  // in device memory; of a Call: of the whole, over the tensor-parallel ranks
    comm::Collective call = comm::Collective::AllReduce;
};

struct Piece {
    std::vector<Work> works;
    std::vector<int> buckets;  // forward: awaited before it; backward: complete after it, in this order
};

// the works of a stage; sizes are those of block.h
struct CostWriter {
    const ModelShape& m;
    const Ranks& ranks;
    Precision precision;
    long N, N_r, C, C_r, t;
    double x, r;  // bytes of floatX and real
    bool flash, light;
    std::vector<Work>* out = nullptr;

    CostWriter(const Model& model)
        : m(model.shape), ranks(model.ranks), precision(model.setup.precision),
          N((long)model.setup.B * m.T), N_r(ranks.rows((int)N)), C(m.C), C_r(C / ranks.tp.size),
          t(ranks.tp.size), x((double)precision.x), r((double)precision.real), flash(model.setup.flash),
          light(model.setup.recompute == Recompute::Light) {}

    void memory(double bytes) { out->push_back({.kind = Work::Memory, .bytes = bytes}); }
    void call(comm::Collective kind, double bytes) {
        if (t > 1) out->push_back({.kind = Work::Call, .bytes = bytes, .call = kind});
    }
    void gather(long width) {
        if (ranks.sequence) call(comm::Collective::AllGather, (double)(N * width) * x);
    }
    void reduce(long width) {
        double bytes = (double)(N * width) * x;
        call(ranks.sequence ? comm::Collective::ReduceScatter : comm::Collective::AllReduce, bytes);
    }
    void product(Work::Kind kind, Product p, double result, bool added = false) {
        double bytes = (double)p.batch * ((double)(p.m * p.k + p.k * p.n) * x +
                                          (double)(p.m * p.n) * result * (added ? 2 : 1));
        out->push_back({.kind = kind, .product = p, .bytes = bytes});
    }
    void linear(long in, long wide) { product(Work::Linear, {N, wide, in}, x); }
    void linear_backward(long in, long wide, bool bias) {
        if (bias) memory((double)(N * wide) * x);
        product(Work::Linear, {wide, in, N}, r, true);
        product(Work::Linear, {N, in, wide}, x);
    }
    void layernorm() { memory(2 * (double)(N_r * C) * x); }
    void layernorm_backward() { memory(4 * (double)(N_r * C) * x); }  // x, dy, d read, d written
    void residual_layernorm() { memory(4 * (double)(N_r * C) * x); }  // x, f read, their sum and y written
    void gelu() { memory(2.0 * (double)(N * 4 * C_r) * x); }
    void residual() { memory(3 * (double)(N_r * C) * x); }

    // flash: the causal half of the scores, in tiles that never leave the chip
    void flash_products(int products, double passes) {
        long heads = (long)(N / m.T) * m.NH / t;
        Product half = {m.T, m.T / 2, m.HS(), heads * products};
        out->push_back({.kind = Work::Scores, .product = half, .bytes = passes * (double)(N * C_r) * x});
    }
    void attention() {
        long heads = (long)(N / m.T) * m.NH / t;
        if (flash) return flash_products(2, 4);  // reads q, k, v, writes o
        product(Work::Scores, {m.T, m.T, m.HS(), heads}, x);
        memory(2 * (double)(heads * m.T) * m.T * x);
        product(Work::Scores, {m.T, m.HS(), m.T, heads}, x);
    }
    void attention_backward() {
        long heads = (long)(N / m.T) * m.NH / t;
        // reads o, dout, q, k, v, dout; writes and reads dq in fp32 for every 64 keys, half of them
        if (flash) return flash_products(5, 9 + (double)m.T / 64 * r / x);
        product(Work::Scores, {m.T, m.HS(), m.T, heads}, x);
        product(Work::Scores, {m.T, m.T, m.HS(), heads}, x);
        memory(3 * (double)(heads * m.T) * m.T * x);
        product(Work::Scores, {m.T, m.HS(), m.T, heads}, x);
        product(Work::Scores, {m.T, m.HS(), m.T, heads}, x);
    }

    // ---- block.h ---------------------------------------------------------------------------------------

    void block(bool whole) {  // whole: up to the output; else only what backward reads
        layernorm();                                       // 1.
        gather(C), linear(C, 3 * C_r);                     // 2.
        attention();                                       // 3.
        linear(C_r, C), reduce(C), residual_layernorm();   // 4. 5.
        gather(C), linear(C, 4 * C_r);                     // 6.
        gelu();                                            // 7.
        if (whole) linear(4 * C_r, C), reduce(C), residual();  // 8.
    }
    void block_backward() {
        if (light) gelu(), layernorm(), layernorm();
        memory((double)(N_r * C) * x), gather(C), linear_backward(4 * C_r, C, false);  // 8.
        memory(3.0 * (double)(N * 4 * C_r) * x);         // 7., with the bias's gradient
        gather(C), linear_backward(C, 4 * C_r, false), reduce(C);                       // 6.
        layernorm_backward();                                                           // 5.
        memory((double)(N_r * C) * x), gather(C), linear_backward(C_r, C, false);       // 4.
        attention_backward();                                                           // 3.
        gather(C), linear_backward(C, 3 * C_r, true), reduce(C);                        // 2.
        layernorm_backward();                                                           // 1.
    }

    // ---- ends.h ----------------------------------------------------------------------------------------

    void embedding() {
        memory(2 * (double)(N * C) * x), reduce(C);
        memory(3 * (double)(N_r * C) * x);
    }
    void embedding_backward() {
        memory((double)(N_r * C) * (x + 2 * r)), gather(C);
        memory((double)(N * C) * (x + 2 * r));
    }
    void loss_backward(long held) {  // forward as well, in chunks of the rows
        long wide = m.Vp / t;
        layernorm(), gather(C);
        for (long first = 0; first < N; first += held) {
            long n = std::min(held, N - first);
            double logits = (double)(n * wide) * x;
            product(Work::Linear, {n, wide, C}, x);
            if (t > 1) memory(2 * logits);  // else a row is read and written once
            call(comm::Collective::AllReduce, (double)n * r);
            call(comm::Collective::AllReduce, 2.0 * (double)n * r);
            memory(2 * logits);
            product(Work::Linear, {wide, C, n}, r, true);
            product(Work::Linear, {n, C, wide}, x);
        }
        reduce(C), memory((double)(N_r * C) * x), layernorm_backward();
    }
};

// stage.h's chunk_forward
inline std::vector<Piece> forward_pieces(const Model& m, int chunk) {
    CostWriter w(m);
    std::vector<Piece> pieces;
    int n = m.chunk_layers();
    if (m.first(chunk)) {
        pieces.push_back({{}, {m.table.list[m.table.wte].bucket, m.table.list[m.table.wpe].bucket}});
        w.out = &pieces.back().works, w.embedding();
    }
    for (int l = 0; l < n; l++) {
        pieces.push_back({{}, {m.table.block(chunk * n + l, LN1_W).bucket}});
        w.out = &pieces.back().works, w.block(true);
    }
    return pieces;
}

// stage.h's chunk_backward
inline std::vector<Piece> backward_pieces(const Model& m, int chunk) {
    CostWriter w(m);
    std::vector<Piece> pieces;
    const ParameterTable& t = m.table;
    int n = m.chunk_layers();
    if (m.last(chunk)) {
        pieces.push_back({{}, {t.list[t.lnf].bucket}});
        if (m.grid.p > 1) pieces.back().buckets.push_back(t.list[t.wte].bucket);
        w.out = &pieces.back().works, w.loss_backward(m.logits_held());
    }
    for (int l = n - 1; l >= 0; l--) {
        pieces.push_back({{}, {t.block(chunk * n + l, LN1_W).bucket}});
        w.out = &pieces.back().works;
        if (m.setup.recompute == Recompute::Full) w.block(false);
        w.block_backward();
    }
    if (m.first(chunk)) {
        pieces.push_back({{}, {t.list[t.wte].bucket, t.list[t.wpe].bucket}});
        w.out = &pieces.back().works, w.embedding_backward();
    }
    return pieces;
}

// nodes: that the tensor-parallel ranks lie on
inline double seconds_of(const Hardware& h, const Work& w, int t, int nodes) {
    if (w.kind == Work::Memory) return memory_seconds(h, w.bytes);
    if (w.kind == Work::Call) return call_seconds(h, w.call, t, nodes, w.bytes);
    return product_seconds(h, w.product, w.bytes);
}
