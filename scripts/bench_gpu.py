#!/usr/bin/env python3
"""Times kernels and training steps on this GPU, beside PyTorch; scripts/bench_gpu.sh builds and calls it."""

import argparse
import array
import json
import re
import shlex
import statistics
import sys
import tempfile
import time

from models import MODELS
from over_ranks import limited

# other ways to train some of them, beside the usual one
VARIANTS = {
    "124M": ("--graph no", "--graph yes", "--fp8 yes"),
    "1.3B": ("--fp8 yes", "--recompute light"),
    "6.7B": ("--recompute light", "--fp8 yes"),
}
# of torch.compile; the first compiles in a minute, max-autotune takes several
TWIN_MODES = ("default", "reduce-overhead", "max-autotune-no-cudagraphs")
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--output", default="bench_gpu", help="OUTPUT.json and OUTPUT.md [bench_gpu]")
parser.add_argument(
    "--models", nargs="*", default=list(MODELS), choices=list(MODELS), help="whose steps are timed [all]"
)
parser.add_argument("--minutes", type=float, default=10, help="no new measurement begins after so many [10]")
parser.add_argument(
    "--steps", type=int, default=12, help="of each run; the median of the later half counts [12]"
)
parser.add_argument("--python", default=sys.executable, help="the Python that has PyTorch [this one]")
parser.add_argument(
    "--peer",
    action="append",
    default=[],
    metavar="NAME=MODEL=COMMAND",
    help="another trainer, timed in the same minutes: its lines with `N tok/s` or `N tokens/s` are read",
)
parser.add_argument("--force", action="store_true", help="times what is not right, too")
parser.add_argument("--no-checks", action="store_true", help="does not run the kernels' checks first")
parser.add_argument("--only-steps", action="store_true", help="checks and times no kernels by themselves")
parser.add_argument("--folder", help="with test_gpt and train_gpt [build/cuda-bf16]")
parser.add_argument("--cpu-folder", help="with train_gpt, for a rehearsal [build/cpu-fp32]")
parser.add_argument("--rehearse", action="store_true", help="small, without a GPU: to see that it works")
o = parser.parse_args()
begin = time.time()
work = tempfile.mkdtemp()
folder = o.folder or ("build/emulated-bf16" if o.rehearse else "build/cuda-bf16")
kernels_program = f"{folder}/test_gpt"
trainer = f"{o.cpu_folder or 'build/cpu-fp32'}/train_gpt" if o.rehearse else f"{folder}/train_gpt"
small = "--layers 2 --hidden 64 --heads 1 --sequence 64".split() if o.rehearse else []


def left():
    return o.minutes * 60 - (time.time() - begin)


def late():
    return left() < 0


def run(command):
    return limited(command, max(20, left() + 20))


def first_line(command):
    lines = run(command).stdout.strip().splitlines()
    return lines[0].strip() if lines else "not here"


def json_lines(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


machine = {
    "gpu": first_line(
        [
            "nvidia-smi",
            "--query-gpu=name,driver_version,memory.total,clocks.max.sm,power.limit",
            "--format=csv,noheader",
        ]
    ),
    "nvcc": (re.findall(r"release .*", run(["nvcc", "--version"]).stdout) or ["not here"])[0],
    "torch": first_line([o.python, "-c", "import torch; print(torch.__version__, torch.version.cuda)"]),
    "commit": first_line(["git", "rev-parse", "--short", "HEAD"]),
    "rehearsal": o.rehearse,
}
print(machine)

rows = []
report = {
    "machine": machine,
    "checks": "kernels not checked",
    "kernels": [],
    "steps": rows,
    "failed": [],
}


def number(x, form):
    return format(x, form) if isinstance(x, (int, float)) else "-"


def write_report():
    """As far as it goes: whoever ends this program finds what there is."""
    report["minutes"] = (time.time() - begin) / 60
    with open(o.output + ".json", "w") as f:
        json.dump(report, f, indent=1)
    out = [
        "# " + ("A rehearsal without a GPU: these figures mean nothing" if o.rehearse else machine["gpu"]),
        "",
        (
            f"driver and clocks: {machine['gpu']}; CUDA {machine['nvcc']}; PyTorch {machine['torch']}; commit"
            f" {machine['commit']}; {report['checks']}"
        ),
        "",
        *[f"failed: {what}" for what in report["failed"]],
        "",
        "| kernel | µs | GB/s | of the copy's rate | TFLOP/s |",
        "|---|---|---|---|---|",
    ]

    for k in report["kernels"]:
        out.append(
            f"| {k['kernel']} | {k['microseconds']:.1f} | {number(k.get('gb_per_s'), ',.0f')} |"
            f" {number(k.get('of_floor'), '.0%')} | {number(k.get('tflop_per_s'), '.4g')} |"
        )

    out += [
        "",
        "A share of the copy's rate counts the bytes that must be moved, not those that are.",
        "",
        "| model | T | micro-batch | tokens/s | MFU | PyTorch tokens/s | ours / PyTorch | peers |",
        "|---|---|---|---|---|---|---|---|",
    ]

    for row in rows:
        mine, other = row.get("ours") or {}, row.get("pytorch") or {}
        ratio = mine["tokens_per_second"] / other["tokens_per_second"] if mine and other else None
        peers = "; ".join(f"{name} {number(x, ',.0f')}" for name, x in row.get("peers", {}).items()) or "-"
        out.append(
            f"| {row['model']} | {row.get('sequence', '-')} | {mine.get('micro_batch', '-')} |"
            f" {number(mine.get('tokens_per_second'), ',.0f')} | {number(mine.get('mfu'), '.1%')} |"
            f" {number(other.get('tokens_per_second'), ',.0f')} | {number(ratio, '.2f')} |"
            f" {row.get('skipped', peers)} |"
        )

    for row in rows:
        for variant, got in row.get("variants", {}).items():
            got = got or {}
            out.append(
                f"| {row['model']}, {variant} | {row['sequence']} | {got.get('micro_batch', '-')} |"
                f" {number(got.get('tokens_per_second'), ',.0f')} | {number(got.get('mfu'), '.1%')} | | | |"
            )

    note = "MFU counts 6 N + 6 L C T FLOPs a token: N without the position table, causal attention once."
    with open(o.output + ".md", "w") as f:
        f.write("\n".join([*out, "", note]) + "\n")


if not o.only_steps and not o.no_checks:
    checked = run([kernels_program, "kernels", *([] if o.rehearse else ["pytorch", "training"])])
    report["checks"] = (checked.stdout.strip().splitlines() or ["no output"])[-1]
    print("checks:", report["checks"])
    if not report["checks"].endswith(" 0 failed"):
        report["failed"].append(f"checks: {report['checks']}")
        if not o.force:
            sys.exit(
                "bench_gpu.py: the kernels are not right, so nothing is timed (--force does it all the same):"
                f" {checked.stdout[-2000:]} {checked.stderr[-500:]}"
            )
if not o.only_steps:
    timed = run([kernels_program, "bench-kernels"])
    report["kernels"] = json_lines(timed.stdout)
    if timed.returncode:
        said = [line for line in (timed.stdout + timed.stderr).splitlines() if not line.startswith("{")]
        report["failed"].append(f"bench-kernels: {timed.returncode}, {' '.join(said)[-300:]}")
    for k in report["kernels"]:
        print("  ", k)
write_report()

# tokens that mean nothing, in llm.c's format: steps take as long whatever they are
tokens = array.array(
    "H", ((i * 7919 + i // 13) % 50257 for i in range(4_000_000 if not o.rehearse else 40_000))
)
with open(f"{work}/tokens.bin", "wb") as f:
    header = array.array("i", [20240520, 1, len(tokens)] + [0] * 253)
    f.write(header.tobytes())
    f.write(tokens.tobytes())


def median_rate(rates):
    later = rates[len(rates) // 2 :]
    return statistics.median(later) if later else None


def ours(model, *extra):
    """tokens/s and MFU with the largest micro-batch that fits."""
    sequence, sizes = MODELS[model].sequence, MODELS[model].micro_batches
    for size in sizes if not o.rehearse else (2,):
        if late():
            break
        metrics = f"{work}/{model}-{size}{''.join(extra)}.jsonl"
        result = run(
            [
                trainer,
                "--model",
                model,
                *small,
                "--train",
                f"{work}/tokens.bin",
                "--vocabulary",
                "50257",
                "--batch",
                str(size),
                "--micro-batch",
                str(size),
                "--steps",
                str(o.steps),
                "--metrics",
                metrics,
                *extra,
            ]
        )
        if result.returncode == 0:
            lines = [json.loads(line) for line in open(metrics)]
            length = 64 if o.rehearse else sequence
            rate = median_rate([size * length / line["seconds"] for line in lines])
            return {
                "micro_batch": size,
                "tokens_per_second": rate,
                "mfu": lines[-1].get("mfu"),
                "loss": lines[-1]["loss"],
            }

        error = result.stderr.strip().splitlines()[-1:] or ["no message"]
        print(f"   {model} with micro-batch {size}: {error[0][:200]}")

    return None


def twin(model):
    """The same model in PyTorch: the fastest of its modes and micro-batches."""
    best, tried = None, []
    sizes = MODELS[model].micro_batches
    for size in sizes if not o.rehearse else (2,):
        for mode in TWIN_MODES if not o.rehearse else ("none",):
            if late():
                break
            result = run(
                [
                    o.python,
                    "scripts/twin_pytorch.py",
                    "--model",
                    model,
                    "--micro-batch",
                    str(size),
                    "--mode",
                    mode,
                    "--steps",
                    str(o.steps),
                    *(["--rehearse"] if o.rehearse else []),
                ]
            )
            got = json_lines(result.stdout)
            tried.append(
                {
                    "micro_batch": size,
                    "mode": mode,
                    **(got[-1] if got else {"error": result.stderr.strip()[-200:]}),
                }
            )
            if got and (best is None or got[-1]["tokens_per_second"] > best["tokens_per_second"]):
                best = tried[-1]

        if best:
            break  # a smaller micro-batch is slower

    return best, tried


# ours first, then what they are compared with, then other ways
for model in o.models:
    row = {"model": model, "sequence": MODELS[model].sequence}
    rows.append(row)
    if late():
        row["skipped"] = f"{o.minutes:g} minutes were over"
        continue
    row["ours"] = ours(model)
    if not row["ours"]:
        report["failed"].append(f"steps of {model}")
    print("  ", row, flush=True)
    write_report()
for row in rows:
    model = row["model"]
    if machine["torch"] != "not here" and not late():
        row["pytorch"], row["pytorch_tried"] = twin(model)
    for peer in o.peer:
        name, of, command = (peer.split("=", 2) + ["", ""])[:3]
        if of == model:
            result = run(shlex.split(command))
            rates = [
                float(x.replace(",", "")) for x in re.findall(r"([0-9][0-9.,]*) tok(?:ens)?/s", result.stdout)
            ]
            row.setdefault("peers", {})[name] = (
                median_rate(rates) or f"no `tok/s` in its output: {result.stderr[-200:]}"
            )
    write_report()
for row in rows:
    for variant in VARIANTS.get(row["model"], ()):
        if not late() and not (
            o.rehearse and "fp8" in variant
        ):  # fp8 wants bf16, which the rehearsal has not
            row.setdefault("variants", {})[variant] = ours(row["model"], *variant.split())
            write_report()
write_report()
print(open(o.output + ".md").read())
sys.exit(bool(report["failed"]))
