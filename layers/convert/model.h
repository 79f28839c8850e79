// model.h   a model as another program stores it, tensor by tensor <-> our checkpoint
#pragma once
#include "../run/save.h"

// where each element of one of our tensors is in another program's tensor
struct ElementMap {
    std::vector<long> shape;           // there
    std::function<long(long)> there;   // our element -> theirs
};

// Our rows of c_attn are (head, q k v, channel); others' are q, k and v one after the other, each by heads.
inline long split_qkv_row(long row, const ModelShape& m) {
    long HS = m.HS();
    return row / HS % 3 * m.C + row / (3 * HS) * HS + row % HS;
}

inline bool is_linear_weight(const Parameter& p) {
    auto ends = [&](const char* s) { return p.name.ends_with(s); };
    return ends("c_attn.weight") || ends("c_proj.weight") || ends("c_fc.weight");
}

// llm.c's and nanoGPT's layout: linear weights (out, in), like ours; only the rows of c_attn differ
inline ElementMap split_qkv(const Parameter& p, const ModelShape& m) {
    bool is_qkv = p.name.ends_with("attn.c_attn.weight") || p.name.ends_with("attn.c_attn.bias");
    long rows = is_qkv ? 3L * m.C : p.shape[0], columns = p.stored() / rows;
    std::vector<long> shape = p.shape;
    if (is_qkv) shape = {rows};
    if (is_linear_weight(p)) shape = {rows, columns};
    if (!is_qkv) return {shape, [](long i) { return i; }};
    return {shape, [=](long i) { return split_qkv_row(i / columns, m) * columns + i % columns; }};
}

// a model that is to become a checkpoint: its shape, and how a tensor is read, in our order of elements
struct ForeignModel {
    ModelShape shape;
    std::function<std::vector<real>(const Parameter&)> read;
};

inline std::vector<real> placed(const std::vector<real>& theirs, const ElementMap& map) {
    std::vector<real> ours(theirs.size());
    for (size_t i = 0; i < ours.size(); i++) ours[i] = theirs[(size_t)map.there((long)i)];
    return ours;
}

// before a table of its parameters is made
inline void check_shape(const ModelShape& m, const std::string& path) {
    if (m.L > 10000) fail("%s: has %d layers, expected at most 10000", path.c_str(), m.L);
    if (m.C % m.NH)
        fail("%s: its number of heads %d does not divide the hidden size %d", path.c_str(), m.NH, m.C);
}

inline void write_checkpoint(const ForeignModel& model, const std::string& to, const std::string& tokenizer) {
    ModelShape m = model.shape;
    if (m.V < 2) fail("the model has a vocabulary of %d, expected at least 2", m.V);
    if (m.C > 1 << 20) fail("the model has hidden size %d, expected at most %d", m.C, 1 << 20);
    std::optional<Vocabulary> vocabulary;
    if (!tokenizer.empty()) vocabulary = Vocabulary::open(tokenizer);
    // padding is at most 128 rows for each of some tensor-parallel ranks
    int left_out = vocabulary ? m.V - vocabulary->size() : 0;
    if (left_out >= 1024 && left_out > m.V / 4)
        fail("--tokenizer %s: has %d tokens, the model %d, which is more than padding: give the model's own",
             tokenizer.c_str(), vocabulary->size(), m.V);
    if (left_out > 0) {  // as nanoGPT's 50304 rows for GPT-2's 50257 tokens
        printf("note: the last %d rows of the token embedding are not tokens of %s and are left out\n",
               left_out, tokenizer.c_str());
        m.V = m.Vp = vocabulary->size();
    }
    if (vocabulary && vocabulary->size() != m.V)
        fail("--tokenizer %s: has %d tokens, but the model has %d", tokenizer.c_str(), vocabulary->size(),
             m.V);

    if (!list_checkpoints(to).empty())
        fail("--to %s already holds checkpoints: choose another folder", to.c_str());
    ParameterTable table = parameter_table(m), theirs = parameter_table(model.shape);
    std::vector<real> values;
    Snapshot snapshot;
    for (size_t i = 0; i < table.list.size(); i++) {
        const Parameter& p = table.list[i];
        std::vector<real> ours = model.read(theirs.list[i]);
        ours.resize((size_t)p.stored());
        for (real value : ours)
            if (!std::isfinite(value))
                fail("%s has a value that is not finite, or not in this build's precision: the model cannot "
                     "be used", p.name.c_str());
        snapshot.ranges.push_back({p, Master, 0, p.stored(), -1, values.size()});
        values.insert(values.end(), ours.begin(), ours.end());
    }

    snapshot.values = values.data();
    RunState state;
    state.shape = m;
    state.seed = 1234;
    if (vocabulary) state.tokenizer = vocabulary->kind;
    save_whole(to, state, snapshot, "{}", vocabulary ? &*vocabulary : nullptr);

    if (!vocabulary)
        printf("note: no vocabulary is stored: give --tokenizer bytes or PATH/vocab.bpe here, or each time "
               "to train_gpt\n");
    printf("%s/%s: %ld parameters\n", to.c_str(), step_name(0).c_str(), table.count);
}

// the newest checkpoint of a folder; damage is an error when the damaged tensor is read
struct OwnModel {
    std::vector<Checkpoint> found;
    ModelShape shape;
    ParameterTable table;

    explicit OwnModel(const std::string& folder)
        : found(find_checkpoints(folder, 0, "from-checkpoint")), shape(unpadded(found[0].state.shape)),
          table(parameter_table(shape)) {}
    const Checkpoint& checkpoint() const { return found[0]; }
    static ModelShape unpadded(ModelShape m) {
        m.Vp = m.V;
        return m;
    }

    // in the other program's order
    std::vector<float> read(const Parameter& p, const ElementMap& map) {
        std::vector<real> ours;
        found[0].read(ours, p, 0);
        std::vector<float> theirs(ours.size());
        for (size_t i = 0; i < ours.size(); i++) theirs[(size_t)map.there((long)i)] = (float)ours[i];
        return theirs;
    }
};
