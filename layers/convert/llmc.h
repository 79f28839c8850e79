// llmc.h   model files of llm.c (train_gpt2.py, train_gpt2.cu)
//   256 int32, little-endian
//     [0] 20240326   [1] version: 3 fp32, 5 bf16   [2] T   [3] V   [4] L   [5] NH   [6] C   [7] Vp
//   then the tensors, each for all layers before the next one; linear weights are (out, in), as ours
//     wte (Vp, C)   wpe (T, C)
//     ln1w ln1b (C)   qkvw (3 C, C)   qkvb (3 C)   attprojw (C, C)   attprojb (C)
//     ln2w ln2b (C)   fcw (4 C, C)   fcb (4 C)   fcprojw (C, 4 C)   fcprojb (C)
//     lnfw lnfb (C)
//   Rows of wte beyond V are 0.
#pragma once
#include "model.h"

constexpr int32_t llmc_magic = 20240326, llmc_fp32 = 3, llmc_bf16 = 5;
constexpr int llmc_padding = 128;  // of V

// our tensors in the file's order, and where each begins, in elements
struct LlmcLayout {
    std::vector<std::pair<const Parameter*, size_t>> tensors;
    size_t elements = 0;
    bool is_too_large = false;

    LlmcLayout(const ParameterTable& table, const ModelShape& m, long Vp) {
        auto add = [&](const Parameter& p, long stored) {
            is_too_large |= stored < 0 || (size_t)stored > ((size_t)1 << 58) - elements;
            if (is_too_large) return;
            tensors.push_back({&p, elements});
            elements += (size_t)stored;
        };

        add(table.list[table.wte], Vp * m.C);
        add(table.list[table.wpe], table.list[table.wpe].stored());
        for (int t = 0; t < block_tensors; t++)
            for (int l = 0; l < m.L; l++) {
                const Parameter& p = table.block(l, BlockTensor(t));
                add(p, p.stored());
            }
        for (int t = 0; t < 2; t++) add(table.list[table.lnf + t], m.C);
    }
};

inline ForeignModel open_llmc(const std::string& path) {
    auto file = std::make_shared<MappedFile>(path);
    auto header = [&](int i) { return file->read<int32_t>(4 * (size_t)i, "the header"); };
    if (file->size < 1024 || header(0) != llmc_magic)
        fail("%s: is not a model file of llm.c: expected one that train_gpt2.py or train_gpt2.cu wrote",
             path.c_str());

    int32_t version = header(1);
    if (version != llmc_fp32 && version != llmc_bf16)
        fail("%s: has version %d, expected 3 (fp32) or 5 (bf16): write it again with a current llm.c",
             path.c_str(), version);

    int T = header(2), V = header(3), L = header(4), NH = header(5), C = header(6), Vp = header(7);
    for (int value : {T, V, L, NH, C, Vp})
        if (value < 1 || value > 1 << 24)
            fail("%s: is damaged: has %d among T, V, L, NH, C, Vp, expected 1 to %d", path.c_str(), value,
                 1 << 24);
    if (Vp < V || C % NH)
        fail("%s: is damaged: V %d, Vp %d, C %d, NH %d, L %d", path.c_str(), V, Vp, C, NH, L);

    ModelShape m = {L, C, NH, T, V, V};
    check_shape(m, path);

    size_t width = version == llmc_fp32 ? 4 : 2;
    auto table = std::make_shared<ParameterTable>(parameter_table(m));
    LlmcLayout layout(*table, m, Vp);
    if (layout.is_too_large || file->size != 1024 + layout.elements * width)
        fail("%s: truncated or damaged: has %zu bytes, expected %zu", path.c_str(), file->size,
             1024 + layout.elements * width);

    std::map<std::string, size_t> begins;
    for (auto& [p, begin] : layout.tensors) begins[p->name] = begin;
    return {m, [=](const Parameter& p) {
                std::vector<real> theirs((size_t)p.stored());
                const char* from = file->data + 1024 + begins.at(p.name) * width;
                for (size_t i = 0; i < theirs.size(); i++, from += width) {
                    float single;
                    bf16 half;
                    if (width == 4) memcpy(&single, from, 4);
                    else memcpy((void*)&half, from, 2);
                    theirs[i] = (real)(width == 4 ? single : (float)half);
                }
                return placed(theirs, split_qkv(p, m));
            }};
}

inline void write_llmc(const std::string& dir, const std::string& to, bool as_bf16) {
    OwnModel own(dir);
    const ModelShape& m = own.shape;
    long Vp = ((long)m.V + llmc_padding - 1) / llmc_padding * llmc_padding;
    LlmcLayout layout(own.table, m, Vp);

    std::vector<int32_t> header(256, 0);
    int32_t sizes[] = {llmc_magic, as_bf16 ? llmc_bf16 : llmc_fp32, m.T, m.V, m.L, m.NH, m.C, (int32_t)Vp};
    std::copy(std::begin(sizes), std::end(sizes), header.begin());

    if (std::filesystem::exists(to)) fail("--to-llmc %s already exists: choose another name", to.c_str());
    FileWriter file(to);
    file.write(header.data(), 1024);
    for (size_t t = 0; t < layout.tensors.size(); t++) {
        auto [p, begin] = layout.tensors[t];
        size_t end = t + 1 < layout.tensors.size() ? layout.tensors[t + 1].second : layout.elements;
        std::vector<float> theirs = own.read(*p, split_qkv(*p, m));
        theirs.resize(end - begin, 0);
        if (as_bf16) {
            std::vector<bf16> halves(theirs.begin(), theirs.end());
            file.write(halves.data(), 2 * halves.size());
        } else {
            file.write(theirs.data(), 4 * theirs.size());
        }
    }

    file.finish();
    printf("%s: %ld parameters of step %ld\n", to.c_str(), own.table.count, own.checkpoint().state.step);
}
