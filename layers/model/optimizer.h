// optimizer.h   AdamW over the flat buffers, shared by the data-parallel ranks (ZeRO stage 1)
//   Every bucket of the flat buffers is cut in d equal slices; data-parallel rank i owns slice i: it gets the
//   sum of the gradients there, holds master weights and moments for it alone, updates it, and all gather the
//   new parameters. With one owner (--zero 0, or d = 1) each rank owns everything and sums all gradients.
//   master, m, v (elements / d) real; in fp32 and fp64 builds the parameters are their own master weights
//   norm = L2 over all gradients, each counted once; they are scaled by min(1, clip / (norm + 1e-6))
//   talks, in this order:
//     1. reduce-scatter (or all-reduce) of gradients over d, begun in backward
//     2. under sequence parallelism, the sum over t of gradients that every tensor rank has whole
//     3. the sum of the tied embedding's gradient over first and last stage
//     4. the sum for the norm
//     5. all-gather of parameters over d, by bucket; the next forward waits for them where it reads them
#pragma once
#include "../base/rng.h"
#include "stage.h"

// the part of a parameter that this rank owns: n elements from `at` in the flat buffers, `state` in m and v
struct Owned {
    int parameter;
    long at, n, state;
};

inline std::vector<Owned> owned_pieces(const ParameterTable& table, int owner) {
    std::vector<Owned> out;
    long state = 0;
    std::vector<long> begin;
    for (auto& b : table.buckets) {
        begin.push_back(state);
        state += b.elements / table.layout.d;
    }
    for (size_t i = 0; i < table.list.size(); i++) {
        const Parameter& p = table.list[i];
        const Bucket& b = table.buckets[p.bucket];
        long slice = b.elements / table.layout.d, first = b.offset + owner * slice;
        long from = std::max(first, p.offset), to = std::min(first + slice, p.offset + p.size);
        if (from < to) out.push_back({(int)i, from, to - from, begin[p.bucket] + from - first});
    }
    return out;
}

// this rank's slice of each bucket
inline std::vector<Slice> owned_slices(const ParameterTable& table, int owner) {
    std::vector<Slice> out;
    long state = 0;
    for (auto& b : table.buckets) {
        long n = b.elements / table.layout.d;
        out.push_back({b.offset + owner * n, n, state, b.number, square_sum_cut(n)});
        state += n;
    }
    return out;
}

struct Optimizer {
    real *master = nullptr, *m = nullptr, *v = nullptr;
    Arena arena = {"optimizer"};
    long elements;  // of m and v
    int owner;      // this rank, among those that share the state
    std::vector<Owned> owned;
    std::vector<Slice> slices;
    // on the device: traits of each 128 elements, slices, sums of squares of all buckets and their parts
    uint8_t* traits = nullptr;
    Slice* device_slices;
    double *squares, *square_parts;
    AdamW *rule, *next_rule = nullptr;  // next_rule: on the host
    Clip* clip;

    explicit Optimizer(Model& model)
        : elements(model.table.elements / model.table.layout.d),
          owner(model.table.layout.d > 1 ? model.grid.data : 0), owned(owned_pieces(model.table, owner)),
          slices(owned_slices(model.table, owner)) {}
    Optimizer(const Optimizer&) = delete;
    ~Optimizer() {
        device_free(arena.base);
        host_free(next_rule);
    }

    void place(Arena& a, int numbers) {
        if (a.precision.master()) master = a.take_real(elements);
        m = a.take_real(elements);
        v = a.take_real(elements);
        traits = a.take<uint8_t>(elements / trait_span);
        device_slices = a.take<Slice>(slices.size());
        squares = a.take<double>(numbers);
        square_parts = a.take<double>(slices.size() * square_sum_parts);
        rule = a.take<AdamW>(1);
        clip = a.take<Clip>(1);
    }
    void memory(Model& model, bool take) {
        arena = Arena{"optimizer", nullptr, 0, model.setup.precision};
        if (!take) return place(arena, model.table.numbers);
        arena = allocate("optimizer", [&](Arena& a) { place(a, model.table.numbers); });
        next_rule = (AdamW*)host_malloc(sizeof(AdamW), "the optimizer's rule");
        std::vector<uint8_t> all = traits_of(model);
        copy_to_device(traits, all.data(), all.size(), model.stream);
        copy_to_device(device_slices, slices.data(), slices.size() * sizeof(Slice), model.stream);
        synchronize(model.stream);
        clear(model);
    }
    // each gradient counts once in the norm
    std::vector<uint8_t> traits_of(const Model& model) const {
        std::vector<uint8_t> all(elements / trait_span, 0);
        for (auto& piece : owned) {
            const Parameter& p = model.table.list[piece.parameter];
            bool elsewhere = p.copy ||                                // the first stage counts it
                (!p.split && model.grid.tensor > 0) ||                // tensor rank 0 does
                (model.table.layout.d == 1 && model.grid.data > 0);   // data rank 0 does
            for (long i = piece.state; i < piece.state + piece.n; i += trait_span)
                all[i / trait_span] = (p.decay ? decays : 0) | (elsewhere ? 0 : counts);
        }
        return all;
    }
    // the next step's rule, on the host; steps count from 1
    void prepare(const Options& options, double rate, long step) {
        *next_rule = {(real)rate, (real)options.beta1, (real)options.beta2, (real)options.epsilon,
                      (real)options.weight_decay, (real)(1 - std::pow(options.beta1, step)),
                      (real)(1 - std::pow(options.beta2, step))};
    }
    void clear(Model& model) {
        for (real* state : {master, m, v})
            if (state) set_zero(state, elements * sizeof(real), model.stream);
    }
};

// by tokens (Megatron-LM): linear warm-up over w, cosine to `floor` at d, then floor.
// `tokens` counts those of the step that the rate is for, so that the first step moves.
inline double learning_rate(double tokens, double peak, double floor, double w, double d) {
    if (tokens <= w && w > 0) return peak * tokens / w;
    if (tokens > d) return floor;
    double progress = d > w ? (tokens - w) / (d - w) : 1;
    return floor + (peak - floor) * 0.5 * (1 + std::cos(M_PI * progress));
}

// after the last backward: each rank's gradients -> the sums that this rank owns, in place
inline void finish_gradients(Model& model) {
    Section timed("gradient reduction", model.stream);
    const Grid& grid = model.grid;
    if (grid.d > 1) comm::join(model.stream, comm::mark(grid.reduction));
    if (model.ranks.sequence)
        for (auto& p : model.table.list)  // computed from this rank's rows alone
            if (!p.split)
                comm::all_reduce(grid.tp, model.gradients + p.offset, p.size, comm::Op::Sum, p.name.c_str(),
                                 model.stream);
    if (!grid.holds_tied()) return;
    const Bucket& b = model.table.buckets[model.table.list[model.table.wte].bucket];
    long slice = b.elements / model.table.layout.d;
    real* mine = model.gradients + b.offset + (model.table.layout.d > 1 ? grid.data * slice : 0);
    // from the lookup, from the logits -> the whole
    comm::all_reduce(grid.tied, mine, slice, comm::Op::Sum, "tied embedding", model.stream);
}

// how far gradients are scaled down: a sum of squares for each bucket, then over all of the whole model
inline void find_clip(Model& model, Optimizer& o, double largest) {
    Section timed("gradient norm", model.stream);
    int numbers = model.table.numbers;
    set_zero(o.squares, numbers * sizeof(double), model.stream);
    dev::square_sums(o.squares, o.square_parts, model.gradients, o.traits, o.device_slices,
                     (int)o.slices.size(), model.stream);
    comm::all_reduce(model.grid.world, o.squares, numbers, comm::Op::Sum, "square sums", model.stream);
    dev::clip_gradients(o.clip, o.squares, numbers, largest, model.stream);
}

// one update, by the rule that was prepared, given to the stream. The gradients are overwritten by the next
// step's first micro-batch.
inline void optimizer_step(Model& model, Optimizer& o, double clip) {
    finish_gradients(model);
    find_clip(model, o, clip);
    Section timed("optimizer", model.stream);
    copy_to_device(o.rule, o.next_rule, sizeof(AdamW), model.stream);
    bool together = model.table.layout.d == 1;  // the slices are whole buckets, one behind the other
    for (size_t bucket = 0; bucket < model.table.buckets.size(); bucket++) {
        const Slice& mine = o.slices[bucket];
        real* master = master_is_parameter ? (real*)model.weights + mine.at : o.master + mine.state;
        dev::adamw(model.weights + mine.at, master, o.m + mine.state, o.v + mine.state,
                   model.gradients + mine.at, o.traits + mine.state / trait_span, o.rule, o.clip,
                   together ? o.elements : mine.n, model.stream);
        if (together) return;
        const Bucket& b = model.table.buckets[bucket];
        long slice = b.elements / model.grid.d;
        floatX* w = model.weights + b.offset;
        comm::fork(model.grid.reduction, model.stream);
        // my slice -> all slices, under the next forward
        comm::all_gather(model.grid.dp, w, w + model.grid.data * slice, slice, "parameters",
                         model.grid.reduction);
        model.gathered[bucket] = comm::mark(model.grid.reduction);
    }
}

// before clipping, of the last step; waits for it
inline double gradient_norm(Model& model, const Optimizer& o) {
    Clip clip;
    copy_to_host(&clip, o.clip, sizeof clip, model.stream);
    return clip.norm;
}

// of a tensor's box (p.size values, padding included) what this rank owns -> master, m or v
inline void store_owned(Model& model, const Optimizer& o, real* state, const Parameter& p,
                        const std::vector<real>& values) {
    for (auto& piece : o.owned)
        if (model.table.list[piece.parameter].name == p.name)
            copy_to_device(state + piece.state, values.data() + (piece.at - p.offset), piece.n * sizeof(real),
                           model.stream);
    synchronize(model.stream);
}

// this rank's box of a tensor becomes parameters and, where owned, master weights
inline void store_parameter(Model& model, Optimizer* o, const Parameter& p, const std::vector<real>& values) {
    std::vector<floatX> rounded(values.begin(), values.end());
    copy_to_device(model.weights + p.offset, rounded.data(), rounded.size() * sizeof(floatX), model.stream);
    if (o && !master_is_parameter) store_owned(model, *o, o->master, p, values);
    synchronize(model.stream);
}

// values from (seed, tensor's name, element of the whole) alone; padded rows of the vocabulary stay 0
inline void initialise(Model& model, Optimizer* o, uint64_t seed) {
    for (auto& p : model.table.list) {
        std::vector<real> values(p.size, 0);
        if (p.deviation == 0) std::fill(values.begin(), values.end(), (real)p.constant);
        else
            p.each_run([&](long whole, long box, long n) {
                normals(values.data() + box, seed, purpose(p.name), (uint64_t)whole, n, p.deviation);
            });
        store_parameter(model, o, p, values);
    }
}
