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
#include "schedule_player.h"
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
        double now = 0, bucket_stream = 0;  // time of the compute stream, of the buckets' stream
        std::vector<double> ready;          // when each bucket's parameters are there
        Direction out[2];                   // messages of this step, [forward]
    };
    const std::vector<Schedule>& all;
    const std::vector<StageRun>& runs;
    double reports;             // seconds, at the end of a step
    PipelineShape s;
    std::vector<Stage> stages;
    Simulation* out = nullptr;  // set during the step that counts

    int sender_to(int r, bool forward) const { return (r + (forward ? s.p - 1 : 1)) % s.p; }

    void add(Span::Kind kind, int stage, const Place& of, double start, double end) {
        if (out) out->spans.push_back({kind, stage, of.micro_batch, of.chunk, of.bucket, start, end});
    }

    // every message out of the stage whose send and receive are both posted is carried
    void carry(int stage, bool forward) {
        Direction& d = stages[stage].out[forward];
        I::Kind kind = forward ? I::SendForward : I::SendBackward;
        double seconds = runs[stage].message[kind - I::SendForward].seconds();
        while (d.finish.size() < std::min(d.sent.size(), d.posted.size())) {
            size_t i = d.finish.size();
            double start = std::max({d.sent[i], d.posted[i], i ? d.finish[i - 1] : 0.0});
            d.finish.push_back(start + seconds);
            add(Span::Message, stage, d.what[i], start, start + seconds);
        }
    }

    // the stage waits for the end of a message; false: it is not known yet
    bool await(int r, const Direction& d, size_t n) {
        if (n >= d.finish.size()) return false;
        stages[r].now = std::max(stages[r].now, d.finish[n]);
        return true;
    }

    // complete_gradients and update_parameters of optimizer.h; returns the time when all ranks have the norm
    double finish_step() {
        double last = 0;
        for (int r = 0; r < s.p; r++) {
            Stage& me = stages[r];
            for (bool forward : {false, true})
                for (int from : {r, sender_to(r, forward)})
                    if (auto& d = stages[from].out[forward]; !d.finish.empty())
                        me.now = std::max(me.now, d.finish.back());
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
        for (int r = 0; r < s.p; r++) {
            for (auto& d : stages[r].out) d = {};
            stages[r].now += runs[r].clear.seconds();
        }
        SchedulePlayer(all, *this).play();
    }

public:
    // runs: one per stage; reports: seconds that the ranks' reports take at the end of a step
    Simulator(const std::vector<Schedule>& all, const std::vector<StageRun>& runs, double reports)
        : all(all), runs(runs), reports(reports), s(all[0].shape), stages(s.p) {
        for (int r = 0; r < s.p; r++) stages[r].ready.assign(runs[r].update.size(), 0);
    }

    Simulation run() {
        Simulation result;
        // the first step starts on all stages at once; the second is like all later ones
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

    // ---- the player's rules ------------------------------------------------------------------------------

    void send(int r, const I& i) {
        Direction& d = stages[r].out[i.is_forward()];
        d.sent.push_back(stages[r].now);
        d.what.push_back({.micro_batch = i.micro_batch, .chunk = i.chunk});
        carry(r, i.is_forward());
    }

    void post(int r, const I& i) {
        int from = sender_to(r, i.is_forward());
        stages[from].out[i.is_forward()].posted.push_back(stages[r].now);
        carry(from, i.is_forward());
    }

    bool has_left(int r, bool forward, size_t n) { return await(r, stages[r].out[forward], n); }

    bool has_come(int r, const I& i, size_t n) {
        if (!await(r, stages[sender_to(r, i.is_forward())].out[i.is_forward()], n)) return false;
        stages[r].now += runs[r].gathered.seconds();
        return true;
    }

    void compute(int r, const I& i) {
        Stage& me = stages[r];
        const StageRun& run = runs[r];
        double start = me.now;
        WhichMicroBatch which = which_micro_batch(i.micro_batch, s.micro_batches);
        for (auto& piece : (i.is_forward() ? run.forward : run.backward)[i.chunk].at(which).pieces) {
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
        add(i.is_forward() ? Span::Forward : Span::Backward, r, place, start, me.now);
    }
};
