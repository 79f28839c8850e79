// test_schedule.h   schedules of many shapes are played, all stages by turns; spoilt ones are noticed
#pragma once
#include "../layers/base/testing.h"
#include "../layers/plan/schedule_checker.h"
#include "../layers/run/schedules.h"

void check_schedule(const PipelineShape& s) {
    std::string error = ScheduleChecker(all_stages(s)).check();
    check(error.empty(),
          text("p %d m %d v %d g %d: %s", s.p, s.micro_batches, s.chunks, s.interleave_group, error.c_str()));
}

// a schedule spoilt on purpose must be noticed
template <class Spoil>
void spoilt(const std::string& part, const PipelineShape& s, Spoil spoil) {
    std::vector<Schedule> all = all_stages(s);
    spoil(all);
    std::string error = ScheduleChecker(all).check();
    check(error.find(part) != std::string::npos,
          text("a spoilt schedule: \"%s\", expected \"%s\"", error.c_str(), part.c_str()));
}

void test_schedule() {
    using I = Instruction;
    for (int p = 1; p <= 12; p++)
        for (int m = 1; m <= 24; m++) {
            check_schedule({p, m, 1, m});
            check_schedule({p, m, 1, p, false});
            for (int v = 2; v <= 3 && p > 1; v++) {
                check_schedule({p, m, v, p, false});
                for (int g = p; g <= m; g++) if (legal_group(p, m, g)) check_schedule({p, m, v, g});
            }
        }
    for (int m : {240, 192, 160}) check_schedule({35, m, 1, m});

    for (auto [m, g] : {std::pair{240, 40}, {240, 48}, {192, 48}, {192, 39}, {160, 40}}) {
        check(legal_group(35, m, g), text("35 stages, %d micro-batches: groups of %d are possible", m, g));
        check_schedule({35, m, 3, g});
    }
    check(!legal_group(35, 192, 40) && !legal_group(35, 160, 39), "and others not");
    check(!legal_group(35, 240, 35) && !legal_group(35, 192, 35) && !legal_group(35, 160, 35),
          "the classic group of 35 is not possible with 240, 192 or 160 micro-batches");
    check(print_schedule(make_schedule(0, {4, 6, 1, 6})) == "F0 F1 F2 F3 B0 F4 B1 F5 B2 B3 B4 B5" &&
          print_schedule(make_schedule(2, {4, 4, 1, 4})) == "F0 F1 B0 F2 B1 F3 B2 B3" &&
          print_schedule(make_schedule(3, {4, 2, 1, 2})) == "F0 B0 F1 B1", "1F1B");
    check(print_schedule(make_schedule(1, {2, 4, 2, 2})) ==
          "0F0 0F1 1F0 1B0 1F1 1B1 0F2 0B0 0F3 0B1 1F2 1B2 1F3 1B3 0B2 0B3", "interleaved 1F1B");
    check(print_schedule(make_schedule(1, {2, 2, 1, 2}), true) == "[r0] F0 [r1] B0 [S0] F1 B1 [S1]",
          "messages: " + print_schedule(make_schedule(1, {2, 2, 1, 2}), true));

    auto find = [](Schedule& s, I::Kind kind, int micro) {
        return std::find_if(s.list.begin(), s.list.end(),
                            [=](auto& i) { return i.kind == kind && i.micro_batch == micro; });
    };
    PipelineShape plain = {4, 6, 1, 6}, deep = {4, 8, 2, 4};
    spoilt("another's message", plain,
           [&](auto& all) { all[0].list.erase(find(all[0], I::SendForward, 2)); });
    spoilt("waits forever", plain, [&](auto& all) { all[2].list.erase(find(all[2], I::SendBackward, 5)); });
    spoilt("before its receive", plain,
           [&](auto& all) { all[1].list.erase(find(all[1], I::ReceiveForward, 3)); });
    spoilt("its activations are in use", plain,
           [&](auto& all) { find(all[0], I::Forward, 1)->slot = 0; });
    spoilt("its activations are another's", plain,
           [&](auto& all) { find(all[0], I::Backward, 1)->slot = 0; });
    spoilt("its input is in use", deep, [&](auto& all) { find(all[1], I::ReceiveForward, 1)->input = 0; });
    spoilt("its gradient's buffer is in use", plain, [&](auto& all) {
        for (auto& i : all[0].list)
            if (i.dx >= 0) i.dx = 0;
    });
    spoilt("its gradient is another's", plain, [&](auto& all) { find(all[1], I::Backward, 1)->dx = 2; });
    spoilt("its gradient is another's", plain, [&](auto& all) { find(all[1], I::SendBackward, 1)->dx = 2; });

    spoilt("sent before it is computed", plain, [&](auto& all) {
        auto send = find(all[0], I::SendForward, 0);
        std::swap(*send, *(send - 1));
    });
    spoilt("done twice", plain, [&](auto& all) {
        auto f = find(all[3], I::Forward, 0);
        I again = *f;
        again.slot = 1;
        all[3].slots = 2;
        all[3].list.insert(f + 1, again);
    });

    spoilt("of 6 computations", {1, 6, 1, 6},
           [&](auto& all) { all[0].list.resize(all[0].list.size() - 2); });
    spoilt("two of a kind", plain, [&](auto& all) {
        find(all[1], I::ReceiveForward, 1)->exchange = find(all[1], I::ReceiveForward, 0)->exchange;
    });

    spoilt("the formula says", plain,
           [&](auto& all) {  // one forward more than needed before the first backward
               all = all_stages({4, 6, 1, 6});
               auto b = find(all[0], I::Backward, 0), f = find(all[0], I::Forward, 4);
               I late = *b;
               auto last = find(all[0], I::Backward, 4);
               f->slot = last->slot = 4;
               f->input = last->input = 8;
               all[0].slots = 5;
               all[0].inputs = 9;
               all[0].list.erase(b);
               all[0].list.insert(find(all[0], I::Forward, 4) + 1, late);
           });
    spoilt("waits forever", {10, 24, 2, 24},
           [&](auto& all) {  // too few gradients for the way back to the end
               for (auto& i : all[0].list)
                   if (i.dx >= 0) i.dx %= 3;
           });
    refuses("needs at least 4 micro-batches", [] { check_pipeline({4, 3, 2, 4}); });
    refuses("choose 4, 6, 7, 8 or 12", [] { check_pipeline({4, 12, 2, 5}); });
    check_pipeline({4, 132, 2, 132});
    refuses("--pipeline-group 133 over 4 stages: must be at most 132",
            [] { check_pipeline({4, 133, 2, 133}); });

    for (int rank = 0; rank < 24; rank++) {
        Grid g = place_in_grid(rank, 24, 2, 3);
        check(g.d == 4 && g.rank_of(g.tensor, g.data, g.stage) == rank, "rank = tensor + t (data + d stage)");
    }
    Grid g = place_in_grid(13, 24, 2, 3);
    check(g.tensor == 1 && g.data == 2 && g.stage == 1, "rank 13 of 24 = 1 + 2 (2 + 4 x 1)");
}
