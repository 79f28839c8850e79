// optimizer.h   AdamW over the flat buffers, sharded over the data-parallel ranks (ZeRO stage 1)
//   Every bucket of the flat buffers is split into d equal slices. Data-parallel rank i owns slice i: it
//   receives the slice's summed gradients, is the only one to hold its master weights and moments, and
//   updates it; then the new parameters are all-gathered. With one shard (--zero 0, or d = 1) each rank owns
//   everything, and gradients are all-reduced if d > 1. Slices follow from d alone: a resume with another d
//   computes new ones, and reads their values from whatever pieces hold them (run/resume.h).
//   low_bits, m, v: for the owned slices, in the format of adamw.cuh
//   Bytes per parameter in bf16: parameter 2, gradient 4, and (2 + 4 + 4) / shards for low_bits, m and v
//     (on one stage, with several micro-batches, wte's take 4 more: the logits' part of its gradient)
//   norm = L2 over all gradients, each counted once: on one rank all, over several as flags_of() in
//     run/allocate.h says; gradients are scaled by min(1, clip / (norm + 1e-6))
//   communicates, in this order:
//     1. reduce-scatter (or all-reduce) of gradients over d, begun in backward
//     2. for gradients of tensors that are not split: under sequence parallelism, all-reduce over t; where
//        copies may differ in their last bits, an all-reduce (max) that makes them equal
//     3. all-reduce of the tied embedding's gradient over first and last stage
//     4. all-reduce of the sums of squares (for the norm) and of the losses
//     5. all-gather of parameters over d, by bucket; the next forward (or backward, for the LM head's, if
//        it computes the loss) awaits each where it first reads it
#pragma once
#include "stage.h"

// ---- options ---------------------------------------------------------------------------------------------

// AdamW's hyper-parameters, and the learning rate's schedule: the base of Options (run/run.h). -1, and a peak
// of 0: set by the run's length and the model's preset (run/resolve.h)
struct OptimizerOptions {
    double learning_rate = 0, min_learning_rate = -1;  // the peak; at the end of the decay
    long warmup_tokens = -1, decay_tokens = -1;
    double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1;
    double clip = 1;  // largest gradient norm; 0: no clipping
};

// Schedule by tokens (Megatron-LM): linear warm-up, cosine to min_learning_rate at decay_tokens, then flat.
// `tokens` includes those of the step the rate is for, so the first step's rate is not 0.
inline double scheduled_rate(const OptimizerOptions& o, double tokens) {
    double peak = o.learning_rate, floor = o.min_learning_rate;
    double warmup = (double)o.warmup_tokens, decay = (double)o.decay_tokens;
    if (tokens <= warmup && warmup > 0) return peak * tokens / warmup;
    if (tokens > decay) return floor;
    double progress = decay > warmup ? (tokens - warmup) / (decay - warmup) : 1;
    return floor + (peak - floor) * 0.5 * (1 + std::cos(M_PI * progress));
}

// ---- what this rank owns ---------------------------------------------------------------------------------

// a rank's slice of each bucket
inline std::vector<Slice> owned_slices(const ParameterTable& table, int owner, int shards) {
    std::vector<Slice> out;
    for (auto& bucket : table.buckets) out.push_back(slice_of(bucket, owner, shards));
    return out;
}

struct Optimizer {
    uint16_t* low_bits = nullptr;
    void *m = nullptr, *v = nullptr;  // bf16 with --moments bf16, else real
    size_t moment_bytes, low_bytes;   // per element
    Allocation memory = {};           // see run/allocate.h
    long elements;  // in each of low_bits, m and v
    int owner;      // this rank's index among those that shard the state
    std::vector<Slice> slices;
    // on the device: flags per 128 elements; slices; sums: of squares per bucket; last, the sum of losses;
    // sum_parts: partial sums of squares
    uint8_t* flags = nullptr;
    Slice* device_slices;
    double *sums, *sum_parts;
    // on the device, where a CUDA graph reads them anew (kernel arguments stay those of its capture)
    HyperParameters* hyper;
    UpdateDecision* decision;
    StateCheck* state_check;
    HyperParameters* next_hyper = nullptr;  // pinned host memory
    unsigned long long written = 0;  // the last update's checksum of the state, as it was written
    bool has_written = false;        // since the state was last cleared or loaded
    // checksums for --check-every: parameters at the start of the step and before the update, gradients of
    // the first and of the second computation; then four a tensor (run/replicas.h)
    unsigned long long* bit_sums;
    static constexpr int bit_sum_count = 4;

    explicit Optimizer(Model& model)
        : moment_bytes(model.setup.bf16_moments ? sizeof(bf16) : model.setup.precision.real),
          low_bytes(model.setup.precision.master() && model.setup.master_weights ? sizeof(uint16_t) : 0),
          elements(model.table.elements / model.setup.optimizer_shards),
          owner(model.setup.optimizer_shards > 1 ? model.grid.data : 0),
          slices(owned_slices(model.table, owner, model.setup.optimizer_shards)) {}
    Optimizer(const Optimizer&) = delete;
    ~Optimizer() {
        device_free(memory.base);
        host_free(next_hyper);
    }

    // Sets the hyper-parameters of the next step to be enqueued: its update is number `update`, from 1. The
    // previous step has ended by then, as the host has waited for its decision. The device skips the update
    // if the norm before clipping or the sum of losses is not finite or exceeds its limit
    void set_hyper_parameters(const OptimizerOptions& options, double rate, long update,
                              double norm_limit = INFINITY, double loss_limit = INFINITY) {
        *next_hyper = {(real)rate, (real)options.beta1, (real)options.beta2, (real)options.epsilon,
                       (real)options.weight_decay, (real)(1 - std::pow(options.beta1, update)),
                       (real)(1 - std::pow(options.beta2, update)), (uint32_t)update, norm_limit, loss_limit,
                       options.clip};
    }

    // call(AdamWState<real, true>, say): its values start at `at` in the flat buffers, at `state_offset` in
    // low_bits, m and v
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

// the gradients of tensors that every tensor-parallel rank holds: sums them, or makes its copies equal
inline void reduce_replicated(Model& model, const comm::Group& group, comm::ReduceOp op) {
    comm::group_begin();
    for (auto& p : model.table.list)
        if (!p.is_split())
            comm::all_reduce(group, model.gradients + p.offset, p.size, op, p.name.c_str(), model.stream);
    comm::group_end();
}

// The last backward started the reductions over d: waits for them, then sums over t and over the copies of
// the tied embedding, in place. Afterwards this rank's slices (Optimizer.slices) hold complete gradients;
// the rest of the buffer is not read. With d = t = p = 1 there is nothing to sum.
inline void complete_gradients(Model& model) {
    Section section({.pass = Pass::Update}, model.stream);
    const Grid& grid = model.grid;
    if (grid.d > 1) comm::wait_event(model.stream, comm::record_event(grid.dp_stream), "gradients");

    // tensors that are not split: partial sums -> whole sums (with a sharded optimizer, only in the owned
    // slice, which has been summed over d: the rest is not read)
    bool partial = grid.sequence_parallel;
    int shards = model.setup.optimizer_shards;
    if (partial) reduce_replicated(model, grid.tp, comm::ReduceOp::Sum);
    // An all-reduce gives all ranks of its group the same bits (NCCL's, Open MPI's and MPICH's do, although
    // MPI does not promise it; --check-every would notice). Copies that different
    // groups have summed, over d or t, may differ: NCCL's order may differ from group to group, and with it a
    // sum of more than two terms. So all take the largest of the copies
    if (!partial && grid.t > 1 && grid.d > 2) reduce_replicated(model, grid.tp, comm::ReduceOp::Max);
    if (partial && grid.t > 2 && grid.d > 1 && shards == 1)
        reduce_replicated(model, grid.dp, comm::ReduceOp::Max);
    if (!grid.holds_tied()) return;

    const Bucket& bucket = model.table.buckets[model.table.list[model.table.wte].bucket];
    Slice mine = slice_of(bucket, shards > 1 ? grid.data : 0, shards);
    // first stage: gradient from the lookup; last stage: from the logits -> both: the sum
    comm::all_reduce(grid.tied, model.gradients + mine.at, mine.n, comm::ReduceOp::Sum, "tied embedding",
                     model.stream);
}

// The device computes the norm, the clipping scale and whether to update, from the sums of squares per bucket
// and the sum of losses, all-reduced over all ranks
inline void compute_decision(Model& model, Optimizer& optimizer) {
    int buckets = model.table.bucket_ids;
    // other stages' buckets stay 0 here
    compute(ClearValues{"sums", optimizer.sums, buckets + 1}, model.stream);
    if (model.grid.is_last_stage() && model.grid.tensor == 0)
        compute(SumValues{.sum = optimizer.sums + buckets, .x = model.lm_head.losses,
                          .n = (long)model.setup.micro_batches * model.max_logit_rows()}, model.stream);
    compute(SquareSums{.sums = optimizer.sums, .parts = optimizer.sum_parts, .x = model.gradients,
                       .flags = optimizer.flags, .slices = optimizer.device_slices,
                       .count = (int)optimizer.slices.size(), .sum_count = buckets,
                       .all = model.table.elements, .n = optimizer.elements}, model.stream);
    comm::all_reduce(model.grid.world, optimizer.sums, buckets + 1, comm::ReduceOp::Sum, "norm and loss",
                     model.stream);
    compute(DecideUpdate{.decision = optimizer.decision, .sums = optimizer.sums, .count = buckets,
                         .hyper = optimizer.hyper}, model.stream);
}

inline void update_parameters(Model& model, Optimizer& optimizer) {
    Section section({.pass = Pass::Update}, model.stream);
    // what set_hyper_parameters() has left in pinned memory for this step
    compute(UploadValues{"hyper-parameters", optimizer.hyper, optimizer.next_hyper, 1}, model.stream);
    compute_decision(model, optimizer);
    compute(ClearValues{"state check", optimizer.state_check, 1}, model.stream);

    auto update = [&](const Slice& mine, long n) {
        optimizer.with_state(model, mine.at, mine.state_offset, [&](auto state) {
            compute(AdamW<decltype(state)>{.state = state, .gradients = model.gradients + mine.at,
                                           .flags = optimizer.flags + mine.state_offset / flag_span,
                                           .hyper = optimizer.hyper, .decision = optimizer.decision,
                                           .check = optimizer.state_check, .n = n}, model.stream);
        });
    };
    // not sharded: the slices are whole buckets, one after another, and one launch covers them all
    if (model.setup.optimizer_shards == 1) return update(optimizer.slices[0], optimizer.elements);

    for (size_t bucket = 0; bucket < model.table.buckets.size(); bucket++) {
        const Slice& mine = optimizer.slices[bucket];
        update(mine, mine.n);

        Section gathering({.pass = Pass::Gather, .bucket = (int)bucket}, model.stream);
        comm::wait_stream(model.grid.dp_stream, model.stream);
        // this rank's slice -> all slices, overlapped with the next forward
        comm::all_gather(model.grid.dp, model.weights + model.table.buckets[bucket].offset,
                         model.weights + mine.at, mine.n, "parameters", model.grid.dp_stream);
        model.parameters_gathered[bucket] = comm::record_event(model.grid.dp_stream);
    }
}
