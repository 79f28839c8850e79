// tokens.h   token files: ours, Megatron-LM's .bin/.idx pair and llm.c's .bin, read by offset and checked
//   ours, little-endian:
//      0  8  "GPTTOKEN"
//      8  4  version, 1
//     12  4  bytes of a token, 2 or 4
//     16  8  number of tokens n
//     24  4  vocabulary V: every token is below it
//     28  4  the end-of-text token
//     32  8  number of documents
//     40 16  name of the vocabulary: "bytes", or "bpe" and a checksum of its tokens, padded with zeros
//     56  8  checksum of the 56 bytes above
//     64     n tokens, padded with zeros to a multiple of 8 bytes
//            a checksum for every 64 KiB of the tokens above; the last one for the remainder
//   A reader checks sizes when it opens a file, each 64 KiB whenever it reads there, and every token it
//   returns. In formats without checksums it rejects a file that was modified since it was opened.
#pragma once
#include <memory>
#include <vector>
#include "../layers/base/file.h"

constexpr size_t token_header_bytes = 64, token_chunk_bytes = 64 << 10;

// whether both names may mean one vocabulary: "bpe" alone, as in files made before names had a checksum, may
// mean each of them
inline bool may_be_one_vocabulary(const std::string& a, const std::string& b) {
    bool both_bpe = a.starts_with("bpe") && b.starts_with("bpe");
    return a == b || (both_bpe && (a == "bpe" || b == "bpe"));
}

struct TokenFile;
inline void open_llmc(TokenFile& f, uint32_t magic);
inline void open_megatron(TokenFile& f, const std::string& index);

// where Megatron-LM's index of a token file lies; "" if it cannot have one
inline std::string index_path(const std::string& tokens) {
    return tokens.ends_with(".bin") ? tokens.substr(0, tokens.size() - 4) + ".idx" : "";
}

struct TokenFile {
    InputFile file;
    std::string path;
    size_t begin = 0;  // offset of the first token
    int width = 2;
    uint64_t count = 0;
    int vocabulary = 0;  // 0: the format does not say
    int end_of_text = -1;
    std::string vocabulary_name; // as in the header; "" where the format does not say
    size_t checksums = 0;        // offset of the checksums; 0: the format has none
    std::vector<char> chunk;     // the buffer that reads go through

    explicit TokenFile(const std::string& given) : file(given), path(given) {
        if (file.size == 0) fail("%s: is empty: make it with ./tokenize", path.c_str());
        std::string index = index_path(path);
        uint32_t first = file.size >= 4 ? file.read<uint32_t>(0, "a header") : 0;
        char magic[8] = {};
        if (file.size >= 8) file.read(magic, 0, 8, "a header");
        if (memcmp(magic, "GPTTOKEN", 8) == 0) open_ours();
        else if (!index.empty() && access(index.c_str(), F_OK) == 0) open_megatron(*this, index);
        else if (first == 20240520 || first == 20240801) open_llmc(*this, first);
        else
            fail("%s: is not a token file: expected our \"GPTTOKEN\", llm.c's 20240520, or Megatron-LM's "
                 ".idx beside a .bin; make one from text with ./tokenize", path.c_str());
    }

    void open_ours() {
        char header[token_header_bytes];
        file.read(header, 0, sizeof header, "the header");

        uint32_t version = file.read<uint32_t>(8, "version");
        if (version != 1)
            fail("%s: has version %u, this program reads 1: make it again with ./tokenize", path.c_str(),
                 version);

        width = (int)file.read<uint32_t>(12, "width");
        count = file.read<uint64_t>(16, "count");
        vocabulary = (int)file.read<uint32_t>(24, "vocabulary");
        end_of_text = (int)file.read<uint32_t>(28, "end of text");
        vocabulary_name = std::string(header + 40, strnlen(header + 40, 16));
        begin = token_header_bytes;

        if (file.read<uint64_t>(56, "a checksum") != checksum(header, 56))
            fail("%s: damaged between offsets 0 and 64: its checksum differs; make it again", path.c_str());
        if ((width != 2 && width != 4) || vocabulary < 2 || end_of_text >= vocabulary)
            fail("%s: header at offset 12 is damaged: width %d, vocabulary %d, end of text %d", path.c_str(),
                 width, vocabulary, end_of_text);
        if (count > file.size) fail_size(count * width);

        size_t padded = (count * width + 7) / 8 * 8,
            chunks = (count * width + token_chunk_bytes - 1) / token_chunk_bytes;
        checksums = begin + padded;
        if (file.size != checksums + 8 * chunks) fail_size(checksums + 8 * chunks);
    }

    [[noreturn]] void fail_size(size_t wants) const {
        fail("%s: has %zu bytes, but its header says %zu: truncated or damaged; make it again", path.c_str(),
             file.size, wants);
    }

    // Reads bytes [from, from + n) of the tokens into `chunk`: the whole 64 KiB, verified, or only these
    // bytes if the format has no checksums. Returns a pointer to them
    const char* read_chunk(size_t from, size_t n) {
        if (!checksums) {
            if (file.has_changed())
                fail("%s: has been written to while it was in use, and its format has no checksums: restore "
                     "it, or make it again with ./tokenize", path.c_str());
            chunk.resize(n);
            file.read(chunk.data(), begin + from, n, "tokens");
            return chunk.data();
        }

        size_t number = from / token_chunk_bytes, first = number * token_chunk_bytes;
        chunk.resize(std::min(token_chunk_bytes, count * width - first));
        file.read(chunk.data(), begin + first, chunk.size(), "tokens");
        uint64_t sum = file.read<uint64_t>(checksums + 8 * number, "a checksum");
        if (checksum(chunk.data(), chunk.size()) != sum)
            fail("%s: damaged between offsets %zu and %zu: its checksum differs; make it again", path.c_str(),
                 begin + first, begin + first + chunk.size());
        return chunk.data() + (from - first);
    }

    // starts to fetch what read(out, from, n, V) will read
    void expect(uint64_t from, uint64_t n) const {
        size_t unit = checksums ? token_chunk_bytes : 1, first = from * width / unit * unit;
        file.will_read(begin + first, ((from + n) * width - first + unit - 1) / unit * unit);
        if (checksums) file.will_read(checksums + 8 * (first / unit), 16);
    }

    // tokens [from, from + n) -> out; each must be below V
    void read(int* out, uint64_t from, uint64_t n, int V) {
        if (from > count || n > count - from)
            fail("%s: has %zu tokens, expected %zu from %zu on", path.c_str(), (size_t)count, (size_t)n,
                 (size_t)from);
        while (n) {
            size_t at = from * width, in_chunk = token_chunk_bytes - at % token_chunk_bytes;
            uint64_t some = std::min<uint64_t>(n, in_chunk / width);
            const char* p = read_chunk(at, some * width);

            for (uint64_t i = 0; i < some; i++) {
                uint32_t token = 0;
                memcpy(&token, p + i * width, width);
                if (token >= (uint32_t)V)
                    fail("%s: token %u at offset %zu: the vocabulary has %d; choose the --vocabulary the "
                         "file was made with", path.c_str(), token, (size_t)(begin + (from + i) * width), V);
                out[i] = (int)token;
            }

            out += some;
            from += some;
            n -= some;
        }
    }
};
#include "formats/other_tokens.h"
