// convert.cpp   models of other programs <-> checkpoints: Hugging Face's GPT-2, llm.c, nanoGPT
//   ./convert --from-huggingface DIR | --from-llmc FILE | --from-nanogpt FILE --heads N  --to CHECKPOINT
//   ./convert --from-checkpoint DIR  --to-huggingface DIR | --to-llmc FILE
//   Megatron-LM's checkpoints become a Hugging Face model first: scripts/from_megatron.py.
#include "../base/arguments.h"
#include "../base/process.h"
#include "huggingface.h"
#include "llmc.h"

namespace {

constexpr char usage[] =
    "usage: ./convert --from-huggingface DIR --to CHECKPOINT        or --from-llmc FILE\n"
    "       ./convert --from-nanogpt FILE --heads N --to CHECKPOINT\n"
    "       ./convert --from-checkpoint DIR --to-huggingface DIR    or --to-llmc FILE\n";

const std::vector<OptionForm> forms = {
    {"from-huggingface", OptionForm::Text, "folder with a GPT-2 model's config.json and model.safetensors"},
    {"to", OptionForm::Text,
     "checkpoint folder, in the format of train_gpt --save and --resume"},
    {"tokenizer", OptionForm::Text,
     "bytes, vocab.bpe or tokenizer.json, to store in the checkpoint, so that it can read and print "
     "text (default: the one in --from-huggingface's folder, if it is one of these)"},
    {"from-llmc", OptionForm::Text, "model file of llm.c, version 3 (fp32) or 5 (bf16)"},
    {"from-nanogpt", OptionForm::Text, "state_dict of nanoGPT's model, saved as safetensors"},
    {"heads", OptionForm::Whole, "with --from-nanogpt: the model's attention heads", "", 1, 1 << 24},
    {"from-checkpoint", OptionForm::Text,
     "folder written by train_gpt --save; its newest checkpoint is used"},
    {"to-huggingface", OptionForm::Text,
     "folder for config.json, model.safetensors (fp32) and the tokenizer files"},
    {"to-llmc", OptionForm::Text, "model file for llm.c"},
    {"dtype", OptionForm::Text, "with --to-llmc: fp32 (the default) or bf16"},
};

// what each of the options --from-… goes with: exactly one --to-…, and those that may stand beside it
struct Conversion {
    const char *from, *to;
    std::vector<std::string> needs, may_have;
    void (*run)(Arguments&);
};

const std::vector<Conversion> conversions = {
    {"from-huggingface", "to", {}, {"tokenizer"},
     [](Arguments& a) {
         std::string dir = a.get("from-huggingface");
         ForeignModel model = open_huggingface(dir);
         std::string own = a.has("tokenizer") ? a.get("tokenizer") : find_tokenizer(dir, model.shape.V);
         write_checkpoint(model, a.get("to"), own);
     }},
    {"from-llmc", "to", {}, {"tokenizer"},
     [](Arguments& a) { write_checkpoint(open_llmc(a.get("from-llmc")), a.get("to"), a.get("tokenizer")); }},
    {"from-nanogpt", "to", {"heads"}, {"tokenizer"},
     [](Arguments& a) {
         ForeignModel model = open_nanogpt(a.get("from-nanogpt"), atoi(a.get("heads").c_str()));
         write_checkpoint(model, a.get("to"), a.get("tokenizer"));
     }},
    {"from-checkpoint", "to-huggingface", {}, {},
     [](Arguments& a) { write_huggingface(a.get("from-checkpoint"), a.get("to-huggingface")); }},
    {"from-checkpoint", "to-llmc", {}, {"dtype"},
     [](Arguments& a) {
         std::string dtype = a.has("dtype") ? a.get("dtype") : "fp32";
         if (dtype != "fp32" && dtype != "bf16") fail("--dtype %s: expected fp32 or bf16", dtype.c_str());
         write_llmc(a.get("from-checkpoint"), a.get("to-llmc"), dtype == "bf16");
     }},
};

const Conversion& find_conversion(Arguments& a) {
    for (auto& c : conversions) {
        if (!a.has(c.from) || !a.has(c.to)) continue;
        for (auto& name : c.needs)
            if (!a.has(name.c_str())) fail("--%s requires --%s N", c.from, name.c_str());

        for (auto& given : a.values) {
            const std::string& name = given.first;
            auto among = [&](const std::vector<std::string>& list) {
                return std::find(list.begin(), list.end(), name) != list.end();
            };
            if (name != c.from && name != c.to && !among(c.needs) && !among(c.may_have))
                fail("--%s does not go with --%s and --%s\n%s", name.c_str(), c.from, c.to, usage);
        }
        if (a.words.empty()) return c;
    }
    fail("expected a model to read and one to write\n%s", usage);
}

}  // namespace

int main(int argc, char** argv) {
    open_standard_streams();
    try {
        Arguments a(argc, argv, usage, forms);
        find_conversion(a).run(a);
    } catch (const std::exception& e) {
        fprintf(stderr, "convert: %s\n", e.what());
        return 1;
    }
    return 0;
}
