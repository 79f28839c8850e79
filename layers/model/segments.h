// segments.h   batches of segments: put together on the host, laid into a slot, passed through the stages
#pragma once
#include "stage.h"

struct Pack {
    std::vector<int> tokens, positions;  // (N)
    std::vector<int> places;             // (N): where rows go in a cache that is kept; else empty
    std::vector<int> wanted, targets;  // (outputs): rows whose logits are wanted, and what should follow
    std::vector<Tile> tiles;
    int rows() const { return (int)tokens.size(); }
    int outputs() const { return (int)wanted.size(); }

    // n tokens that follow `position` others; their keys come to lie at row `at` of the cache, behind those
    // of their run, which begins at `own`; they also see the rows [prefix, prefix + shared). Returns their
    // first row.
    int add(const int* given, int n, int position, int at, int own, int prefix = 0, int shared = 0) {
        int first = rows();
        for (int i = 0; i < n; i += segment_rows)
            tiles.push_back({first + i, std::min(segment_rows, n - i), at + i, own, prefix, shared});
        for (int i = 0; i < n; i++) {
            tokens.push_back(given[i]);
            positions.push_back(position + i);
        }
        return first;
    }
    // the same where nothing is kept: row n lies at n
    int add_alone(const int* given, int n, int position, int prefix = 0, int shared = 0) {
        return add(given, n, position, rows(), rows(), prefix, shared);
    }
    // with rows that nobody asks for, so that `ranks` can share them equally
    void pad(int ranks) {
        std::vector<int> blank((ranks - rows() % ranks) % ranks, 0);
        if (!blank.empty()) add_alone(blank.data(), (int)blank.size(), 0);
    }
};

// into a slot, on every stage; the batch refers to the slot
inline Batch lay(Model& m, Slot& slot, const Pack& pack) {
    std::vector<int> all = pack.positions;
    auto add = [&](const std::vector<int>& list) {
        int* at = slot.table + all.size();
        all.insert(all.end(), list.begin(), list.end());
        return at;
    };
    Segments& s = slot.segments;
    s.positions = slot.table;
    s.places = pack.places.empty() ? nullptr : add(pack.places);
    s.wanted = add(pack.wanted);
    s.tiles = (const Tile*)(slot.table + all.size());
    s.tile_count = (int)pack.tiles.size();
    s.outputs = pack.outputs();
    all.resize(all.size() + pack.tiles.size() * sizeof(Tile) / sizeof(int));
    memcpy((char*)(all.data() + all.size()) - pack.tiles.size() * sizeof(Tile), pack.tiles.data(),
           pack.tiles.size() * sizeof(Tile));
    synchronize(m.stream);  // what a kernel may still read is not written
    copy_to_device(slot.table, all.data(), all.size() * sizeof(int), m.stream);
    if (slot.tokens) {
        copy_to_device(slot.tokens, pack.tokens.data(), pack.tokens.size() * sizeof(int), m.stream);
        copy_to_device(slot.targets, pack.targets.data(), pack.targets.size() * sizeof(int), m.stream);
    }
    synchronize(m.stream);  // the host's copies end here
    return {1, pack.rows(), &s};
}

// logits (V) of each wanted row, on the last stage; one batch alone, chunk c in slot c, as generation needs
// it
inline std::vector<std::vector<real>> wanted_logits(Model& m, const Pack& pack) {
    Ranks ranks = {m.ranks.tp};
    Grid& grid = m.grid;
    long values = (long)pack.rows() * m.shape.C;
    Buffer& input = m.inputs[0];
    for (int chunk = 0; chunk < m.setup.chunks; chunk++) {
        Slot& slot = m.slots[chunk];
        Batch batch = lay(m, slot, pack);
        if (!m.first(chunk))
            comm::receive(grid.forward_in.group, input.x, values, 0, "rows of generation", m.stream);
        chunk_forward(m, chunk, slot, 0, batch, ranks);
        if (!m.last(chunk))
            comm::send(grid.forward_out.group, slot.y.x, values, 1, "rows of generation", m.stream);
        else
            model_logits(m, slot, batch, ranks);
    }
    std::vector<std::vector<real>> out;
    if (!grid.last()) return out;
    int K = pack.outputs(), Vp_r = m.shape.Vp / grid.t, V = m.shape.V;
    comm::all_gather(m.ranks.tp, m.row, m.end.logits, (long)K * Vp_r, "logits",
                     m.stream);  // my columns -> all columns
    std::vector<floatX> all((size_t)K * m.shape.Vp);
    copy_to_host(all.data(), m.row, all.size() * sizeof(floatX), m.stream);
    for (int k = 0; k < K; k++) {
        out.emplace_back(V);
        for (int v = 0; v < V; v++) out[k][v] = real(all[((size_t)(v / Vp_r) * K + k) * Vp_r + v % Vp_r]);
    }
    return out;
}
