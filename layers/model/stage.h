// stage.h   this rank's share of the model: its tensors, and forward and backward of a chunk of its layers
//   All memory is allocated before the first step (run/allocate.h).
//     in_flight[slot] activations of one micro-batch in one chunk of layers, from forward to backward
//     inputs[i]       (N_r, C): input of the chunk's first layer; received, or the embedding
//     dx_buffers[i]   (N_r, C): d_residual, gradient of the residual stream, from a chunk's output to input
//   Parameters are grouped in buckets (params.h). The reduction of a bucket's gradients over data-parallel
//   ranks starts as soon as the last micro-batch has added to them; forward, or backward if it computes the
//   loss itself, waits for a bucket's new parameters just before it first reads them.
//   To add a layer to the model: write layers/NAME.cuh (its operations, each with ref and gpu), call it here
//   or in block.h, and add its tensors to params.h and activations.h. .github/CONTRIBUTING.md says which
//   check fails if a place is forgotten.
#pragma once
#include <array>
#include <numeric>
#include "../../comm/grid.h"
#include "../../data/loader.h"
#include "../adamw.cuh"
#include "block.h"
#include "vocabulary.h"

struct Model {
    ModelShape shape;
    Grid grid;
    Setup setup;
    ParameterTable table;

    floatX* weights = nullptr;
    real* gradients = nullptr;
    // wte's gradient has two parts, from the lookups and, as wte is also the LM head, from the logits. This
    // (place_gradients(), run/allocate.h) receives the logits' part, which micro-batch 0 sets:
    //   p > 1: gradient(wte) of the last stage's copy; nullptr elsewhere
    //   p = 1, and one micro-batch in every step: gradient(wte), to which the lookups then add
    //   p = 1, and several: a buffer of its own, added to gradient(wte) after the last micro-batch
    // So the parts are summed in the order of p > 1, and with d = 1 steps are the same bits for any p
    real* wte_gradient_from_logits = nullptr;

    std::vector<InFlight> in_flight;
    std::vector<Buffer> inputs, dx_buffers;
    LmHeadActivations lm_head;      // on the last stage
    floatX* gathered_logits;        // over the whole vocabulary: (logit_rows, Vp) with a KV cache, else (Vp)
    Scratch scratch;

    std::vector<Allocation> memory;  // see run/allocate.h
    std::vector<comm::StreamEvent> parameters_gathered;  // event of each bucket's last all-gather
    Stream stream = nullptr;
    bool holds_back_reductions = false;  // backward starts no reductions; RepeatedStep (run/monitor.h) does

    // pinned memory: token_ints() for each micro-batch of a step, copied to InFlight.tokens. Training has two
    // buffers, so that the next step's tokens can be read while this step computes
    int* host_tokens[2] = {};

    Model(const ModelShape& shape, const Grid& grid, const Setup& setup)
        : shape(shape), grid(grid), setup(setup),
          table(parameter_table(shape, grid, setup.optimizer_shards, setup.chunks)),
          in_flight(setup.slots), inputs(setup.inputs), dx_buffers(setup.dx_buffers),
          parameters_gathered(table.buckets.size()) {
        this->grid.sequence_parallel = setup.sequence_parallel && grid.t > 1;
    }
    Model(const Model&) = delete;
    ~Model() {
        for (auto& each : memory) device_free(each.base);
        for (int* tokens : host_tokens) host_free(tokens);
        if (stream) destroy_stream(stream);
    }

    int chunk_layers() const { return shape.L / (grid.p * setup.chunks); }
    bool is_first_chunk(int chunk) const { return grid.is_first_stage() && chunk == 0; }
    bool is_last_chunk(int chunk) const { return grid.is_last_stage() && chunk == setup.chunks - 1; }
    // layer l of a chunk, as an index into the whole model's layers
    int layer_number(int chunk, int l) const { return (chunk * grid.p + grid.stage) * chunk_layers() + l; }

    // most rows in a batch, and most rows of logits
    int max_rows() const { return setup.B * shape.T; }
    int max_logit_rows() const { return setup.logit_rows ? setup.logit_rows : max_rows(); }
    bool sorts_tokens() const { return setup.training && grid.is_first_stage(); }  // for wte's gradient
    bool loads_tokens() const { return grid.is_first_stage() || grid.is_last_stage(); }
    // ints of a micro-batch: tokens, targets (N each) and, if sorted, sorted_rows (N), run_starts (N + 1)
    long token_ints() const { return sorts_tokens() ? 4L * max_rows() + 1 : 2L * max_rows(); }

    bool sums_wte_apart() const { return grid.p == 1 && setup.several_micro_batches; }
    // of a micro-batch of N rows. other: the grid where rows are distributed differently (generation)
    LayerContext context(int N, bool accumulate = false, const Grid* other = nullptr) const {
        return {shape, other ? *other : grid, scratch, stream, N, accumulate, setup.fp8};
    }

    const floatX* weight(int parameter) const { return weights + table.list[parameter].offset; }
    real* gradient(int parameter) const { return gradients + table.list[parameter].offset; }
    // a block's tensors in `flat`, weights or gradients; layer: counted over all chunks of this rank
    template <class T>
    std::array<T*, block_tensors> block_of(T* flat, int layer) const {
        std::array<T*, block_tensors> p;
        for (int i = 0; i < block_tensors; i++) p[i] = flat + table.block(layer, BlockTensor(i)).offset;
        return p;
    }
    BlockWeights block_weights(int layer) const { return block_of<const floatX>(weights, layer); }
    BlockGradients block_gradients(int layer) const { return block_of(gradients, layer); }
    LmHeadWeights lm_head_weights() const {
        return {weight(table.lnf), weight(table.lnf + 1), weight(table.wte)};
    }
    LmHeadGradients lm_head_gradients() const {
        return {gradient(table.lnf), gradient(table.lnf + 1), wte_gradient_from_logits};
    }

    // the stream waits until the last update's all-gather of a parameter's bucket is done
    void await_parameter(const Parameter& p) {
        comm::wait_event(stream, parameters_gathered[p.bucket], "parameters");
        parameters_gathered[p.bucket] = {};
    }

    void await_parameters() {
        for (auto& p : table.list) await_parameter(p);
    }
};

// ---- samples ---------------------------------------------------------------------------------------------

// A sample is T + 1 consecutive tokens of a file: T inputs and, shifted by one, their targets. Which tokens
// follows from its index in the run (data/loader.h: each once an epoch, in an order computed from the seed;
// several sets by weight). They are read into pinned host memory while the previous step computes.
struct StepSamples {
    uint64_t first = 0;  // index in the run of the step's first sample
    int batch = 0, micro_batches = 0;  // of the step: the global batch, and its micro-batches per replica
    int token_buffer = 0;  // which of Model.host_tokens has their tokens: the one that the last step did not
    std::vector<SetChoice> chosen;     // of the global batch
    std::vector<uint64_t> counted;     // tokens of the global batch whose losses count, by set of the blend

    // at least 1: a mean over no tokens is 0 / 1
    double counted_tokens() const {
        return std::max(1.0, (double)std::accumulate(counted.begin(), counted.end(), uint64_t(0)));
    }
};

// Micro-batches are dealt round-robin to the data-parallel ranks: the index, among the step's samples, of
// sequence b of one of this rank's micro-batches
inline int sample_index(const Model& model, int micro_batch, int b) {
    return (micro_batch * model.grid.d + model.grid.data) * model.setup.B + b;
}

// samples (B, T + 1) -> tokens and targets, and the tokens sorted for wte's gradient, in the micro-batch's
// part of host_tokens, one of Model's buffers. The step that used it before must have ended
inline void put_tokens_on_host(const Model& model, int* host_tokens, const std::vector<int>& samples, int B,
                               int micro_batch) {
    int* tokens = host_tokens + (long)micro_batch * model.token_ints();
    int* targets = tokens + model.max_rows();
    int T = model.shape.T;
    for (int b = 0; b < B; b++)
        for (int t = 0; t < T; t++) {
            int token = samples[b * (T + 1) + t];  // -1 - token: no loss for it (--loss-on answers)
            tokens[b * T + t] = token < 0 ? -1 - token : token;
            targets[b * T + t] = samples[b * (T + 1) + t + 1];
        }
    int *rows = targets + model.max_rows(), *starts = rows + model.max_rows();
    if (model.sorts_tokens()) sort_tokens(rows, starts, tokens, B * T, model.shape.Vp);
}

inline StepSamples read_samples(Blend& blend, const Model& model, int token_buffer, uint64_t first,
                                int batch) {
    int B = model.setup.B, T = model.shape.T, micro_batches = batch / model.grid.d / B;
    StepSamples out = {first, batch, micro_batches, token_buffer, blend.choose(first, batch), {}};
    out.counted.resize(blend.sets.size());
    for (auto& choice : out.chosen) out.counted[choice.set] += blend.sets[choice.set].counted(choice.index);
    if (!model.loads_tokens()) return out;

    auto chosen = [&](int micro_batch, int b) { return out.chosen[sample_index(model, micro_batch, b)]; };
    for (int i = 0; i < micro_batches * B; i++) {
        SetChoice choice = chosen(i / B, i % B);
        blend.sets[choice.set].expect(choice.index);
    }
    std::vector<int> tokens((size_t)B * (T + 1));  // of one micro-batch
    for (int micro_batch = 0; micro_batch < micro_batches; micro_batch++) {
        for (int b = 0; b < B; b++) {
            SetChoice choice = chosen(micro_batch, b);
            blend.sets[choice.set].read_at(&tokens[(size_t)b * (T + 1)], choice.index);
        }
        put_tokens_on_host(model, model.host_tokens[token_buffer], tokens, B, micro_batch);
    }
    return out;
}

// its host_tokens -> device, on stages that read tokens; asynchronous
inline void copy_tokens(Model& model, const MicroBatch& mb) {
    PlaceScope here({Pass::Forward, mb.index, mb.chunk});
    bool reads_tokens = model.is_first_chunk(mb.chunk) || model.is_last_chunk(mb.chunk);
    if (!reads_tokens) return;
    const int* tokens = mb.host_tokens + mb.index * model.token_ints();
    compute(UploadValues{"tokens", mb.in_flight.tokens, tokens, model.token_ints()}, model.stream);
}

// ---- forward ---------------------------------------------------------------------------------------------

// waits until a buffer has been sent and may be overwritten
inline void await_sent(Model& model, Buffer& buffer) {
    comm::wait_event(model.stream, buffer.sent, "a send");
    buffer.sent = {};
}

inline void await_lm_head(Model& model) {
    model.await_parameter(model.table.list[model.table.wte]);
    model.await_parameter(model.table.list[model.table.lnf]);
}

// The chunk's input, or in the first chunk the tokens -> in_flight.y. attention(a, w) computes steps 1 to 3
// of a block, whose parameters have arrived: block_attention or, of packed batches, packed_attention.
// positions: of the tokens; nullptr: 0 to T - 1 in a sequence. The residual stream goes from input.x to the
// x of blocks 1, 2, … and to y; block 0's own x is input.x (MicroBatch::block)
template <class Attention>
void layers_forward(Model& model, const MicroBatch& mb, const LayerContext& ctx, const int* positions,
                    Attention attention) {
    int n = model.chunk_layers();
    floatX* x = mb.input.x;

    await_sent(model, mb.in_flight.y);  // by the micro-batch that had this slot before
    if (model.is_first_chunk(mb.chunk)) {
        for (int embedding : {model.table.wte, model.table.wpe})
            model.await_parameter(model.table.list[embedding]);
        embed_forward(x, mb.in_flight.tokens, model.weight(model.table.wte), model.weight(model.table.wpe),
                      ctx, positions);
    }

    for (int l = 0; l < n; l++) {
        int layer = mb.chunk * n + l;
        current_place.layer = model.layer_number(mb.chunk, l);  // for listeners (activity.h)
        BlockActivations a = mb.block(l);
        BlockWeights w = model.block_weights(layer);
        model.await_parameter(model.table.block(layer, LN1_W));

        attention(a, w);
        after_attention_forward(a, w, ctx);
        down_forward(l + 1 < n ? mb.in_flight.blocks[l + 1].x : mb.in_flight.y.x, a, w, ctx);
    }
    current_place.layer = -1;
}

// one chunk of layers; in the last chunk also logits and losses, and the logits' gradient unless dloss is 0
inline void forward(Model& model, const MicroBatch& mb) {
    Section section({Pass::Forward, mb.index, mb.chunk}, model.stream);
    LayerContext ctx = model.context(mb.N);
    layers_forward(model, mb, ctx, nullptr, [&](auto& a, auto& w) {
        if (ctx.fp8 && mb.index == 0) round_weights(w, ctx);
        block_attention(a, w, ctx);
    });

    bool in_backward = mb.dloss != 0 && model.setup.loss_in_backward;
    if (!model.is_last_chunk(mb.chunk) || in_backward) return;
    await_lm_head(model);
    lm_head_forward(model.lm_head, mb, model.lm_head_weights(), ctx);
}

// ---- backward --------------------------------------------------------------------------------------------

// n values that data-parallel rank `owner` of `shards` owns, of a bucket
inline Slice slice_of(const Bucket& bucket, int owner, int shards) {
    long n = bucket.elements / shards;
    return {bucket.offset + owner * n, n, bucket.offset / shards, bucket.global_id, square_sum_part_count(n)};
}

// each rank's gradients -> their sums: all of them on each rank or, with a sharded optimizer, its slice
inline void reduce_bucket(Model& model, int bucket) {
    if (model.grid.d == 1 || model.holds_back_reductions) return;
    const Bucket& b = model.table.buckets[bucket];
    const comm::Group& dp = model.grid.dp;
    real* g = model.gradients + b.offset;
    Section section({.pass = Pass::Reduce, .bucket = bucket}, model.stream);

    comm::wait_stream(model.grid.dp_stream, model.stream);
    if (model.setup.optimizer_shards == 1) {
        // this rank's gradients -> sums over all ranks
        comm::all_reduce(dp, g, b.elements, comm::ReduceOp::Sum, "gradients", model.grid.dp_stream);
        return;
    }

    // this rank's gradients -> this rank's slice of the sums
    Slice mine = slice_of(b, dp.rank, dp.size);
    comm::reduce_scatter(dp, model.gradients + mine.at, g, mine.n, "gradients", model.grid.dp_stream);
}

// gradient of the chunk's output -> gradient of its input, in place; the last chunk starts from
// the logits' gradient
inline void backward(Model& model, const MicroBatch& mb) {
    Section section({Pass::Backward, mb.index, mb.chunk}, model.stream);
    const ParameterTable& table = model.table;
    int n = model.chunk_layers();
    LayerContext ctx = model.context(mb.N, mb.index > 0);
    floatX* d_residual = mb.dx_buffer->x;

    auto begin_reduction = [&](const Parameter& p) {  // all gradients of p's bucket are complete
        if (mb.is_last_micro_batch) reduce_bucket(model, p.bucket);
    };

    // d_residual holds what the next chunk's stage has sent; in the last chunk the LM head sets it
    await_sent(model, *mb.dx_buffer);
    if (model.is_last_chunk(mb.chunk)) {
        await_lm_head(model);
        lm_head_backward(d_residual, model.lm_head_gradients(), model.lm_head, mb, model.lm_head_weights(),
                         ctx);
        begin_reduction(table.list[table.lnf]);
        if (model.grid.p > 1) begin_reduction(table.list[table.wte]);
    }

    for (int l = n - 1; l >= 0; l--) {
        int layer = mb.chunk * n + l;
        current_place.layer = model.layer_number(mb.chunk, l);
        BlockActivations a = mb.block(l);
        BlockWeights w = model.block_weights(layer);

        // forward has kept a.x alone: the rest again, into what all blocks share
        if (model.setup.recompute == Recompute::Full) {
            block_attention(a, w, ctx);
            after_attention_forward(a, w, ctx);
        }

        // d_residual: of the block's output, then of `mid`, then of its input
        BlockGradients gradients = model.block_gradients(layer);
        mlp_backward(d_residual, gradients, a, w, ctx);
        attention_backward(d_residual, gradients, a, w, ctx);
        begin_reduction(table.block(layer, LN1_W));  // step 1 has set its bucket's last gradients
    }
    current_place.layer = -1;

    if (!model.is_first_chunk(mb.chunk)) return;
    // dwte: the lookups' gradients; the logits' are added after the last micro-batch if they are summed apart
    real *dwte = model.gradient(table.wte), *from_logits = model.wte_gradient_from_logits;
    long size = table.list[table.wte].size;
    // cleared unless the LM head has just set it: lookups reach only the rows of tokens that occur
    if (mb.index == 0 && dwte != from_logits) compute(ClearValues{"dwte", dwte, size}, model.stream);
    embed_backward(dwte, model.gradient(table.wpe), d_residual, mb.in_flight.tokens,
                   mb.in_flight.sorted_rows, mb.in_flight.run_starts, ctx);
    if (mb.is_last_micro_batch && model.sums_wte_apart())
        compute(AddValues{.sum = dwte, .x = from_logits, .n = size}, model.stream);  // adamw.cuh
    begin_reduction(table.list[table.wte]);
    begin_reduction(table.list[table.wpe]);  // complete since embed_backward
}

// ---- losses ----------------------------------------------------------------------------------------------

inline void clear_losses(Model& model) {  // those of ignored targets, and of micro-batches not run, stay 0
    long values = (long)model.setup.micro_batches * model.max_logit_rows();
    if (!model.grid.is_last_stage()) return;
    compute(ClearValues{"losses", model.lm_head.losses, values}, model.stream);
}
