// optimizer.h   AdamW over the flat buffers, sharded over the data-parallel ranks (ZeRO stage 1)
//   Every bucket of the flat buffers is split into d equal slices. Data-parallel rank i owns slice i: it
//   receives the slice's summed gradients, alone holds its master weights and moments, and updates it; then
//   the new parameters are all-gathered. With one shard (--zero 0, or d = 1) each rank owns everything, and
//   gradients are all-reduced if d > 1.
//   low_bits, m, v: for the owned slices, in the format of adamw_state.cuh
//   Bytes per parameter in bf16: parameter 2, gradient 4, and (2 + 4 + 4) / shards for low_bits, m and v
//   norm = L2 over all gradients, each counted once; gradients are scaled by min(1, clip / (norm + 1e-6))
//   communicates, in this order:
//     1. reduce-scatter (or all-reduce) of gradients over d, begun in backward
//     2. under sequence parallelism, all-reduce over t of gradients of tensors that are not split
//     3. all-reduce of the tied embedding's gradient over first and last stage
//     4. all-reduce of the sums of squares (for the norm) and of the losses
//     5. all-gather of parameters over d, by bucket; the next forward awaits each where it first reads it
#pragma once
#include "stage.h"

// ---- options ---------------------------------------------------------------------------------------------

// AdamW's hyper-parameters, and the learning rate's schedule; -1: derived from the run's length (resolve.h)
struct OptimizerOptions {
    double learning_rate = 0, min_learning_rate = -1;  // the peak; at the end of the decay
    long warmup_tokens = -1, decay_tokens = -1;
    double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1;
    double clip = 1;  // largest gradient norm; 0: no clipping
};

// Schedule by tokens (Megatron-LM): linear warm-up, cosine to `floor` at `decay_tokens`, then floor. `tokens`
// includes those of the step the rate is for, so the first step's rate is not 0.
inline double learning_rate(double tokens, double peak, double floor, double warmup_tokens,
                            double decay_tokens) {
    if (tokens <= warmup_tokens && warmup_tokens > 0) return peak * tokens / warmup_tokens;
    if (tokens > decay_tokens) return floor;
    double span = decay_tokens - warmup_tokens, progress = span > 0 ? (tokens - warmup_tokens) / span : 1;
    return floor + (peak - floor) * 0.5 * (1 + std::cos(M_PI * progress));
}

inline double scheduled_rate(const OptimizerOptions& o, double tokens) {
    return learning_rate(tokens, o.learning_rate, o.min_learning_rate, (double)o.warmup_tokens,
                         (double)o.decay_tokens);
}

// ---- what this rank owns ---------------------------------------------------------------------------------

// the part of a tensor in this rank's slices: n elements, from `at` in the flat buffers and from
// `state_offset` in low_bits, m and v
struct TensorPart {
    int parameter;
    long at, n, state_offset;
};

inline std::vector<TensorPart> owned_tensor_parts(const ParameterTable& table, int owner) {
    std::vector<TensorPart> out;
    std::vector<long> begin;  // start of each bucket's slice in low_bits, m and v
    long state = 0;
    for (auto& bucket : table.buckets) {
        begin.push_back(state);
        state += bucket.elements / table.layout.optimizer_shards;
    }

    for (size_t i = 0; i < table.list.size(); i++) {
        const Parameter& p = table.list[i];
        const Bucket& bucket = table.buckets[p.bucket];
        long slice = bucket.elements / table.layout.optimizer_shards, first = bucket.offset + owner * slice;
        long from = std::max(first, p.offset), to = std::min(first + slice, p.offset + p.size);
        if (from < to) out.push_back({(int)i, from, to - from, begin[p.bucket] + from - first});
    }
    return out;
}

// a rank's slice of each bucket
inline std::vector<Slice> owned_slices(const ParameterTable& table, int owner) {
    std::vector<Slice> out;
    long state = 0;
    for (auto& bucket : table.buckets) {
        long n = bucket.elements / table.layout.optimizer_shards;
        out.push_back({bucket.offset + owner * n, n, state, bucket.global_id, square_sum_cut(n)});
        state += n;
    }
    return out;
}

struct Optimizer {
    uint16_t* low_bits = nullptr;
    void *m = nullptr, *v = nullptr;  // bf16 with --moments bf16, else real
    size_t moment_bytes, low_bytes;   // per element
    Arena arena = {"optimizer"};
    long elements;  // in each of low_bits, m and v
    int owner;      // this rank's index among those that shard the state
    std::vector<TensorPart> tensor_parts;
    std::vector<Slice> slices;
    // on the device: flags per 128 elements; slices; sums: of squares, per bucket, then of losses;
    // sum_parts: partial sums of squares
    uint8_t* flags = nullptr;
    Slice* device_slices;
    double *sums, *sum_parts;
    HyperParameters *hyper, *next_hyper = nullptr;  // on the device; next_hyper: pinned host memory
    UpdateDecision* decision;
    StateCheck* state_check;
    unsigned long long written = 0;  // the last update's checksum of the state, as it was written
    bool has_written = false;        // since the state was last cleared or loaded
    // checksums for --check-every: parameters at the start of the step and before the update, gradients of
    // the first and of the second computation
    unsigned long long* bit_sums;
    static constexpr int bit_sum_count = 4;

    explicit Optimizer(Model& model)
        : moment_bytes(model.setup.bf16_moments ? sizeof(bf16) : model.setup.precision.real),
          low_bytes(model.setup.precision.master() && model.setup.master_weights ? sizeof(uint16_t) : 0),
          elements(model.table.elements / model.table.layout.optimizer_shards),
          owner(model.table.layout.optimizer_shards > 1 ? model.grid.data : 0),
          tensor_parts(owned_tensor_parts(model.table, owner)), slices(owned_slices(model.table, owner)) {}
    Optimizer(const Optimizer&) = delete;
    ~Optimizer() {
        device_free(arena.base);
        host_free(next_hyper);
    }

    void place(Arena& to, int bucket_ids) {
        if (low_bytes) low_bits = to.take<uint16_t>(elements);
        bool are_bf16 = moment_bytes == sizeof(bf16);
        for (void** moment : {&m, &v})
            *moment = are_bf16 ? (void*)to.take<bf16>(elements) : (void*)to.take_real(elements);
        flags = to.take<uint8_t>(elements / flag_span);
        device_slices = to.take<Slice>(slices.size());
        sums = to.take<double>(bucket_ids + 1);
        sum_parts = to.take<double>(slices.size() * square_sum_parts);
        hyper = to.take<HyperParameters>(1);
        decision = to.take<UpdateDecision>(1);
        state_check = to.take<StateCheck>(1);
        bit_sums = to.take<unsigned long long>(bit_sum_count);
    }

    // counts bytes without allocating
    void measure_memory(Model& model) {
        arena = Arena{"optimizer", nullptr, 0, model.setup.precision};
        place(arena, model.table.bucket_ids);
    }

    void allocate_memory(Model& model) {
        arena = allocate("optimizer", [&](Arena& to) { place(to, model.table.bucket_ids); });
        void* pinned = host_malloc(sizeof(HyperParameters), "the optimizer's hyper-parameters");
        next_hyper = (HyperParameters*)pinned;
        std::vector<uint8_t> all = flags_of(model);
        copy_to_device(flags, all.data(), all.size(), model.stream);
        copy_to_device(device_slices, slices.data(), slices.size() * sizeof(Slice), model.stream);
        synchronize(model.stream);  // before `all` is freed
        clear_state(model);
    }

    // each gradient is counted in the norm exactly once
    std::vector<uint8_t> flags_of(const Model& model) const {
        std::vector<uint8_t> all(elements / flag_span, 0);
        for (auto& part : tensor_parts) {
            const Parameter& p = model.table.list[part.parameter];
            bool counted_elsewhere =
                p.is_copy ||                                                        // by the first stage
                (!p.split && model.grid.tensor > 0) ||                              // by tensor rank 0
                (model.table.layout.optimizer_shards == 1 && model.grid.data > 0);  // by data rank 0
            for (long i = part.state_offset; i < part.state_offset + part.n; i += flag_span)
                all[i / flag_span] = (p.decay ? flag_decay : 0) | (counted_elsewhere ? 0 : flag_in_norm);
        }
        return all;
    }

    // Sets the hyper-parameters of the next step to be enqueued; steps count from 1. The device skips the
    // update if the norm before clipping or the sum of losses is not finite or exceeds its limit
    void set_hyper_parameters(const OptimizerOptions& options, double rate, long step,
                              double norm_limit = INFINITY, double loss_limit = INFINITY) {
        *next_hyper = {(real)rate, (real)options.beta1, (real)options.beta2, (real)options.epsilon,
                       (real)options.weight_decay, (real)(1 - std::pow(options.beta1, step)),
                       (real)(1 - std::pow(options.beta2, step)), (uint32_t)step, norm_limit, loss_limit};
    }

    void clear_state(Model& model) {
        has_written = false;
        if (low_bits) set_zero(low_bits, elements * sizeof(uint16_t), model.stream);
        for (void* moment : {m, v}) set_zero(moment, elements * moment_bytes, model.stream);
    }

    // "", or what is wrong in this rank's memory: an update must read master weights and moments exactly
    // as the previous one wrote them. Waits for the device, which has ended the step by then
    std::string check_state(Model& model, bool updated, long step) {
        if (!updated) return "";
        StateCheck now;
        copy_to_host(&now, state_check, sizeof now, model.stream);
        bool same = !has_written || now.read == written;
        written = now.written;
        has_written = true;
        if (same) return "";
        return text("step %ld read other master weights or moments than the update before it had written: a "
                    "bit has flipped in memory: go on from the last checkpoint, and have this host's memory "
                    "checked", step);
    }

    // call(AdamWState): its values start at `at` in the flat buffers, at `state_offset` in low_bits, m and v
    template <class Function>
    void with_state(const Model& model, long at, long state_offset, Function call) const {
        floatX* parameters = model.weights + at;
        auto with = [&](auto* m, auto* v) {
            using Moment = std::decay_t<decltype(*m)>;
            long i = state_offset;
            if (low_bits) call(AdamWState<Moment, true>{parameters, low_bits + i, m + i, v + i});
            else call(AdamWState<Moment, false>{parameters, nullptr, m + i, v + i});
        };
        if (model.setup.bf16_moments) with((bf16*)m, (bf16*)v);
        else with((real*)m, (real*)v);
    }
};

// ---- the update ------------------------------------------------------------------------------------------

// The last backward started the reductions over d: waits for them, then sums over t and over the copies of
// the tied embedding, in place. Afterwards this rank's slices hold complete gradients.
inline void complete_gradients(Model& model) {
    Section section({.pass = Pass::Update}, model.stream);
    const Grid& grid = model.grid;
    if (grid.d > 1) comm::wait_event(model.stream, comm::record_event(grid.dp_stream), "gradients");

    if (model.tp.sequence_parallel) {
        comm::group_begin();
        for (auto& p : model.table.list)  // partial sums -> whole sums; outside the owned slice unused
            if (!p.split)
                comm::all_reduce(grid.tp, model.gradients + p.offset, p.size, comm::Op::Sum, p.name.c_str(),
                                 model.stream);
        comm::group_end();
    }
    if (!grid.holds_tied()) return;

    int shards = model.table.layout.optimizer_shards;
    const Bucket& bucket = model.table.buckets[model.table.list[model.table.wte].bucket];
    long slice = bucket.elements / shards;
    real* mine = model.gradients + bucket.offset + (shards > 1 ? grid.data * slice : 0);
    // first stage: gradient from the lookup; last stage: from the logits -> both: the sum
    comm::all_reduce(grid.tied, mine, slice, comm::Op::Sum, "tied embedding", model.stream);
}

// The device computes the norm, the clipping scale and whether to update, from the sums of squares per bucket
// and the sum of losses, all-reduced over all ranks
inline void compute_decision(Model& model, Optimizer& optimizer, double max_norm) {
    int buckets = model.table.bucket_ids;
    clear_values("sums", optimizer.sums, buckets + 1, model.stream);
    if (model.grid.is_last_stage() && model.grid.tensor == 0)
        run(SumValues{.sum = optimizer.sums + buckets, .x = model.lm_head.losses,
                      .n = (long)model.setup.micro_batches * model.max_outputs()}, model.stream);
    run(SquareSums{.sums = optimizer.sums, .parts = optimizer.sum_parts, .x = model.gradients,
                   .flags = optimizer.flags, .slices = optimizer.device_slices,
                   .count = (int)optimizer.slices.size(), .sum_count = buckets, .all = model.table.elements,
                   .n = optimizer.elements}, model.stream);
    comm::all_reduce(model.grid.world, optimizer.sums, buckets + 1, comm::Op::Sum, "norm and loss",
                     model.stream);
    run(DecideUpdate{.decision = optimizer.decision, .sums = optimizer.sums, .count = buckets,
                     .max_norm = max_norm, .hyper = optimizer.hyper}, model.stream);
}

// uses the hyper-parameters set before; the gradients are overwritten by the next step's first micro-batch
inline void update_parameters(Model& model, Optimizer& optimizer, double max_norm) {
    Section section({.pass = Pass::Update}, model.stream);
    upload_values("hyper-parameters", optimizer.hyper, optimizer.next_hyper, 1, model.stream);
    compute_decision(model, optimizer, max_norm);
    clear_values("state check", optimizer.state_check, 1, model.stream);

    auto update = [&](const Slice& mine, long n) {
        optimizer.with_state(model, mine.at, mine.state_offset, [&](auto state) {
            run(AdamW<decltype(state)>{.state = state, .gradients = model.gradients + mine.at,
                                       .flags = optimizer.flags + mine.state_offset / flag_span,
                                       .hyper = optimizer.hyper, .decision = optimizer.decision,
                                       .check = optimizer.state_check, .n = n}, model.stream);
        });
    };
    // not sharded: the slices are whole buckets, one after another, and one launch covers them all
    if (model.table.layout.optimizer_shards == 1) return update(optimizer.slices[0], optimizer.elements);

    for (size_t bucket = 0; bucket < model.table.buckets.size(); bucket++) {
        update(optimizer.slices[bucket], optimizer.slices[bucket].n);
        const Bucket& b = model.table.buckets[bucket];
        long slice = b.elements / model.grid.d;
        floatX* w = model.weights + b.offset;

        Section gathering({.pass = Pass::Gather, .bucket = (int)bucket}, model.stream);
        comm::wait_stream(model.grid.dp_stream, model.stream);
        // this rank's slice -> all slices, overlapped with the next forward
        comm::all_gather(model.grid.dp, w, w + model.grid.data * slice, slice, "parameters",
                         model.grid.dp_stream);
        model.parameters_gathered[bucket] = comm::record_event(model.grid.dp_stream);
    }
}

// the last step's norm before clipping and whether it updated; waits for the device
inline UpdateDecision last_decision(Model& model, const Optimizer& optimizer) {
    UpdateDecision decision;
    copy_to_host(&decision, optimizer.decision, sizeof decision, model.stream);
    return decision;
}
