#!/usr/bin/env python3
"""Draws the losses of one or several runs over one another, and prints how each ended and how fast it went.

Usage: python3 scripts/compare_runs.py [--by tokens|steps|seconds] [--output OUT.svg] [NAME=]METRICS.jsonl …

METRICS.jsonl is what train_gpt --metrics writes: step, tokens, seconds, loss and sometimes validation_loss.
For one file, draws training and validation losses; for several, training losses averaged over a few steps,
with each run's last validation loss next to its name.
"""

import argparse
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path

from charts import LINES, Curve, line_chart, write


@dataclass
class Metrics:
    name: str
    train: list  # (x, loss)
    held: list  # (x, validation loss)
    steps: int
    tokens: int
    seconds: float
    pace: float  # tokens per second, over all steps but the first
    last: str  # the last step's loss


def read(argument, by):
    """A run, its curves by tokens, steps or seconds. argument: [NAME=]FILE."""
    name, _, path = ("", "", argument) if Path(argument).is_file() else argument.rpartition("=")
    try:
        whole = Path(path).read_bytes()  # the run may be writing the last line
        lines = [json.loads(line) for line in whole[: whole.rfind(b"\n") + 1].split(b"\n")[:-1]]
        clock, train, held = 0.0, [], []
        for line in lines:
            clock += line["seconds"]
            x = {"tokens": line["tokens"], "steps": line["step"], "seconds": clock}[by]
            if line["loss"] is not None and math.isfinite(line["loss"]):
                train.append((x, line["loss"]))
            if line.get("validation_loss") is not None:
                held.append((x, line["validation_loss"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.exit(f"compare_runs.py: {path}: {error}: is it a file of train_gpt --metrics?")

    if not train:
        sys.exit(f"compare_runs.py: {path}: has no line with a loss")
    after = lines[1:] or lines
    tokens = lines[-1]["tokens"] - (lines[0]["tokens"] if len(lines) > 1 else 0)
    pace = tokens / max(sum(line["seconds"] for line in after), 1e-9)
    last = f"{train[-1][1]:.4f}" if lines[-1]["loss"] is not None else "not finite"
    return Metrics(
        name or Path(path).stem, train, held, lines[-1]["step"], lines[-1]["tokens"], clock, pace, last
    )  # fmt: skip


def smooth(points, parts=100):
    size = max(1, len(points) // parts)
    groups = [points[i : i + size] for i in range(0, len(points), size)]
    return [tuple(sum(p[k] for p in g) / len(g) for k in (0, 1)) for g in groups]


def curves_of(runs):
    if len(runs) > 1:
        return [
            Curve(
                run.name + (f" (validation {run.held[-1][1]:.3f})" if run.held else ""),
                LINES[i % len(LINES)], 1.2, smooth(run.train),
            )
            for i, run in enumerate(runs)
        ]  # fmt: skip
    curves = [Curve("training", "#4878cf", 1.2, runs[0].train)]
    if runs[0].held:
        said = f"validation ({runs[0].held[-1][1]:.3f} at the end)"
        curves.append(Curve(said, "#d1495b", 2, runs[0].held))
    return curves


def drawn(curves, by):
    last = max(x for curve in curves for x, _ in curve.points)
    unit, said = 1, by
    if by == "tokens":
        unit, said = (1e6, "million tokens") if last >= 3e6 else (1e3, "thousand tokens")
    for curve in curves:
        curve.points = [(x / unit, y) for x, y in curve.points]
    low = math.floor(2 * min(y for curve in curves for _, y in curve.points)) / 2
    return line_chart(curves, said, "loss, nats per token", low)


def table(runs):
    wide = max(len(run.name) for run in runs)
    lines = [f"{'run':{wide}s}    steps        tokens    seconds   tokens/s      loss  validation"]
    for run in runs:
        held = f"{run.held[-1][1]:.4f}" if run.held else "-"
        lines.append(
            f"{run.name:{wide}s} {run.steps:8,d} {run.tokens:13,d} {run.seconds:10.1f} {run.pace:10,.0f}"
            f" {run.last:>9s} {held:>11s}"
        )
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+", metavar="[NAME=]METRICS.jsonl")
    parser.add_argument("--by", choices=("tokens", "steps", "seconds"), default="tokens")
    parser.add_argument("--output", type=Path, help="SVG to write (default: the table alone)")
    options = parser.parse_args()
    runs = [read(file, options.by) for file in options.files]
    if len({run.name for run in runs}) < len(runs):  # files of the same name: show their paths
        for run, file in zip(runs, options.files):
            run.name = file.rpartition("=")[0] or file
    print(table(runs))
    if options.output:
        write(options.output, drawn(curves_of(runs), options.by))
        print(f"curves: {options.output}")


if __name__ == "__main__":
    main()
