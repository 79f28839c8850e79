// test_plan.h   checks of plans: the published runs, simulation against formulas, advice, pictures, lists
#pragma once
#include "../run/test_options.h"
#include "published.h"

Run resolved_plan(const std::string& words) {
    Run run;
    std::istringstream in(words);
    std::vector<std::string> list = {"--plan"};
    for (std::string word; in >> word;) list.push_back(word);
    run.options = options_of(list);
    check_plan_options(run.options);
    resolve_plan(run);
    return run;
}

Plan plan_of(const std::string& words) {
    Run run = resolved_plan(words);
    return whole_plan(run, choose_hardware(run.options));
}

const std::string mtnlg = "--config scripts/mtnlg-530b.conf --hardware dgx-a100 ";

// the published runs (arXiv 2201.11990), all met with one constant; and figures that follow from the sizes
void test_plan_mtnlg() {
    struct {
        int world;
        double seconds, tflops;
    } runs[] = {{2240, 60.1, 126}, {2800, 50.2, 121}, {3360, 44.4, 113}};
    for (auto& r : runs) {
        Plan p = plan_of(mtnlg + text("--ramp-start 0 --world-size %d", r.world));
        double s = p.step().seconds, tflops = model_flops(p.shape, 1920, true) / s / r.world * 1e-12;
        check(std::abs(s / r.seconds - 1) < 0.03,
              text("%d GPUs: %.2f s, published %.1f", r.world, s, r.seconds));
        check(std::abs(tflops / r.tflops - 1) < 0.03, text("%d GPUs: %.1f TFLOP/s", r.world, tflops));
    }

    for (size_t i = 0; i < std::size(published_runs); i++) {
        const PublishedRun& r = published_runs[i];
        double off = planned_seconds(r) / r.seconds - 1;
        double most = r.source == smith ? 0.03 : i < fitted_runs ? 0.05 : 0.15;
        check(std::abs(off) < most, text("%s: %+.1f %%", r.name, 100 * off));
    }

    check(Options().gemm_efficiency == mtnlg_efficiency, "MT-NLG's is the default");
    std::string report = published_report();
    check(std::count(report.begin(), report.end(), '\n') == 2 + (long)std::size(published_runs), report);
    Plan p = plan_of(mtnlg + "--world-size 2240");
    check(parameter_table(p.shape).count == 529600819200, "parameters of 530B");
    check(p.stages.size() == 35 && p.stages[0].parameters == 2060874240 &&
              p.stages[1].parameters == 1887859200 && p.stages[34].parameters == 2018972160,
          "of stages 0, 1, 34");

    // ZeRO-1 at d = 8: 6 bytes a parameter, 7/8 of them to others; padding of the buckets is less than 1e-4
    double data = (double)p.stages[1].work.at(1920).traffic.at("data").sent;
    check(std::abs(data / (6.0 * 1887859200 * 7 / 8) - 1) < 1e-4, text("data-parallel traffic %.3g", data));
    double forward = (double)p.stages[1].work.at(1920).traffic.at("forward").sent;
    check(forward == 240 * 2.0 * 2048 * 20480 / 8, text("messages %.3g", forward));
    Recipe r = recipe_of(p);
    check(r.ramp == 14475 && r.steps == 80087, text("%ld steps, %ld in the ramp", r.steps, r.ramp));
    for (int world : {2800, 3360})
        refuses("or 1, 2, 4, 8, 16 or 32 data-parallel ranks",
                [&] { plan_of(mtnlg + text("--world-size %d", world)); });
    auto legal = [](int d, int N) { return legal_group(35, 1920 / d, N); };
    check(!legal(8, 35) && !legal(10, 35) && !legal(12, 35) && legal(8, 40) && legal(12, 40) &&
              !legal(10, 40) && legal(8, 48) && legal(10, 48) && legal(10, 39),
          "group sizes");
    Run large = resolved_plan(mtnlg + "--world-size 2240 --recompute none");
    Hardware h = choose_hardware(large.options);
    check(!whole_plan(large, h).fits(), "every activation kept does not fit");
    check(p.communicators() == 7 && most_communicators(place_in_grid(0, 70, 1, 2), false) == 5 &&
              most_communicators(place_in_grid(0, 8, 8, 1), false) == 2 &&
              most_communicators(place_in_grid(0, 2, 1, 2), true) == 6 &&
              most_communicators(place_in_grid(0, 1, 1, 1), false) == 0,
          "communicators");
    std::string advice = what_would_fit(large, h);
    check(advice.find("--recompute full: 32.") != advice.npos &&
              advice.find("--sequence-parallel yes") != advice.npos,
          advice);
    std::string said = plan_text(p);
    check(said.find("529,600,819,200 parameters") != said.npos &&
              said.find("stage 34: 2,018,972,160") != said.npos && grouped(7) == "7" &&
              grouped(1000) == "1,000",
          said);
    prove_grid(p);
    check(prove_schedules(p) == 35 * 60, "the schedules of 60 batches");
}

// stages that are alike, over links that take no time: the formulas of the bubble are exact
void test_plan_simulation() {
    auto play = [](PipelineShape s, double forward, double backward, double message, double last = 0,
                   double reports = 0, double at_end = 0, double of_bucket = 0) {
        std::vector<StageRun> runs(s.p);
        auto part = [](double seconds) {
            StepPart out;
            out.pieces[0].seconds = seconds;
            return out;
        };
        auto all_alike = [](const StepPart& part) {
            PartByMicroBatch out;
            for (bool is_first : {false, true})
                for (bool is_last : {false, true}) out[{is_first, is_last}] = part;
            return out;
        };
        for (auto& run : runs) {
            run.forward.assign(s.chunks, all_alike(part(forward / s.chunks)));
            run.backward.assign(s.chunks, all_alike(part(backward / s.chunks)));
            for (auto& each : run.message) each = part(message);
            run.clear = run.reduce = run.tied = run.norm = part(at_end);
        }
        for (auto& [which, each] : runs.front().backward.front())
            if (which.is_last) each.pieces[0].beside = {{0, of_bucket}};
        for (auto& [which, each] : runs.back().backward.back()) each.pieces[0].seconds += last;
        return Simulator(all_stages(s), runs, reports).run();
    };

    for (int p : {1, 2, 4, 7})
        for (int m : {7, 8, 30}) {
            double wants = (m + p - 1) * 3.0, got = play({p, m, 1, m}, 1, 2, 0).seconds;
            check(std::abs(got - wants) < 1e-9, text("1F1B p %d m %d: %g, expected %g", p, m, got, wants));
        }
    for (int v : {2, 3})  // arXiv 2104.04473: the bubble is cut by v
        for (int p : {2, 4}) {
            double wants = 8 * 3.0 + (p - 1) * 3.0 / v, got = play({p, 8, v, p}, 1, 2, 0).seconds;
            check(std::abs(got - wants) < 1e-9,
                  text("interleaved p %d v %d: %g, expected %g", p, v, got, wants));
        }

    // neighbours wait for one message in turn: one more micro-batch costs its work and one message
    double more = play({2, 20, 1, 20}, 1, 2, 0.25).seconds - play({2, 10, 1, 10}, 1, 2, 0.25).seconds;
    check(std::abs(more - 10 * 3.25) < 1e-9, text("ten micro-batches more: %g", more));

    // the slowest stage sets the pace
    more = play({4, 30, 1, 30}, 1, 2, 0, 0.5).seconds - play({4, 20, 1, 20}, 1, 2, 0, 0.5).seconds;
    check(std::abs(more - 10 * 3.5) < 1e-9, text("ten more with a slow last stage: %g", more));
    Simulation s = play({4, 8, 1, 8}, 1, 2, 0);
    more = play({4, 8, 1, 8}, 1, 2, 0, 0, 0.5).seconds - s.seconds;
    check(std::abs(more - 0.5) < 1e-9, text("reports of half a second: %g", more));
    more = play({4, 8, 1, 8}, 1, 2, 0, 0, 0, 0.5).seconds - s.seconds;
    check(std::abs(more - 4 * 0.5) < 1e-9, text("clear, reduce, tied and norm of half a second: %g", more));
    more = play({4, 8, 1, 8}, 1, 2, 0, 0, 0, 0, 5).seconds - s.seconds;
    check(std::abs(more - 5) < 1e-9, text("a bucket's reduction of 5 seconds, behind the last: %g", more));
    check(std::abs(s.idle() - 3.0 / 11) < 1e-9, text("idle %g", s.idle()));
    bool apart = true;
    for (auto& a : s.spans)
        for (auto& b : s.spans)
            if (&a < &b && a.row == b.row && a.kind <= Span::Backward && b.kind <= Span::Backward)
                apart &= a.end <= b.start + 1e-12 || b.end <= a.start + 1e-12;
    check(apart, "a stage computes one thing at a time");
}

void test_plan_hosts() {
    const std::string small = "--hardware dgx-h100 --layers 8 --hidden 64 --heads 4 --sequence 32 --batch 16 "
                              "--micro-batch 1 --tensor-parallel 2 --pipeline-parallel 4 --world-size 16 ";
    Plan p = plan_of(small);
    std::string path = scratch_folder + "/hosts";
    write_file(path, "# four\na slots=4\nb slots=4\n\nc slots=4 # and\nd slots=4\n");
    std::string out = Placement(p, path).print();
    check(out.find("b                leaf 0   ranks 4 to 7: stage 1, data 0 to 1") != out.npos, out);
    double listed = 0, sent = 0;  // what is listed by level is what all ranks send
    std::istringstream lines(out.substr(out.find("leaf\n  backward")));

    std::string line;
    for (std::getline(lines, line); std::getline(lines, line);) {
        double a, b, c;
        check(sscanf(line.c_str() + 28, "%lf %lf %lf", &a, &b, &c) == 3, line);
        listed += a + b + c;
    }

    for (auto& stage : p.stages)
        for (auto& [group, t] : stage.work.at(16).traffic) sent += 4 * (double)t.sent * 1e-9;
    check(std::abs(listed / sent - 1) < 1e-3, text("%g GB listed, %g sent", listed, sent));
    write_file(path, "a slots=4\nb\n");
    refuses("needs room for 16", [&] { Placement(p, path); });
    for (const char* bad :
         {"a slots=x\n", "a slots=0\n", "a slots=\n", "a slots=4294967297\n", "a slots = 2\n"}) {
        write_file(path, bad);
        refuses("line 1", [&] { Placement(p, path); });
    }

    write_file(path, "# none\n");
    refuses("names no host", [&] { Placement(p, path); });
    refuses("choose one of dgx-a100", [&] { plan_of("--hardware dgx"); });
    refuses("did you mean rtx-4090?", [&] { plan_of("--hardware rtx4090"); });
    refuses("memory=80 is 80 GB", [&] { plan_of("--hardware memory=24e9,tflops=165,bandwidth=1008"); });
    Hardware own = find_hardware("memory=24,tflops=165,bandwidth=1008,gpus=3,link=5,network=7");
    check(own.gpu.memory == 24e9 && own.gpu.peak == 165e12 && own.gpu.bandwidth == 1008e9 &&
              own.node == 3 && own.nvlink == 5e9 && own.network == 7e9, "a machine by its numbers");
    refuses("has no FP8 GEMMs", [&] { plan_of("--hardware dgx-a100 --model 124M --fp8 yes"); });
    const std::string one = "--hardware dgx-h100 --model 1.3B --batch 8 --micro-batch 8 --fp8 ";
    double share = plan_of(one + "yes").step().seconds / plan_of(one + "no").step().seconds;
    check(share > 0.5 && share < 0.85, text("a step in fp8 takes %g of one in bf16", share));
    refuses("expected FILE.json", [&] { plan_of("--timeline x.png"); });
    refuses("expected nothing, search or published", [&] { resolved_plan("all"); });
}

// the advice holds: each suggestion, once taken, fits; options that were given stay as they are
void test_plan_advice() {
    for (std::string base :
         {"--model 13B --batch 32 --world-size 16",
          "--model 2.7B --batch 8 --world-size 8 --sequence 8192 --attention materialised",
          "--model 13B --world-size 64 --batch 512 --pipeline-parallel 4 --pipeline-chunks 2 "
          "--pipeline-group 16 --micro-batch 2",
          "--model 22B --world-size 8 --batch 64"}) {
        base += " --hardware dgx-a100 ";
        Run run = resolved_plan(base);
        Hardware h = choose_hardware(run.options);
        check(!whole_plan(run, h).fits(), "does not fit: " + base);
        std::istringstream lines(what_would_fit(run, h));
        std::string line;
        std::getline(lines, line);
        int taken = 0;
        while (std::getline(lines, line)) {
            Plan p = plan_of(base + line.substr(0, line.rfind(':')));
            check(p.fits(), base + "with" + line);
            taken++;
        }
        check(taken > 0 || line.find("plan for more ranks") != line.npos, base);
    }

    Run named = resolved_plan(
        "search --hardware dgx-h100 --model 22B --world-size 64 --batch 512 --pipeline-parallel 4 "
        "--pipeline-chunks 2 --pipeline-group 16");
    Options o = named.options;
    o.micro_batch = 1;
    o.given.insert("micro-batch");
    check(plan_with(named, o, choose_hardware(o), false).o.pipeline_group == 16, "a named group stays");
    Hardware h = find_hardware("dgx-h100");
    check(tensor_nodes(h, 8) == 1 && tensor_nodes(h, 4) == 1 && tensor_nodes(h, 6) == 2 &&
              tensor_nodes(h, 16) == 2,
          "groups that straddle nodes");

    // without recomputation the products are the model's FLOPs, to the last digit that a double has
    Plan p = plan_of(mtnlg + "--ramp-start 0 --world-size 2240 --recompute none --sequence-parallel yes");
    double products = 0;
    for (auto& stage : p.stages) products += stage.work.at(1920).gemm_flops * 64;
    check(std::abs(products / model_flops(p.shape, 1920, false) - 1) < 1e-12,
          text("products %.17g", products));
    Run any = resolved_plan("search --hardware dgx-h100 --batch 512 --world-size 64 --micro-batch auto");
    check(!any.options.has("micro-batch"), "a search looks for the micro-batch that is left to it");
    // odd requests: one token, many ranks, layouts that only a search finds, words with spaces
    Plan odd = plan_of("--hardware dgx-h100 --layers 1 --hidden 64 --heads 1 --sequence 1");
    check(odd.step().seconds > 0 && odd.step().seconds < 1, text("one token: %g s", odd.step().seconds));
    std::string many = "--model 124M --hardware dgx-h100 --world-size 1048576 --batch 1048576";
    check(plan_text(plan_of(many)).find("1048576 ranks in one place each") != std::string::npos, many);
    for (std::string words : {"--model 1.3B --pipeline-chunks 3 --world-size 8 --batch 8",
                              "--model 124M --batch 524288 --world-size 4096"}) {
        Run found = resolved_plan("search --hardware dgx-h100 --micro-batch 1 --recompute none " + words);
        std::string said = search(found, choose_hardware(found.options));
        check(said.find("the fastest     mpirun") != std::string::npos, words + ": " + said);
    }
    check(quoted("a b'c") == "'a b'\\''c'" && quoted("data.bin") == "data.bin", "words for a shell");
    refuses("is not a regular file", [] { FileWriter file("/dev/null"); });
    std::string real = scratch_folder + "/real", link = scratch_folder + "/link";
    write_file(real, "a");
    fs::create_symlink(real, link);
    write_file(link, "b");
    check(fs::is_symlink(link) && MappedFile(real).view() == "b", "a link's file is written, the link stays");
    fs::remove(real);
    std::string far = scratch_folder + "/far";
    fs::create_symlink("link", far);  // a relative link to a link to a file that is not there
    write_file(far, "c");
    check(fs::is_symlink(far) && fs::is_symlink(link) && MappedFile(real).view() == "c", "so do two links");
    refuses("give --plan without search", [] { resolved_plan("search --hosts x"); });
    refuses("choose one of dgx", [] { resolved_plan("--hardware foo"); });
    refuses("leave --hardware out", [] { resolved_plan("published --hardware dgx-a100"); });
    const std::string of_16 = "search --hardware dgx-h100 --model 6.7B --batch 64 --world-size 16 ";
    for (std::string words : {"--micro-batch auto", "--pipeline-parallel 4 --pipeline-group 4"}) {
        Run found = resolved_plan(of_16 + words);
        std::string said = search(found, choose_hardware(found.options));
        check(said.find("the fastest     mpirun -n 16") != std::string::npos, words + ": " + said);
    }
    std::string lost = "search --hardware dgx-h100 --model 22B --world-size 1 --batch 2147483647";
    refuses("of 1 rank for --batch 2147483647: 3 impossible", [&] {
        Run run = resolved_plan(lost);
        fail("%s", search(run, choose_hardware(run.options)).c_str());
    });
    for (auto [words, says] :
         {std::pair("--batch 262142", "more than 65536 micro-batches"),
          {"--batch 131072 --micro-batch 1", "more than 65536 micro-batches"},
          {"--batch 1920 --steps 5e12", "more than 9e+15 tokens"},
          {"--batch 32768 --micro-batch 1 --ramp-start 1 --ramp-increment 1 --ramp-tokens 1e9",
           "more than 16384 batch sizes"},
          {"--batch 8 --ramp-start 4 --ramp-tokens 8e15", "steps of the ramp"},
          {"--batch 1 --sequence 1 --until-tokens 8e15", "more than 2147483647 steps"}})
        refuses(says, [&] { plan_of(text("--hardware dgx-a100 --model 124M %s", words)); });
    Plan long_step = plan_of("--hardware dgx-h200 --model 1.3B --batch 1000000 --micro-batch 32");
    double linear = long_step.stages[0].work.at(1000000).linear_flops;
    check(std::abs(linear / 1.61093e19 - 1) < 1e-4, text("%g FLOPs of a step of 2e9 tokens", linear));
    plan_of("--hardware dgx-a100 --batch 131072 --micro-batch auto --layers 1 --hidden 64 --heads 1 "
            "--sequence 8");
    refuses("at most 1", [] { resolved_plan("--gemm-efficiency 5"); });
    Plan planned = plan_of(mtnlg + "--world-size 2240");
    Plan slow = plan_of(mtnlg + "--world-size 2240 --network-rate 5");
    check(slow.hardware.network == 5e9 && slow.step().seconds > planned.step().seconds, "a slower network");
    std::string saves = plan_text(plan_of(mtnlg + "--world-size 2240 --file-system-rate 100"));
    check(saves.find("checkpoint      6355 GB; a rank writes up to 3.09 GB") != std::string::npos &&
              saves.find("written in 63.5 s beside the steps") != std::string::npos, "times of saves");
}

// the ten fastest layouts of a search take as long as --plan says of each
void check_search(const std::string& words, int ranks) {
    Run run = resolved_plan("search " + words);
    std::string found = search(run, choose_hardware(run.options));
    std::istringstream lines(found);
    std::string line;
    double before = 0;
    int listed = 0;

    while (std::getline(lines, line)) {
        int t, d, pipe, v, b;
        char recompute[16];
        double s, tflops, mfu, gb, idle, calls;
        if (sscanf(line.c_str(), "%d %d %d %d %d %15s %lf %lf %lf%% %lf %lf%% %lf%%", &t, &d, &pipe, &v, &b,
                   recompute, &s, &tflops, &mfu, &gb, &idle, &calls) != 12) continue;
        Plan one = plan_of(words + text("--tensor-parallel %d --pipeline-parallel %d --pipeline-chunks %d "
                                        "--micro-batch %d --recompute %s", t, pipe, v, b, recompute));
        bool same = std::abs(one.step().seconds - s) < 0.006;
        check(t * d * pipe == ranks && same && s >= before && s > 0.1, line);
        double of_each = one.step().seconds * ranks, peak = one.hardware.gpu.peak;
        auto shown = [](double is, double wanted) { return std::abs(is - wanted) < 0.051; };
        bool full = !strcmp(recompute, "full");
        check(shown(tflops, model_flops(one.shape, one.o.batch, full) / of_each * 1e-12) &&
                  shown(mfu, 100 * model_flops(one.shape, one.o.batch, false) / of_each / peak) &&
                  shown(gb, one.gpu_bytes() * 1e-9) && shown(idle, 100 * one.step().idle()) &&
                  shown(calls, 100 * tensor_share(one)),
              "the numbers beside it: " + line);
        before = s;
        listed++;
    }

    check(listed == 10, text("%d layouts listed", listed));
}

// what is drawn, and what programs read
void test_plan_forms() {
    const std::string small = "--hardware dgx-h100 --layers 8 --hidden 64 --heads 4 --sequence 32 --batch 16 "
                              "--micro-batch 1 --tensor-parallel 2 --pipeline-parallel 4 --world-size 16 ";
    Plan p = plan_of(small + "--pipeline-chunks 2");
    Timeline picture = draw(p.step(), pipeline_shape(p.o, 2, 16), plan_title(p));
    Json trace = Json::parse(chrome_trace({picture}), "a trace");

    long computations = 0;
    for (auto& e : trace.at("traceEvents", "a trace").items) {
        std::string name = e.at("name", "an event").text;
        computations += name.rfind("forward ", 0) == 0 || name.rfind("backward ", 0) == 0;
    }
    check(computations == 4 * 2 * 8 * 2, text("%ld computations in the trace", computations));
    size_t listed_spans = trace.at("timelines", "").items[0].at("spans", "").items.size();
    check(listed_spans == picture.spans.size() && (long)listed_spans > computations,
          text("%zu spans of %zu", listed_spans, picture.spans.size()));
    for (auto& s : picture.spans)
        if (s.start < -1e-9 || s.end > picture.seconds * 1.5) check(false, "a span outside the step");
    Json j = Json::parse(plan_json(p), "a plan");
    check(j.at("world", "").integer("") == 16 && j.at("stages", "").items.size() == 4, "the plan as JSON");
    check(j.at("stages", "").items[3].at("parameters", "").integer("") == p.stages[3].parameters,
          "its stages");
    check_search("--hardware dgx-h100 --model 6.7B --batch 64 --world-size 16 ", 16);
    // replicas of some middle stages are on one node, of others on two
    check_search("--hardware dgx-a100 --layers 40 --heads 24 --hidden 3072 --batch 12 --world-size 12 "
                 "--network-rate 3 ", 12);
    // alike but for a neighbour on another node, over links so slow that messages count
    check_search("--hardware dgx-a100 --layers 12 --heads 24 --hidden 3072 --batch 12 --world-size 12 "
                 "--network-rate 0.3 --tensor-parallel 1 --pipeline-parallel 12 ", 12);
    // planned by a build in which floatX and real may be one type; in the build planned for they are two
    Plan one = plan_of("--hardware dgx-h200 --model 124M --batch 64 --micro-batch 64 ");
    OperationTable all = one.stages[0].run.operations(make_schedule(0, pipeline_shape(one.o, 1, 64)));
    double n = (double)parameter_table(one.shape).elements, moved = all.at("adamw").bytes / n;
    check(moved == 28, text("adamw moves %g bytes a parameter", moved));
    double products = 0, tokens = 64.0 * one.shape.T;
    for (auto& [name, o] : all)
        if (name.rfind("linear_", 0) == 0) products += o.flops;
    const ModelShape& m = one.shape;
    double wanted = 72.0 * tokens * m.L * m.C * m.C + 6.0 * tokens * m.C * m.Vp;
    check(std::abs(products / wanted - 1) < 1e-12, text("products of %g FLOPs, not %g", products, wanted));
}

// what every rank of a layout lists: together exactly the whole model
void test_layouts() {
    ModelShape shape = {12, 32, 8, 16, 257, 264};
    ParameterTable whole = parameter_table(shape);
    for (int t : {1, 2, 4, 8})
        for (int p : {1, 2, 3, 4, 6, 12})
            for (int v = 1; v <= 3; v++)
                for (int d : {1, 3}) {
                    if (shape.L % (p * v) || (p == 1 && v > 1)) continue;
                    std::vector<long> counted(whole.tensors, 0);
                    int copies = 0;
                    bool alike = true, cut = true;
                    auto grid_of = [&](int stage, int tensor) {
                        return place_in_grid(tensor + t * d * stage, t * d * p, t, p);
                    };
                    for (int stage = 0; stage < p; stage++)
                        for (int tensor = 0; tensor < t; tensor++) {
                            ParameterTable table = parameter_table(shape, grid_of(stage, tensor), d, v);
                            alike = alike && table.count == whole.count && table.tensors == whole.tensors;
                            long left = 0;
                            for (int owner = 0; owner < d; owner++)
                                for (auto& piece : owned_tensor_parts(table, owned_slices(table, owner, d)))
                                    left += piece.n;
                            for (auto& q : table.list) {
                                alike = alike && q.name == whole.list[q.global_id].name;
                                left -= q.size;
                                copies += q.is_copy;
                                if (!q.is_copy && (q.is_split() || tensor == 0))
                                    counted[q.global_id] += q.stored();
                            }
                            cut = cut && left == 0;
                            if (p > 1 && stage == p - 1) {  // both copies of the embedding are cut alike
                                auto& a = table.buckets.back();
                                Bucket b = parameter_table(shape, grid_of(0, tensor), d, v).buckets[0];
                                cut = cut && a.elements == b.elements && a.offset % 128 == 0;
                            }
                        }
                    for (auto& q : whole.list) alike = alike && counted[q.global_id] == q.stored();
                    check(alike && copies == (p > 1 ? t : 0),
                          text("t %d p %d v %d d %d: every value once", t, p, v, d));
                    check(cut, text("t %d p %d v %d d %d: each element has one owner", t, p, v, d));
                }
}

void test_plan() {
    test_plan_mtnlg();
    test_plan_simulation();
    test_plan_hosts();
    test_plan_advice();
    test_plan_forms();
}
