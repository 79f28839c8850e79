// watch_counts.h   sectors and bank conflicts of a warp's accesses, counted from what watch.cpp sees
//   One request: the lanes of a warp that execute the same instruction for the n-th time, with the same n. In
//   device memory it moves whole sectors of 32 bytes. Shared memory has 32 banks of 4 bytes, and serves 32
//   lanes per turn (16 with 8 bytes per lane, 8 with 16); two different words of one bank take two turns.
#pragma once
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>
#include "watch.h"

namespace emulated::watch {

struct Counter {
    std::map<std::string, CountsByLine> kernels;

    void note(size_t address, bool is_shared, size_t bytes, bool writing, uint32_t code, int thread) {
        uint64_t place = (uint64_t)code << 2 | (uint64_t)writing << 1 | is_shared;
        uint32_t occurrence = occurrences[place << 10 | (uint64_t)thread]++;
        accesses.push_back({place, occurrence, (uint16_t)thread, (uint16_t)bytes, address});
    }

    // line_of: file:line of a place in the program, from its code address
    template <class LineOf>
    void finish_block(const char* kernel, LineOf line_of) {
        auto key = [](const Access& a) { return std::tuple(a.place, a.thread / 32, a.occurrence); };
        std::sort(accesses.begin(), accesses.end(), [&](auto& a, auto& b) { return key(a) < key(b); });

        std::map<uint64_t, Counts> places;
        for (size_t first = 0, last; first < accesses.size(); first = last) {
            for (last = first + 1; last < accesses.size(); last++)
                if (key(accesses[last]) != key(accesses[first])) break;
            const Access *begin = &accesses[first], *end = begin + (last - first);
            if (begin->place & 1) count_shared(places[begin->place], begin, end);
            else count_device(places[begin->place], begin, end);
        }
        for (auto& [place, c] : places) kernels[kernel][line_of((uint32_t)(place >> 2))].add(c);
        accesses.clear();
        occurrences.clear();
    }

private:
    struct Access {
        uint64_t place;  // code address, read or write, device or shared memory
        uint32_t occurrence;
        uint16_t thread, bytes;
        size_t address;
    };
    std::vector<Access> accesses;
    std::unordered_map<uint64_t, uint32_t> occurrences;  // by place and thread

    static void count_device(Counts& c, const Access* begin, const Access* end) {
        std::vector<size_t> bytes;
        for (auto a = begin; a < end; a++)
            for (size_t i = 0; i < a->bytes; i++) bytes.push_back(a->address + i);
        std::sort(bytes.begin(), bytes.end());
        for (size_t i = 0; i < bytes.size(); i++) {
            c.used += i == 0 || bytes[i] != bytes[i - 1];
            c.sectors += i == 0 || bytes[i] / 32 != bytes[i - 1] / 32;
        }
        c.requests++;
        c.lanes += end - begin;
    }

    static void count_shared(Counts& c, const Access* begin, const Access* end) {
        int together = begin->bytes <= 4 ? 32 : begin->bytes == 8 ? 16 : 8;

        for (int first = 0; first < 32; first += together) {
            std::set<size_t> words[32];
            size_t turns = 0;
            for (auto a = begin; a < end; a++) {
                int lane = a->thread % 32;
                if (lane < first || lane >= first + together) continue;
                for (size_t word = a->address / 4; word <= (a->address + a->bytes - 1) / 4; word++) {
                    words[word % 32].insert(word);
                    turns = std::max(turns, words[word % 32].size());
                }
            }
            c.turns += (long)turns;
            c.least_turns += turns > 0;
        }
    }
};

// the accesses themselves, in the order in which the emulator made them
class Tracer {
    std::vector<std::pair<Traced, uint32_t>> accesses;  // with the place in the program

public:
    void note(const Traced& access, uint32_t code) { accesses.push_back({access, code}); }
    template <class LineOf>
    std::vector<Traced> take(LineOf line_of) {
        std::map<uint32_t, std::string> lines;
        std::vector<Traced> out;
        for (auto& [access, code] : accesses) {
            std::string& line = lines[code];
            if (line.empty()) line = line_of(code);
            out.push_back(access);
            out.back().line = line;
        }
        accesses.clear();
        return out;
    }
};

}  // namespace emulated::watch
