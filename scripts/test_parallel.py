#!/usr/bin/env python3
"""Every layout trains the same model as one process: python3 scripts/test_parallel.py FP64 FP32 EMULATED

(folders of builds: for the CPU in fp64 and fp32, and emulated in fp32.) Runs train_gpt of the fp64 build
under mpirun over tensor-, pipeline- and data-parallel layouts and compares the losses of six steps, the
validation loss, gradient norms and all final parameters and moments with one process: 1e-10, absolute plus
relative. A sum over ranks in another order differs by about 1e-16 a term; AdamW's division by sqrt(v)
magnifies that where a gradient is 0 in truth (the key bias), so parameters are compared at the scale of the
learning rate. In fp32, pipelines alone are equal to one process to the last bit. The kernels, in emulation,
train over several ranks with streams in several orders. The last line is `N passed, N failed`.
"""

import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

from over_ranks import check, checksum, count, environment, finish, near, start, words

build, build32, emulated = (os.path.abspath(folder) for folder in sys.argv[1:4])
work = tempfile.mkdtemp()
MODEL = (
    "--layers 4 --hidden 16 --heads 4 --sequence 8 --vocabulary 257 --pad-vocabulary 264 --batch 12"
    " --micro-batch 1 --steps 6 --learning-rate 1e-2 --clip 0.5 --evaluate-every 3 --evaluate-batches 5"
).split()


def run(ranks, arguments, timeout=60, folder=None, program="train_gpt", **variables):
    return start(f"{folder or build}/{program}", ranks, arguments, timeout, **variables)


def metrics(name):
    with open(f"{work}/{name}.jsonl") as f:
        return [json.loads(line) for line in f]


def values(name):
    """Tensor and kind -> numbers, of a checkpoint that one process wrote."""
    folder = f"{work}/{name}/step-00000006"
    data = open(f"{folder}/rank-00000.bin", "rb").read()
    return {
        (p["tensor"], p["kind"]): struct.unpack_from(f"<{p['bytes'] // 8}d", data, p["offset"])
        for p in json.load(open(f"{folder}/rank-00000.json"))["pieces"]
    }


def train(name, ranks, extra, resume=None, **where):
    arguments = [*DATA, *MODEL, "--save", f"{work}/{name}", "--metrics", f"{work}/{name}.jsonl", *extra]
    if resume:
        arguments += ["--resume", f"{work}/{resume}"]
    result = run(ranks, arguments, **where)
    check(result.returncode == 0, f"{name}: {result.stderr[-500:]}")
    check(f"plan and run are equal on all {ranks} ranks" in result.stdout, f"{name}: {result.stdout[-1000:]}")
    told = [result.stdout.count(line) for line in ("settings\n", "\nmemory, MB", "\ndevice ")]
    check(told == [1, 1, 1], f"{name}: settings, memory and device are told {told} times")
    return result.returncode == 0


text = f"{work}/text"
open(text, "w").write("".join(" " if i % 7 == 6 else chr(97 + (i * i + i // 7) % 26) for i in range(4000)))
subprocess.run(
    [f"{build}/tokenize", "--vocabulary", "bytes", "--validation", "0.2", "--output", text, text],
    check=True,
    stdout=subprocess.DEVNULL,
)
DATA = ["--train", f"{text}.train.bin", "--validation", f"{text}.validation.bin"]
KEYS = ("loss", "gradient_norm", "validation_loss")


def layouts():
    """Every t, p, d of at most 8 ranks, with each of the other choices that mean something there."""
    for t, p, d in ((t, p, d) for t in (1, 2, 4) for p in (1, 2, 4) for d in (1, 2, 3) if 1 < t * p * d <= 8):
        basic = {"tensor-parallel": t, "pipeline-parallel": p}
        for sequence in ("yes", "no") if t > 1 else ("yes",):
            for zero in (0, 1) if d > 1 else (1,):
                yield t * p * d, {**basic, "sequence-parallel": sequence, "zero": zero}
        yield t * p * d, {**basic, "recompute": "full", "check-every": 2}
        yield t * p * d, {**basic, "recompute": "light", "loss-chunk": 3}
        if p == 2:
            for recompute in ("full", "none"):
                yield t * p * d, {**basic, "pipeline-chunks": 2, "recompute": recompute}
    yield 1, {"recompute": "full"}
    yield 1, {"recompute": "light"}
    yield 1, {"loss-chunk": 5}
    yield 1, {"attention": "flash"}
    yield 2, {"tensor-parallel": 2, "attention": "flash"}
    for sequence, chunks in (("yes", 2), ("yes", 4), ("no", 2), ("no", 3)):  # calls beside GEMMs
        overlap = {"tensor-parallel": 4, "tensor-chunks": chunks, "sequence-parallel": sequence}
        yield 4, overlap
        yield 8, {**overlap, "pipeline-parallel": 2, "pipeline-chunks": 2, "recompute": "light"}
        yield 8, {**overlap, "zero": 0, "recompute": "full", "attention": "flash", "check-every": 2}
    yield 8, {"tensor-parallel": 2, "pipeline-parallel": 2, "attention": "flash", "recompute": "full"}
    yield 2, {
        "pipeline-parallel": 2,
        "pipeline-chunks": 2,
        "pipeline-group": 5,
    }  # 12 = 5 + 5 + 2: a short last group


# what ranks say to each other, call by call
for folder in (build, emulated):
    for ranks in (2, 3, 4):
        result = run(ranks, ["ranks", "replicas"], folder=folder, program="test_gpt")
        print("".join(line + "\n" for line in result.stdout.split("\n") if "FAILED" in line), end="")
        counts = re.search(r"(\d+) passed, (\d+) failed\n$", result.stdout)
        check(
            counts is not None and result.returncode == 0,
            f"test_gpt ranks over {ranks}: {result.stderr[-500:]}",
        )
        if counts:
            count(int(counts[1]), int(counts[2]))


def compare_with_one(ranks, options, alone):
    """Losses, norms, all parameters and moments are those of one process, which saved under `alone`."""
    one, want = metrics(alone), values(alone)
    name = "_".join(f"{key.split('-')[0]}{value}" for key, value in options.items()) + f"_of{ranks}"
    if not train(name, ranks, words(options)):
        return
    got = metrics(name)
    for key in KEYS:
        check(near([m[key] for m in got if key in m], [m[key] for m in one if key in m]), f"{name}: {key}")
    # one process reads what the layout wrote, and writes it again whole
    again = run(1, [*DATA, *MODEL, "--resume", f"{work}/{name}", "--save", f"{work}/{name}_one"])
    check(again.returncode == 0, f"{name}: one process reads the checkpoint")
    have = values(name + "_one")
    for key in want:
        check(near(have[key], want[key], 1.0 if key[1] == "master" else 1e-3), f"{name}: {key}")
    shutil.rmtree(f"{work}/{name}")
    shutil.rmtree(f"{work}/{name}_one")


begun = time.time()
train("one", 1, [])
one = metrics("one")
for ranks, options in layouts():
    compare_with_one(ranks, options, "one")
print(f"layouts: {time.time() - begun:.0f} s")


def check_answers():
    """--loss-on answers: the mean over the tokens of answers, the same in every layout."""
    questions = [{"prompt": f"{i} is", "answer": " odd" if i % 2 else " even"} for i in range(150)]
    with open(f"{work}/asked.jsonl", "w") as file:
        file.writelines(json.dumps(each) + "\n" for each in questions)
    made = run(
        1, ["--vocabulary", "bytes", "--output", f"{work}/asked", f"{work}/asked.jsonl"], program="tokenize"
    )
    check(made.returncode == 0, f"prompts and answers: {made.stderr}")
    file = open(f"{work}/asked.answers", "rb").read()
    count, size = struct.unpack_from("<2Q", file, 8)
    ends = struct.unpack_from(f"<{2 * size}Q", file, 24)
    sizes = [end - first for first, end in zip(ends[::2], ends[1::2])]
    check(sizes == [len(each["answer"]) + 1 for each in questions], "an answer and its end of text")
    # the same tokens, of which those between the answers count
    between = struct.pack("<8s2Q", b"GPTANSWR", count, size)
    between += struct.pack(f"<{2 * size}Q", 0, *ends[:-1])
    shutil.copy(f"{work}/asked.bin", f"{work}/others.bin")
    open(f"{work}/others.answers", "wb").write(between + struct.pack("<Q", checksum(between)))

    def losses(name, ranks, data, *extra):
        files = ["--train", f"{work}/{data}.bin", "--metrics", f"{work}/{name}.jsonl"]
        checked = ["--validation", f"{work}/{data}.bin"]
        done = run(ranks, [*files, *checked, *MODEL, *extra])
        check(done.returncode == 0, f"{name}: {done.stderr[-500:]}")
        return [[m[key] for m in metrics(name) if key in m] for key in KEYS] if done.returncode == 0 else None

    # of the first step, whose model is the same: the mean over all is a mean of the two means, and what they
    # are weighed by is a number of tokens
    only = ("--loss-on", "answers")
    every = losses("every token", 1, "asked")
    one = losses("answers", 1, "asked", *only)
    other = losses("the others", 1, "others", *only)
    tokens = 12 * 8 * (every[0][0] - other[0][0]) / (one[0][0] - other[0][0])
    check(abs(tokens - round(tokens)) < 1e-6 and 20 < tokens < 76, f"{tokens} of 96 tokens are of answers")
    for ranks, options in (
        (8, {"tensor-parallel": 2, "pipeline-parallel": 2}),
        (4, {"tensor-parallel": 4, "tensor-chunks": 2, "recompute": "light"}),
        (6, {"pipeline-parallel": 2, "pipeline-chunks": 2}),
        (2, {"zero": 0, "loss-chunk": 3, "check-every": 2}),
    ):
        got = losses(f"answers of {ranks}", ranks, "asked", *only, *words(options))
        check(got and all(map(near, got, one)), f"answers over {ranks}, {options}: {got}, wants {one}")


check_answers()

# moments of bf16 are rounded by chance that follows from weights and gradients, here cut to fp32: alike in
# every layout
train("one_bf16", 1, ["--moments", "bf16"])
for ranks, options in (
    (8, {"tensor-parallel": 2, "pipeline-parallel": 2, "check-every": 2}),
    (4, {"tensor-parallel": 2, "zero": 0, "check-every": 2}),
    (6, {"pipeline-parallel": 2}),
):
    compare_with_one(ranks, {**options, "moments": "bf16"}, "one_bf16")

# pipelines alone, in fp32: the last bit. One process writes again what each has saved, so that files compare.
begin = time.time()


def whole(name, ranks, options):
    if not train(name, ranks, words(options), folder=build32):
        return None
    check(
        run(
            1, [*DATA, *MODEL, "--resume", f"{work}/{name}", "--save", f"{work}/{name}_one"], folder=build32
        ).returncode
        == 0,
        f"{name}: one process reads the checkpoint",
    )
    with open(f"{work}/{name}_one/step-00000006/rank-00000.bin", "rb") as f:
        return [[m.get(key) for key in KEYS] for m in metrics(name)], f.read()


single = whole("single32", 1, {})
for ranks, options in (
    (2, {}),
    (4, {}),
    (2, {"recompute": "full"}),
    (1, {"recompute": "light"}),
    (2, {"pipeline-chunks": 2}),
    (4, {"recompute": "full"}),
    (2, {"pipeline-chunks": 2, "pipeline-group": 6}),
):
    got = whole(
        "bits_" + "_".join(map(str, [ranks, *options.values()])),
        ranks,
        {"pipeline-parallel": ranks, **options},
    )
    check(
        got is not None and got == single,
        f"fp32 over {ranks} stages, {options}: equal to one process to the last bit",
    )

# the kernels over several ranks: streams run in an order that respects nothing but events. Sums in other
# orders differ by
# 1e-7 a term, through 4 layers and 6 steps.
train("reference32", 1, [], folder=build32)
for ranks, options in (
    (2, {"pipeline-parallel": 2}),
    (2, {}),
    (8, {"pipeline-parallel": 2, "tensor-parallel": 2}),
    (4, {"pipeline-parallel": 2, "pipeline-chunks": 2, "recompute": "full"}),
    (2, {"pipeline-parallel": 2, "recompute": "light", "loss-chunk": 3}),
    (4, {"tensor-parallel": 4, "tensor-chunks": 2, "recompute": "light"}),
    (4, {"tensor-parallel": 2, "tensor-chunks": 3, "sequence-parallel": "no"}),
):
    for seed in (1, 2, 3):
        name = f"emulated_{ranks}_{'_'.join(map(str, options.values()))}_seed{seed}"
        if train(name, ranks, words({**options, "check-every": 1}), folder=emulated, EMULATED_SEED=str(seed)):
            check(
                all(
                    abs(a[key] - b[key]) < 1e-4
                    for a, b in zip(metrics(name), metrics("reference32"))
                    for key in KEYS
                    if key in a
                ),
                f"{name}: losses and norms of one process",
            )
# a step as a CUDA graph, with batches that grow, evaluation in between, and gone on from a checkpoint: the
# very same
graph = [
    "--batch",
    "12",
    "--ramp-start",
    "4",
    "--ramp-increment",
    "4",
    "--ramp-tokens",
    "100",
    "--decay-tokens",
    "448",
    "--warmup-tokens",
    "5",
    "--tuning",  # one file of choices: timed anew, they may differ, and so may the last bits
    f"{work}/tuning",
]
for name, choice in (("calls", "no"), ("graph", "yes")):
    train(name, 1, [*graph, "--graph", choice], folder=emulated)
train("half", 1, [*graph, "--graph", "yes", "--steps", "3"], folder=emulated)
train("half", 1, [*graph, "--graph", "yes"], resume="half", folder=emulated)
for name in ("graph", "half"):
    check(
        [[m.get(key) for key in KEYS] for m in metrics(name)]
        == [[m.get(key) for key in KEYS] for m in metrics("calls")],
        f"{name}: a step as a graph is the same to the last bit",
    )
print(f"fp32 and emulated: {time.time() - begin:.0f} s")

# the largest micro-batch that fits: all of it here, and what a plan for a known machine says
result = run(1, [*DATA, *MODEL, "--micro-batch", "auto", "--steps", "1"])
check(
    "micro-batch        12\n" in result.stdout and "plan and run are equal" in result.stdout,
    f"--micro-batch auto: {result.stdout}",
)
result = run(2, [*DATA, *MODEL, "--micro-batch", "auto", "--steps", "1", "--pipeline-parallel", "2"])
check(
    "micro-batch        6\n" in result.stdout and "plan and run are equal" in result.stdout,
    f"a micro-batch for every stage: {result.stdout}",
)

# odd numbers of micro-batches, fewer than stages too, and micro-batches of several sequences
for batch, micro, options in (
    (5, 1, {"pipeline-parallel": 4}),
    (2, 1, {"pipeline-parallel": 4}),
    (7, 1, {"pipeline-parallel": 2}),
    (1, 1, {"pipeline-parallel": 2}),
    (6, 2, {"pipeline-parallel": 2, "tensor-parallel": 2}),
    (3, 1, {"pipeline-parallel": 2, "pipeline-chunks": 2, "pipeline-group": 3}),
    (7, 1, {"pipeline-parallel": 2, "pipeline-chunks": 2, "pipeline-group": 5}),
    (10, 1, {"pipeline-parallel": 4, "pipeline-chunks": 2, "pipeline-group": 6, "layers": 8}),
    (8, 2, {"pipeline-parallel": 3, "pipeline-chunks": 2, "layers": 12, "recompute": "full"}),
):
    size = ["--batch", str(batch), "--micro-batch", str(micro), "--layers", str(options.get("layers", 4))]
    train("alone", 1, size)
    train(
        "pipeline", options.get("tensor-parallel", 1) * options["pipeline-parallel"], [*size, *words(options)]
    )
    for key in KEYS:
        check(
            near(
                [m[key] for m in metrics("pipeline") if key in m],
                [m[key] for m in metrics("alone") if key in m],
            ),
            f"batch {batch}, {options}: {key}",
        )
    for name in ("alone", "pipeline"):
        shutil.rmtree(f"{work}/{name}")

# saved in one layout, resumed in another: the losses of the unbroken run
save = {"decay-tokens": 576, "warmup-tokens": 5}
train("saved", 8, words({"tensor-parallel": 2, "pipeline-parallel": 2, "steps": 3, **save}))
for name, ranks, options in (
    ("4x1x2", 8, {"tensor-parallel": 4}),
    ("1x4x1", 4, {"pipeline-parallel": 4}),
    ("1x1x1", 1, {}),
    ("2x2x1", 4, {"tensor-parallel": 2, "pipeline-parallel": 2, "pipeline-chunks": 2}),
    ("1x1x3", 3, {"zero": 0}),
):
    shutil.copytree(f"{work}/saved", f"{work}/{name}")
    shutil.copy(f"{work}/saved.jsonl", f"{work}/{name}.jsonl")
    if train(name, ranks, words({**options, **save}), resume=name):
        check(
            near([m["loss"] for m in metrics(name)], [m["loss"] for m in one]),
            f"{name}: losses go on as unbroken",
        )

# a blend of two sets and a growing batch: in a pipeline of two replicas as in one process, and resumed in the
# middle
blend = [
    "--train",
    f"0.7:{text}.train.bin",
    f"0.3:{text}.validation.bin",
    "--batch",
    "8",
    "--ramp-start",
    "2",
    "--ramp-increment",
    "2",
    "--ramp-tokens",
    "160",
    "--steps",
    "8",
    "--decay-tokens",
    "320",
    "--warmup-tokens",
    "5",
]
for name, ranks, extra, resume in (
    ("blend1", 1, [], None),
    ("blend4", 4, ["--pipeline-parallel", "2"], None),
    ("blend_half", 2, ["--pipeline-parallel", "2", "--steps", "4"], None),
    ("blend_half", 2, ["--recompute", "full"], "blend_half"),
):
    train(name, ranks, [*blend, *extra], resume=resume)
# what is drawn from each set, planned and at a run's end; 30 samples: 21 and 9
planned = run(1, [*MODEL, *blend, "--plan"])
done = run(1, [*DATA, *MODEL, *blend, "--resume", f"{work}/blend_half"])
for name, out in (("planned", planned), ("at the end", done)):
    rows = re.findall(r"^(text\S*) +(0\.\d+) +(\S+) +(\S+) +(\S+)$", out.stdout, re.M)
    check(
        [row[:2] + row[3:4] for row in rows]
        == [("text", "0.7000", "168"), ("text.validation", "0.3000", "72")]
        and all(abs(float(drawn) / float(size) - float(epochs)) < 0.01 for *_, size, drawn, epochs in rows),
        f"{name}: what is drawn from each set: {rows} {out.stderr[-300:]}",
    )
elsewhere = run(1, [*MODEL, "--train", "0.7:a.bin", "0.3:b.bin", "--vocabulary", "257", "--plan"])
check(
    re.search(r"^b +0\.3000 +not here +\S+ +-$", elsewhere.stdout, re.M),
    f"not here: {elsewhere.stdout[-300:]}",
)
elsewhere = run(1, [*MODEL, "--train", f"{work}/none.blend", "--vocabulary", "257", "--plan"])
check(
    elsewhere.returncode == 0 and "is not known: " in elsewhere.stdout,
    f"a blend that is elsewhere: {elsewhere.stdout[-300:]} {elsewhere.stderr[-300:]}",
)

one_blend = metrics("blend1")
# 20 samples of ramp in three parts: 2 a step from 0, 4 from 6.7, 6 from 13.3, 8 after 20; 8 tokens each
check(
    [m["tokens"] for m in one_blend] == [16, 32, 48, 64, 96, 128, 176, 240],
    f"the ramp: {[m['tokens'] for m in one_blend]}",
)
check(
    all(set(m["losses"]) <= {"text", "text.validation"} for m in one_blend)
    and len(one_blend[-1]["losses"]) == 2,
    "a loss for each set",
)
for name in ("blend4", "blend_half"):
    check(
        near([m["loss"] for m in metrics(name)], [m["loss"] for m in one_blend])
        and all(
            near([a["losses"][k] for k in a["losses"]], [b["losses"].get(k, 0) for k in a["losses"]])
            for a, b in zip(metrics(name), one_blend)
        ),
        f"{name}: the losses of one process, for each set",
    )

# the model speaks alike in every layout
speak = ["--resume", f"{work}/one", "--tokenizer", "bytes", "--generate", "ab", "--sample-tokens", "30"]
said = run(1, speak).stdout
for ranks, options in (
    (2, {"tensor-parallel": 2}),
    (4, {"tensor-parallel": 4}),
    (2, {"pipeline-parallel": 2}),
    (8, {"pipeline-parallel": 4, "tensor-parallel": 2}),
    (2, {"pipeline-parallel": 2, "pipeline-chunks": 2}),
):
    result = run(ranks, [*speak, *words(options)])
    check(
        result.stdout == said and len(said) > 4, f"generation, {options}: {result.stdout!r}, wants {said!r}"
    )

# and while it trains
sampling = [
    "--steps",
    "1",
    "--tokenizer",
    "bytes",
    "--sample-every",
    "1",
    "--sample-tokens",
    "20",
    "--temperature",
    "0",
]
said = (
    run(1, [*DATA, *MODEL, *sampling]).stdout.split("left 0:00")[-1].split("\nrank 0, a step")[0].rstrip("\n")
)
for ranks, options in (
    (2, {"pipeline-parallel": 2, "recompute": "full"}),
    (8, {"pipeline-parallel": 2, "tensor-parallel": 2}),
    (2, {"pipeline-parallel": 2, "pipeline-chunks": 2}),
    (1, {"recompute": "full"}),
):
    got = (
        run(ranks, [*DATA, *MODEL, *sampling, *words(options)])
        .stdout.split("left 0:00")[-1]
        .split("\nrank 0, a step")[0]
        .rstrip("\n")
    )
    check(got == said and len(said) > 20, f"a sample in training, {options}: {got!r}, wants {said!r}")

# bad input: every rank ends, one message names what would work
for ranks, extra, message in (
    (3, ["--tensor-parallel", "2"], "does not divide the 3 ranks"),
    (6, ["--tensor-parallel", "2", "--pipeline-parallel", "2"], "wants 4 or 8 ranks"),
    (3, ["--tensor-parallel", "3"], "choose a --tensor-parallel that divides 4"),
    (2, ["--batch", "7"], "choose a multiple of 2"),
    (2, ["--tensor-parallel", "2", "--pad-vocabulary", "257"], "choose --pad-vocabulary"),
    (2, ["--tensor-parallel", "2", "--sequence", "9"], "choose a multiple of 2"),
    (
        3,
        ["--pipeline-parallel", "3"],
        "4 layers over 3 pipeline stages: choose a --pipeline-parallel of 1 2 4, or --layers 3 or 6",
    ),
    (
        8,
        ["--pipeline-parallel", "8"],
        "4 layers over 8 pipeline stages: choose a --pipeline-parallel of 1 2 4, or --layers 8",
    ),
    (2, ["--pipeline-parallel", "2", "--pipeline-chunks", "3"], "over 2 pipeline stages of 3 chunks"),
    (
        2,
        ["--pipeline-parallel", "2", "--pipeline-chunks", "2", "--batch", "1"],
        "wants at least 2 micro-batches",
    ),
    (
        4,
        ["--pipeline-parallel", "4", "--layers", "8", "--pipeline-chunks", "2", "--pipeline-group", "5"],
        "choose one of 4 6 7 8 12",
    ),
    (2, ["--pipeline-chunks", "2"], "on one pipeline stage"),
    (2, ["--pipeline-parallel", "2", "--pipeline-group", "4"], "wants --pipeline-chunks 2 or more"),
    (
        2,
        ["--pipeline-parallel", "2", "--pipeline-chunks", "2147483647"],
        "4 layers over 2 pipeline stages of 2147483647 chunks",
    ),
    (1, ["--tensor-parallel", "65536", "--pipeline-parallel", "65536"], "does not divide the 1 ranks"),
    (2, ["--batch", "2147483646"], "micro-batches a step on each replica"),
    (2, ["--metrics", f"{text}.validation.bin"], "is not a metrics file"),
    (
        2,
        ["--ramp-start", "3", "--ramp-tokens", "1000"],
        "choose a ramp in multiples of 2, or data-parallel ranks of 1 3",
    ),
    (2, ["--ramp-start", "4", "--ramp-increment", "3", "--ramp-tokens", "1000"], "does not reach --batch 12"),
    (2, ["--recompute", "half"], "wants none, light or full"),
    (2, ["--graph", "yes"], "calls of MPI cannot be captured"),
    (2, ["--micro-batch", "automatic"], "want a whole number"),
    (2, ["--zero", "2"], "wants 0 or 1"),
    (2, ["--no-such", "2"], "unknown option"),
    (2, ["--train", f"{work}/nothing.bin"], "cannot be read"),
):
    begin = time.time()
    result = run(ranks, [*DATA, *MODEL, *extra])
    said = [line for line in result.stderr.split("\n") if "train_gpt:" in line]
    check(
        result.returncode == 1
        and len(said) == 1
        and message in said[0]
        and said[0].startswith(
            f"[all {ranks} ranks]"
            if message != "is not a metrics file" and ranks > 1
            else ("train_gpt", "[rank 0]")
        ),
        f"{extra} over {ranks} ranks: {result.returncode} {result.stderr[-300:]}",
    )
    check(time.time() - begin < 20, f"{extra}: ended after {time.time() - begin:.0f} s")

# ranks that were started differently
shutil.copy(f"{text}.train.bin", f"{work}/other.bin")
with open(f"{work}/other.bin", "r+b") as f:
    f.seek(70)
    f.write(b"zz")
os.makedirs(f"{work}/here")
os.makedirs(f"{work}/there")
shutil.copy(f"{text}.train.bin", f"{work}/here/data.bin")
shutil.copy(f"{work}/other.bin", f"{work}/there/data.bin")
shutil.copy(f"{build}/train_gpt", f"{work}/other_build")
with open(f"{work}/other_build", "ab") as f:
    f.write(b" ")
program = f"{build}/train_gpt"
# two folders of checkpoints with the same newest one: it may be damaged, and then the older ones count
run(1, [*DATA, *MODEL, "--save", f"{work}/here/old", "--save-every", "3"])
shutil.copytree(f"{work}/here/old", f"{work}/there/old")
shutil.rmtree(f"{work}/there/old/step-00000003")
for first, second, message in (
    (
        [program, *DATA, *MODEL],
        [program, *DATA, *MODEL, "--batch", "24"],
        "rank 1: --batch differs from rank 0's",
    ),
    ([program, *DATA, *MODEL], [f"{work}/other_build", *DATA, *MODEL], "rank 1: the program differs"),
    (
        ["sh", "-c", f"cd {work}/here && exec {program} --train data.bin {' '.join(MODEL)}"],
        ["sh", "-c", f"cd {work}/there && exec {program} --train data.bin {' '.join(MODEL)}"],
        "rank 1: the training set differs",
    ),
    (
        ["sh", "-c", f"cd {work}/here && exec {program} --train data.bin {' '.join(MODEL)}"],
        ["sh", "-c", f"cd / && exec {program} --train data.bin {' '.join(MODEL)}"],
        "[rank 1] train_gpt: data.bin: cannot be read",
    ),
    (
        ["sh", "-c", f"cd {work}/here && exec {program} {' '.join([*DATA, *MODEL])} --save saved"],
        ["sh", "-c", f"cd {work}/there && exec {program} {' '.join([*DATA, *MODEL])} --save saved"],
        "is not the folder that rank 0 has",
    ),
    (
        ["sh", "-c", f"cd {work}/here && exec {program} {' '.join([*DATA, *MODEL])} --resume old"],
        ["sh", "-c", f"cd {work}/there && exec {program} {' '.join([*DATA, *MODEL])} --resume old"],
        "rank 1: the folder of --resume differs",
    ),
    ([program, "--help"], [program, *DATA, *MODEL], "rank 1: --"),
):
    result = subprocess.run(
        ["mpirun", "-n", "1", *first, ":", "-n", "1", *second],
        env=environment,
        capture_output=True,
        encoding="latin-1",
        timeout=60,
    )
    check(
        result.returncode == 1 and message in result.stderr and result.stderr.count("train_gpt:") == 1,
        f"{message}: {result.returncode} {result.stderr[-400:]}",
    )

# one rank's failure ends all, with its message
begin = time.time()
result = run(4, [*DATA, *MODEL, "--metrics", "/proc/nothing"])
check(
    result.returncode == 1
    and result.stderr.count("[rank 0] train_gpt: --metrics /proc/nothing") == 1
    and time.time() - begin < 10,
    f"metrics that rank 0 cannot write: {result.returncode} {result.stderr[-300:]}",
)


def signalled(victim, number, options, timeout, hangs):
    """Endless training over 4 ranks, one gets a signal: return code, ranks, stdout, stderr; or None."""
    endless = [*DATA, *MODEL, "--pipeline-parallel", "2", "--steps", "1000000", "--decay-tokens", "1e6"]
    process = subprocess.Popen(
        ["mpirun", "-n", "4", program, *endless, *options],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="latin-1",
    )
    time.sleep(2)
    listed = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True)
    ranks = listed.stdout.split()
    os.kill(int(ranks[victim]), number)
    try:
        out, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        check(False, hangs)
        return None
    return process.returncode, len(ranks), out, errors


end = signalled(1, signal.SIGKILL, [], 20, "a killed rank leaves the others hanging")
if end:
    code, ranks, _, _ = end
    check(code != 0 and ranks == 4, f"a killed rank ends the run: {code}")

# a rank that stops answering is named, and where the others wait
end = signalled(2, signal.SIGSTOP, ["--comm-timeout", "2"], 30, "a stopped rank leaves the others hanging")
if end:
    code, _, _, said = end
    check(
        code != 0
        and said.count("waits for rank 2, which does not answer") > 0
        and said.count("its last calls") >= 3,
        f"a stopped rank is named: {said[-1500:]}",
    )

# SIGTERM to one rank alone: all stop after the same step, and save
save = ["--tensor-parallel", "2", "--save", f"{work}/stopped"]
end = signalled(3, signal.SIGTERM, save, 20, "SIGTERM to one rank leaves a hang")
if end:
    code, _, out, errors = end
    check(
        code == 0
        and "stopped by a signal" in out
        and len([name for name in os.listdir(f"{work}/stopped") if name.startswith("step-")]) == 1,
        f"SIGTERM to one rank: {code} {out[-200:]} {errors[-300:]}",
    )

# the launchers: as many ranks as hosts have slots; started again they go on. Slurm's own commands are played
# here.
with open(f"{work}/hosts", "w") as f:
    f.write("# one host\n\nlocalhost slots=4\n")
for name, line in (
    ("srun", 'while [[ $1 = --* ]]; do shift; done; exec mpirun -n 4 "$@"'),
    ("scontrol", f"[ $1 = show ] && echo localhost || echo $* > {work}/scontrol.log"),
):
    with open(f"{work}/{name}", "w") as f:
        f.write(f"#!/usr/bin/env bash\n{line}\n")
    os.chmod(f"{work}/{name}", 0o755)
for name, start_with in (
    ("mpirun", ["scripts/launch_mpirun.sh", f"{work}/hosts", "4"]),
    ("slurm", ["scripts/launch_slurm.sh"]),
):
    for steps, message in (
        ("2", f"saved     {work}/{name}/step-00000002"),
        ("4", f"resumed   {work}/{name}/step-00000002"),
    ):
        command = [
            "bash",
            *start_with,
            *DATA,
            *MODEL,
            "--tensor-parallel",
            "2",
            "--pipeline-parallel",
            "2",
            "--save",
            f"{work}/{name}",
            "--steps",
            steps,
        ]
        result = subprocess.run(
            command,
            env=dict(
                environment, PATH=f"{work}:{os.environ['PATH']}", SLURM_JOB_ID="7", SLURM_NTASKS_PER_NODE="4"
            ),
            capture_output=True,
            encoding="latin-1",
            timeout=60,
        )
        check(
            result.returncode == 0
            and message in result.stdout
            and "4 ranks = 2 tensor x 1 data x 2 pipeline" in result.stdout,
            f"{start_with[0]}, {steps} steps: {result.returncode} {result.stdout[-300:]}"
            f" {result.stderr[-300:]}",
        )
result = subprocess.run(
    ["bash", "scripts/launch_mpirun.sh", f"{work}/nothing", "4", "--steps", "1"],
    capture_output=True,
    text=True,
)
check(
    result.returncode == 1 and "cannot be read" in result.stderr,
    f"a hostfile that is not there: {result.stderr}",
)

shutil.rmtree(work)
finish()
