"""Bits that flip, and losses that are not finite."""

import json
import os
import random
import re
import shutil
import signal
import struct
import time
from pathlib import Path

from faults import (
    BUILD,
    DATA,
    MODEL,
    REPOSITORY,
    SHIM,
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
from over_ranks import check, checksum, environment, json_lines, make_tokens, near


def flip_bit(process_id, address, bit=2):
    """Flips one bit of a process's memory from outside, as a memory fault would."""
    try:
        with open(f"/proc/{process_id}/mem", "r+b", buffering=0) as memory:
            memory.seek(address)
            byte = memory.read(1)  # empty, or an OSError: it has ended
            memory.seek(address)
            memory.write(bytes(b ^ 1 << bit for b in byte))
    except OSError:
        pass


def arenas_of(log):
    """Addresses of rank 2's arenas as they were made: parameters, gradients, …, optimizer; MPI's own piece
    has 128 KiB."""
    places = [tuple(map(int, line.split())) for line in Path(f"{log}.2").read_text().splitlines()]
    return [at for at, size in places if size > 20000 and size != 1 << 17]


def flipped_bits():
    """One bit of a weight that the rank owns, of a copied one, of a moment and of a gradient, under
    ZeRO-1 over 4 ranks: the step and the rank are named within one interval."""
    for name, arena, element in (  # the first bucket, of 12288 elements, is the embedding's: 3072 a rank
        ("own-weight", 0, 7680),
        ("copied-weight", 0, 1000),
        ("moment", -1, 500),
        ("gradient", 1, 7680),
    ):
        log, lines = WORK / f"memory-{name}", WORK / f"{name}.jsonl"
        words = command("--steps", 1000000, "--check-every", 1, "--metrics", lines, ranks=4)
        process = start(words, shimmed(MEMORY_LOG=log))
        until(lambda: steps_written(lines) >= 3)

        address = arenas_of(log)[arena] + 4 * element + 2
        victim, at = ranks_of(process)[2], steps_written(lines)

        # what lives for only a part of a step needs many tries: on a busy machine most hit a rank that waits
        last = at + (200 if name in ("own-weight", "moment") else 10000)
        while process.poll() is None and steps_written(lines) < last:
            if name == "gradient":  # of its exponent: a 0 becomes 2; a smaller change is lost in the sums
                flip_bit(victim, address + 1, 6)
            else:
                flip_bit(victim, address)
            if name in ("own-weight", "moment"):
                break
            time.sleep(random.uniform(0.001, 0.004))

        text = end(process, 30)
        # the rank that finds it in its own memory, or those that compare theirs with one another
        found = re.search(r"\[rank (?P<rank>\d+)\].* step (?P<step>\d+)", text)
        compared = re.search(r"after step (?P<step>\d+) .* on rank (?P<rank>\d+) differs", text)
        found = compared or found
        check(process.returncode == 1 and found, f"{name}: {process.returncode} {text[-400:]}")

        if found:
            check(found["rank"] == "2", f"{name}: rank {found['rank']} is named: {text[-400:]}")
            check(int(found["step"]) <= last + 2, f"{name}: flipped at step {at}, found at {found['step']}")


def flipped_exponent():
    """A weight of 1e36: the loss is a spike, and its update is skipped, but the flipped bit is named."""
    log, lines = WORK / "memory-exponent", WORK / "exponent.jsonl"
    for _ in range(20):  # until it is hit before forward reads it, and not behind
        for file in (lines, Path(f"{log}.2")):
            file.unlink(missing_ok=True)
        words = command("--steps", 1000000, "--metrics", lines, "--spike-z", 1000, ranks=4)
        process = start(words, shimmed(MEMORY_LOG=log))
        if not until(lambda: steps_written(lines) >= 40 and 2 in ranks_of(process)):
            return check(False, f"a run of four ranks: {end(process, 1)[-400:]}")
        victim, at = ranks_of(process)[2], steps_written(lines)
        flip_bit(victim, arenas_of(log)[0] + 4 * 7680 + 3, 6)
        until(lambda: process.poll() is not None or steps_written(lines) > at + 200)
        if process.poll() is None:  # written over in the middle of an update
            os.killpg(process.pid, signal.SIGKILL)
            end(process)
            continue
        text = end(process, 30)
        named = "[rank 2]" in text and "read other master weights" in text and "a spike" not in text
        check(process.returncode == 1 and named, f"named: {process.returncode} {text[-400:]}")
        last = json_lines(lines)[-1]
        if last["loss"] is None or last["loss"] > 1e30:
            return check(last.get("updated") is False, f"the update is skipped: {last}")
    check(False, "no flip was hit before forward")


def flipped_at_the_end():
    """A bit flips after the last update, while the run evaluates: it is named, and no checkpoint appears."""
    make_tokens(BUILD, WORK / "long", "ten green bottles hanging on the wall, " * 20000, 0.9)
    log, lines, folder = WORK / "memory-end", WORK / "end.jsonl", WORK / "end"
    validate = ["--validation", WORK / "long.validation.bin", "--evaluate-sequences", 40000]
    for _ in range(5):  # until it is hit behind the last update, not before
        for file in (lines, Path(f"{log}.2")):
            file.unlink(missing_ok=True)
        words = command("--steps", 3, *validate, "--save", folder, "--metrics", lines, ranks=4)
        process = start(words, shimmed(MEMORY_LOG=log))
        if not until(lambda: steps_written(lines) >= 2 and 2 in ranks_of(process)):
            return check(False, f"a run of four ranks: {end(process, 1)[-400:]}")
        time.sleep(0.5)  # the third line follows the evaluation, of some seconds
        flip_bit(ranks_of(process)[2], arenas_of(log)[0] + 4 * 7680 + 2)
        text = end(process)
        named = "[rank 2]" in text and "read other master weights" in text
        check(process.returncode == 1 and named, f"named: {process.returncode} {text[-400:]}")
        check(not checkpoints(folder), f"no checkpoint: {checkpoints(folder)}")
        if "step 3, after its end, read other" in text:
            return
    check(False, "no flip was hit behind the last update")


def until_60(name):
    """Options of a run that may stop early: its rate falls as if it went on to step 60."""
    rates = ["--decay-tokens", 60 * 8 * 16, "--warmup-tokens", 0]
    return [*rates, "--save-every", 10, "--save", WORK / name, "--metrics", WORK / f"{name}.jsonl"]


def spikes():
    """A non-finite loss changes nothing: stop, skip, back; the metrics stay JSON that a restart accepts."""
    steps = ["--steps", 60, "--save-every", 10, "--save"]
    r = run(command(*steps, "plain", "--metrics", "plain.jsonl"))
    check(r.returncode == 0, f"undisturbed: {r.stderr[-300:]}")
    plain = metrics(WORK / "plain.jsonl")

    # a NaN in the newest checkpoint, with right sums
    for way in ("stop", "back"):
        name = f"nan-{way}"
        r = run(command("--steps", 30, *until_60(name)))
        unhurt = metrics(WORK / f"{name}.jsonl")
        damage_checkpoint(WORK / name / "step-00000030")
        words = command("--steps", 40, "--on-spike", way, "--resume", WORK / name, *until_60(name))

        r = run(words)
        if way == "stop":
            check(
                r.returncode == 3 and "step 31: loss nan" in r.stderr,
                f"stop: {r.returncode} {r.stderr[-300:]}",
            )
            check(metrics(WORK / "nan-stop.jsonl")[31] == (None, None), "the metrics say null")
            r = run([*words, "--resume-before", "30"])

        check(r.returncode == 0, f"{way}: {r.returncode} {r.stderr[-300:]}")
        after = metrics(WORK / f"nan-{way}.jsonl")
        check(
            max(after) == 40 and all(after[s] == unhurt[s] for s in unhurt),
            f"{way}: goes on behind step 20",
        )
        check(
            (WORK / name / "diverged-step-00000030/index.json").exists(),
            f"{way}: the wrong one is set aside",
        )

    # a z-score: the losses of this text never spike, unless nearly everything is one
    r = run(command(*steps, "z", "--metrics", "z.jsonl", "--on-spike", "skip", "--spike-z", 0.001))
    lines = json_lines(WORK / "z.jsonl")
    check(r.returncode in (0, 3), f"skip: {r.returncode} {r.stderr[-300:]}")
    left_out = [line["step"] for line in lines if line.get("updated") is False]
    check(left_out and min(left_out) > 30 and "its update is skipped" in r.stderr, f"skip: {left_out[:5]}")
    same = [line["step"] for line in lines if plain[line["step"]] == (line["loss"], line["gradient_norm"])]
    check(
        same == list(range(1, left_out[0] + 1)),
        f"up to the first that is left out all is as before: {same[-3:]}",
    )
    # the statistics of usual losses are the run's: stopped and resumed, it skips the same steps
    skip = ["--on-spike", "skip", "--spike-z", 0.2]
    ran = [run(command("--steps", 50, *skip, *until_60("at-once")))]
    ran.append(run(command("--steps", 35, *skip, *until_60("in-two"))))
    ran.append(run(command("--steps", 50, *skip, *until_60("in-two"), "--resume", WORK / "in-two")))
    at_once, in_two = (
        [(line["step"], line["loss"], line.get("updated")) for line in json_lines(WORK / f"{name}.jsonl")]
        for name in ("at-once", "in-two")
    )
    left_out = [step for step, _, updated in at_once if updated is False]
    codes = [r.returncode for r in ran]
    check(codes == [0, 0, 0] and left_out and max(left_out) > 35, f"skip: {codes}, left out {left_out}")
    shutil.copytree(WORK / "plain", WORK / "nan-skip")
    damage_checkpoint(WORK / "nan-skip/step-00000060")
    r = run(command("--steps", 80, "--on-spike", "skip", "--resume", "nan-skip"))
    said = r.stderr.count("its update is skipped")
    check(r.returncode == 3 and said == 10, f"no more than 10 in a row: {r.returncode}, {said} {r.stderr}")
    check(at_once == in_two, f"resumed, the same are left out: {at_once[30:]} {in_two[30:]}")

    # back in a batch ramp: what is taken again are larger steps, and the run ends where it should
    ramp = "--batch 64 --micro-batch 2 --ramp-start 2 --ramp-increment 2 --ramp-tokens 20000".split()
    ramp += "--until-tokens 40000 --on-spike back --spike-z 0.3 --save-every 20 --save ramp".split()
    r = run(command(*ramp, "--metrics", "ramp.jsonl", "--learning-rate", 1e-5))
    check(r.returncode == 0 and "back to the newest" in r.stderr, f"ramp: {r.returncode} {r.stderr[-300:]}")
    tokens = [line["tokens"] for line in json_lines(WORK / "ramp.jsonl")]
    check(tokens[-2] < 40000 <= tokens[-1], f"ramp: the last steps end at {tokens[-2:]} tokens of 40000")

    # what a preset decides stays, however often a run is resumed
    preset = ["--model", "350M", "--save", "preset", "--metrics", "preset.jsonl"]
    for steps, options in ((2, preset), (4, ["--resume", "preset"]), (6, ["--resume", "preset"])):
        words = command("--steps", steps, *options)
        at = words.index("--learning-rate")
        r = run(words[:at] + words[at + 2 :])
        check(r.returncode == 0, f"preset: {r.stderr[-300:]}")
        index = json.loads((WORK / f"preset/step-{steps:08d}/index.json").read_text())
        model, *rates = (index["options"][name] for name in ("model", "learning-rate", "min-learning-rate"))
        good = model == "350M" and near([float(rate) for rate in rates], [3e-4, 3e-5])
        check(good, f"preset, step {steps}: {model} {rates}")

    r = run(
        command("--steps", 61, "--save", "plain", "--resume", "plain/", "--clip", 2, "--check-every", 50)
    )

    note = "note: --clip is 2, the checkpoint was trained with 1\n"
    check(r.returncode == 0 and note in r.stdout, f"another recipe: {r.returncode} {r.stdout} {r.stderr}")


def rollbacks():
    """--on-spike back goes on with other samples, and ends the run when it would go back a fourth time to
    the same checkpoint."""
    first = run(command("--steps", 5, *until_60("again")))
    shutil.copytree(WORK / "again", WORK / "straight")
    plain = run(command("--steps", 6, *until_60("straight"), "--resume", WORK / "straight"))
    words = ["--steps", 400, *until_60("again"), "--save-every", 0, "--resume", WORK / "again"]
    r = run(command(*words, "--on-spike", "back", "--spike-z", 0.05))
    check((first.returncode, plain.returncode) == (0, 0), f"{first.stderr[-300:]} {plain.stderr[-300:]}")
    said = re.findall(r"step (\d+): .* back to the newest checkpoint before it", r.stderr)
    ends = f"rolled back: {r.returncode} {said} {r.stderr[-600:]}"
    check(r.returncode == 3 and len(said) == 3 and all(int(step) > 30 for step in said), ends)
    sixth = metrics(WORK / "straight.jsonl")[6], metrics(WORK / "again.jsonl")[6]
    check(sixth[0] != sixth[1] and sixth[1][0], f"step 6, before and after: {sixth}")
    lines = json_lines(WORK / "straight.jsonl") + json_lines(WORK / "again.jsonl")
    rates = [line["learning_rate"] for line in lines if line["step"] == 6]
    check(len(rates) == 2 and rates[0] == rates[1], f"passed-over samples do not change its rate: {rates}")
    index = json.loads((WORK / "again/step-00000005/index.json").read_text())
    check(index["step"] == 5, "the checkpoint stays")


def skipped_updates():
    """A skipped update changes nothing, and AdamW's bias correction does not count it: the update after it,
    computed here from the moments."""

    def values(step, kind):
        table_path = WORK / f"skips/step-{step:08}/rank-00000.json"
        pieces = json.loads(table_path.read_text())["pieces"]
        piece = next(p for p in pieces if p["kind"] == kind and p["tensor"] == "wpe.weight")
        data = table_path.with_suffix(".bin").read_bytes()[piece["offset"] : piece["offset"] + piece["bytes"]]
        return struct.unpack(f"{len(data) // 4}f", data)

    words = "--steps 45 --on-spike skip --spike-z 0.2 --weight-decay 0".split()
    r = run(command(*words, *until_60("skips"), "--save-every", 1, "--keep", 99))
    lines = {line["step"]: line for line in json_lines(WORK / "skips.jsonl")}
    left_out = [step for step, line in lines.items() if line.get("updated") is False]
    check(r.returncode == 0 and left_out, f"skipped: {r.returncode} {left_out} {r.stderr[-300:]}")
    updates = 0
    for step, line in lines.items():
        updates += step not in left_out
        if step < left_out[0]:
            continue
        before, after = values(step - 1, "master"), values(step, "master")
        moments = zip(values(step, "m"), values(step, "v"))
        rate, corrections = line["learning_rate"], (1 - 0.9**updates, 1 - 0.95**updates)
        moves = [rate * m / corrections[0] / ((v / corrections[1]) ** 0.5 + 1e-8) for m, v in moments]
        if step in left_out:
            check(before == after, f"step {step} is skipped, and changes nothing")
        else:
            off = max(abs(b - move - a) for b, a, move in zip(before, after, moves)) / max(map(abs, moves))
            check(off < 1e-4, f"step {step}, update {updates}: off by {off} of the largest move")


def damage_checkpoint(folder):
    """A NaN in the master weights, with right sums: ./train_gpt's own checksum, computed here."""
    table_path = next(Path(folder).glob("rank-*.json"))
    table = json.loads(table_path.read_text())
    piece = next(p for p in table["pieces"] if p["kind"] == "master" and p["tensor"] == "wte.weight")
    data_path = table_path.with_suffix(".bin")
    write_into(data_path, piece["offset"] + 4 * 40, struct.pack("f", float("nan")) * 4000)
    data = data_path.read_bytes()[piece["offset"] : piece["offset"] + piece["bytes"]]
    text = table_path.read_text().replace(piece["checksum"], f"{checksum(data):016x}")
    old = f"{checksum(table_path.read_bytes()):016x}"
    table_path.write_text(text)
    index = (Path(folder) / "index.json").read_text().replace(old, f"{checksum(text.encode()):016x}")
    body, _ = index.rsplit(',\n"checksum": ', 1)
    (Path(folder) / "index.json").write_text(f'{body},\n"checksum": "{checksum(body.encode()):016x}"}}\n')


def diverged_checkpoint():
    """The newest checkpoint leads to NaN: the launcher goes back behind it and finishes."""
    r = run(command("--steps", 30, *until_60("back")))
    unhurt = metrics(WORK / "back.jsonl")
    damage_checkpoint(WORK / "back/step-00000030")
    (WORK / "one-host").write_text("localhost\n")
    launch = ["bash", REPOSITORY / "scripts/launch_mpirun.sh", WORK / "one-host", 1, "--train", DATA, *MODEL]

    variables = dict(environment, LAUNCH_PAUSE="0.1", LAUNCH_DIR=str(BUILD))

    def launched(*options, **more):
        words = [str(word) for word in (*launch, *options, *until_60("back"))]
        return run(words, {**variables, **more})

    r = launched("--steps", 45)
    after = metrics(WORK / "back.jsonl")
    good = r.returncode == 0 and max(after) == 45 and all(after[step] == unhurt[step] for step in unhurt)
    check(good, f"back behind a NaN: {r.returncode} {r.stdout[-300:]} {r.stderr[-300:]}")
    record = json.loads((WORK / "back/launch.json").read_text())
    check([a["exit_code"] for a in record["attempts"]] == [3, 0], f"attempts {record['attempts']}")
    status = run(["bash", str(REPOSITORY / "scripts/status.sh"), str(WORK / "back")])
    wants = ("state         complete", "step          45", "checkpoint    step 45", "restarts      1")
    check(
        status.returncode == 0 and all(w in status.stdout for w in wants),
        f"status.sh: {status.stdout} {status.stderr}",
    )

    # options that are refused: one attempt
    refused = launched("--steps", 60, "--learning-rate", "nan")
    stops = "before its first step, which another attempt would not change"
    check(refused.returncode == 1 and stops in refused.stderr, f"refused: {refused.stderr[-300:]}")
    # steps, but no save succeeds: three attempts, then it stops
    fails = {"LD_PRELOAD": str(SHIM), "FAULT_RANK": "0", "FAULT_PATH": "back/.step", "PWRITE_FAILS": "99999"}
    refused = launched("--steps", 60, "--save-attempts", 1, **fails)
    stops = "3 attempts without a newer checkpoint"
    check(refused.returncode == 1 and stops in refused.stderr, f"no progress: {refused.stderr[-300:]}")


def kept_after_rollback():
    """What is saved after a rollback is progress: it is resumed from, and not set aside as well."""
    stub, folder = WORK / "stub", WORK / "stub/run"
    for step in (100, 200):
        (folder / f"step-{step:08d}").mkdir(parents=True)
        (folder / f"step-{step:08d}/index.json").write_text("{}")
    (stub / "train_gpt").write_text(
        f"""#!/bin/bash
cd {stub}
echo "$*" >> calls
case $(wc -l < calls) in
    1) echo "step 250/999  loss nan"; exit 3 ;;
    2) exit 9 ;;  # lost before it has set anything aside
    3)
        mv run/step-00000200 run/diverged-step-00000200
        mkdir run/step-00000200
        echo "{{}}" > run/step-00000200/index.json
        echo "step 240/999  loss 5"; exit 9 ;;
    *) echo "step 999/999  loss 4" ;;
esac
"""
    )
    (stub / "train_gpt").chmod(0o755)
    (stub / "hosts").write_text("localhost\n")
    words = ["bash", REPOSITORY / "scripts/launch_mpirun.sh", stub / "hosts", 1, "--save", folder]
    r = run([str(word) for word in words], dict(environment, LAUNCH_PAUSE="0.1", LAUNCH_DIR=str(stub)))
    calls = (stub / "calls").read_text().splitlines()
    rolls_back = ["--resume-before 200" in call for call in calls]
    right = r.returncode == 0 and rolls_back == [False, True, True, False]
    check(right, f"after a rollback: {r.returncode} {calls} {r.stdout[-300:]} {r.stderr[-300:]}")
