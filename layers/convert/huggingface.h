// huggingface.h   GPT-2 of Hugging Face's transformers: config.json and model.safetensors; nanoGPT's state
//   Tensors have our names, perhaps prefixed by "transformer.". Hugging Face stores linear weights (in, out),
//   nanoGPT (out, in) as we do.
#pragma once
#include "safetensors.h"

inline ElementMap huggingface_placement(const Parameter& p, const ModelShape& m) {
    ElementMap ours = split_qkv(p, m);
    if (!is_linear_weight(p)) return ours;
    long rows = ours.shape[0], columns = ours.shape[1];
    return {{columns, rows}, [=](long i) {
                long there = ours.there(i);
                return there % columns * rows + there / columns;
            }};
}

inline int number_in(const Json& config, const char* key, const std::string& name) {
    int64_t value = config.at(key, name).integer(name);
    if (value < 1 || value > 1 << 24)
        fail("%s: has %s %lld, expected 1 to %d", name.c_str(), key, (long long)value, 1 << 24);
    return (int)value;
}

inline ForeignModel open_huggingface(const std::string& dir) {
    std::string name = dir + "/config.json";
    WholeFile file(name);
    Json config = Json::parse(file.text(), name);
    auto wants = [&](const char* key, std::vector<std::string> accepted) {
        const Json* value = config.find(key);
        if (value && std::find(accepted.begin(), accepted.end(), value->text) == accepted.end())
            fail("%s: has %s %s, this program computes %s", name.c_str(), key, value->text.c_str(),
                 accepted[0].c_str());
    };

    wants("model_type", {"gpt2"});
    ModelShape m = {number_in(config, "n_layer", name), number_in(config, "n_embd", name),
                    number_in(config, "n_head", name), number_in(config, "n_positions", name),
                    number_in(config, "vocab_size", name), 0};
    m.Vp = m.V;
    check_shape(m, name);

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
    std::string weights = dir + "/model.safetensors", torch_saved = dir + "/pytorch_model.bin";
    if (access(weights.c_str(), F_OK) != 0 && access(torch_saved.c_str(), F_OK) == 0)
        weights = torch_saved;  // which is refused, with what to do
    if (access(weights.c_str(), F_OK) != 0 && access((weights + ".index.json").c_str(), F_OK) == 0)
        fail("%s: the model is in several files, expected one: make it with\n"
             "  from transformers import GPT2LMHeadModel\n"
             "  model = GPT2LMHeadModel.from_pretrained(\"%s\")\n"
             "  model.save_pretrained(NEW_DIR, max_shard_size=\"1TB\")", weights.c_str(), dir.c_str());
    auto tensors = std::make_shared<Safetensors>(weights);
    tensors->refuse_unknown(parameter_table(m));
    return {m, [=](const Parameter& p) {
                ElementMap there = huggingface_placement(p, m);
                return placed(tensors->read(p.name, there.shape), there);
            }};
}

// A state_dict of nanoGPT's GPT as safetensors. The tensors give the model's shape, except for the number of
// heads. If the model has no biases (bias=False), they are 0 here.
inline ForeignModel open_nanogpt(const std::string& path, int heads) {
    auto tensors = std::make_shared<Safetensors>(path);
    std::vector<long> wte = tensors->shape_of("wte.weight"), wpe = tensors->shape_of("wpe.weight");
    bool fits = wte.size() == 2 && wpe.size() == 2 && wpe[1] == wte[1];
    if (!fits || std::min({wte[0], wte[1], wpe[0]}) < 1 || std::max({wte[0], wte[1], wpe[0]}) > 1 << 24)
        fail("%s: wte.weight has shape %s and wpe.weight %s: expected nanoGPT's GPT", path.c_str(),
             json_numbers(wte).c_str(), json_numbers(wpe).c_str());

    int layers = 0;
    while (layers <= 10000 && tensors->find(text("h.%d.ln_1.weight", layers))) layers++;
    if (!layers) fail("%s: has no layers: expected nanoGPT's GPT", path.c_str());

    ModelShape m = {layers, (int)wte[1], heads, (int)wpe[0], (int)wte[0], (int)wte[0]};
    if (m.C % heads) fail("--heads %d does not divide the hidden size %d of %s", heads, m.C, path.c_str());
    check_shape(m, path);
    ParameterTable table = parameter_table(m);
    tensors->refuse_unknown(table);

    bool has_biases = false;
    for (auto& p : table.list)
        has_biases |= p.name.ends_with(".bias") && tensors->find(p.name);
    printf("note: nanoGPT's GELU uses erf, this program's tanh (as GPT-2): losses differ slightly%s\n",
           has_biases ? "" : "; the model has no biases: here they are 0, and training would change them");

    return {m, [=](const Parameter& p) {
                bool is_absent = !has_biases && p.name.ends_with(".bias");
                if (is_absent && !tensors->find(p.name)) return std::vector<real>((size_t)p.stored(), 0);
                ElementMap there = split_qkv(p, m);
                return placed(tensors->read(p.name, there.shape), there);
            }};
}

// The --tokenizer that gives the tokens of a folder's vocab.json: its merges.txt, which has vocab.bpe's form,
// or "bytes", as write_tokenizer() writes them; without these files, its tokenizer.json, which has both. "":
// there is none, or they are not V tokens
inline std::string find_tokenizer(const std::string& dir, int V) {
    std::string ids = dir + "/vocab.json", merges = dir + "/merges.txt", found = dir + "/tokenizer.json", why;
    bool is_json = access(ids.c_str(), R_OK) != 0 || access(merges.c_str(), R_OK) != 0, same = true;
    if (is_json && access(found.c_str(), R_OK) != 0) return "";
    try {
        if (is_json) {
            Json theirs = Json::parse(WholeFile(found).text(), found);
            if (theirs.at("model", found).at("merges", found).items.empty()) {
                check_numbers(theirs, Vocabulary::open("bytes"), found);  // with merges, open() compares them
                found = "bytes";
            }
            same = Vocabulary::open(found).size() == V;
        } else {
            WholeFile lines(merges);
            size_t first = lines.text().starts_with("#version") ? lines.text().find('\n') : 0;
            bool has_merges = lines.text().find_first_not_of("\r\n", first) != std::string_view::npos;
            found = has_merges ? merges : "bytes";

            std::vector<std::string> ours = printed_tokens(Vocabulary::open(found));
            Json theirs = Json::parse(WholeFile(ids).text(), ids);
            same = (int)ours.size() == V && (int)theirs.members.size() == V;
            for (auto& [token, id] : theirs.members) {
                int64_t t = id.integer(ids);
                same = same && t >= 0 && t < V && ours[t] == token;
            }
        }
        if (same) return found;
        why = text("%s does not make the model's %d tokens", found.c_str(), V);
    } catch (const Error& e) {
        why = e.what();
    }
    printf("note: the tokenizer of %s is left out: %s\n", dir.c_str(), why.c_str());
    return "";
}

// vocab.json, merges.txt and tokenizer_config.json: what transformers makes a GPT2Tokenizer from. Bytes are a
// vocabulary without merges
inline void write_tokenizer(const Vocabulary& v, int T, const std::string& to) {
    std::vector<std::string> tokens = printed_tokens(v);
    std::string ids;
    for (int t = 0; t < v.size(); t++)
        ids += text("%s%s: %d", t ? ", " : "{", json_quote(tokens[t]).c_str(), t);

    std::string config = text("{\"tokenizer_class\": \"GPT2Tokenizer\", \"model_max_length\": %d, ", T);
    for (const char* name : {"bos_token", "eos_token", "unk_token"})
        config += text("\"%s\": \"<|endoftext|>\"%s", name, *name == 'u' ? "}\n" : ", ");

    // readers skip the first line, and a last line without a newline; an empty line they refuse
    std::istringstream source(v.kind == "bpe" ? v.source : "");
    std::string merges = v.source.starts_with("#version") ? "" : "#version: 0.2\n";
    for (std::string line; std::getline(source, line);)
        if (line.find_first_not_of('\r') != line.npos) merges += line + "\n";
    for (auto& [name, contents] : {std::pair<std::string, std::string>{"vocab.json", ids + "}\n"},
                                   {"merges.txt", merges}, {"tokenizer_config.json", config}}) {
        write_file(to + "/" + name, contents);
    }
}

inline void write_huggingface(const std::string& dir, const std::string& to) {
    OwnModel own(dir);
    const ModelShape& m = own.shape;
    std::error_code none;
    if (std::filesystem::exists(to) && !std::filesystem::is_empty(to, none))
        fail("--to-huggingface %s is not empty: choose a new folder", to.c_str());
    std::string header;
    size_t offset = 0;
    for (auto& p : own.table.list) {
        header += text("%s%s:{\"dtype\":\"F32\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}",
                       header.empty() ? "{" : ",", json_quote("transformer." + p.name).c_str(),
                       json_numbers(huggingface_placement(p, m).shape).c_str(), offset,
                       offset + p.stored() * 4);
        offset += p.stored() * 4;
    }

    header = "{\"__metadata__\":{\"format\":\"pt\"}," + header.substr(1) + "}";
    header += std::string((8 - header.size() % 8) % 8, ' ');
    std::filesystem::create_directories(to);

    FileWriter file(to + "/model.safetensors");
    uint64_t n = header.size();
    file.write(&n, 8);
    file.write(header);
    for (auto& p : own.table.list) {
        std::vector<float> theirs = own.read(p, huggingface_placement(p, m));
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

    const std::string& kind = own.checkpoint().state.tokenizer;
    std::string vocabulary = kind == "bpe" ? own.checkpoint().folder + "/vocab.bpe" : kind;
    if (!vocabulary.empty()) write_tokenizer(Vocabulary::open(vocabulary), m.T, to);
    else printf("note: the checkpoint names no vocabulary, so %s has no tokenizer\n", to.c_str());
    printf("%s: %ld parameters of step %ld\n", to.c_str(), own.table.count, own.checkpoint().state.step);
}
