// replicas.h   --check-every N: every N-th step computes its gradients twice, and parameters must not change
//   meanwhile (RepeatedStep, monitor.h); after it, here, replicated state is compared over ranks, bit by bit.
//   What is compared is copied to the host and hashed there, which costs as much as a save's copy.
//   over t      replicated tensors: parameters, and the owned part of low_bits, m, v
//   over d      all parameters; if not sharded (--zero 0), low_bits, m and v too
//   first and last stage   the token embedding: parameters, and the owned part of low_bits, m and v
#pragma once
#include "../../comm/mpi/collective_check.h"
#include "allocate.h"

inline uint64_t device_checksum(const void* p, size_t bytes, uint64_t before, Stream s) {
    std::vector<char> host(bytes + sizeof before);
    if (bytes) copy_to_host(host.data(), p, bytes, s);
    memcpy(host.data() + bytes, &before, sizeof before);
    return checksum(host.data(), host.size());
}

// "", or the first tensor and the ranks that differ; collective over the world
inline std::string compare_replicas(Model& model, const Optimizer& o, long step) {
    model.await_parameters();
    const ParameterTable& table = model.table;

    // this rank's checksums, by tensor
    std::vector<uint64_t> weights, state(table.list.size(), 0);
    for (auto& p : table.list)
        weights.push_back(
            device_checksum(model.weights + p.offset, p.size * sizeof(floatX), 0, model.stream));
    for (auto& part : owned_tensor_parts(model.table, o.slices))
        for (auto& [values, bytes] : {std::pair((char*)o.low_bits, sizeof *o.low_bits),
                                      {(char*)o.m, o.moment_bytes}, {(char*)o.v, o.moment_bytes}})
            if (values)
                state[part.parameter] = device_checksum(values + part.state_offset * bytes, part.n * bytes,
                                                        state[part.parameter], model.stream);

    // tied: only wte; replicated: not the shards of tensor parallelism; with_state: low_bits, m and v too
    struct { const comm::Group& group; bool tied, replicated, with_state; } all[] = {
        {model.grid.tp, false, true, true}, {model.grid.dp, false, false, table.layout.optimizer_shards == 1},
        {model.grid.tied, true, false, true}};

    std::string error;  // reported only after all groups have compared
    for (auto& [group, tied, replicated, with_state] : all) {
        if (group.size == 1) continue;
        std::vector<int64_t> mine;
        std::vector<const Parameter*> tensors;
        for (size_t i = 0; i < table.list.size(); i++) {
            if ((tied && (int)i != table.wte) || (replicated && table.list[i].split)) continue;
            mine.push_back((int64_t)weights[i]);
            mine.push_back(with_state ? (int64_t)state[i] : 0);
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
