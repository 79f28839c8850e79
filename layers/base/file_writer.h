// file_writer.h   files are written under a temporary name and then renamed; locks; files mapped by tools
//   A FileWriter's file appears under its own name only when finish() has put all of it on disk; until then
//   it is PATH.partial, and a run that dies leaves the previous file intact.
#pragma once
#include <sys/file.h>
#include <sys/mman.h>
#include <algorithm>
#include <filesystem>
#include <map>
#include <vector>
#include "whole_file.h"

// one process at a time holds the lock, the others wait; the lock file is never removed
struct FileLock {
    int fd;
    explicit FileLock(const std::string& path) : fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
        if (fd < 0 || flock(fd, LOCK_EX) != 0) {
            int e = errno;
            if (fd >= 0) close(fd);
            fail("%s: cannot be locked: %s", path.c_str(), strerror(e));
        }
    }

    FileLock(const FileLock&) = delete;
    ~FileLock() { close(fd); }
};

// the same for all names of a file: its inode or, if it does not exist, where it would be
inline std::string file_identity(const std::string& name) {
    struct stat info;
    if (stat(name.c_str(), &info) == 0)
        return text("%llu:%llu", (unsigned long long)info.st_dev, (unsigned long long)info.st_ino);
    std::error_code failed;
    auto full = std::filesystem::absolute(name), real = std::filesystem::weakly_canonical(full, failed);
    return (failed ? full.lexically_normal() : real).string();
}

// a program never writes onto a file that it reads; empty names are those of files that were not asked for
inline void refuse_overwriting(const std::vector<std::string>& outputs,
                               const std::vector<std::string>& inputs) {
    std::map<std::string, std::string> read;  // identity -> name
    for (auto& in : inputs)
        if (!in.empty()) read[file_identity(in)] = in;
    for (auto& out : outputs)
        if (auto in = read.find(out.empty() ? "" : file_identity(out)); in != read.end())
            fail("%s would overwrite %s: give another name", out.c_str(), in->second.c_str());
}

// a program replaces a file only by one of the same kind, which begins with one of `beginnings`
inline void refuse_replacing_other(const std::string& output, const std::vector<std::string>& beginnings,
                                   const char* what) {
    std::error_code none;
    if (output.empty() || !std::filesystem::is_regular_file(output, none)) return;
    InputFile before(output);
    auto is_like = [&](const std::string& beginning) {
        std::string there(std::min(beginning.size(), before.size), 0);
        before.read(there.data(), 0, there.size(), "its beginning");
        return beginning.starts_with(there);
    };
    if (!std::any_of(beginnings.begin(), beginnings.end(), is_like))
        fail("%s: exists, but is %s: choose another name", output.c_str(), what);
}

// fails if what was printed so far has not reached its reader, or its disk
inline void check_standard_output() {
    if (fflush(stdout) != 0 || ferror(stdout))
        fail("standard output: cannot be written: it is closed, or its disk is full");
}

// the file that a symbolic link names, even if there is none yet: it is written, and the link stays
inline std::string behind_links(std::filesystem::path name) {
    std::error_code failed;
    for (int links = 0; links < 40 && std::filesystem::is_symlink(name, failed); links++)
        name = name.parent_path() / std::filesystem::read_symlink(name, failed);  // which may be absolute
    return name.string();
}

struct FileWriter {
    std::string path, partial;
    int fd = -1;
    size_t written = 0;
    bool keeps_partial = false;  // where it is not finished

    explicit FileWriter(const std::string& name) : path(behind_links(name)), partial(path + ".partial") {
        struct stat info;
        if (stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode))
            fail("%s: is not a regular file, and would be replaced: give another name", path.c_str());
        fd = open(partial.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
        if (fd < 0) fail("%s: cannot be written: %s", partial.c_str(), strerror(errno));
        try {
            lock();
            if (ftruncate(fd, 0) != 0) fail("%s: cannot be truncated: %s", partial.c_str(), strerror(errno));
        } catch (const Error&) {
            close(fd);  // what is there belongs to another process
            throw;
        }
    }

    FileWriter(FileWriter&& o) noexcept
        : path(std::move(o.path)), partial(std::move(o.partial)), fd(std::exchange(o.fd, -1)),
          written(o.written), keeps_partial(o.keeps_partial) {}
    ~FileWriter() {  // not finished: leaves nothing behind, unless what there is is worth having
        if (fd < 0) return;
        if (keeps_partial && written > 0) fprintf(stderr, "%s: has what came so far\n", partial.c_str());
        else unlink(partial.c_str());  // while it is locked
        close(fd);
    }

    // excludes other processes that write the same file; waits 10 s for one that is just exiting
    void lock() {
        for (int tries = 0; flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK; tries++) {
            if (tries == 100)
                fail("%s: is being written by another process: wait for it, or end it", partial.c_str());
            usleep(100000);
        }
        struct stat ours, there;
        if (fstat(fd, &ours) != 0 || stat(partial.c_str(), &there) != 0 || ours.st_ino != there.st_ino)
            fail("%s: another process has just written it: start again", partial.c_str());
    }

    void write(const void* data, size_t bytes) {
        write_at(data, bytes, written);
        written += bytes;
    }

    void write_at(const void* data, size_t bytes, size_t offset) {
        for (const char* p = (const char*)data; bytes;) {
            ssize_t n = pwrite(fd, p, std::min(bytes, (size_t)1 << 30), (off_t)offset);
            if (n < 0 && errno == EINTR) continue;
            if (n <= 0) {
                int error = n < 0 ? errno : ENOSPC;  // before access() changes it
                bool is_there = access(path.c_str(), F_OK) == 0;
                fail("%s: cannot be written at offset %zu: %s%s", path.c_str(), offset, strerror(error),
                     is_there ? "; the previous file is unchanged" : "");
            }
            p += n;
            bytes -= (size_t)n;
            offset += (size_t)n;
        }
    }

    void write(std::string_view text) { write(text.data(), text.size()); }
    void finish() {
        bool good = fsync(fd) == 0 && rename(partial.c_str(), path.c_str()) == 0;  // while it is locked
        int error = errno;
        close(std::exchange(fd, -1));
        if (!good) fail("%s: cannot be finished: %s", path.c_str(), strerror(error));
    }
};

inline void write_file(const std::string& path, std::string_view contents) {
    FileWriter file(path);
    file.write(contents);
    file.finish();
}

// makes the renames inside a folder durable
inline void sync_folder(const std::string& path) {
    int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    // some file systems have no such call for folders
    bool good = fd >= 0 && (fsync(fd) == 0 || errno == EINVAL || errno == ENOTSUP || errno == ENOSYS);
    int error = errno;
    if (fd >= 0) close(fd);
    if (!good) fail("%s: cannot be synchronised: %s", path.c_str(), strerror(error));
}

// For large inputs of tools: if the disk fails, or the file is truncated meanwhile, a signal ends the program
struct MappedFile : FileBytes {
    explicit MappedFile(const std::string& of) : FileBytes{of} {
        InputFile file(path);
        size = file.size;
        if (!size) return;
        void* p = mmap(nullptr, size, PROT_READ, MAP_SHARED, file.fd, 0);
        if (p == MAP_FAILED) fail("%s: cannot be mapped: %s", path.c_str(), strerror(errno));
        data = (const char*)p;
    }

    MappedFile(MappedFile&& o) noexcept
        : FileBytes{std::move(o.path), std::exchange(o.data, nullptr), std::exchange(o.size, 0)} {}
    ~MappedFile() {
        if (data) munmap((void*)data, size);
    }
};
