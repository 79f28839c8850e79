// model.h   this rank's share of the decoder: its tables and its memory
//   Memory is taken once, at start, in four arenas (parameters, gradients, activations, scratch; the
//   optimiser has a fifth), and what `memory_table` prints is what is taken.
//   Activations are numbered, so that several micro-batches can be under way in a pipeline:
//     slots[i]      of one chunk of layers, from its forward to its backward
//     inputs[i]     (N_r, C): what the chunk's first layer reads; received, or the embedding
//     streams[i]    (N_r, C): the gradient of the residual stream, from the chunk's output down to its input
//   With full recomputation a slot holds only the inputs of its layers, and all layers share one working set;
//   with light recomputation they share what is computed again.
#pragma once
#include <array>
#include <bit>
#include <memory>
#include "../../comm/grid.h"
#include "ends.h"

// how much of everything
struct Setup {
    int B = 1;                // sequences computed at once
    bool training = true;     // otherwise only forward: no gradients
    bool sequence = false;    // sequence parallelism
    bool samples = false;     // text is generated in between
    bool packs = false;       // batches of segments pass through
    bool cache = false;       // without training: layers keep keys and values from one batch to the next
    bool scores = false;      // whether a target is the likeliest is noted
    int outputs = 0;          // rows of logits at once; 0: all
    Recompute recompute = Recompute::None;
    bool flash = false;       // attention without a (T, T) tensor
    bool fp8 = false;         // linear layers of blocks
    bool accumulates = false; // several micro-batches a step
    int losses = 1;           // micro-batches whose losses are kept apart, in a step or an evaluation
    int loss_rows = 0;        // rows of logits held at once; 0: all
    int owners = 1;           // data-parallel ranks that share the optimiser's state
    int chunks = 1;           // of layers on a stage
    int slots = 1, inputs = 1, streams = 1;
    Precision precision = {};                            // this build's, but in plans
    size_t workspace = dev::gemm_workspace(false);       // of products, likewise
};

struct Buffer {
    floatX* x;                 // (N_r, C)
    comm::Mark arrived, sent;  // to be joined before it is read, before it is written again
};
struct Slot {
    std::vector<BlockActivations> blocks;  // of the chunk's layers
    Buffer y;                              // the chunk's output
    int *tokens = nullptr, *targets;       // (N), on the first and last stage
    int *rows, *starts;                    // tokens, sorted, see embedding.cuh; in training, on the first
    int* table = nullptr;                  // a batch of segments: positions, places, wanted rows, tiles
    Segments segments;                     // which lie there
};

struct Model {
    ModelShape shape;
    Grid grid;
    Setup setup;
    Ranks ranks;
    ParameterTable table;
    floatX* weights = nullptr;
    real* gradients = nullptr;
    // of the token embedding, from the logits: summed apart, so that the order of the sum is that of a
    // pipeline; with one micro-batch, and on the last of several stages, it is the embedding's own
    real* logits_gradient = nullptr;
    std::vector<Slot> slots;
    std::vector<Buffer> inputs, streams;
    BlockActivations working;         // with recomputation: of the layer at work
    EndActivations end;               // on the last stage
    floatX* row;  // (Vp): a position's logits of the whole vocabulary; with a cache (B, Vp)
    Scratch scratch;
    std::vector<Arena> arenas;
    std::vector<comm::Mark> gathered; // of each bucket's parameters, after an update
    Stream stream = nullptr;
    // on the host: of each micro-batch of a step what goes to a slot's tokens …
    int* staged = nullptr;
    std::vector<int> token_counts;   // for sorting

    Model(const ModelShape& shape, const Grid& grid, const Setup& setup)
        : shape(shape),
          grid(grid),
          setup(setup),
          ranks{grid.tp, setup.sequence && grid.t > 1, setup.samples},
          table(
              parameter_table(shape, {grid.t, grid.tensor, setup.owners, grid.p, grid.stage, setup.chunks})),
          slots(setup.slots),
          inputs(setup.inputs),
          streams(setup.streams),
          gathered(table.buckets.size()) {}
    Model(const Model&) = delete;
    ~Model() {
        for (auto& arena : arenas) device_free(arena.base);
        host_free(staged);
        if (stream) destroy_stream(stream);
    }

    int chunk_layers() const { return table.layout.chunk_layers(shape.L); }
    bool first(int chunk) const { return table.layout.first(chunk); }
    bool last(int chunk) const { return table.layout.last(chunk); }

    void place_activations(Arena& arena) {
        long N = (long)setup.B * shape.T, size = ranks.room(setup.B, shape.T) * shape.C;
        bool full = setup.recompute == Recompute::Full;
        working = {};
        if (full) working.place(arena, shape, ranks, setup.B, setup.training, setup.flash);
        if (setup.recompute == Recompute::Light) working.place_light(arena, shape, ranks, setup.B);
        for (Slot& slot : slots) {
            slot.blocks.assign(chunk_layers(), working);
            for (auto& block : slot.blocks) {
                if (!setup.training && &block != &slots[0].blocks[0]) {  // all share one
                    block = slots[0].blocks[0];
                    if (setup.cache) block.qkv = arena.take_x(3 * N * shape.C / grid.t);
                } else if (!full) {
                    block.place(arena, shape, ranks, setup.B, setup.training, setup.flash);
                }
                block.x = &block != &slot.blocks[0] ? arena.take_x(size) : nullptr;
            }
            slot.y.x = arena.take_x(size);
            if (grid.first() || grid.last()) {
                slot.tokens = arena.take<int>(batch_ints());
                slot.targets = slot.tokens + N;
                slot.rows = slot.targets + N;
                slot.starts = slot.rows + N;
            }
            if (setup.packs) slot.table = arena.take<int>(table_ints() * N);
        }
        for (auto* buffers : {&inputs, &streams})
            for (auto& buffer : *buffers) buffer.x = arena.take_x(size);
        row = arena.take_x((size_t)(setup.cache ? setup.B : 1) * shape.Vp);
        if (grid.last())
            end.place(arena, shape, ranks, setup.B, outputs(), logits_held(), setup.losses, setup.scores);
    }
    static constexpr long table_ints() { return 3 + sizeof(Tile) / sizeof(int); }  // for each row
    int rows() const { return setup.B * shape.T; }                             // in a batch, at most
    int outputs() const { return setup.outputs ? setup.outputs : rows(); }     // rows of logits, at most
    int logits_held() const { return setup.loss_rows ? std::min(setup.loss_rows, outputs()) : outputs(); }
    bool sorts() const { return setup.training && grid.first(); }  // the tokens, for the embedding's gradient
    long batch_ints() const { return (sorts() ? 4L : 2L) * rows() + sorts(); }  // of a slot's tokens …
    bool keeps_cache() const { return setup.training ? setup.recompute != Recompute::Full : setup.cache; }
    // the token embedding's two gradients are summed apart
    bool sums_apart() const { return grid.p == 1 && setup.accumulates; }
    void place_gradients(Arena& arena) {
        gradients = arena.take_real(table.elements);
        if (sums_apart())
            logits_gradient = arena.take_real(table.list[table.wte].size);
        else if (grid.last())
            logits_gradient = gradients ? gradients + table.list[table.wte].offset : nullptr;
    }

    // measures when `take` is false, else allocates; the parameters start at 0
    void memory(bool take) {
        arenas.clear();
        auto add = [&](const char* name, auto walk) {
            Arena arena = {name, nullptr, 0, setup.precision};
            if (take) arena = allocate(name, walk);
            else walk(arena);
            arenas.push_back(arena);
        };
        add("parameters", [&](Arena& a) { weights = a.take_x(table.elements); });
        if (setup.training) add("gradients", [&](Arena& a) { place_gradients(a); });
        add("activations", [&](Arena& a) { place_activations(a); });
        add("scratch", [&](Arena& a) { 
            scratch.place(a, shape, ranks, setup.B, setup.training, setup.flash, setup.fp8);
        });
        arenas.push_back({"products", nullptr, take ? dev::gemm_workspace(true) : setup.workspace});
        if (!take) return;
        if (grid.first() || grid.last())
            staged = (int*)host_malloc(setup.losses * batch_ints() * sizeof(int), "tokens of a step");
        if (sorts()) token_counts.assign(shape.Vp + 1, 0);
        set_zero(weights, table.elements * sizeof(floatX), stream);
        if (setup.training) clear_gradients();
    }
    void clear_gradients() {
        set_zero(gradients, table.elements * sizeof(real), stream);
        if (sums_apart())
            set_zero(logits_gradient, table.list[table.wte].size * sizeof(real), stream);
    }

    // layer: counted over this rank's chunks
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
    const floatX* weight(int parameter) const { return weights + table.list[parameter].offset; }
    real* gradient(int parameter) const { return gradients + table.list[parameter].offset; }

    // waits until a parameter's bucket holds what the last update gathered
    void await(const Parameter& p) {
        comm::join(stream, gathered[p.bucket]);
        gathered[p.bucket] = {};
    }
    void await_parameters() {
        for (auto& p : table.list) await(p);
    }
};
