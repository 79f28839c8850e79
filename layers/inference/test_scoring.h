// test_scoring.h   checks of packed batches and of scores: each continuation as if it stood alone
#pragma once
#include "../../data/tasks/test_tasks.h"
#include "../model/test_training.h"
#include "../test_kernels.h"
#include "generate.h"
#include "scoring.h"
#include "task_report.h"

// attention over segments equals plain attention: for a whole sequence, for one split into a context and what
// follows, and for rows that come one by one
void test_segments() {
    if (HAS_KERNELS) return;  // kernels are held against ref
    int T = 150, cut = 67;
    AttentionShape a = {1, T, 3, 8}, twice = {1, T + T - cut, 3, 8};
    std::vector<floatX> qkv = random_values<floatX>(T * a.ld_qkv(), 1), whole(T * a.ld_o()), p(3L * T * T),
                        cache = qkv;
    AttentionForward{whole.data(), p.data(), qkv.data(), a}.ref(nullptr);

    auto part = [&](int from, int n) {
        return std::vector<floatX>(whole.begin() + from * a.ld_o(), whole.begin() + (from + n) * a.ld_o());
    };
    auto attend = [&](const PackedBatch& pack) {
        std::vector<floatX> o(pack.rows() * a.ld_o());
        int count = (int)pack.tiles.size();
        PackedAttention{o.data(), cache.data(), pack.tiles.data(), count, a}.ref(nullptr);
        return o;
    };

    std::vector<int> tokens(T, 0);
    PackedBatch one, behind, last;
    one.add_uncached(tokens.data(), T, 0);
    close("one segment", attend(one), whole, sums_tolerance);
    last.add_segment(tokens.data(), 1, T - 1, T - 1, 0);
    close("the last row, the others in the cache", attend(last), part(T - 1, 1), sums_tolerance);

    // the context, what follows it, and the same again: both see the context, neither the other
    cache.insert(cache.end(), qkv.begin() + cut * a.ld_qkv(), qkv.end());
    behind.add_uncached(tokens.data(), cut, 0);
    for (int i = 0; i < 2; i++) behind.add_uncached(tokens.data(), T - cut, cut, 0, cut);
    std::vector<floatX> o = attend(behind), want = whole, again = part(cut, T - cut);
    want.insert(want.end(), again.begin(), again.end());
    close("two continuations of one context", o, want, sums_tolerance);
    check(behind.rows() == twice.T && behind.positions[T] == cut && behind.positions[T - 1] == T - 1,
          "positions go on");
    PackedBatch padded;
    padded.add_uncached(tokens.data(), 5, 0);
    padded.pad_rows(4, 8);
    check(padded.rows() == 8 && padded.logit_rows() == 0, "padding");
    padded.rows_with_logits = padded.targets = {1};
    padded.pad_rows(4, 3);
    check(padded.rows() == 8 && padded.targets == std::vector<int>{1, -1, -1} && padded.logit_rows() == 3,
          "rows of logits are padded, as many as there is room for, and do not count");
}

std::vector<Score> score_all(Trial& trial, const EvalFile& file, const ScoreBatches& plan) {
    std::vector<Score> scores(file.requests.size());
    for (auto& b : plan.batches) {
        clear_losses(trial.model);
        InFlight& in_flight = trial.model.in_flight[0];
        load_packed(trial.model, in_flight, plan.pack_batch(b));
        packed_forward(trial.model, trial.micro_batch(0, b.rows));
        collect_scores(trial.model, plan, b, 0, scores);
    }
    return scores;
}

void test_scores() {
    Options o;
    int T = 24, V = 61, B = 2;
    Trial a(o, {2, 48, 3, T, V, 64}, B);
    for (int i = 0; i < 3; i++) a.train(some_samples(B, T, V), 3e-3);
    auto tokens = [&](int n, int salt) {
        std::vector<int> out(n);
        for (int i = 0; i < n; i++) out[i] = (int)(hash_of(salt * 1000 + i) % V);
        return out;
    };

    // continuations of one token and of many, contexts shared and not, one that fills the sequence, one too
    // long for it
    auto c = tokens(9, 1);
    EvalFile file =
        requests_of({{{c, tokens(1, 2)}, {c, tokens(7, 3)}, {c, tokens(16, 4)}, {c, tokens(3, 5)}},
                     {{tokens(1, 6), tokens(24, 7)}, {tokens(2, 8), tokens(1, 9)}},
                     {{tokens(40, 10), tokens(5, 11)}, {tokens(40, 10), tokens(6, 12)}}},
                    V);
    ScoreBatches shared(file, T, B * T, B * T, 1), alone(file, T, B * T, B * T, 1, false),
        narrow(file, T, B * T, 25, 8);
    check(shared.truncated == 1 && shared.rows < alone.rows,
          "the long document is counted, shared contexts are fewer rows");
    std::vector<Score> scores = score_all(a, file, shared), one_by_one = score_all(a, file, alone),
                       cut = score_all(a, file, narrow);

    std::vector<double> got, again, few, want;
    for (size_t r = 0; r < file.requests.size(); r++) {
        got.push_back(scores[r].log_likelihood);
        again.push_back(one_by_one[r].log_likelihood);
        few.push_back(cut[r].log_likelihood);
        // as a window of a whole pass: the last T + 1 tokens, filled up with anything
        const EvalRequest& q = file.requests[r];
        std::vector<int> all(&file.tokens[q.context], &file.tokens[q.context] + q.context_tokens);
        all.insert(all.end(), &file.tokens[q.continuation],
                   &file.tokens[q.continuation] + q.continuation_tokens);
        if ((int)all.size() > T + 1) all.erase(all.begin(), all.end() - (T + 1));
        int n = (int)all.size(), length = (int)q.continuation_tokens;
        all.resize(B * (T + 1), 0);
        clear_losses(a.model);
        a.forward_tokens(all, B);
        std::vector<real> losses(B * T);
        copy_to_host(losses.data(), a.model.lm_head.losses, losses.size() * sizeof(real), nullptr);
        want.push_back(0);
        for (int i = n - 1 - length; i < n - 1; i++) want.back() -= losses[i];
    }

    close("log-likelihoods are a whole pass's", got, want, 4 * rounding);
    close("a context for each continuation: the same", again, got, 4 * rounding);
    close("small batches, padded: the same", few, got, 4 * rounding);

    // greedy: is each token the likeliest where it stands? Continuations are made from the model's own
    // choices
    auto first_choice = [&](std::vector<int> context, int n) {
        std::vector<int> made;
        for (int i = 0; i < n; i++) {
            generate(a.model, {{context, 1, {.temperature = 0}}}, 1,
                     [&](size_t, int t) {
                         made.push_back(t);
                         return true;
                     });
            context.push_back(made.back());
        }
        return made;
    };

    std::vector<int> chosen = first_choice(c, 4), wrong_first = chosen, wrong_last = chosen;
    wrong_first[0] = (wrong_first[0] + 1) % V;
    wrong_last[3] = (wrong_last[3] + 1) % V;
    // only its first token is wrong: what follows is what greedy decoding goes on with
    std::vector<int> behind = c;
    behind.push_back(wrong_first[0]);
    std::vector<int> rest = first_choice(behind, 3);
    std::copy(rest.begin(), rest.end(), wrong_first.begin() + 1);
    EvalFile greedy = requests_of({{{c, chosen}, {c, wrong_first}, {c, wrong_last}, {c, {chosen[0]}}}}, V);
    scores = score_all(a, greedy, ScoreBatches(greedy, T, B * T, B * T, 1));
    check(scores[0].is_greedy && !scores[1].is_greedy && !scores[2].is_greedy && scores[3].is_greedy,
          "greedy: all tokens, or not");

    // two tokens with the same logits: greedy decoding takes the first, and so does the score
    int likeliest = chosen[0], other = likeliest ? likeliest - 1 : 1;
    while (std::count(c.begin(), c.end(), other)) other = (other + 1) % V;
    std::vector<floatX> row(a.model.shape.C);
    floatX* wte = a.model.weights + a.model.table.list[a.model.table.wte].offset;
    size_t bytes = row.size() * sizeof(floatX), stride = row.size();
    copy_to_host(row.data(), wte + likeliest * stride, bytes, nullptr);
    copy_to_device(wte + other * stride, row.data(), bytes, nullptr);
    synchronize(nullptr);
    int first = std::min(likeliest, other), second = std::max(likeliest, other);
    EvalFile tied = requests_of({{{c, {first}}, {c, {second}}}}, V);
    scores = score_all(a, tied, ScoreBatches(tied, T, B * T, B * T, 1));
    check(other != likeliest && first_choice(c, 1)[0] == first && scores[0].is_greedy &&
          !scores[1].is_greedy && scores[0].log_likelihood == scores[1].log_likelihood, "a tie");

    EvalFile long_one = requests_of({{{c, tokens(25, 1)}}, {{c, tokens(24, 1)}}}, V);
    refuses("has a continuation of 25 tokens, the model takes 24", [&] {
        EvalFile same = long_one;
        leave_out_long(same, T, true);
    });
    leave_out_long(long_one, T, false);
    check(long_one.documents.size() == 1 && long_one.documents[0].first == 1 && long_one.left_out == 1,
          "a document with too long a continuation is left out, and counted");
    refuses("every document has a continuation of more than the 23 tokens that the model takes",
            [&] { leave_out_long(long_one, 23, false); });

    // what scores mean, by hand: right, wrong, right by characters alone; a tie goes to the first
    EvalFile f = requests_of(
        {{{c, {1}}, {c, {2}}}, {{c, {1}}, {c, {2}}}, {{c, {1, 2, 3, 4}}, {c, {2}}}, {{c, {5}}, {c, {6}}}}, V);
    f.groups = {"x", "y"};
    f.documents[0].groups[0] = 0;
    f.documents[1].groups[0] = 0;
    f.documents[3].groups[1] = 1;
    for (int second : {1, 7}) f.requests[second].characters = 7;  // by characters, though not by tokens
    TaskResult r =
        task_result(f, {{-1, 0}, {-2, 0}, {-3, 0}, {-2, 0}, {-4, 0}, {-2, 0}, {-7, 0}, {-7, 0}}, 0);

    auto metric = [&](const char* name) {
        for (auto& m : r.metrics) if (m.name == name) return m;
        return TaskMetric{name, NAN, NAN};
    };

    // stderr of {1, 0, 0, 1}: deviation sqrt(1/3), over sqrt(4); of {0, 0, 1, 0}: 1/2 over 2
    check(metric("acc").value == 0.5 && std::abs(metric("acc").error - std::sqrt(1.0 / 3) / 2) < 1e-15 &&
              metric("acc_norm").value == 0.25 && metric("acc_norm").error == 0.25 &&
              metric("acc x").value == 0.5 && metric("acc y").value == 1,
          "accuracy, by characters, by group, standard errors");
    for (const char* task : {"boolq", "wic"}) {
        f.task = task;
        r = task_result(f, {{-1, 0}, {-2, 0}, {-3, 0}, {-2, 0}, {-4, 0}, {-2, 0}, {-7, 0}, {-7, 0}}, 0);
        check(metric("acc").value == 0.25, text("%s: yes and no, tied, are no", task));
    }
    check(mean_metric("acc", {1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0}).value == 0.5, "6 of 12 are one half");
    f = requests_of({{{c, {1}}}, {{c, {2}}}}, V);
    f.metric = "greedy";
    r = task_result(f, {{-1, true}, {-3, false}}, 0);

    // mean -2; deviation sqrt(2) over sqrt(2)
    check(metric("acc").value == 0.5 && std::abs(metric("ppl").value - std::exp(2)) < 1e-12 &&
          std::abs(metric("ppl").error - std::exp(2)) < 1e-12, "greedy accuracy and perplexity");
    f = requests_of({{{c, {1}}, {c, {2}}, {{0}, {1}}, {{0}, {2}}}}, V);
    f.priors = true;
    r = task_result(f, {{-2, 0}, {-3, 0}, {-1, 0}, {-4, 0}}, 0);  // -1 and +1 beyond what is said anyway
    check(metric("acc").value == 0, "divided by the continuation's own probability");
    Json json = Json::parse(task_json({r}, "m", 3), "results");
    check(json.at("results", "r").at("piqa", "r").find("acc_stderr") && json.at("versions", "r").find("piqa"),
          "JSON");

    // beside published scores of the same number of shots: zero, one, or as many as were published for few
    auto beside = [&](const char* task, int shots) {
        f.task = task;
        f.shots = shots;
        std::istringstream words(task_table_text({task_result(f, {{-2, 0}, {-3, 0}, {-1, 0}, {-4, 0}}, 0)}));
        std::string word, last[2];
        while (words >> word) last[0] = std::exchange(last[1], word);
        return last[0] + " " + last[1];
    };
    check(beside("race", 0) == "47.9 45.5" && beside("race", 1) == "48.4 45.9" &&
              beside("race", 10) == "47.9 46.8" && beside("race", 5) == "- -" &&
              beside("hans", 4) == "70.2 -" && beside("wic", 0) == "48.6 0.0" && beside("mine", 0) == "- -",
          "published scores stand beside one's own");
}

#if HAS_KERNELS
// runs of one row and of more than a tile, with and without something before them, anywhere in the cache,
// whose other rows hold NaN
void kernels_packed_attention() {
    for (auto [NH, HS] : {std::pair{1, 1}, {3, 5}, {2, 64}, {1, 80}, {2, 96}, {1, 128}, {1, 160}}) {
        PackedBatch pack;
        std::vector<int> none(200, 0);
        pack.add_segment(none.data(), 1, 0, 7, 7);
        pack.add_segment(none.data(), 33, 0, 100, 100);
        pack.add_segment(none.data(), 70, 33, 200, 200, 100, 33);
        pack.add_segment(none.data(), 130, 0, 300, 300);
        pack.add_segment(none.data(), 1, 129, 430, 300);
        pack.add_segment(none.data(), 5, 300, 140, 133, 200, 70);
        pack.add_segment(none.data(), 3, 7, 460, 453, 300, 131);
        pack.add_segment(none.data(), 2, 5, 495, 490, 0, 256);
        AttentionShape a = {1, pack.rows(), NH, HS};
        std::vector<floatX> values = random_values<floatX>(500 * a.ld_qkv(), 1);
        std::vector<bool> seen(500, false);
        for (auto& t : pack.tiles) {
            std::fill(seen.begin() + t.own, seen.begin() + t.at + t.rows, true);
            std::fill(seen.begin() + t.prefix, seen.begin() + t.prefix + t.shared, true);
        }
        for (size_t i = 0; i < values.size(); i++)
            if (!seen[i / a.ld_qkv()]) values[i] = floatX(NAN);
        X cache(values), o(pack.rows() * a.ld_o()), rows(random_values<floatX>(9 * a.ld_qkv(), 2)),
            stored(random_values<floatX>(500 * a.ld_qkv(), 3));
        Both<Tile> tiles(pack.tiles);
        Both<int> places(std::vector<int>{3, 499, 0, 20, 21, 22, 9, 8, 7});
        std::string size = text(" NH %d HS %d", NH, HS);
        both_ways([&] { return StoreCacheRows{stored, rows, places, 9, (int)a.ld_qkv()}; });
        stored.compare("rows in the cache" + size, 0);
        int count = (int)pack.tiles.size();
        both_ways([&] { return PackedAttention{o, cache, tiles, count, a}; });
        o.compare("segment attention" + size, 2 * rounding);
    }
}

void test_packed_kernels() { in_several_orders(kernels_packed_attention); }
#endif
