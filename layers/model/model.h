// model.h   this rank's share of the decoder: its memory, forward, backward
//   tokens, targets (B, T) int   loss of a position = cross entropy of the next token, natural logarithm
//   Memory is taken once, at start, in four arenas (parameters, gradients, activations, scratch; the
//   optimiser has a fifth), and what `memory_table` prints is what is taken.
#pragma once
#include <array>
#include <bit>
#include <memory>
#include "../../comm/grid.h"
#include "ends.h"

struct Model {
    ModelShape shape;
    Grid grid;
    Ranks ranks;
    int B;          // sequences computed at once
    bool training;  // otherwise only forward: no gradients
    ParameterTable table;
    floatX* weights = nullptr;
    real* gradients = nullptr;
    std::vector<BlockActivations> blocks;
    EndActivations end;
    Scratch scratch;
    std::vector<Arena> arenas;
    Stream stream = nullptr;

    // sequence: sequence parallelism; owners: data-parallel ranks that share the optimiser's state
    Model(const ModelShape& shape, const Grid& grid, int B, bool training, bool sequence = false,
          int owners = 1) : shape(shape), grid(grid), ranks{grid.tp, sequence && grid.t > 1}, B(B),
          training(training), table(parameter_table(shape, {grid.t, grid.tensor, owners})), blocks(shape.L) {}
    Model(const Model&) = delete;
    ~Model() {
        for (auto& arena : arenas) device_free(arena.base);
    }

    void place_activations(Arena& arena) {
        if (training) {
            for (auto& block : blocks) block.place(arena, shape, ranks, B);
        } else {  // the blocks share everything but their key-value cache
            blocks[0].place(arena, shape, ranks, B);
            for (int l = 1; l < shape.L; l++) {
                blocks[l] = blocks[0];
                blocks[l].qkv = arena.take<floatX>(3L * B * shape.T * shape.C / grid.t);
            }
        }
        end.place(arena, shape, ranks, B);
    }

    // measures when `take` is false, else allocates; the parameters start at 0
    void memory(bool take) {
        arenas.clear();
        auto add = [&](const char* name, auto walk) {
            Arena arena = {name};
            if (take) arena = allocate(name, walk);
            else walk(arena);
            arenas.push_back(arena);
        };
        add("parameters", [&](Arena& a) { weights = a.take<floatX>(table.elements); });
        if (training) add("gradients", [&](Arena& a) { gradients = a.take<real>(table.elements); });
        add("activations", [&](Arena& a) { place_activations(a); });
        add("scratch", [&](Arena& a) { scratch.place(a, shape, ranks, B, table, training); });
        arenas.push_back({"products", nullptr, dev::gemm_workspace(take)});
        if (!take) return;
        set_zero(weights, table.elements * sizeof(floatX), stream);
        if (training) set_zero(gradients, table.elements * sizeof(real), stream);
    }

    std::array<const floatX*, block_tensors> block_weights(int layer) const {
        std::array<const floatX*, block_tensors> w;
        for (int t = 0; t < block_tensors; t++) w[t] = weights + table.block(layer, BlockTensor(t)).offset;
        return w;
    }
    std::array<real*, block_tensors> block_gradients(int layer) const {
        std::array<real*, block_tensors> g;
        for (int t = 0; t < block_tensors; t++) g[t] = gradients + table.block(layer, BlockTensor(t)).offset;
        return g;
    }
    const floatX* weight(const Parameter& p) const { return weights + p.offset; }
    real* gradient(const Parameter& p) const { return gradients + p.offset; }
};

// this rank's logits (N, Vp / t) of the tokens in m.end.tokens; with Batch.first > 0 of one token that
// follows those before. Generation, whose rows need not divide, passes ranks without sequence parallelism.
inline void model_forward(Model& m, Batch batch, const Ranks& ranks) {
    const Parameter &wte = m.table.list[WTE], &wpe = m.table.list[WPE];
    embed_forward(m.blocks[0].x, m.end.tokens, m.weight(wte), m.weight(wpe), m.scratch, m.shape, ranks, batch,
                  m.stream);
    for (int l = 0; l < m.shape.L; l++) {
        floatX* y = l + 1 < m.shape.L ? m.blocks[l + 1].x : m.end.x;
        block_forward(y, m.blocks[l], m.block_weights(l).data(), m.scratch, m.shape, ranks, batch, m.stream);
    }
    logits_forward(m.end, m.weight(m.table.end(LNF_W)), m.weight(m.table.end(LNF_B)), m.weight(wte),
                   m.scratch, m.shape, ranks, batch, m.stream);
}
inline void model_forward(Model& m, Batch batch) { model_forward(m, batch, m.ranks); }

// after model_forward: losses added to m.end.losses; with want_gradient the logits become dloss * their
// gradient
inline void model_loss(Model& m, Batch batch, real dloss, bool want_gradient) {
    loss_forward(m.end, dloss, want_gradient, m.shape, m.ranks, batch, m.stream);
}

// after model_loss with want_gradient: all gradients added to
inline void model_backward(Model& m, Batch batch) {
    const Parameter &wte = m.table.list[WTE], &wpe = m.table.list[WPE];
    logits_backward(m.end, m.weight(m.table.end(LNF_W)), m.weight(wte), m.gradient(m.table.end(LNF_W)),
                    m.gradient(m.table.end(LNF_B)), m.gradient(wte), m.scratch, m.shape, m.ranks, batch,
                        m.stream);
    for (int l = m.shape.L - 1; l >= 0; l--)
        block_backward(m.blocks[l], m.block_weights(l).data(), m.block_gradients(l).data(), m.scratch,
                       m.shape, m.ranks, batch, m.stream);
    embed_backward(m.gradient(wte), m.gradient(wpe), m.end.tokens, m.scratch, m.shape, m.ranks, batch,
                   m.stream);
}

// windows (B, T + 1) on the host -> tokens and targets on the device
inline void load_batch(Model& m, const std::vector<int>& windows, Batch batch) {
    std::vector<int> tokens(batch.rows()), targets(batch.rows());
    for (int b = 0; b < batch.B; b++)
        for (int t = 0; t < batch.T; t++) {
            tokens[b * batch.T + t] = windows[b * (batch.T + 1) + t];
            targets[b * batch.T + t] = windows[b * (batch.T + 1) + t + 1];
        }
    copy_to_device(m.end.tokens, tokens.data(), tokens.size() * sizeof(int), m.stream);
    copy_to_device(m.end.targets, targets.data(), targets.size() * sizeof(int), m.stream);
    synchronize(m.stream);  // the host's copies end here
}

// the sum of this replica's losses over the batch
inline double sum_losses(Model& m, Batch batch) {
    std::vector<real> losses(batch.rows());
    copy_to_host(losses.data(), m.end.losses, losses.size() * sizeof(real), m.stream);
    double sum = 0;
    for (real loss : losses) sum += loss;
    return sum;
}

inline void clear_losses(Model& m) {
    set_zero(m.end.losses, (size_t)m.B * m.shape.T * sizeof(real), m.stream);
}

// numbers on the host of every rank, all of them everywhere
inline std::vector<int64_t> gather_numbers(const comm::Group& g, const std::vector<int64_t>& mine,
                                           const char* label) {
    size_t n = mine.size();
    std::vector<int64_t> all(n * g.size);
    int64_t* shared = (int64_t*)device_malloc(all.size() * sizeof(int64_t), label);
    copy_to_device(shared + g.rank * n, mine.data(), n * sizeof(int64_t), nullptr);
    comm::all_gather(g, shared, shared + g.rank * n, (long)n, label, nullptr);
    copy_to_host(all.data(), shared, all.size() * sizeof(int64_t), nullptr);
    device_free(shared);
    return all;
}

// a sum over ranks of a number on the host, always added in the order of the ranks
inline double sum_over(const comm::Group& g, double x, const char* label) {
    if (g.size == 1) return x;
    double sum = 0;
    for (int64_t bits : gather_numbers(g, {std::bit_cast<int64_t>(x)}, label))
        sum += std::bit_cast<double>(bits);
    return sum;
}

inline std::string memory_table(const std::vector<Arena>& arenas) {
    std::string out = "memory of a rank\n";
    double total = 0;
    for (auto& a : arenas) out += text("  %-12s %9.1f MB\n", a.name, a.used * 1e-6), total += (double)a.used;
    return out + text("  %-12s %9.1f MB\n", "in all", total * 1e-6);
}
