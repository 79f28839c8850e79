#!/usr/bin/env python3
"""comm_nccl.cpp without a GPU: over NCCL's stand-in (layers/emulator/nccl), on 2 to 8 ranks.

Usage: python3 scripts/test_nccl.py NCCL MPI [--quick | --faults]
(folders of two emulated builds in fp32, which differ in their transport: build/emulated-fp32-nccl
build/emulated-fp32.) Checks that the stand-in rejects misuse, the calls between ranks, and train_gpt over
layouts: losses, norms and validation losses must equal one process's, and, where no sum has more than two
terms, those over MPI bit for bit. Then come faults: a broken link, a stopped rank, calls in an order that
deadlocks. For scripts/mutate.py: --quick runs one layout of each kind and no faults; --faults only faults.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time

from over_ranks import check, environment, finish, json_lines, letters, make_tokens, near, start
from over_ranks import take_counts, words

nccl, mpi = (os.path.abspath(folder) for folder in sys.argv[1:3])
quick = "--quick" in sys.argv
work = tempfile.mkdtemp()
MODEL = (
    "--layers 4 --hidden 32 --heads 4 --sequence 16 --vocabulary 257 --pad-vocabulary 264 --batch 12"
    " --micro-batch 1 --steps 4 --learning-rate 1e-2 --clip 0.5 --evaluate-every 2 --evaluate-sequences 3"
).split()
LONG = {"layers": 16, "hidden": 16, "heads": 2, "sequence": 8, "batch": 256, "micro-batch": 64, "steps": 3}
KEYS = ("loss", "gradient_norm", "validation_loss")
# t, p, d and what else differs
QUICK = [
    {"tensor-parallel": 2, "pipeline-parallel": 2},
    {"tensor-parallel": 2, "pipeline-parallel": 2, "pipeline-chunks": 2, "ranks": 8, "recompute": "full"},
    {"pipeline-parallel": 4, "ranks": 4},
    {"pipeline-parallel": 4, "ranks": 4, "micro-batch": 6},
    {"ranks": 2, "check-every": 2},
    {"tensor-parallel": 4},
    {"tensor-parallel": 2, "ranks": 4, "graph": "yes"},
]
LAYOUTS = [
    {"tensor-parallel": t, "pipeline-parallel": p, "ranks": t * p * d, **more}
    for t, p, d in ((t, p, d) for t in (1, 2, 4) for p in (1, 2, 4) for d in (1, 2, 3) if 1 < t * p * d <= 8)
    for more in ([{}, {"pipeline-chunks": 2}] if p == 2 else [{}])
] + [
    {"tensor-parallel": 2, "sequence-parallel": "no"},
    {"tensor-parallel": 4, "recompute": "light"},
    {"tensor-parallel": 4, "pipeline-parallel": 2, "recompute": "full"},
    {"tensor-parallel": 2, "sequence-parallel": "no", "ranks": 4},
    # groups that hold copies of the same tensor sum in an order of their own
    {"ranks": 8, "tensor-parallel": 4, "check-every": 1, "zero": 0},
    {"tensor-parallel": 2, "sequence-parallel": "no", "ranks": 6, "check-every": 1},
    {"tensor-parallel": 2, "sequence-parallel": "no", "ranks": 6, "check-every": 1, "zero": 0},
    {"ranks": 2, "zero": 0},
    {"ranks": 4, "zero": 0, "tensor-parallel": 2},
    {"ranks": 4, "pipeline-parallel": 2, "check-every": 2, "loss-chunk": 8},
    {"ranks": 8, "tensor-parallel": 2, "pipeline-parallel": 2, "recompute": "light"},
    {"ranks": 8, "pipeline-parallel": 4, "micro-batch": 3},  # fewer micro-batches than stages
    # neighbours' hosts post their calls in different orders
    {"ranks": 4, "pipeline-parallel": 2, "pipeline-chunks": 2, "pipeline-group": 4, "micro-batch": 1},
    {"ranks": 2, "graph": "yes"},
    {"ranks": 4, "graph": "yes", "tensor-parallel": 2, "check-every": 3},
    {"ranks": 4, "graph": "yes", "zero": 0, "tensor-parallel": 2},
    {"ranks": 8, "graph": "yes", "tensor-parallel": 2, "pipeline-parallel": 2, "pipeline-chunks": 2},
]


make_tokens(mpi, f"{work}/text", letters(9000), 0.2)
DATA = ["--train", f"{work}/text.train.bin", "--validation", f"{work}/text.validation.bin"]


def train(name, build, ranks, options, seed=1, **variables):
    """The numbers of each step; nothing where the run fails. What is timed is chosen once, for all runs."""
    files = ["--metrics", f"{work}/{name}.jsonl", "--tuning", f"{work}/tuning"]
    arguments = [*DATA, *MODEL, *files, *words(options)]
    done = start(f"{build}/train_gpt", ranks, arguments, 900, EMULATED_SEED=str(seed), **variables)
    good = (
        done.returncode == 0
        and f"plan and run are equal on {'this rank' if ranks == 1 else f'all {ranks} ranks'}" in done.stdout
    )
    check(good, f"{name}: exit {done.returncode}: {(done.stderr or done.stdout)[-700:]}")
    if not good:
        return None
    lines = json_lines(f"{work}/{name}.jsonl")
    os.remove(f"{work}/{name}.jsonl")
    return {key: [line[key] for line in lines if key in line] for key in KEYS}


def compare_layout(number, layout, one):
    options = {key: value for key, value in layout.items() if key != "ranks"}
    t, p = options.get("tensor-parallel", 1), options.get("pipeline-parallel", 1)
    ranks = layout.get("ranks", t * p)
    name = "_".join(f"{key.split('-')[0]}{value}" for key, value in layout.items())
    if ranks == 2:
        by_call = {**options, "graph": "no"}
        train(name + "_tuning", mpi, ranks, by_call)  # leaves its choices to the others
        over_mpi = train(name + "_mpi", mpi, ranks, by_call)
    got = train(name, nccl, ranks, options, seed=number)
    if not got:
        return
    # fp32: sums of up to 12 * 16 * 32 terms in another order, 2^-24 sqrt(6144) = 5e-6; four steps of
    # learning rate 1e-2 make of it at most ten times as much
    for key in KEYS:
        check(near(got[key], one[key], most=5e-5), f"{name}: {key}: {got[key]}, one process {one[key]}")
    if ranks == 2:  # a + b is b + a
        check(got == over_mpi, f"{name}: not the bits of MPI: {got} {over_mpi}")


def check_programs():
    take_counts(start(f"{nccl}/test_nccl", 2, []), "test_nccl")
    for ranks in (2,) if quick else (2, 3, 4):
        take_counts(start(f"{nccl}/test_gpt", ranks, ["ranks", "replicas"]), f"test_gpt ranks over {ranks}")


def check_faults():
    layout = {"tensor-parallel": 2, "pipeline-parallel": 2}
    arguments = [*DATA, *MODEL, *words(layout)]
    program = f"{nccl}/train_gpt"

    # world has one call per step, after which the host waits; for the others, the next call reports it
    for group, call in (("tensor", 11), ("forward", 11), ("backward", 11), ("world", 6)):
        begun = time.time()
        fails = f"group {group}:{call}"
        done = start(program, 4, [*arguments, "--comm-timeout", "60"], NCCL_ON_CPU_FAIL=fails)
        said = f"group {group}, ranks [^\n]*: remote process exited or there was a network error"
        good = done.returncode != 0 and re.search(said, done.stderr)
        check(good and time.time() - begun < 50, f"a broken link of {group}: {done.stderr[-700:]}")

    # settings of a site that these calls cannot run with
    crossing = [*arguments[:-4], *words({"pipeline-parallel": 2, "pipeline-chunks": 2, "pipeline-group": 4})]
    site = {"NCCL_LAUNCH_ORDER_IMPLICIT": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "1", "NCCL_MAX_CTAS": "4"}
    done = start(program, 2, crossing, **site)
    noted = "NCCL_MAX_CTAS=4 replaces this program's choice" in done.stderr
    check(done.returncode == 0 and noted, f"a site's settings: {done.returncode} {done.stderr[-700:]}")
    done = start(program, 2, crossing, CUDA_LAUNCH_BLOCKING="1")
    check(done.returncode == 1 and "unset it" in done.stderr, f"blocking launches: {done.stderr[-700:]}")

    # with room for one call at a time the neighbours of a pipeline wait for one another: the stand-in says so
    done = start(program, 4, arguments, NCCL_ON_CPU_RESIDENT="1")
    good = done.returncode != 0 and "a deadlock, no rank can go on" in done.stderr
    check(good and "because the device has no room" in done.stderr, f"no room: {done.stderr[-700:]}")

    # a rank has at most six calls on the device at once: with room for them no group waits for another
    for more in ({}, {"pipeline-chunks": 2}, {"pipeline-chunks": 2, "pipeline-group": 4}):
        for room in "346":
            name = f"{room} resident {len(more)}"
            check(train(name, nccl, 4, layout | more, NCCL_ON_CPU_RESIDENT=room), f"room for {room}: {more}")
    check_stopped_rank(program, arguments)

    # behind a kernel that does not end all hosts answer: what they say is where all of a call's ranks wait
    come = r"all ranks answer, and all ranks of this group have reached call \d+ of group (.*?):"
    done = start(program, 4, [*arguments, "--comm-timeout", "3"], NCCL_ON_CPU_HANG="2:200")
    named = re.findall(come, done.stderr)
    good = done.returncode != 0 and named and all(" 2" in group for group in named)
    check(good, f"a device hangs: {named} {done.stderr[-900:]}")

    # … also with many more launches behind the call than the driver holds
    many = [*arguments, "--batch", "128", "--steps", "1", "--comm-timeout", "3"]
    done = start(program, 4, many, NCCL_ON_CPU_HANG="2:200")
    good = done.returncode not in (0, 124) and re.search(come, done.stderr)
    check(good, f"a device hangs, the host is far ahead: {done.stderr[-900:]}")

    # … and where single operations are many launches: materialised attention over 64 sequences, in a forward
    # behind a gather of parameters that does not end
    long = [*DATA, *MODEL, "--comm-timeout", "3", *words(LONG)]
    done = start(program, 2, long, NCCL_ON_CPU_HANG="1:30")
    good = done.returncode not in (0, 124) and re.search(come, done.stderr)
    check(good, f"a device hangs, the operations are long: {done.stderr[-900:]}")

    # in a pipeline each may wait for the other in another call: both calls are named
    pipeline = [*DATA, *MODEL, "--pipeline-parallel", "2", "--comm-timeout", "3"]
    told = []
    for number in (60, 70, 80):
        done = start(program, 2, pipeline, NCCL_ON_CPU_HANG=f"1:{number}")
        told += re.findall(r"all ranks answer, and (wait in different|all ranks of this group)", done.stderr)
        check(done.returncode != 0 and "all ranks answer" in done.stderr, f"a stage: {done.stderr[-900:]}")
    check("wait in different" in told, f"two calls of neighbouring stages: {told}")


def check_stopped_rank(program, arguments):
    """The others' host waits in NCCL: they name the rank that does not answer, and where they are."""
    endless = [*arguments, "--steps", "1000000", "--decay-tokens", "1e6", "--comm-timeout", "3"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "encoding": "latin-1"}
    process = subprocess.Popen(["mpirun", "-n", "4", program, *endless], env=environment, **pipes)
    for line in process.stdout:
        if re.match(r"step +2/", line):
            break
    listed = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True)
    os.kill(int(listed.stdout.split()[2]), signal.SIGSTOP)
    try:
        _, said = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        return check(False, "a stopped rank leaves the others hanging")
    named = said.count("waits for rank 2, which does not answer")
    good = process.returncode != 0 and named > 0 and said.count("its last calls") > 1
    check(good, f"a stopped rank: {said[-900:]}")


def check_layouts():
    one = train("one", mpi, 1, {})
    if one:
        for number, layout in enumerate(QUICK if quick else LAYOUTS, 1):
            compare_layout(number, layout, one)


def check_one_device():
    """Ranks that share a GPU: NCCL refuses them, unless each calls itself a host; who may take which SMs."""
    layout = {"tensor-parallel": 2, "pipeline-parallel": 2}
    arguments = [*DATA, *MODEL, *words(layout)]
    done = start(f"{nccl}/train_gpt", 8, arguments, NCCL_ON_CPU_ONE_DEVICE="1")
    check(done.returncode != 0 and "duplicate GPU" in done.stderr, f"one GPU: {done.stderr[-500:]}")
    told = "note: TRAIN_GPT_SHARE_GPU=1: ranks may share a GPU"
    for shares, good in (("1", True), ("", False), ("0", False)):
        variables = {"NCCL_ON_CPU_ONE_DEVICE": "1", "TRAIN_GPT_SHARE_GPU": shares, "NCCL_DEBUG": "INFO"}
        done = start(f"{nccl}/train_gpt", 8, arguments, 120, **variables)
        check(
            (done.returncode == 0) == good and done.stderr.count(told) == good,
            f"TRAIN_GPT_SHARE_GPU={shares}: exit {done.returncode} {done.stderr[-500:]}",
        )
        if good:
            limits = set(re.findall(r"NCCL INFO group (\w+).*?: maxCTAs (\d+)", done.stderr))
            wanted = {(name, "8") for name in ("data", "forward", "backward", "tied")}
            wanted |= {("tensor", "32"), ("world", "2")}
            check(limits == wanted, f"SMs of communicators: {limits}, expected {wanted}")


if "--faults" not in sys.argv:
    check_programs()
    check_layouts()
    check_one_device()
if not quick:
    check_faults()
finish()
