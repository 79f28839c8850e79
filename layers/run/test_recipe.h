// test_recipe.h   checks of the recipe: batch ramp, learning rate, what resolving makes of options
#pragma once
#include "../../data/test_data.h"
#include "resolve.h"
#include "test_options.h"

// the recipe: sets mixed by weight, and the batch that grows
void test_recipe() {
    // MT-NLG's fifteen weights (arXiv 2201.11990, table 2)
    std::vector<double> weights = {0.14336, 0.19336, 0.05689, 0.02897, 0.04771, 0.00873, 0.01007, 0.00208,
                                   0.09446, 0.01359, 0.01588, 0.13017, 0.15652, 0.08962, 0.00859};
    Mixture mixture(weights), later(weights);
    double drift = 0;

    // the rule, in arithmetic that rounds nothing: the order must be the same in every build
    bool exact = true;
    auto follows = [](const Mixture& m) {
        auto behind = [&](size_t k) {
            return (__int128)m.shares[k] * (m.n ? m.n : 1) - (__int128)m.taken[k] * Mixture::one;
        };
        int best = 0;
        for (size_t k = 1; k < m.shares.size(); k++) best = behind(k) > behind(best) ? (int)k : best;
        return best;
    };

    std::vector<SetChoice> tail;
    for (int i = 0; i < 1000000; i++) {
        int expected = follows(mixture), set = mixture.next();
        exact = exact && set == expected;
        if (i >= 777777 && i < 778777) tail.push_back({set, mixture.taken[set]});
        for (size_t k = 0; k < weights.size(); k++)
            drift =
                std::max(drift, std::abs(mixture.weights[k] * (double)mixture.n - (double)mixture.taken[k]));
    }

    check(exact, "the set of each of 1e6 samples is the exact rule's");
    uint64_t shares = checksum(mixture.shares.data(), mixture.shares.size() * sizeof(int64_t));
    check(shares == 0x7baf7f07300be3f2,
          text("MT-NLG's weights in integers: %016llx", (unsigned long long)shares));
    check(drift < 1.05, text("the largest drift of a set in 1e6 samples: %.4f", drift));
    double last = 0;
    for (size_t k = 0; k < weights.size(); k++)
        last = std::max(last, std::abs(mixture.weights[k] * 1e6 - (double)mixture.taken[k]));
    check(last <= 1, text("and after them: %.4f", last));
    later.seek(900000);
    later.seek(777777);  // backwards

    bool same = true;
    for (auto& c : tail) {
        int set = later.next();
        same = same && c.set == set && c.index == later.taken[set];
    }
    check(same && tail.size() == 1000, "from sample 777,777 on, the same order");
    Mixture plain({1, 1});
    std::string order;
    for (int i = 0; i < 6; i++) order += (char)('a' + plain.next());
    check(order == "ababab", "two equal sets take turns: " + order);
    check(Mixture({1, 9}).next() == 1, "the first sample is of the larger set");
    std::string first = make_tokens("first.bin", 100, 257), second = make_tokens("second.bin", 100, 257);
    auto blend_of = [&](double weight) {
        return fingerprint_of(Blend({{"first", weight, {first}}, {"second", 1, {second}}}, 8, 1));
    };
    check(blend_of(0.5) == blend_of(0.5) && blend_of(0.5) != blend_of(0.25), "weights tell blends apart");
    Blend renamed({{"first", 0.5, {first}}, {"other", 1, {second}}}, 8, 1);
    check(blend_of(0.5) != fingerprint_of(renamed), "and the names that their orders depend on");
    Blend equal({{"first", 1, {first}}, {"second", 1, {second}}}, 8, 1);
    bool differ = false, differ_by_epoch = false;
    for (uint64_t n = 0; n < 12; n++) {
        differ = differ || equal.sets[0].order(n) != equal.sets[1].order(n);
        differ_by_epoch = differ_by_epoch || equal.sets[0].order(n) != equal.sets[0].order(n + 12);
    }
    check(equal.sets[0].samples() == 12 && differ && differ_by_epoch, "each set and epoch has its own order");
    Blend thrice({{"first", 1, {first}}, {"first", 1, {first}}, {"first", 1, {first}}}, 8, 1);
    bool by_position = false;
    for (uint64_t n = 0; n < 12; n++)
        by_position = by_position || thrice.sets[1].order(n) != thrice.sets[2].order(n);
    check(by_position, "sets of one name each have their own order");
    std::filesystem::create_directories(scratch_folder + "/a");
    make_tokens("a/first.bin", 100, 257, 2);
    auto choose = [](const std::string& folder) {
        std::vector<std::pair<int, uint64_t>> out;
        Blend two(parse_sets({"2:" + folder + "/first.bin", "3:" + folder + "/a/first.bin"}), 8, 1);
        for (auto& c : two.choose(0, 60)) out.push_back({c.set, c.index});
        return out;
    };
    check(choose(scratch_folder) == choose(scratch_folder + "/."), "sets of one name, spelt otherwise");
    auto sets = parse_sets({".25:a/books3.bin", "3:b.train.bin"});
    check(sets.size() == 2 && sets[0].weight == 0.25 && sets[0].name == "books3" && sets[1].name == "b" &&
          sets[1].files[0] == "b.train.bin", "WEIGHT:FILE");
    check(parse_sets({"a.bin", "b.bin"}).size() == 1 && parse_sets({"a.bin", "b.bin"})[0].files.size() == 2,
          "files without weights are one set");
    std::string draws = draws_of_sets(sets, {5, 0}, 26, 100);  // weights 0.25 and 3: of 26 samples 2 and 24
    check(draws.ends_with("books3                     0.0769          500          200      0.40\n"
                          "b                          0.9231     not here         2400         -\n"),
          "what 26 samples draw:\n" + draws);
    for (const char* name : {"recompute", "attention", "loss-on", "on-spike", "other-data", "moments",
                             "long-continuations"})
        refuses((text("--%s nonsense: expected ", name)).c_str(),
                [&] { check_words(options_of({text("--%s", name), "nonsense"})); });
    for (auto& option : option_table)
        if (!strncmp(option.help, "yes or no", 9))
            refuses(text("--%s true: expected ", option.name),
                    [&] { check_words(options_of({text("--%s", option.name), "true"})); });
    auto twice = parse_sets({"1:a.bin", "2:a.bin"});
    check(twice[0].name == "a.bin" && twice[1].name == "a.bin (2)", "one file twice: " + twice[1].name);
    refuses("write WEIGHT:FILE for each", [] { parse_sets({"0.5:a.bin", "b.bin"}); });
    refuses("has weight 0", [] { parse_sets({"0:a.bin"}); });
    refuses("has weight -1", [] { parse_sets({"-1:a.bin"}); });
    std::string name = scratch_folder + "/mix.blend";
    write_file(name, "# two\n0.3 a.bin  # the first\n\n\t\n0.7\t/data/b c#1.bin\n");
    sets = parse_sets({name});
    check(sets.size() == 2 && sets[0].files[0] == scratch_folder + "/a.bin" &&
              sets[1].files[0] == "/data/b c#1.bin" && sets[1].weight == 0.7,
          "a .blend file");
    write_file(name, "0.3 a.bin\nb.bin\n");
    refuses("mix.blend line 2: \"b.bin\": expected WEIGHT FILE", [&] { parse_sets({name}); });
    write_file(name, "# nothing\n");
    refuses("names no set", [&] { parse_sets({name}); });

    Options passing = options_of({"--batch", "4"});  // what this build cannot do is recorded for one that can
    passing.postponed["fp8"] = "yes";
    Json recorded = Json::parse(options_json(passing), "options");
    check(recorded.at("fp8", "options").text == "no" && recorded.at("postponed", "options").text == "fp8 yes",
          "a recipe that has to wait: " + options_json(passing));

    Run counted;  // steps of 96 tokens; 1000 are reached in the 11th
    counted.options = options_of({"--sequence", "16", "--batch", "6", "--until-tokens", "1000",
                                  "--learning-rate", "1e-3", "--decay-tokens", "5000"});
    resolve_last_step(counted);
    resolve_learning_rate(counted);
    check(counted.last_step == 11 && counted.last_tokens == 1056 && counted.options.warmup_tokens == 50,
          text("%ld steps, %ld tokens of warm-up", counted.last_step, counted.options.warmup_tokens));

    // MT-NLG's ramp: from 32 by 32 to 1920 over 12e9 tokens, then on to 270e9
    Options o = options_of({"--sequence", "2048", "--batch", "1920", "--ramp-start", "32", "--ramp-increment",
                            "32", "--ramp-tokens", "12e9"});
    long steps = 0, in_ramp = 0;
    for (uint64_t samples = 0; (double)samples * 2048 < 270e9; steps++) {
        in_ramp += (double)samples <= 12e9 / 2048;
        samples += batch_after(o, samples);
    }

    check(in_ramp == 14475 && steps == 80087, text("the ramp: %ld steps, %ld in all", in_ramp, steps));
    check(batch_after(o, 0) == 32 && batch_after(o, 5859375) <= 1920 && batch_after(o, 5859376) == 1920,
          "its ends");
    Options short_ramp = options_of({"--sequence", "8", "--batch", "12", "--ramp-start", "4",
                                     "--ramp-increment", "4", "--ramp-tokens", "800"});
    check(common_share(short_ramp, 0, 2) == 2 && common_share(short_ramp, 101, 2) == 6,
          "what a micro-batch must divide, in the ramp and behind it");
}
