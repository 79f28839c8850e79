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
#include <iterator>
#include <string>
#include <vector>
#include "../base/check.h"

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
    std::vector<long> start, count;  // this rank's shard in it
    bool split;                      // sharded over tensor-parallel ranks; otherwise replicated
    long size;                       // elements in the flat buffer; more than the shard has if V is padded
    bool decay;                      // takes part in weight decay: all but biases and layer norms
    double init_std;                 // of the initial normal distribution; 0: all `constant`
    double constant;
    long offset;                     // first element in the flat buffers
    int bucket;                      // index in this rank's buckets
    int global_id;                   // index in the whole model's table
    bool is_copy;                    // another stage's parameter, replicated here
    static long product(const std::vector<long>& dims) {
        long n = 1;
        for (long dim : dims) n *= dim;
        return n;
    }

    long stored() const { return product(count); }
};

struct Bucket { long offset, elements; int global_id; };  // global_id: index in the whole model

// how a model is distributed over ranks
struct Layout {
    int t = 1, tensor = 0;          // tensor-parallel ranks, and this rank's index among them
    // data-parallel ranks that each own a slice of every bucket (ZeRO-1); 1: not sharded
    int optimizer_shards = 1;
    int p = 1, stage = 0, v = 1;    // pipeline stages, this rank's stage, model chunks per stage
    int chunk_layers(int L) const { return L / (p * v); }
};

// ---- a block's tensors -----------------------------------------------------------------------------------

enum BlockTensor { LN1_W, LN1_B, QKV_W, QKV_B, OUT_W, OUT_B, LN2_W, LN2_B, UP_W, UP_B, DOWN_W, DOWN_B,
                   block_tensors };

// tensors of the LM head
enum { LNF_W, LNF_B, LOGITS_W, lm_head_tensors };

// N(0, s) with s = sqrt(1 / (3 C)); the two projections that feed the residual stream get s / sqrt(2 L)
// (arXiv 2201.11990, section 3); biases 0, layer norm weights 1
enum class Init { Zero, One, Normal, Residual };

using Dims = std::vector<long>;

// placeholders for the model's sizes: hidden size, heads, head size, and the MLP's width
namespace dim {
constexpr long C = -1, NH = -2, HS = -3, C4 = -4;
}

struct BlockRow {
    BlockTensor tensor;
    const char* name;
    std::array<long, 4> dims;  // 0: none
    int split;  // the dimension sharded over tensor-parallel ranks; -1: replicated
    Init init;
    Dims shape(const ModelShape& s) const {
        Dims out;
        for (long d : dims)
            if (d) out.push_back(d == dim::C ? s.C : d == dim::NH ? s.NH : d == dim::HS ? s.HS()
                                 : d == dim::C4 ? 4L * s.C : d);
        return out;
    }
};
constexpr BlockRow block_rows[] = {
    {LN1_W, "ln_1.weight", {dim::C}, -1, Init::One},
    {LN1_B, "ln_1.bias", {dim::C}, -1, Init::Zero},
    {QKV_W, "attn.c_attn.weight", {dim::NH, 3, dim::HS, dim::C}, 0, Init::Normal},
    {QKV_B, "attn.c_attn.bias", {dim::NH, 3, dim::HS}, 0, Init::Zero},
    {OUT_W, "attn.c_proj.weight", {dim::C, dim::NH, dim::HS}, 1, Init::Residual},
    {OUT_B, "attn.c_proj.bias", {dim::C}, -1, Init::Zero},
    {LN2_W, "ln_2.weight", {dim::C}, -1, Init::One},
    {LN2_B, "ln_2.bias", {dim::C}, -1, Init::Zero},
    {UP_W, "mlp.c_fc.weight", {dim::C4, dim::C}, 0, Init::Normal},
    {UP_B, "mlp.c_fc.bias", {dim::C4}, 0, Init::Zero},
    {DOWN_W, "mlp.c_proj.weight", {dim::C, dim::C4}, 1, Init::Residual},
    {DOWN_B, "mlp.c_proj.bias", {dim::C}, -1, Init::Zero},
};
constexpr bool block_rows_match() {
    for (int i = 0; i < block_tensors; i++)
        if (block_rows[i].tensor != i) return false;
    return std::size(block_rows) == block_tensors;
}

static_assert(block_rows_match(), "block_rows lists the tensors of BlockTensor, in its order");

// ---- the table -------------------------------------------------------------------------------------------

struct ParameterTable {
    Layout layout;
    std::vector<Parameter> list;  // wte, wpe, each block's, the final layer norm's two; wte's copy
    std::vector<Bucket> buckets;
    long elements = 0;    // in a flat buffer, padding between tensors included
    long count = 0;       // parameters of the whole model, vocabulary padding included
    int tensors = 0;      // in the whole model
    int bucket_ids = 0;   // buckets in the whole model
    int wte = -1, wpe = -1, blocks = -1, lnf = -1;  // index of the first of each in `list`; -1: not here

    // add_tensors() adds the tensors of one bucket
    template <class Add>
    void add_bucket(bool is_mine, Add add_tensors) {
        if (is_mine) buckets.push_back({elements, 0, bucket_ids});
        bucket_ids++;
        adding = is_mine;
        add_tensors();
        if (!is_mine) return;
        long unit = 128L * layout.optimizer_shards;
        buckets.back().elements = (elements - buckets.back().offset + unit - 1) / unit * unit;
        elements = buckets.back().offset + buckets.back().elements;
    }

    // std: of the initial normal distribution; rows: size of dimension 0 with padding, 0: no padding
    void add_tensor(const std::string& name, Dims shape, int split, Init init, double std, long rows = 0) {
        if (!rows) rows = shape[0];
        count += Parameter::product(shape) / shape[0] * rows;
        int id = tensors++;
        if (!adding) return;

        bool is_matrix = init == Init::Normal || init == Init::Residual;
        Parameter p = {};
        p.name = name;
        p.shape = p.count = shape;
        p.start = Dims(shape.size(), 0);
        p.split = split >= 0;
        p.decay = is_matrix;
        p.init_std = is_matrix ? std : 0;
        p.constant = init == Init::One;
        p.global_id = id;
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

    // layer: counted over all chunks of this rank
    const Parameter& block(int layer, BlockTensor tensor) const {
        return list[blocks + layer * block_tensors + tensor];
    }

private:
    bool adding = true;
};

inline ParameterTable parameter_table(const ModelShape& shape, Layout layout = {}) {
    ParameterTable table;
    table.layout = layout;
    long C = shape.C;
    double normal = std::sqrt(1.0 / (3.0 * shape.C)), residual = normal / std::sqrt(2.0 * shape.L);
    bool first = layout.stage == 0, last = layout.stage == layout.p - 1;
    int layers = layout.chunk_layers(shape.L);

    Parameter wte;
    auto next = [&] { return (int)table.list.size(); };
    if (first) table.wte = next();
    table.add_bucket(true, [&] {
        table.add_tensor("wte.weight", {shape.V, C}, 0, Init::Normal, normal, shape.Vp);
        wte = table.list[0];
    });
    if (!first) {
        table.list.clear();
        table.buckets.clear();
        table.elements = 0;
    }
    if (first) table.wpe = next();
    table.add_bucket(first, [&] { table.add_tensor("wpe.weight", {shape.T, C}, -1, Init::Normal, normal); });

    table.blocks = next();
    for (int l = 0; l < shape.L; l++)
        table.add_bucket(l / layers % layout.p == layout.stage, [&] {
            for (auto& row : block_rows)
                table.add_tensor("h." + std::to_string(l) + "." + row.name, row.shape(shape), row.split,
                                 row.init, row.init == Init::Residual ? residual : normal);
        });

    if (last) table.lnf = next();
    table.add_bucket(last, [&] {
        table.add_tensor("ln_f.weight", {C}, -1, Init::One, 0);
        table.add_tensor("ln_f.bias", {C}, -1, Init::Zero, 0);
    });

    if (last && !first) {
        wte.is_copy = true;
        table.wte = next();
        table.add_bucket(true, [&] { table.append(wte); });
        table.buckets.back().global_id = 0;  // the same bucket as on the first stage
        table.bucket_ids--;
    }
    return table;
}
