// other_tokens.h   token files of llm.c and Megatron-LM, read without conversion. They have no checksums
#pragma once
#include "../tokens.h"

// llm.c: 256 int32 (magic, version, count), then uint16 (GPT-2, version 1) or uint32 (Llama 3, version 7)
// tokens
inline void open_llmc(TokenFile& f, uint32_t magic) {
    f.width = magic == 20240520 ? 2 : 4;
    uint32_t version = f.file.read<uint32_t>(4, "version");
    if (version != (f.width == 2 ? 1u : 7u))
        fail("%s: llm.c token file of unknown version %u", f.path.c_str(), version);
    f.count = f.file.read<uint32_t>(8, "count");
    f.begin = 1024;
    if (f.file.size != f.begin + f.count * f.width) f.fail_size(f.begin + f.count * f.width);
}

// Megatron-LM: .idx = "MMIDIDX\0\0", uint64 version 1, uint8 type, uint64 sequences, uint64 documents,
// int32 sizes[sequences], int64 pointers[sequences] (bytes into .bin), int64 document bounds[documents];
// .bin = the tokens of all sequences, one after the other
inline void open_megatron(TokenFile& f, const std::string& index_path) {
    InputFile index(index_path);
    char magic[9] = {};
    if (index.size >= sizeof magic) index.read(magic, 0, sizeof magic, "a header");
    if (memcmp(magic, "MMIDIDX\0\0", sizeof magic) != 0)
        fail("%s: is not a Megatron-LM index: expected \"MMIDIDX\" at offset 0", index_path.c_str());

    uint64_t version = index.read<uint64_t>(9, "version"),
        sequences = index.read<uint64_t>(18, "sequences");
    uint64_t documents = index.read<uint64_t>(26, "documents");
    uint8_t type = index.read<uint8_t>(17, "type");

    if (version != 1)
        fail("%s: has version %zu, this program reads 1", index_path.c_str(), (size_t)version);
    if (type != 8 && type != 4)
        fail("%s: has token type %d, expected 8 (uint16) or 4 (int32)", index_path.c_str(), type);
    f.width = type == 8 ? 2 : 4;

    if (sequences > index.size || documents > index.size || index.size != 34 + sequences * 12 +
        documents * 8)
        fail("%s: has %zu bytes, but its header says 34 + 12 * %zu + 8 * %zu", index_path.c_str(),
             index.size, (size_t)sequences, (size_t)documents);

    // in parts: with hundreds of millions of sequences an index takes gigabytes
    std::vector<int32_t> sizes(1 << 16);
    std::vector<int64_t> pointers(sizes.size());
    for (uint64_t first = 0; first < sequences; first += sizes.size()) {
        size_t n = std::min<uint64_t>(sizes.size(), sequences - first);
        index.read(sizes.data(), 34 + 4 * first, 4 * n, "sizes");
        index.read(pointers.data(), 34 + 4 * sequences + 8 * first, 8 * n, "pointers");
        for (size_t i = 0; i < n; i++) {
            if (sizes[i] < 0 || pointers[i] != (int64_t)(f.count * f.width))
                fail("%s: sequence %zu has size %d and pointer %lld, expected pointer %zu",
                     index_path.c_str(), (size_t)first + i, sizes[i], (long long)pointers[i],
                     (size_t)f.count * f.width);
            f.count += sizes[i];
        }
    }

    if (f.file.size != f.count * f.width)
        fail("%s: has %zu bytes, but its index %s says %zu", f.path.c_str(), f.file.size, index_path.c_str(),
             (size_t)f.count * f.width);
}
