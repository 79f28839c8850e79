"""Unreadable disks, data and folders that differ from those a run began with, signals, too little memory."""

import json
import os
import shutil
import signal
import time

from faults import (
    BUILD,
    DATA,
    REPOSITORY,
    WORK,
    checkpoints,
    command,
    end,
    metrics,
    ranks_of,
    run,
    shimmed,
    start,
    steps_written,
    until,
    write_into,
)
from over_ranks import check, environment, make_tokens


def refused(words, wants, what, env=None):
    """The program ends with 1 and one error that says what is wanted."""
    r = run(words, env)
    said = r.stderr.count(wants)
    check(r.returncode == 1 and said == 1, f"{what}: {r.returncode}, said {said} times: {r.stderr[-500:]}")


def odd_processes():
    """Standard streams that are closed, threads that OpenMP does not start, more than it can."""
    words = command("--steps", 2, "--save", "closed", "--save-every", 1, "--metrics", "closed.jsonl")
    r = run(["bash", "-c", '"$@" <&- >&- 2>&-', "-", *words])
    saved = checkpoints(WORK / "closed")
    check(r.returncode == 0 and saved[-1] == "step-00000002", f"streams are closed: {r.returncode} {saved}")
    check(list(metrics(WORK / "closed.jsonl")) == [1, 2], "their metrics")
    many = str(4 * os.cpu_count())  # more than OMP_DYNAMIC allows, however idle the machine is
    for variables in ({"OMP_THREAD_LIMIT": "1"}, {"OMP_DYNAMIC": "true", "OMP_NUM_THREADS": many}):
        # wide enough for a GEMM over several threads
        wide = command("--hidden", 256, "--sequence", 128, "--steps", 1)
        r = run(wide, {**environment, "OMP_NUM_THREADS": "2", **variables})
        check(r.returncode == 0, f"{variables}: {r.returncode} {r.stderr[-500:]}")
    r = run(["bash", "-c", '"$@" >&-', "-", BUILD / "train_gpt", "--help"])
    check(r.returncode == 1 and "standard output" in r.stderr, f"an answer to nobody: {r.returncode}")
    refused(command(), "expected at most 4096", "threads", {**environment, "OMP_NUM_THREADS": "100000"})


def unreadable_checkpoint():
    """A read error in a checkpoint's index or table: an older one is taken, and no signal ends the run."""
    for ranks in (1, 4):
        name = f"unreadable{ranks}"
        run(command("--steps", 20, "--save", name, "--save-every", 10, ranks=ranks))
        for part in ("step-00000020/index.json", "step-00000020/rank-00000.json"):
            fails = shimmed(FAULT_RANK=0, FAULT_PATH=f"{name}/{part}", PREAD_FAILS=1)
            words = command(
                "--steps", 21, "--resume", name, "--save", "no", "--metrics", f"{name}.jsonl", ranks=ranks
            )
            r = run(words, fails)
            told = f"passed over: {name}/{part}: cannot be read at offset 0: Input/output error"
            check(r.returncode == 0 and told in r.stderr, f"{part}, {ranks} ranks: {r.stderr[-500:]}")
            check(min(metrics(WORK / f"{name}.jsonl")) == 11, f"{part}, {ranks} ranks: goes on from step 10")
            (WORK / f"{name}.jsonl").unlink()

        # saving back: the newest cannot be read, by one rank, and is no other run's
        fails = shimmed(FAULT_RANK=ranks - 1, FAULT_PATH=f"{name}/step-00000020/index.json", PREAD_FAILS=1)
        r = run(command("--steps", 21, "--resume", name, ranks=ranks), fails)
        good = r.returncode == 0 and "step     21/21" in r.stdout
        check(good, f"saved back, {ranks} ranks: {r.returncode} {r.stdout[-300:]} {r.stderr[-500:]}")

        # while it trains: the checkpoint that --keep counts cannot be read; it is left where it is
        fails = shimmed(FAULT_RANK=0, FAULT_PATH=f"{name}/step-00000010/index.json", PREAD_FAILS=1)
        words = command(
            "--steps", 40, "--save", name, "--resume", name, "--save-every", 10, "--keep", 2, ranks=ranks
        )
        r = run(words, fails)
        check(r.returncode == 0, f"while it trains, {ranks} ranks: {r.returncode} {r.stderr[-500:]}")


def foreign_checkpoints():
    """A newer format is not written over, other data are not taken for the same, a link is not followed."""
    for ranks in (1, 4):
        name = f"foreign{ranks}"
        go_on = lambda *more, **other: command(  # noqa: E731
            "--steps", 30, "--save", name, "--resume", name, *more, ranks=ranks, **other
        )
        run(command("--steps", 20, "--save", name, "--save-every", 10, ranks=ranks))

        index = WORK / name / "step-00000020/index.json"
        kept = index.read_text()
        index.write_text(kept.replace('"version": 2', '"version": 3'))
        refused(go_on(), "has version 3 of the format, this program reads 1 to 2", f"version 3, {ranks}")
        check(index.read_text() != kept and checkpoints(WORK / name)[-1] == "step-00000020", "it is kept")
        index.write_text(kept)

        # the same size, other bytes; found by the checksums of the file, not by its name
        other = WORK / "other.bin"
        make_tokens(BUILD, WORK / "other", (WORK / "text.txt").read_text().replace("green", "greyn"), 0.1)
        shutil.move(WORK / "other.train.bin", other)
        check(other.stat().st_size == DATA.stat().st_size, "data of the same size")
        refused(go_on(data=other), "was trained on other data than --train gives", f"other data, {ranks}")
        without = ("--steps", 21, "--resume", name, "--other-data", "yes")  # and no --save
        r = run(command(*without, ranks=ranks, data=other))
        check(r.returncode == 1 and "with other data it stays as it is" in r.stderr, r.stderr[-300:])
        moved = WORK / "moved.bin"
        shutil.copy(DATA, moved)
        r = run(command("--steps", 21, "--resume", name, "--save", "no", ranks=ranks, data=moved))
        check(r.returncode == 0 and "different data" not in r.stdout, f"the same data elsewhere: {r.stderr}")
        r = run(
            command(
                *f"--steps 21 --resume {name} --save no --other-data yes".split(), ranks=ranks, data=other
            )
        )
        told = "this is different data" in r.stdout
        check(r.returncode == 0 and told, f"--other-data yes: {r.stderr[-300:]}")
        # saved elsewhere, it is a run of these data from there on
        went_on = f"{name}-went-on"
        words = f"--steps 21 --resume {name} --save {went_on} --other-data yes".split()
        done = [run(command(*words, ranks=ranks, data=other))]
        done.append(run(command("--steps", 22, "--resume", went_on, ranks=ranks, data=other)))
        check([r.returncode for r in done] == [0, 0], f"and on: {[r.stderr[-300:] for r in done]}")

        # two checkpoints renamed into each other
        a, b = WORK / name / "step-00000010", WORK / name / "step-00000020"
        swap = WORK / name / "swap"
        for old, new in ((a, swap), (b, a), (swap, b)):
            old.rename(new)
        refused(
            go_on(), f"{name}/step-00000020/index.json: is of step 10, its folder's name says 20", "swapped"
        )
        for old, new in ((a, swap), (b, a), (swap, b)):
            old.rename(new)

        # what lies behind a link is not removed, nor anybody's folder that ends in .replaced
        outside = WORK / f"outside{ranks}"
        shutil.copytree(a, outside / "kept")
        shutil.rmtree(a)
        a.symlink_to(outside / "kept")
        (WORK / name / "mine.replaced").mkdir()
        r = run(go_on("--save-every", 5, "--keep", 1))
        left = {p.name for p in (outside / "kept").iterdir()}
        check(r.returncode == 0 and "index.json" in left, f"behind a link: {left} {r.stderr[-300:]}")
        check(a.is_symlink() and (WORK / name / "mine.replaced").is_dir(), "a link and a folder are left")
        check(checkpoints(WORK / name)[-1] == "step-00000030", f"--keep 1: {checkpoints(WORK / name)}")


def renamed_folder():
    """A --save folder that is renamed while a run writes there is not made again."""
    for ranks in (1, 4):
        name = f"renamed{ranks}"
        options = ["--save", name, "--save-every", 50, "--save-attempts", 2, "--metrics", f"{name}.jsonl"]
        process = start(command("--steps", 1000000, *options, ranks=ranks))
        check(until(lambda: checkpoints(WORK / name)), "a checkpoint")
        (WORK / name).rename(WORK / f"{name}.moved")
        said = end(process)
        check(process.returncode == 1 and "is no longer the folder" in said, f"{name}: {said[-600:]}")
        check(not (WORK / name).exists(), f"{name} is not made again")
        check(checkpoints(WORK / f"{name}.moved"), "what was saved is kept")


def metrics_of_others():
    """A metrics file belongs to one run at a time; another run's is kept under another name."""
    process = start(command("--steps", 1000000, "--metrics", "shared.jsonl"))
    check(until(lambda: steps_written(WORK / "shared.jsonl") > 3), "a run that writes metrics")
    refused(command("--steps", 1, "--metrics", "shared.jsonl"), "another run writes there", "two at once")
    process.terminate()
    end(process)

    before = (WORK / "shared.jsonl").read_text()
    run(command("--steps", 3, "--save", "other_run", "--batch", 4))
    r = run(command("--steps", 4, "--resume", "other_run", "--metrics", "shared.jsonl", "--batch", 4))
    told = "which are now in shared.jsonl.previous"
    check(r.returncode == 0 and told in r.stdout, f"another run's: {r.stdout[-300:]} {r.stderr[-300:]}")
    check((WORK / "shared.jsonl.previous").read_text() == before, "its lines are kept")
    check(list(metrics(WORK / "shared.jsonl")) == [4], "and this run's begin")

    # its own file, whose last lines were lost with the power
    r = run(command("--steps", 9, "--save", "lost", "--metrics", "lost.jsonl"))
    written = (WORK / "lost.jsonl").read_text().splitlines(keepends=True)
    (WORK / "lost.jsonl").write_text("".join(written[:7]))
    r = run(command("--steps", 11, "--resume", "lost", "--metrics", "lost.jsonl"))
    steps = list(metrics(WORK / "lost.jsonl"))
    good = r.returncode == 0 and steps == [*range(1, 8), 10, 11]
    check(good and not (WORK / "lost.jsonl.previous").exists(), f"lost lines: {steps} {r.stdout[-300:]}")

    # a branch that writes into its root's file; and a run that has nothing to do
    r = run(command("--steps", 20, "--save", "root", "--save-every", 10, "--metrics", "root.jsonl"))
    before = (WORK / "root.jsonl").read_text()
    for options in (["--resume", "root/step-00000010", "--save", "no"], ["--resume", "root", "--save", "no"]):
        steps = 15 if options[1] != "root" else 5
        r = run(command("--steps", steps, *options, "--metrics", "root.jsonl"))
        check(r.returncode == 0, f"{options}: {r.stderr[-300:]}")
        kept = (WORK / "root.jsonl.previous").read_text()
        check(kept == before and max(metrics(WORK / "root.jsonl")) == 15, f"{options}: the root's lines")

    # no launcher started it
    status = run(["bash", str(REPOSITORY / "scripts/status.sh"), str(WORK / "other_run")])
    wants = ("state         not running", "step          4", "checkpoint    step 4")
    check(status.returncode == 0 and all(w in status.stdout for w in wants), f"status.sh: {status.stdout}")


def signals():
    """A closed terminal and a pipe that nobody reads end a run as SIGTERM does: with a checkpoint."""
    for ranks in (1, 4):
        for number in (signal.SIGTERM, signal.SIGHUP):
            name = f"signal{number}-{ranks}"
            options = ["--save", name, "--metrics", f"{name}.jsonl"]
            # these tests may themselves run under nohup
            heard = ["env", "--default-signal=HUP"]
            process = start([*heard, *command("--steps", 1000000, *options, ranks=ranks)])
            check(until(lambda: steps_written(WORK / f"{name}.jsonl") > 3), f"{name} trains")
            for pid in ranks_of(process).values():
                os.kill(pid, number)
            said = end(process)
            last = max(metrics(WORK / f"{name}.jsonl"))
            good = process.returncode == 0 and checkpoints(WORK / name) == [f"step-{last:08d}"]
            check(good, f"{name}: {process.returncode}, step {last}: {said[-400:]}")

    quoted = " ".join(command("--steps", 1000000, "--save", "piped", "--metrics", "piped.jsonl"))
    done = run(["bash", "-c", f"{quoted} | head -70 > /dev/null; exit ${{PIPESTATUS[0]}}"])
    last = max(metrics(WORK / "piped.jsonl"))
    good = done.returncode == 0 and checkpoints(WORK / "piped") == [f"step-{last:08d}"]
    check(
        good, f"| head: {done.returncode}, {checkpoints(WORK / 'piped')}, step {last}: {done.stderr[-300:]}"
    )

    # under nohup, the terminal's end has no effect
    words = command("--steps", 1000000, "--save", "nohup", "--metrics", "nohup.jsonl")
    process = start(["nohup", *words])
    check(until(lambda: steps_written(WORK / "nohup.jsonl") > 3), "under nohup")
    before = steps_written(WORK / "nohup.jsonl")
    for pid in ranks_of(process).values():
        os.kill(pid, signal.SIGHUP)
    check(until(lambda: steps_written(WORK / "nohup.jsonl") > before + 5), "nohup goes on")
    process.terminate()
    end(process)

    # a step that does not end: the second signal does
    slow = WORK / "slow"
    env = shimmed(FAULT_RANK=0, GEMM_SECONDS=1000, GEMM_FILE=slow)
    process = start(command("--steps", 1000000, "--metrics", "stuck.jsonl"), env)
    check(until(lambda: steps_written(WORK / "stuck.jsonl") > 3), "a run that will hang")
    slow.touch()
    time.sleep(1)
    process.terminate()
    time.sleep(4)
    check(process.poll() is None, "one signal waits for the step's end")
    process.terminate()
    said = end(process, 20)
    check(
        process.returncode == 128 + signal.SIGTERM and "a second signal" in said,
        f"{process.returncode} {said}",
    )


def little_memory():
    """What exceeds the free memory, or ulimit's, is refused before it is allocated."""
    program = [str(BUILD / "train_gpt"), "--train", str(DATA)]
    large = [*program, "--model", "175B", "--batch", "1", "--sequence", "128"]
    for words in (large, [*large, "--micro-batch", "auto"]):
        r = run(words, timeout=60)
        good = r.returncode == 1 and ("a rank may use" in r.stderr)
        check(good, f"175B: {r.returncode} {r.stderr[-300:]}")
    small = [*program, *"--layers 4 --hidden 1024 --heads 8 --sequence 128 --steps 1".split()]
    for megabytes in (400, 700, 1200):
        words = ["bash", "-c", f"ulimit -v {megabytes * 1024}; exec " + " ".join(small)]
        r = run(words, dict(environment, OMP_NUM_THREADS="2"), timeout=60)
        good = r.returncode == 1 and ("a rank may use" in r.stderr or "cannot be" in r.stderr)
        check(good, f"ulimit -v {megabytes} MB: {r.returncode} {r.stderr[-300:]}")


def two_launchers():
    """An error that would only repeat itself is not retried, and a run has one launcher."""
    hosts = WORK / "hosts"
    hosts.write_text("localhost\n")
    here = str(REPOSITORY / "scripts/launch.py")
    env = dict(environment, LAUNCH_DIR=str(BUILD), LAUNCH_PAUSE="1")
    launch = ["python3", here, "mpirun", str(hosts), "1"]
    options = command("--save", "launched", "--save-every", 20)[1:]

    for what, words, wants in (
        ("an option", [*launch, *options, "--stepz", "5"], "unknown option --stepz"),
        ("a file", [*launch, "--train", "nothing.bin", "--save", "launched"], "nothing.bin"),
    ):
        began = time.time()
        r = run(words, env)
        told = r.stdout + r.stderr
        good = r.returncode == 1 and wants in told and "before its first step" in told
        check(good and time.time() - began < 30, f"{what}: {r.returncode} {told[-600:]}")
    attempts = json.loads((WORK / "launched/launch.json").read_text())["attempts"]
    check(len(attempts) == 1 and not attempts[0]["lost_on"], f"one attempt, no host blamed: {attempts}")

    process = start([*launch, *options, "--steps", "100000"], env)
    check(until(lambda: checkpoints(WORK / "launched")), "a launched run")
    before = (WORK / "launched/launch.json").read_text()
    r = run([*launch, *options, "--steps", "100000"], env)
    good = r.returncode == 1 and "another launcher works on this run" in r.stderr
    check(
        good and (WORK / "launched/launch.json").read_text() == before,
        f"a second launcher: {r.stderr[-400:]}",
    )
    process.send_signal(signal.SIGHUP)
    check("stopped by a signal" in end(process), "the first goes on until it is stopped")
    status = run(["bash", str(REPOSITORY / "scripts/status.sh"), str(WORK / "launched")]).stdout
    check("state         stopped by a signal" in status, f"status.sh: {status}")

    # ranks that the mpirun of another MPI starts
    r = run(command(), environment | {"PMI_SIZE": "4", "PMI_RANK": "2"})
    good = r.returncode == 1 and "started as 4 ranks, but this program's MPI sees only one" in r.stderr
    check(good, f"another MPI: {r.returncode} {r.stderr[-300:]}")

    # whatever the terminal's encoding is, a run's output is read to its end
    (WORK / "says").mkdir()
    script = "#!/bin/sh\necho 'device \u2026'; echo end; exit 5\n"
    (WORK / "says/train_gpt").write_text(script, encoding="utf8")
    (WORK / "says/train_gpt").chmod(0o755)
    latin = env | {"PYTHONIOENCODING": "latin-1", "LC_ALL": "C", "LAUNCH_DIR": str(WORK / "says")}
    r = run([*launch, "--save", "said"], latin)
    log = (WORK / "said/launch.log").read_text(encoding="utf8")
    good = "ended with 5" in r.stderr and "Traceback" not in r.stderr and "device \u2026\nend\n" in log
    check(good, f"characters: {r.returncode} {r.stderr[-400:]} {log}")
    r = run([*launch, *options], env | {"LAUNCH_SILENCE": "1h"})
    check(r.returncode == 1 and "LAUNCH_SILENCE=1h: expected" in r.stderr, f"a setting: {r.stderr[-300:]}")

    hosts.write_text("\ufeffa\nb\n  # c\na\n", encoding="utf8")
    r = run([*launch, *options], env)
    check(r.returncode == 1 and "names a more than once" in r.stderr, f"a host twice: {r.stderr[-300:]}")


def generator_beside_training():
    """A reader of a folder in which a run saves and removes checkpoints never ends with an error."""
    options = ["--save", "busy", "--save-every", 1, "--keep", 1]
    process = start(command("--steps", 1000000, *options, "--metrics", "busy.jsonl"))
    check(until(lambda: checkpoints(WORK / "busy")), "a run that saves at each step")
    program = [str(BUILD / "train_gpt"), "--resume", "busy", "--generate", "ab", "--sample-tokens", "1"]
    for _ in range(20):
        r = run(program)
        check(r.returncode == 0 and r.stdout.startswith("ab"), f"{r.returncode} {r.stderr[-400:]}")
    r = run(["bash", "-c", '"$@" > /dev/full', "full", *program])
    good = r.returncode == 1 and "standard output: cannot be written" in r.stderr
    check(good, f"a text for a full disk: {r.returncode} {r.stderr[-400:]}")
    for tool in ("train_gpt", "tokenize", "tasks", "convert"):
        for option in ("--help", "--version"):
            r = run(["bash", "-c", '"$1" $2 > /dev/full', "full", str(BUILD / tool), option])
            good = r.returncode == 1 and "standard output: cannot be written" in r.stderr
            check(good, f"{tool} {option} for a full disk: {r.returncode} {r.stderr[-400:]}")
    process.terminate()
    check("stopped by a signal" in end(process), "the run goes on until it is stopped")


def unreadable_older():
    """A checkpoint that cannot be read back from disk: no older one is removed."""
    run(command("--steps", 20, "--save", "sector", "--save-every", 10))
    fails = shimmed(FAULT_RANK=0, FAULT_PATH="step-00000020/rank-00000.bin", PREAD_FAILS=1)
    r = run(command("--steps", 30, "--save", "sector", "--resume", "sector", "--save-every", 30), fails)
    told = "step-00000020 cannot be read, so no older one is removed"
    check(r.returncode == 0 and told in r.stderr, f"a bad sector: {r.returncode} {r.stderr[-400:]}")
    names = [f"step-{step:08d}" for step in (10, 20, 30)]
    check(checkpoints(WORK / "sector") == names, f"what is left: {checkpoints(WORK / 'sector')}")


def late_signals():
    """Two signals while a run's last save is written: it is written."""
    options = ["--steps", 20, "--save", "late", "--metrics", "late.jsonl"]
    process = start(command(*options), shimmed(FAULT_RANK=0, FAULT_PATH="/.step-", FSYNC_SECONDS=1.5))
    check(until(lambda: steps_written(WORK / "late.jsonl") == 20), "its last step")
    for _ in range(2):
        process.send_signal(signal.SIGTERM)
        time.sleep(3.5)
    text = end(process)
    good = process.returncode == 0 and checkpoints(WORK / "late") == ["step-00000020"]
    check(good, f"two signals in the last save: {process.returncode} {text[-300:]}")


def overwritten_value():
    """A checkpoint's data that change on disk are noticed by their checksum."""
    run(command("--steps", 20, "--save", "rotten", "--save-every", 10))
    write_into(WORK / "rotten/step-00000020/rank-00000.bin", 400, b"rot")
    r = run(command("--steps", 21, "--resume", "rotten", "--save", "no"))
    check(r.returncode == 0 and "damaged between offsets" in r.stderr, f"rotten: {r.stderr[-300:]}")
    shutil.rmtree(WORK / "rotten/step-00000010")
    refused(
        command("--steps", 21, "--resume", "rotten", "--save", "no"),
        "no checkpoint is intact",
        "none is left",
    )
