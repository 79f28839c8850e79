"""What layouts must not change: answers, blends, ramps, resumption, generated text."""

import json
import re
import shutil
import struct

from over_ranks import check, checksum, near, words
from parallel_runs import DATA, KEYS, metrics, MODEL, run, text, train, work


def test_answers():
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

    # in the first step, whose model is the same, the mean over all tokens is a mean of the two means,
    # weighted by numbers of tokens
    only = ("--loss-on", "answers")
    every = losses("every token", 1, "asked")
    one = losses("answers", 1, "asked", *only)
    other = losses("the others", 1, "others", *only)
    tokens = 12 * 8 * (every[0][0] - other[0][0]) / (one[0][0] - other[0][0])
    check(abs(tokens - round(tokens)) < 1e-6 and 20 < tokens < 76, f"{tokens} of 96 tokens are of answers")

    # the same of validation losses, of 5 sequences, where nothing is learnt; twice, so that losses of
    # training, and of the evaluation before, lie where these go
    still = "--learning-rate 0 --min-learning-rate 0 --evaluate-every 1 --steps 2".split()
    three = (("asked", ()), ("asked", only), ("others", only))
    validated = [losses("validated", 1, data, *how, *still)[2] for data, how in three]
    tokens = [5 * 8 * (every - others) / (asked - others) for every, asked, others in zip(*validated)]
    good = all(abs(n - round(tokens[0])) < 1e-6 and 5 < n < 35 for n in tokens)
    check(len(tokens) == 2 and good, f"{tokens} of 40 validation tokens are of answers")

    # steps whose few tokens are all of questions change nothing, and are no spike
    few = "--sequence 2 --batch 1 --steps 12 --warmup-tokens 0 --save".split()
    got = losses("no answers", 1, "asked", *only, *few, f"{work}/few")
    check(got and len(got[0]) == 12 and 0 in got[0] and max(got[0]) > 1, f"without answers: {got}")
    counted = got and json.load(open(f"{work}/few/step-00000012/index.json"))["spikes"][2]
    check(got and counted == sum(loss > 0 for loss in got[0]), f"usual losses: {counted} of {got}")

    # a spike is one of the loss that is reported: the mean over the tokens that count
    spiky = "--batch 2 --steps 60 --learning-rate 1e-5 --on-spike skip --spike-z 0.5".split()
    losses("spikes", 1, "asked", *only, *spiky)
    known, wrong, skipped = {"loss": (0, 0, 0), "gradient_norm": (0, 0, 0)}, [], 0
    for line in metrics("spikes"):
        over = [key for key, (n, mean, var) in known.items() if n >= 30 and line[key] > mean + 0.5 * var**0.5]
        wrong += [line] if bool(over) == line.get("updated", True) else []
        skipped += over == ["loss"]
        if over:
            continue
        for key, (n, mean, var) in known.items():
            weight, delta = 1 / min(100, n + 1), line[key] - mean
            known[key] = n + 1, mean + weight * delta, (1 - weight) * (var + weight * delta**2)
    check(skipped and not wrong, f"{skipped} spikes of the loss alone, and not as computed here: {wrong}")

    for ranks, options in (
        (8, {"tensor-parallel": 2, "pipeline-parallel": 2}),
        (4, {"tensor-parallel": 4, "recompute": "light"}),
        (6, {"pipeline-parallel": 2, "pipeline-chunks": 2}),
        (2, {"zero": 0, "loss-chunk": 3, "check-every": 2}),
    ):
        got = losses(f"answers of {ranks}", ranks, "asked", *only, *words(options))
        check(got and all(map(near, got, one)), f"answers over {ranks}, {options}: {got}, expected {one}")


def test_whole_validation_set():
    """129 sequences, in rounds of at most 64 micro-batches per replica: the same mean in any rounds."""
    size = "--sequence 2 --steps 1 --evaluate-every 1 --evaluate-sequences 129".split()
    losses = []
    for name, ranks, options in (
        ("at once", 3, []),
        ("in three rounds", 1, []),
        ("the last for one replica", 2, []),
        ("the same through a pipeline", 4, ["--pipeline-parallel", "2"]),
    ):
        done = run(ranks, [*DATA, *MODEL, *size, "--metrics", f"{work}/{name}.jsonl", *options])
        check(done.returncode == 0, f"{name}: {done.stderr[-500:]}")
        losses += [line["validation_loss"] for line in metrics(name)] if done.returncode == 0 else []
    check(len(losses) == 4 and near(losses, losses[:1] * 4), f"the validation set in rounds: {losses}")


LOSSES = [
    *(5.513453375129419, 5.114665865503219, 3.7024076496329688, 2.5553976095448743, 2.2739432888329385),
    *(2.7016795919318404, 1.541186475330118, 0.915126859667464, 1.5461800271413062, 1.1339925107387068),
    *(2.664377107784956, 2.236596118015769, 2.185738368010873),
]


def test_recorded():
    """What the seed and the defaults determine has not changed: weights, the order of two sets over several
    epochs, the recipe; each of them changes the losses. LOSSES: of steps 1, 2, 10, 30 and 60, their norms,
    and three validation losses, in fp64."""
    base = ["--train", f"0.7:{text}.train.bin", f"0.3:{text}.validation.bin", *DATA[2:]]
    base += "--layers 2 --hidden 16 --heads 2 --sequence 8 --batch 8 --steps 60 --learning-rate 1e-2".split()
    base += "--evaluate-every 25 --evaluate-sequences 8 --metrics".split()

    def run_of(name, *options):
        done = run(1, [*base, f"{work}/{name}.jsonl", "--seed", "7", *options])
        check(done.returncode == 0, f"recorded, {name}: {done.stderr[-500:]}")
        steps = metrics(name)
        pace = steps[0]["tokens_per_second"] * steps[0]["seconds"]  # of later steps it is smoothed
        check(near([pace], [64], most=1e-4), f"tokens a second: {pace} of 64 tokens a step")
        at = [steps[i - 1] for i in (1, 2, 10, 30, 60)]
        validated = [(m["step"], m["validation_loss"]) for m in steps if "validation_loss" in m]
        check([step for step, _ in validated] == [25, 50, 60], f"evaluated after {validated}")
        return [m["loss"] for m in at] + [m["gradient_norm"] for m in at] + [loss for _, loss in validated]

    got = run_of("recorded")
    check(near(got, LOSSES, most=1e-9), f"what was recorded: {got}, expected {LOSSES}")
    for options in (
        *("--seed 8", "--weight-decay 0.01", "--clip 0", "--warmup-tokens 640", "--epsilon 1e-7"),
        *("--beta1 0.89", "--beta2 0.96", "--min-learning-rate 2e-3", "--decay-tokens 3000"),
    ):
        other = run_of(options.split()[0][2:], *options.split())
        check(not near(other, LOSSES, most=1e-8), f"{options} changes nothing: {other}")


def test_largest_micro_batch():
    """The largest micro-batch that fits: here, a rank's whole batch, or a stage's share."""
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
    # resumed, it is the checkpoint's, so that the same bits follow
    kept = [*MODEL, "--micro-batch", "3", "--steps", "1", "--save", f"{work}/kept"]
    run(1, [*DATA, *kept])
    result = run(1, [*DATA, "--resume", f"{work}/kept", "--micro-batch", "auto", "--steps", "2"])
    check("micro-batch        3\n" in result.stdout, f"--micro-batch auto, resumed: {result.stdout}")
    result = run(6, [*DATA, "--resume", f"{work}/kept", "--save", "no", "--steps", "3"])
    check(result.returncode == 0, f"two sequences a rank, not its micro-batch of 3: {result.stderr[-300:]}")


def test_memory_options():
    """--zero shards the optimizer's state, --loss-chunk keeps fewer rows of logits, recomputation fewer
    activations: as the run's own table of memory says, which its plan must equal."""

    def memory(*options):
        done = run(2, [*DATA, *MODEL, "--micro-batch", "2", "--steps", "1", *options])
        check("plan and run are equal on all 2 ranks" in done.stdout, f"{options}: {done.stderr[-300:]}")
        rows = re.findall(r"^  (optimizer|activations) +([0-9.]+)$", done.stdout, re.M)
        return {name: float(megabytes) for name, megabytes in rows}

    usual = memory()
    whole, chunk = memory("--zero", "0"), memory("--loss-chunk", "4")
    full = memory("--recompute", "full")
    check(whole["activations"] == usual["activations"], f"--zero 0: {whole}, else {usual}")
    check(1.8 < whole["optimizer"] / usual["optimizer"] < 2.05, f"--zero 0: {whole}, else {usual}")
    for name, other in (("--loss-chunk", chunk), ("--recompute full", full)):
        check(other["optimizer"] == usual["optimizer"], f"{name}: {other}, else {usual}")
        check(other["activations"] < 0.9 * usual["activations"], f"{name}: {other}, else {usual}")


def test_resumed_elsewhere():
    """Saved in one layout, resumed in another: the losses of the unbroken run."""
    one = metrics("one")
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


def test_blends():
    """A blend of two sets and a growing batch: in a pipeline of two replicas as in one process, and resumed
    in the middle."""
    blend = [
        *f"--train 0.7:{text}.train.bin 0.3:{text}.validation.bin --batch 8 --ramp-start 2".split(),
        *"--ramp-increment 2 --ramp-tokens 160 --steps 8 --decay-tokens 320 --warmup-tokens 5".split(),
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
    done = run(1, [*DATA[2:], *MODEL, *blend, "--resume", f"{work}/blend_half"])
    for name, out in (("planned", planned), ("at the end", done)):
        rows = re.findall(r"^(text\S*) +(0\.\d+) +(\S+) +(\S+) +(\S+)$", out.stdout, re.M)
        check(
            [row[:2] + row[3:4] for row in rows]
            == [("text", "0.7000", "168"), ("text.validation", "0.3000", "72")]
            and all(
                abs(float(drawn) / float(size) - float(epochs)) < 0.01 for *_, size, drawn, epochs in rows
            ),
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
    # the step's mean lies between those of its sets
    means = [(min(m["losses"].values()), m["loss"], max(m["losses"].values())) for m in one_blend]
    check(all(low - 1e-12 <= loss <= high + 1e-12 for low, loss, high in means), f"means of sets: {means}")

    for name in ("blend4", "blend_half"):
        check(
            near([m["loss"] for m in metrics(name)], [m["loss"] for m in one_blend])
            and all(
                near([a["losses"][k] for k in a["losses"]], [b["losses"].get(k, 0) for k in a["losses"]])
                for a, b in zip(metrics(name), one_blend)
            ),
            f"{name}: the losses of one process, for each set",
        )


def test_samples_in_training():
    """Samples during training are the same in every layout."""
    sampling = "--steps 1 --tokenizer bytes --sample-every 1 --sample-tokens 20 --temperature 0".split()
    said = (
        run(1, [*DATA, *MODEL, *sampling])
        .stdout.split("left 0:00")[-1]
        .split("\nrank 0, a step")[0]
        .rstrip("\n")
    )

    for ranks, options in (
        (2, {"pipeline-parallel": 2, "recompute": "full"}),
        (8, {"pipeline-parallel": 2, "tensor-parallel": 2}),
        (4, {"tensor-parallel": 4}),
        (2, {"tensor-parallel": 2, "recompute": "full"}),
        (2, {"pipeline-parallel": 2, "pipeline-chunks": 2}),
        (1, {"recompute": "full"}),
    ):
        got = (
            run(ranks, [*DATA, *MODEL, *sampling, *words(options)])
            .stdout.split("left 0:00")[-1]
            .split("\nrank 0, a step")[0]
            .rstrip("\n")
        )
        check(got == said and len(said) > 20, f"a sample in training, {options}: {got!r}, expected {said!r}")
