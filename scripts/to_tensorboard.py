#!/usr/bin/env python3
"""Converts the metrics of a run to TensorBoard's event files; can follow a run in progress.

Usage: python3 scripts/to_tensorboard.py [--follow] METRICS.jsonl FOLDER
       tensorboard --logdir FOLDER

Every number of a line (train_gpt --metrics) becomes a scalar at that line's step; the losses of the sets of a
blend become losses/SET. With --follow it waits for more lines until Ctrl-C. When a run resumes from a
checkpoint, later lines of its metrics are dropped: the event file is then rewritten. Needs the package
tensorboard, from PyPI.
"""

import argparse
import json
import math
import sys
import time
from pathlib import Path

try:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter
except ImportError:
    sys.exit("to_tensorboard.py: package tensorboard is not installed: python3 -m pip install tensorboard")


SUFFIX = ".train_gpt"


def scalars(line):
    """(name, value) of a line's finite numbers."""
    for key, value in line.items():
        if isinstance(value, dict):
            yield from ((f"{key}/{name}", v) for name, v in scalars(value))
        elif isinstance(value, (int, float)) and math.isfinite(value) and key != "step":
            yield key, float(value)


class Events:
    """The event file of one metrics file; begun anew where its lines were taken back."""

    def __init__(self, folder):
        self.folder, self.writer, self.lines = folder, None, []

    def restart(self):
        if self.writer:
            self.writer.close()
        for old in self.folder.glob(f"events.out.tfevents.*{SUFFIX}"):  # those of other programs stay
            old.unlink()
        self.writer, self.lines = EventFileWriter(str(self.folder), filename_suffix=SUFFIX), []

    def update(self, lines):
        """All of the file's whole lines, as text."""
        if self.writer is None or lines[: len(self.lines)] != self.lines:
            self.restart()
        for number, text in enumerate(lines[len(self.lines) :], len(self.lines) + 1):
            try:
                line = json.loads(text)
                values = [Summary.Value(tag=name, simple_value=v) for name, v in scalars(line)]
                event = Event(wall_time=time.time(), step=line["step"], summary=Summary(value=values))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                sys.exit(f"to_tensorboard.py: line {number}: {error}: is it a file of train_gpt --metrics?")
            self.writer.add_event(event)
        self.lines = lines
        self.writer.flush()


def whole_lines(file):
    try:
        whole = file.read_bytes()  # the run may be writing the last line, or half of a character
    except OSError as error:
        sys.exit(f"to_tensorboard.py: {file}: {error.strerror}")
    return whole[: whole.rfind(b"\n") + 1].decode("utf8", "replace").split("\n")[:-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("metrics", type=Path, metavar="METRICS.jsonl")
    parser.add_argument("folder", type=Path, help="of the event files, one folder a run")
    parser.add_argument("--follow", action="store_true", help="wait for more lines until Ctrl-C")
    options = parser.parse_args()
    lines = whole_lines(options.metrics)
    options.folder.mkdir(parents=True, exist_ok=True)
    events = Events(options.folder)
    events.update(lines)
    try:
        while options.follow:
            time.sleep(1)
            events.update(whole_lines(options.metrics))
    except KeyboardInterrupt:
        pass
    events.writer.close()
    print(f"{len(events.lines)} lines are in {options.folder}")


main()
