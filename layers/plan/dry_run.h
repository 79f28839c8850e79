// dry_run.h   a step with nothing executed: what it would send, compute and move, and how long that takes
//   For one rank of a stage, the code that trains is called on a Model that has only measured its memory
//   (run/allocate.h): forward() and backward() of a micro-batch, a message, the update. Each operation and
//   call declares what it does (base/activity.h), and this file adds it up. The schedule says how often each
//   happens; simulate.h plays it.
#pragma once
#include <map>
#include <set>
#include <string>
#include <vector>
#include "../model/optimizer.h"
#include "../model/pipeline.h"
#include "machines.h"

// listens from here to the closing brace
class Listening {
public:
    explicit Listening(Listener& l) { listeners.push_back(&l); }
    ~Listening() { listeners.pop_back(); }
    Listening(const Listening&) = delete;
};

// ---- what is added up ------------------------------------------------------------------------------------

// a rank's calls and GEMM FLOPs, counted as comm.h and linear.cuh do
struct StepWork {
    comm::TrafficTable traffic;
    double linear_flops = 0, gemm_flops = 0;  // with those of attention

    void add(const StepWork& other, long times = 1) {
        for (auto& [group, t] : other.traffic) {
            traffic[group].calls += times * t.calls;
            traffic[group].sent += times * t.sent;
        }
        linear_flops += (double)times * other.linear_flops;
        gemm_flops += (double)times * other.gemm_flops;
    }
};

// totals over all operations of one name in a step
struct OperationTotals {
    long calls = 0;
    double flops = 0, bytes = 0;
};
using OperationTable = std::map<std::string, OperationTotals>;

// a stretch of the compute stream; a new one begins where it waits for a bucket, or after a bucket's calls
struct TimedPiece {
    struct BucketCall { int bucket; double seconds; };
    double seconds = 0;                   // on the compute stream, including calls there
    std::vector<int> awaited = {};        // buckets that must be gathered before it begins
    std::vector<BucketCall> beside = {};  // calls on the buckets' stream, enqueued at its end
};

// a part of a step: forward or backward of a micro-batch, a message, the update
struct StepPart {
    StepWork work;
    std::vector<TimedPiece> pieces = {{}};
    OperationTable operations = {};
    double tensor_seconds = 0;  // of tensor-parallel calls
    double seconds() const {
        double sum = 0;
        for (auto& piece : pieces) sum += piece.seconds;
        return sum;
    }
};

// ---- times -----------------------------------------------------------------------------------------------

inline double seconds_of(const Hardware& h, const Work& w, const Precision& precision) {
    if (w.kind == Work::Memory) return memory_seconds(h, w.bytes(precision));
    if (!w.fp8) return gemm_seconds(h, w.gemm, w.bytes(precision));
    Hardware faster = h;
    faster.gpu.peak *= h.gpu.fp8;
    return gemm_seconds(faster, w.gemm, w.bytes(precision));
}

inline double bytes_moved(const Activity& a, const Precision& precision) {
    if (a.works.empty()) return tensor_bytes(a.tensors, precision);
    double bytes = 0;
    for (auto& work : a.works) bytes += work.bytes(precision);
    return bytes;
}

inline double compute_seconds(const Hardware& h, const Activity& a, const Precision& precision) {
    if (a.works.empty()) return memory_seconds(h, bytes_moved(a, precision));
    double sum = 0;
    for (auto& work : a.works)
        if (work.bytes(precision) > 0) sum += seconds_of(h, work, precision);
    return sum;
}

inline double whole_bytes(const Activity& call, const Precision& precision) {
    return (double)call.call.count * element_bytes(call.tensors.begin()->element, precision);
}

inline double call_seconds(const Hardware& h, const Activity& a, const Precision& precision) {
    const Communication& call = a.call;
    if (!strcmp(call.group, "world")) return small_sum_seconds(call.size);
    bool is_tensor_group = !strcmp(call.group, "tensor");  // the group that spans most nodes counts
    int nodes = is_tensor_group ? tensor_nodes(h, call.size) : nodes_of(h, *call.members);
    return call_seconds(h, call.kind, call.size, nodes, whole_bytes(a, precision));
}

// ---- listening -------------------------------------------------------------------------------------------

// what a step's code announces, in order, while nothing is executed
class DryRun : public Listener {
    std::vector<Activity> said;

public:
    bool executes() const override { return false; }
    void begin(const Activity& a) override {
        if (a.kind != Activity::Section) said.push_back(a);
    }
    template <class Code>
    static std::vector<Activity> of(Code code) {
        DryRun run;
        Listening now(run);
        code();
        return std::move(run.said);
    }
};

using Activities = std::vector<Activity>;

class StepCounter {
    const Model& model;
    const Hardware& hardware;
    const std::vector<comm::StreamEvent>& gathered;  // by bucket, of its parameters

    void add_call(StepPart& part, const Activity& a) const {
        const Precision& precision = model.setup.precision;
        comm::Traffic& t = part.work.traffic[a.call.group];
        t.calls++;
        t.sent += comm::sent_bytes(a.call.kind, a.call.size, (long)whole_bytes(a, precision));

        if (!hardware.is_known()) return;
        double seconds = call_seconds(hardware, a, precision);

        if (!strcmp(a.call.group, "tensor")) part.tensor_seconds += seconds;
        if (!part.pieces.back().beside.empty()) part.pieces.emplace_back();
        bool of_bucket = a.place.pass == Pass::Reduce || a.place.pass == Pass::Gather;
        if (of_bucket) part.pieces.back().beside.push_back({a.place.bucket, seconds});
        else add_seconds(part, seconds);
    }

    // adds time on the compute stream
    void add_seconds(StepPart& part, double seconds) const {
        if (!part.pieces.back().beside.empty()) part.pieces.emplace_back();
        part.pieces.back().seconds += seconds;
    }

    void add_computation(StepPart& part, const Activity& a) const {
        OperationTotals& totals = part.operations[a.name];
        totals.calls++;
        totals.bytes += bytes_moved(a, model.setup.precision);
        for (auto& work : a.works) totals.flops += work.gemm.flops();
        for (auto& work : a.works) {
            if (work.kind == Work::Linear) part.work.linear_flops += work.gemm.flops();
            part.work.gemm_flops += work.gemm.flops();
        }
        if (!hardware.is_known()) return;
        add_seconds(part, compute_seconds(hardware, a, model.setup.precision));
    }

    void add_wait(StepPart& part, const Activity& a) const {
        for (size_t bucket = 0; bucket < gathered.size(); bucket++) {
            const comm::StreamEvent& event = gathered[bucket];
            if (event.comm_stream != a.awaited || event.position != a.position) continue;
            if (part.pieces.back().seconds > 0) part.pieces.emplace_back();
            part.pieces.back().awaited.push_back((int)bucket);
        }
    }

public:
    StepCounter(const Model& model, const Hardware& hardware, const std::vector<comm::StreamEvent>& gathered)
        : model(model), hardware(hardware), gathered(gathered) {}
    StepPart count(const Activities& all) const {
        StepPart part;
        for (auto& a : all) {
            if (a.kind == Activity::Communicate) add_call(part, a);
            if (a.kind == Activity::Compute) add_computation(part, a);
            if (a.kind == Activity::Wait && a.stream == model.stream) add_wait(part, a);
        }
        return part;
    }
};

// removes and returns everything up to and including the first that is `last`
template <class Last>
Activities take_until(Activities& all, Last last) {
    auto end = std::find_if(all.begin(), all.end(), last);
    if (end != all.end()) ++end;
    Activities out(all.begin(), end);
    all.erase(all.begin(), end);
    return out;
}

// ---- a stage's step --------------------------------------------------------------------------------------

// what a micro-batch's work depends on: the first sets gradients, after the last they are reduced
struct WhichMicroBatch {
    bool is_first, is_last;
    auto operator<=>(const WhichMicroBatch&) const = default;
};
inline WhichMicroBatch which_micro_batch(int index, int micro_batches) {
    return {index == 0, index == micro_batches - 1};
}
using PartByMicroBatch = std::map<WhichMicroBatch, StepPart>;  // one chunk's part; those that occur

struct StageRun {
    std::vector<PartByMicroBatch> forward, backward;  // by chunk
    StepPart message[4];           // by Instruction::Kind, from SendForward on
    StepPart gathered;             // received rows are gathered over the tensor-parallel ranks
    StepPart clear, reduce, tied;  // before the first micro-batch; after the last; the tied embedding's sum
    StepPart norm;                 // up to the clipping scale, with the sum over the world
    std::vector<StepPart> update;  // by bucket, with its gather

    // calls each(part, how often it occurs in a step)
    template <class Each>
    void for_each_part(const Schedule& schedule, Each each) const {
        std::map<const StepPart*, long> times;
        for (auto& i : schedule.list) {
            WhichMicroBatch which = which_micro_batch(i.micro_batch, schedule.shape.micro_batches);
            if (i.kind == Instruction::Forward) times[&forward[i.chunk].at(which)]++;
            else if (i.kind == Instruction::Backward) times[&backward[i.chunk].at(which)]++;
            else times[&message[i.kind - Instruction::SendForward]]++;
            if (!i.computes() && !i.sends()) times[&gathered]++;
        }
        for (auto* part : {&clear, &reduce, &tied, &norm}) times[part]++;
        for (auto& bucket : update) times[&bucket]++;
        for (auto& [part, n] : times) each(*part, n);
    }

    // a rank's work in a step
    StepWork work(const Schedule& schedule) const {
        StepWork out;
        for_each_part(schedule, [&](const StepPart& part, long times) { out.add(part.work, times); });
        return out;
    }

    OperationTable operations(const Schedule& schedule) const {
        OperationTable out;
        for_each_part(schedule, [&](const StepPart& part, long times) {
            for (auto& [name, o] : part.operations) {
                out[name].calls += times * o.calls;
                out[name].flops += (double)times * o.flops;
                out[name].bytes += (double)times * o.bytes;
            }
        });
        return out;
    }
};

// stand-ins for streams, on which nothing runs: any distinct addresses
inline void name_streams(Model& model) {
    static char names[5];
    Grid& grid = model.grid;
    auto stream = [&](int i) { return (Stream)(void*)&names[i]; };
    grid.dp_stream = stream(0);
    grid.forward_in.stream = stream(1);
    grid.forward_out.stream = stream(2);
    grid.backward_in.stream = stream(3);
    grid.backward_out.stream = stream(4);
}

// model: measured, not allocated (dry_model)
inline StageRun run_dry(Model& model, Optimizer& optimizer, const Schedules& schedules,
                        const Hardware& hardware) {
    name_streams(model);
    StageRun out;
    std::vector<comm::StreamEvent> gathered;
    StepCounter counter(model, hardware, gathered);
    int N = model.max_rows();

    // the update: up to the norm, then bucket by bucket
    Activities update = DryRun::of([&] { update_parameters(model, optimizer); });
    gathered = model.parameters_gathered;
    out.norm = counter.count(take_until(update, [](auto& a) { return !strcmp(a.name, "decide_update"); }));
    auto is_gather = [](auto& a) { return a.place.pass == Pass::Gather && a.kind == Activity::Communicate; };
    while (!update.empty()) out.update.push_back(counter.count(take_until(update, is_gather)));

    out.clear = counter.count(DryRun::of([&] { clear_losses(model); }));
    Activities reduce = DryRun::of([&] { complete_gradients(model); });
    auto tied = std::find_if(reduce.begin(), reduce.end(),
                             [](auto& a) { return !strcmp(a.call.group, "tied embedding"); });
    out.reduce = counter.count({reduce.begin(), tied});
    out.tied = counter.count({tied, reduce.end()});

    // forward and backward: a first, a later and a last micro-batch may differ
    std::set<WhichMicroBatch> all_kinds;
    for (auto& [size, schedule] : schedules)
        for (int index : {0, 1, schedule.shape.micro_batches - 1})
            all_kinds.insert(which_micro_batch(index, schedule.shape.micro_batches));
    for (int chunk = 0; chunk < model.setup.chunks; chunk++) {
        out.forward.emplace_back();
        out.backward.emplace_back();
        for (WhichMicroBatch which : all_kinds) {
            MicroBatch mb = {.index = which.is_first ? 0 : 1, .is_last_micro_batch = which.is_last,
                             .chunk = chunk, .N = N, .in_flight = model.in_flight[0],
                             .input = model.inputs[0], .dx_buffer = &model.dx_buffers[0], .dloss = 1};
            model.parameters_gathered = gathered;
            out.forward[chunk][which] = counter.count(DryRun::of([&] {
                copy_tokens(model, mb);
                forward(model, mb);
            }));
            out.backward[chunk][which] = counter.count(DryRun::of([&] { backward(model, mb); }));
        }
    }

    if (model.grid.p == 1) return out;
    for (int kind = 0; kind < 4; kind++) {
        Instruction op = {Instruction::Kind(Instruction::SendForward + kind), 0, 0, 0, 0, 0};
        out.message[kind] = counter.count(DryRun::of([&] { post_message(model, op, N); }));
    }
    model.inputs[0].received = comm::StreamEvent{model.grid.forward_in.stream, 1};
    out.gathered =
        counter.count(DryRun::of([&] { await_message(model, model.inputs[0], "activations", N); }));
    return out;
}
