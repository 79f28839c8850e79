// schedule_player.h   all stages of a pipeline schedule, played: a stage executes its instructions until one
//   must wait; then it is another stage's turn. Which message an instruction waits for is decided here, as in
//   layers/model/pipeline.h: a computation waits for the message that it takes, and whatever writes a buffer
//   for the last message sent from it. What happens then is up to the rules: schedule_checker.h asks whether
//   it is legal, simulate.h when it happens. A message arrives when it has been sent and its receive is
//   posted. Messages out of a stage are numbered from 0 in each direction, at the sender and the receiver.
//   Rules have:
//     send(r, i), post(r, i)     instruction i of stage r sends the next message, or posts the next receive
//     has_left(r, forward, n)    has message n out of stage r arrived? Then its buffer may be written
//     has_come(r, i, n)          has message n into stage r, which i takes, arrived?
//     compute(r, i)              a forward or backward
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

[[noreturn]] inline void refuse(const Schedule& stage, const Instruction& i, const char* what) {
    Schedule one = {stage.shape, stage.stage, {i}};
    fail("stage %d, %s: %s", stage.stage, print_schedule(one, true).c_str(), what);
}

inline std::pair<int, int> key_of(const Instruction& i) { return {i.micro_batch, i.chunk}; }

template <class Rules>
class SchedulePlayer {
    using I = Instruction;
    struct Stage {
        size_t at = 0;                           // its next instruction
        size_t sent[2] = {}, posted[2] = {};     // messages, by direction: [forward]
        std::map<int, size_t> last_sent[2];      // by buffer: slots' outputs (forward), dx buffers
        std::map<std::pair<int, int>, size_t> arrival[2];  // the message that a computation takes
    };
    const std::vector<Schedule>& all;
    Rules& rules;
    std::vector<Stage> stages;

    // false: it must wait
    bool step(int r, const I& i) {
        Stage& me = stages[r];
        bool forward = i.is_forward();
        int buffer = forward ? i.slot : i.dx;
        auto& last = me.last_sent[forward];
        auto may_write = [&] { return !last.count(buffer) || rules.has_left(r, forward, last[buffer]); };

        if (i.sends()) {
            rules.send(r, i);
            last[buffer] = me.sent[forward]++;
            return true;
        }
        if (!i.computes()) {
            if (!forward && !may_write()) return false;
            rules.post(r, i);
            me.arrival[forward][key_of(i)] = me.posted[forward]++;
            return true;
        }

        if (!may_write()) return false;
        if (takes_message(i, r, all[r].shape)) {
            auto found = me.arrival[forward].find(key_of(i));
            if (found == me.arrival[forward].end()) refuse(all[r], i, "computed before its receive");
            if (!rules.has_come(r, i, found->second)) return false;
        }
        rules.compute(r, i);
        return true;
    }

public:
    SchedulePlayer(const std::vector<Schedule>& all, Rules& rules)
        : all(all), rules(rules), stages(all.size()) {}

    void play() {
        for (bool moved = true; moved;) {
            moved = false;
            for (size_t r = 0; r < all.size(); r++)
                for (auto& list = all[r].list; stages[r].at < list.size(); stages[r].at++, moved = true)
                    if (!step((int)r, list[stages[r].at])) break;
        }
        for (size_t r = 0; r < all.size(); r++)
            if (stages[r].at < all[r].list.size())
                refuse(all[r], all[r].list[stages[r].at], "waits forever");
    }
};
