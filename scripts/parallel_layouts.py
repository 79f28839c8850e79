"""Every layout against one process: losses, norms, parameters and moments; kernels; odd batches."""

import shutil

from over_ranks import check, near, take_counts, words
from parallel_runs import build, build32, DATA, emulated, KEYS, metrics, MODEL, run, train, values, work


def layouts():
    """Every t, p, d of at most 8 ranks, with each of the other choices that apply there."""
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

    for sequence in ("yes", "no"):
        four = {"tensor-parallel": 4, "sequence-parallel": sequence}
        yield 8, {**four, "pipeline-parallel": 2, "pipeline-chunks": 2, "recompute": "light"}
        yield 8, {**four, "zero": 0, "recompute": "full", "attention": "flash", "check-every": 2}

    yield 8, {"tensor-parallel": 2, "pipeline-parallel": 2, "attention": "flash", "recompute": "full"}
    yield 2, {
        "pipeline-parallel": 2,
        "pipeline-chunks": 2,
        "pipeline-group": 5,
    }  # 12 = 5 + 5 + 2: a short last group


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


def test_calls():
    """What ranks communicate, call by call."""
    for folder in (build, emulated):
        for ranks in (2, 3, 4):
            result = run(ranks, ["ranks", "replicas"], folder=folder, program="test_gpt")
            print("".join(line + "\n" for line in result.stdout.split("\n") if "FAILED" in line), end="")
            take_counts(result, f"test_gpt ranks over {ranks}")


def test_all_layouts():
    """In fp64, to 1e-10."""
    train("one", 1, [])
    for ranks, options in layouts():
        compare_with_one(ranks, options, "one")


def test_bf16_moments():
    """Their stochastic rounding is keyed by weights and gradients, here cut to fp32: the same in every
    layout."""
    train("one_bf16", 1, ["--moments", "bf16"])
    for ranks, options in (
        (8, {"tensor-parallel": 2, "pipeline-parallel": 2, "check-every": 2}),
        (4, {"tensor-parallel": 2, "zero": 0, "check-every": 2}),
        (6, {"pipeline-parallel": 2}),
    ):
        compare_with_one(ranks, {**options, "moments": "bf16"}, "one_bf16")


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


def test_pipelines_to_the_bit():
    """In fp32; one process rewrites what each has saved, so that files can be compared."""
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


def test_emulated_kernels():
    """Streams run in an order that respects nothing but events. Sums in other orders differ by 1e-7 a term,
    through 4 layers and 6 steps."""
    train("reference32", 1, [], folder=build32)
    for ranks, options in (
        (2, {"pipeline-parallel": 2}),
        (2, {}),
        (8, {"pipeline-parallel": 2, "tensor-parallel": 2}),
        (4, {"pipeline-parallel": 2, "pipeline-chunks": 2, "recompute": "full"}),
        (2, {"pipeline-parallel": 2, "recompute": "light", "loss-chunk": 3}),
        (4, {"tensor-parallel": 4, "recompute": "light"}),
        (4, {"tensor-parallel": 2, "sequence-parallel": "no"}),
    ):
        for seed in (1, 2, 3):
            name = f"emulated_{ranks}_{'_'.join(map(str, options.values()))}_seed{seed}"
            if train(
                name, ranks, words({**options, "check-every": 1}), folder=emulated, EMULATED_SEED=str(seed)
            ):
                check(
                    all(
                        abs(a[key] - b[key]) < 1e-4
                        for a, b in zip(metrics(name), metrics("reference32"), strict=True)
                        for key in KEYS
                        if key in a
                    ),
                    f"{name}: losses and norms of one process",
                )


def test_graphs():
    """A step as a CUDA graph gives the same bits: with growing batches, evaluations, and resumed."""
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


def compare_with_alone(name, what):
    """The losses and norms of a run with those of `alone`; removes what both saved."""
    for key in KEYS:
        got, wanted = ([m[key] for m in metrics(run) if key in m] for run in (name, "alone"))
        check(near(got, wanted), f"{what}: {key}: {got}, expected {wanted}")
    for each in (name, "alone"):
        shutil.rmtree(f"{work}/{each}")


def test_ramped_groups():
    """A ramp from 8 to 9 micro-batches, whose default interleave groups differ: planned as it runs."""
    ramp = "--batch 9 --micro-batch 1 --ramp-start 8 --ramp-increment 1 --ramp-tokens 150".split()
    train("alone", 1, ramp)
    train("ramped", 4, [*ramp, *"--pipeline-parallel 2 --pipeline-chunks 2 --tensor-parallel 2".split()])
    compare_with_alone("ramped", "a ramp, interleaved")


def test_odd_batches():
    """Odd numbers of micro-batches, fewer than stages too, and micro-batches of several sequences."""
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
            "pipeline",
            options.get("tensor-parallel", 1) * options["pipeline-parallel"],
            [*size, *words(options)],
        )
        compare_with_alone("pipeline", f"batch {batch}, {options}")
