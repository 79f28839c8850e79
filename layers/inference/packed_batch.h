// packed_batch.h   packed batches of variable-length segments: built on the host, loaded, computed
//   Forward only, over the layers of layers/model, with attention over segments; in generation the buffer qkv
//   is the KV cache (queries are stored there too, but not read again).
#pragma once
#include "../base/process.h"
#include "../fast/packed_attention.cuh"
#include "../fast/tokens_ahead.cuh"
#include "../fast/turns.h"
#include "../model/pipeline.h"

// a packed batch on the device; its shape is B = 1, T = N
struct PackedSegments {
    const int* positions;    // (N)
    const int* cache_slots;  // (N): each row's slot in the KV cache; nullptr: row n is slot n, no cache
    const int* rows_with_logits;  // (logit_rows): whose logits are computed; may repeat
    const Tile* tiles;
    int tile_count, logit_rows;
};
static_assert(packed_ints == 3 + sizeof(Tile) / sizeof(int));

struct PackedBatch {
    std::vector<int> tokens, positions;  // (N)
    std::vector<int> cache_slots;        // (N): the rows' slots in a cache that is kept; else empty
    // (logit_rows): the rows whose logits are computed, and their targets
    std::vector<int> rows_with_logits, targets;
    std::vector<Tile> tiles;
    int rows() const { return (int)tokens.size(); }
    int logit_rows() const { return (int)rows_with_logits.size(); }

    // Adds n tokens at positions `position`, …; their keys and values go to cache rows `at`, …. They attend
    // to their own segment, which begins at cache row `own`, and to cache rows [prefix, prefix + shared).
    // Returns their first row in the batch.
    int add_segment(const int* given, int n, int position, int at, int own, int prefix = 0, int shared = 0) {
        int first = rows();
        for (int i = 0; i < n; i += segment_rows)
            tiles.push_back({first + i, std::min(segment_rows, n - i), at + i, own, prefix, shared});
        for (int i = 0; i < n; i++) {
            tokens.push_back(given[i]);
            positions.push_back(position + i);
        }
        return first;
    }

    // the same where no cache outlives the batch: row n of the batch is row n of the keys
    int add_uncached(const int* given, int n, int position, int prefix = 0, int shared = 0) {
        return add_segment(given, n, position, rows(), rows(), prefix, shared);
    }

    // adds rows of padding up to a multiple of `unit`, and rows of logits that no target counts, likewise but
    // at most `most_logit_rows` in all
    void pad_rows(int unit, int most_logit_rows) {
        std::vector<int> blank((unit - rows() % unit) % unit, 0);
        if (!blank.empty()) add_uncached(blank.data(), (int)blank.size(), 0);
        while (logit_rows() % unit && logit_rows() < most_logit_rows) {
            rows_with_logits.push_back(0);
            targets.push_back(-1);
        }
    }
};

// copies the batch to the device, on every stage
inline void load_packed(Model& model, InFlight& to, const PackedBatch& packed) {
    std::vector<int> all = packed.positions;
    auto append = [&](const std::vector<int>& list) {
        int* at = to.segment_arrays + all.size();
        all.insert(all.end(), list.begin(), list.end());
        return at;
    };

    to.packed = std::make_shared<PackedSegments>();
    PackedSegments& s = *to.packed;
    s.positions = to.segment_arrays;
    s.cache_slots = packed.cache_slots.empty() ? nullptr : append(packed.cache_slots);
    s.rows_with_logits = append(packed.rows_with_logits);
    s.tiles = (const Tile*)(to.segment_arrays + all.size());
    s.tile_count = (int)packed.tiles.size();
    s.logit_rows = packed.logit_rows();

    size_t tile_bytes = packed.tiles.size() * sizeof(Tile);
    all.resize(all.size() + tile_bytes / sizeof(int));
    memcpy((char*)(all.data() + all.size()) - tile_bytes, packed.tiles.data(), tile_bytes);
    synchronize(model.stream);  // a kernel may still be reading what is overwritten now
    copy_to_device(to.segment_arrays, all.data(), all.size() * sizeof(int), model.stream);

    if (to.tokens) {
        copy_to_device(to.tokens, packed.tokens.data(), packed.tokens.size() * sizeof(int), model.stream);
        copy_to_device(to.targets, packed.targets.data(), packed.targets.size() * sizeof(int), model.stream);
    }
    synchronize(model.stream);  // `all` and `packed` are not needed after this
}

// ---- forward ---------------------------------------------------------------------------------------------

// whether a pass leaves keys and values behind: in training blocks keep their qkv for backward anyway
inline bool keeps_cache(const Model& model) {
    const Setup& setup = model.setup;
    return setup.training ? setup.recompute != Recompute::Full : setup.inference_cache;
}

// steps 1 to 3 of a block (model/block.h)
inline void packed_attention(const BlockActivations& a, const PackedSegments& packed, const BlockWeights& w,
                             const LayerContext& ctx) {
    Stream s = ctx.stream;
    int N = ctx.N, C = ctx.shape.C, t = ctx.grid.t;
    floatX* qkv = packed.cache_slots ? ctx.scratch.mlp_or_qkv : a.qkv;
    ln1_forward(a, w, ctx);
    const floatX* rows = gather_rows(ctx.grid, ctx.scratch.all_rows, a.ln1, N, C, "rows for qkv", s);
    compute(LinearForward{.y = qkv, .x = rows, .w = w[QKV_W], .b = w[QKV_B], .N = N, .C = C, .OC = 3 * C / t},
            s);
    if (packed.cache_slots)
        compute(StoreCacheRows{.cache = a.qkv, .rows = qkv, .cache_slots = packed.cache_slots, .N = N,
                               .width = 3 * C / t}, s);

    AttentionShape heads = {1, N, ctx.shape.NH / t, ctx.shape.HS()};
    compute(PackedAttention{.o = a.o, .qkv = a.qkv, .tiles = packed.tiles, .count = packed.tile_count,
                            .a = heads}, s);
}

// the chunk's input, or in the first chunk the tokens -> in_flight.y
inline void packed_layers(Model& model, const MicroBatch& mb, const LayerContext& ctx) {
    const PackedSegments& packed = *mb.in_flight.packed;
    layers_forward(model, mb, ctx, packed.positions, [&](auto& a, auto& w) {
        packed_attention(a, packed, w, ctx);
    });
}

// of the last chunk's output: normalised rows (logit_rows, C), those whose logits are wanted
inline const floatX* packed_lm_head_rows(Model& model, const MicroBatch& mb, const LayerContext& ctx) {
    await_lm_head(model);
    const floatX* rows = lm_head_rows(model.lm_head, mb.in_flight.y.x, model.lm_head_weights(), ctx);
    // rows[rows_with_logits[i]]: a table lookup, like the embedding
    compute(EmbeddingForward{.x = ctx.scratch.unreduced, .tokens = mb.in_flight.packed->rows_with_logits,
                             .wte = rows, .N = mb.in_flight.packed->logit_rows, .C = ctx.shape.C,
                             .v = {ctx.N, ctx.N, 0}}, ctx.stream);
    return ctx.scratch.unreduced;
}

// one chunk of layers; in the last chunk also the losses of the wanted rows, and which targets are likeliest
inline void packed_forward(Model& model, const MicroBatch& mb) {
    Section section({Pass::Forward, mb.index, mb.chunk}, model.stream);
    LayerContext ctx = model.context(mb.N);
    ctx.fp8 = false;  // its GEMMs need multiples of 16 rows
    packed_layers(model, mb, ctx);
    if (!model.is_last_chunk(mb.chunk)) return;

    const LmHeadActivations& a = model.lm_head;
    const comm::Group& tp = ctx.grid.tp;
    auto note_tokens_ahead = [&](int first, int n) {
        if (!a.tokens_ahead) return;
        real* ahead = a.tokens_ahead + (long)mb.index * a.logit_rows + first;
        const real* target_logits = tp.size > 1 ? a.exp_sums + n : nullptr;  // all-reduced by loss_forward
        compute(TokensAhead{.ahead = ahead, .logits = a.logits, .target_logits = target_logits,
                            .targets = mb.in_flight.targets + first, .N = n,
                            .v = vocabulary_shard(ctx.shape, ctx.grid)}, ctx.stream);
        comm::all_reduce(tp, ahead, n, comm::ReduceOp::Sum, "tokens ahead of the target", ctx.stream);
    };
    const floatX* rows = packed_lm_head_rows(model, mb, ctx);
    int all = mb.in_flight.packed->logit_rows;
    for (int first = 0; first < all; first += a.logit_rows_held) {
        int n = std::min(a.logit_rows_held, all - first);
        logits_forward(a, rows + (long)first * ctx.shape.C, model.weight(model.table.wte), n, ctx);
        loss_forward(a, mb, first, n, ctx);
        note_tokens_ahead(first, n);
    }
}

// logits (V) of each requested row, on the last stage; of a single batch, with chunk c in in_flight[c], as
// generation needs it. Its few rows need not be divisible by t: there is no sequence parallelism.
inline std::vector<std::vector<real>> packed_logits(Model& model, const PackedBatch& packed) {
    Grid grid = model.grid;
    grid.sequence_parallel = false;
    LayerContext ctx = model.context(packed.rows(), false, &grid);
    ctx.fp8 = false;
    long values = (long)packed.rows() * model.shape.C;
    Buffer& input = model.inputs[0];

    for (int chunk = 0; chunk < model.setup.chunks; chunk++) {
        InFlight& in_flight = model.in_flight[chunk];
        load_packed(model, in_flight, packed);
        MicroBatch mb = {.index = 0, .chunk = chunk, .N = packed.rows(), .in_flight = in_flight,
                         .input = input};
        if (!model.is_first_chunk(chunk))
            comm::receive(grid.forward_in.group, input.x, values, 0, "rows of generation", model.stream);
        packed_layers(model, mb, ctx);
        if (!model.is_last_chunk(chunk))
            comm::send(grid.forward_out.group, in_flight.y.x, values, 1, "rows of generation", model.stream);
        else  // all of them are held at once
            logits_forward(model.lm_head, packed_lm_head_rows(model, mb, ctx), model.weight(model.table.wte),
                           packed.logit_rows(), ctx);
    }

    refuse_expired_waits("generation", model.stream);
    std::vector<std::vector<real>> out;
    if (!grid.is_last_stage()) return out;
    int K = packed.logit_rows(), Vp_r = model.shape.Vp / grid.t, V = model.shape.V;
    // my columns -> all columns
    comm::all_gather(grid.tp, model.gathered_logits, model.lm_head.logits, (long)K * Vp_r, "logits",
                     model.stream);

    std::vector<floatX> all((size_t)K * model.shape.Vp);
    copy_to_host(all.data(), model.gathered_logits, all.size() * sizeof(floatX), model.stream);
    out.resize(K);
    in_parallel(K, [&](long k) {
        for (int first = 0; first < V; first += Vp_r) {  // of a tensor-parallel rank
            const floatX* own = &all[((size_t)(first / Vp_r) * K + k) * Vp_r];
            out[k].insert(out[k].end(), own, own + std::min(Vp_r, V - first));
        }
    });
    return out;
}
