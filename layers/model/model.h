// model.h   the whole decoder on one device: its memory, forward, backward
//   tokens, targets (B, T) int   loss of a position = cross entropy of the next token, natural logarithm
//   Memory is taken once, at start, in four arenas (parameters, gradients, activations, scratch; the
//   optimiser has a fifth), and what `memory_table` prints is what is taken.
#pragma once
#include <array>
#include <memory>
#include "block.h"

struct Model {
    ModelShape shape;
    int B;          // sequences computed at once
    bool training;  // otherwise only forward: no gradients
    ParameterTable table;
    floatX* weights = nullptr;
    real* gradients = nullptr;
    std::vector<BlockActivations> blocks;
    floatX *x_end, *ln_end, *logits;  // (B, T, C)  (B, T, C)  (B, T, Vp)
    real *end_mean, *end_rstd, *losses;  // (B, T)
    int *tokens, *targets;               // (B, T)
    Scratch scratch;
    std::vector<Arena> arenas;
    Stream stream = nullptr;

    Model(const ModelShape& shape, int B, bool training)
        : shape(shape), B(B), training(training), table(parameter_table(shape)), blocks(shape.L) {}
    Model(const Model&) = delete;
    ~Model() {
        for (auto& arena : arenas) device_free(arena.base);
    }

    void place_parameters(Arena& arena) { weights = arena.take<floatX>(table.elements); }
    void place_gradients(Arena& arena) { gradients = arena.take<real>(table.elements); }
    void place_scratch(Arena& arena) { scratch.place(arena, shape, B, (int)table.list.size(), training); }
    void place_activations(Arena& arena) {
        long N = (long)B * shape.T;
        if (training) {
            for (auto& block : blocks) block.place(arena, shape, B);
        } else {  // the blocks share everything but their key-value cache
            blocks[0].place(arena, shape, B);
            for (int l = 1; l < shape.L; l++) {
                blocks[l] = blocks[0];
                blocks[l].qkv = arena.take<floatX>(3 * N * shape.C);
            }
        }
        x_end = training ? arena.take<floatX>(N * shape.C) : blocks[0].x;
        ln_end = arena.take<floatX>(N * shape.C);
        logits = arena.take<floatX>(N * shape.Vp);
        end_mean = arena.take<real>(N), end_rstd = arena.take<real>(N), losses = arena.take<real>(N);
        tokens = arena.take<int>(N), targets = arena.take<int>(N);
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
        add("parameters", [&](Arena& a) { place_parameters(a); });
        if (training) add("gradients", [&](Arena& a) { place_gradients(a); });
        add("activations", [&](Arena& a) { place_activations(a); });
        add("scratch", [&](Arena& a) { place_scratch(a); });
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

// logits (B, T, Vp) of the tokens in m.tokens; with Batch.first > 0 of one token that follows those before
inline void model_forward(Model& m, Batch batch) {
    const ModelShape& shape = m.shape;
    int N = batch.rows(), C = shape.C;
    {
        Section timed("embedding", m.stream);
        dev::embedding_forward(m.blocks[0].x, m.tokens, m.weight(m.table.list[WTE]),
                               m.weight(m.table.list[WPE]), batch.first, batch.B, batch.T, C, m.stream);
    }
    for (int l = 0; l < shape.L; l++) {
        floatX* y = l + 1 < shape.L ? m.blocks[l + 1].x : m.x_end;
        block_forward(y, m.blocks[l], m.block_weights(l).data(), m.scratch, shape, batch, m.stream);
    }
    {
        Section timed("layer norm", m.stream);
        dev::layernorm_forward(m.ln_end, m.end_mean, m.end_rstd, m.x_end, m.weight(m.table.end(LNF_W)),
                               m.weight(m.table.end(LNF_B)), N, C, m.stream);
    }
    Section timed("linears", m.stream);
    dev::matmul_forward(m.logits, m.ln_end, m.weight(m.table.list[WTE]), nullptr, N, C, shape.Vp, m.stream);
}

// after model_forward: losses added to m.losses; with want_gradient the logits become dloss * their gradient
inline void model_loss(Model& m, Batch batch, real dloss, bool want_gradient) {
    Section timed("cross entropy", m.stream);
    dev::cross_entropy(m.losses, m.logits, m.targets, dloss, want_gradient, batch.rows(), m.shape.V,
                       m.shape.Vp, m.stream);
}

// after model_loss with want_gradient: all gradients added to
inline void model_backward(Model& m, Batch batch) {
    const ModelShape& shape = m.shape;
    int N = batch.rows(), C = shape.C;
    const Parameter &wte = m.table.list[WTE], &wpe = m.table.list[WPE];
    {
        Section timed("linears", m.stream);
        dev::matmul_backward(m.scratch.branch, m.gradient(wte), nullptr, m.logits, m.ln_end, m.weight(wte),
                             m.scratch.sums, N, C, shape.Vp, m.stream);
    }
    {
        Section timed("layer norm", m.stream);
        set_zero(m.scratch.d, (size_t)N * C * sizeof(floatX), m.stream);
        dev::layernorm_backward(m.scratch.d, m.gradient(m.table.end(LNF_W)), m.gradient(m.table.end(LNF_B)),
                                m.scratch.branch, m.x_end, m.weight(m.table.end(LNF_W)), m.end_mean,
                                    m.end_rstd, m.scratch.sums, N, C, m.stream);
    }
    for (int l = shape.L - 1; l >= 0; l--)
        block_backward(m.blocks[l], m.block_weights(l).data(), m.block_gradients(l).data(), m.scratch, shape,
                       batch, m.stream);
    Section timed("embedding", m.stream);
    dev::embedding_backward(m.gradient(wte), m.gradient(wpe), m.tokens, m.scratch.d, batch.B, batch.T, C,
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
    copy_to_device(m.tokens, tokens.data(), tokens.size() * sizeof(int), m.stream);
    copy_to_device(m.targets, targets.data(), targets.size() * sizeof(int), m.stream);
    synchronize(m.stream);  // the host's copies end here
}

// the sum of m.losses over the batch
inline double sum_losses(Model& m, Batch batch) {
    std::vector<real> losses(batch.rows());
    copy_to_host(losses.data(), m.losses, losses.size() * sizeof(real), m.stream);
    double sum = 0;
    for (real loss : losses) sum += loss;
    return sum;
}

inline void clear_losses(Model& m) { set_zero(m.losses, (size_t)m.B * m.shape.T * sizeof(real), m.stream); }

inline std::string memory_table(const std::vector<Arena>& arenas) {
    std::string out = "memory\n";
    double total = 0;
    for (auto& a : arenas) out += text("  %-12s %9.1f MB\n", a.name, a.used * 1e-6), total += (double)a.used;
    return out + text("  %-12s %9.1f MB\n", "in all", total * 1e-6);
}
