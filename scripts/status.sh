#!/usr/bin/env bash
# The status of a run, for somebody who did not start it: step, loss, pace, checkpoint, restarts, slow ranks.
#   bash scripts/status.sh RUN          RUN is the --save folder of a run
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '2,3s/^# //p' "$0"; exit ;; esac
[ $# = 1 ] || { sed -n '2,3s/^# //p' "$0"; exit 1; }
exec python3 -I - "$1" << 'PYTHON'
import json
import os
import sys
import time
from pathlib import Path


def read(file):
    try:
        return json.loads(file.read_text(errors="replace"))
    except (OSError, ValueError) as error:
        sys.exit(f"status.sh: {file}: cannot be read: {error}")


def whole(text):
    """Lines of metrics that are whole: the run may be writing the last one."""
    for line in text.splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            pass


def metrics_of_newest():
    """As the newest checkpoint's run had them; none where it cannot be read, as while it is set aside."""
    try:
        return json.loads(saved[-1].read_text())["options"]["metrics"]
    except (OSError, ValueError, LookupError, TypeError):
        return ""


run = Path(sys.argv[1])
saved = sorted(file for file in run.glob("step-*/index.json") if file.parent.name[5:].isdigit())
record = {"metrics": "", "attempts": []}
if (run / "launch.json").is_file():
    record = read(run / "launch.json")
    if not isinstance(record, dict) or not isinstance(record.get("attempts"), list):
        sys.exit(f"status.sh: {run / 'launch.json'}: expected what launch.py writes")
elif not saved:
    inside = sorted({file.parent.parent for file in run.glob("*/step-*/index.json")})
    hint = f": did you mean {inside[0]}?" if inside else ": give the --save folder of a run"
    sys.exit(f"status.sh: {run}: has neither launch.json nor a checkpoint{hint}")
attempts = record["attempts"]
now, last = time.time(), attempts[-1] if attempts else None
lines = []
# the metrics, by its launcher and by its newest checkpoint: whichever has been written to last. A relative
# name starts from the folder in which the run was started: most likely the parent of its folder
named = [Path(name) for name in (record.get("metrics"), metrics_of_newest()) if name]
found = [file for name in named for file in (run.resolve().parent / name, name) if file.is_file()]
found.sort(key=lambda file: -file.stat().st_mtime)
if found:
    lines = list(whole(found[0].read_text(errors="replace")))


def held(since=0):
    """Who holds the folder: a run touches its lock every five seconds (folder_lock.h)."""
    lock = run / ".lock"
    beats = lock.is_file() and lock.stat().st_mtime > max(since, now - 15)
    holder = lock.read_text().strip() if beats else ""  # a run that ends empties it
    return f"running: {holder}" if holder else "not running"


def show(name, value):
    print(f"{name:13s} {value}")


# the last attempt has ended, and somebody has gone on without the launcher
goes_on = bool(last) and "ended" in last and (
    held(last["ended"] + 15) != "not running" or (saved and saved[-1].stat().st_mtime > last["ended"] + 60))
gone = bool(last) and record["host"] == os.uname().nodename and not Path(f"/proc/{record['pid']}").exists()
if not last or goes_on:
    show("state", held())
elif "ended" in last:
    complete = "complete" if last["exit_code"] == 0 else f"ended with {last['exit_code']}"
    how = "stopped by a signal" if last.get("was_stopped") else complete
    waits = now < last.get("again_at", 0) + 60 and not gone  # a minute: for hosts to be checked
    again = "; its launcher waits to start it again" if waits else ""
    show("state", f"{how}, {(now - last['ended']) / 60:.0f} minutes ago{again}")
else:
    hours = (now - last["began"]) / 3600
    state = f"started {hours:.1f} h ago, but its launcher is gone" if gone else f"running for {hours:.1f} h"
    show("state", f"{state}; {len(last['hosts'])} hosts, {last['ranks']} ranks")
if lines:
    newest = lines[-1]
    age = now - found[0].stat().st_mtime
    loss = f"{newest['loss']:.4f}" if newest["loss"] is not None else "not finite"
    show("step", f"{newest['step']}, {age:.0f} s ago; loss {loss}, by {found[0]}")
    some = lines[-21:]
    seconds = sum(line["seconds"] for line in some[1:]) or newest["seconds"] or 1e-9
    tokens = some[-1]["tokens"] - some[0]["tokens"] if len(some) > 1 else newest["tokens"]
    over = f"the last {len(some) - 1} steps" if len(some) > 1 else "the first step"
    each = seconds / max(1, len(some) - 1)
    show("pace", f"{each:.3g} s a step, {tokens / seconds:,.0f} tokens/s over {over}")
    left_out = [line["step"] for line in lines if line.get("updated") is False]
    if left_out:
        show("spikes", f"{len(left_out)}, the last at step {left_out[-1]}")
    slow = sorted({rank for line in lines[-20:] for rank in line.get("slow_ranks", [])})
    show("slow ranks", ", ".join(map(str, slow)) or "none in the last 20 steps")
else:
    # it may have been started in another folder
    why = f"there is no {named[0]} here" if named else "the run writes no --metrics"
    why = f"{found[0]} has no step yet" if found else why
    show("step", f"not known: {why}")
if saved:
    age = (now - saved[-1].stat().st_mtime) / 60
    show("checkpoint", f"step {int(saved[-1].parent.name[5:])}, {age:.0f} minutes ago; {len(saved)} are kept")
if attempts:
    show("restarts", f"{len(attempts) - 1}")
for attempt in attempts[:-1][-5:]:
    lost = f", lost on {' '.join(attempt['lost_on'])}" if attempt["lost_on"] else ""
    show("", f"ended with {attempt['exit_code']} at checkpoint {attempt['to_step']}{lost}")
if (run / "excluded-hosts").is_file():
    for line in (run / "excluded-hosts").read_text().splitlines():
        show("excluded", line)
PYTHON
