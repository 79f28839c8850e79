// trace.h   the spans of a step of the run (base/operation.h), of every stage of the first replica
#pragma once
#include "../../comm/comm.h"
#include "../base/operation.h"

// collective over the world: clocks of several hosts are as near as the barrier
inline void start_trace(const comm::Group& world, Stream stream) {
    synchronize(stream);
    comm::barrier(world, "the traced step");
    trace.start(stream);
}

// collective over the world; counts: this rank's spans are wanted
inline std::vector<Span> gather_spans(const comm::Group& world, const std::vector<Span>& mine, bool counts) {
    int64_t most = 0;
    for (int64_t n : comm::gather_numbers(world, {(int64_t)mine.size()}, "spans")) most = std::max(most, n);
    std::vector<int64_t> numbers((size_t)most * 6, -1);
    for (size_t i = 0; counts && i < mine.size(); i++) {
        const Span& s = mine[i];
        int64_t row[] = {s.kind, s.stage, s.micro_batch, s.chunk, std::bit_cast<int64_t>(s.start),
                         std::bit_cast<int64_t>(s.end)};
        std::copy(row, row + 6, &numbers[i * 6]);
    }
    std::vector<int64_t> all = comm::gather_numbers(world, numbers, "spans");
    std::vector<Span> spans;
    for (size_t i = 0; i + 6 <= all.size(); i += 6)
        if (all[i] >= 0)
            spans.push_back({(Span::Kind)all[i], (int)all[i + 1], (int)all[i + 2], (int)all[i + 3],
                             std::bit_cast<double>(all[i + 4]), std::bit_cast<double>(all[i + 5])});
    return spans;
}
