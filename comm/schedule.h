// schedule.h   what a pipeline stage does in a step, in order: 1F1B, interleaved 1F1B, or forward only
//   The model is split into p * v chunks of layers; chunk c of stage r is number c * p + r, so with v > 1 the
//   last stage sends to the first. m micro-batches pass through all chunks, forward and backward.
//     warm-up, v = 1:  min(p - r - 1, m) forwards; v > 1: min(m v, 2 (p - r - 1) + (v - 1) g), g: see below
//     then one forward, one backward, …; then the remaining backwards. Stage 2 of 0 to 3, 4 micro-batches:
//     F0 F1 B0 F2 B1 F3 B2 B3
//     order of forwards: groups of g micro-batches; a group passes through one chunk after the other, in each
//     chunk one micro-batch after the other. Order of backwards: the same with the chunks reversed. v > 1
//     requires p <= g <= m, and m a multiple of g or m mod g >= p (arXiv 2104.04473; g is Megatron-LM's
//     microbatch_group_size_per_vp_stage; check_pipeline, run/schedules.h).
//   Messages are exchanged between computations. The exchange before computation k sends the output of k - 1
//   and receives the input of k + 1, one computation ahead: at most one send, then one receive. Both
//   are posted before either is awaited, and each direction has its own communicator and stream (Link,
//   grid.h): neighbours that send to each other do not deadlock. Messages of one direction keep their order.
//   Buffers are numbered: slots (a micro-batch's activations in a chunk, from Forward to Backward), inputs
//   (of the chunk's first layer, as long), dx (in turn). A buffer that was sent is overwritten only after
//   that send has ended. layers/model/pipeline.h executes the list. In layers/plan, simulate.h plays all
//   stages in virtual time, and schedule_checker.h verifies them: in ./test_gpt for many shapes, in --plan
//   for the run's.
#pragma once
#include <algorithm>
#include <map>
#include <utility>
#include <vector>

struct PipelineShape {
    int p = 1;                 // stages
    int micro_batches = 1;     // m
    int chunks = 1;            // model chunks per stage, v
    int interleave_group = 1;  // micro-batches that pass through a chunk before the next chunk, g
    bool training = true;      // false: forward only, with interleave_group = p
};

struct Instruction {
    enum Kind { Forward, Backward, SendForward, ReceiveForward, SendBackward, ReceiveBackward } kind;
    int micro_batch, chunk;  // of a message: of the local computation that makes or takes it
    int slot = -1;           // of its activations: the index into Model.in_flight (stage.h)
    int input = -1;          // index of the buffer with the chunk's input
    int dx = -1;             // index of the buffer with the gradient of its output, then of its input
    int exchange = -1;       // messages with the same number are posted together; computations have none
    bool computes() const { return kind <= Backward; }
    bool is_forward() const { return kind == Forward || kind == SendForward || kind == ReceiveForward; }
    bool sends() const { return kind == SendForward || kind == SendBackward; }
};

struct Schedule {
    PipelineShape shape;
    int stage;
    std::vector<Instruction> list;
    int slots = 0, inputs = 0, dx_buffers = 0;  // how many buffers of each (placed in run/allocate.h)
};

// a stage's schedule for each batch size of the run
using Schedules = std::map<int, Schedule>;

// dx buffers of a stage: one in use, one received ahead, one being sent. The first stage sends those of its
// later chunks to the last stage, which needs them interleave_group - p computations later than a neighbour
// would.
inline int dx_buffer_count(int stage, const PipelineShape& s) {
    if (!s.training) return 0;
    return s.p == 1 ? 1 : 3 + (s.chunks > 1 && stage == 0 ? s.interleave_group - s.p : 0);
}

// ---- the order of computations ---------------------------------------------------------------------------

// the k-th forward or backward, the same on every stage; backwards have the chunks reversed
inline Instruction kth(Instruction::Kind kind, int k, const PipelineShape& s) {
    int group = k / (s.interleave_group * s.chunks), first = group * s.interleave_group,
        size = std::min(s.interleave_group, s.micro_batches - first);
    int at = k - first * s.chunks, chunk = at / size;
    return {kind, first + at % size, kind == Instruction::Backward ? s.chunks - 1 - chunk : chunk};
}

inline std::vector<Instruction> computations(int stage, const PipelineShape& s) {
    int all = s.micro_batches * s.chunks, after = s.p - stage - 1;
    int warm = std::min(all, s.chunks == 1 ? after : 2 * after + (s.chunks - 1) * s.interleave_group);
    std::vector<Instruction> out;
    if (!s.training) warm = all;
    for (int k = 0; k < warm; k++) out.push_back(kth(Instruction::Forward, k, s));
    for (int k = 0; s.training && k < all; k++) {
        if (warm + k < all) out.push_back(kth(Instruction::Forward, warm + k, s));
        out.push_back(kth(Instruction::Backward, k, s));
    }
    return out;
}

// ---- messages and memory ---------------------------------------------------------------------------------

struct Pool {  // buffer indices; the one that has been free the longest is taken first
    std::vector<int> unused;
    int made = 0;
    int take(int at_least = 0) {
        while (made < at_least) unused.push_back(made++);
        if (unused.empty()) unused.push_back(made++);
        int n = unused.front();
        unused.erase(unused.begin());
        return n;
    }

    void release(int n) { unused.push_back(n); }
};

inline bool takes_message(const Instruction& i, int stage, const PipelineShape& s) {
    int number = i.chunk * s.p + stage;
    return i.kind == Instruction::Forward ? number > 0 : number < s.p * s.chunks - 1;
}

inline bool makes_message(const Instruction& i, int stage, const PipelineShape& s) {
    int number = i.chunk * s.p + stage;
    return i.kind == Instruction::Forward ? number < s.p * s.chunks - 1 : number > 0;
}

inline Schedule make_schedule(int stage, const PipelineShape& s) {
    using I = Instruction;
    Schedule out = {s, stage, {}, 0, 0, dx_buffer_count(stage, s)};
    std::vector<I> work = computations(stage, s);
    std::map<std::pair<int, int>, I> kept;  // (micro_batch, chunk) -> its forward, until its backward
    Pool slots, inputs;
    int n = (int)work.size(), next_dx = 0;
    int least = s.p > 1 ? 2 : 1;  // inputs: at least one in use and one received ahead

    auto assign_buffer = [&](I& i) {  // that computation i reads
        if (i.kind == I::Forward) i.input = inputs.take(least);
        else i.dx = next_dx++ % out.dx_buffers;
    };

    auto message = [&](I i, bool send, int exchange) {
        bool forward = i.kind == I::Forward;
        i.kind = send ? (forward ? I::SendForward : I::SendBackward)
            : forward ? I::ReceiveForward : I::ReceiveBackward;
        i.exchange = exchange;
        out.list.push_back(i);
    };

    auto prepare_input = [&](int k) {  // of computation k
        if (k >= n) return;
        assign_buffer(work[k]);
        if (takes_message(work[k], stage, s)) message(work[k], false, k);
    };

    for (int k = 0; k <= n; k++) {
        if (k > 0 && makes_message(work[k - 1], stage, s)) message(work[k - 1], true, k + 1);
        if (k == 0 || s.p == 1) prepare_input(k);
        if (s.p > 1) prepare_input(k + 1);  // received one computation ahead

        if (k == n) break;
        I& i = work[k];
        std::pair<int, int> key(i.micro_batch, i.chunk);
        if (i.kind == I::Forward) {
            i.slot = slots.take();
            kept[key] = i;
        } else {
            i.slot = kept[key].slot;
            i.input = kept[key].input;
        }
        out.list.push_back(i);

        if (i.kind == I::Backward || !s.training) {
            slots.release(i.slot);
            inputs.release(i.input);
        }
    }

    out.slots = slots.made;
    out.inputs = inputs.made;
    return out;
}
