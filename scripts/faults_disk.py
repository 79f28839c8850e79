"""Disks that are slow, full or broken; a folder for two; token files that change; saves cut off."""

import os
import random
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

from faults import (
    DATA,
    WORK,
    checkpoints,
    command,
    end,
    metrics,
    ranks_of,
    run,
    shimmed,
    skipped,
    start,
    steps_written,
    until,
    write_into,
)
from over_ranks import check


def slow_disk():
    """One rank's fsync takes longer than --comm-timeout, then its reads: both end well, the rank is named,
    and a save that is due while the last one is still running is skipped."""
    words = command("--steps", 60, "--save", "slow", "--save-every", 20, "--comm-timeout", 4, ranks=4)
    r = run(words, shimmed(FAULT_RANK=2, FSYNC_SECONDS=6))
    saved = checkpoints(WORK / "slow")
    check(
        r.returncode == 0 and saved == ["step-00000020", "step-00000060"],
        f"slow fsync: {saved} {r.stderr[-600:]}",
    )
    check(
        re.search(r"slow: rank 2 still writing .*step-000000[26]0", r.stderr)
        and "step 40 is not saved: an earlier save is still running" in r.stderr,
        f"who is slow: {r.stderr[-600:]}",
    )

    words = command("--steps", 62, "--save", "slow", "--resume", "slow", "--comm-timeout", 4, ranks=4)
    r = run(words, shimmed(FAULT_RANK=1, PREAD_SECONDS=0.25, FAULT_PATH="/step-"))
    check(r.returncode == 0 and "resumed" in r.stdout, f"slow reads: {r.returncode} {r.stderr[-600:]}")
    check(re.search(r"slow: rank 1 still reading", r.stderr), f"who is slow in reading: {r.stderr[-600:]}")

    # a step's samples come three timeouts late; the run goes on, and ends at SIGTERM
    slowly, written = WORK / "slow-reads", WORK / "slow-reads.jsonl"
    words = command("--steps", 1000000, "--metrics", written, "--comm-timeout", 4, ranks=2)
    process = start(words, shimmed(FAULT_RANK=1, PREAD_SECONDS=6, PREAD_FILE=slowly, FAULT_PATH=DATA.name))
    check(until(lambda: steps_written(written) > 3), "a run whose samples will come late")
    slowly.touch()
    time.sleep(12)
    at = steps_written(written)
    slowly.unlink()
    goes_on = until(lambda: steps_written(written) > at + 5)
    for pid in ranks_of(process).values():
        os.kill(pid, signal.SIGTERM)
    said = end(process)
    check(process.returncode == 0 and goes_on, f"late samples: {said[-600:]}")
    check("slow: rank 1 still reading samples after 5 s" in said, f"who reads slowly: {said[-600:]}")


def full_disk():
    """ENOSPC and EIO: training goes on, saves are tried again, nothing half written remains."""
    disk = WORK / "disk"
    disk.mkdir()
    if run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)]).returncode:
        return skipped("a full disk", "no tmpfs may be mounted")

    try:
        filler = disk / "filler"
        filler.write_bytes(bytes(3_900_000))
        words = command(
            "--steps", 100000, "--save", disk / "run", "--save-every", 10, "--metrics", disk / "m"
        )
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
        check(
            "was not saved" in text and "training goes on" not in text.split("was not saved")[0],
            text[-600:],
        )
        check(
            process.returncode == 0 and len(checkpoints(disk / "run")) >= 1, f"saved later: {text[-600:]}"
        )
        left = [p.name for p in (disk / "run").iterdir() if "partial" in p.name]
        check(not left, f"nothing half written remains: {left}")
    finally:
        run(["umount", str(disk)])

    words = command("--steps", 400, "--save", "eio", "--save-every", 20, ranks=2)
    r = run(words, shimmed(FAULT_RANK=1, PWRITE_FAILS=1, FAULT_PATH="/.step-"))
    check(
        r.returncode == 0
        and "Input/output error" in r.stderr
        and "step-00000400" in checkpoints(WORK / "eio"),
        f"EIO once: {r.returncode} {r.stderr[-600:]}",
    )
    # what a checkpoint consists of is on the disk before its name is, and its name before it is relied on
    synced = WORK / "synced"
    r = run(command("--steps", 1, "--save", "durable"), shimmed(FAULT_RANK=0, FSYNC_LOG=synced))
    paths = synced.read_text().splitlines() if synced.exists() else []
    partial = str((WORK / "durable/.step-00000001.partial").resolve())
    ended = [path for path in paths if path.startswith(partial)]
    check(
        r.returncode == 0
        and {Path(path.removesuffix(".partial")).name for path in ended[:-1]}
        == {"rank-00000.bin", "rank-00000.json", "index.json"}
        and paths[-2:] == [partial, str((WORK / "durable").resolve())],
        f"synchronised: {r.returncode} {paths}",
    )
    words = command("--steps", 400, "--save", "flipped", "--save-every", 20, ranks=2)
    r = run(words, shimmed(FAULT_RANK=1, PWRITE_FLIPS=1, FAULT_PATH="rank-00001.bin"))
    check(
        r.returncode == 0
        and r.stderr.count("reads back other values at offset") == 1
        and "step-00000400" in checkpoints(WORK / "flipped"),
        f"a byte written wrongly once: {r.returncode} {r.stderr[-600:]}",
    )
    words = command("--steps", 100000, "--save", "never", "--save-every", 1, "--save-attempts", 2)
    r = run(words, shimmed(FAULT_RANK=0, PWRITE_FAILS=1000000, FAULT_PATH="/.step-"))
    check(
        r.returncode == 1 and "2 saves in a row have failed" in r.stderr,
        f"attempts: {r.returncode} {r.stderr[-600:]}",
    )

    # leftovers of a save that was cut off
    (WORK / "eio/.step-00000999.partial").mkdir()
    (WORK / "eio/step-00000020.replaced").mkdir()
    r = run(command("--steps", 401, "--save", "eio", "--resume", "eio"))
    left = [p.name for p in (WORK / "eio").iterdir() if "partial" in p.name or "replaced" in p.name]
    check(r.returncode == 0 and not left, f"leftovers are removed: {left} {r.stderr[-300:]}")


def has_open(pid, path):
    try:
        return any(file.samefile(path) for file in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:  # closed meanwhile
        return False


def hung_data():
    """A read of the training data hangs: a run that is told to end, or is at its end, saves all the same."""
    hangs, metrics_file = WORK / "hangs", WORK / "hung.jsonl"
    fault = shimmed(FAULT_RANK=0, FAULT_PATH=DATA.name, PREAD_SECONDS=12, PREAD_FILE=hangs)
    process = start(command("--steps", 100000, "--save", "hung", "--metrics", metrics_file), fault)
    until(lambda: steps_written(metrics_file) >= 3)
    hangs.touch()
    time.sleep(1)
    began = time.time()
    process.send_signal(signal.SIGTERM)
    check(until(lambda: checkpoints(WORK / "hung"), 30), "SIGTERM: a checkpoint")
    check(time.time() - began < 11 + 12, "it did not wait for more than the read that had begun")
    hangs.unlink()
    text = end(process, 60)
    check(process.returncode == 0, f"SIGTERM: {process.returncode} {text[-300:]}")


def two_runs():
    """A --save folder belongs to one run; the lock of a dead host expires."""
    words = command("--steps", 100000, "--save", "locked", "--save-every", 50)
    process = start(words)
    check(
        until(lambda: (WORK / "locked/.lock").exists() and (WORK / "locked/.lock").stat().st_size), "a lock"
    )
    # one that would go on from its checkpoints, so that nothing but the lock refuses it
    check(until(lambda: checkpoints(WORK / "locked")), "the first saves")
    before = max(checkpoints(WORK / "locked"))
    more = ("--steps", 100000, "--save", "locked", "--resume", "locked")
    r = run(command(*more))
    host = os.uname().nodename
    check(
        r.returncode == 1
        and re.search(rf"host {host} \(.*\), process {process.pid} writes there", r.stderr),
        f"a second run: {r.returncode} {r.stderr[-300:]}",
    )
    no_locks = shimmed(FAULT_RANK=0, FAULT_PATH="locked/.lock", FLOCK_FAILS=1)
    r = run(command(*more), no_locks)
    said = f"process {process.pid} writes there" in r.stderr
    check(r.returncode == 1 and said, f"without flock: {r.returncode} {r.stderr[-300:]}")
    check(until(lambda: max(checkpoints(WORK / "locked"), default=before) > before), "the first goes on")
    os.killpg(process.pid, signal.SIGKILL)
    end(process)

    r = run(command("--steps", 1, "--save", "locked", "--resume", "locked"))
    check(r.returncode == 0 and "nothing to do" in r.stdout, f"after kill -9: {r.stderr[-300:]}")
    # another host's, on a file system that does not show its lock: alive while it touches the file
    lock = WORK / "locked/.lock"
    lock.write_text("host elsewhere, process 7")
    beating = subprocess.Popen(["bash", "-c", f"while sleep 2; do touch {lock}; done"])
    r = run(command(*more))
    beating.kill()
    beating.wait()
    check(
        r.returncode == 1 and "host elsewhere, process 7 writes there" in r.stderr,
        f"alive: {r.stderr[-300:]}",
    )
    lock.write_text("host elsewhere, process 7")

    one_more = int(max(checkpoints(WORK / "locked"))[5:]) + 1
    r = run(command("--steps", one_more, "--save", "locked", "--resume", "locked"))
    check(r.returncode == 0, f"a dead host's lock: {r.stderr[-300:]}")

    # a checkpoint that appears after this run has looked for them, while it waits for the lock
    lock.write_text("host elsewhere, process 7")
    newest = WORK / "locked" / max(checkpoints(WORK / "locked"))
    aside = newest.rename(WORK / "newest")
    process = start(command("--steps", 100000, "--save", "locked", "--resume", "locked"))
    check(until(lambda: has_open(process.pid, lock)), "it waits for the lock")
    aside.rename(newest)
    text = end(process)
    check(
        process.returncode == 1 and f"has ended meanwhile and left {newest.name} there" in text,
        f"a newer checkpoint: {process.returncode} {text[-300:]}",
    )
    check(max(checkpoints(WORK / "locked")) == newest.name, "which nothing has touched")


def changed_data():
    """A token file is truncated, then overwritten, while it is read, and one for validation truncated: file
    and offset are named, a checkpoint is saved first, and no signal kills the run."""
    for name, hurt, wants in (
        ("truncated", lambda path: os.truncate(path, 3000), "truncated"),
        ("overwritten", lambda path: write_into(path, 64, bytes(20000)), "damaged between offsets"),
        ("validation", lambda path: os.truncate(path, 3000), "truncated"),
    ):
        data = WORK / f"{name}.bin"
        shutil.copy(DATA, data)
        options = ["--steps", 100000, "--save", name, "--metrics", f"{name}.jsonl"]
        if name == "validation":
            options += ["--validation", data, "--evaluate-every", 1]
        process = start(command(*options, data=DATA if name == "validation" else data, ranks=2))
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


def killed_saves():
    """kill -9 at 20 moments of saves on 8 ranks, and the newest checkpoint damaged: the losses are those of
    an undisturbed run."""
    layout = ["--tensor-parallel", 2, "--pipeline-parallel", 2]
    options = ["--steps", 120, "--save-every", 6, *layout, "--save"]
    r = run(command(*options, "whole", "--metrics", "whole.jsonl", ranks=8))
    check(r.returncode == 0, f"undisturbed: {r.stderr[-300:]}")
    whole, kills = metrics(WORK / "whole.jsonl"), 0
    saves = WORK / "saves"

    def again():
        begun = ["--resume", "saves"] if checkpoints(saves) else []
        return command(*options, "saves", *begun, "--metrics", "saves.jsonl", ranks=8)

    for moment in range(20):
        # kill by turns as a save begins and when one is complete, so that slow machines make progress too
        seen = set(os.listdir(saves)) if saves.exists() else set()
        part = ".step-" if moment % 2 else "step-"
        process = start(again())

        def shows():
            new = set(os.listdir(saves)) - seen if saves.exists() else set()
            return process.poll() is not None or any(name.startswith(part) for name in new)

        until(shows, 30)
        time.sleep(0.002 * moment)
        if process.poll() is None:
            os.kill(random.choice(list(ranks_of(process).values()) or [process.pid]), signal.SIGKILL)
            kills += 1
        end(process, 30)

    r = run(again())
    check(
        r.returncode == 0 and metrics(WORK / "saves.jsonl") == whole,
        f"after {kills} kills: {r.stderr[:600]}",
    )
    check(kills >= 10, f"{kills} kills")
    left = [name for name in os.listdir(WORK / "saves") if "partial" in name]
    check(not left, f"nothing half written: {left}")
    newest = WORK / "saves" / checkpoints(WORK / "saves")[-1]
    write_into(newest / "rank-00003.bin", 100, b"damage")
    r = run(command(*options, "saves", "--resume", "saves", "--metrics", "saves.jsonl", ranks=8))
    check(
        r.returncode == 0
        and "rank-00003.bin: damaged between offsets" in r.stderr
        and metrics(WORK / "saves.jsonl") == whole,
        f"the newest is damaged: {r.returncode} {r.stderr[-300:]}",
    )
