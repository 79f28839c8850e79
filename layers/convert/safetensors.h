// safetensors.h   safetensors files (github.com/huggingface/safetensors, format section)
//      0  8  n, little-endian
//      8  n  JSON: name -> {"dtype": F32|F16|BF16|F64, "shape", "data_offsets": [begin, end]}
//      8+n   the tensors' bytes
#pragma once
#include <map>
#include <set>
#include "model.h"

inline float half_to_float(uint16_t h) {
    int exponent = h >> 10 & 31, fraction = h & 1023;
    double value = exponent == 0 ? std::ldexp(fraction, -24)
                 : exponent == 31 ? (fraction ? NAN : INFINITY) : std::ldexp(1024 + fraction, exponent - 25);
    return (float)(h >> 15 ? -value : value);
}

struct Safetensors {
    MappedFile file;
    Json header;
    size_t begin = 0;
    std::map<std::string, const Json::Member*> tensors;  // of the header, by bare_name()

    explicit Safetensors(const std::string& path) : file(path) {
        refuse_torch_save();
        uint64_t n = file.read<uint64_t>(0, "the header's length");
        if (n > file.size - 8 || n > 16 << 20)
            fail("%s: truncated, or not safetensors: its header has %llu bytes, the file %zu", path.c_str(),
                 (unsigned long long)n, file.size);
        header = Json::parse(std::string_view(file.range(8, n, "the header"), n), path);
        begin = 8 + n;
        for (auto& member : header.members) {
            if (member.first == "__metadata__") continue;
            auto [same, is_new] = tensors.emplace(bare_name(member.first), &member);
            if (!is_new)
                fail("%s: has %s and %s, which are the same tensor: remove one", path.c_str(),
                     same->second->first.c_str(), member.first.c_str());
        }
        refuse_gaps();
    }

    // as the format demands: the tensors cover all that follows the header, none of it twice
    void refuse_gaps() const {
        std::vector<std::vector<long>> ranges;
        for (auto& [name, tensor] : tensors) {
            std::string what = file.path + ", " + tensor->first;
            ranges.push_back(Checkpoint::numbers(tensor->second.at("data_offsets", what), what));
            if (ranges.back().size() != 2 || ranges.back()[1] < ranges.back()[0])
                fail("%s: has damaged offsets, expected where it begins and ends", what.c_str());
        }
        std::sort(ranges.begin(), ranges.end());

        long at = 0;
        for (auto& range : ranges) {
            if (range[0] != at)
                fail("%s: damaged: a tensor begins at offset %ld of the data, expected %ld",
                     file.path.c_str(), range[0], at);
            at = range[1];
        }
        if ((size_t)at != file.size - begin)
            fail("%s: truncated or damaged: its tensors have %ld bytes, the file %zu", file.path.c_str(), at,
                 file.size - begin);
    }

    // ckpt.pt of nanoGPT, pytorch_model.bin: a ZIP archive, or a pickle
    void refuse_torch_save() const {
        if (!file.view().starts_with("PK\x03\x04") && !file.view().starts_with("\x80\x02")) return;
        fail("%s: was written by torch.save, expected safetensors: make it with\n"
             "  import torch; from safetensors.torch import save_file\n"
             "  state = torch.load(\"%s\", map_location=\"cpu\", weights_only=True)\n"
             "  state = state.get(\"model\", state)\n"
             "  save_file({k: v.clone() for k, v in state.items()}, \"model.safetensors\")",
             file.path.c_str(), file.path.c_str());
    }

    // without what DistributedDataParallel, torch.compile and GPT2LMHeadModel put in front
    static std::string bare_name(std::string_view key) {
        for (bool more = true; more;) {
            more = false;
            for (std::string_view prefix : {"module.", "_orig_mod.", "transformer."})
                if (key.starts_with(prefix)) {
                    key.remove_prefix(prefix.size());
                    more = true;
                }
        }
        return std::string(key);
    }

    // The entry of a tensor, whatever stands in front of its name; nullptr: not there. Of tied embeddings,
    // safetensors' save_model keeps the first name alone: lm_head.weight
    const Json* find(const std::string& name) const {
        auto found = tensors.find(name);
        if (found == tensors.end() && name == "wte.weight") found = tensors.find("lm_head.weight");
        return found == tensors.end() ? nullptr : &found->second->second;
    }

    // a tensor unknown to the model would be lost silently; attention masks and the tied head are allowed
    void refuse_unknown(const ParameterTable& table) const {
        std::set<std::string> ours;
        for (auto& p : table.list) ours.insert(p.name);
        for (auto& [name, tensor] : tensors) {
            bool known = name == "lm_head.weight" || name.ends_with(".attn.bias") ||
                         name.ends_with(".attn.masked_bias") || ours.count(name);
            if (!known)
                fail("%s: has a tensor %s, which is not GPT-2's", file.path.c_str(), tensor->first.c_str());
        }
        if (!find("lm_head.weight")) return;
        std::vector<long> shape = shape_of("wte.weight");
        if (shape_of("lm_head.weight") != shape || read("lm_head.weight", shape) != read("wte.weight", shape))
            fail("%s: its lm_head.weight is not its wte.weight: this program supports only tied embeddings, "
                 "where they are one tensor", file.path.c_str());
    }

    std::vector<long> shape_of(const std::string& name) const {
        const Json* t = find(name);
        if (!t) fail("%s: has no tensor %s: expected a GPT-2 model", file.path.c_str(), name.c_str());
        std::string what = file.path + ", " + name;
        return Checkpoint::numbers(t->at("shape", what), what);
    }

    // the values of a tensor, which must have this shape
    std::vector<real> read(const std::string& name, const std::vector<long>& shape) const {
        std::string what = file.path + ", " + name;
        std::vector<long> stored = shape_of(name);
        if (stored != shape)
            fail("%s: has shape %s, but the model expects %s", what.c_str(), json_numbers(stored).c_str(),
                 json_numbers(shape).c_str());

        const Json& t = *find(name);
        std::vector<long> offsets = Checkpoint::numbers(t.at("data_offsets", what), what);
        const std::string& type = t.at("dtype", what).string(what);
        size_t width = type == "F64" ? 8 : type == "F32" ? 4 : type == "F16" || type == "BF16" ? 2 : 0, n = 1;
        if (!width) fail("%s: has dtype %s, expected F64, F32, F16 or BF16", what.c_str(), type.c_str());

        for (long d : shape) n *= (size_t)d;
        if (offsets.size() != 2 || offsets[0] < 0 || offsets[1] < offsets[0] ||
            (size_t)(offsets[1] - offsets[0]) != n * width)
            fail("%s: has damaged offsets, expected %zu bytes", what.c_str(), n * width);

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
