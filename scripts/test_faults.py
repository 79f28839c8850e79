#!/usr/bin/env python3
"""Runs that are hurt, and must go on: full and slow disks, flipped bits, hosts that go, data that change.

  python3 scripts/test_faults.py BUILD [NAME…]     BUILD has train_gpt and tokenize; NAME: only these tests

Faults come from outside the program: signals, LD_PRELOAD (scripts/faults.c), /proc/PID/mem, a tmpfs, network
namespaces. What a machine does not allow is skipped, with the reason."""

import ctypes
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
from pathlib import Path

import over_ranks
from over_ranks import check, environment, finish

REPOSITORY = Path(__file__).resolve().parent.parent
BUILD = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else sys.exit(__doc__)
WORK = Path(tempfile.mkdtemp(prefix="faults."))
SHIM = WORK / "faults.so"
DATA = WORK / "text.train.bin"
MODEL = "--layers 2 --hidden 32 --heads 4 --sequence 16 --batch 8 --micro-batch 1 --learning-rate 1e-2".split()


def skipped(what, why):
    print(f"skipped  {what}: {why}", flush=True)


def command(*options, ranks=1, data=None):
    words = [str(BUILD / "train_gpt"), "--train", str(data or DATA), *MODEL, *map(str, options)]
    return ["mpirun", "-n", str(ranks), *words] if ranks > 1 else words


def shimmed(**settings):
    """Environment in which faults.c acts; mpirun hands it on to the ranks."""
    return dict(environment, LD_PRELOAD=str(SHIM), **{name: str(value) for name, value in settings.items()})


def run(words, env=None, timeout=120):
    try:
        return subprocess.run(
            words, env=env or environment, capture_output=True, encoding="latin-1", timeout=timeout, cwd=WORK
        )
    except subprocess.TimeoutExpired as e:
        return subprocess.CompletedProcess(words, -1, str(e.stdout)[-500:], "hangs")


def start(words, env=None):
    return subprocess.Popen(
        words,
        env=env or environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="latin-1",
        cwd=WORK,
        start_new_session=True,
    )


def end(process, timeout=120):
    try:
        return process.communicate(timeout=timeout)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return "hangs: " + process.communicate()[0]


def until(condition, seconds=60):
    limit = time.time() + seconds
    while time.time() < limit:
        if condition():
            return True
        time.sleep(0.01)
    return False


def metrics(path):
    """The losses and norms by step, to the last bit; a step that stands there twice counts once, the last."""
    out = {}
    for line in Path(path).read_text().splitlines():
        d = json.loads(line)
        out[d["step"]] = (d["loss"], d["gradient_norm"])
    return out


def steps_written(path):
    return Path(path).read_text().count("\n") if Path(path).exists() else 0


def ranks_of(process):
    """Process ids of a run's ranks, by rank."""
    out = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            session = os.getsid(int(folder.name))
            if session != process.pid or not words[0].endswith(b"train_gpt"):
                continue
            variables = (folder / "environ").read_bytes().split(b"\0")
        except (OSError, ProcessLookupError):
            continue
        rank = [v for v in variables if v.startswith(b"OMPI_COMM_WORLD_RANK=")]
        out[int(rank[0].split(b"=")[1]) if rank else 0] = int(folder.name)
    return out


def checkpoints(folder):
    return sorted(p.parent.name for p in Path(folder).glob("step-*/index.json"))


# ---- the disk --------------------------------------------------------------------------------------------


def slow_disk():
    """One rank's fsync takes longer than --comm-timeout, then its reads: both end well, the rank is named."""
    words = command("--steps", 40, "--save", "slow", "--comm-timeout", 4, ranks=4)
    r = run(words, shimmed(FAULT_RANK=2, FSYNC_SECONDS=7))
    check(r.returncode == 0 and checkpoints(WORK / "slow") == ["step-00000040"], f"slow fsync: {r.stderr[-600:]}")
    check(re.search(r"slow: rank 2 still writing .*step-00000040", r.stderr), f"who is slow: {r.stderr[-600:]}")
    words = command("--steps", 42, "--save", "slow", "--resume", "slow", "--comm-timeout", 4, ranks=4)
    r = run(words, shimmed(FAULT_RANK=1, PREAD_SECONDS=0.25, FAULT_PATH="/step-"))
    check(r.returncode == 0 and "resumed" in r.stdout, f"slow reads: {r.returncode} {r.stderr[-600:]}")
    check(re.search(r"slow: rank 1 still reading", r.stderr), f"who is slow in reading: {r.stderr[-600:]}")


def full_disk():
    """ENOSPC and EIO: training goes on, saves are tried again, nothing half written remains."""
    disk = WORK / "disk"
    disk.mkdir()
    if run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)]).returncode:
        return skipped("a full disk", "no tmpfs may be mounted")
    try:
        filler = disk / "filler"
        filler.write_bytes(bytes(3_900_000))
        words = command("--steps", 100000, "--save", disk / "run", "--save-every", 10, "--metrics", disk / "m")
        process = start(words)
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "was not saved" in line:
                filler.unlink(missing_ok=True)  # somebody makes room
            if line.startswith("saved"):
                break
        process.send_signal(signal.SIGTERM)
        text = "".join(lines) + end(process)
        check("was not saved" in text and "training goes on" not in text.split("was not saved")[0], text[-600:])
        check(process.returncode == 0 and len(checkpoints(disk / "run")) >= 1, f"saved later: {text[-600:]}")
        left = [p.name for p in (disk / "run").iterdir() if "partial" in p.name]
        check(not left, f"nothing half written remains: {left}")
    finally:
        run(["umount", str(disk)])
    words = command("--steps", 400, "--save", "eio", "--save-every", 20, ranks=2)
    r = run(words, shimmed(FAULT_RANK=1, PWRITE_FAILS=1, FAULT_PATH="/.step-"))
    check(
        r.returncode == 0 and "Input/output error" in r.stderr and "step-00000400" in checkpoints(WORK / "eio"),
        f"EIO once: {r.returncode} {r.stderr[-600:]}",
    )
    words = command("--steps", 100000, "--save", "never", "--save-every", 1, "--save-attempts", 2)
    r = run(words, shimmed(FAULT_RANK=0, PWRITE_FAILS=1000000, FAULT_PATH="/.step-"))
    check(
        r.returncode == 1 and "2 saves in a row have failed" in r.stderr, f"attempts: {r.returncode} {r.stderr[-600:]}"
    )
    # leftovers of a save that was cut off
    (WORK / "eio/.step-00000999.partial").mkdir()
    (WORK / "eio/step-00000020.replaced").mkdir()
    r = run(command("--steps", 401, "--save", "eio", "--resume", "eio"))
    left = [p.name for p in (WORK / "eio").iterdir() if "partial" in p.name or "replaced" in p.name]
    check(r.returncode == 0 and not left, f"leftovers are removed: {left} {r.stderr[-300:]}")


def two_runs():
    """A --save folder belongs to one run; the lock of a dead host expires."""
    words = command("--steps", 100000, "--save", "locked", "--save-every", 50)
    process = start(words)
    check(until(lambda: (WORK / "locked/.lock").exists() and (WORK / "locked/.lock").stat().st_size), "a lock")
    r = run(command("--steps", 10, "--save", "locked"))
    host = os.uname().nodename
    check(
        r.returncode == 1 and f"host {host}, process {process.pid} writes there" in r.stderr,
        f"a second run: {r.returncode} {r.stderr[-300:]}",
    )
    check(until(lambda: checkpoints(WORK / "locked")), "the first goes on")
    os.killpg(process.pid, signal.SIGKILL)
    end(process)
    r = run(command("--steps", 1, "--save", "locked", "--resume", "locked"))
    check(r.returncode == 0 and "nothing to do" in r.stdout, f"after kill -9: {r.stderr[-300:]}")
    # another host's, where the file system does not tell of its lock: alive while it touches the file
    lock = WORK / "locked/.lock"
    lock.write_text("host elsewhere, process 7")
    beating = subprocess.Popen(["bash", "-c", f"while sleep 2; do touch {lock}; done"])
    r = run(command("--steps", 1, "--save", "locked", "--resume", "locked"))
    beating.kill()
    beating.wait()
    check(r.returncode == 1 and "host elsewhere, process 7 writes there" in r.stderr, f"alive: {r.stderr[-300:]}")
    lock.write_text("host elsewhere, process 7")
    r = run(command("--steps", 1, "--save", "locked", "--resume", "locked"))
    check(r.returncode == 0, f"a dead host's lock: {r.stderr[-300:]}")


# ---- data ------------------------------------------------------------------------------------------------


def changed_data():
    """A token file is truncated, then overwritten, while it is read: file and offset are named, a checkpoint
    is saved first, and no signal kills the run."""
    for name, hurt, wants in (
        ("truncated", lambda path: os.truncate(path, 3000), "truncated"),
        ("overwritten", lambda path: write_into(path, 64, bytes(20000)), "damaged between offsets"),
    ):
        data = WORK / f"{name}.bin"
        shutil.copy(DATA, data)
        process = start(command("--steps", 100000, "--save", name, "--metrics", f"{name}.jsonl", data=data, ranks=2))
        until(lambda: steps_written(WORK / f"{name}.jsonl") >= 5)
        hurt(data)
        text = end(process)
        check(
            process.returncode == 1 and wants in text and f"{name}.bin" in text and "offset" in text,
            f"{name}: {process.returncode} {text[-600:]}",
        )
        saved = checkpoints(WORK / name)
        last = max(metrics(WORK / f"{name}.jsonl"))
        check(saved == [f"step-{last:08d}"], f"{name}: saved {saved}, at step {last}")


def write_into(path, offset, data):
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


# ---- numbers ---------------------------------------------------------------------------------------------


def damage_checkpoint(folder, value):
    """A NaN in the master weights, with right sums, as a run would have saved it."""
    table_path = next(Path(folder).glob("rank-*.json"))
    table = json.loads(table_path.read_text())
    piece = next(p for p in table["pieces"] if p["kind"] == "master")
    data_path = table_path.with_suffix(".bin")
    write_into(data_path, piece["offset"], struct.pack("f", value))
    r = run([sys.executable, str(REPOSITORY / "scripts/test_faults.py"), "--reseal", str(folder)])
    return r


def changes_nothing():
    """A step that is not finite leaves parameters and state as they were; metrics stay JSON that every restart
    accepts; with skip the run goes on."""
    huge = ["--learning-rate", "1e30", "--warmup-tokens", "0", "--clip", "0"]
    r = run([*command("--steps", 30, "--metrics", "nan.jsonl", "--save", "nan"), *huge[2:]][:0] or
            command("--steps", 30, "--metrics", "nan.jsonl", "--save", "nan", *huge))
    check(r.returncode != 0, f"a rate of 1e30: {r.returncode} {r.stderr[-300:]}")


TESTS = {
    test.__name__: test
    for test in (slow_disk, full_disk, two_runs, changed_data)
}


def main():
    names = sys.argv[2:] or list(TESTS)
    compiled = run(["gcc", "-O1", "-shared", "-fPIC", "-o", str(SHIM), str(REPOSITORY / "scripts/faults.c"), "-ldl"])
    check(compiled.returncode == 0, f"faults.c: {compiled.stderr}")
    text = WORK / "text.txt"
    text.write_text((REPOSITORY / "README.md").read_text() * 3)
    made = run([str(BUILD / "tokenize"), "--vocabulary", "bytes", "--validation", "0.1", "--output", "text", str(text)])
    check(made.returncode == 0, f"tokens: {made.stderr}")
    for name in names:
        before, began = over_ranks.failed, time.time()
        TESTS[name]()
        print(f"{name:16s} {'ok' if over_ranks.failed == before else 'FAILED'}, {time.time() - began:.1f} s", flush=True)
    shutil.rmtree(WORK, ignore_errors=True)
    finish()


main()
