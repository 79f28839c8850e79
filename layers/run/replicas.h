// replicas.h   --check-every N: every N-th step computes its gradients twice, and parameters must not change
//   meanwhile (RepeatedStep, monitor.h); after it, here, replicated state is compared over ranks, bit by bit.
//   What is compared are checksums that each rank's device makes (sum_bits.cuh).
//   over t      replicated tensors: parameters, and the owned part of low_bits, m, v
//   over d      all parameters; if not sharded (--zero 0), low_bits, m and v too
//   first and last stage   the token embedding: parameters, and the owned part of low_bits, m and v
#pragma once
#include "../../comm/mpi/collective_check.h"
#include "allocate.h"
#include "sum_bits.cuh"

// this rank's checksums, two a tensor: of its parameters, and of the owned part of low_bits, m and v
inline std::vector<int64_t> tensor_checksums(Model& model, const Optimizer& o) {
    std::vector<int64_t> out(2 * model.table.list.size());
    unsigned long long* sums = o.bit_sums + Optimizer::bit_sum_count;
    compute(ClearValues{"checksums", sums, (long)out.size()}, model.stream);
    auto add = [&](size_t at, const auto* x, long n) {
        compute(SumBits<std::decay_t<decltype(*x)>>{sums + at, x, n}, model.stream);
    };

    for (size_t i = 0; i < model.table.list.size(); i++)
        add(2 * i, model.weights + model.table.list[i].offset, model.table.list[i].size);
    for (auto& part : owned_tensor_parts(model.table, o.slices)) {
        size_t at = 2 * part.parameter + 1;
        if (o.low_bits) add(at, (const bf16*)o.low_bits + part.state_offset, part.n);  // as wide
        for (const void* moment : {o.m, o.v})
            if (o.moment_bytes == sizeof(bf16)) add(at, (const bf16*)moment + part.state_offset, part.n);
            else add(at, (const real*)moment + part.state_offset, part.n);
    }
    copy_to_host(out.data(), sums, out.size() * sizeof out[0], model.stream);
    return out;
}

// "", or the first tensor and the ranks that differ; collective over the world
inline std::string compare_replicas(Model& model, const Optimizer& o, long step) {
    model.await_parameters();
    const ParameterTable& table = model.table;
    // tied: only wte; replicated: not the shards of tensor parallelism; with_state: low_bits, m and v too
    struct { const comm::Group& group; bool tied, replicated, with_state; } all[] = {
        {model.grid.tp, false, true, true}, {model.grid.dp, false, false, table.layout.optimizer_shards == 1},
        {model.grid.tied, true, false, true}};

    if (std::ranges::all_of(all, [](auto& each) { return each.group.size == 1; })) return "";
    std::vector<int64_t> sums = tensor_checksums(model, o);

    std::string error;  // reported only after all groups have compared
    for (auto& [group, tied, replicated, with_state] : all) {
        if (group.size == 1) continue;
        std::vector<int64_t> mine;
        std::vector<const Parameter*> tensors;
        for (size_t i = 0; i < table.list.size(); i++) {
            if ((tied && (int)i != table.wte) || (replicated && table.list[i].split)) continue;
            mine.push_back(sums[2 * i]);
            mine.push_back(with_state ? sums[2 * i + 1] : 0);
            tensors.push_back(&table.list[i]);
        }

        std::vector<int64_t> each = comm::gather_numbers(group, mine, "checksums of replicas");
        for (size_t i = 0; i < mine.size(); i++) {
            std::vector<int> differ;
            for (int r = 1; r < group.size; r++)
                if (each[r * mine.size() + i] != each[i]) differ.push_back(group.members[r]);
            if (!differ.empty() && error.empty())
                error = text(
                    "--check-every: after step %ld %s of %s on rank %s differs from rank %d's: replicas have "
                    "drifted apart: go on from an earlier checkpoint, and have the memory of those ranks' "
                    "hosts checked",
                    step, i % 2 ? "optimizer state" : "parameters", tensors[i / 2]->name.c_str(),
                    comm::rank_list(differ).c_str(), group.members[0]);
        }
    }
    return error;
}
