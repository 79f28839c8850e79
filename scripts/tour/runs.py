"""What the tour shows: toy runs of the programs, each a function that gives a chapter's data as a dict.

Nothing is computed here that the programs can report: a record of a step (train_gpt --record), plans and
their timelines (--plan --plan-json --timeline), metrics of runs, and traces of kernels
(scripts/tour/kernels.cu). The last chapter's data: corpus_pages.py.
"""

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import draw  # noqa: E402
import figure_throughput  # noqa: E402
import figures  # noqa: E402
from over_ranks import environment, limited, words  # noqa: E402

BUILD = ROOT / "build/cpu-fp32"
KERNELS = ROOT / "build/emulated-bf16-watched-single/tour_kernels"
TOY = {"layers": 2, "hidden": 8, "heads": 2, "sequence": 8, "attention": "materialised", "pad-vocabulary": 8}
TENSOR_TOY = {**TOY, "layers": 1, "hidden": 16, "heads": 4}
HUNDREDS = {"layers": 16, "hidden": 2048, "heads": 16, "sequence": 1024, "micro-batch": 1}


class ProgramError(Exception):
    """A program of the tour is missing, or ended with an exit code other than 0."""


class TooLong(ProgramError):
    """It was stopped at its time limit."""


def run(command, timeout=120):
    """Standard output of a command, run at the root of the repository."""
    done = limited(command, timeout, cwd=ROOT, env=environment)
    if done.returncode == 124:
        raise TooLong(f"{command[0]} {done.stderr.strip()}")
    if done.returncode:
        raise ProgramError(f"{' '.join(map(str, command))}\n{(done.stderr or done.stdout)[-2000:]}")
    return done.stdout


def train(options, ranks=1):
    start = ["mpirun", "-n", ranks] if ranks > 1 else []
    return run([*start, BUILD / "train_gpt", *words(options)])


def plan(options):
    """The plan as a dict; refused options are a ProgramError with the program's own words."""
    return json.loads(run([BUILD / "train_gpt", "--plan", *words({**options, "plan-json": "-"})]))


def plan_with_timeline(options, work):
    """The plan and a step's spans: [stage, kind, micro-batch, chunk, start, end], in microseconds."""
    file = work / "timeline.json"
    out = plan({**options, "timeline": file})
    events = json.loads(file.read_text())["traceEvents"]
    spans = []
    for event in events:
        named = re.fullmatch(r"(forward|backward) (\d+)(?: chunk (\d+))?", event["name"])
        if event["ph"] == "X" and event["tid"] == 0 and named:
            start, end = round(event["ts"], 2), round(event["ts"] + event["dur"], 2)
            spans.append([event["pid"], named[1][0], int(named[2]), int(named[3] or 0), start, end])
    return out, spans


def shortened(values, digits):
    return [None if v is None else float(f"{v:.{digits}g}") for v in values]


def read_record(file):
    """A record's head and lines; values have the digits that a picture shows, those of calls all (9)."""
    head, *lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        for tensor in line.get("tensors", []):
            for key in ("values", "before"):
                if key in tensor and "int" not in tensor["type"]:
                    tensor[key] = shortened(tensor[key], 9 if line["kind"] == "call" else 6)
    return head, lines


def record(options, work, ranks=1, values=256):
    file = work / "record.jsonl"
    options = {"train": work / "text.train.bin", "steps": 2, "graph": "no", **options}
    train({**options, "record": file, "record-values": values}, ranks)
    return read_record(file)


# ---- the chapters' data ----------------------------------------------------------------------------------


def prepare(work):
    """A text and its tokens: README.md, by bytes."""
    command = [BUILD / "tokenize", "--vocabulary", "bytes", "--validation", "0.1", "--output", work / "text"]
    run([*command, ROOT / "README.md"])


def step(work):
    head, lines = record({**TOY, "batch": 1, "micro-batch": 1, "trace-step": 1}, work, values=8192)
    return {"head": head, "lines": lines}


def kernels(_work):
    if not KERNELS.exists():
        raise ProgramError("the traced kernels are not built: they need g++ on x86-64 or aarch64")
    traces = [json.loads(line) for line in run([KERNELS]).splitlines()]
    return {"kernels": [summarize_trace(trace) for trace in traces]}


def summarize_trace(trace):
    """Joins a warp's accesses from the same place, for the n-th time in each lane, into requests."""
    times, requests = {}, {}
    for thread, barriers, tensor, at, size, is_write, line in trace.pop("accesses"):
        place = (barriers, tensor, line, is_write)
        occurrence = times[place, thread] = times.get((place, thread), -1) + 1
        key = (barriers, line, occurrence, thread // 32, tensor, is_write)
        requests.setdefault(key, []).append([thread % 32, at, size])

    shown = [
        {
            "barriers": b,
            "line": line,
            "warp": warp,
            "tensor": tensor,
            "write": is_write,
            "lanes": sorted(lanes),
        }
        for (b, line, _, warp, tensor, is_write), lanes in requests.items()
        if warp < 2
    ]
    shown.sort(key=lambda r: (r["barriers"], r["warp"]))

    trace["all_requests"] = len(requests)
    trace["requests"] = [r for b in range(9) for r in first_of(shown, b)]
    return trace


def first_of(requests, barriers, most=24):
    """The first requests of each warp between two barriers: a loop may make many."""
    mine = [r for r in requests if r["barriers"] == barriers]
    return [r for warp in (0, 1) for r in [r for r in mine if r["warp"] == warp][:most]]


def tensor(work):
    """One layer over 1, 2 and 4 tensor-parallel ranks, with and without sequence parallelism."""
    layouts = []
    for ranks in (1, 2, 4):
        for split in ("no", "yes") if ranks > 1 else ("no",):
            options = {**TENSOR_TOY, "batch": 1, "micro-batch": 1, "tensor-parallel": ranks}
            head, lines = record({**options, "sequence-parallel": split}, work, ranks, values=1024)
            kept = [line for line in lines if line.get("layer") == 0]
            layouts.append({"ranks": ranks, "sequence_parallel": split == "yes", "head": head, "lines": kept})
    return {"layouts": layouts}


def pipeline_options(stages, micro_batches, chunks):
    options = {**HUNDREDS, "batch": micro_batches, "pipeline-parallel": stages, "hardware": "dgx-a100"}
    return {**options, "pipeline-chunks": chunks} if chunks > 1 else options


def one_pipeline(stages, micro_batches, chunks, work):
    try:
        planned, spans = plan_with_timeline(pipeline_options(stages, micro_batches, chunks), work)
    except TooLong:
        raise
    except ProgramError as error:
        return {"p": stages, "m": micro_batches, "v": chunks, "refused": str(error).split("train_gpt: ")[-1]}
    memory = [stage["memory"] for stage in planned["stages"]]
    return {
        "p": stages, "m": micro_batches, "v": chunks, "spans": spans, "seconds": planned["seconds"],
        "bubble": planned["bubble"], "idle": planned["idle"], "memory": memory,
    }  # fmt: skip


def pipeline(work):
    sizes = [(p, m, v) for p in (1, 2, 4, 8) for m in (4, 8, 16) for v in (1, 2) if v == 1 or p > 1]
    return {"layers": HUNDREDS["layers"], "schedules": [one_pipeline(*size, work) for size in sizes]}


def data(work):
    runs = []
    for zero in (0, 1):
        options = {**TOY, "batch": 4, "micro-batch": 1, "zero": zero}
        head, lines = record(options, work, ranks=4, values=0)
        calls = [
            line for line in lines
            if line["rank"] == 0 and (line["kind"] == "call" or line["name"] == "adamw")
        ]  # fmt: skip
        runs.append({"zero": zero, "head": head, "calls": calls})
    memory = []
    for ranks in (1, 2, 4, 8, 16):
        for zero in (0, 1):
            options = {"model": "1.3B", "batch": 64, "micro-batch": 1, "world-size": ranks, "zero": zero}
            planned = plan({**options, "hardware": "dgx-a100"})
            memory.append({"ranks": ranks, "zero": zero, "memory": planned["stages"][0]["memory"]})
    return {"runs": runs, "memory": memory}


MTNLG = {"config": ROOT / "scripts/mtnlg-530b.conf", "world-size": 2240}


def planet(work):
    timeline = work / "step.json"
    planned = plan({**MTNLG, "timeline": timeline})
    return {
        "plan": planned,
        "axes": figure_throughput.each_axis_alone(),
        "published": run([BUILD / "train_gpt", "--plan", "published"]),
        "timeline": draw.timeline(json.loads(timeline.read_text())["timelines"]),
    }


def recipe(work):
    lines = (work / "text.train.bin", work / "text.validation.bin")
    blend = [f"0.7:{lines[0]}", f"0.3:{lines[1]}"]
    toy = {"layers": 1, "hidden": 8, "heads": 1, "sequence": 8, "micro-batch": 1, "graph": "no"}
    metrics = work / "recipe.jsonl"

    def metrics_of(options):
        command = [BUILD / "train_gpt", "--train", *blend, *words({**toy, **options, "metrics": metrics})]
        run(command)
        rows = [json.loads(line) for line in metrics.read_text().splitlines()]
        metrics.unlink()
        return rows

    ramp = {"batch": 32, "ramp-start": 4, "ramp-increment": 4, "ramp-tokens": 3000, "steps": 60}
    ramped = metrics_of({**ramp, "warmup-tokens": 800})
    drawn = metrics_of({"batch": 1, "steps": 48})
    planned = plan(MTNLG)
    return {
        "ramped": [{key: row[key] for key in ("step", "tokens", "learning_rate")} for row in ramped],
        "drawn": [next(name for name, loss in row["losses"].items() if loss is not None) for row in drawn],
        "mtnlg": {key: planned[key] for key in ("steps", "ramp_steps", "tokens", "days", "gpu_hours")},
        "blend": figures.sets(None)[1]["sets"],
    }


CHAPTERS = {
    "step": step, "kernels": kernels, "tensor": tensor, "pipeline": pipeline, "data": data, "planet": planet,
    "recipe": recipe,
}  # fmt: skip


def everything(work, say=print):
    """All chapters' data, or {"missing": reason} for a chapter that cannot be made here."""
    prepare(work)
    out = {}
    for name, make in CHAPTERS.items():
        say(f"  {name}")
        try:
            out[name] = make(work)
        except ProgramError as error:
            out[name] = {"missing": str(error)}
    return out
