// file.h   files are read: by offset, or the whole of them into memory
#pragma once
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <string>
#include <string_view>
#include <utility>
#include "check.h"

// Read by offset, not mapped: if a file is truncated or becomes unreadable while it is in use, that is an
// Error, not a signal.
struct InputFile {
    std::string path;
    int fd = -1;
    size_t size = 0;
    struct timespec modified = {};  // when it was opened

    explicit InputFile(const std::string& path) : path(path) {
        fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe is refused, not waited for
        struct stat info;
        if (fd < 0 || fstat(fd, &info) != 0) fail("%s: cannot be read: %s", path.c_str(), strerror(errno));
        if (!S_ISREG(info.st_mode)) {
            close(fd);
            fail("%s: is not a regular file", path.c_str());
        }
        size = info.st_size;
        modified = info.st_mtim;
    }

    InputFile(InputFile&& o) noexcept
        : path(std::move(o.path)), fd(std::exchange(o.fd, -1)), size(o.size), modified(o.modified) {}
    ~InputFile() {
        if (fd >= 0) close(fd);
    }

    // the bytes [offset, offset + n), or an Error that names what was wanted
    void read(void* to, size_t offset, size_t n, const char* what) const {
        for (size_t done = 0; done < n;) {
            size_t most = std::min(n - done, (size_t)1 << 30);
            ssize_t some = pread(fd, (char*)to + done, most, (off_t)(offset + done));
            if (some < 0 && errno == EINTR) continue;
            if (some < 0)
                fail("%s: cannot be read at offset %zu: %s", path.c_str(), offset + done, strerror(errno));
            if (some == 0)
                fail("%s: truncated: has %zu bytes, wants %zu for %s at offset %zu", path.c_str(),
                     offset + done, n, what, offset);
            done += (size_t)some;
        }
    }

    template <class T>
    T read(size_t offset, const char* what) const {
        T value;
        read(&value, offset, sizeof(T), what);
        return value;
    }

    // whether it has been modified since it was opened
    bool has_changed() const {
        struct stat now;
        return fstat(fd, &now) != 0 || (size_t)now.st_size != size ||
            now.st_mtim.tv_sec != modified.tv_sec || now.st_mtim.tv_nsec != modified.tv_nsec;
    }
};

// a text without the byte order mark that some editors begin it with
inline std::string_view without_mark(std::string_view text) {
    return text.starts_with("\xEF\xBB\xBF") ? text.substr(3) : text;
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
            fail("%s: truncated: has %zu bytes, wants %zu for %s at offset %zu", path.c_str(), size, n, what,
                 offset);
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
