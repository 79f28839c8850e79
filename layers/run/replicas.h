// replicas.h   --check-every N: every N-th step computes its gradients twice, and parameters must not change
//   meanwhile (RepeatedStep, monitor.h). After such a step, replicated state is compared across ranks, here,
//   by checksums that each rank's device computes (sum_bits.cuh).
//   over t      replicated tensors: parameters, and the owned part of low_bits, m, v
//   over d      all parameters; if not sharded (--zero 0), low_bits, m and v too
//   first and last stage   the token embedding: parameters, and the owned part of low_bits, m and v
#pragma once
#include "../../comm/mpi/collective_check.h"
#include "allocate.h"
#include "sum_bits.cuh"

// this rank's checksums, four a tensor: of its parameters, and of the owned part of low_bits, m and v
inline std::vector<int64_t> tensor_checksums(Model& model, const Optimizer& o) {
    std::vector<int64_t> out(4 * model.table.list.size());
    unsigned long long* sums = o.bit_sums + Optimizer::bit_sum_count;
    compute(ClearValues{"checksums", sums, (long)out.size()}, model.stream);
    auto add = [&](size_t at, const auto* x, long n) {
        compute(SumBits<std::decay_t<decltype(*x)>>{sums + at, x, n}, model.stream);
    };

    for (size_t i = 0; i < model.table.list.size(); i++)
        add(4 * i, model.weights + model.table.list[i].offset, model.table.list[i].size);
    for (auto& part : owned_tensor_parts(model.table, o.slices)) {
        auto add_part = [&](int k, const auto* x) {
            add(4 * part.parameter + k, x + part.state_offset, part.n);
        };
        if (o.low_bits) add_part(1, (const bf16*)o.low_bits);  // also 16 bits wide
        for (int k : {2, 3}) {
            const void* moment = k == 2 ? o.m : o.v;
            if (o.moment_bytes == sizeof(bf16)) add_part(k, (const bf16*)moment);
            else add_part(k, (const real*)moment);
        }
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
        {model.grid.tp, false, true, true}, {model.grid.dp, false, false, model.setup.optimizer_shards == 1},
        {model.grid.tied, true, false, true}};

    if (std::ranges::all_of(all, [](auto& each) { return each.group.size == 1; })) return "";
    std::vector<int64_t> sums = tensor_checksums(model, o);

    std::string error;  // reported only after all groups have compared
    for (auto& [group, tied, replicated, with_state] : all) {
        if (group.size == 1) continue;
        std::vector<int64_t> mine;
        std::vector<const Parameter*> tensors;
        for (size_t i = 0; i < table.list.size(); i++) {
            if ((tied && (int)i != table.wte) || (replicated && table.list[i].is_split())) continue;
            for (int k = 0; k < 4; k++) mine.push_back(k == 0 || with_state ? sums[4 * i + k] : 0);
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
                    "drifted apart: resume from an earlier checkpoint, and have the memory of those ranks' "
                    "hosts checked", step, i % 4 ? "optimizer state" : "parameters",
                    tensors[i / 4]->name.c_str(), comm::rank_list(differ).c_str(), group.members[0]);
        }
    }
    return error;
}
