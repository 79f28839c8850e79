// invariants.h   what the code of a step relies on, asserted in a run's first step (with data-parallel
//   ranks in the second too), unless --check-every computes it twice
//   what must hold                                             ensured by                 checked by
//   A gradient is set where the step first touches it, from    LayerContext.accumulate    touch_gradient
//   then on only added to.
//   Each micro-batch makes each gradient once (wte's twice:    block.h: list of biases    touch_gradient,
//   from the lookups and, in chunks of rows, the logits).                                 complete
//   A bucket's reduction starts when all its gradients are     begin_reduction, stage.h   complete,
//   complete; then nothing adds to them.                                                  touch_gradient
//   Scratch is written before it is read, in the same layer    block.h: table of scratch  use_scratch
//   and pass of the micro-batch, and a block reads it once
//   (except gathered rows): nothing lives in it longer. Not
//   checked: scratch of --fp8, attention and column sums.
//   Parameters are read only after awaiting their all-gather.  await_parameter, stage.h   read_weight
//   A message buffer is used only after what it receives has   await_message, pipeline.h  use_buffer
//   arrived, and overwritten only after it was sent.           await_sent, stage.h
//   Whether plan and run communicate the same: observe.cpp.
#pragma once
#include <map>
#include <set>
#include <string>
#include <vector>
#include "../model/pipeline.h"

class StepInvariants : public Listener {
    struct Range {
        const char* name;
        const char* begin;
        size_t bytes;
        bool is_read_once;  // in a block
        bool holds(const void* p) const { return p >= begin && p < begin + bytes; }
    };

    // where a micro-batch has got to
    struct Where {
        int micro_batch, layer, chunk;
        Pass pass;
        bool operator==(const Where&) const = default;
    };

    Model& model;
    int micro_batches;                         // of the step
    std::vector<std::set<int>> made;           // for each parameter, by which micro-batches
    std::set<int> made_by_lookups;             // wte's, to which made[wte] adds the logits'
    std::set<const void*> touched;             // gradients, in this step
    std::set<int> reduced;                     // buckets
    std::vector<Range> scratch;
    std::map<const char*, Where> written;      // by scratch: where last written, until a block reads it

    template <class... Values>
    [[noreturn]] void broken(const Activity& a, const char* format, Values... values) const {
        std::string path = a.where.file_name(), file = path.substr(path.rfind('/') + 1);
        std::string line = a.where.line() ? text(" (%s:%u)", file.c_str(), (unsigned)a.where.line()) : "";
        fail("%s%s in %s, micro-batch %d, layer %d: %s: this is a bug", a.name, line.c_str(),
             pass_names[(int)a.place.pass], a.place.micro_batch, a.place.layer,
             text(format, values...).c_str());
    }

    // of the parameter to which element `at` of the flat buffers belongs
    int parameter_at(long at) const {
        const std::vector<Parameter>& list = model.table.list;
        auto next = std::upper_bound(list.begin(), list.end(), at,
                                     [](long at, const Parameter& p) { return at < p.offset; });
        return (int)(next - list.begin()) - 1;
    }

    void touch_gradient(const Activity& a, const TensorAccess& t) {
        if (t.use == TensorAccess::Read) return;
        const real *p = (const real*)t.data, *apart = model.wte_gradient_from_logits;
        bool is_gradient = p >= model.gradients && p < model.gradients + model.table.elements;
        if (!is_gradient && (!apart || p != apart)) return;

        int i = is_gradient ? parameter_at(p - model.gradients) : model.table.wte;
        const Parameter& parameter = model.table.list[i];
        const char* name = parameter.name.c_str();
        bool is_first = touched.insert(t.data).second;
        if (is_first && t.use == TensorAccess::Updated)
            broken(a, "adds to %s's gradient, which nothing has set", name);
        if (!is_first && t.use == TensorAccess::Written) broken(a, "sets %s's gradient again", name);
        if (reduced.count(parameter.bucket))
            broken(a, "adds to %s's gradient, which is being reduced", name);
        bool looks_up = !strcmp(a.name, EmbeddingBackward::name);
        bool by_logits = !strcmp(a.name, LinearBackward::name);
        if (i == model.table.wte && !looks_up && !by_logits) return;  // cleared, or its two sums added
        bool is_new = (looks_up ? made_by_lookups : made[i]).insert(a.place.micro_batch).second;
        bool comes_in_chunks = i == model.table.wte && by_logits;
        if (!is_new && !comes_in_chunks) broken(a, "makes %s's gradient twice", name);
    }

    // every gradient of this rank, or of one of its buckets
    void complete(const Activity& a, int bucket = -1) const {
        auto all = [&](const Parameter& p, const std::set<int>& by) {
            if ((bucket < 0 || p.bucket == bucket) && (int)by.size() != micro_batches)
                broken(a, "%s's gradient has come from %zu of %d micro-batches", p.name.c_str(), by.size(),
                       micro_batches);
        };
        for (int i = 0; i < (int)made.size(); i++)
            if (i != model.table.wte || model.grid.is_last_stage()) all(model.table.list[i], made[i]);
        if (model.grid.is_first_stage()) all(model.table.list[model.table.wte], made_by_lookups);
    }

    void read_weight(const Activity& a, const TensorAccess& t) const {
        const floatX* p = (const floatX*)t.data;
        if (p < model.weights || p >= model.weights + model.table.elements) return;
        const Parameter& parameter = model.table.list[parameter_at(p - model.weights)];
        if (model.parameters_gathered[parameter.bucket].comm_stream)
            broken(a, "reads %s, whose all-gather was not awaited", parameter.name.c_str());
    }

    void use_scratch(const Activity& a, const TensorAccess& t) {
        Where here = {a.place.micro_batch, a.place.layer, a.place.chunk, a.place.pass};
        for (const Range& range : scratch) {
            if (!range.holds(t.data)) continue;
            auto last = written.find(range.begin);
            bool is_known = last != written.end() && last->second == here;
            if (t.use != TensorAccess::Written && !is_known)
                broken(a, "reads scratch '%s', which nothing has written for it", range.name);
            if (t.use != TensorAccess::Read) written[range.begin] = here;
            else if (here.layer >= 0 && range.is_read_once) written.erase(last);
        }
    }

    // by an operation, or by a message of this rank's part of it
    void use_buffer(const Activity& a, const TensorAccess& t, const Buffer& buffer, const char* name) const {
        const floatX* p = (const floatX*)t.data;
        if (p < buffer.x || p >= buffer.x + (long)model.grid.rows(model.max_rows()) * model.shape.C) return;
        if (buffer.received.comm_stream) broken(a, "uses %s, whose message was not awaited", name);
        if (t.use != TensorAccess::Read && buffer.sent.comm_stream)
            broken(a, "overwrites %s before it is sent", name);
    }

    void use_buffers(const Activity& a, const TensorAccess& t) const {
        for (const Buffer& each : model.inputs) use_buffer(a, t, each, "an input");
        for (const Buffer& each : model.dx_buffers) use_buffer(a, t, each, "a gradient of activations");
        for (const InFlight& each : model.in_flight) use_buffer(a, t, each.y, "a chunk's output");
    }

public:
    StepInvariants(Model& model, int micro_batches)
        : model(model), micro_batches(micro_batches), made(model.table.list.size()) {
        const Scratch& s = model.scratch;
        long N = model.max_rows(), C = model.shape.C, t = model.grid.t;
        auto add = [&](const char* name, const floatX* x, long n) {
            if (x) scratch.push_back({name, (const char*)x, n * sizeof(floatX), x != s.all_rows});
        };
        add("unreduced", s.unreduced, N * C);
        add("reduced", s.reduced, N / t * C);
        add("all_rows", s.all_rows, N * C);
        add("mlp_or_qkv", s.mlp_or_qkv, N * 4 * C / t);
    }

    void begin(const Activity& a) override {
        if (a.kind == Activity::Section && a.place.pass == Pass::Reduce) {
            complete(a, a.place.bucket);
            reduced.insert(a.place.bucket);
        }
        if (a.kind == Activity::Section && a.place.pass == Pass::Update) complete(a);
        bool is_call = a.kind == Activity::Communicate;
        if (a.kind != Activity::Compute && !is_call) return;
        if (a.place.pass == Pass::Message)
            for (const TensorAccess& t : a.tensors) use_buffers(a, t);
        if (a.place.pass != Pass::Forward && a.place.pass != Pass::Backward) return;

        auto look = [&](const TensorAccess& t) {
            if (!t.data) return;
            use_scratch(a, t);
            if (is_call) return;
            touch_gradient(a, t);
            read_weight(a, t);
            use_buffers(a, t);
        };
        // what an operation writes it may read too, but only from before
        for (const TensorAccess& t : a.tensors)
            if (t.use != TensorAccess::Written) look(t);
        for (const TensorAccess& t : a.tensors)
            if (t.use == TensorAccess::Written) look(t);
    }
};
