#!/usr/bin/env python3
"""Checks that autotuned choices belong to the run: python3 scripts/test_autotune.py BUILD (an emulated one).

Two tuning caches are forced to differ: all choices 0, or all 1. A resumed run must use its checkpoint's
choices, not the machine's; all ranks must use the same, those of the lowest rank that made one. The last
line is `N passed, N failed`."""

import os
import re
import shutil
import subprocess
import sys
import tempfile

from over_ranks import check, environment, finish, json_lines, make_tokens

build = os.path.abspath(sys.argv[1])
work = tempfile.mkdtemp()


def command(metrics, *more, tuning="tuning"):
    text = f"""{build}/train_gpt --train {work}/text.bin --layers 2 --hidden 32 --heads 2 --sequence 16
    --batch 4 --micro-batch 2 --learning-rate 1e-2 --warmup-tokens 60 --decay-tokens 384
    --metrics {work}/{metrics}.jsonl --tuning {tuning}"""
    return [*text.split(), *map(str, more)]


def run(words):
    result = subprocess.run(words, cwd=work, env=environment, capture_output=True, text=True)
    check(result.returncode == 0, " ".join(words) + "\n" + result.stderr[-1000:])


def losses(metrics):
    lines = json_lines(f"{work}/{metrics}.jsonl")
    return {line["step"]: (line["loss"], line["gradient_norm"]) for line in lines}


def force(folder, way):
    """The choices of work/tuning, all set to `way`, in another folder."""
    os.makedirs(f"{work}/{folder}")
    for name in os.listdir(f"{work}/tuning"):
        if name.endswith(".lock"):
            continue
        with open(f"{work}/tuning/{name}") as f:
            text = f.read()
        forced, n = re.subn(r" = \d+ ", f" = {way} ", text)
        check(n > 0, f"{name} holds choices")
        with open(f"{work}/{folder}/{name}", "w") as f:
            f.write(forced)


try:
    make_tokens(build, f"{work}/text", "the quick brown fox jumps over the lazy dog. " * 200)
    run(command("times", "--steps", 1))
    force("zero", 0)
    force("one", 1)

    run(command("unbroken", "--steps", 6, tuning="zero"))
    run(command("other", "--steps", 6, tuning="one"))
    want, other = losses("unbroken"), losses("other")
    check(
        len(want) == 6 and want != other, "other choices give other bits: else the checks below show nothing"
    )

    run(command("first", "--steps", 3, "--save", "run", tuning="zero"))
    run(command("then", "--steps", 6, "--resume", "run", tuning="one"))
    got = {**losses("first"), **losses("then")}
    check(got == want, f"a resumed run keeps its checkpoint's choices: {got}, expected {want}")

    if shutil.which("mpirun"):
        # two data-parallel ranks in folders of their own, where --tuning means another file
        for name, folders in (("alike", ("zero", "zero")), ("apart", ("zero", "one"))):
            for rank, folder in enumerate(folders):
                shutil.copytree(f"{work}/{folder}", f"{work}/{name}{rank}/tuning")
            words = ["mpirun"]
            for rank in (0, 1):
                words += [":"] * rank + ["-n", "1", "-wdir", f"{work}/{name}{rank}"]
                words += command(name, "--steps", 6, "--check-every", 1)
            run(words)
        check(losses("alike") == losses("apart"), "ranks take rank 0's choices")
finally:
    shutil.rmtree(work)
finish()
