// test_options.h   checks of the option parser and of what it refuses
#pragma once
#include "../model/params.h"
#include "../base/testing.h"
#include "config.h"
#include "metrics.h"

Options options_of(std::vector<std::string> words) {
    std::vector<char*> argv = {(char*)"train_gpt"};
    for (auto& w : words) argv.push_back(w.data());
    return parse_options((int)argv.size(), argv.data());
}

void test_options() {
    Options o = options_of({"--train", "a", "b", "--until-tokens", "270e9", "--learning-rate", "5e-5"});
    check(o.train.size() == 2 && o.until_tokens == 270000000000 && o.learning_rate == 5e-5, "values");
    refuses("did you mean --hidden", [] { options_of({"--hiden", "3"}); });
    refuses("did you mean 124M", [] { find_preset("123M"); });
    refuses("did you mean 6.7B", [] { find_preset("7B"); });
    refuses("did you mean 1T", [] { find_preset("1000B"); });
    refuses("did you mean --learning-rate", [] { options_of({"--lr", "1e-3"}); });
    refuses("did you mean --micro-batch", [] { options_of({"--micro_batch_size", "1e-3"}); });
    refuses("did you mean --help", [] { options_of({"--hlep"}); });
    refuses("make DEVICE=cpu PRECISION=bf16", [] { options_of({"--precision", "bf16"}); });
    check(options_of({"-h"}).help, "-h");
    refuses("unknown option --dropout (--help", [] { options_of({"--dropout", "0.1"}); });
    refuses("expected one", [] { options_of({"--layers"}); });
    refuses("expected a whole number", [] { options_of({"--layers", "2.5"}); });
    refuses("expected a whole number from 1", [] { options_of({"--layers", "0"}); });
    refuses("must be at most", [] { options_of({"--layers", "3e9"}); });
    for (auto& form : option_table)
        if (form.kind == OptionForm::Whole || form.kind == OptionForm::Number)
            refuses(text("number from %g", form.least).c_str(),
                    [&] { options_of({text("--%s", form.name), text("%g", form.least - 1)}); });
    // the least values themselves: anything below would be nonsense
    for (const char* name : {"clip", "weight-decay"}) check(find_form(option_table, name).least == 0, name);
    check(find_form(option_table, "keep").least == 1, "at least one checkpoint is kept");
    refuses("options begin with --", [] { options_of({"layers"}); });
    refuses("choose --heads 6 or 8", [] { Options p = options_of({"--heads", "7", "--hidden", "96"});
                                         model_shape(p, 0); });
    for (auto& heading : help_headings) find_form(option_table, heading.option);  // fails where there is none
    std::string path = scratch_folder + "/run.conf";
    write_file(path, "# a run\n--layers 7   # few\nhidden 64\n\ntrain x y\n");
    o = options_of({"--config", path, "--layers", "9"});
    check(o.layers == 9 && o.hidden == 64 && o.train.size() == 2,
          "the command line wins over the config file");
    write_file(path, "layers 7\nhiddn 64\n");
    refuses("line 2: unknown option --hiddn", [&] { options_of({"--config", path}); });
    refuses("cannot be read", [] { options_of({"--config", "/nowhere"}); });
    refuses("is not a regular file", [] { options_of({"--config", "/tmp"}); });
    refuses("has an empty value", [] { options_of({"--resume", ""}); });
    refuses("run.conf line 1: --layers x: expected a whole",
            [&] {
                write_file(path, "layers x\n");
                options_of({"--config", path});
            });

    refuses("line 2: layers is given a second", [&] {
        write_file(path, "layers 1\nlayers 2\n");
        options_of({"--config", path});
    });
    refuses("too large, at most 10000", [] { Options p = options_of({"--layers", "20000000"});
                                            model_shape(p, 0); });
    // sizes as published: layers, hidden size, heads, sequence, learning rate
    struct { const char* name; int sizes[4]; double rate; } published[] = {
        {"124M", {12, 768, 12, 1024}, 6e-4},     {"350M", {24, 1024, 16, 1024}, 3e-4},
        {"774M", {36, 1280, 20, 1024}, 2.5e-4},  {"1.3B", {24, 2048, 16, 2048}, 2e-4},
        {"1558M", {48, 1600, 25, 1024}, 2e-4},   {"2.7B", {32, 2560, 32, 2048}, 1.6e-4},
        {"6.7B", {32, 4096, 32, 2048}, 1.2e-4},  {"8.3B", {72, 3072, 24, 1024}, 1.2e-4},
        {"13B", {40, 5120, 40, 2048}, 1e-4},     {"17B", {78, 4256, 28, 1024}, 1e-4},
        {"22B", {48, 6144, 64, 2048}, 9e-5},     {"175B", {96, 12288, 96, 2048}, 6e-5},
        {"530B", {105, 20480, 128, 2048}, 5e-5}, {"1T", {128, 25600, 160, 2048}, 5e-5}};
    check(std::size(published) == std::size(presets), "every preset is in this table");
    for (auto& p : published) {
        Options at = options_of({"--model", p.name});
        ModelShape m = model_shape(at, 0);
        check(m.L == p.sizes[0] && m.C == p.sizes[1] && m.NH == p.sizes[2] && m.T == p.sizes[3] &&
                  find_preset(p.name).learning_rate == p.rate, p.name);
    }
    // 6 FLOPs a token for each weight of a GEMM or of layer norm, and for attention's causal half
    long weights = 12 * (12 * 768 * 768 + 13 * 768) + 50304 * 768 + 2 * 768;
    Options small = options_of({"--model", "124M"});
    check(flops_per_token(model_shape(small, 0)) == 6.0 * (double)weights + 6.0 * 12 * 768 * 1024,
          "FLOPs per token of 124M");
    struct { const char* name; long count; } counts[] =
        {{"124M", 124475904}, {"1558M", 1557686400}, {"8.3B", 8314288128},
         {"17B", 17177045760}, {"530B", 529600819200}};

    for (auto& c : counts) {
        Options p = options_of({"--model", c.name});
        ModelShape m = model_shape(p, 0);
        long L = m.L, C = m.C;
        long formula = L * (12 * C * C + 13 * C) + (long)m.Vp * C + (long)m.T * C + 2 * C;
        long count = parameter_table(m).count;
        check(count == formula && count == c.count,
              text("%s has %ld parameters, expected %ld", c.name, count, c.count));
    }
}
