// token_writer.h   writes what tokens.h and answers.h read
#pragma once
#include <algorithm>
#include <string>
#include <vector>
#include "../../layers/base/file_writer.h"
#include "answers.h"
#include "../tokens.h"

// writes our format, streaming the tokens
struct TokenWriter {
    FileWriter file;
    int width, vocabulary, end_of_text;
    std::string vocabulary_name, chunk;
    std::vector<uint64_t> sums;
    uint64_t count = 0, documents = 0;

    TokenWriter(const std::string& path, const std::string& vocabulary_name, int vocabulary, int end_of_text)
        : file(path), width(vocabulary <= 65536 ? 2 : 4), vocabulary(vocabulary), end_of_text(end_of_text),
            vocabulary_name(vocabulary_name) {
        std::string blank(token_header_bytes, 0);
        file.write(blank);
        chunk.reserve(token_chunk_bytes);
    }

    void add(const uint32_t* tokens, size_t n) {
        count += n;
        while (n) {
            size_t had = chunk.size(), take = std::min(n, (token_chunk_bytes - had) / width);
            chunk.resize(had + take * width);
            if (width == 4) memcpy(&chunk[had], tokens, take * 4);
            else for (size_t i = 0; i < take; i++) ((uint16_t*)&chunk[had])[i] = (uint16_t)tokens[i];
            tokens += take;
            n -= take;
            if (chunk.size() == token_chunk_bytes) flush();
        }
    }

    void end_document() {
        uint32_t token = (uint32_t)end_of_text;
        add(&token, 1);
        documents++;
    }

    void flush() {
        sums.push_back(checksum(chunk.data(), chunk.size()));
        file.write(chunk);
        chunk.clear();
    }

    void finish() {
        if (!chunk.empty()) flush();
        file.write(std::string((8 - count * width % 8) % 8, 0));
        file.write(sums.data(), sums.size() * 8);

        char header[token_header_bytes] = "GPTTOKEN";
        uint32_t words[2] = {1, (uint32_t)width}, vocabulary_words[2] =
            {(uint32_t)vocabulary, (uint32_t)end_of_text};
        memcpy(header + 8, words, 8);
        memcpy(header + 16, &count, 8);
        memcpy(header + 24, vocabulary_words, 8);
        memcpy(header + 32, &documents, 8);
        memcpy(header + 40, vocabulary_name.data(), std::min(vocabulary_name.size(), (size_t)15));

        uint64_t sum = checksum(header, 56);
        memcpy(header + 56, &sum, 8);
        file.write_at(header, sizeof header, 0);
        file.finish();
    }
};

inline void write_answers(const std::string& tokens, uint64_t count, const std::vector<AnswerRange>& ranges) {
    std::string all = "GPTANSWR";
    auto add = [&](const void* p, size_t bytes) { all.append((const char*)p, bytes); };
    uint64_t size = ranges.size();
    add(&count, 8);
    add(&size, 8);
    add(ranges.data(), size * sizeof(AnswerRange));
    uint64_t sum = checksum(all.data(), all.size());
    add(&sum, 8);
    write_file(answers_path(tokens), all);
}

// left by an earlier run, of other tokens; a file of that name that is none stays
inline void remove_answers(const std::string& tokens) {
    std::string path = answers_path(tokens);
    if (access(path.c_str(), F_OK) == 0 && WholeFile(path).text().starts_with("GPTANSWR"))
        unlink(path.c_str());
}
