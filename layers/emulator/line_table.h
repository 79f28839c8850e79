// line_table.h   the source lines of an address in this program, from addr2line
//   addr2line is started once, to read the program's line table once; queries go to it over a socket.
#pragma once
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <algorithm>
#include <map>
#include <string>
#include <vector>
#include "../base/check.h"

namespace emulated::watch {

class LineTable {
    FILE* table = nullptr;
    std::map<uint32_t, std::vector<std::string>> known;

    void start() {
        int ends[2];
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends)) return;
        std::string program = text("/proc/%d/exe", getpid());
        if (fork() == 0) {
            dup2(ends[1], STDIN_FILENO);
            dup2(ends[1], STDOUT_FILENO);
            if (freopen("/dev/null", "w", stderr))
                execlp("addr2line", "addr2line", "-a", "-s", "-i", "-e", program.c_str(), nullptr);
            _exit(1);
        }
        close(ends[1]);
        table = fdopen(ends[0], "r");
    }

    // its answer: the address, a line for each function, and the same for address 0, which ends the answer
    std::vector<std::string> ask(uint32_t address) {
        const std::string question = text("0x%x\n0x0\n", address);
        if (!table || send(fileno(table), question.data(), question.size(), MSG_NOSIGNAL) < 0) return {};
        std::vector<std::string> lines;
        char line[256];
        auto next = [&] { return fgets(line, sizeof line, table) != nullptr; };
        bool is_whole = next();
        while ((is_whole = is_whole && next()) && strncmp(line, "0x", 2))
            lines.emplace_back(line, strcspn(line, " \n"));
        return is_whole && next() ? lines : std::vector<std::string>();
    }

public:
    // file:line of each function that this address is in, the innermost first; none without addr2line
    const std::vector<std::string>& lines(uint32_t address) {
        if (!table) start();
        auto [found, is_new] = known.try_emplace(address);
        if (is_new) found->second = ask(address);
        return found->second;
    }
};

// file:line of the call that returns to `code`, and of up to two functions around it
inline std::string line_of(uint32_t code) {
    static LineTable table;
    const std::vector<std::string>& lines = table.lines(code - 1);
    std::string all;
    for (size_t i = 0; i < std::min(lines.size(), size_t(3)); i++) {
        bool is_emulator = lines[i].find("_on_cpu.h") != std::string::npos || lines[i].find("invoke.h") == 0;
        if (i > 0 && is_emulator) break;
        all += (i ? " in " : "") + lines[i];
    }
    return all.empty() ? text("code 0x%x", code) : all;
}

}  // namespace emulated::watch
