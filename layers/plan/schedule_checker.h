// schedule_checker.h   all stages of a pipeline schedule, played by hand: is any message lost, any buffer
//   overwritten, any stage left waiting?
#pragma once
#include <map>
#include <string>
#include <utility>
#include <vector>
#include "../../comm/schedule.h"
#include "../base/check.h"

inline std::vector<Schedule> all_stages(const PipelineShape& s) {
    std::vector<Schedule> all;
    for (int r = 0; r < s.p; r++) all.push_back(make_schedule(r, s));
    return all;
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
