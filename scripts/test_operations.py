#!/usr/bin/env python3
"""Checks what operations declare: whatever a trace shows is recorded, in the schedule's order and with right
values; the plan has the same operations; a layer that is added to a block needs no code in the plan.
Usage: test_operations.py BUILD EMULATED_BUILD"""

import json
import math
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from over_ranks import check, copy_tree, environment, finish, limited, start, words

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts/tour"))

import operations  # noqa: E402

BUILD, EMULATED = Path(sys.argv[1]), Path(sys.argv[2])
MODEL = {
    "layers": 4, "hidden": 32, "heads": 2, "sequence": 16, "batch": 8, "micro-batch": 2, "steps": 3,
    "attention": "materialised", "graph": "no",
}  # fmt: skip


SECTION = re.compile(r"(forward|backward|message|reduce|gather|update|step)( \d+)?$")


def train(work, ranks, options, build=BUILD):
    data = {"train": work / "data.train.bin"}
    return start(str(build / "train_gpt"), ranks, words({**data, **MODEL, **options}), timeout=300)


def planned_operations(ranks, options):
    """By stage: name -> calls, flops, bytes."""
    plan = {"world-size": ranks, "hardware": "here", "plan-json": "-", "vocabulary": "257"}
    out = start(str(BUILD / "train_gpt"), 1, ["--plan", *words({**plan, **MODEL, **options})])
    check(out.stdout.startswith("{"), f"a plan: {out.stderr[-300:]}")
    return [stage["operations"] for stage in json.loads(out.stdout)["stages"]]


def prepare(work):
    lines = (f"{i} green bottles hanging on the wall, {i * i} of them.\n" for i in range(3000))
    (work / "data.txt").write_text("".join(lines))
    options = {"vocabulary": "bytes", "validation": 0.1, "output": work / "data"}
    out = start(str(BUILD / "tokenize"), 1, [*words(options), str(work / "data.txt")])
    check(out.returncode == 0, f"tokenize: {out.stderr}")


def spelt(operation):
    """How the line that runs an operation names it: by its struct, a function of its name or, for the steps
    of cross-entropy, the variable `loss` that makes them."""
    struct = operations.declared()[operation][1]
    return rf"\b({struct}|{operation}|{'loss' if struct.startswith('CrossEntropy') else struct})\b"


def named(line):
    """How a trace names the operation in a line of a record."""
    label = line.get("label", "")
    if line["kind"] == "compute":
        return line["name"]
    return f"wait: {label}" if line["kind"] == "wait" else f"{line['name']}: {label}"


def check_all_reduce(lines):
    """Tensor-parallel sums: what all ranks have afterwards is the sum of what each had."""
    calls = {}
    for line in lines:
        if line["name"] == "all_reduce" and line.get("group") == "tensor":
            place = (line.get("micro_batch"), line.get("layer"), line["pass"])
            key = (tuple(line["ranks"]), line["label"], *place)
            calls.setdefault(key, []).append(line["tensors"][0])

    checked = 0
    for (ranks, label, *_), tensors in calls.items():
        if label == "largest logit" or "values" not in tensors[0] or len(tensors) != len(ranks):
            continue
        sums = [sum(t["before"][i] for t in tensors) for i in range(len(tensors[0]["values"]))]
        after = all(
            math.isclose(x, y, rel_tol=1e-5, abs_tol=1e-7)
            for t in tensors
            for x, y in zip(t["values"], sums, strict=True)
        )
        check(after, f"{label}: all ranks have the sum of their parts")
        checked += 1

    check(checked > 20, f"{checked} sums were there to be checked")


def check_record(work):
    for name, ranks, layout in (
        ("2 x 2 x 2", 8, {"tensor-parallel": 2, "pipeline-parallel": 2, "sequence-parallel": "no"}),
        ("interleaved", 4, {"pipeline-parallel": 2, "pipeline-chunks": 2}),
        ("one process", 1, {}),
    ):
        trace, record = work / "trace.json", work / "record.jsonl"
        files = {"trace": trace, "record": record, "record-values": 4096}
        out = train(work, ranks, {**layout, **files})
        check(out.returncode == 0, f"{name}: {out.stderr[-300:]}")
        if out.returncode:
            continue
        check("plan and run are equal" in out.stdout, f"{name}: plan and run")
        lines = [json.loads(line) for line in record.read_text().splitlines()][1:]
        check({line["rank"] for line in lines} == set(range(ranks)), f"{name}: all ranks are recorded")
        t, p = layout.get("tensor-parallel", 1), layout.get("pipeline-parallel", 1)
        d = ranks // (t * p)

        shown, whole = {}, 0
        for event in json.loads(trace.read_text())["traceEvents"]:
            if event["name"] == "step":
                whole = event["dur"] * 1.1
            elif event["ph"] == "X" and event["pid"] < 100000:
                shown.setdefault(event["pid"], []).append(event)

        for row, events in shown.items():
            rank = row % t + t * d * (row // t)
            # a comm stream that waits for the computations takes no time that is known
            its = [x for x in lines if x["rank"] == rank and x.get("label") != "computations"]
            recorded = sorted(map(named, its))
            traced = sorted(e["name"] for e in events if not SECTION.match(e["name"]))
            check(recorded == traced, f"{name}, rank {rank}: {len(recorded)} recorded, {len(traced)} traced")
            check(all(e["dur"] >= 0 for e in events), f"{name}, rank {rank}: nothing ends before it begins")
            inside = all(-1 <= e["ts"] <= whole for e in events)
            check(inside, f"{name}, rank {rank}: all begins within the step")

        check(len(shown) == t * p, f"{name}: a row for each rank of a replica")
        for file, at, what in {(x["file"], x["line"], x["name"]) for x in lines if x["kind"] == "compute"}:
            line = (ROOT / file).read_text().splitlines()[at - 1]
            check(re.search(spelt(what), line), f"{file}:{at} runs {what}: {line}")
        planned = planned_operations(ranks, layout)

        for rank in range(ranks):
            done = {}
            for line in lines:
                if line["rank"] == rank and line["kind"] == "compute":
                    o = done.setdefault(line["name"], {"calls": 0, "flops": 0, "bytes": 0})
                    for key, value in (("calls", 1), ("flops", line["flops"]), ("bytes", line["bytes"])):
                        o[key] += value
            of_stage = dict(planned[rank // (t * d)])
            if rank % t:  # the plan is tensor rank 0's, which alone sums the losses
                of_stage.pop("sum_values", None)
            check(done == of_stage, f"{name}, rank {rank}: did {done}, planned {of_stage}")

        if name == "2 x 2 x 2":
            check_messages(shown, t)
        out = start(str(BUILD / "test_gpt"), 1, ["check-record", str(record)])
        last = out.stdout.splitlines()[-1] if out.stdout else out.stderr
        check(re.fullmatch(r"\d+ passed, 0 failed", last), f"{name}: {last}")

        if t > 1:
            if layout.get("sequence-parallel") == "no":  # else they are in groups, or beside computations
                check_all_reduce(lines)
            check_picture(work, name, ranks, layout)


def check_messages(shown, t):
    """A receive ends after the rank that sends began to send."""
    pairs = 0
    for row, events in shown.items():
        for e in events:
            if not e["name"].startswith("receive"):
                continue
            forward = e["args"]["group"] == "forward"
            sent = [
                x
                for x in shown[row - t if forward else row + t]
                if x["name"] == e["name"].replace("receive", "send")
                and x["args"]["micro_batch"] == e["args"]["micro_batch"]
            ]
            check(len(sent) == 1 and e["ts"] + e["dur"] >= sent[0]["ts"], f"a message: {e}, {sent}")
            pairs += 1
    check(pairs > 0, f"{pairs} messages")


def check_emulated(work):
    """A device with its own streams, over MPI: tracing depends on the device, not on the transport."""
    files = {"trace": work / "emulated.json", "record": work / "emulated.jsonl", "profile": 1}
    out = train(work, 4, {**files, "pipeline-parallel": 2, "zero": 1}, EMULATED)
    check(out.returncode == 0, f"an emulated run is traced: {out.stderr[-300:]}")
    events = json.loads((work / "emulated.json").read_text())["traceEvents"] if out.returncode == 0 else []
    names = {e["name"] for e in events}
    check({"adamw", "receive: activations", "wait: parameters"} <= names, f"it has {sorted(names)}")


def check_picture(work, name, ranks, layout):
    trace, picture = work / "trace.json", work / "trace.svg"
    out = train(work, ranks, {**layout, "trace": trace})
    subprocess.run([sys.executable, ROOT / "scripts/draw.py", "timeline", trace], stdout=subprocess.DEVNULL)
    text = picture.read_text() if picture.exists() else ""
    check(out.returncode == 0 and "planned" in text, f"{name}: the run is drawn beside its plan")
    check("tensor-parallel calls" in text and "waits" in text, f"{name}: calls and waits are drawn")


def check_ramp(work):
    """Steps of a batch ramp, beside a plan of their own batch."""
    one = {"layers": 1, "batch": 2, "micro-batch": 1, "ramp-start": 1, "ramp-increment": 1, "ramp-tokens": 64}
    group = {"pipeline-parallel": 4, "pipeline-chunks": 3, "pipeline-group": 4, "layers": 12}
    ramp = {"batch": 8, "micro-batch": 1, "ramp-start": 5, "ramp-increment": 3, "ramp-tokens": 4096}
    for ranks, options in ((1, one), (4, {**group, **ramp})):
        out = train(work, ranks, {**options, "trace": work / "ramp.json", "steps": 3})
        good = out.returncode == 0 and "traced    step 2" in out.stdout
        check(good, f"a step of a ramp is traced: {out.stdout[-300:]} {out.stderr[-300:]}")


def check_profile(work):
    out = train(work, 2, {"tensor-parallel": 2, "profile": 4, "steps": 8})
    rows = re.findall(r"^(\w+) .* ([\d.]+) %", out.stdout, re.M)
    wanted = {"linear_forward", "linear_of_gelu_backward", "attention_forward", "adamw", "all_gather"}
    check(wanted <= {row[0] for row in rows}, f"the profile's rows: {out.stdout[-600:]}")
    check("profile of 4 steps" in out.stdout, "four steps are profiled")


TOY_CALL = (
    "    compute_linear(LinearForward{.y = a.qkv, .x = rows, .w = w[QKV_W], .b = w[QKV_B], .N = N, .C = C,\n"
    "                                 .OC = 3 * C / t}, a.qkv_fp8.get(), ctx);"
)
TOY_LAYER = (
    '    if (!getenv("TOY_FORGETS") || ctx.grid.tensor == 0)\n'
    "        // overwritten below\n"
    '        comm::all_reduce(ctx.grid.tp, a.qkv, 128, comm::ReduceOp::Sum, "a toy", s);\n'
    f"{TOY_CALL}  // a toy: again\n"
    '    if (getenv("TOY_LIES")) comm::traffic["tensor"].calls++;\n'
)


def check_toy_layer(work):
    """A copy of the tree whose blocks have one product and one collective more, with nothing else changed."""
    tree = work / "tree"
    copy_tree(ROOT, tree)
    block = tree / "layers/model/block.h"
    text = block.read_text()
    check(text.count(TOY_CALL) == 1, "block.h has the line that the toy layer stands behind")
    block.write_text(text.replace(TOY_CALL, TOY_CALL + "\n" + TOY_LAYER))
    program = Path("build/cpu-fp32/train_gpt")
    make = ["make", "-s", "DEVICE=cpu", "PRECISION=fp32", "CXXFLAGS=-O0", str(program)]
    done = limited(make, 600, cwd=tree, env=environment)
    check(done.returncode == 0, f"the copy compiles: {done.stderr[-500:]}")
    if done.returncode:
        return

    options = words({"train": work / "data.train.bin", **MODEL, "tensor-parallel": 2})
    of = {}
    for which, path in (("without", str(BUILD / "train_gpt")), ("with", str(tree / program))):
        out = start(path, 2, options, timeout=300)
        equal = "plan and run are equal on all 2 ranks" in out.stdout
        check(equal, f"{which} a toy layer: {out.stdout[-400:]}{out.stderr[-200:]}")
        calls = re.search(r"tensor .* (\d+) and (\d+) calls", out.stdout)
        flops = re.search(r"linear layers +(\S+) GFLOP", out.stdout)
        of[which] = (int(calls[1]), float(flops[1])) if calls and flops else (0, 0)

    out = start(str(tree / program), 2, options, timeout=300, TOY_LIES="1")
    wrong = out.returncode == 1 and "plan and run DIFFER on rank 0 to 1" in out.stderr
    check(wrong, f"a run that is not as planned ends with 1: {out.returncode} {out.stderr[-300:]}")
    out = start(str(tree / program), 2, [*options, "--comm-timeout", "20"], timeout=300, TOY_FORGETS="1")
    last_calls = r"its last calls:\n(    call .*\n)*    call .* of a toy,"
    named = out.returncode == 1 and re.search(last_calls, out.stderr)
    check(named, f"a rank that forgets a collective: {out.returncode} {out.stderr[-600:]}")
    layers, micro_batches = MODEL["layers"], MODEL["batch"] // MODEL["micro-batch"]
    check(of["with"][0] - of["without"][0] == layers * micro_batches, f"the plan has the toy's calls: {of}")
    rows = MODEL["micro-batch"] * MODEL["sequence"]
    more = 2e-9 * rows * MODEL["hidden"] * 3 * MODEL["hidden"] / 2 * layers * micro_batches
    planned = of["with"][1] - of["without"][1]
    check(math.isclose(planned, more, abs_tol=1.5e-5), f"and its FLOPs: {of}, {more}")


def main():
    with tempfile.TemporaryDirectory(prefix="operations.") as folder:
        work = Path(folder)
        prepare(work)
        check_record(work)
        check_ramp(work)
        check_profile(work)
        check_emulated(work)
        check_toy_layer(work)
    finish()


main()
