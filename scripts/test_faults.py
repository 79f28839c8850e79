#!/usr/bin/env python3
"""Runs that are hurt, and must go on: full and slow disks, flipped bits, hosts that go, data that change.

  python3 scripts/test_faults.py BUILD [NAME…]     BUILD has train_gpt and tokenize; NAME: only these tests

Faults come from outside the program: signals, LD_PRELOAD (scripts/faults.c), /proc/PID/mem, a tmpfs, network
namespaces, Slurm's own daemons. What a machine does not allow is skipped, with the reason."""

import shutil
import sys
import time

import faults_disk
import faults_hosts
import faults_numbers
import faults_slurm
import over_ranks
from faults import REPOSITORY, SHIM, WORK, make_tokens, run
from over_ranks import check, finish

TESTS = {
    test.__name__: test
    for test in (
        faults_disk.slow_disk,
        faults_disk.full_disk,
        faults_disk.two_runs,
        faults_disk.changed_data,
        faults_disk.killed_saves,
        faults_numbers.flipped_bits,
        faults_numbers.spikes,
        faults_numbers.diverged_checkpoint,
        faults_hosts.slow_rank,
        faults_hosts.late_rank,
        faults_hosts.many_ranks,
        faults_hosts.launcher_rules,
        faults_hosts.lost_hosts,
        faults_hosts.fewer_replicas,
        faults_slurm.one_node,
        faults_slurm.four_nodes,
    )
}


def main():
    names = sys.argv[2:] or list(TESTS)
    compiled = run(
        ["gcc", "-O1", "-shared", "-fPIC", "-o", str(SHIM), str(REPOSITORY / "scripts/faults.c"), "-ldl"]
    )
    check(compiled.returncode == 0, f"faults.c: {compiled.stderr}")
    make_tokens()
    for name in names:
        before, began = over_ranks.failed, time.time()
        TESTS[name]()
        print(
            f"{name:16s} {'ok' if over_ranks.failed == before else 'FAILED'}, {time.time() - began:.1f} s",
            flush=True,
        )
    if over_ranks.failed == 0:
        shutil.rmtree(WORK, ignore_errors=True)
    finish()


main()
