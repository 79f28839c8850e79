#!/usr/bin/env python3
"""Checks of what reads a run's metrics: compare_runs.py and to_tensorboard.py.

Usage: python3 scripts/test_metrics.py
"""

import json
import sys
import tempfile
import time
import xml.dom.minidom
from pathlib import Path

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

    # a name with "=" in it, characters that mean something in SVG, a line that is being written
    odd = work / "lr=1e-3 & <x>.jsonl"
    odd.write_text((work / "a.jsonl").read_text() + '{"step": 21, "lo')
    out = compared(odd, work / "b.jsonl", "--output", work / "two.svg")
    texts = xml.dom.minidom.parse(str(work / "two.svg")).getElementsByTagName("text")
    names = [text.firstChild.data for text in texts]
    good = out.returncode == 0 and any(name.startswith(odd.stem) for name in names)
    check(good, f"an odd name: {names} {out.stderr}")

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
        more.write('{"step": 21, "lo')  # a line that is being written
    out = limited(command, 60, cwd=ROOT)
    found = scalars_of(folder)
    names = {"tokens", "loss", "losses/a", "seconds", "tokens_per_second", "validation_loss"}
    check(out.returncode == 0 and set(found) == names, f"{set(found)} {out.stderr}")
    check(len(found["loss"]) == 20 and found["loss"][3] == (4, 1.25), f"{found.get('loss')}")
    check([step for step, _ in found["validation_loss"]] == [4, 8, 12, 16, 20], "validation")

    # a run that is going on, and then takes lines back
    follower = subprocess.Popen([*command, "--follow"], cwd=ROOT, stdout=subprocess.DEVNULL)
    for steps in (25, 10):
        metrics(file, steps)
        end = time.time() + 60
        while time.time() < end and len(scalars_of(folder).get("loss", [])) != steps:
            time.sleep(0.5)
        check(len(scalars_of(folder)["loss"]) == steps, f"following: {steps} steps")

    check(theirs.exists(), "another program's events stay")
    follower.terminate()
    follower.wait()
    file.write_text("[1]\n")
    out = limited(command, 60, cwd=ROOT)
    check(out.returncode == 1 and "is it a file of" in out.stderr, f"no metrics: {out.stderr}")


def main():
    for test in (test_compare_runs, test_tensorboard):
        with tempfile.TemporaryDirectory() as work:
            test(Path(work))
    finish()


main()
