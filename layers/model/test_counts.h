// test_counts.h   how well every kernel uses sectors and banks: bars for what watch_counts.h counts
#pragma once
#include "../run/bench_kernels.h"

#if defined(WATCHED)
// lines that ask for sectors which they use in part, or meet on a bank, and why that may be
struct Named {
    const char *kernel, *line, *why;  // line: its beginning or, with " in ", a caller's
    double least = 0;                 // per cent of the sectors that must be used
};
const Named named_lines[] = {
    {"flash_forward", "flash_attention.cuh", "of each row a warp's fragments hold 16 bytes"},
    {"flash_backward", "flash_attention.cuh", "of each row a warp's fragments hold 16 bytes"},
    {"packed_tiles", "flash_attention.cuh", "of each row a warp's fragments hold 16 bytes"},
    {"layernorm_backward_rows", " in layernorm.cuh", "sums, written once for all rows of a group", 50},
    {"adamw_kernel", "adamw.cuh", "hyper-parameters, the same for all lanes"},
    {"fp8_round", "fp8_round.cuh", "rows of an odd number of words, for the columns' sake"},
};
constexpr double all_used = 99;  // per cent: the last lanes of a row may have nothing to do
constexpr long bulk = 256;       // sectors of two blocks; less is no kernel's time

// every kernel, in two of its blocks: a line that asks for a tenth of a kernel's sectors or more uses all of
// them, and no two lanes meet on a bank, but for those that are named
void test_counts() {
    using emulated::watch::Counts;
    std::map<std::string, emulated::watch::CountsByLine> all;
    auto measure = [&](const std::string&, double, double, auto run) {
        emulated::watch::count(true);
        run();
        synchronize(nullptr);
        emulated::watch::count(false);
        for (auto& [kernel, lines] : emulated::watch::take_counts())
            for (auto& [line, c] : lines) all[kernel][line].add(c);
    };

    KernelBench(measure).all();

    auto percent = [](const Counts& c) {
        return c.sectors ? 100 * (double)c.used / (32.0 * (double)c.sectors) : 100;
    };
    printf("%-46s %9s %6s %6s %9s %9s\n", "kernel", "requests", "lanes", "used", "turns", "conflicts");
    for (auto& [kernel, lines] : all) {
        Counts sum;
        for (auto& [line, c] : lines) sum.add(c);
        printf("%-46s %9ld %6.1f %5.1f%% %9ld %9ld\n", kernel.c_str(), sum.requests,
               (double)sum.lanes / (double)std::max(1L, sum.requests), percent(sum), sum.turns,
               sum.turns - sum.least_turns);
        for (auto& [line, c] : lines) {
            bool is_bulk = c.sectors >= bulk && c.sectors * 10 >= sum.sectors;
            bool wastes = is_bulk && percent(c) < all_used;
            if (!wastes && c.turns == c.least_turns) continue;
            const char* why = nullptr;
            for (auto& named : named_lines)
                if (size_t at = line.find(named.line); kernel.find(named.kernel) != kernel.npos &&
                    (named.line[0] == ' ' ? at != line.npos : at == 0) && percent(c) >= named.least)
                    why = named.why;
            std::string what = text("%s, %s: %.1f %% of %ld sectors, %ld conflicts in %ld turns",
                                    kernel.c_str(), line.c_str(), percent(c), c.sectors,
                                    c.turns - c.least_turns, c.turns);
            check(why, what);
            if (why) printf("    %s: %s\n", what.c_str(), why);
        }
    }

    check(all.size() >= 20, text("%zu kernels", all.size()));
}
#endif
