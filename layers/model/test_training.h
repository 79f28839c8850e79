// test_training.h   the whole model against PyTorch, and with itself; generation
#pragma once
#include "../../data/json.h"
#include "../base/testing.h"
#include "../inference/generate.h"
#include "../run/values.h"
#include "optimizer.h"

struct Trial {  // a small model with its optimizer
    Options options;
    Model model;
    Optimizer optimizer;
    long step = 0;
    explicit Trial(const Options& o, const ModelShape& shape, int B, bool flash = false)
        : options(o),
          model(shape, Grid{},
                {.B = B, .packs = true, .notes_greedy = true,
                 .recompute = o.recompute == "full" ? Recompute::Full : Recompute::None, .flash = flash,
                 .fp8 = o.fp8 == "yes",
                 .fp8_lm_head = o.fp8_lm_head == "yes",
                 .bf16_moments = o.moments == "bf16",
                 .master_weights = o.master_weights == "yes",
                 .micro_batches = 8}),
          optimizer(model) {
        allocate_memory(model);
        allocate_memory(optimizer, model);
        initialise_parameters(model, &optimizer, 7);
    }

    MicroBatch micro_batch(int index, int N, bool is_last = false, double dloss = 0) {
        return {.index = index, .is_last_micro_batch = is_last, .chunk = 0, .N = N,
                .in_flight = model.in_flight[0], .input = model.inputs[0],
                .dx_buffer = &model.dx_buffers[0], .host_tokens = model.host_tokens[0],
                .dloss = (real)dloss};
    }

    // logits and losses stay in model.lm_head
    void forward_tokens(const std::vector<int>& samples, int B) {
        clear_losses(model);
        put_tokens_on_host(model, model.host_tokens[0], samples, B, 0);
        MicroBatch mb = micro_batch(0, B * model.shape.T);
        copy_tokens(model, mb);
        forward(model, mb);
    }

    // the mean loss over samples (batch, T + 1), micro-batch by micro-batch, and one update
    double train(const std::vector<int>& samples, double rate, bool update = true) {
        int row = model.shape.T + 1, B = model.setup.B, rows = (int)samples.size() / row;
        double tokens = (double)rows * model.shape.T;
        clear_losses(model);
        int micro_batches = rows / B;
        check(rows % B == 0 && micro_batches <= model.setup.micro_batches,
              "micro-batches that a trial can hold");
        for (int i = 0; i < micro_batches; i++) {
            auto first = samples.begin() + i * B * row;
            put_tokens_on_host(model, model.host_tokens[0], {first, first + B * row}, B, i);
            MicroBatch mb = micro_batch(i, B * model.shape.T, i + 1 == micro_batches, 1 / tokens);
            copy_tokens(model, mb);
            forward(model, mb);
            backward(model, mb);
        }
        optimizer.set_hyper_parameters(options, rate, step + update);
        if (update) {
            complete_gradients(model);
            update_parameters(model, optimizer);
            step++;
        }
        double sum = 0;
        std::vector<real> losses((size_t)micro_batches * model.max_rows());
        copy_to_host(losses.data(), model.lm_head.losses, losses.size() * sizeof(real), model.stream);
        for (real loss : losses) sum += loss;
        return sum / tokens;
    }

    std::vector<real> weights(const Parameter& p) {
        std::vector<floatX> out(p.stored());
        copy_to_host(out.data(), model.weights + p.offset, out.size() * sizeof(floatX), nullptr);
        std::vector<real> values(out.begin(), out.end());
        return values;
    }
};

std::vector<int> some_samples(int rows, int T, int V) {
    std::vector<int> w((size_t)rows * (T + 1));
    for (size_t i = 0; i < w.size(); i++) w[i] = (int)(hash_of(i) % V);
    return w;
}

void test_pytorch() {
    std::string name = "scripts/reference_pytorch.json";
    MappedFile file(name);
    Json j = Json::parse(file.view(), name);
    auto number = [&](const char* key) { return j.at(key, name).number(name); };
    auto list = [&](const Json& array) {
        std::vector<double> out;
        for (auto& item : array.items) out.push_back(item.number(name));
        return out;
    };

    Options o;
    o.weight_decay = number("weight_decay");
    o.clip = number("clip");
    int C = (int)number("hidden"), T = (int)number("sequence"), V = (int)number("vocabulary"), Vp = 16,
        B = (int)number("batch");
    Trial trial(o, {(int)number("layers"), C, (int)number("heads"), T, V, Vp}, B);

    Model& m = trial.model;
    for (size_t t = 0; t < m.table.list.size(); t++) {
        const Parameter& p = m.table.list[t];
        std::vector<real> values(p.size, 0);
        for (long i = 0; i < p.stored(); i++)
            values[i] = (real)(p.constant + 0.3 * std::sin(1 + (double)t + 0.7 * (double)i));
        store_parameter(m, &trial.optimizer, (int)t, values);
    }

    // fp64: PyTorch's own rounding; fp32: sums of some 100 terms through 2 layers; bf16: 2^-8 a rounding,
    // some 20 in a row
    double tolerance = sizeof(floatX) == 8 ? 1e-10 : sizeof(floatX) == 4 ? 2e-4 : 0.3;
    std::vector<double> samples = list(j.at("windows", name));
    std::vector<int> w(samples.begin(), samples.end());
    trial.forward_tokens(w, B);
    std::vector<floatX> logits((size_t)B * T * Vp), unpadded;
    copy_to_host(logits.data(), m.lm_head.logits, logits.size() * sizeof(floatX), nullptr);
    for (int n = 0; n < B * T; n++) unpadded.insert(unpadded.end(), &logits[n * Vp], &logits[n * Vp] + V);
    close("logits", unpadded, list(j.at("logits", name)), sizeof(floatX) == 2 ? 0.05 : tolerance);

    std::vector<double> losses, wanted = list(j.at("losses", name));
    for (size_t step = 0; step < wanted.size(); step++) {
        losses.push_back(trial.train(w, number("learning_rate"), step > 0));
        if (step > 0) continue;
        for (auto& p : m.table.list) {
            std::vector<real> g(p.stored());
            copy_to_host(g.data(), m.gradients + p.offset, g.size() * sizeof(real), nullptr);
            std::vector<double> want = list(j.at("gradients", name).at(p.name, name));
            close("gradient of " + p.name, g, want, tolerance);
        }
        trial.optimizer.set_hyper_parameters(o, number("learning_rate"), ++trial.step);
        complete_gradients(m);
        update_parameters(m, trial.optimizer);
        synchronize(m.stream);  // the next step's hyper-parameters lie where these are read
    }

    close("ten training losses", losses, wanted, sizeof(floatX) == 2 ? 0.02 : tolerance);
}

std::vector<real> gradient_of(const Model& model, const Parameter& p) {
    std::vector<real> g(p.size);
    copy_to_host(g.data(), model.gradients + p.offset, p.size * sizeof(real), nullptr);
    return g;
}

// --fp8: each gradient is bf16's up to the rounding of its products' operands, by up to 2^-4 and 2^-3
void training_gradients_in_fp8(bool lm_head) {
    Options in_bf16, in_fp8;
    in_fp8.fp8 = "yes";
    if (lm_head) in_fp8.fp8_lm_head = "yes";
    ModelShape shape = {2, 64, 2, 32, 61, 64};
    Trial wanted(in_bf16, shape, 2), got(in_fp8, shape, 2);
    for (Trial* each : {&wanted, &got}) {
        for (size_t t = 0; t < each->model.table.list.size(); t++) {  // biases that are not 0 must count
            const Parameter& p = each->model.table.list[t];
            if (p.init_std == 0 && p.constant == 0)
                store_parameter(each->model, &each->optimizer, (int)t, random_values<real>(p.size, t, 0.5));
        }
        each->train(some_samples(4, 32, 61), 0, false);  // two micro-batches
    }

    for (auto& p : wanted.model.table.list) {
        double ratio = rms_off(gradient_of(got.model, p), gradient_of(wanted.model, p));
        check(ratio < 0.3 && ratio > 1e-4, text("%s: fp8's gradient is off by %g", p.name.c_str(), ratio));
    }
}

// x (n), rounded to T8's format as the largest |x| scales it, in real numbers
template <class T8>
std::vector<double> in_8_bits(const std::vector<double>& x, double largest) {
    Fp8Scale scale = fp8_scale((float)largest, T8::largest);
    std::vector<double> out;
    for (double v : x) out.push_back((float)T8::of((float)v * scale.scale) * (double)scale.inverse);
    return out;
}

// --fp8-lm-head: rounded are wte, the final layer norm's rows and the logits' gradient, and nothing else
void training_lm_head_in_fp8() {
    constexpr int N = 64, C = 64, V = 61, T = 32;
    Options o;
    o.fp8 = o.fp8_lm_head = "yes";
    Trial trial(o, {1, C, 1, T, V, 64}, N / T);
    std::vector<int> samples = some_samples(N / T, T, V - 1);
    for (int end = T; end < (int)samples.size(); end += T + 1) samples[end] = V - 1;  // a target, never read
    double loss = trial.train(samples, 0, false);
    auto largest = [](const std::vector<double>& x) {
        double most = 0;
        for (double v : x) most = std::max(most, std::abs(v));
        return most;
    };
    auto target = [&](int n) { return samples[n / T * (T + 1) + n % T + 1]; };

    // the mean loss, and the logits' gradient
    std::vector<double> dlogits(N * V);
    auto loss_of = [&](const std::vector<double>& rows, const std::vector<double>& wte) {
        double mean = 0;
        for (int n = 0; n < N; n++) {
            double logits[V], sum = 0;
            for (int v = 0; v < V; v++) {
                double dot = 0;
                for (int c = 0; c < C; c++) dot += rows[n * C + c] * wte[v * C + c];
                logits[v] = (double)floatX((real)dot);
                sum += std::exp(logits[v]);
            }
            mean += (std::log(sum) - logits[target(n)]) / N;
            for (int v = 0; v < V; v++)
                dlogits[n * V + v] = (double)floatX(real((std::exp(logits[v]) / sum - (v == target(n))) / N));
        }
        return mean;
    };
    const Parameter& p = trial.model.table.list[trial.model.table.wte];
    std::vector<floatX> normalised(N * C);
    copy_to_host(normalised.data(), trial.model.lm_head.ln, N * C * sizeof(floatX), nullptr);
    std::vector<real> stored = trial.weights(p);
    std::vector<double> rows(normalised.begin(), normalised.end()), wte(stored.begin(), stored.end());
    double exact = loss_of(rows, wte);
    rows = in_8_bits<e4m3>(rows, largest(rows));
    double rounded = loss_of(rows, in_8_bits<e4m3>(wte, largest(wte)));
    check(std::abs(loss - rounded) < std::abs(loss - exact) / 20,
          text("with the LM head in fp8 the loss is %.7f, wanted %.7f (in bf16 %.7f)", loss, rounded, exact));

    // wte's gradient, of tokens that are never read: of those that are it has the lookups' part too
    std::vector<double> d = in_8_bits<e5m2>(dlogits, 1.0 / N);
    std::vector<real> all = gradient_of(trial.model, p), got, want;
    for (int v = 0; v < V; v++) {
        bool is_read = false;
        for (int n = 0; n < N; n++) is_read |= samples[n / T * (T + 1) + n % T] == v;
        for (int c = 0; c < C && !is_read; c++) {
            double sum = 0;
            for (int n = 0; n < N; n++) sum += d[n * V + v] * rows[n * C + c];
            got.push_back(all[v * C + c]);
            want.push_back((real)sum);
        }
    }
    double off = rms_off(got, want);
    check(got.size() > 5 * C && off < 0.01, text("the logits' part of wte's gradient is off by %g", off));
}

// --recompute full: the same bits
void training_recomputed() {
    Options o;
    ModelShape shape = {3, 32, 4, 24, 61, 64};
    Trial keeping(o, shape, 2);
    o.recompute = "full";
    Trial recomputing(o, shape, 2);
    for (int step = 0; step < 3; step++) {
        std::vector<int> samples = some_samples(4, shape.T, shape.V);  // two micro-batches
        check(keeping.train(samples, 3e-3) == recomputing.train(samples, 3e-3), "recomputed: the same loss");
    }
    for (auto& p : keeping.model.table.list)
        check(keeping.weights(p) == recomputing.weights(p), p.name + ", recomputed");
}

// --fp8: after each update GEMMs read the new weights, rounded anew; with full recomputation, the same bits
void training_in_fp8() {
    if (sizeof(floatX) != 2) return;
    training_gradients_in_fp8(false);
    training_gradients_in_fp8(true);
    training_lm_head_in_fp8();
    Options o;
    o.fp8 = o.fp8_lm_head = "yes";
    int V = 61;
    ModelShape shape = {2, 128, 1, 32, V, 64};  // wte is the smallest matrix
    Trial trial(o, shape, 2);
    Model& m = trial.model;
    o.recompute = "full";
    Trial recomputing(o, shape, 2);
    std::vector<const Parameter*> matrices = {&m.table.list[m.table.wte]};
    for (int layer = 0; layer < 2; layer++)
        for (BlockTensor matrix : {QKV_W, OUT_W, UP_W, DOWN_W})
            matrices.push_back(&m.table.block(layer, matrix));
    std::vector<uint8_t> before;

    for (int step = 0; step < 2; step++) {
        double loss = trial.train(some_samples(4, 32, V), 3e-3);  // two micro-batches
        check(recomputing.train(some_samples(4, 32, V), 3e-3) == loss, "fp8, recomputed: the same loss");
        for (auto& p : m.table.list)
            check(trial.weights(p) == recomputing.weights(p), p.name + " after an update in fp8, recomputed");
        std::vector<int> few = some_samples(2, 32, V);
        trial.forward_tokens(few, 2);  // as for a validation loss
        std::vector<real> losses(few.size() - 2);
        copy_to_host(losses.data(), m.lm_head.losses, losses.size() * sizeof(real), m.stream);
        double mean = std::accumulate(losses.begin(), losses.end(), 0.0) / (double)losses.size();
        check(trial.train(few, 3e-3, false) == mean,  // one micro-batch, without an update
              "fp8: the loss alone is that of the new weights");
        for (const Parameter* p : matrices) {
            const floatX* w = m.weights + p->offset;
            int C = (int)p->shape.back(), OC = (int)p->size / C;
            std::vector<floatX> values(p->size);
            std::vector<uint8_t> copy(p->size), transposed(p->size), want(p->size), want_t(p->size);
            copy_to_host(values.data(), w, p->size * sizeof(floatX), m.stream);
            copy_to_host(copy.data(), m.scratch.fp8->weights.copy(w), p->size, m.stream);
            copy_to_host(transposed.data(), m.scratch.fp8->weights.transpose(w), p->size, m.stream);
            Fp8Scale scale, want_scale;
            copy_to_host(&scale, m.scratch.fp8->weights.scale(w), sizeof scale, m.stream);
            ref::fp8_find_scale({&want_scale, nullptr, e4m3::largest}, values.data(), p->size, nullptr);
            ref::fp8_round((e4m3*)want.data(), (e4m3*)want_t.data(), &want_scale, values.data(), OC, C,
                           nullptr);
            check(copy == want && transposed == want_t && scale.scale == want_scale.scale,
                  text("%s in 8 bits after %d updates", p->name.c_str(), step + 1));
            if (p == matrices[0]) {
                check(copy != before, "the weights have moved");
                before = copy;
            }
        }
    }
}

// every pointer of a block's activations is placed, with one way of attention or the other, or in fp8
void training_places_activations() {
    ModelShape shape = {2, 48, 3, 16, 61, 64};
    std::vector<const void*> placed[2];
    for (bool flash : {false, true}) {
        Arena arena = {"a test"};
        BlockActivations a;
        place(arena, a, Model(shape, {}, {.B = 2, .flash = flash, .fp8 = flash}));
        placed[flash].resize(offsetof(BlockActivations, shares_outputs) / sizeof(void*));
        memcpy(placed[flash].data(), (void*)&a, placed[flash].size() * sizeof(void*));
        for (auto& inputs : {a.qkv_fp8, a.out_fp8, a.up_fp8, a.down_fp8}) {
            bool is_placed = inputs && inputs->x.transposed && inputs->x.scale;
            check(is_placed == flash && (bool)inputs == flash, "an input in 8 bits is placed with --fp8");
        }
        check(!flash || (a.up_fp8->y.transposed && a.up_fp8->y.scale), "and so is GELU's output");
    }

    check(placed[0].size() >= 14, "pointers of a block's activations");
    for (size_t i = 1; i < placed[0].size(); i++)  // the first is x
        check(placed[0][i] || placed[1][i], text("pointer %zu of a block's activations is not placed", i));
}

// one batch until it is known by heart, and what is then generated from it
void test_overfit() {
    Options o;
    o.weight_decay = 0;
    int T = 19, V = 61;
    ModelShape shape = {2, 48, 3, T, V, 64};
    std::vector<int> samples = some_samples(4, T, V);
    Trial a(o, shape, 4), b(o, shape, 1), again(o, shape, 4);
    double first = a.train(samples, 3e-3), loss = first;
    close("the first loss is about ln V", std::vector<double>{first},
          std::vector<double>{std::log((double)V)}, 0.05);
    close("micro-batches of 1 and of 4", std::vector<double>{b.train(samples, 3e-3)},
          std::vector<double>{first}, rounding);
    again.train(samples, 3e-3);

    // AdamW's first update is the gradient's sign: compare where it is not near 0
    for (auto& p : a.model.table.list)
        if (p.decays() && sizeof(floatX) == 8)
            close("weights after micro-batches of 1 and of 4: " + p.name, b.weights(p), a.weights(p),
                  1e-6);

    for (int i = 1; i < 60; i++) {
        loss = a.train(samples, 3e-3);
        if (i < 10) again.train(samples, 3e-3);
        if (i != 9) continue;
        bool same = true;
        for (auto& p : a.model.table.list) same = same && a.weights(p) == again.weights(p);
        check(same, "two runs are equal to the last bit");
    }

    check(loss < 0.1, text("overfits one batch: loss %.3f after 60 steps, expected below 0.1", loss));
    // generation with the key-value cache gives the logits of a whole pass
    std::vector<int> tokens(samples.begin(), samples.begin() + T);
    auto logits_after = [&](int done) {  // of all tokens, of which those before `done` are in the cache
        PackedBatch pack;
        pack.add_segment(&tokens[done], T - done, done, done, 0);
        for (int i = done; i < T; i++) pack.cache_slots.push_back(i);
        pack.rows_with_logits = {T - done - 1};
        pack.targets = {0};
        return packed_logits(a.model, pack)[0];
    };

    std::vector<real> whole = logits_after(0);
    close("logits with the cache", logits_after(T - 1), whole, 4 * rounding);
    close("logits with half of the cache", logits_after(T / 2), whole, 4 * rounding);
    std::vector<int> out;
    generate(a.model, {{{tokens[0], tokens[1], tokens[2]}, 8, {.temperature = 0}}}, 1,
             [&](size_t, int t) {
                 out.push_back(t);
                 return true;
             });
    check(std::equal(out.begin(), out.end(), samples.begin() + 3), "the overfitted batch is recited");
    out.clear();
    generate(a.model, {{{tokens[0]}, 3 * T, {.seed = 1}}}, 1,
             [&](size_t, int t) {
                 out.push_back(t);
                 return t < V;
             });
    check((int)out.size() == 3 * T, "generation goes on beyond the sequence length");

    // what a step draws from is what a pass over the same window, with nothing kept, gives: also after
    // the window has slid, and behind a prompt that is longer than the sequence
    Text text = {{tokens.begin(), tokens.begin() + 3}, 4 * T, {.temperature = 0}};
    bool alike = true;
    for (int i = 0; i < 3 * T; i++) {
        std::vector<int> before = text.tokens;
        if ((int)before.size() > T) before.erase(before.begin(), before.end() - (T + 1) / 2);
        int drawn = next_tokens(a.model, {&text})[0];
        Text fresh = {before, 1, {.temperature = 0}};
        alike = alike && next_tokens(a.model, {&fresh})[0] == drawn;
        text.done = 0;  // the fresh pass has overwritten the cache
        if (i % 3) {  // …and it goes on from a cache that the text has filled itself
            Text again = {before, 1, {.temperature = 0}};
            next_tokens(a.model, {&again});
            text.done = (int)before.size();
        }
    }

    check(alike, "a step draws what a whole pass would");
    std::vector<int> long_prompt = some_samples(1, 2 * T, V), seen_by_model;
    out.clear();
    generate(a.model, {{long_prompt, 2 * T, {.seed = 1}}}, 1,
             [&](size_t, int t) {
                 out.push_back(t);
                 return true;
             });
    generate(a.model, {{{long_prompt.end() - T, long_prompt.end()}, 2 * T, {.seed = 1}}}, 1,
             [&](size_t, int t) {
                 seen_by_model.push_back(t);
                 return true;
             });
    check(out == seen_by_model && (int)out.size() == 2 * T, "of a long prompt the end is seen");
    std::vector<Likelihood> plainly, unlikely;  // log-probabilities are the model's, whatever is asked
    Text one = {{1, 2}, 1, {.temperature = 0}}, other = {{1, 2}, 1, {.temperature = 0, .repetition = 9}};
    one.logprobs = other.logprobs = 3;
    for (int t = 0; t < V; t++) other.seen.insert(t);
    next_tokens(a.model, {&one}, &plainly);
    next_tokens(a.model, {&other}, &unlikely);
    check(plainly[0].top == unlikely[0].top, "log-probabilities with a repetition penalty");
    auto unlike = [&](std::vector<int> prompt) {
        generate(a.model, {{std::move(prompt), 1, {.temperature = 0, .repetition = 1e6}}}, 1,
                 [&](size_t, int t) {
                     out = {t};
                     return true;
                 });
        return out[0];
    };
    std::vector<int> longer(long_prompt.end() - T, long_prompt.end());
    int likeliest = unlike(longer);
    longer.insert(longer.begin(), likeliest);
    check(unlike(longer) != likeliest, "what stands before that end has occurred, for `repetition`");
}

// The whole model's gradient along one direction against a central difference of the loss, which is returned.
// An option that changes what forward computes has a line below, with another value than its default: it must
// reach backward, and the loss must differ from the defaults', or Trial ignores it
double training_is_the_gradient(const char* what, const Options& o, bool flash = false) {
    Trial trial(o, {2, 16, 2, 8, 11, 16}, 2, flash);
    Model& model = trial.model;
    std::vector<int> samples = some_samples(4, 8, 11);
    double loss = trial.train(samples, 0, false);

    auto each = [&](auto call) {  // call(index, the direction there)
        for (auto& p : model.table.list)
            for (long i = p.offset; i < p.offset + p.stored(); i++)
                call(i, (double)(hash_of(i) % 1000) / 1000 - 0.5);
    };

    constexpr double h = 1e-5;
    double slope = 0;
    each([&](long i, double along) { slope += along * (double)model.gradients[i]; });
    auto move = [&](double step) {
        each([&](long i, double along) { model.weights[i] = floatX(real(model.weights[i]) + step * along); });
    };
    move(h);
    double above = trial.train(samples, 0, false);
    move(-2 * h);
    double by_differences = (above - trial.train(samples, 0, false)) / (2 * h);
    check(std::abs(by_differences - slope) < 1e-7,
          text("%s: a slope of %.10g, by differences %.10g", what, slope, by_differences));
    return loss;
}

void test_training() {
    training_in_fp8();
    training_recomputed();
    training_places_activations();
    if (sizeof(floatX) == 8) {
        Options full;
        full.recompute = "full";
        double loss = training_is_the_gradient("defaults", {});
        double by_flash = training_is_the_gradient("flash", {}, true);
        check(std::abs(by_flash - loss) < 1e-12 && training_is_the_gradient("--recompute full", full) == loss,
              "flash attention and recomputation leave the loss as it is");
    }
    Options o;
    o.weight_decay = 0;
    for (ModelShape odd : {ModelShape{1, 3, 1, 1, 2, 2}, {1, 1, 1, 2, 3, 128}, {3, 35, 5, 7, 13, 13}}) {
        Trial trial(o, odd, 3);
        std::vector<int> w = some_samples(3, odd.T, odd.V);
        double before = trial.train(w, 1e-2), after = before;
        for (int i = 0; i < 20; i++) after = trial.train(w, 1e-2);
        check(after < before && std::isfinite(after),
              text("L %d C %d NH %d T %d V %d learns: %.3f -> %.3f", odd.L, odd.C, odd.NH, odd.T, odd.V,
                   before, after));
    }

    double peak = 6e-4, low = 6e-5;
    OptimizerOptions tokens = {.learning_rate = peak, .min_learning_rate = low, .warmup_tokens = 100,
                               .decay_tokens = 1000};
    auto rate = [&](double t) { return scheduled_rate(tokens, t); };
    check(rate(50) == peak / 2 && rate(100) == peak && std::abs(rate(550) - (peak + low) / 2) < 1e-12 &&
          rate(1000.5) == low && std::abs(rate(1000) - low) < 1e-12,
          "learning rate: warm-up, peak, half way, floor");
    tokens.decay_tokens = 100;
    check(rate(100) == peak && rate(101) == low, "a decay that ends where the warm-up does");
    std::vector<real> l = {1, 3, 2, real(-INFINITY)};
    check(sample_token(l, {.temperature = 0}, 0.99) == 1 && sample_token(l, {.top_k = 1}, 0.99) == 1 &&
          sample_token(l, {.top_p = 0.6}, 0.99) == 1 && sample_token(l, {.top_k = 2}, 0.999) == 2 &&
          sample_token(l, {}, 0.999) == 0 && sample_token(l, {}, 0) == 1, "temperature, top-k, top-p");
    std::vector<real> two = {0, 1};  // the second has 0.73 at temperature 1, and 0.88 at a half
    check(sample_token(two, {}, 0.8) == 0 && sample_token(two, {.temperature = 0.5}, 0.8) == 1 &&
          sample_token(two, {.temperature = 0.5}, 0.9) == 0, "what a temperature makes of probabilities");

    // an update is made only of finite sums: norm and loss
    for (double bad : {(double)INFINITY, (double)NAN})
        for (int at : {0, 1, 2}) {  // 2: neither
            double sums[] = {at == 0 ? bad : 4, at == 1 ? bad : 1};
            UpdateDecision decision;
            decision.decide(sums, 1, HyperParameters{});
            check(decision.will_update == (at == 2), text("an update of norm^2 %g, loss %g", sums[0],
                                                          sums[1]));
        }

    // many tokens, of which the likeliest are sorted first: each gets its share of u. p falls by 0.99 from
    // one to the next; the first k together have (1 - 0.99^k) / (1 - 0.99^n)
    std::vector<real> many(500);
    for (int i = 0; i < 500; i++) many[(i * 37) % 500] = real(i * std::log(0.99));

    bool shares = true;
    for (double u : {0.0, 0.1, 0.5, 0.9, 0.99, 0.9999}) {
        int k = (int)(std::log(1 - u * (1 - std::pow(0.99, 500))) / std::log(0.99) + 1e-3);
        shares = shares &&
                 std::abs(((long)sample_token(many, {}, u) * 473) % 500 - k) <= 1;  // 473 * 37 = 1 mod 500
    }

    check(shares && sample_token(many, {.top_p = 0.5}, 0.9999) == 37 * 68 % 500, "each token has its share");
    // repetition: logits of tokens that were there, 2 -> 1 and -2 -> -4
    PromptLine asked;  // the second sample's random numbers are not the first's, one later
    for (bool own : {false, true}) {
        asked.own_seed = own;
        check(asked.sample(1, 6).how.draw - asked.sample(0, 5).how.draw >= 1u << 31, "samples of a prompt");
    }
    Text said = {{1}, 9, {.temperature = 0, .repetition = 2}, {1, 2}};
    std::vector<real> logits = {real(1.5), 2, -2, -3};
    check(draw_token(said, logits) == 0 && logits == std::vector<real>({real(1.5), 1, -4, -3}) &&
              said.how.draw == 1,
          "repetition");
    Text drawn = {{1}, 9, {.seed = 3, .draw = 7}};
    std::vector<double> u;
    for (int i = 0; i < 3; i++) u.push_back(uniform(3, purpose("sample"), 7 + i));

    std::vector<int> tokens_drawn, want;
    for (int i = 0; i < 3; i++) {
        std::vector<real> flat(1000, 0);
        tokens_drawn.push_back(draw_token(drawn, flat));
        want.push_back(sample_token(flat, drawn.how, u[i]));
    }

    check(tokens_drawn == want && want[0] != want[1] && want[1] != want[2], "a random number for each token");
    // stops: over two tokens, the earliest of several, in one token, the end of text
    Vocabulary v = Vocabulary::bytes();
    v.tokens[1] = "xabcy";
    auto taken = [&](std::vector<std::string> stop, std::vector<int> given) {
        Answer answer;
        Prompt prompt = {"", 0, 9, {}, stop, {}};
        size_t n = 0;
        while (n < given.size() && take_token(answer, given[n++], prompt, v)) {}
        return answer.text + "|" + answer.stopped + "|" + std::to_string(n);
    };

    check(taken({"ab"}, {'x', 'a', 'b', 'c'}) == "x|stop|3" && taken({"c", "bc"}, {1, 'z'}) == "xa|stop|1" &&
              taken({"q"}, {'a', 256, 'b'}) == "a|end of text|2" && taken({}, {'a', 'b'}) == "ab|length|2",
          "stops");
}
