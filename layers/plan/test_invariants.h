// test_invariants.h   invariants.h holds for a step as it is, and finds each way of breaking it
#pragma once
#include "../model/test_training.h"
#include "dry_run.h"
#include "invariants.h"

// passes on what a step announces, changed
struct Broken : Listener {
    Listener& to;
    std::function<void(Activity&)> change;
    Broken(Listener& to, std::function<void(Activity&)> change) : to(to), change(std::move(change)) {}
    void begin(const Activity& a) override {
        Activity changed = a;
        change(changed);
        to.begin(changed);
    }
    void end(const Activity& a) override { to.end(a); }
};

void test_invariants() {
    Options o;
    Trial trial(o, {2, 16, 2, 8, 20, 32}, 2);
    Model& model = trial.model;
    std::vector<int> samples = some_samples(4, 8, 20);  // two micro-batches

    // "", or what is found in a step that is announced so
    auto found = [&](std::function<void(Activity&)> change) -> std::string {
        try {
            StepInvariants invariants(model, 2);
            Broken broken(invariants, std::move(change));
            Listening now(broken);
            trial.train(samples, 1e-3);
        } catch (const Error& e) {
            return e.what();
        }
        return "";
    };
    auto has = [](const std::string& said, const char* says, const char* what) {
        check(said.find(says) != std::string::npos,
              text("%s: expected '%s', has '%s'", what, says, said.c_str()));
    };
    auto finds = [&](const char* what, const char* says, std::function<void(Activity&)> change) {
        has(found(std::move(change)), says, what);
    };
    auto is = [](const Activity& a, const char* name, int micro_batch, int layer) {
        const Place& p = a.place;
        return !strcmp(a.name, name) && p.pass == Pass::Backward && p.micro_batch == micro_batch &&
            p.layer == layer;
    };

    check(found([](Activity&) {}).empty(), "a step keeps what it relies on");
    long seen = 0;
    found([&](Activity& a) { seen += a.kind == Activity::Compute; });
    check(seen > 60, "the step was listened to");

    finds("a bias gradient is left out",
          "h.0.attn.c_proj.bias's gradient has come from 1 of 2", [&](Activity& a) {
        if (is(a, "bias_backward", 1, 0))
            std::erase_if(a.tensors, [](const TensorAccess& t) { return !strcmp(t.name, "db"); });
    });
    finds("the second micro-batch sets",
          "sets h.1.attn.c_attn.weight's gradient again", [&](Activity& a) {
        if (is(a, "linear_backward", 1, 1))
            for (auto& t : a.tensors)
                if (!strcmp(t.name, "dw") && t.rows == 48) t.use = TensorAccess::Written;
    });
    finds("the first micro-batch adds",
          "adds to ln_f.weight's gradient, which nothing has set", [&](Activity& a) {
        if (is(a, "layernorm_backward", 0, -1))
            for (auto& t : a.tensors)
                if (!strcmp(t.name, "dw")) t.use = TensorAccess::Updated;
    });
    finds("a gradient is made twice",
          "makes h.0.ln_2.weight's gradient twice", [&](Activity& a) {
        if (is(a, "layernorm_backward", 1, 0))
            for (auto& t : a.tensors)
                if (!strcmp(t.name, "dw")) t.data = model.gradient(model.table.blocks + LN2_W);
    });
    auto without = [&](const char* operation, const char* tensor) {
        return [=](Activity& a) {
            if (is(a, operation, 1, -1))
                std::erase_if(a.tensors, [&](const TensorAccess& t) { return !strcmp(t.name, tensor); });
        };
    };
    finds("the lookups' part of wte's gradient is left out",
          "wte.weight's gradient has come from 1 of 2", without("embedding_backward", "dwte"));
    finds("the logits' part is left out", "wte.weight's gradient has come from 1 of 2",
          without("linear_backward", "dw"));
    finds("the lookups' part is made twice", "makes wte.weight's gradient twice", [&](Activity& a) {
        if (is(a, "position_backward", 1, -1)) {
            a.name = "embedding_backward";
            a.tensors = {updates("dwte", model.gradient(model.table.wte), 20, 16)};
        }
    });
    finds("scratch outlives its layer",
          "reads scratch 'mlp_or_qkv', which nothing has written for it", [&](Activity& a) {
        if (is(a, "linear_of_gelu_backward", 0, 1))
            std::erase_if(a.tensors, [](const TensorAccess& t) { return !strcmp(t.name, "d_up"); });
    });

    finds("scratch is read again",
          "reads scratch 'unreduced', which nothing has written for it", [&](Activity& a) {
        if (is(a, "linear_backward", 0, 1) && a.tensors[0].columns == 48)
            std::erase_if(a.tensors, [](const TensorAccess& t) { return !strcmp(t.name, "dx"); });
    });

    // what a step of one rank does not announce
    auto finds_in = [&](const char* what, const char* says, std::initializer_list<Activity> all) {
        std::string said;
        try {
            StepInvariants invariants(model, 1);
            for (auto& a : all) invariants.begin(a);
        } catch (const Error& e) {
            said = e.what();
        }
        has(said, says, what);
    };
    Place backward = {Pass::Backward, 0, 0, -1, 0};
    auto operation = [&](std::vector<TensorAccess> tensors) {
        return Activity{.kind = Activity::Compute, .name = "made up", .stream = nullptr, .place = backward,
                        .tensors = std::move(tensors)};
    };
    const Parameter& q = model.table.block(0, QKV_W);
    Activity reduces = {.kind = Activity::Section, .name = "reduce", .stream = nullptr,
                        .place = {Pass::Reduce, -1, -1, q.bucket, -1}};
    std::vector<TensorAccess> whole;
    for (auto& p : model.table.list) whole.push_back(writes("dw", model.gradients + p.offset, p.size));
    finds_in("a bucket is reduced too early", "gradient has come from 0 of 1", {reduces});
    finds_in("a reduced bucket is added to", "which is being reduced",
             {operation(whole), reduces, operation({updates("dw", model.gradients + q.offset, q.size)})});

    comm::StreamEvent pending = {(Stream)&model, 1};
    model.parameters_gathered[q.bucket] = pending;
    finds_in("parameters are not awaited", "reads h.0.attn.c_attn.weight, whose all-gather",
             {operation({reads("w", model.weights + q.offset, q.size)})});
    model.parameters_gathered[q.bucket] = {};
    model.inputs[0].received = pending;
    finds_in("a message is not awaited", "uses an input",
             {operation({reads("x", model.inputs[0].x, 16, 16)})});
    model.inputs[0].received = {};
    model.dx_buffers[0].sent = pending;
    finds_in("a buffer is overwritten", "overwrites a gradient of activations before it is sent",
             {operation({updates("dx", model.dx_buffers[0].x, 16, 16)})});
    auto receives = [&] {
        Activity call = operation({writes("x", model.dx_buffers[0].x + 16, 16)});
        call.kind = Activity::Communicate;
        call.place.pass = Pass::Message;
        return call;
    };
    finds_in("a message is received into a buffer", "overwrites a gradient of activations before it is sent",
             {receives()});
    model.dx_buffers[0].sent = {};
    model.dx_buffers[0].received = pending;
    finds_in("a received message is overwritten", "uses a gradient of activations, whose message was not",
             {receives()});
    model.dx_buffers[0].received = {};
}
