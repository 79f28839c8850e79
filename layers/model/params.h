// params.h   the one table of tensors, read by initialisation, optimiser, gradient norm, checkpoint, export
//   Names are GPT-2's. All parameters lie in one flat buffer in the order of the table, layer after layer,
//   and their gradients, master weights and moments in buffers cut alike.
//   Count: L (12 C^2 + 13 C) + Vp C + T C + 2 C
#pragma once
#include <cmath>
#include <string>
#include <vector>
#include "../base/config.h"

struct Parameter {
    std::string name;
    std::vector<long> shape;  // as checkpoints store it: the vocabulary unpadded, q, k and v per head
    // elements in the flat buffer; more than the shape's where the vocabulary is padded
    long size;
    bool decay;               // takes part in weight decay: all but biases and layer norms
    double deviation;         // of the initial normal distribution; 0: constant
    double constant;
    long offset;              // first element in the flat buffers; the table pads to whole 256-byte lines
    long stored() const {
        long n = 1;
        for (long d : shape) n *= d;
        return n;
    }
};

enum BlockTensor { LN1_W, LN1_B, QKV_W, QKV_B, OUT_W, OUT_B, LN2_W, LN2_B, UP_W, UP_B, DOWN_W, DOWN_B,
                  block_tensors };
enum EndTensor { LNF_W, LNF_B };  // after the last block
constexpr int WTE = 0, WPE = 1, first_block = 2;  // before the first

struct ParameterTable {
    std::vector<Parameter> list;
    long elements = 0;  // of a flat buffer, padding between tensors included
    long count = 0;     // of parameters, vocabulary padding included

    void add(const std::string& name, std::vector<long> shape, bool decay, double deviation,
             double constant = 0, long padded = 0) {
        Parameter p = {name, shape, 0, decay, deviation, constant, elements};
        p.size = padded ? padded : p.stored();
        list.push_back(p);
        count += p.size;
        elements += (p.size + 127) / 128 * 128;
    }
    const Parameter& block(int layer, BlockTensor t) const {
        return list[first_block + layer * block_tensors + t];
    }
    const Parameter& end(EndTensor t) const { return list[list.size() - 2 + t]; }
};

// N(0, s) with s = sqrt(1 / (3 C)); the two projections that feed the residual stream get s / sqrt(2 L)
// (arXiv 2201.11990, section 3); biases 0, layer norm weights 1
inline ParameterTable parameter_table(const ModelShape& m) {
    ParameterTable t;
    long C = m.C, NH = m.NH, HS = m.HS();
    double s = std::sqrt(1.0 / (3.0 * m.C)), s_out = s / std::sqrt(2.0 * m.L);
    t.add("wte.weight", {m.V, C}, true, s, 0, (long)m.Vp * C);
    t.add("wpe.weight", {m.T, C}, true, s);
    for (int l = 0; l < m.L; l++) {
        std::string h = "h." + std::to_string(l) + ".";
        t.add(h + "ln_1.weight", {C}, false, 0, 1);
        t.add(h + "ln_1.bias", {C}, false, 0);
        t.add(h + "attn.c_attn.weight", {NH, 3, HS, C}, true, s);
        t.add(h + "attn.c_attn.bias", {NH, 3, HS}, false, 0);
        t.add(h + "attn.c_proj.weight", {C, NH, HS}, true, s_out);
        t.add(h + "attn.c_proj.bias", {C}, false, 0);
        t.add(h + "ln_2.weight", {C}, false, 0, 1);
        t.add(h + "ln_2.bias", {C}, false, 0);
        t.add(h + "mlp.c_fc.weight", {4 * C, C}, true, s);
        t.add(h + "mlp.c_fc.bias", {4 * C}, false, 0);
        t.add(h + "mlp.c_proj.weight", {C, 4 * C}, true, s_out);
        t.add(h + "mlp.c_proj.bias", {C}, false, 0);
    }
    t.add("ln_f.weight", {C}, false, 0, 1);
    t.add("ln_f.bias", {C}, false, 0);
    return t;
}
