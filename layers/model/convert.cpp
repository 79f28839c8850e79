// convert.cpp   checkpoints <-> Hugging Face's GPT-2: config.json and model.safetensors
//   ./convert --from-huggingface DIR --to CHECKPOINT [--tokenizer PATH/vocab.bpe]
//   ./convert --from-checkpoint DIR --to-huggingface DIR
//   safetensors (github.com/huggingface/safetensors, format section):
//      0  8  n, little-endian
//      8  n  JSON: name -> {"dtype": F32|F16|BF16|F64, "shape", "data_offsets": [begin, end]}
//      8+n   the tensors' bytes
//   Names are ours already, perhaps behind "transformer.". GPT-2 stores its linear weights (in, out), we
//   (out, in); its c_attn columns are [q | k | v] by heads, ours are [q k v] in each head.
#include "../base/arguments.h"
#include "save.h"

namespace {

constexpr char usage[] =
    "usage: ./convert --from-huggingface DIR --to CHECKPOINT\n"
    "       ./convert --from-checkpoint DIR --to-huggingface DIR\n";

const std::vector<OptionForm> forms = {
    {"from-huggingface", OptionForm::Text, "folder with a GPT-2 model's config.json and model.safetensors"},
    {"to", OptionForm::Text,
     "checkpoint folder, in the format of train_gpt --save and --resume"},
    {"tokenizer", OptionForm::Text,
     "vocab.bpe to store in the checkpoint, so that it can read and print text"},
    {"from-checkpoint", OptionForm::Text,
     "folder written by train_gpt --save; its newest checkpoint is used"},
    {"to-huggingface", OptionForm::Text,
     "folder for config.json, model.safetensors (fp32) and the tokenizer files"},
};

float half_to_float(uint16_t h) {
    int exponent = h >> 10 & 31, fraction = h & 1023;
    double value = exponent == 0 ? std::ldexp(fraction, -24)
                 : exponent == 31 ? (fraction ? NAN : INFINITY) : std::ldexp(1024 + fraction, exponent - 25);
    return (float)(h >> 15 ? -value : value);
}

struct Safetensors {
    MappedFile file;
    Json header;
    size_t begin = 0;

    explicit Safetensors(const std::string& path) : file(path) {
        uint64_t n = file.read<uint64_t>(0, "the header's length");
        if (n > file.size - 8 || n > 16 << 20)
            fail("%s: truncated or foreign: its header has %llu bytes, the file %zu", path.c_str(),
                 (unsigned long long)n, file.size);
        header = Json::parse(std::string_view(file.range(8, n, "the header"), n), path);
        begin = 8 + n;
    }
    // a tensor that is not the model's would be lost silently; masks and the tied head may be there
    void refuse_unknown(const ParameterTable& table) const {
        for (auto& [key, value] : header.members) {
            std::string name = key.rfind("transformer.", 0) == 0 ? key.substr(12) : key;
            bool known = name == "__metadata__" || name == "lm_head.weight" || name.ends_with(".attn.bias") ||
                         name.ends_with(".attn.masked_bias");
            for (auto& p : table.list) known |= name == p.name;
            if (!known) fail("%s: has a tensor %s, which is not GPT-2's", file.path.c_str(), key.c_str());
        }
    }
    // the values of a tensor, of the shape given, wherever its name has "transformer." before it or not
    std::vector<real> read(const std::string& name, const std::vector<long>& shape) const {
        const Json* t = header.find(name);
        if (!t) t = header.find("transformer." + name);
        if (!t) fail("%s: has no tensor %s: wants a GPT-2 model", file.path.c_str(), name.c_str());
        std::string what = file.path + ", " + name;
        std::vector<long> stored = Checkpoint::numbers(t->at("shape", what), what);
        if (stored != shape)
            fail("%s: has shape %s, config.json wants %s", what.c_str(), json_numbers(stored).c_str(),
                 json_numbers(shape).c_str());
        std::vector<long> offsets = Checkpoint::numbers(t->at("data_offsets", what), what);
        const std::string& type = t->at("dtype", what).string(what);
        size_t width = type == "F64" ? 8 : type == "F32" ? 4 : type == "F16" || type == "BF16" ? 2 : 0, n = 1;
        if (!width) fail("%s: has dtype %s, wants F64, F32, F16 or BF16", what.c_str(), type.c_str());
        for (long d : shape) n *= (size_t)d;
        if (offsets.size() != 2 || offsets[0] < 0 || offsets[1] < offsets[0] ||
            (size_t)(offsets[1] - offsets[0]) != n * width)
            fail("%s: has damaged offsets, wants %zu bytes", what.c_str(), n * width);
        const char* from = file.range(begin + (size_t)offsets[0], n * width, name.c_str());
        std::vector<real> out(n);
        for (size_t i = 0; i < n; i++) {
            uint64_t bits = 0;
            memcpy(&bits, from + i * width, width);
            uint32_t low = type == "BF16" ? (uint32_t)bits << 16 : (uint32_t)bits;
            float single;
            double twice;
            memcpy(&single, &low, 4);
            memcpy(&twice, &bits, 8);
            out[i] = (real)(type == "F64" ? twice : type == "F16" ? half_to_float((uint16_t)bits) : single);
        }
        return out;
    }
};

// how a tensor of ours lies in GPT-2's file
struct Placement {
    std::vector<long> shape;                      // there
    std::function<long(long)> there;              // our element -> theirs
};

Placement placement(const Parameter& p, const ModelShape& m) {
    long C = m.C, HS = m.HS();
    auto ends = [&](const char* s) { return p.name.ends_with(s); };
    // (head, qkv, channel)
    auto column = [=](long row) { return row / HS % 3 * C + row / (3 * HS) * HS + row % HS; };
    if (ends("attn.c_attn.weight"))
        return {{C, 3 * C}, [=](long i) { return i % C * 3 * C + column(i / C); }};
    if (ends("attn.c_attn.bias")) return {{3 * C}, column};
    long rows = p.shape[0], columns = p.stored() / rows;
    if (ends("c_proj.weight") || ends("c_fc.weight"))
        return {{columns, rows}, [=](long i) { return i % columns * rows + i / columns; }};
    return {p.shape, [](long i) { return i; }};
}

int number_in(const Json& config, const char* key, const std::string& name) {
    int64_t value = config.at(key, name).integer(name);
    if (value < 1 || value > 1 << 24)
        fail("%s: has %s %lld, wants 1 to %d", name.c_str(), key, (long long)value, 1 << 24);
    return (int)value;
}

void from_huggingface(const std::string& dir, const std::string& to, const std::string& tokenizer) {
    std::string name = dir + "/config.json";
    MappedFile file(name);
    Json config = Json::parse(file.view(), name);
    ModelShape m = {number_in(config, "n_layer", name), number_in(config, "n_embd", name),
                    number_in(config, "n_head", name), number_in(config, "n_positions", name),
                    number_in(config, "vocab_size", name), 0};
    m.Vp = m.V;
    if (m.C % m.NH) fail("%s: n_head %d does not divide n_embd %d", name.c_str(), m.NH, m.C);
    auto wants = [&](const char* key, std::vector<std::string> accepted) {
        const Json* value = config.find(key);
        if (value && std::find(accepted.begin(), accepted.end(), value->text) == accepted.end())
            fail("%s: has %s %s, this program computes %s", name.c_str(), key, value->text.c_str(),
                 accepted[0].c_str());
    };
    wants("model_type", {"gpt2"});
    wants("activation_function", {"gelu_new", "gelu_pytorch_tanh"});
    wants("tie_word_embeddings", {"true"});
    wants("scale_attn_by_inverse_layer_idx", {"false"});
    wants("scale_attn_weights", {"true"});
    wants("add_cross_attention", {"false"});
    if (const Json* e = config.find("layer_norm_epsilon"); e && e->number(name) != (double)1e-5)
        fail("%s: has layer_norm_epsilon %s, this program computes 1e-5", name.c_str(), e->text.c_str());
    if (const Json* inner = config.find("n_inner");
        inner && inner->kind != Json::Null && inner->integer(name) != 4L * m.C)
        fail("%s: has n_inner %s, this program computes 4 * n_embd", name.c_str(), inner->text.c_str());
    if (m.L > 10000) fail("%s: has n_layer %d, at most 10000", name.c_str(), m.L);
    std::optional<Vocabulary> vocabulary;
    if (!tokenizer.empty()) vocabulary = Vocabulary::open(tokenizer);
    if (vocabulary && vocabulary->size() != m.V)
        fail("--tokenizer %s: has %d tokens, the model %d", tokenizer.c_str(), vocabulary->size(), m.V);
    Safetensors tensors(dir + "/model.safetensors");
    tensors.refuse_unknown(parameter_table(m));
    ParameterTable table = parameter_table(m);
    std::vector<real> values;
    Snapshot snapshot;
    for (auto& p : table.list) {
        Placement there = placement(p, m);
        std::vector<real> theirs = tensors.read(p.name, there.shape);
        snapshot.ranges.push_back({p, Master, 0, p.stored(), -1, values.size()});
        for (long i = 0; i < p.stored(); i++) values.push_back(theirs[there.there(i)]);
    }
    snapshot.values = values.data();
    RunState state;
    state.shape = m;
    state.seed = 1234;
    if (vocabulary) state.tokenizer = vocabulary->kind;
    if (!list_checkpoints(to).empty())
        fail("--to %s already holds checkpoints: choose another folder", to.c_str());
    save_whole(to, state, snapshot, "{}", vocabulary ? &*vocabulary : nullptr);
    printf("%s/%s: %ld parameters\n", to.c_str(), step_name(0).c_str(), table.count);
}

// vocab.json, merges.txt and tokenizer_config.json: what transformers makes a GPT2Tokenizer from
void write_tokenizer(const Vocabulary& v, int T, const std::string& to) {
    PrintedBytes printed;
    std::string ids;
    for (int t = 0; t < v.size(); t++) {
        std::string name;
        for (unsigned char c : v.tokens[t]) append_utf8(name, printed.code[c]);
        if (t == v.end_of_text) name = "<|endoftext|>";
        ids += text("%s%s: %d", t ? ", " : "{", json_quote(name).c_str(), t);
    }
    std::string config = text("{\"tokenizer_class\": \"GPT2Tokenizer\", \"model_max_length\": %d, ", T);
    for (const char* name : {"bos_token", "eos_token", "unk_token"})
        config += text("\"%s\": \"<|endoftext|>\"%s", name, *name == 'u' ? "}\n" : ", ");
    for (auto& [name, contents] : {std::pair<std::string, std::string>{"vocab.json", ids + "}\n"},
                                   {"merges.txt", v.source}, {"tokenizer_config.json", config}}) {
        FileWriter file(to + "/" + name);
        file.write(contents);
        file.finish();
    }
}

void to_huggingface(const std::string& dir, const std::string& to) {
    std::vector<Checkpoint> found = find_checkpoints(dir);
    Checkpoint& c = found[0];  // what of it is damaged is refused where it is read
    ModelShape m = c.state.shape;
    m.Vp = m.V;
    ParameterTable table = parameter_table(m);
    std::string header;
    size_t offset = 0;
    for (auto& p : table.list) {
        header += text("%s%s:{\"dtype\":\"F32\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}",
                       header.empty() ? "{" : ",", json_quote("transformer." + p.name).c_str(),
                       json_numbers(placement(p, m).shape).c_str(), offset, offset + p.stored() * 4);
        offset += p.stored() * 4;
    }
    header = "{\"__metadata__\":{\"format\":\"pt\"}," + header.substr(1) + "}";
    header += std::string((8 - header.size() % 8) % 8, ' ');
    std::filesystem::create_directories(to);
    FileWriter file(to + "/model.safetensors");
    uint64_t n = header.size();
    file.write(&n, 8);
    file.write(header);
    std::vector<real> ours;
    for (auto& p : table.list) {
        c.read(ours, p, 0);
        Placement there = placement(p, m);
        std::vector<float> theirs(ours.size());
        for (long i = 0; i < p.stored(); i++) theirs[there.there(i)] = (float)ours[i];
        file.write(theirs.data(), theirs.size() * 4);
    }
    file.finish();
    FileWriter config(to + "/config.json");
    config.write(text("{\n  \"architectures\": [\"GPT2LMHeadModel\"],\n  \"model_type\": \"gpt2\",\n  "
                      "\"activation_function\": \"gelu_new\",\n  \"n_layer\": %d,\n  \"n_embd\": %d,\n  "
                      "\"n_head\": %d,\n  \"n_positions\": %d,\n  \"n_ctx\": %d,\n  \"vocab_size\": %d,\n  "
                      "\"layer_norm_epsilon\": 1e-05,\n  \"attn_pdrop\": 0.0,\n  \"embd_pdrop\": 0.0,\n  "
                      "\"resid_pdrop\": 0.0,\n  \"tie_word_embeddings\": true,\n  \"bos_token_id\": %d,\n  "
                      "\"eos_token_id\": %d\n}\n", m.L, m.C, m.NH, m.T, m.T, m.V, m.V - 1, m.V - 1));
    config.finish();
    if (c.state.tokenizer == "bpe") write_tokenizer(Vocabulary::open(c.folder + "/vocab.bpe"), m.T, to);
    printf("%s: %ld parameters of step %ld\n", to.c_str(), table.count, c.state.step);
}

}  // namespace

int main(int argc, char** argv) {
    try {
        Arguments a(argc, argv, usage, forms);
        bool from = a.has("from-huggingface") && a.has("to"),
             to = a.has("from-checkpoint") && a.has("to-huggingface");
        if (from == to || a.values.size() > (from ? 2u + a.has("tokenizer") : 2u) || !a.words.empty())
            fail("wants --from-huggingface with --to, or --from-checkpoint with --to-huggingface\n%s", usage);
        if (from) from_huggingface(a.get("from-huggingface"), a.get("to"), a.get("tokenizer"));
        else to_huggingface(a.get("from-checkpoint"), a.get("to-huggingface"));
    } catch (const std::exception& e) {
        fprintf(stderr, "convert: %s\n", e.what());
        return 1;
    }
    return 0;
}
