#!/usr/bin/env python3
"""Every layout trains the same model as one process: python3 scripts/test_parallel.py BUILD_FOLDER

Runs train_gpt of an fp64 CPU build under mpirun over tensor- and data-parallel layouts and compares the losses of
six steps, the validation loss, gradient norms and all final parameters and moments with one process: 1e-10, absolute
plus relative. A sum over ranks in another order differs by about 1e-16 a term; AdamW's division by sqrt(v) magnifies
that where a gradient is 0 in truth (the key bias), so parameters are compared at the scale of the learning rate.
The last line is `N passed, N failed`.
"""
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time

build = os.path.abspath(sys.argv[1])
work = tempfile.mkdtemp()
passed = failed = 0
environment = dict(os.environ, OMP_NUM_THREADS="1", OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                   OMPI_MCA_rmaps_base_oversubscribe="1", OMPI_MCA_mpi_yield_when_idle="1",
                   OMPI_MCA_btl_vader_single_copy_mechanism="none")
MODEL = ("--layers 2 --hidden 16 --heads 4 --sequence 8 --vocabulary 257 --pad-vocabulary 264 --batch 12 --micro-batch 1 "
         "--steps 6 --learning-rate 1e-2 --clip 0.5 --evaluate-every 3 --evaluate-batches 5").split()


def check(good, what):
    global passed, failed
    if good:
        passed += 1
    else:
        failed += 1
        print("FAILED ", what)


def run(ranks, arguments, timeout=120):
    command = [f"{build}/train_gpt", *arguments]
    if ranks > 1:
        command = ["mpirun", "-n", str(ranks), *command]
    try:
        return subprocess.run(command, env=environment, capture_output=True, encoding="latin-1",
                              timeout=timeout)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, -1, "", "hangs")


def metrics(name):
    with open(f"{work}/{name}.jsonl") as f:
        return [json.loads(line) for line in f]


def values(name):
    """Tensor and kind -> numbers, of a checkpoint that one process wrote."""
    folder = f"{work}/{name}/step-00000006"
    data = open(f"{folder}/rank-00000.bin", "rb").read()
    return {(p["tensor"], p["kind"]): struct.unpack_from(f"<{p['bytes'] // 8}d", data, p["offset"])
            for p in json.load(open(f"{folder}/rank-00000.json"))["pieces"]}


def near(a, b, scale=1.0):
    return len(a) == len(b) and all(abs(x - y) <= 1e-10 * (scale + abs(y)) for x, y in zip(a, b))


def train(name, ranks, extra, resume=None):
    arguments = [*DATA, *MODEL, "--save", f"{work}/{name}", "--metrics", f"{work}/{name}.jsonl", *extra]
    if resume:
        arguments += ["--resume", f"{work}/{resume}"]
    result = run(ranks, arguments)
    check(result.returncode == 0, f"{name}: {result.stderr[-500:]}")
    return result.returncode == 0


text = f"{work}/text"
open(text, "w").write("".join(" " if i % 7 == 6 else chr(97 + (i * i + i // 7) % 26) for i in range(4000)))
subprocess.run([f"{build}/tokenize", "--vocabulary", "bytes", "--validation", "0.2", "--output", text, text], check=True,
               stdout=subprocess.DEVNULL)
DATA = ["--train", f"{text}.train.bin", "--validation", f"{text}.validation.bin"]
KEYS = ("loss", "gradient_norm", "validation_loss")

start = time.time()
train("one", 1, [])
one, want = metrics("one"), values("one")
for t in (1, 2, 4):
    for d in (1, 2, 3):
        for sequence in ("yes", "no") if t > 1 else ("no",):
            for zero in (0, 1) if d > 1 else (1,):
                if t * d == 1 or t * d > 8:
                    continue
                name = f"t{t}_d{d}_{sequence}_zero{zero}"
                if not train(name, t * d, ["--tensor-parallel", str(t), "--sequence-parallel", sequence, "--zero", str(zero)]):
                    continue
                got = metrics(name)
                for key in KEYS:
                    check(near([m[key] for m in got if key in m], [m[key] for m in one if key in m]), f"{name}: {key}")
                # one process reads what the layout wrote, and writes it again whole
                check(run(1, [*DATA, *MODEL, "--resume", f"{work}/{name}", "--save", f"{work}/{name}_one"]).returncode == 0,
                      f"{name}: one process reads the checkpoint")
                have = values(name + "_one")
                for key in want:
                    check(near(have[key], want[key], 1.0 if key[1] == "master" else 1e-3), f"{name}: {key}")
print(f"layouts: {time.time() - start:.0f} s")

# saved in one layout, resumed in another: the losses of the unbroken run
train("saved", 4, ["--tensor-parallel", "2", "--steps", "3", "--decay-tokens", "576", "--warmup-tokens", "5"])
for name, ranks, t in (("to4", 4, 4), ("to1", 1, 1), ("to2", 2, 1)):
    shutil.copytree(f"{work}/saved", f"{work}/{name}")
    shutil.copy(f"{work}/saved.jsonl", f"{work}/{name}.jsonl")
    if train(name, ranks, ["--tensor-parallel", str(t), "--decay-tokens", "576", "--warmup-tokens", "5"], resume=name):
        check(near([m["loss"] for m in metrics(name)], [m["loss"] for m in one]), f"{name}: losses go on as unbroken")

# the model speaks alike in every layout
speak = ["--resume", f"{work}/one", "--tokenizer", "bytes", "--generate", "ab", "--sample-tokens", "30"]
said = run(1, speak).stdout
for ranks in (2, 4):
    result = run(ranks, [*speak, "--tensor-parallel", str(ranks)])
    check(result.stdout == said and len(said) > 4, f"generation over {ranks} ranks: {result.stdout!r}, wants {said!r}")

# bad input: every rank ends, one message names what would work
for ranks, extra, message in (
        (3, ["--tensor-parallel", "2"], "does not divide the 3 ranks"),
        (3, ["--tensor-parallel", "3"], "choose a --tensor-parallel that divides 4"),
        (2, ["--batch", "7"], "choose a multiple of 2"),
        (2, ["--tensor-parallel", "2", "--pad-vocabulary", "257"], "choose --pad-vocabulary"),
        (2, ["--tensor-parallel", "2", "--sequence", "9"], "choose a multiple of 2"),
        (2, ["--train", f"{work}/nothing.bin"], "cannot be read")):
    begin = time.time()
    result = run(ranks, [*DATA, *MODEL, *extra])
    check(result.returncode not in (0, -1) and message in result.stderr and re.search(r"\[rank \d\]", result.stderr),
          f"{extra} over {ranks} ranks: {result.returncode} {result.stderr[-300:]}")
    check(time.time() - begin < 20, f"{extra}: ended after {time.time() - begin:.0f} s")

shutil.rmtree(work)
print(f"{passed} passed, {failed} failed")
sys.exit(failed > 0)
