// simulate.h   a step's schedules in virtual time: every stage executes its instructions as
//   layers/model/pipeline.h does. A stage has a compute stream, a stream for each direction of each
//   neighbour, and one for its buckets. A message begins when it is sent, its receive is posted and its
//   stream is free; a computation begins when its input has arrived and what it overwrites has been sent; a
//   bucket is reduced when the last micro-batch has passed its layers, and gathered under the next step's
//   first forward. Two steps are simulated; the second, which begins with gathers under way, is the result.
//   All replicas and all tensor-parallel ranks are alike, so one rank per stage is simulated. Links are not
//   shared: NVLink and network adapters carry messages and reductions at the same time, each at full rate.
#pragma once
#include "dry_run.h"
#include "schedule_checker.h"
#include "span.h"

struct Simulation {
    double seconds = 0;            // of a step
    std::vector<double> busy;      // of each stage, in forward and backward
    std::vector<Span> spans;       // of a step, which begins at 0
    double idle() const {          // the mean stage's share of the step
        double sum = 0;
        for (double b : busy) sum += 1 - b / seconds;
        return sum / (double)busy.size();
    }
};

class Simulator {
    using I = Instruction;
    struct Direction {
        std::vector<double> sent, posted, finish;
        std::vector<Place> what;  // micro-batch and chunk at the sender
    };
    struct Stage {
        double now = 0, bucket_stream = 0;             // time of the compute stream, of the buckets' stream
        std::vector<double> ready;               // when each bucket's parameters are there
        size_t at = 0;
        std::map<int, std::pair<Direction*, size_t>> slot_sent, dx_sent;
        std::map<std::pair<int, int>, size_t> arrival[2];
    };
    const std::vector<Schedule>& all;
    const std::vector<StageRun>& runs;
    double reports;                            // seconds, at the end of a step
    PipelineShape s;
    std::vector<Stage> stages;
    std::vector<Direction> forward, backward;  // [r]: out of stage r
    Simulation* out = nullptr;                 // set during the step that counts

    Direction& into(int r, bool is_forward) {
        return is_forward ? forward[(r + s.p - 1) % s.p] : backward[(r + 1) % s.p];
    }

    void add(Span::Kind kind, int stage, const Place& of, double start, double end) {
        if (out) out->spans.push_back({kind, stage, of.micro_batch, of.chunk, of.bucket, start, end});
    }

    double message_seconds(int stage, bool is_forward) const {
        I::Kind kind = is_forward ? I::SendForward : I::SendBackward;
        return runs[stage].message[kind - I::SendForward].seconds();
    }

    // every message whose send and receive are both posted is carried
    void advance(Direction& d, int stage, double seconds) {
        while (d.finish.size() < std::min(d.sent.size(), d.posted.size())) {
            size_t i = d.finish.size();
            double start = std::max({d.sent[i], d.posted[i], i ? d.finish[i - 1] : 0.0});
            d.finish.push_back(start + seconds);
            add(Span::Message, stage, d.what[i], start, start + seconds);
        }
    }

    // waits until the last send from a buffer has ended; false: the time of its end is not known yet
    bool await_sent(Stage& me, std::map<int, std::pair<Direction*, size_t>>& last, int memory) {
        auto found = last.find(memory);
        if (found == last.end()) return true;
        auto [direction, i] = found->second;
        if (i >= direction->finish.size()) return false;
        me.now = std::max(me.now, direction->finish[i]);
        last.erase(found);
        return true;
    }

    bool message(int r, const I& i, bool is_forward) {
        Stage& me = stages[r];
        if (i.sends()) {
            Direction& d = is_forward ? forward[r] : backward[r];
            (is_forward ? me.slot_sent[i.slot] : me.dx_sent[i.dx]) = {&d, d.sent.size()};
            d.sent.push_back(me.now);
            d.what.push_back({.micro_batch = i.micro_batch, .chunk = i.chunk});
            advance(d, r, message_seconds(r, is_forward));
            return true;
        }

        if (!is_forward && !await_sent(me, me.dx_sent, i.dx)) return false;
        int from = is_forward ? (r + s.p - 1) % s.p : (r + 1) % s.p;
        Direction& d = into(r, is_forward);
        me.arrival[!is_forward][{i.micro_batch, i.chunk}] = d.posted.size();
        d.posted.push_back(me.now);
        advance(d, from, message_seconds(from, is_forward));
        return true;
    }

    // false: it must wait for something that is not known yet
    bool step(int r, const I& i) {
        Stage& me = stages[r];
        const StageRun& run = runs[r];
        bool is_forward = i.kind == I::Forward || i.kind == I::SendForward || i.kind == I::ReceiveForward;

        if (!i.computes()) return message(r, i, is_forward);
        if (is_forward ? !await_sent(me, me.slot_sent, i.slot)
            : !await_sent(me, me.dx_sent, i.dx)) return false;

        if (takes_message(i, r, s)) {
            Direction& d = into(r, is_forward);
            size_t arrival = me.arrival[!is_forward].at({i.micro_batch, i.chunk});
            if (arrival >= d.finish.size()) return false;
            me.now = std::max(me.now, d.finish[arrival]) + run.gathered.seconds();
        }

        double start = me.now;
        int which = which_micro_batch(i.micro_batch, s.micro_batches);
        for (auto& piece : (is_forward ? run.forward : run.backward)[i.chunk][which].pieces) {
            for (int b : piece.awaited) me.now = std::max(me.now, me.ready[b]);
            me.now += piece.seconds;
            for (auto& call : piece.beside) {
                double begin = std::max(me.bucket_stream, me.now);
                me.bucket_stream = begin + call.seconds;
                add(Span::Reduce, r, {.bucket = call.bucket}, begin, me.bucket_stream);
            }
        }

        if (out) out->busy[r] += me.now - start;
        Place place = {.micro_batch = i.micro_batch, .chunk = i.chunk};
        add(is_forward ? Span::Forward : Span::Backward, r, place, start, me.now);
        return true;
    }

    // complete_gradients and update_parameters of optimizer.h; returns the time when all ranks have the norm
    double finish_step() {
        double last = 0;
        for (int r = 0; r < s.p; r++) {
            Stage& me = stages[r];
            for (auto* d : {&forward[r], &backward[r], &into(r, true), &into(r, false)})
                if (!d->finish.empty()) me.now = std::max(me.now, d->finish.back());
            me.now = std::max(me.now, me.bucket_stream) + runs[r].reduce.seconds();
        }

        if (s.p > 1)
            stages.front().now = stages.back().now =
                std::max(stages.front().now, stages.back().now) + runs.front().tied.seconds();

        for (int r = 0; r < s.p; r++) last = std::max(last, stages[r].now + runs[r].norm.seconds());
        last += reports;

        for (int r = 0; r < s.p; r++) {
            Stage& me = stages[r];
            me.now = last;
            for (size_t b = 0; b < runs[r].update.size(); b++) {
                const TimedPiece& piece = runs[r].update[b].pieces.back();
                me.now += piece.seconds;
                me.ready[b] = me.now;
                for (auto& call : piece.beside) {
                    double begin = std::max(me.bucket_stream, me.now);
                    me.ready[b] = me.bucket_stream = begin + call.seconds;
                    add(Span::Gather, r, {.bucket = (int)b}, begin, me.bucket_stream);
                }
            }
            add(Span::Update, r, {}, last, me.now);
        }
        return last;
    }

    void play() {
        forward.assign(s.p, {});
        backward.assign(s.p, {});
        for (auto& me : stages) {
            me.at = 0;
            me.slot_sent.clear();
            me.dx_sent.clear();
            me.arrival[0].clear();
            me.arrival[1].clear();
        }
        for (int r = 0; r < s.p; r++) stages[r].now += runs[r].clear.seconds();
        int stuck = take_turns(all, stages, [&](int r, const I& i) { return step(r, i); });
        if (stuck >= 0) fail("stage %d waits forever: a defect of this program", stuck);
    }

public:
    // runs: one per stage; reports: seconds that the ranks' reports take at the end of a step
    Simulator(const std::vector<Schedule>& all, const std::vector<StageRun>& runs, double reports)
        : all(all), runs(runs), reports(reports), s(all[0].shape), stages(s.p) {
        for (int r = 0; r < s.p; r++) stages[r].ready.assign(runs[r].update.size(), 0);
    }

    Simulation run() {
        Simulation result;
        // the first step starts with all stages together; the second is one of many
        play();
        double first = finish_step();
        result.busy.assign(s.p, 0);
        out = &result;
        play();
        double second = finish_step();

        result.seconds = second - first;
        for (auto& span : result.spans) {
            span.start -= first;
            span.end -= first;
        }
        return result;
    }
};
