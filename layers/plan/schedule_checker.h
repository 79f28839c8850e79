// schedule_checker.h   is any message of a pipeline schedule lost, any buffer (activations, inputs, gradients
//   of activations) overwritten, any stage left waiting? All its stages are played (schedule_player.h)
#pragma once
#include "schedule_player.h"

class ScheduleChecker {
    using I = Instruction;
    // messages as (micro_batch, number of the receiving chunk)
    struct Direction { std::vector<std::pair<int, int>> sent, received; };
    struct Stage {
        std::map<int, std::pair<int, int>> slots, input, dx;  // in use by (micro_batch, chunk)
        std::map<std::pair<int, int>, int> done[2];
        size_t peak = 0;
        Direction out[2];  // [forward]
    };
    const std::vector<Schedule>& all;
    PipelineShape s;
    std::vector<Stage> stages;

    static bool owns(const std::map<int, std::pair<int, int>>& users, int buffer, const I& i) {
        auto user = users.find(buffer);
        return user != users.end() && user->second == key_of(i);
    }

    Direction& into(int stage, bool forward) {
        return stages[(stage + (forward ? s.p - 1 : 1)) % s.p].out[forward];
    }

    void check_exchanges(const Schedule& stage) const {
        for (size_t at = 0; at < stage.list.size(); at++) {
            const I& i = stage.list[at];
            for (size_t b = at; b-- > 0 && i.exchange >= 0 && stage.list[b].exchange == i.exchange;)
                if (stage.list[b].kind == i.kind) refuse(stage, i, "two of a kind in one exchange");
        }
    }

    void finish() {
        for (int r = 0; r < s.p; r++) {
            for (int kind = 0; kind < (s.training ? 2 : 1); kind++)
                if ((int)stages[r].done[kind].size() != s.micro_batches * s.chunks)
                    fail("stage %d: %zu of %d computations", r, stages[r].done[kind].size(),
                         s.micro_batches * s.chunks);

            for (auto& d : stages[r].out)
                if (d.sent != d.received) fail("stage %d: a message is not received as sent", r);

            // most forwards in flight, by the published formulas
            int after = s.p - r - 1;
            int most = s.chunks == 1 ? std::min(s.micro_batches, after + 1)
                : std::min(s.micro_batches * s.chunks, 2 * after + (s.chunks - 1) * s.interleave_group + 1);
            if (s.training && (int)stages[r].peak != most)
                fail("stage %d: %zu in flight, the formula says %d", r, stages[r].peak, most);
        }
    }

public:
    explicit ScheduleChecker(const std::vector<Schedule>& all) : all(all), s(all[0].shape), stages(s.p) {}

    // "", or what is wrong
    std::string check() {
        try {
            for (auto& stage : all) check_exchanges(stage);
            SchedulePlayer(all, *this).play();
            finish();
        } catch (const Error& e) {
            return e.what();
        }
        return "";
    }

    // ---- the player's rules ------------------------------------------------------------------------------

    void send(int r, const I& i) {
        bool forward = i.is_forward();
        if (!stages[r].done[!forward].count(key_of(i))) refuse(all[r], i, "sent before it is computed");
        if (!forward && !owns(stages[r].dx, i.dx, i)) refuse(all[r], i, "its gradient is another's");
        if (!forward) stages[r].dx.erase(i.dx);
        int number = i.chunk * s.p + r;
        stages[r].out[forward].sent.push_back({i.micro_batch, forward ? number + 1 : number - 1});
    }

    void post(int r, const I& i) {
        if (i.is_forward() && !stages[r].input.insert({i.input, key_of(i)}).second)
            refuse(all[r], i, "its input is in use");
        if (!i.is_forward() && !stages[r].dx.insert({i.dx, key_of(i)}).second)
            refuse(all[r], i, "its gradient's buffer is in use");
        into(r, i.is_forward()).received.push_back({i.micro_batch, i.chunk * s.p + r});
    }

    bool has_left(int r, bool forward, size_t n) const { return n < stages[r].out[forward].received.size(); }

    bool has_come(int r, const I& i, size_t n) {
        Direction& d = into(r, i.is_forward());
        if (n >= d.sent.size()) return false;
        if (d.sent[n] != d.received[n]) refuse(all[r], i, "gets another's message");
        return true;
    }

    void compute(int r, const I& i) {
        Stage& me = stages[r];
        std::pair<int, int> key = key_of(i);
        bool forward = i.is_forward();
        if (forward && !takes_message(i, r, s) && !me.input.insert({i.input, key}).second)
            refuse(all[r], i, "its input is in use");

        if (forward) {
            if (!me.slots.insert({i.slot, key}).second) refuse(all[r], i, "its activations are in use");
            if (i.slot >= all[r].slots || i.input >= all[r].inputs)
                refuse(all[r], i, "more memory than said");
            me.peak = std::max(me.peak, me.slots.size());
        } else {
            if (!owns(me.slots, i.slot, i)) refuse(all[r], i, "its activations are another's");
            if (i.dx >= all[r].dx_buffers) refuse(all[r], i, "more memory than said");
            if (!takes_message(i, r, s) && !me.dx.insert({i.dx, key}).second)
                refuse(all[r], i, "its gradient's buffer is in use");
            if (!owns(me.dx, i.dx, i)) refuse(all[r], i, "its gradient is another's");
            if (!makes_message(i, r, s)) me.dx.erase(i.dx);
        }
        if (!owns(me.input, i.input, i)) refuse(all[r], i, "its input is another's");
        if (me.done[!forward][key]++) refuse(all[r], i, "done twice");

        if (!forward || !s.training) {
            me.slots.erase(i.slot);
            me.input.erase(i.input);
        }
    }
};
