// whole_file.h   the whole of a file, read into memory
#pragma once
#include <string_view>
#include "file.h"

// a text without the byte order mark that some editors begin it with
inline std::string_view without_mark(std::string_view text) {
    return text.starts_with("\xEF\xBB\xBF") ? text.substr(3) : text;
}

// a line of a settings file, without what follows a # at its beginning or behind white space
inline std::string without_comment(const std::string& line) {
    for (size_t at = line.find('#'); at != line.npos; at = line.find('#', at + 1))
        if (at == 0 || isspace((unsigned char)line[at - 1])) return line.substr(0, at);
    return line;
}

struct FileBytes {  // all bytes of a file
    std::string path;
    const char* data = nullptr;
    size_t size = 0;

    std::string_view view() const { return {data, size}; }
    std::string_view text() const { return without_mark(view()); }

    // the bytes [offset, offset + n), or an Error that names what was wanted
    const char* range(size_t offset, size_t n, const char* what) const {
        if (offset > size || n > size - offset)
            throw Damaged(::text("%s: truncated: has %zu bytes, expected %zu for %s at offset %zu",
                                 path.c_str(), size, n, what, offset));
        return data + offset;
    }

    template <class T>
    T read(size_t offset, const char* what) const {
        T value;
        memcpy(&value, range(offset, sizeof(T), what), sizeof(T));
        return value;
    }
};

// Read into memory: what cannot be read is an Error
struct WholeFile : FileBytes {
    explicit WholeFile(const std::string& of) : FileBytes{of} {
        InputFile file(path);
        bytes.resize(file.size);
        file.read(bytes.data(), 0, file.size, "the whole of it");
        data = bytes.data();
        size = bytes.size();
    }
    WholeFile(const WholeFile&) = delete;

private:
    std::string bytes;
};
