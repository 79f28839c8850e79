// optimizer.h   AdamW over the flat buffers, the gradient norm, the learning rate
//   master, m, v (elements) real; in fp32 and fp64 builds the parameters are their own master weights
//   norm = L2 over all gradients; they are scaled by min(1, clip / (norm + 1e-6))
#pragma once
#include "../base/rng.h"
#include "model.h"

struct Optimizer {
    real *master = nullptr, *m = nullptr, *v = nullptr;
    Arena arena = {"optimizer"};
    long elements;

    explicit Optimizer(Model& model) : elements(model.table.elements) {}
    Optimizer(const Optimizer&) = delete;
    ~Optimizer() { device_free(arena.base); }

    void place(Arena& a) {
        if (!master_is_parameter) master = a.take<real>(elements);
        m = a.take<real>(elements), v = a.take<real>(elements);
    }
    void memory(Model& model, bool take) {
        arena = Arena{"optimizer"};
        if (!take) return place(arena);
        arena = allocate("optimizer", [&](Arena& a) { place(a); });
        if (master_is_parameter) master = (real*)model.weights;
        else set_zero(master, elements * sizeof(real), model.stream);
        set_zero(m, elements * sizeof(real), model.stream);
        set_zero(v, elements * sizeof(real), model.stream);
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

// L2 norm over all gradients: a sum for each tensor, then over the table in its order
inline double gradient_norm(Model& model) {
    Section timed("gradient norm", model.stream);
    size_t tensors = model.table.list.size();
    for (size_t i = 0; i < tensors; i++) {
        const Parameter& p = model.table.list[i];
        dev::square_sum(model.scratch.squares + i, model.gradient(p), model.scratch.square_parts, p.size,
                        model.stream);
    }
    std::vector<double> squares(tensors);
    copy_to_host(squares.data(), model.scratch.squares, tensors * sizeof(double), model.stream);
    double sum = 0;
    for (double s : squares) sum += s;
    return std::sqrt(sum);
}

// one update; step counts from 1; gradients return to 0. Returns the norm before clipping.
inline double optimizer_step(Model& model, Optimizer& o, const Options& options, double rate, long step) {
    double norm = gradient_norm(model);
    double clip = options.clip > 0 ? std::min(1.0, options.clip / (norm + 1e-6)) : 1;
    Section timed("optimizer", model.stream);
    AdamW rule = {(real)rate, (real)options.beta1, (real)options.beta2, (real)options.epsilon, 0,
                  (real)(1 - std::pow(options.beta1, step)), (real)(1 - std::pow(options.beta2, step)),
                      (real)clip};
    for (auto& p : model.table.list) {
        rule.decay = p.decay ? (real)options.weight_decay : 0;
        dev::adamw(model.weights + p.offset, o.master + p.offset, o.m + p.offset, o.v + p.offset,
                   model.gradient(p), rule, p.size, model.stream);
    }
    set_zero(model.gradients, model.table.elements * sizeof(real), model.stream);
    return norm;
}

// a tensor's values (p.size of them, padding included) become the master weights and, rounded, the parameters
inline void store_parameter(Model& model, Optimizer* o, const Parameter& p, const std::vector<real>& values) {
    std::vector<floatX> rounded(values.begin(), values.end());
    copy_to_device(model.weights + p.offset, rounded.data(), rounded.size() * sizeof(floatX), model.stream);
    if (o && !master_is_parameter)
        copy_to_device(o->master + p.offset, values.data(), values.size() * sizeof(real), model.stream);
    synchronize(model.stream);
}

// values from (seed, tensor's name, element) alone; padded rows of the vocabulary stay 0
inline void initialise(Model& model, Optimizer* o, uint64_t seed) {
    for (auto& p : model.table.list) {
        std::vector<real> values(p.size, 0);
        if (p.deviation > 0) normals(values.data(), seed, purpose(p.name), 0, p.stored(), p.deviation);
        else std::fill(values.begin(), values.end(), (real)p.constant);
        store_parameter(model, o, p, values);
    }
}
