// file.h   files read by offset, and their checksums
#pragma once
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <string>
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
                throw Damaged(text("%s: truncated: has %zu bytes, expected %zu for %s at offset %zu",
                                   path.c_str(), offset + done, n, what, offset));
            done += (size_t)some;
        }
    }

    // hints that these bytes will be read soon, so that slow storage can deliver them ahead of time
    void will_read(size_t offset, size_t n) const {
        posix_fadvise(fd, (off_t)offset, (off_t)n, POSIX_FADV_WILLNEED);
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

// 64 bits over a range of bytes: detects damage, not deliberate tampering. Four lanes of 8 bytes, each
// h = rotate((h ^ word) * odd, 29): a bijection of h for each word, so that a change in any single word
// always changes the sum. About 10 GB/s on a core
inline uint64_t checksum(const void* data, size_t bytes) {
    constexpr uint64_t odd = 0x9E3779B97F4A7C15ull;
    auto step = [](uint64_t h, uint64_t word) {
        h = (h ^ word) * odd;
        return h << 29 | h >> 35;
    };

    const char* p = (const char*)data;
    uint64_t h[4] = {1, 2, 3, 4};
    size_t left = bytes;
    for (; left >= 32; left -= 32, p += 32) {
        uint64_t word[4];
        memcpy(word, p, 32);
        for (int i = 0; i < 4; i++) h[i] = step(h[i], word[i]);
    }

    uint64_t tail[4] = {};
    memcpy(tail, p, left);
    uint64_t out = bytes;
    for (int i = 0; i < 4; i++) out = step(out, step(h[i], tail[i]));
    return out ^ out >> 32;
}
