// allocate.h   a rank's memory: one walk over all tensors measures it, the same walk then places them
//   Memory is allocated once, before the first step, in arenas: parameters, gradients, activations, 8-bit
//   weights (with --fp8), scratch, the GEMMs' workspace, the optimizer. Each is measured by a walk that only
//   counts and placed by the same walk (base/arena.h), so the table printed at the start, and a plan, show
//   exactly what is taken. What each tensor is: model/activations.h
//   To add a scratch buffer, or one of the LM head: a pointer in Scratch or LmHeadActivations, and a line in
//   its place(); scratch that inference also needs goes before `if (!setup.training) return`. Add scratch to
//   the list in plan/invariants.h too: what is not listed is not checked. The optimizer's: place(Optimizer).
//   To add an activation to a block: a pointer in BlockActivations, above `shares_outputs`, and a line in
//   place(), which both measures and places it, or in place_shareable(), if light recomputation is to
//   recompute it and backward with --fp8 does not read it; compute it before block.h's down_forward(). A
//   tensor that is not placed fails ./test_gpt training; one that blocks share by mistake fails
//   scripts/test_parallel.py or, with --fp8, ./test_gpt training.
#pragma once
#include "../base/arena.h"
#include "../fast/fp8_linear.h"
#include "../model/optimizer.h"

// runs walk(arena), which only counts
template <class Walk>
Allocation measure(const char* name, const Precision& precision, Walk walk) {
    Arena arena = {name, nullptr, 0, precision};
    walk(arena);
    return {name, nullptr, arena.used};
}

// runs walk(arena) twice: to measure, then to place in device memory. The caller frees the base
template <class Walk>
Allocation allocate(const char* name, Walk walk) {
    size_t measured = measure(name, {}, walk).bytes;
    Arena arena = {name, (char*)device_malloc(measured ? measured : 1, name)};
    walk(arena);
    if (arena.used != measured)
        fail("%s: %zu bytes were measured, %zu placed: this is a bug", name, measured, arena.used);
    return {name, arena.base, measured};
}

// ---- activations -----------------------------------------------------------------------------------------

// rows that a buffer of the residual stream must hold; text generated between steps needs T unsharded rows
inline long row_capacity(const Model& model) {
    long rows = model.grid.rows(model.max_rows());
    return model.setup.samples_text ? std::max<long>(rows, model.shape.T) : rows;
}

// of a linear layer's input x (N, C)
inline std::shared_ptr<Fp8Inputs> place_fp8_inputs(Arena& arena, long N, long C) {
    auto inputs = std::make_shared<Fp8Inputs>();
    inputs->x.transposed = arena.take<e4m3>(N * C);
    inputs->x.scale = arena.take<Fp8Scale>(1);
    return inputs;
}

// Places what blocks may share: if they do, place_activations() places one set, whose pointers every block
// copies; otherwise each block has a set of its own
inline void place_shareable(Arena& arena, BlockActivations& a, const Model& model) {
    const ModelShape& shape = model.shape;
    long N_r = row_capacity(model);
    a.ln1 = arena.take_x(N_r * shape.C);
    a.ln2 = arena.take_x(N_r * shape.C);
    // with --fp8 GELU's output exists in 8 bits only, except in packed batches
    if (!model.setup.fp8 || model.setup.packs)
        a.act = arena.take_x((long)model.max_rows() * 4 * (shape.C / model.grid.t));
}

inline void place(Arena& arena, BlockActivations& a, const Model& model) {
    const ModelShape& shape = model.shape;
    const Setup& setup = model.setup;
    long N = model.max_rows(), N_r = row_capacity(model);
    long C_r = shape.C / model.grid.t, NH_r = shape.NH / model.grid.t;
    if (!a.shares_outputs) place_shareable(arena, a, model);
    a.qkv = arena.take_x(N * 3 * C_r);
    if (setup.training && setup.flash) a.lse = arena.take_real(N * NH_r);
    else if (setup.training) a.probabilities = arena.take_x(setup.B * NH_r * shape.T * shape.T);
    a.o = arena.take_x(N * C_r);
    a.mid = arena.take_x(N_r * shape.C);
    a.up = arena.take_x(N * 4 * C_r);
    for (real** stat : {&a.ln1_stats.mean, &a.ln1_stats.rstd, &a.ln2_stats.mean, &a.ln2_stats.rstd})
        *stat = arena.take_real(N_r);
    if (!setup.fp8) return;
    a.qkv_fp8 = place_fp8_inputs(arena, N, shape.C);
    a.out_fp8 = place_fp8_inputs(arena, N, C_r);
    a.up_fp8 = place_fp8_inputs(arena, N, shape.C);
    a.down_fp8 = place_fp8_inputs(arena, N, 4 * C_r);
    a.up_fp8->y = a.down_fp8->x;  // GELU's output is rounded where it is made
    a.down_fp8->x_is_rounded = true;
    a.up_fp8->dy_is_scaled = true;
}

inline void place(Arena& arena, LmHeadActivations& a, const Model& model) {
    const ModelShape& shape = model.shape;
    const Setup& setup = model.setup;
    a.logit_rows = model.max_logit_rows();
    a.logit_rows_held = setup.logit_rows_held ? std::min(setup.logit_rows_held, a.logit_rows) : a.logit_rows;
    a.loss_in_backward = setup.loss_in_backward;
    long N_r = row_capacity(model);
    a.losses = arena.take_real((long)setup.micro_batches * a.logit_rows);
    if (setup.notes_greedy) a.tokens_ahead = arena.take_real((long)setup.micro_batches * a.logit_rows);
    a.ln = arena.take_x(N_r * shape.C);
    bool keeps = setup.training && !a.loss_in_backward && !setup.fp8_lm_head;
    bool gathers = model.grid.sequence_parallel && keeps;
    a.input_rows = gathers ? arena.take_x((long)model.max_rows() * shape.C) : nullptr;
    a.logits = arena.take_x((long)a.logit_rows_held * (shape.Vp / model.grid.t));
    a.stats.mean = arena.take_real(N_r);
    a.stats.rstd = arena.take_real(N_r);
    a.largest = arena.take_real(a.logit_rows_held);
    a.exp_sums = arena.take_real(2L * a.logit_rows_held);
    if (setup.fp8_lm_head) a.rows_fp8 = place_fp8_inputs(arena, a.logit_rows_held, shape.C);
}

// of one micro-batch in one chunk of layers
inline void place(Arena& arena, InFlight& in_flight, Model& model, const BlockActivations& shared) {
    const Setup& setup = model.setup;
    long N = model.max_rows(), size = row_capacity(model) * model.shape.C;
    in_flight.blocks.assign(model.chunk_layers(), shared);
    BlockActivations& first = model.in_flight[0].blocks[0];
    for (BlockActivations& block : in_flight.blocks) {
        if (!setup.training && &block != &first) {  // all blocks share one
            block = first;
            if (setup.inference_cache) block.qkv = arena.take_x(3 * N * model.shape.C / model.grid.t);
        } else if (setup.recompute != Recompute::Full) {
            place(arena, block, model);
        }
        block.x = &block != &in_flight.blocks[0] ? arena.take_x(size) : nullptr;
    }

    in_flight.y.x = arena.take_x(size);
    if (model.loads_tokens()) {
        in_flight.tokens = arena.take<int>(model.token_ints());
        in_flight.targets = in_flight.tokens + N;
        in_flight.sorted_rows = in_flight.targets + N;
        in_flight.run_starts = in_flight.sorted_rows + N;
    }
    if (setup.packs) in_flight.segment_arrays = arena.take<int>(packed_ints * N);
}

inline void place_activations(Arena& arena, Model& model) {
    const Setup& setup = model.setup;
    bool full = setup.recompute == Recompute::Full;
    BlockActivations shared = {};  // with recomputation or --fp8: what all layers share
    if (full) place(arena, shared, model);
    shared.shares_outputs = !full && (setup.recompute == Recompute::Light || setup.fp8);
    if (shared.shares_outputs) place_shareable(arena, shared, model);

    for (InFlight& in_flight : model.in_flight) place(arena, in_flight, model, shared);
    long size = row_capacity(model) * model.shape.C;
    for (auto* buffers : {&model.inputs, &model.dx_buffers})
        for (Buffer& buffer : *buffers) buffer.x = arena.take_x(size);
    int gathered = setup.inference_cache ? model.max_logit_rows() : 1;
    model.gathered_logits = arena.take_x((size_t)gathered * model.shape.Vp);
    if (model.grid.is_last_stage()) place(arena, model.lm_head, model);
}

inline void place(Arena& arena, Scratch& scratch, const Model& model) {
    const ModelShape& shape = model.shape;
    const Setup& setup = model.setup;
    int B = setup.B, NH_r = shape.NH / model.grid.t;
    long N = model.max_rows(), N_r = row_capacity(model), t = model.grid.t, C = shape.C;

    scratch.unreduced = arena.take_x(N * C);
    scratch.reduced = model.grid.sequence_parallel ? arena.take_x(N_r * C) : nullptr;
    scratch.all_rows = model.grid.sequence_parallel ? arena.take_x(N * C) : nullptr;
    scratch.mlp_or_qkv = arena.take_x(N * 4 * C / t);
    if (!setup.training) return;

    if (setup.fp8) {
        Fp8Scratch& fp8 = *scratch.fp8;
        long widest = N * std::max<long>(C, 4 * C / t);
        long logits = model.lm_head.rows_fp8 ? (long)model.lm_head.logit_rows_held * (shape.Vp / t) : 0;
        fp8.x = arena.take<uint8_t>(widest);
        for (uint8_t** p : {&fp8.dy, &fp8.dy_t}) *p = arena.take<uint8_t>(std::max(widest, logits));
        for (Fp8Scale** p : {&fp8.dy_scale, &fp8.d_up_scale}) *p = arena.take<Fp8Scale>(1);
        fp8.parts = arena.take<float>(most_fp8_parts(4 * C / t));
    }

    if (setup.flash) {
        FlashScratch& flash = scratch.flash;
        flash.query_terms = arena.take_real(flash_query_terms(B, NH_r, shape.T));
        flash.dq = arena.take_real(flash_dq(B, NH_r, shape.T, shape.HS()));
        flash.turns = arena.take<int>(flash_turns(B, NH_r, shape.T));
        flash.dqkv_sums = arena.take_real(flash_dqkv_sums({B, shape.T, NH_r, shape.HS()}));
    } else {
        scratch.scores_gradient = arena.take_x((long)B * NH_r * shape.T * shape.T);
    }
    scratch.columns = arena.take_real(std::max(column_sum_scratch(4 * shape.C), ln_scratch(shape.C)));
}

// ---- a model ---------------------------------------------------------------------------------------------

inline void place_gradients(Arena& arena, Model& model) {
    model.gradients = arena.take_real(model.table.elements);
    if (model.sums_wte_apart())
        model.wte_gradient_from_logits = arena.take_real(model.table.list[model.table.wte].size);
    else if (model.grid.is_last_stage())
        model.wte_gradient_from_logits = model.gradient(model.table.wte);
}

inline void place_fp8_weights(Arena& arena, Model& model) {
    const ParameterTable& table = model.table;
    int last_layer = model.setup.chunks * model.chunk_layers() - 1;
    const Parameter &first = table.block(0, LN1_W), &last = table.block(last_layer, DOWN_B);
    long start = first.offset, elements = last.offset + last.size - start;
    Fp8Weights& fp8 = model.scratch.fp8->weights;
    fp8.spacing = table.block(0, OUT_W).size;
    if (model.lm_head.rows_fp8) {  // wte lies before the blocks or behind them
        start = 0;
        elements = table.elements;
        fp8.spacing = std::min(fp8.spacing, table.list[table.wte].size);
    }
    fp8.parameters = model.weights + start;
    fp8.copies = arena.take<e4m3>(elements);
    fp8.transposed = arena.take<e4m3>(elements);
    fp8.scales = arena.take<Fp8Scale>(elements / fp8.spacing + 1);
}

// make(name, walk): returns the memory of everything that `walk` takes
template <class Make>
void make_arenas(Model& model, Make make, size_t workspace) {
    model.memory.clear();
    if (model.setup.fp8) model.scratch.fp8 = std::make_shared<Fp8Scratch>();
    auto add = [&](const char* name, auto walk) { model.memory.push_back(make(name, walk)); };
    add("parameters", [&](Arena& arena) { model.weights = arena.take_x(model.table.elements); });
    if (model.setup.training) add("gradients", [&](Arena& arena) { place_gradients(arena, model); });
    add("activations", [&](Arena& arena) { place_activations(arena, model); });
    if (model.setup.fp8) add("weights in 8 bits", [&](Arena& arena) { place_fp8_weights(arena, model); });
    add("scratch", [&](Arena& arena) { place(arena, model.scratch, model); });
    model.memory.push_back({"GEMM workspace", nullptr, workspace});
}

inline void measure_memory(Model& model) {
    auto count = [&](const char* name, auto walk) { return measure(name, model.setup.precision, walk); };
    make_arenas(model, count, model.setup.workspace);
}

inline void clear_gradients(Model& model) {
    set_zero(model.gradients, model.table.elements * sizeof(real), model.stream);
    if (model.sums_wte_apart())
        set_zero(model.wte_gradient_from_logits, model.table.list[model.table.wte].size * sizeof(real),
                 model.stream);
}

// Parameters and gradients start at 0, for the padding between tensors: norm and update read it, no layer
// writes it, and an update leaves it 0
inline void allocate_memory(Model& model) {
    auto take = [](const char* name, auto walk) { return allocate(name, walk); };
    dev::take_gemm_workspace(model.stream);
    make_arenas(model, take, dev::gemm_workspace());
    size_t token_bytes = model.setup.micro_batches * model.token_ints() * sizeof(int);
    for (int i = 0; model.loads_tokens() && i < (model.setup.training ? 2 : 1); i++)
        model.host_tokens[i] = (int*)host_malloc(token_bytes, "tokens of a step");
    set_zero(model.weights, model.table.elements * sizeof(floatX), model.stream);
    if (model.setup.training) clear_gradients(model);
}

// ---- an optimizer ----------------------------------------------------------------------------------------

// the part of a tensor in a rank's slices: n elements, from `at` in the flat buffers and from `state_offset`
// in low_bits, m and v
struct TensorPart {
    int parameter;
    long at, n, state_offset;
};

// the part of p = table.list[parameter] that lies in `slice`, of its bucket; n is 0 if none of it does
inline TensorPart owned_part(int parameter, const Parameter& p, const Slice& slice) {
    long from = std::max(slice.at, p.offset), to = std::min(slice.at + slice.n, p.offset + p.size);
    return {parameter, from, std::max(0L, to - from), slice.state_offset + from - slice.at};
}

inline std::vector<TensorPart> owned_tensor_parts(const ParameterTable& table,
                                                  const std::vector<Slice>& slices) {
    std::vector<TensorPart> out;
    for (size_t i = 0; i < table.list.size(); i++) {
        const Parameter& p = table.list[i];
        TensorPart part = owned_part((int)i, p, slices[p.bucket]);
        if (part.n > 0) out.push_back(part);
    }
    return out;
}

inline void place(Arena& arena, Optimizer& o, const ParameterTable& table) {
    if (o.low_bytes) o.low_bits = arena.take<uint16_t>(o.elements);
    bool are_bf16 = o.moment_bytes == sizeof(bf16);
    for (void** moment : {&o.m, &o.v})
        *moment = are_bf16 ? (void*)arena.take<bf16>(o.elements) : (void*)arena.take_real(o.elements);
    o.flags = arena.take<uint8_t>(o.elements / flag_span);
    o.device_slices = arena.take<Slice>(o.slices.size());
    o.sums = arena.take<double>(table.bucket_ids + 1);
    o.sum_parts = arena.take<double>(o.slices.size() * square_sum_parts);
    o.hyper = arena.take<HyperParameters>(1);
    o.decision = arena.take<UpdateDecision>(1);
    o.state_check = arena.take<StateCheck>(1);
    o.bit_sums = arena.take<unsigned long long>(Optimizer::bit_sum_count + 4 * table.list.size());
}

inline void measure_memory(Optimizer& o, const Model& model) {
    o.memory = measure("optimizer", model.setup.precision,
                       [&](Arena& arena) { place(arena, o, model.table); });
}

// the flags of AdamW and SquareSums; each gradient is counted in the norm exactly once
inline std::vector<uint8_t> flags_of(const Optimizer& o, const Model& model) {
    std::vector<uint8_t> all(o.elements / flag_span, 0);
    for (auto& part : owned_tensor_parts(model.table, o.slices)) {
        const Parameter& p = model.table.list[part.parameter];
        bool counted_elsewhere =
            p.is_copy ||                                                 // by the first stage
            (!p.is_split() && model.grid.tensor > 0) ||                  // by tensor rank 0
            (model.setup.optimizer_shards == 1 && model.grid.data > 0);  // by data rank 0
        for (long i = part.state_offset; i < part.state_offset + part.n; i += flag_span)
            all[i / flag_span] = (p.decays() ? flag_decay : 0) | (counted_elsewhere ? 0 : flag_in_norm);
    }
    return all;
}

inline void clear_state(Optimizer& o, const Model& model) {
    o.has_written = false;
    if (o.low_bits) set_zero(o.low_bits, o.elements * sizeof(uint16_t), model.stream);
    for (void* moment : {o.m, o.v}) set_zero(moment, o.elements * o.moment_bytes, model.stream);
}

inline void allocate_memory(Optimizer& o, const Model& model) {
    o.memory = allocate("optimizer", [&](Arena& arena) { place(arena, o, model.table); });
    void* pinned = host_malloc(sizeof(HyperParameters), "the optimizer's hyper-parameters");
    o.next_hyper = (HyperParameters*)pinned;
    std::vector<uint8_t> all = flags_of(o, model);
    copy_to_device(o.flags, all.data(), all.size(), model.stream);
    copy_to_device(o.device_slices, o.slices.data(), o.slices.size() * sizeof(Slice), model.stream);
    synchronize(model.stream);  // before `all` is freed
    clear_state(o, model);
}
