#!/usr/bin/env python3
"""Evaluation and generation give the same in every layout: python3 scripts/test_evaluate.py FP64 EMULATED

(folders of builds: for the CPU in fp64, emulated in fp32.) Log-likelihoods of every continuation over
tensor-, pipeline- and data-parallel layouts equal one process's to 1e-10, absolute plus relative; answers to
prompts are the same bytes in every layout and with any number of prompts at once. The last line is `N passed,
N failed`.
"""

import json
import os
import pty
import random
import re
import shutil
import subprocess
import sys
import tempfile

from over_ranks import check, environment, finish, json_lines, make_tokens, near, start, words

build, emulated = (os.path.abspath(folder) for folder in sys.argv[1:3])
work = tempfile.mkdtemp()
random.seed(1)
MODEL = (
    "--layers 4 --hidden 16 --heads 4 --sequence 32 --vocabulary 257 --pad-vocabulary 264 --batch 4"
    " --micro-batch 2 --learning-rate 1e-2"
).split()


def run(ranks, arguments, folder=build, program="train_gpt", **variables):
    return start(f"{folder}/{program}", ranks, arguments, **variables)


def good(result, what):
    check(result.returncode == 0, f"{what}: {result.returncode} {result.stderr[-500:]}")
    return result.returncode == 0


def some(n):
    return "".join(random.choice("abcde fgh") for _ in range(n))


text = f"{work}/text"
# mostly: a after a blank
make_tokens(build, text, " ".join(random.choice(["ab", "ab", "ab", "cd"]) for _ in range(1500)), 0.2)
DATA = ["--train", f"{text}.train.bin", "--validation", f"{text}.validation.bin"]

# documents with contexts of all lengths, some longer than the model's sequence, and continuations of 1 to 30
# tokens
with open(f"{work}/own.jsonl", "w") as f:
    for i in range(60):
        f.write(
            json.dumps(
                {
                    "context": some(random.randint(0, 45)),
                    "gold": i % 2,
                    "group": "odd" if i % 2 else "even",
                    "continuations": [some(random.randint(1, 30)) for _ in range(2 + i % 3)],
                }
            )
            + "\n"
        )
with open(f"{work}/words.jsonl", "w") as f:
    for i in range(30):
        f.write(json.dumps({"text": "ab " * random.randint(1, 9) + "cd" + (" a" if i % 2 else " z")}) + "\n")


def make_task(task, name, vocabulary="bytes", output=None):
    words = f"--task {task} --from {work}/{name}.jsonl --vocabulary {vocabulary}"
    return run(1, [*words.split(), "--output", f"{work}/{output or name}.eval"], program="tasks")


for name, task in (("own", "requests"), ("words", "lambada")):
    good(make_task(task, name), name)
TASKS = ["--evaluate", f"{work}/own.eval", f"{work}/words.eval"]
good(run(1, [*DATA, *MODEL, "--steps", "60", "--save", f"{work}/model"]), "training")
LAYOUTS = [
    (t * p * d, {"tensor-parallel": t, "pipeline-parallel": p, **more})
    for t, p, d, more in (
        (1, 1, 2, {}),
        (1, 1, 3, {}),
        (2, 1, 1, {}),
        (4, 1, 1, {}),
        (1, 2, 1, {}),
        (1, 4, 1, {}),
        (1, 2, 1, {"pipeline-chunks": 2}),
        (2, 2, 2, {}),
        (2, 2, 1, {"micro-batch": 1}),
        (1, 1, 1, {"micro-batch": 7}),
    )
]


def results(name):
    with open(f"{work}/{name}.json") as f:
        return json.load(f)


def likelihoods(name):
    return [x for task in results(name)["log_likelihoods"].values() for document in task for x in document]


saved = ["--resume", f"{work}/model", *TASKS]
good(run(1, [*saved, "--results", f"{work}/one.json"]), "one process")
one = results("one")
check(
    len(likelihoods("one")) == 210 and all(-900 < x < 0 for x in likelihoods("one")),
    f"log-likelihoods: {likelihoods('one')[:9]}",
)
check(
    set(one["results"]["own"]) >= {"acc", "acc_stderr", "acc_norm", "acc group even", "acc group odd"}
    and set(one["results"]["lambada"]) == {"acc", "acc_stderr", "ppl", "ppl_stderr"},
    f"measures: {one['results']}",
)
check(0 < one["results"]["lambada"]["acc"] < 1, f"some words are what the model would say: {one['results']}")
check(
    sorted(one["lines"]["own"]) == list(range(1, 61)) and one["lines"]["own"] != sorted(one["lines"]["own"]),
    "lines of documents",
)
check(one["truncated_documents"]["own"] > 10, "long documents are counted")
for ranks, options in LAYOUTS:
    if good(
        run(ranks, [*saved, *words(options), "--results", f"{work}/other.json"]),
        f"evaluation, {ranks} ranks, {options}",
    ):
        check(near(likelihoods("other"), likelihoods("one")), f"log-likelihoods, {ranks} ranks, {options}")
        check(
            results("other")["results"].keys() == one["results"].keys()
            and near(
                [x for r in results("other")["results"].values() for x in r.values()],
                [x for r in one["results"].values() for x in r.values()],
            ),
            f"measures, {ranks} ranks, {options}",
        )
        os.remove(f"{work}/other.json")
# the kernels, in fp32: sums of 30 terms that differ by 1e-7 each
for seed, (ranks, options) in enumerate(
    ((1, {}), (2, {"pipeline-parallel": 2}), (4, {"tensor-parallel": 2}))
):
    if good(
        run(
            ranks,
            [*saved, *words(options), "--results", f"{work}/other.json"],
            folder=emulated,
            EMULATED_SEED=str(seed),
        ),
        f"emulated, {options}",
    ):
        check(
            near(likelihoods("other"), likelihoods("one"), most=1e-5), f"log-likelihoods, emulated, {options}"
        )

# while it trains: every second step, in every layout, with rows cut over tensor ranks or blocks computed
# again
training = [
    *DATA, *MODEL, *TASKS, *"--steps 4 --evaluate-every 2 --decay-tokens 1000 --warmup-tokens 9".split()
]
measured = {}
for ranks, options in (
    (1, {}),
    (2, {"tensor-parallel": 2}),
    (2, {"tensor-parallel": 2, "sequence-parallel": "no"}),
    (2, {"pipeline-parallel": 2, "pipeline-chunks": 2}),
    (4, {"tensor-parallel": 4, "recompute": "full"}),
    (8, {"tensor-parallel": 2, "pipeline-parallel": 2, "micro-batch": 1}),
):
    if good(
        run(ranks, [*training, *words(options), "--metrics", f"{work}/m.jsonl"]),
        f"training with tasks, {options}",
    ):
        lines = json_lines(f"{work}/m.jsonl")
        got = [x for line in lines for x in line.get("tasks", {}).values()]
        measured.setdefault("one", got)
        check(
            [("tasks" in line) for line in lines] == [False, True, False, True]
            and len(got) == 12
            and near(got, measured["one"]),
            f"training with tasks, {options}: {got}",
        )
        os.remove(f"{work}/m.jsonl")

# prompts of different lengths, some with settings of their own: the same bytes in every layout, with any
# number at once
with open(f"{work}/prompts.jsonl", "w") as f:
    for i in range(11):
        prompt = {"prompt": some(random.randint(0, 30))}
        prompt.update(
            [
                {},
                {"seed": 5, "samples": 3},
                {"temperature": 0, "tokens": 9},
                {"top_k": 3, "repetition": 1.5},
                {"top_p": 0.5, "stop": ["a", "zz"]},
                {"tokens": 40},
            ][i % 6]
        )
        f.write(json.dumps(prompt) + "\n")
speak = [
    *f"--resume {work}/model --tokenizer bytes --generate {work}/prompts.jsonl --sample-tokens 20".split()
]
said = run(1, [*speak, "--batch", "1"])
good(said, "prompts")
answers = [json.loads(line) for line in said.stdout.splitlines()]
check(
    len(answers) == 15
    and {a["stopped"] for a in answers} >= {"length", "stop"}
    and all(
        a["tokens"] == (9 if i in (4, 12) else 40 if i == 7 else 20)
        for i, a in enumerate(answers)
        if a["stopped"] == "length"
    )
    and len({a["text"] for a in answers[1:4]}) == 3,
    f"answers: {answers}",
)
for a, line in zip(answers, said.stdout.splitlines()):
    check("a" not in a["text"] if a["stopped"] == "stop" else a["text"], f"an answer: {line}")
for ranks, options in (
    (1, {"batch": 4}),
    (1, {"batch": 15}),
    (2, {"tensor-parallel": 2}),
    (4, {"tensor-parallel": 4}),
    (2, {"pipeline-parallel": 2}),
    (3, {"batch": 2}),
    (2, {"pipeline-parallel": 2, "pipeline-chunks": 2, "batch": 3}),
    (8, {"tensor-parallel": 2, "pipeline-parallel": 2}),
    (8, {"tensor-parallel": 2, "pipeline-parallel": 4}),
):
    other = run(ranks, [*speak, *words(options)])
    check(
        other.stdout == said.stdout,
        f"the same answers, {ranks} ranks, {options}: {other.stdout[-600:]} {other.stderr[-300:]}",
    )
good(run(1, [*speak, "--results", f"{work}/answers.jsonl"]), "answers into a file")
check(open(f"{work}/answers.jsonl", encoding="latin-1").read() == said.stdout, "the same answers in a file")

# a prompt of standard input, in a pipe or typed
written = ["--resume", f"{work}/model", "--tokenizer", "bytes", "--sample-tokens", "12", "--generate"]
want = run(1, [*written, "ab ab"])
good(want, "--generate")
check(re.fullmatch(r"1?[0-9] tokens, [0-9.]+ tokens/s\n", want.stderr), f"how fast: {want.stderr}")
long = run(1, [*written, "ab" * 40])
says = "note: the prompt has 80 tokens, the model reads 32: only its end counts"
check(says in long.stderr, f"a prompt that is too long: {long.stderr}")
for ranks in (1, 2):
    command = ["mpirun", "-n", "2"] if ranks == 2 else []
    command += [f"{build}/train_gpt", *written, "-", "--tensor-parallel", str(ranks)]
    out = subprocess.run(command, input="ab ab", capture_output=True, encoding="latin-1", env=environment,
                         timeout=60)  # fmt: skip
    check(out.stdout == want.stdout, f"a prompt from a pipe, {ranks} ranks: {out.stdout} {out.stderr[-300:]}")
# each setting does the same from the command line as in a file of prompts, and is not without effect
for option, value in (("temperature", 0.4), ("top-k", 2), ("top-p", 0.3), ("repetition", 1.7), ("seed", 11)):
    settings = {"prompt": "ab ab", option.replace("-", "_"): value}
    open(f"{work}/one.jsonl", "w").write(json.dumps(settings) + "\n")
    [answer] = run(1, [*written, f"{work}/one.jsonl"]).stdout.splitlines()
    out = run(1, [*written, "ab ab", f"--{option}", str(value)]).stdout
    # bytes that are not UTF-8 are replaced in JSON
    plain = lambda said: re.sub("[^\0-\x7f]+", "?", said)  # noqa: E731
    same = plain(out) == plain("ab ab" + json.loads(answer)["text"] + "\n")
    check(same and out != want.stdout, f"--{option} {value}: {out} {answer} {want.stdout}")
# a full window goes on from its later half alone, as that half as a prompt does
full = ("ab cd " * 6)[:32]
greedy = [*written[:-1], "--temperature", "0", "--sample-tokens"]
both = run(1, [*greedy, "17", "--generate", full]).stdout[:-1]
half = both[17:33]
later = run(1, [*greedy, "16", "--generate", half]).stdout[:-1]
check(len(both) == 49 and both[17:] == later, f"behind a full window: {both!r}, by itself {later!r}")
outside, inside = pty.openpty()
typed = subprocess.Popen(
    [f"{build}/train_gpt", *written, "-"], stdin=inside, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    encoding="latin-1", env=environment,
)  # fmt: skip
os.write(outside, b"ab ab\ncd\n\x04")
out, _ = typed.communicate(timeout=60)
check(typed.returncode == 0 and out.startswith(want.stdout) and "\ncd" in out, f"typed prompts: {out}")

# what is refused, once
open(f"{work}/bad.jsonl", "w").write('{"prompt": "a"}\n{"prompt": "a", "top_q": 1}\n')
open(f"{work}/own.eval.txt", "w").write("a text\n")
open(f"{work}/bad3.jsonl", "w").write('{"prompt": "a", "top_p": 1.5}\n')
open(f"{work}/bad4.jsonl", "w").write('{"prompt": "a", "stop": [""]}\n')
open(f"{work}/bad2.jsonl", "w").write('{"prompt": "a", "temperature": -1}\n')
open(f"{work}/long.jsonl", "w").write(json.dumps({"context": "a", "continuations": ["b" * 33]}) + "\n")
make_task("requests", "long")
open(f"{work}/vocab.bpe", "w").write("#version: 0.2\n" + "".join(f"{chr(33 + i)} a\n" for i in range(43)))
make_task("requests", "own", f"{work}/vocab.bpe", "gpt")
for extra, message in (
    (["--evaluate", f"{text}.txt"], "is not an evaluation file"),
    (["--evaluate", f"{work}/none.eval"], "cannot be read"),
    (["--evaluate", f"{work}/own.eval", "--generate", "a"], "give one of them"),
    (["--generate", f"{work}/none.jsonl"], "cannot be read"),
    (["--generate", f"{work}/own.jsonl"], "line 1: has no \"prompt\""),
    (["--generate", f"{work}/bad.jsonl"], "bad.jsonl line 2: \"top_q\": expected prompt, answer, samples"),
    (["--generate", f"{work}/bad2.jsonl"], "bad2.jsonl line 1: --temperature -1: expected"),
    (["--results", "x"], "requires --evaluate FILE.eval"),
    (["--evaluate", f"{work}/own.eval", f"{work}/own.eval"], "another file already has the name own"),
    (["--evaluate", f"{work}/own.eval", "--results", f"{work}/nowhere/x"], "cannot be written"),
    (["--evaluate", f"{work}/own.eval", "--results", f"{work}/own.eval.txt"], "exists, but is no results"),
    (["--evaluate", f"{work}/own.eval", "--pipeline-chunks", "2"], "on one pipeline stage"),
    (["--generate", f"{work}/bad3.jsonl"], "bad3.jsonl line 1: \"top_p\" 1.5: must be at most 1"),
    (["--generate", f"{work}/bad4.jsonl"], "bad4.jsonl line 1: \"stop\" has an empty string"),
    (
        ["--evaluate", f"{work}/long.eval", "--long-continuations", "refuse"],
        "long.jsonl line 1 has a continuation of 33 tokens, the model takes 32",
    ),
    (["--evaluate", f"{work}/long.eval"], "every document has a continuation of more than the 32 tokens"),
    (["--evaluate", f"{work}/gpt.eval"], "has vocabulary size 300, the model 257"),
):
    for ranks in (1, 2):
        result = run(ranks, ["--resume", f"{work}/model", *extra])
        check(
            result.returncode == 1 and message in result.stderr and result.stderr.count("train_gpt:") == 1,
            f"{extra}, {ranks} ranks: {result.returncode} {result.stderr[-300:]}",
        )
result = run(1, TASKS + MODEL)
check(
    result.returncode == 0 and "own " in result.stdout and "weights are random" in result.stdout,
    f"a model without training can be evaluated: {result.stderr[-300:]}",
)

# a kernel's wait that has expired makes results wrong: they are not printed, whoever asks for them
for what, arguments, asked in (
    ("--evaluate", [*TASKS, *MODEL, "--resume", f"{work}/model"], 2),
    ("generation", ["--resume", f"{work}/model", "--generate", "ab"], 3),
    ("the validation loss", [*DATA, *MODEL, "--steps", "1", "--evaluate-every", "1"], 2),
    ("step 2", [*DATA, *MODEL, "--steps", "2"], 2),
):
    result = run(1, arguments, emulated, EMULATED_EXPIRED_WAIT=str(asked))
    check(
        result.returncode == 1
        and f"{what}: a wait in flash attention's kernels has expired" in result.stderr
        and "tokens/s" not in result.stdout.split("step ")[-1].split("loss")[0]
        and not re.search(r"^(own|words) ", result.stdout, re.M),
        f"{what} with a wait that has expired: {result.returncode} {result.stdout[-300:]}"
        f" {result.stderr[-300:]}",
    )
shutil.rmtree(work)
finish()
