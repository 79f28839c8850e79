// test_program.h   the programs as a user starts them: kill and resume, bad input, exit codes
#pragma once
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <thread>
#include "../../data/tasks/evaluation.h"
#include "../../data/test_data.h"
#include "checkpoint.h"

struct Outcome { int code; std::string out; };  // code: exit status, or 128 + signal

// runs a program with stdout and stderr together; kills it with `kill_signal` after `after` seconds if that
// is > 0, or once there is something in the file `until`
Outcome run(const std::string& command, double after = 0, int kill_signal = SIGKILL, long file_limit = 0,
            const std::string& until = "") {
    int fds[2];
    if (pipe(fds)) fail("pipe");
    pid_t child = fork();
    if (child == 0) {
        dup2(fds[1], 1);
        dup2(fds[1], 2);
        close(fds[0]);
        close(fds[1]);
        if (file_limit) {
            rlimit limit = {(rlim_t)file_limit, (rlim_t)file_limit};
            setrlimit(RLIMIT_FSIZE, &limit);
        }
        execl("/bin/sh", "sh", "-c", ("exec " + command).c_str(), (char*)nullptr);
        _exit(127);
    }

    close(fds[1]);
    if (after > 0) {
        usleep((useconds_t)(after * 1e6));
        kill(child, kill_signal);
    }
    if (!until.empty()) {
        struct stat found = {};
        siginfo_t ended = {};
        while (found.st_size == 0 && ended.si_pid == 0) {
            waitid(P_PID, (id_t)child, &ended, WEXITED | WNOHANG | WNOWAIT);
            usleep(1000);
            stat(until.c_str(), &found);
        }
        kill(child, kill_signal);
    }

    std::string out;
    char buffer[4096];
    for (ssize_t n; (n = read(fds[0], buffer, sizeof buffer)) > 0;) out.append(buffer, n);
    close(fds[0]);
    int status;
    waitpid(child, &status, 0);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), out};
}

void program_refuses(const std::string& arguments, const std::string& part,
                     const std::string& program = "train_gpt") {
    Outcome o = run(programs + "/" + program + " " + arguments);
    check(o.code == 1 && o.out.find(part) != std::string::npos,
          text("%s %s: exit code %d, \"%s\", not 1 and \"%s\"", program.c_str(), arguments.c_str(), o.code,
               o.out.c_str(), part.c_str()));
}

// step -> the line's numbers as text, so that equal means equal to the last bit
std::map<long, std::string> read_metrics(const std::string& path) {
    std::map<long, std::string> out;
    if (access(path.c_str(), F_OK) != 0) return out;
    MappedFile file(path);
    std::string_view left = file.view();
    while (left.find('\n') != left.npos) {
        Json j = Json::parse(left.substr(0, left.find('\n')), path);
        left.remove_prefix(left.find('\n') + 1);
        long step = j.at("step", path).integer(path);
        check(!out.count(step), text("%s has step %ld once", path.c_str(), step));
        out[step] = j.at("loss", path).text + " " + j.at("gradient_norm", path).text + " " +
            j.at("learning_rate", path).text;
    }

    return out;
}

// A resumed run has the recipe of its checkpoint, option by option, without being given it
void check_inherited_options() {
    struct { const char *name, *value; } recipe[] = {
        {"loss-on", "answers"}, {"batch", "6"}, {"ramp-start", "2"}, {"ramp-increment", "2"},
        {"ramp-tokens", "300"}, {"learning-rate", "0.002"}, {"min-learning-rate", "1e-05"},
        {"warmup-tokens", "200"}, {"decay-tokens", "2500"}, {"beta1", "0.8"}, {"beta2", "0.9"},
        {"epsilon", "1e-07"}, {"weight-decay", "0.2"}, {"clip", "0.7"}, {"evaluate-every", "3"},
        {"evaluate-sequences", "5"}, {"sample-every", "4"}, {"sample-tokens", "6"}, {"spike-z", "7"},
        {"moments", "bf16"}, {"pad-vocabulary", "64"},
        // of --save, which is the same folder
        {"save-every", "2"}, {"save-seconds", "100"}, {"mtbf", "5"}, {"save-attempts", "3"}, {"keep", "4"},
        {"on-spike", "skip"}};
    std::string tokens = make_tokens("asked.bin", 700, 257), folder = scratch_folder + "/inherited";
    write_answers(tokens, 700, {{5, 650}});
    std::string words = programs + "/train_gpt --train " + tokens + " --validation " + tokens, given;
    for (auto& option : recipe) given += text(" --%s %s", option.name, option.value);
    auto given_in = [&](const std::string& name) {
        return std::find_if(std::begin(recipe), std::end(recipe), [&](auto& o) { return o.name == name; }) !=
            std::end(recipe);
    };
    for (auto& option : option_table) {  // others: only some builds take them, or a run has one of them
        static const std::set<std::string> others = {"model", "steps", "until-tokens", "fp8", "fp8-lm-head",
                                                     "master-weights"};
        bool inherits = option.inherit != Inherit::never;
        check(inherits == (given_in(option.name) || others.count(option.name)),
              text("--%s is %sinherited: correct config.h, or `recipe` in test_program.h", option.name,
                   inherits ? "" : "not "));
    }
    Outcome first = run(words + given + " --layers 1 --hidden 16 --heads 2 --sequence 16 --steps 4 --save " +
                        folder);
    Outcome second = run(words + " --steps 6 --resume " + folder);
    check(first.code == 0 && second.code == 0, "a run, and resumed: " + first.out + second.out);
    if (first.code || second.code) return;
    Checkpoint resumed(folder + "/" + step_name(6));
    for (auto& option : recipe)
        check(resumed.options[option.name] == option.value,
              text("resumed, --%s is %s, expected %s", option.name, resumed.options[option.name].c_str(),
                   option.value));
}

void test_resume() {
    check_inherited_options();
    std::string tokens = make_tokens("train.bin", 700, 257), s = scratch_folder;
    auto command = [&](const std::string& name) {
        return programs + "/train_gpt --train " + tokens + " --validation " + tokens +
            " --layers 2 --hidden 24 --heads 3 --sequence 16 --batch 6 --micro-batch 2 --steps 120 "
            "--learning-rate 1e-2 --evaluate-every 5 --evaluate-sequences 4 --save-every 3 --save " + s +
            "/" + name + " --metrics " + s + "/" + name + ".jsonl --tuning " + s +
            "/tuning";  // one machine's
    };

    Outcome o = run(command("unbroken"));
    check(o.code == 0 && o.out.find("validation loss") != std::string::npos, "a run to its end: " + o.out);
    auto want = read_metrics(s + "/unbroken.jsonl");
    check(want.size() == 120, "a line of metrics for each step");

    // kill -9 at whatever moment, resume, again and again
    int kills = 0;
    for (double after = 0.02; after < 2; after *= 1.35) {
        bool begun = fs::exists(s + "/killed") && !list_checkpoints(s + "/killed").empty();
        o = run(command("killed") + (begun ? " --resume " + s + "/killed" : ""), after);
        kills += o.code == 128 + SIGKILL;
        if (o.code != 128 + SIGKILL && o.code != 0) check(false, "after kill -9: " + o.out);
    }

    bool begun = !list_checkpoints(s + "/killed").empty();
    o = run(command("killed") + (begun ? " --resume " + s + "/killed" : ""));
    check(o.code == 0, "the last resume: " + o.out);
    check(kills >= 3, text("killed %d times, expected 3 or more", kills));
    check(read_metrics(s + "/killed.jsonl") == want,
          "kill -9 and --resume give the losses of the unbroken run to the last bit");
    std::string a(MappedFile(s + "/unbroken/step-00000120/rank-00000.bin").view()),
        b(MappedFile(s + "/killed/step-00000120/rank-00000.bin").view());
    check(a == b, "and its weights and moments");
    o = run(command("stopped") + " --steps 100000 --save-every 0 --decay-tokens 1e6", 0, SIGTERM, 0,
            s + "/stopped.jsonl");
    check(o.code == 0 && list_checkpoints(s + "/stopped").size() == 1,
          "SIGTERM: finishes the step, saves, exits with 0: " + o.out);

    // by time: a save is due at the first step, and one is made at the end, however long the first takes
    for (auto [name, due] : {std::pair("by-seconds", " --save-seconds 0.001"), {"by-mtbf", " --mtbf 1e-9"}}) {
        o = run(command(name) + " --save-every 0 --keep 99" + due);
        size_t saves = list_checkpoints(s + "/" + std::string(name)).size();
        check(o.code == 0 && saves >= 2, text("%s: %zu checkpoints in 120 steps: ", name, saves) + o.out);
    }

    // a disk that is full: the older checkpoint stays
    size_t had = list_checkpoints(s + "/unbroken").size();
    o = run(programs + "/train_gpt --train " + tokens + " --steps 126 --batch 6 --micro-batch 2 --save " + s +
            "/unbroken --save-attempts 1 --resume " + s + "/unbroken", 0, 0, 40000);
    check(o.code == 1 && o.out.find("was not saved") != std::string::npos &&
          o.out.find("older checkpoints are untouched") != std::string::npos, "disk full: " + o.out);
    check(list_checkpoints(s + "/unbroken").size() == had &&
          find_checkpoints(s + "/unbroken")[0].state.step == 120, "the previous checkpoint stays the newest");
    check(!fs::exists(s + "/unbroken/.step-00000126.partial"), "nothing half written remains");
    o = run(programs + "/train_gpt --resume " + s +
            "/unbroken --generate Hi --sample-tokens 5 --tokenizer bytes");
    check(o.code == 0 && o.out.substr(0, 2) == "Hi", "--generate: " + o.out);
    program_refuses("--resume " + s + "/unbroken --generate prompts.txt", "there is no such file");
    program_refuses("--train " + tokens + " --resume " + s + "/unbroken --layers 3",
                    "the checkpoint has layers 2, the options say 3");
    program_refuses("--train " + tokens + " --resume " + s + "/unbroken --model 124M", "the checkpoint has");
    program_refuses("--train " + tokens + " --resume " + s + "/unbroken --seed 3", "leave --seed out");
    program_refuses("--train " + tokens + " --layers 2 --hidden 24 --heads 3 --sequence 16 --save " + s +
                    "/unbroken", "already holds checkpoints");
    // a run that only looks renames nothing
    o = run(programs + "/train_gpt --train " + tokens + " --validation " + tokens + " --resume " + s +
            "/unbroken --steps 0 --resume-before 120");
    check(o.code == 0 && o.out.find("nothing to do: the run is at step 117") != std::string::npos &&
          is_complete(s + "/unbroken/" + step_name(120)), "--resume-before, --steps 0: " + o.out);
    // files that are read, of a checkpoint, or written twice
    std::string reads = "--train " + tokens + " --resume " + s + "/unbroken --save no ";
    for (const char* option : {"--record ", "--trace ", "--metrics "})
        program_refuses(reads + option + tokens, "is a file that this run reads");
    program_refuses("--plan --train 0.5:" + tokens + " --plan-json " + tokens,
                    "is a file that this run reads");
    program_refuses("--plan --plan-json " + s + "/unbroken/" + step_name(120) + "/index.json",
                    "lies in a checkpoint");
    fs::create_directories(s + "/unbroken/" + step_name(120) + "/below");
    program_refuses(reads + "--metrics " + s + "/unbroken/" + step_name(120) + "/below/x.jsonl",
                    "lies in a checkpoint");
    program_refuses("--train " + tokens + " --resume " + s + "/unbroken --save " + s + "/unbroken/" +
                    step_name(120) + "/below", "is a checkpoint, or lies in one");
    fs::remove(s + "/unbroken/" + step_name(120) + "/below");
    write_file(s + "/one.blend", "1 " + fs::absolute(tokens).string() + "\n");
    program_refuses("--plan --train " + s + "/one.blend --plan-json " + tokens,
                    "is a file that this run reads");
    write_file(answers_path(tokens), "");
    program_refuses("--plan --train " + tokens + " --plan-json " + answers_path(tokens),
                    "is a file that this run reads");
    fs::remove(answers_path(tokens));
    program_refuses(reads + "--trace " + s + "/x.json --record " + s + "/./x.json",
                    "--record and --trace both name");
    program_refuses("--train " + tokens + " --resume " + s + "/unbroken --save " + s + "/unbroken/" +
                    step_name(120) + "/", "is a checkpoint, or lies in one");
    program_refuses(reads + "--resume-before 0", "expected a whole number from 1");
    check(find_checkpoints(s + "/unbroken")[0].state.step == 120, "nothing was written over");

    // with no options but these a run goes on by its checkpoint's recipe, and saves into its folder
    auto eight = [&](const std::string& name, const std::string& more) {
        return run(programs + "/train_gpt --train " + tokens + " --metrics " + s + "/" + name +
                   ".jsonl --tuning " + s + "/tuning " + more);
    };
    std::string recipe = " --layers 1 --hidden 8 --heads 2 --sequence 16 --batch 6 --micro-batch 2 "
                         "--learning-rate 3e-3 --warmup-tokens 100 --decay-tokens 700 --beta2 0.99 "
                         "--clip 0.3 --save " + s;
    eight("whole", recipe + "/whole --steps 8");
    eight("part", recipe + "/part --steps 5 --save-every 2 --keep 1");
    o = eight("part", "--resume " + s + "/part --steps 8");
    check(o.code == 0 && read_metrics(s + "/part.jsonl") == read_metrics(s + "/whole.jsonl"),
          "the checkpoint's recipe: " + o.out);
    check(list_checkpoints(s + "/part") == std::vector{step_name(8)}, "it saves back, and keeps one");
    check(o.out.find("note: --steps is 8, the checkpoint was trained with 5") != o.out.npos, o.out);
    check(o.out.find("note: given to the checkpoint's run and not to this one") == o.out.npos, o.out);
    o = eight("part", "--resume " + s + "/part/" + step_name(8) + " --steps 9 --clip 1");
    check(o.out.find("note: --clip is 1, the checkpoint was trained with 0.3") != o.out.npos, o.out);
    check(list_checkpoints(s + "/part") == std::vector{step_name(9)}, "a checkpoint by its name");
    check(find_checkpoints(s + "/part")[0].options.at("micro-batch") == "2", "its micro-batch, twice");
    program_refuses("--train " + tokens + " --resume " + s + "/part/" + step_name(8),
                    "part has " + step_name(9) + "; older ones are removed (--keep)");
    o = eight("part", "--resume " + s + "/part/" + step_name(9) + " --steps 9 --save " + s + "/part/");
    check(o.code == 0, "the newest checkpoint, and the folder that holds it: " + o.out);
    o = eight("part", "--resume " + s + "/part --steps 4 --validation " + tokens);
    check(o.code == 0 && o.out.find("--steps 4 is its total length") != o.out.npos &&
          o.out.find("validation loss ") != o.out.npos, "nothing to do but to evaluate: " + o.out);
    {
        FolderLock training(s + "/part");
        o = eight("part", "--resume " + s + "/part --steps 4 --validation " + tokens);
        check(o.code == 0 && o.out.find("validation loss ") != o.out.npos, "beside training: " + o.out);
        o = eight("part", "--resume " + s + "/part --steps 10");
        check(o.code == 1 && o.out.find("writes there: end that run") != o.out.npos, "no step: " + o.out);
    }
    o = eight("part", "--resume " + s + "/part --steps 10 --save no");
    check(o.code == 0 && list_checkpoints(s + "/part") == std::vector{step_name(9)}, "--save no: " + o.out);
    fs::copy(s + "/part/" + step_name(9), s + "/alone");
    program_refuses("--train " + tokens + " --resume " + s + "/alone --steps 10",
                    "is a checkpoint on its own: say where this run should save: --save FOLDER, or "
                    "--save no");

    // a longer run keeps the learning rate's schedule, and does not warm up again
    eight("short", "--layers 1 --hidden 8 --heads 2 --sequence 16 --batch 6 --learning-rate 3e-3 --steps 4 "
                   "--save " + s + "/short");
    o = eight("short", "--resume " + s + "/short --steps 6");
    check(o.out.find("the learning rate stays at 3.00e-04 after 384 tokens") != o.out.npos &&
          o.out.find("lr 3.00e-04") != o.out.npos, "beyond its decay: " + o.out);
    o = eight("short", "--resume " + s + "/short --steps 7 --warmup-tokens 50 --save no");
    check(o.out.find("note: --warmup-tokens is 50, the checkpoint was trained with 3") != o.out.npos,
          "another warm-up: " + o.out);
    o = run(programs + "/train_gpt --resume " + s + " --generate Hi");
    check(o.code == 1 && o.out.find("did you mean " + s + "/") != o.out.npos, "a folder above: " + o.out);

    // an older checkpoint of an earlier part of the ramp: what was set up for the newest does not fit
    std::string ramped = programs + "/train_gpt --train " + tokens +
                         " --layers 1 --hidden 8 --heads 2 --sequence 16 --batch 6 --micro-batch 2 "
                         "--ramp-start 2 --ramp-tokens 300 "
                         "--steps 12 --save-every 4 --keep 5 --save " +
                         s + "/ramped";
    check(run(ramped).code == 0, "a run with a ramp");
    for (const char* step : {"8", "12"})
        patch(s + "/ramped/" + step_name(atol(step)) + "/rank-00000.bin", 100, "damage");
    o = run(ramped + " --resume " + s + "/ramped");
    check(o.code == 1 && o.out.find("an earlier part of the batch ramp: give --resume") != std::string::npos,
          "a checkpoint before the ramp's end: " + o.out);
    o = run(ramped + "2 --resume " + s + "/ramped/" + step_name(4));
    check(o.code == 0 && o.out.find("resumed") != std::string::npos, "as it was advised: " + o.out);
}

void test_program() {
    std::string tokens = make_tokens("train.bin", 700, 257), s = scratch_folder,
        small = " --layers 1 --hidden 8 --heads 2 --sequence 8 ";
    Outcome o;
    check(run(programs + "/train_gpt --help").out.find("--micro-batch") != std::string::npos, "--help");

    program_refuses("", "missing --train FILE");
    program_refuses("--modle 124M", "did you mean --model");
    program_refuses("--train " + tokens + " --model 530", "did you mean 530B");
    program_refuses("--train " + tokens + small + "--heads 3", "does not divide --hidden 8");
    program_refuses("--train " + tokens + small + "--batch 6 --micro-batch 4",
                    "does not divide --batch 6: choose 3 or 6");
    program_refuses("--train " + tokens + small + "--vocabulary 300", "give --vocabulary 257");
    program_refuses("--train /nowhere.bin" + small, "cannot be read");
    program_refuses("--train " + tokens + " --layers 1 --hidden 8 --heads 2 --sequence 700",
                    "one sample needs 701");
    program_refuses("--train " + tokens + small + "--resume " + s + "/nothing",
                    "/nothing: does not exist: choose a folder that --save wrote");
    program_refuses("--generate hello", "give --resume DIR");
    program_refuses("--train " + tokens + small + "--fp8-lm-head yes", "requires --fp8 yes");
    std::string in_fp8 = "--plan --hidden 16 --layers 1 --heads 1 --sequence 16 --fp8 yes --fp8-lm-head yes ";
    program_refuses(in_fp8 + "--loss-chunk 24", "with --loss-chunk 24: expected a multiple of 16");
    program_refuses(in_fp8 + "--pad-vocabulary 1", "padded to 50257 over 1 tensor-parallel ranks: expected a "
                                                   "multiple of 16: choose another --pad-vocabulary");
    program_refuses("--train " + tokens + small + "--steps 2 --save /proc/here", "cannot be written");
    program_refuses("--train " + tokens + small + "--tokenizer /nowhere.bpe", "cannot be read");

    write_file(s + "/text.txt", "To be, or not to be: that is the question.\n");
    program_refuses("--train " + s + "/text.txt" + small, "make one from text with ./tokenize");
    program_refuses("--vocabulary bytes --output " + s + "/x /nowhere.txt", "cannot be read", "tokenize");
    program_refuses("--vocabulry bytes", "did you mean --vocabulary", "tokenize");
    program_refuses("--vocabulary bytes --output " + s + "/x", "missing FILE", "tokenize");
    check(!fs::exists(s + "/x.bin") && !fs::exists(s + "/x.bin.partial"),
          "a refused tokenize leaves nothing");

    write_file(s + "/bad.jsonl", "{\"text\": \"a\"}\n{\"txt\": \"b\"}\n");
    program_refuses("--vocabulary bytes --output " + s + "/x " + s + "/bad.jsonl",
                    "bad.jsonl line 2: document: has no \"text\"", "tokenize");
    write_file(s + "/good.jsonl", "{\"text\": \"a\\u00e9\"}\n\n{\"id\": 1, \"text\": \"\"}\n{\"text\": "
                                  "\"b\"}");
    check(run(programs + "/tokenize --vocabulary bytes --output " + s + "/j " + s + "/good.jsonl").code == 0,
          "JSONL");

    TokenFile j(s + "/j.bin");
    std::vector<int> t(j.count);
    j.read(t.data(), 0, j.count, 257);
    check(t == std::vector<int>({'a', 0xc3, 0xa9, 256, 256, 'b', 256}),
          "a document a line, each with its end of text");

    std::string command = programs + "/tokenize --vocabulary bytes --output " + s + "/t ";
    check(run(command + s + "/text.txt").code == 0 &&
          run(programs + "/tokenize --decode " + s +
              "/t.bin").out == std::string(MappedFile(s + "/text.txt").view()), "text comes back");
    check(run("sh -c 'cat " + s + "/text.txt | " + programs + "/tokenize --vocabulary bytes --output " + s +
              "/u -'").code == 0 && MappedFile(s + "/u.bin").view() == MappedFile(s + "/t.bin").view(),
              "standard input is like a file");
    check(run(command + "--validation 0.3 " + s + "/text.txt").code == 0 &&
          TokenFile(s + "/t.train.bin").count + TokenFile(s + "/t.validation.bin").count == 45,
          "one document is split at its end");

    // what ./tasks writes: characters of a continuation, of which a blank before it is none; and after the
    // requests of a document those with a neutral context
    write_file(s + "/own.jsonl", R"({"context": "c", "continuations": [" \u00e9a", "ab"], "gold": 0})");
    std::string make = programs + "/tasks --vocabulary bytes --output " + s + "/own.eval --task ";
    o = run(make + "requests --from " + s + "/own.jsonl");
    check(o.code == 0, "./tasks: " + o.out);
    EvalFile own = EvalFile::open(s + "/own.eval");
    check(own.requests.size() == 2 && own.requests[0].characters == 2 && own.requests[1].characters == 2 &&
              own.requests[0].continuation_tokens == 4, "characters, not bytes");
    fs::create_directories(s + "/race/test");
    write_file(s + "/race/test/1.txt", R"({"article": "A", "questions": ["Why?"], "answers": ["B"],
                                           "options": [["a", "b", "c", "d"]]})");
    o = run(make + "race --form mtnlg --from " + s + "/race");
    check(o.code == 0, "./tasks: " + o.out);
    EvalFile race = EvalFile::open(s + "/own.eval");
    auto words = [&](int64_t from, int64_t n) {
        return std::string(race.tokens.begin() + from, race.tokens.begin() + from + n);
    };
    std::string contexts, continuations;
    for (auto& r : race.requests) {
        contexts += words(r.context, r.context_tokens) + "|";
        continuations += words(r.continuation, r.continuation_tokens);
    }
    check(race.priors && race.requests.size() == 8 && contexts.starts_with("Article: A") &&
              contexts.ends_with("Answer:|Answer:|Answer:|Answer:|") && continuations == " a b c d a b c d",
          "RACE's priors: " + contexts + continuations);

    std::string many;
    for (int i = 0; i < 1000; i++) many += text("{\"text\": \"document %d\"}\n", i);
    write_file(s + "/many.jsonl", many);
    check(run(command + "--validation 0.1 " + s + "/many.jsonl").code == 0, "many documents");
    uint64_t held = MappedFile(s + "/t.validation.bin").read<uint64_t>(32, "documents");
    check(held > 60 && held < 140, text("a tenth of 1000 documents is set aside: %d", (int)held));
}
