// other_tokens.h   token files of llm.c and Megatron-LM, read without conversion. They have no checksums
#pragma once
#include "../../layers/base/whole_file.h"
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
    WholeFile index(index_path);
    if (index.size < 9 || memcmp(index.data, "MMIDIDX\0\0", 9) != 0)
        fail("%s: is no Megatron-LM index: wants \"MMIDIDX\" at offset 0", index_path.c_str());

    uint64_t version = index.read<uint64_t>(9, "version"),
        sequences = index.read<uint64_t>(18, "sequences");
    uint64_t documents = index.read<uint64_t>(26, "documents");
    uint8_t type = index.read<uint8_t>(17, "type");

    if (version != 1)
        fail("%s: has version %zu, this program reads 1", index_path.c_str(), (size_t)version);
    if (type != 8 && type != 4)
        fail("%s: has token type %d, wants 8 (uint16) or 4 (int32)", index_path.c_str(), type);
    f.width = type == 8 ? 2 : 4;

    if (sequences > index.size || documents > index.size || index.size != 34 + sequences * 12 +
        documents * 8)
        fail("%s: has %zu bytes, its header wants 34 + 12 * %zu + 8 * %zu", index_path.c_str(),
             index.size, (size_t)sequences, (size_t)documents);

    for (uint64_t i = 0; i < sequences; i++) {
        int32_t size = index.read<int32_t>(34 + 4 * i, "a size");
        int64_t pointer = index.read<int64_t>(34 + 4 * sequences + 8 * i, "a pointer");
        if (size < 0 || pointer != (int64_t)(f.count * f.width))
            fail("%s: sequence %zu has size %d and pointer %lld, wants pointer %zu", index_path.c_str(),
                 (size_t)i, size, (long long)pointer, (size_t)f.count * f.width);
        f.count += size;
    }

    if (f.file.size != f.count * f.width)
        fail("%s: has %zu bytes, its index %s wants %zu", f.path.c_str(), f.file.size, index_path.c_str(),
             (size_t)f.count * f.width);
}
