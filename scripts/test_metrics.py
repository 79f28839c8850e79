#!/usr/bin/env python3
"""Checks of what reads a run's metrics: compare_runs.py, to_tensorboard.py and status.sh.

Usage: python3 scripts/test_metrics.py
"""

import json
import os
import re
import sys
import tempfile
import time
import xml.dom.minidom
from pathlib import Path

import charts
import compare_runs
from over_ranks import check, finish, limited

ROOT = Path(__file__).resolve().parent.parent


def metrics(file, steps, start=5.0):
    lines = []
    for i in range(1, steps + 1):
        line = {"step": i, "tokens": 64 * i, "loss": start / i, "losses": {"a": start / i, "b": None}}
        line |= {"seconds": 0.5, "tokens_per_second": 100.0 + i}
        if i % 4 == 0:
            line["validation_loss"] = start / i + 1
        lines.append(line)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def compared(*arguments):
    return limited([sys.executable, "scripts/compare_runs.py", *arguments], 60, cwd=ROOT)


def test_compare_runs(work):
    metrics(work / "a.jsonl", 20)
    metrics(work / "b.jsonl", 8, 6.0)
    out = compared(f"first={work}/a.jsonl", work / "b.jsonl", "--output", work / "two.svg")
    rows = [line.split() for line in out.stdout.splitlines()[1:]]
    want = [
        ["first", "20", "1,280", "10.0", "128", "0.2500", "1.2500"],
        ["b", "8", "512", "4.0", "128", "0.7500"],
    ]
    check(rows[0] == want[0] and rows[1][:6] == want[1], f"the table: {out.stdout}{out.stderr}")

    for by in ("tokens", "steps", "seconds"):
        out = compared(work / "a.jsonl", work / "b.jsonl", "--by", by, "--output", work / "two.svg")
        drawing = xml.dom.minidom.parse(str(work / "two.svg"))
        curves = [p for p in drawing.getElementsByTagName("path") if p.getAttribute("fill") == "none"]
        ends = [float(p.getAttribute("d").split("L")[-1].split()[0]) for p in curves]
        check(out.returncode == 0 and len(ends) == 2 and ends[0] == 700, f"by {by}: {ends}")
        check(abs(ends[1] - (60 + 640 * 8 / 20)) < 0.1, f"by {by}: eight of twenty steps end at {ends[1]}")

    # a file of another kind is not replaced, its own metrics for instance
    before = (work / "a.jsonl").read_text()
    panel = {"title": "", "seconds": 1, "micro_batches": 1, "chunks": 1, "rows": ["a"]}
    panel["spans"] = [["forward", 0, 0, 0, 0, 1]]
    for command in (["compare_runs.py", work / "a.jsonl", "--output", work / "a.jsonl"],
                    ["draw.py", "timeline", work / "spans.json", work / "a.jsonl"]):  # fmt: skip
        (work / "spans.json").write_text(json.dumps({"timelines": [panel]}))
        out = limited([sys.executable, f"scripts/{command[0]}", *command[1:]], 60, cwd=ROOT)
        check(out.returncode == 1 and "is no SVG" in out.stderr, f"{command[0]}: {out.stderr}")
        check((work / "a.jsonl").read_text() == before, f"{command[0]} replaced a file")

    # a name with "=" in it, characters that mean something in SVG, a line that is being written
    odd = work / "lr=1e-3 & <x>.jsonl"
    odd.write_text((work / "a.jsonl").read_text() + '{"step": 21, "lo')
    out = compared(odd, work / "b.jsonl", "--output", work / "two.svg")
    texts = xml.dom.minidom.parse(str(work / "two.svg")).getElementsByTagName("text")
    names = [text.firstChild.data for text in texts]
    good = out.returncode == 0 and f"{odd.stem} (validation 1.250)" in names
    check(good, f"an odd name: {names} {out.stderr}")

    # two files of one name; a run of one step, another whose last loss is none
    other = work / "other/a.jsonl"
    other.parent.mkdir()
    metrics(other, 1)
    whole, none = (work / "a.jsonl").read_text(), {"step": 21, "tokens": 1344, "seconds": 1, "loss": None}
    (work / "lost.jsonl").write_text(whole + json.dumps(none) + "\n")
    out = compared(work / "a.jsonl", other, f"end={work}/lost.jsonl")
    rows = [line.split() for line in out.stdout.splitlines()[1:]]
    check([row[0] for row in rows] == [f"{work}/a.jsonl", str(other), "end"], f"names: {out.stdout}")
    check(rows[1][4] == "128" and rows[2][5:7] == ["not", "finite"], f"one step; no loss: {out.stdout}")

    # means of three steps, the last of fewer; axes
    metrics(work / "long.jsonl", 301)
    metrics(work / "b.jsonl", 150)
    names = [work / "long.jsonl", work / "b.jsonl", "--by", "steps"]
    out = compared(*names, "--output", work / "two.svg")
    drawing = xml.dom.minidom.parse(str(work / "two.svg"))
    curves = [p for p in drawing.getElementsByTagName("path") if p.getAttribute("fill") == "none"]
    end = float(curves[1].getAttribute("d").split("L")[-1].split()[0])
    check(abs(end - (60 + 640 * 150 / 301)) < 0.1, f"the last steps are drawn: {end} {out.stderr}")
    check(charts.ticks(0, 6) == list(range(7)), "ticks to the end")
    for last, unit, said in ((2.9e6, 2900, "thousand tokens"), (3e6, 3, "million tokens")):
        curve = charts.Curve("a", "#000", 1, [(0, 3.0), (last, 2.3)])
        drawing = compare_runs.drawn([curve], "tokens")
        check(said in drawing and abs(curve.points[1][0] - unit) < 1e-6, f"the unit of {last:g} tokens")
        y = float(re.search(r'd="M[^"]*L\S+ (\S+)"', drawing)[1])
        check(abs(y - (36 + 316 * 0.7)) < 0.1, f"2.3 between 3 above and 2 below: {y}")

    for text, says in (
        ("{\n", "is it a file of"),
        ("", "no line with a loss"),
        ('{"step": 1}\n', "is it a file of"),
    ):
        (work / "bad.jsonl").write_text(text)
        out = compared(work / "bad.jsonl")
        check(out.returncode == 1 and says in out.stderr, f"{text!r}: {out.stderr}")

    check(compared(work / "none.jsonl").returncode == 1, "no such file")


def scalars_of(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder))
    read.Reload()
    return {tag: [(e.step, e.value) for e in read.Scalars(tag)] for tag in read.Tags()["scalars"]}


def test_tensorboard(work):
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        print("the package tensorboard is not here: to_tensorboard.py was not checked")
        return

    import subprocess

    file, folder = work / "run.jsonl", work / "events"
    command = [sys.executable, "scripts/to_tensorboard.py", str(file), str(folder)]
    metrics(file, 20)
    folder.mkdir()
    theirs = folder / "events.out.tfevents.1.somebody"
    theirs.write_bytes(b"")
    with file.open("a") as more:
        more.write('{"step": 20, "norm": NaN}\n{"step": 21, "lo')  # a line that is being written
    out = limited(command, 60, cwd=ROOT)
    found = scalars_of(folder)
    names = {"tokens", "loss", "losses/a", "seconds", "tokens_per_second", "validation_loss"}
    check(out.returncode == 0 and set(found) == names, f"{set(found)} {out.stderr}")
    check(len(found["loss"]) == 20 and found["loss"][3] == (4, 1.25), f"{found.get('loss')}")
    check([step for step, _ in found["validation_loss"]] == [4, 8, 12, 16, 20], "validation")

    # a run that is going on, and then takes lines back
    follower = subprocess.Popen([*command, "--follow"], cwd=ROOT, stdout=subprocess.DEVNULL)
    for steps, first in ((25, 5.0), (10, 5.0), (10, 7.0)):
        metrics(file, steps, first)
        end, losses = time.time() + 60, []
        while time.time() < end and (len(losses) != steps or losses[0][1] != first):
            time.sleep(0.5)
            losses = scalars_of(folder).get("loss", [])
        check(len(losses) == steps and losses[0][1] == first, f"following: {steps} steps from {first}")

    check(theirs.exists(), "another program's events stay")
    follower.terminate()
    follower.wait()
    file.write_text("[1]\n")
    out = limited(command, 60, cwd=ROOT)
    check(out.returncode == 1 and "is it a file of" in out.stderr, f"no metrics: {out.stderr}")


def test_status(work):
    """status.sh of a run that has been started eight times, on another host."""
    run, now = work / "run", time.time()
    for step in (10, 20):
        (run / f"step-{step:08d}").mkdir(parents=True)
        (run / f"step-{step:08d}/index.json").write_text("{}")
    lines = [{"step": i, "tokens": 64 * i, "seconds": 0.5, "loss": 5 / i} for i in range(1, 31)]
    lines[9] |= {"seconds": 9, "slow_ranks": [2]}  # before the last 20 steps
    lines[10] |= {"slow_ranks": [3]}
    lines[4]["updated"] = lines[6]["updated"] = False
    (work / "run.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 31, "lo')
    lost = [
        {"began": now - 9000, "ended": now - 8000, "exit_code": i, "to_step": 10, "lost_on": ["h1", "h2"][:i]}
        for i in range(7)
    ]
    last = {"began": now - 7200, "hosts": ["a", "b"], "ranks": 4, "lost_on": []}
    record = {"host": "elsewhere", "pid": 1 << 30, "metrics": "run.jsonl", "attempts": [*lost, last]}

    def shown():
        (run / "launch.json").write_text(json.dumps(record))
        out = limited(["bash", "scripts/status.sh", run], 60, cwd=ROOT)
        return [" ".join(line.split()) for line in out.stdout.splitlines()]

    told = shown()
    for says in (
        "state running for 2.0 h; 2 hosts, 4 ranks",
        "pace 0.5 s a step, 128 tokens/s over the last 20 steps",
        "spikes 2, the last at step 7",
        "slow ranks 3",
        "checkpoint step 20, 0 minutes ago; 2 are kept",
        "restarts 7",
        "ended with 2 at checkpoint 10, lost on h1 h2",
    ):
        check(says in told, f"status.sh does not say {says}: {told}")
    check(any(line.startswith("step 30, ") and "loss 0.1667, by " in line for line in told), f"{told}")
    check(sum(line.startswith("ended with ") for line in told) == 5, f"the last five losses: {told}")
    record["attempts"][-1] |= {"ended": now - 600, "exit_code": 0}
    newest = run / "step-00000020/index.json"
    newest.write_text(json.dumps({"options": {"metrics": str(work / "other.jsonl")}}))
    os.utime(newest, (now - 700, now - 700))
    check("state complete, 10 minutes ago" in shown(), f"a run that is complete: {shown()}")

    # somebody goes on without the launcher, with other metrics
    (run / ".lock").write_text("process 7 on elsewhere\n")
    (work / "other.jsonl").write_text('{"step": 77, "tokens": 64, "seconds": 0.5, "loss": 1}\n')
    os.utime(work / "run.jsonl", (now - 600, now - 600))
    told = shown()
    check("state running: process 7 on elsewhere" in told, f"a run without its launcher: {told}")
    check(any(line.startswith("step 77, ") for line in told), f"its own metrics: {told}")
    (run / ".lock").unlink()
    os.utime(newest, (now, now))
    check("state not running" in shown(), f"a newer checkpoint, and nobody there: {shown()}")
    os.utime(newest, (now - 700, now - 700))

    # between two attempts, until the pause is over; on this host, while the launcher (here: we) lives
    here, ended = os.uname().nodename, "state ended with 1, 10 minutes ago"
    for host, pid, seconds, waits in (
        ("elsewhere", 1 << 30, 600, True), ("elsewhere", 1 << 30, -600, False),
        (here, os.getpid(), 600, True), (here, os.getpid(), -600, False), (here, 1 << 30, 600, False),
    ):  # fmt: skip
        record |= {"host": host, "pid": pid}
        record["attempts"][-1] |= {"exit_code": 1, "again_at": now + seconds}
        wants = ended + "; its launcher waits to start it again" * waits
        check(shown()[0] == wants, f"{host} {pid} {seconds}: {shown()}")


def main():
    for test in (test_compare_runs, test_tensorboard, test_status):
        with tempfile.TemporaryDirectory() as work:
            test(Path(work))
    finish()


main()
