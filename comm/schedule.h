// schedule.h   what a pipeline stage does in a step, in order: 1F1B, interleaved 1F1B, or forward only
//   The model is split into p * v chunks of layers; chunk c of stage r is number c * p + r, so with v > 1 the
//   last stage sends to the first. m micro-batches pass through all chunks, forward and backward.
//     warm-up, v = 1:  min(p - r - 1, m) forwards; v > 1: min(m v, 2 (p - r - 1) + (v - 1) g) forwards
//     then one forward, one backward, … (so warm-up + 1 forwards precede the first backward); then the
//     remaining backwards
//     order of forwards: groups of g micro-batches; a group passes through one chunk after the other, in each
//     chunk one micro-batch after the other. Order of backwards: the same with the chunks reversed. v > 1
//     requires p <= g <= m, and m a multiple of g or m mod g >= p (arXiv 2104.04473; g is Megatron-LM's
//     microbatch_group_size_per_vp_stage).
//   Messages are exchanged between computations. The exchange before computation k sends the output of k - 1
//   and receives the input of k + 1, one computation ahead. All messages of an exchange are posted at once,
//   so that neighbours that send to each other do not deadlock; it has at most one of each kind. Between two
//   neighbours, messages of one direction keep their order.
//   Buffers are numbered: slots (a micro-batch's activations in a chunk, from Forward to Backward), input
//   (what the chunk's first layer reads), dx. A buffer that was sent is overwritten only after that send has
//   ended. pipeline.h executes the list, simulate.h simulates it, ScheduleChecker verifies it: in ./test_gpt
//   for many shapes, and in --plan for the one requested.
#pragma once
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>
#include "../layers/base/check.h"

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
    bool sends() const { return kind == SendForward || kind == SendBackward; }
};

struct Schedule {
    PipelineShape shape;
    int stage;
    std::vector<Instruction> list;
    int slots = 0, inputs = 0, dx_buffers = 0;  // how many buffers of each
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

// ---- legal group sizes -----------------------------------------------------------------------------------

inline bool legal_group(int p, int m, int g) { return p <= g && g <= m && (m % g == 0 || m % g >= p); }

// the default group size for m micro-batches: p if that is legal, else the next larger legal one; 0: none is
inline int default_group(int p, int m) {
    for (int g = p; g <= m; g++) if (legal_group(p, m, g)) return g;
    return 0;
}

inline void check_pipeline(const PipelineShape& s) {
    if (s.chunks == 1) return;
    if ((long)s.micro_batches * s.chunks > 1 << 24)
        fail("--pipeline-chunks %d with %d micro-batches: too many", s.chunks, s.micro_batches);
    if (!default_group(s.p, s.micro_batches))
        fail("--pipeline-chunks %d over %d stages with %d micro-batches a step: wants at least %d "
             "micro-batches: choose a larger --batch, a smaller --micro-batch, or --pipeline-chunks 1",
             s.chunks, s.p, s.micro_batches, s.p);
    if (legal_group(s.p, s.micro_batches, s.interleave_group)) return;
    std::string good;
    for (int g = s.p; g <= s.micro_batches; g++)
        if (legal_group(s.p, s.micro_batches, g) &&
            (std::abs(g - s.interleave_group) < 12 || s.micro_batches < 24))
            good += text(" %d", g);
    fail(
        "--pipeline-group %d with %d micro-batches over %d stages: wants %d to %d, dividing %d or leaving "
        "at least %d: choose one of%s",
        s.interleave_group, s.micro_batches, s.p, s.p, s.micro_batches, s.micro_batches, s.p,
        good.empty() ? text(" %d", default_group(s.p, s.micro_batches)).c_str() : good.c_str());
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
    int next_dx = 0, least = s.p > 1 ? 2 : 1;  // inputs: one in use, one received ahead

    auto place = [&](I& i) {  // assigns the buffer that computation i reads
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

    int n = (int)work.size();
    for (int k = 0; k <= n; k++) {
        if (k > 0 && makes_message(work[k - 1], stage, s)) message(work[k - 1], true, k + 1);
        for (int ahead : {k, k + 1}) {
            if (ahead >= n || (s.p > 1 ? ahead == k && k > 0 : ahead > k)) continue;
            place(work[ahead]);
            if (takes_message(work[ahead], stage, s)) message(work[ahead], false, ahead);
        }

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

// "F0 F1 B0 …", with the chunk before the letter if there are several; with `messages` also the messages, in
// brackets by exchange: "[r0] [r1] F0 [s0 r2] F1 …" (s, r: forward; S, R: backward)
inline std::string print_schedule(const Schedule& s, bool messages = false) {
    std::string out;
    int exchange = -1;
    for (auto& i : s.list) {
        if (!messages && !i.computes()) continue;
        if (exchange >= 0 && i.exchange != exchange) out += "]";
        out += out.empty() ? "" : " ";
        if (i.exchange >= 0 && i.exchange != exchange) out += "[";
        exchange = i.exchange;
        if (s.shape.chunks > 1) out += text("%d", i.chunk);
        out += text("%c%d", "FBsrSR"[i.kind], i.micro_batch);
    }
    return out + (exchange >= 0 ? "]" : "");
}

// ---- verification: all stages are simulated --------------------------------------------------------------

// Advances each stage r by step(r, instruction) until step returns false (it must wait); stages take turns
// until none advances. stages[r].at: its next instruction. Returns the first unfinished stage, or -1
template <class Stage, class Step>
int take_turns(const std::vector<Schedule>& all, std::vector<Stage>& stages, Step step) {
    for (bool moved = true; moved;) {
        moved = false;
        for (size_t r = 0; r < all.size(); r++)
            for (auto& list = all[r].list; stages[r].at < list.size(); stages[r].at++, moved = true)
                if (!step((int)r, list[stages[r].at])) break;
    }
    for (size_t r = 0; r < all.size(); r++)
        if (stages[r].at < all[r].list.size()) return (int)r;
    return -1;
}

// A stage runs until it must wait; a message arrives when it has been sent and its receive is posted. check()
// returns "" or what is wrong: a buffer overwritten, another message than expected, a deadlock.
class ScheduleChecker {
    using I = Instruction;
    // messages as (micro_batch, number of the receiving chunk)
    struct Direction { std::vector<std::pair<int, int>> sent, received; };
    struct Stage {
        size_t at = 0;
        std::map<int, std::pair<int, int>> slots, input;                  // in use by (micro_batch, chunk)
        std::map<int, std::pair<Direction*, size_t>> slot_sent, dx_sent;  // last send from that buffer
        std::map<std::pair<int, int>, size_t> arrival[2];              // index among its direction's messages
        std::map<std::pair<int, int>, int> done[2];
        size_t peak = 0;
    };
    const std::vector<Schedule>& all;
    PipelineShape s;
    std::vector<Direction> forward, backward;  // [r]: messages out of stage r
    std::vector<Stage> stages;

    Direction& into(int stage, bool is_forward) {
        return is_forward ? forward[(stage + s.p - 1) % s.p] : backward[(stage + 1) % s.p];
    }
    static bool sent_on(const std::map<int, std::pair<Direction*, size_t>>& last, int memory) {
        auto found = last.find(memory);
        return found == last.end() || found->second.second < found->second.first->received.size();
    }
    [[noreturn]] void refuse(int stage, const I& i, const char* what) const {
        Schedule one = {s, stage, {i}};
        fail("stage %d, %s: %s", stage, print_schedule(one, true).c_str(), what);
    }
    // executes i on stage r; false: it must wait
    bool step(int r, const I& i) {
        Stage& me = stages[r];
        std::pair<int, int> key(i.micro_batch, i.chunk);
        int number = i.chunk * s.p + r;
        bool is_forward = i.kind == I::Forward || i.kind == I::SendForward || i.kind == I::ReceiveForward;
        const std::vector<Instruction>& list = all[r].list;

        for (size_t other = me.at; other-- > 0 && i.exchange >= 0 && list[other].exchange == i.exchange;)
            if (list[other].kind == i.kind) refuse(r, i, "two of a kind in one exchange");

        if (i.sends()) {
            Direction& d = is_forward ? forward[r] : backward[r];
            if (!me.done[!is_forward].count(key)) refuse(r, i, "sent before it is computed");
            (is_forward ? me.slot_sent[i.slot] : me.dx_sent[i.dx]) = {&d, d.sent.size()};
            d.sent.push_back({i.micro_batch, is_forward ? number + 1 : number - 1});
            return true;
        }

        if (!i.computes()) {
            if (!is_forward && !sent_on(me.dx_sent, i.dx)) return false;
            if (is_forward && !me.input.insert({i.input, key}).second) refuse(r, i, "its input is in use");
            Direction& d = into(r, is_forward);
            me.arrival[!is_forward][key] = d.received.size();
            d.received.push_back({i.micro_batch, number});
            return true;
        }

        // a forward or backward: its input must have come
        if (is_forward && !sent_on(me.slot_sent, i.slot)) return false;
        if (takes_message(i, r, s)) {
            Direction& d = into(r, is_forward);
            auto found = me.arrival[!is_forward].find(key);
            if (found == me.arrival[!is_forward].end()) refuse(r, i, "computed before its receive");
            if (found->second >= d.sent.size()) return false;
            if (d.sent[found->second] != d.received[found->second]) refuse(r, i, "gets another's message");
        } else if (is_forward) {
            if (!me.input.insert({i.input, key}).second) refuse(r, i, "its input is in use");
        } else if (!sent_on(me.dx_sent, i.dx)) {
            return false;
        }

        // its activations, and its input
        if (is_forward) {
            if (!me.slots.insert({i.slot, key}).second) refuse(r, i, "its activations are in use");
            if (i.slot >= all[r].slots || i.input >= all[r].inputs)
                refuse(r, i, "more memory than said");
            me.peak = std::max(me.peak, me.slots.size());
        } else {
            if (!me.slots.count(i.slot) || me.slots[i.slot] != key)
                refuse(r, i, "its activations are another's");
            if (i.dx >= all[r].dx_buffers) refuse(r, i, "more memory than said");
        }
        if (!me.input.count(i.input) || me.input[i.input] != key) refuse(r, i, "its input is another's");
        if (me.done[!is_forward][key]++) refuse(r, i, "done twice");

        if (!is_forward || !s.training) {
            me.slots.erase(i.slot);
            me.input.erase(i.input);
        }
        return true;
    }
    void finish() {
        for (int r = 0; r < s.p; r++) {
            for (int kind = 0; kind < (s.training ? 2 : 1); kind++)
                if ((int)stages[r].done[kind].size() != s.micro_batches * s.chunks)
                    fail("stage %d: %zu of %d computations", r, stages[r].done[kind].size(),
                         s.micro_batches * s.chunks);

            for (auto* d : {&forward[r], &backward[r]})
                if (d->sent != d->received) fail("stage %d: a message is not received as sent", r);

            // most forwards in flight, by the published formulas
            int after = s.p - r - 1;
            int most = s.chunks == 1 ? std::min(s.micro_batches, after + 1)
                : std::min(s.micro_batches * s.chunks, 2 * after + (s.chunks - 1) * s.interleave_group + 1);
            if (s.training && (int)stages[r].peak != most)
                fail("stage %d: %zu in flight, the formula says %d", r, stages[r].peak, most);
        }
    }

public:
    explicit ScheduleChecker(const std::vector<Schedule>& all) : all(all), s(all[0].shape), forward(s.p),
        backward(s.p), stages(s.p) {}

    std::string check() {
        try {
            int stuck = take_turns(all, stages, [&](int r, const I& i) { return step(r, i); });
            if (stuck >= 0) refuse(stuck, all[stuck].list[stages[stuck].at], "waits forever");
            finish();
        } catch (const Error& e) {
            return e.what();
        }
        return "";
    }
};

// whether on this stage every forward of the model's last chunk is followed at once by its backward: only
// then is memory for the logits of one micro-batch enough
inline bool loss_meets_backward(const Schedule& schedule) {
    const PipelineShape& s = schedule.shape;
    const Instruction* pending = nullptr;
    for (auto& i : schedule.list) {
        if (!i.computes()) continue;
        bool is_loss = schedule.stage == s.p - 1 && i.chunk == s.chunks - 1 && i.kind == Instruction::Forward;
        if (pending && (i.kind != Instruction::Backward || i.micro_batch != pending->micro_batch))
            return false;
        pending = is_loss ? &i : nullptr;
    }
    return true;
}

inline std::vector<Schedule> all_stages(const PipelineShape& s) {
    std::vector<Schedule> all;
    for (int r = 0; r < s.p; r++) all.push_back(make_schedule(r, s));
    return all;
}
