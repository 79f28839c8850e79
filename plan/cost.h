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
    bool fp8 = false;          // the product is of 8-bit numbers
    const char* section = "";  // of the code that does it, see profile.h
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
    bool flash, light, fp8;
    std::vector<Work>* out = nullptr;
    const char* section = "";

    CostWriter(const Model& model)
        : m(model.shape), ranks(model.ranks), precision(model.setup.precision),
          N((long)model.setup.B * m.T), N_r(ranks.rows((int)N)), C(m.C), C_r(C / ranks.tp.size),
          t(ranks.tp.size), x((double)precision.x), r((double)precision.real), flash(model.setup.flash),
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
        if (ranks.sequence) call(comm::Collective::AllGather, (double)(N * width) * x);
    }
    void reduce(long width) {
        double bytes = (double)(N * width) * x;
        call(ranks.sequence ? comm::Collective::ReduceScatter : comm::Collective::AllReduce, bytes);
    }
    void product(Work::Kind kind, Product p, double result, bool added = false) {
        double bytes = (double)p.batch * ((double)(p.m * p.k + p.k * p.n) * x +
                                          (double)(p.m * p.n) * result * (added ? 2 : 1));
        add({.kind = kind, .product = p, .bytes = bytes});
    }
    // of n values: their largest is looked for, then they are read again and written `copies` times
    void round_to_fp8(long n, int copies) { memory((double)n * (2 * x + copies)); }
    void linear(long in, long wide) {
        if (fp8) {
            round_to_fp8(N * in, 1);
            round_to_fp8(in * wide, 1);
        }
        product(Work::Linear, {N, wide, in}, x);
        out->back().fp8 = fp8;
    }
    void linear_backward(long in, long wide, bool bias) {
        if (bias) memory((double)(N * wide) * x);
        if (fp8) {
            round_to_fp8(N * in, 1);
            round_to_fp8(in * wide, 1);
            round_to_fp8(N * wide, 2);
        }
        product(Work::Linear, {wide, in, N}, r, true);
        out->back().fp8 = fp8;
        product(Work::Linear, {N, in, wide}, x);
        out->back().fp8 = fp8;
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
        add({.kind = Work::Scores, .product = half, .bytes = passes * (double)(N * C_r) * x});
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
        in("layer norm");
        layernorm();                              // 1.
        in("linears");
        gather(C);
        linear(C, 3 * C_r);               // 2.
        in("attention");
        attention();                               // 3.
        in("linears");
        linear(C_r, C);
        reduce(C);                   // 4.
        in("layer norm");
        residual_layernorm();                     // … and 5.
        in("linears and gelu");
        gather(C);
        linear(C, 4 * C_r);
        gelu();  // 6. 7.
        if (!whole) return;
        in("linears");
        linear(4 * C_r, C);
        reduce(C);               // 8.
        in("residual");
        residual();
    }
    void block_backward() {
        if (light) {
            in("gelu");
            gelu();
        }
        in("linears and gelu");
        memory((double)(N_r * C) * x);
        gather(C);           // 8.
        linear_backward(4 * C_r, C, false);
        memory(3.0 * (double)(N * 4 * C_r) * x);  // 7., and its bias
        if (light) {
            in("layer norm");
            layernorm();
        }
        in("linears");
        gather(C);
        linear_backward(C, 4 * C_r, false);
        reduce(C);    // 6.
        in("layer norm");
        layernorm_backward();                                     // 5.
        in("linears");
        memory((double)(N_r * C) * x);
        gather(C);
        linear_backward(C_r, C, false);  // 4.
        in("attention");
        attention_backward();                                      // 3.
        if (light) {
            in("layer norm");
            layernorm();
        }
        in("linears");
        gather(C);
        linear_backward(C, 3 * C_r, true);
        reduce(C);     // 2.
        in("layer norm");
        layernorm_backward();                                     // 1.
    }

    // ---- ends.h ----------------------------------------------------------------------------------------

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
    void loss_backward(long held) {  // forward as well, in chunks of the rows
        long wide = m.Vp / t;
        in("layer norm");
        layernorm();
        in("linears");
        gather(C);
        for (long first = 0; first < N; first += held) {
            long n = std::min(held, N - first);
            double logits = (double)(n * wide) * x;
            in("linears");
            product(Work::Linear, {n, wide, C}, x);
            in("cross entropy");
            if (t > 1) memory(2 * logits);  // else a row is read and written once
            call(comm::Collective::AllReduce, (double)n * r);
            call(comm::Collective::AllReduce, 2.0 * (double)n * r);
            memory(2 * logits);
            in("linears");
            product(Work::Linear, {wide, C, n}, r, true);
            product(Work::Linear, {n, C, wide}, x);
        }
        reduce(C);
        in("layer norm");
        memory((double)(N_r * C) * x);
        layernorm_backward();
    }
};

// stage.h's chunk_forward
inline std::vector<Piece> forward_pieces(const Model& m, int chunk) {
    CostWriter w(m);
    std::vector<Piece> pieces;
    int n = m.chunk_layers();
    if (m.first(chunk)) {
        pieces.push_back({{}, {m.table.list[m.table.wte].bucket, m.table.list[m.table.wpe].bucket}});
        w.out = &pieces.back().works;
        w.embedding();
    }
    for (int l = 0; l < n; l++) {
        pieces.push_back({{}, {m.table.block(chunk * n + l, LN1_W).bucket}});
        w.out = &pieces.back().works;
        w.block(true);
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
        w.out = &pieces.back().works;
        w.loss_backward(m.logits_held());
    }
    for (int l = n - 1; l >= 0; l--) {
        pieces.push_back({{}, {t.block(chunk * n + l, LN1_W).bucket}});
        w.out = &pieces.back().works;
        if (m.setup.recompute == Recompute::Full) w.block(false);
        w.block_backward();
    }
    if (m.first(chunk)) {
        pieces.push_back({{}, {t.list[t.wte].bucket, t.list[t.wpe].bucket}});
        w.out = &pieces.back().works;
        w.embedding_backward();
    }
    return pieces;
}

// every work of a micro-batch on this stage
template <class F>
void each_work(const Model& m, F f) {
    for (int chunk = 0; chunk < m.setup.chunks; chunk++)
        for (auto& pieces : {forward_pieces(m, chunk), backward_pieces(m, chunk)})
            for (auto& piece : pieces)
                for (auto& work : piece.works) f(work);
}

// nodes: that the tensor-parallel ranks lie on
inline double seconds_of(const Hardware& h, const Work& w, int t, int nodes) {
    if (w.kind == Work::Memory) return memory_seconds(h, w.bytes);
    if (w.kind == Work::Call) return call_seconds(h, w.call, t, nodes, w.bytes);
    if (!w.fp8) return product_seconds(h, w.product, w.bytes);
    Hardware faster = h;
    faster.peak *= h.fp8;
    return product_seconds(faster, w.product, w.bytes);
}
