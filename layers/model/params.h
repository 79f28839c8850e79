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

// a tensor of the whole model, as the table is made from it
struct TensorRow {
    std::string name;
    std::vector<long> shape;
    int split;  // the dimension sharded over tensor-parallel ranks; -1: replicated
    Init init;
    long rows = 0;  // size of dimension 0 with padding; 0: no padding
};

// of layer l, by BlockTensor
inline std::vector<TensorRow> block_rows(const ModelShape& s, int l) {
    std::string h = "h." + std::to_string(l) + ".";
    long C = s.C, NH = s.NH, HS = s.HS();
    std::vector<TensorRow> rows(block_tensors);
    rows[LN1_W] = {h + "ln_1.weight", {C}, -1, Init::One};
    rows[LN1_B] = {h + "ln_1.bias", {C}, -1, Init::Zero};
    rows[QKV_W] = {h + "attn.c_attn.weight", {NH, 3, HS, C}, 0, Init::Normal};
    rows[QKV_B] = {h + "attn.c_attn.bias", {NH, 3, HS}, 0, Init::Zero};
    rows[OUT_W] = {h + "attn.c_proj.weight", {C, NH, HS}, 1, Init::Residual};
    rows[OUT_B] = {h + "attn.c_proj.bias", {C}, -1, Init::Zero};
    rows[LN2_W] = {h + "ln_2.weight", {C}, -1, Init::One};
    rows[LN2_B] = {h + "ln_2.bias", {C}, -1, Init::Zero};
    rows[UP_W] = {h + "mlp.c_fc.weight", {4 * C, C}, 0, Init::Normal};
    rows[UP_B] = {h + "mlp.c_fc.bias", {4 * C}, 0, Init::Zero};
    rows[DOWN_W] = {h + "mlp.c_proj.weight", {C, 4 * C}, 1, Init::Residual};
    rows[DOWN_B] = {h + "mlp.c_proj.bias", {C}, -1, Init::Zero};

    for (const TensorRow& row : rows)
        if (row.shape.empty()) fail("a tensor of BlockTensor has no row in block_rows() (params.h): add it");
    return rows;
}

// ---- the table -------------------------------------------------------------------------------------------

struct ParameterTable {
    ModelShape shape;
    Layout layout;
    std::vector<Parameter> list;  // wte, wpe, each block's, the final layer norm's two; wte's copy
    std::vector<Bucket> buckets;
    long elements = 0;    // in a flat buffer, padding between tensors included
    long count = 0;       // parameters of the whole model, vocabulary padding included
    int tensors = 0;      // in the whole model
    int bucket_ids = 0;   // buckets in the whole model
    int wte = -1, wpe = -1, blocks = -1, lnf = -1;  // index of the first of each in `list`; -1: not here

    // on other stages, it and its tensors are only counted
    void add_bucket(bool is_mine, const std::vector<TensorRow>& rows) {
        if (is_mine) buckets.push_back({elements, 0, bucket_ids});
        bucket_ids++;
        for (const TensorRow& row : rows) add_tensor(is_mine, row);
        if (!is_mine) return;
        long unit = 128L * layout.optimizer_shards;
        buckets.back().elements = (elements - buckets.back().offset + unit - 1) / unit * unit;
        elements = buckets.back().offset + buckets.back().elements;
    }

    void add_tensor(bool is_mine, const TensorRow& row) {
        long rows = row.rows ? row.rows : row.shape[0];
        long size = Parameter::product(row.shape) / row.shape[0] * rows;  // with padding
        count += size;
        int id = tensors++;
        if (!is_mine) return;

        bool is_split = row.split >= 0, is_matrix = row.init == Init::Normal || row.init == Init::Residual;
        double normal = std::sqrt(1.0 / (3.0 * shape.C)), residual = normal / std::sqrt(2.0 * shape.L);
        Parameter p = {};
        p.name = row.name;
        p.shape = p.count = row.shape;
        p.start = std::vector<long>(row.shape.size(), 0);
        p.split = is_split;
        p.decay = is_matrix;
        p.init_std = !is_matrix ? 0 : row.init == Init::Residual ? residual : normal;
        p.constant = row.init == Init::One;
        p.global_id = id;
        p.size = size / (is_split ? layout.t : 1);
        // equal shards of the padded tensor: the last ones may hold fewer real rows, or none
        if (is_split) {
            long whole = row.shape[row.split], part = (row.split == 0 ? rows : whole) / layout.t;
            long begin = part * layout.tensor;
            p.start[row.split] = std::min(begin, whole);
            p.count[row.split] = std::min(begin + part, whole) - p.start[row.split];
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

inline ParameterTable parameter_table(const ModelShape& shape, Layout layout = {}) {
    ParameterTable table;
    table.shape = shape;
    table.layout = layout;
    long C = shape.C;
    bool first = layout.stage == 0, last = layout.stage == layout.p - 1;
    int layers = layout.chunk_layers(shape.L);
    auto next = [&] { return (int)table.list.size(); };

    std::vector<TensorRow> wte = {{"wte.weight", {shape.V, C}, 0, Init::Normal, shape.Vp}};
    if (first) table.wte = next();
    table.add_bucket(first, wte);
    if (first) table.wpe = next();
    table.add_bucket(first, {{"wpe.weight", {shape.T, C}, -1, Init::Normal}});

    table.blocks = next();
    for (int l = 0; l < shape.L; l++)
        table.add_bucket(l / layers % layout.p == layout.stage, block_rows(shape, l));

    if (last) table.lnf = next();
    table.add_bucket(last, {{"ln_f.weight", {C}, -1, Init::One}, {"ln_f.bias", {C}, -1, Init::Zero}});

    // the last stage's copy of wte: counted on the first stage, and the same tensor and bucket as there
    if (last && !first) {
        table.wte = next();
        table.add_bucket(true, wte);
        table.list.back().is_copy = true;
        table.list.back().global_id = table.buckets.back().global_id = 0;
        table.count -= shape.Vp * C;
        table.tensors--;
        table.bucket_ids--;
    }
    return table;
}
