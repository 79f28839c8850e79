// params.h   the one table of tensors, read by initialisation, optimiser, gradient norm, checkpoint, export
//   Names are GPT-2's. All parameters of a rank lie in one flat buffer in the order of the table, layer after
//   layer, and their gradients, master weights and moments in buffers cut alike.
//   Over t tensor-parallel ranks a split tensor is cut in t equal boxes along one dimension; the others every
//   rank holds whole. Buckets (the token embedding, the positions, each layer, the end) are padded so that d
//   data-parallel ranks own equal slices of each, whatever the tensors' borders.
//   Over p pipeline stages of v chunks a rank's table lists what its stage holds: stage r has the layers
//   [(c p + r) n, (c p + r + 1) n) with n = L / (p v) for each chunk c; the first stage has the embeddings,
//   the last the final layer norm and, for the logits, a copy of the token embedding. The copy is a bucket of
//   its own, cut like the original; it is not counted in the norm and not saved.
//   Count: L (12 C^2 + 13 C) + Vp C + T C + 2 C
#pragma once
#include <cmath>
#include <string>
#include <vector>
#include "../base/config.h"

struct Parameter {
    std::string name;
    // of the whole tensor, as checkpoints store it: q, k, v per head, V unpadded
    std::vector<long> shape;
    std::vector<long> start, count;  // this rank's box in it
    bool split;                      // over tensor-parallel ranks; else every one of them holds it whole
    long size;                       // elements in the flat buffer; more than the box's where V is padded
    bool decay;                      // takes part in weight decay: all but biases and layer norms
    double deviation;                // of the initial normal distribution; 0: constant
    double constant;
    long offset;                     // first element in the flat buffers
    int bucket;
    int number;                      // in the whole model's table
    bool copy;                       // another stage's parameter, held here too
    static long product(const std::vector<long>& dims) {
        long n = 1;
        for (long d : dims) n *= d;
        return n;
    }
    long stored() const { return product(count); }
    // runs of neighbours: run(first element in the whole tensor, first in the box, how many)
    template <class Run>
    void each_run(Run run) const {
        long inner = 1, at = 0;  // elements from the split dimension inwards
        size_t d = shape.size();
        while (d > 0 && count[d - 1] == shape[d - 1]) inner *= shape[--d];
        long cut = d ? count[d - 1] * inner : inner, rows = 1;
        for (size_t i = 0; i + 1 < d; i++) rows *= shape[i];
        for (long row = 0; row < rows; row++, at += cut)
            run(d ? (row * shape[d - 1] + start[d - 1]) * inner : 0, at, cut);
    }
};

struct Bucket { long offset, elements; int number; };  // number: in the whole model

// how a model lies over ranks: t tensor-parallel, of which this is `tensor`; d owners of each bucket; p
// pipeline stages, of which this is `stage`, with v chunks of layers each
struct Layout {
    int t = 1, tensor = 0, d = 1, p = 1, stage = 0, v = 1;
    int chunk_layers(int L) const { return L / (p * v); }
    bool first(int chunk) const { return stage == 0 && chunk == 0; }
    bool last(int chunk) const { return stage == p - 1 && chunk == v - 1; }
};

enum BlockTensor { LN1_W, LN1_B, QKV_W, QKV_B, OUT_W, OUT_B, LN2_W, LN2_B, UP_W, UP_B, DOWN_W, DOWN_B,
                  block_tensors };

struct ParameterTable {
    Layout layout;
    std::vector<Parameter> list;
    std::vector<Bucket> buckets;
    long elements = 0;  // of a flat buffer, padding between tensors included
    long count = 0;     // of the whole model's parameters, vocabulary padding included
    int tensors = 0;    // of the whole model
    int numbers = 0;    // of buckets, of the whole model
    int wte = -1, wpe = -1, blocks = -1, lnf = -1;  // where they begin in the list; -1: not here

    // tensors between are one bucket
    template <class Add>
    void bucket(bool mine, Add add_tensors) {
        if (mine) buckets.push_back({elements, 0, numbers});
        numbers++;
        adding = mine;
        add_tensors();
        if (!mine) return;
        long whole = 128L * layout.d;
        buckets.back().elements = (elements - buckets.back().offset + whole - 1) / whole * whole;
        elements = buckets.back().offset + buckets.back().elements;
    }
    // split: the dimension cut over tensor ranks, or -1; rows: of dimension 0, padding included
    void add(const std::string& name, std::vector<long> shape, int split, bool decay, double deviation,
             double constant = 0, long rows = 0) {
        if (!rows) rows = shape[0];
        count += Parameter::product(shape) / shape[0] * rows;
        int number = tensors++;
        if (!adding) return;
        Parameter p = {name, shape, std::vector<long>(shape.size(), 0), shape, split >= 0, 0, decay,
                       deviation, constant, elements, (int)buckets.size() - 1, number, false};
        p.size = Parameter::product(shape) / shape[0] * rows / (split >= 0 ? layout.t : 1);
        if (split >= 0) {
            long part = (split == 0 ? rows : shape[split]) / layout.t, begin = part * layout.tensor;
            p.start[split] = std::min(begin, shape[split]);
            p.count[split] = std::min(begin + part, shape[split]) - p.start[split];
        }
        append(p);
    }
    void append(Parameter p) {
        p.offset = elements;
        p.bucket = (int)buckets.size() - 1;
        list.push_back(p);
        elements += (p.size + 127) / 128 * 128;
    }
    // layer: counted over this rank's chunks
    const Parameter& block(int layer, BlockTensor t) const {
        return list[blocks + layer * block_tensors + t];
    }

private:
    bool adding = true;
};

// N(0, s) with s = sqrt(1 / (3 C)); the two projections that feed the residual stream get s / sqrt(2 L)
// (arXiv 2201.11990, section 3); biases 0, layer norm weights 1
inline ParameterTable parameter_table(const ModelShape& m, Layout layout = {}) {
    ParameterTable t;
    t.layout = layout;
    long C = m.C, NH = m.NH, HS = m.HS();
    double s = std::sqrt(1.0 / (3.0 * m.C)), s_out = s / std::sqrt(2.0 * m.L);
    bool first = layout.stage == 0, last = layout.stage == layout.p - 1;
    int n = layout.chunk_layers(m.L);
    Parameter wte;
    t.wte = first || last ? 0 : -1;
    t.wpe = first ? 1 : -1;
    t.blocks = first ? 2 : 0;
    t.bucket(true, [&] {
        t.add("wte.weight", {m.V, C}, 0, true, s, 0, m.Vp);
        wte = t.list[0];
    });
    if (!first) {
        t.list.clear();
        t.buckets.clear();
        t.elements = 0;
    }
    t.bucket(first, [&] { t.add("wpe.weight", {m.T, C}, -1, true, s); });
    for (int l = 0; l < m.L; l++) {
        std::string h = "h." + std::to_string(l) + ".";
        t.bucket(l / n % layout.p == layout.stage, [&] {
            t.add(h + "ln_1.weight", {C}, -1, false, 0, 1);
            t.add(h + "ln_1.bias", {C}, -1, false, 0);
            t.add(h + "attn.c_attn.weight", {NH, 3, HS, C}, 0, true, s);
            t.add(h + "attn.c_attn.bias", {NH, 3, HS}, 0, false, 0);
            t.add(h + "attn.c_proj.weight", {C, NH, HS}, 1, true, s_out);
            t.add(h + "attn.c_proj.bias", {C}, -1, false, 0);
            t.add(h + "ln_2.weight", {C}, -1, false, 0, 1);
            t.add(h + "ln_2.bias", {C}, -1, false, 0);
            t.add(h + "mlp.c_fc.weight", {4 * C, C}, 0, true, s);
            t.add(h + "mlp.c_fc.bias", {4 * C}, 0, false, 0);
            t.add(h + "mlp.c_proj.weight", {C, 4 * C}, 1, true, s_out);
            t.add(h + "mlp.c_proj.bias", {C}, -1, false, 0);
        });
    }
    if (last) t.lnf = (int)t.list.size();
    t.bucket(last, [&] {
        t.add("ln_f.weight", {C}, -1, false, 0, 1);
        t.add("ln_f.bias", {C}, -1, false, 0);
    });
    if (last && !first) {
        wte.copy = true;
        t.wte = (int)t.list.size();
        t.bucket(true, [&] { t.append(wte); });
        t.buckets.back().number = 0;
        t.numbers--;  // the first stage's, once more
    }
    return t;
}
