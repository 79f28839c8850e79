// params.h   the table of tensors, used by initialisation, optimizer, gradient norm, checkpoint, export
//   Names are GPT-2's. All parameters of a rank are in one flat buffer in the order of the table, layer after
//   layer; gradients and optimizer state are in buffers with the same order.
//   With t tensor-parallel ranks, split tensors are cut into t equal shards along one dimension; all other
//   tensors are replicated. Tensors begin at multiples of 128 values; what lies between them stays 0 in
//   gradients, which are cleared before the first step. Buckets (token embedding, positions,
//   each layer, final layer norm) are padded to multiples of 128 d (128 with --zero 0), so that data-parallel
//   ranks own equal slices of each, regardless of tensor boundaries.
//   With p pipeline stages of v chunks, a rank's table lists the tensors of its stage: stage r has the layers
//   [(c p + r) n, (c p + r + 1) n) with n = L / (p v) for each chunk c. The first stage has the embeddings;
//   the last has the final layer norm and, for the logits, a copy of the token embedding. The copy is a
//   separate bucket, sharded like the original; it is not counted in the norm and not saved.
//   Count: L (12 C^2 + 13 C) + Vp C + T C + 2 C
//   To add a tensor: the list in .github/CONTRIBUTING.md, which names the check that fails for each place.
#pragma once
#include <array>
#include <cmath>
#include <string>
#include <vector>
#include "../../comm/grid.h"

// layers L, hidden size C, heads NH, tokens in a sequence T, vocabulary V, which is padded to Vp
struct ModelShape {
    int L = 0, C = 0, NH = 0, T = 0, V = 0, Vp = 0;
    int HS() const { return C / NH; }
    bool operator==(const ModelShape&) const = default;
};

struct Parameter {
    std::string name;
    // of the whole tensor, as in checkpoints: QKV's rows are ordered by head, then q, k, v; V is unpadded
    std::vector<long> shape;
    int split_dim = -1;              // the dimension sharded over tensor-parallel ranks; -1: replicated
    double init_std = 0;             // of the initial normal distribution; 0: all `constant`
    double constant = 0;
    // set by ParameterTable::add_tensor:
    std::vector<long> start = {}, count = {};  // this rank's shard of the tensor
    long size = 0;                   // elements in the flat buffer; more than the shard has if V is padded
    long offset = 0;                 // first element in the flat buffers
    int bucket = 0;                  // index in this rank's buckets
    int global_id = 0;               // index in the whole model's table
    bool is_copy = false;            // another stage's parameter, replicated here

    bool is_split() const { return split_dim >= 0; }
    bool decays() const { return init_std > 0; }  // weight decay: all but biases and layer norms
    static long product(const std::vector<long>& dims) {
        long n = 1;
        for (long dim : dims) n *= dim;
        return n;
    }

    long stored() const { return product(count); }
};

struct Bucket { long offset, elements; int global_id; };  // global_id: index in the whole model

// ---- a block's tensors -----------------------------------------------------------------------------------

enum BlockTensor { LN1_W, LN1_B, QKV_W, QKV_B, OUT_W, OUT_B, LN2_W, LN2_B, UP_W, UP_B, DOWN_W, DOWN_B,
                   block_tensors };

// tensors of the LM head
enum { LNF_W, LNF_B, LOGITS_W, lm_head_tensors };

// where they are in a rank's flat buffers: w[QKV_W], g[LNF_W]
using BlockWeights = std::array<const floatX*, block_tensors>;
using BlockGradients = std::array<real*, block_tensors>;
using LmHeadWeights = std::array<const floatX*, lm_head_tensors>;
using LmHeadGradients = std::array<real*, lm_head_tensors>;

// Weights begin as N(0, s) with s = sqrt(1 / (3 C)); the two projections that feed the residual stream get
// s / sqrt(2 L) (arXiv 2201.11990, section 3); biases 0, layer norm weights 1
inline double normal_std(const ModelShape& s) { return std::sqrt(1.0 / (3.0 * s.C)); }

// of layer l, by BlockTensor; {name, shape, split_dim, init_std}
inline std::vector<Parameter> block_rows(const ModelShape& s, int l) {
    std::string h = "h." + std::to_string(l) + ".";
    long C = s.C, NH = s.NH, HS = s.HS();
    double normal = normal_std(s), residual = normal / std::sqrt(2.0 * s.L);
    std::vector<Parameter> rows(block_tensors);
    rows[LN1_W] = {.name = h + "ln_1.weight", .shape = {C}, .constant = 1};
    rows[LN1_B] = {h + "ln_1.bias", {C}};
    rows[QKV_W] = {h + "attn.c_attn.weight", {NH, 3, HS, C}, 0, normal};
    rows[QKV_B] = {h + "attn.c_attn.bias", {NH, 3, HS}, 0};
    rows[OUT_W] = {h + "attn.c_proj.weight", {C, NH, HS}, 1, residual};
    rows[OUT_B] = {h + "attn.c_proj.bias", {C}};
    rows[LN2_W] = {.name = h + "ln_2.weight", .shape = {C}, .constant = 1};
    rows[LN2_B] = {h + "ln_2.bias", {C}};
    rows[UP_W] = {h + "mlp.c_fc.weight", {4 * C, C}, 0, normal};
    rows[UP_B] = {h + "mlp.c_fc.bias", {4 * C}, 0};
    rows[DOWN_W] = {h + "mlp.c_proj.weight", {C, 4 * C}, 1, residual};
    rows[DOWN_B] = {h + "mlp.c_proj.bias", {C}};

    for (const Parameter& row : rows)
        if (row.shape.empty()) fail("a tensor of BlockTensor has no row in block_rows() (params.h): add it");
    return rows;
}

// ---- the table -------------------------------------------------------------------------------------------

struct ParameterTable {
    std::vector<Parameter> list;  // wte, wpe, each block's, the final layer norm's two; wte's copy
    std::vector<Bucket> buckets;
    long elements = 0;    // in a flat buffer, padding between tensors included
    long count = 0;       // parameters of the whole model, vocabulary padding included
    int tensors = 0;      // in the whole model
    int bucket_ids = 0;   // buckets in the whole model
    int wte = -1, wpe = -1, blocks = -1, lnf = -1;  // index of the first of each in `list`; -1: not here

    // on other stages, it and its tensors are only counted
    void add_bucket(bool is_mine, const std::vector<Parameter>& rows, const Grid& grid,
                    int optimizer_shards) {
        if (is_mine) buckets.push_back({elements, 0, bucket_ids});
        bucket_ids++;
        for (const Parameter& row : rows) add_tensor(is_mine, row, grid);
        if (!is_mine) return;
        long unit = 128L * optimizer_shards;
        buckets.back().elements = (elements - buckets.back().offset + unit - 1) / unit * unit;
        elements = buckets.back().offset + buckets.back().elements;
    }

    // p: a row, with a size if it is padded
    void add_tensor(bool is_mine, Parameter p, const Grid& grid) {
        if (!p.size) p.size = Parameter::product(p.shape);
        count += p.size;
        p.global_id = tensors++;
        if (!is_mine) return;

        p.start.resize(p.shape.size());
        p.count = p.shape;
        // equal shards of the padded tensor: the last ones may hold fewer real rows, or none
        if (p.is_split()) {
            long whole = p.shape[p.split_dim], each = Parameter::product(p.shape) / whole;
            p.size /= grid.t;
            long part = p.size / each, begin = part * grid.tensor;
            p.start[p.split_dim] = std::min(begin, whole);
            p.count[p.split_dim] = std::min(begin + part, whole) - p.start[p.split_dim];
        }
        p.offset = elements;
        p.bucket = (int)buckets.size() - 1;
        list.push_back(p);
        elements += (p.size + 127) / 128 * 128;
    }

    // layer: counted over all chunks of this rank
    const Parameter& block(int layer, BlockTensor tensor) const {
        return list[blocks + layer * block_tensors + tensor];
    }
};

// of this rank's place in the grid; optimizer_shards, chunks: as in Setup (activations.h)
inline ParameterTable parameter_table(const ModelShape& shape, const Grid& grid = {},
                                      int optimizer_shards = 1, int chunks = 1) {
    ParameterTable table;
    long C = shape.C;
    bool first = grid.is_first_stage(), last = grid.is_last_stage();
    int layers = shape.L / (grid.p * chunks);  // of a chunk
    auto next = [&] { return (int)table.list.size(); };
    auto add = [&](bool is_mine, const std::vector<Parameter>& rows) {
        table.add_bucket(is_mine, rows, grid, optimizer_shards);
    };

    Parameter wte = {"wte.weight", {shape.V, C}, 0, normal_std(shape)};
    wte.size = shape.Vp * C;
    if (first) table.wte = next();
    add(first, {wte});
    if (first) table.wpe = next();
    add(first, {{.name = "wpe.weight", .shape = {shape.T, C}, .init_std = normal_std(shape)}});

    table.blocks = next();
    for (int l = 0; l < shape.L; l++) add(l / layers % grid.p == grid.stage, block_rows(shape, l));

    if (last) table.lnf = next();
    add(last, {{.name = "ln_f.weight", .shape = {C}, .constant = 1}, {.name = "ln_f.bias", .shape = {C}}});

    // the last stage's copy of wte: counted on the first stage, and the same tensor and bucket as there
    if (last && !first) {
        table.wte = next();
        add(true, {wte});
        table.list.back().is_copy = true;
        table.list.back().global_id = table.buckets.back().global_id = 0;
        table.count -= shape.Vp * C;
        table.tensors--;
        table.bucket_ids--;
    }
    return table;
}
