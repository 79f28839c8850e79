#!/usr/bin/env python3
"""How a run's start grows with its ranks: python3 scripts/test_start.py FOLDER [STAGES]

(folder of a build: build/cpu-fp64.) Starts STAGES pipeline stages (8) of 1, 2, 4 and 8 tensor-parallel ranks
each, for one step of a toy model: with 35 stages these are 35, 70, 140 and 280 ranks. Prints the seconds and
the messages of each phase, counted by scripts/count_messages.c. Messages in all must grow no faster than
n log n, and one rank's messages and peers no faster than log n: the constant factor may exceed the smallest
run's by at most half. Times are of ranks that share this machine's cores, so they are printed, not checked.
The last line is `N passed, N failed`.
"""

import math
import os
import re
import subprocess
import sys
import tempfile

from over_ranks import check, finish, make_tokens, start

build = os.path.abspath(sys.argv[1])
stages = int(sys.argv[2]) if len(sys.argv) > 2 else 8
scripts = os.path.dirname(os.path.abspath(__file__))
work = tempfile.mkdtemp()
MODEL = (
    f"--train {work}/text.bin --layers {stages} --hidden 16 --heads 8 --sequence 8 --vocabulary 257"
    f" --pad-vocabulary 264 --batch {stages} --micro-batch 1 --steps 1 --pipeline-parallel {stages}"
    " --comm-timeout 300"
).split()
PHASE = re.compile(r" ([A-Za-z]+) ([\d.e+-]+)")


def prepare():
    shim = f"{work}/count.so"
    source = f"{scripts}/count_messages.c"
    made = subprocess.run(["mpicc", "-O1", "-shared", "-fPIC", "-o", shim, source, "-ldl"])
    check(made.returncode == 0, "count_messages.c")
    make_tokens(build, f"{work}/text", "some words, and some more; " * 200)
    return shim


def started(tensor, shim):
    """What the run says of its start: seconds and most messages of a rank by phase, messages, most peers."""
    ranks = stages * tensor
    arguments = [*MODEL, "--tensor-parallel", str(tensor)]
    done = start(f"{build}/train_gpt", ranks, arguments, 600, LD_PRELOAD=shim)
    times = re.search(r"^start     ([\d.e+-]+) s:(.*)\(", done.stdout, re.M)
    counts = re.search(
        r"^messages  (\d+) over MPI; at most (\d+) peers per rank; at most per rank:(.*)$",
        done.stdout,
        re.M,
    )
    good = done.returncode == 0 and times and counts
    check(good, f"{ranks} ranks: exit {done.returncode}: {done.stderr[-500:]}")
    if not good:
        return None

    seconds = {name: float(x) for name, x in PHASE.findall(times[2])}
    most = {name: int(x) for name, x in PHASE.findall(counts[3])}
    return {
        "ranks": ranks,
        "seconds": seconds,
        "most": most,
        "messages": int(counts[1]),
        "peers": int(counts[2]),
    }


def main():
    shim = prepare()
    runs = [run for run in (started(tensor, shim) for tensor in (1, 2, 4, 8)) if run]
    if len(runs) < 4:
        finish()
    print("phase        seconds, on the slowest rank; messages of the rank that sends most")
    print("           " + "".join(f"{run['ranks']:>14} ranks" for run in runs))

    for name in runs[0]["seconds"]:
        print(
            f"{name:<11}" + "".join(f"{run['seconds'][name]:>12.3g} s{run['most'][name]:>6}" for run in runs)
        )
    print(
        "all        "
        + "".join(f"{sum(r['seconds'].values()):>12.3g} s{sum(r['most'].values()):>6}" for r in runs)
    )

    logs = [math.log2(run["ranks"]) for run in runs]
    for name, values in (
        ("messages / (n log2 n)", [r["messages"] / r["ranks"] / log for r, log in zip(runs, logs)]),
        ("messages of a rank / log2 n", [sum(r["most"].values()) / log for r, log in zip(runs, logs)]),
        ("ranks that one sends to / log2 n", [r["peers"] / log for r, log in zip(runs, logs)]),
    ):
        print(f"{name}: " + " ".join(f"{x:.2f}" for x in values))
        check(values[0] > 0 and max(values) <= 1.5 * values[0], f"{name}: {values}")

    # every phase is there, and those that communicate have been counted
    phases = ["MPI", "options", "files", "groups", "memory", "parameters", "tuning"]
    check(list(runs[0]["most"]) == phases and list(runs[0]["seconds"]) == phases, f"phases: {runs[0]}")
    check(
        all(run["most"][name] > 0 for run in runs for name in ("options", "files", "groups")),
        "counts of phases",
    )
    finish()


main()
