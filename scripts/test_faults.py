#!/usr/bin/env python3
"""Fault injection, after which runs must recover: full and slow disks, bit flips, lost hosts, changed data.

  python3 scripts/test_faults.py BUILD [NAME…]     BUILD has train_gpt and tokenize; NAME: only these tests

Faults come from outside the program: signals, LD_PRELOAD (scripts/faults.c), /proc/PID/mem, a tmpfs, network
namespaces, Slurm's own daemons. What a machine does not allow is skipped, with the reason."""

import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from subprocess import PIPE, STDOUT

import faults_disk
import faults_ends
import faults_hosts
import faults_numbers
import faults_slurm
import over_ranks
from faults import BUILD, REPOSITORY, SHIM, WORK, make_data, run
from over_ranks import check, finish, take_counts

# those that mostly wait for time limits run in parallel, the longest first …
WAITING = (
    faults_hosts.fewer_replicas,
    faults_slurm.four_nodes,
    faults_hosts.lost_hosts,
    faults_disk.slow_disk,
    faults_disk.killed_saves,
    faults_disk.two_runs,
    faults_disk.hung_data,
    faults_ends.two_launchers,
    faults_slurm.one_node,
    faults_numbers.diverged_checkpoint,
    faults_numbers.kept_after_rollback,
    faults_disk.full_disk,
    faults_ends.signals,
    faults_ends.foreign_checkpoints,
    faults_ends.unreadable_checkpoint,
    faults_ends.odd_processes,
    faults_ends.renamed_folder,
    faults_ends.metrics_of_others,
    faults_ends.overwritten_value,
    faults_ends.unreadable_older,
    faults_ends.late_signals,
    faults_ends.generator_beside_training,
)
LANES = 3
# … and those that compute, or measure speed, run alone
ALONE = (
    faults_ends.little_memory,
    faults_disk.changed_data,
    faults_numbers.flipped_bits,
    faults_numbers.spikes,
    faults_numbers.skipped_updates,
    faults_numbers.flipped_exponent,
    faults_numbers.flipped_at_the_end,
    faults_numbers.rollbacks,
    faults_hosts.slow_rank,
    faults_hosts.late_rank,
    faults_hosts.late_among_many,
    faults_hosts.many_ranks,
    faults_hosts.launcher_attempts,
    faults_hosts.launcher_rules,
)
TESTS = {test.__name__: test for test in (*WAITING, *ALONE)}


def run_here(names):
    compiled = run(
        ["gcc", "-O1", "-shared", "-fPIC", "-o", str(SHIM), str(REPOSITORY / "scripts/faults.c"), "-ldl"]
    )
    check(compiled.returncode == 0, f"faults.c: {compiled.stderr}")
    make_data()
    for name in names:
        before, began = over_ranks.failed, time.time()
        TESTS[name]()
        verdict = "ok" if over_ranks.failed == before else "FAILED"
        print(f"{name:16s} {verdict}, {time.time() - began:.1f} s", flush=True)


def run_beside(test):
    """The test in a process of its own; what it prints, when it is done."""
    done = subprocess.run(
        [sys.executable, __file__, BUILD, test.__name__], stdout=PIPE, stderr=STDOUT, text=True
    )
    print("\n".join(done.stdout.splitlines()[:-1]), flush=True)
    done.returncode = 0  # its failures are counted
    take_counts(done, test.__name__)


def main():
    names = sys.argv[2:]
    if not names:
        with ThreadPoolExecutor(LANES) as lanes:
            list(lanes.map(run_beside, WAITING))
        names = [test.__name__ for test in ALONE]
    run_here(names)
    if over_ranks.failed == 0:
        shutil.rmtree(WORK, ignore_errors=True)
    finish()


main()
