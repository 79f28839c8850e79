// folder_lock.h   ensures that only one run at a time uses a --save folder
#pragma once
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>
#include <thread>
#include "../../comm/mpi/hosts.h"
#include "../base/file_writer.h"
#include "checkpoint.h"

// DIR/.lock names the host and process that writes there. On the same host (and boot) flock() shows whether
// the holder is alive. Other hosts watch its heartbeat: the holder touches the file every `beat` seconds; if
// it has not been touched for two beats, the holder is considered dead.
class FolderLock {
    static constexpr int beat = 5;  // seconds
    std::string mine;  // what this run has written there
    std::string path;
    int fd = -1;
    std::thread heart;
    std::mutex mutex;
    std::condition_variable ends;
    bool ended = false;

    static std::string holder(int fd) {
        char line[256] = {};
        return pread(fd, line, sizeof line - 1, 0) > 0 ? line : "another run";
    }

    // host name and boot id: processes for which they are equal share one kernel's locks
    static std::string this_host() {
        char boot[40] = {};
        int file = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
        if (file >= 0 && read(file, boot, 36) < 0) boot[0] = 0;
        if (file >= 0) close(file);
        return text("host %s (%.8s)", comm::host_name().c_str(), boot);
    }

    // whether the holder touches the file within two beats; opens it again, as NFS may cache its time stamp
    bool beats() const {
        struct stat before = {}, now = {};
        stat(path.c_str(), &before);
        sleep(2 * beat + 1);
        int again = open(path.c_str(), O_RDONLY | O_CLOEXEC);
        bool known = again >= 0 && fstat(again, &now) == 0;
        if (again >= 0) close(again);
        return known && (now.st_mtim.tv_sec != before.st_mtim.tv_sec ||
                         now.st_mtim.tv_nsec != before.st_mtim.tv_nsec);
    }

    [[noreturn]] void refuse(const std::string& who) {
        close(std::exchange(fd, -1));
        fail("--save %s: %s writes there: end that run, or choose another folder",
             path.substr(0, path.rfind('/')).c_str(), who.c_str());
    }

public:
    explicit FolderLock(const std::string& dir) : path(dir + "/.lock") {
        fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
        if (fd < 0) fail("%s: cannot be written: %s", path.c_str(), strerror(errno));
        bool is_locked = flock(fd, LOCK_EX | LOCK_NB) != 0;
        bool has_locks = !is_locked || errno == EWOULDBLOCK;  // Lustre without `-o flock` has none

        std::string there = holder(fd);
        mine = text("%s, process %d", this_host().c_str(), (int)getpid());
        struct stat info = {};
        bool is_elsewhere =
            fstat(fd, &info) == 0 && info.st_size > 0 && there.rfind(this_host() + ",", 0) != 0;

        // a network file system may keep a dead host's flock() for minutes, so the heartbeat decides
        if (is_elsewhere || !has_locks ? info.st_size > 0 && beats() : is_locked) refuse(there);
        if (ftruncate(fd, 0) != 0 || pwrite(fd, mine.data(), mine.size(), 0) != (ssize_t)mine.size())
            fail("%s: cannot be written: %s", path.c_str(), strerror(errno));

        // a thread touches the lock, so that other hosts see that this one lives
        heart = std::thread([this] {
            std::unique_lock lock(mutex);
            while (!ends.wait_for(lock, std::chrono::seconds(beat), [this] { return ended; }))
                futimens(fd, nullptr);
        });
    }

    FolderLock(const FolderLock&) = delete;
    ~FolderLock() {
        if (heart.joinable()) {
            {
                std::lock_guard lock(mutex);
                ended = true;
            }
            ends.notify_all();
            heart.join();
        }
        if (fd >= 0 && (holder(fd) != mine || ftruncate(fd, 0) == 0)) close(fd);
    }

    // fails if the folder's name no longer leads to the one that was locked: another run may write there now
    void check_folder() const {
        struct stat ours = {}, there = {};
        bool same = fstat(fd, &ours) == 0 && stat(path.c_str(), &there) == 0 && ours.st_ino == there.st_ino &&
            ours.st_dev == there.st_dev;
        if (!same)
            fail("--save %s: is no longer the folder that this run has locked: it was renamed, removed or "
                 "replaced: restore it", path.substr(0, path.rfind('/')).c_str());
        if (std::string now = holder(fd); now != mine)  // this run was suspended, and so was its heartbeat
            fail("--save %s: %s has taken it over and writes there: continue from its checkpoints, or choose "
                 "another folder", path.substr(0, path.rfind('/')).c_str(), now.c_str());
    }

    // removes what interrupted saves left behind; restores a checkpoint that such a save had moved aside
    static void remove_leftovers(const std::string& dir) {
        std::error_code ignored;
        for (auto& entry : std::filesystem::directory_iterator(dir, ignored)) {
            std::string name = entry.path().filename(), whole = name.substr(0, name.rfind('.'));
            bool partial = name.rfind(".step-", 0) == 0 && name.ends_with(".partial");
            bool replaced = name.ends_with(".replaced") && step_of(whole) >= 0;  // by swap_folders()
            whole = dir + "/" + whole;
            // the new checkpoint never took its place: this is the only copy
            if (replaced && !std::filesystem::exists(whole))
                std::filesystem::rename(entry.path(), whole, ignored);
            else if (partial || replaced) std::filesystem::remove_all(entry.path(), ignored);
        }
    }
};
