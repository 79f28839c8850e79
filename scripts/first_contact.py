"""Builds, checks and times on a GPU that this program has not met: scripts/first_contact.sh calls it."""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from over_ranks import environment, limited

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--minutes", type=float, default=9, help="no part begins after so many [9]")
parser.add_argument(
    "--output", default="first_contact", help="OUTPUT.json, OUTPUT.md and OUTPUT/ [first_contact]"
)
parser.add_argument("--rehearse", action="store_true", help="small, without a GPU: to see that it works")
NAMES = "build kernels training 124M hopper memory model layouts steps races nccl".split()
parser.add_argument(
    "--parts", nargs="*", default=NAMES, choices=NAMES, help="only these, in this order [all]"
)
o = parser.parse_args()
began = time.time()
logs = Path(o.output)
CUDA = "build/cuda-bf16-single" if not o.rehearse else "build/emulated-bf16"
CUDA_FP32 = "build/cuda-fp32-single" if not o.rehearse else "build/emulated-fp32"
CUDA_MPI = "build/cuda-fp32-mpi" if not o.rehearse else "build/emulated-fp32"
CPU = "build/cpu-fp32-single" if not o.rehearse else "build/cpu-fp32"
STEPS = 50 if not o.rehearse else 3
MODEL = (
    "--layers 2 --hidden 128 --heads 2 --sequence 64 --batch 8 --micro-batch 4 --learning-rate 1e-3".split()
)
parts = []
REST = "1558M 350M 1.3B 774M 2.7B 6.7B".split()


def left():
    return o.minutes * 60 - (time.time() - began)


def last_line(text):
    lines = text.strip().splitlines()
    return lines[-1][:200] if lines else "printed nothing"


def note(name, good, says, seconds=0.0):
    """good: True, False, or None for what was left out."""
    parts.append({"part": name, "good": good, "says": says, "seconds": round(seconds, 1)})
    state = "left out" if good is None else "ok" if good else "FAILED"
    print(f"{state:8s} {name}: {says} ({seconds:.0f} s)", flush=True)
    write_report()


def run(name, command, limit, judge, environment=None):
    """One part: judge(exit code, what it printed) -> (good, what it says). Its whole output is kept."""
    if left() < 5:
        return note(name, None, f"{o.minutes:g} minutes are over")
    start = time.time()
    variables = dict(os.environ, **(environment or {}))
    done = limited(command, min(limit, left()), stderr=subprocess.STDOUT, env=variables)
    text = done.stdout + done.stderr
    log = logs / (re.sub(r"\W+", "_", name) + ".log")
    log.write_text("$ " + " ".join(done.args) + "\n" + text)
    try:
        good, says = judge(done.returncode, text)
    except Exception as e:  # what cannot be read is a finding, and no reason to stop
        good, says = False, f"{type(e).__name__} {e}: {last_line(text)}"
    note(name, good, says, time.time() - start)
    return good


def by_code(code, text):
    return code == 0, last_line(text)


def by_count(code, text):
    last = last_line(text)
    return code == 0 and bool(re.search(r"[1-9]\d* passed, 0 failed", last)), last


# ---- parts -----------------------------------------------------------------------------------------------


def build():
    """All variants at once, each with its own log."""
    if o.rehearse:
        return note("build", None, "a rehearsal takes what was built")
    start = time.time()
    Path("build").mkdir(exist_ok=True)
    settings = ["GPU_CODE=native", "COMM=single"]

    found = limited(["make", "-s", "found", "DEVICE=cpu", "COMM=single"], 60)
    if "no CBLAS" in found.stdout + found.stderr:
        plain = ["g++", "-O3", "-march=native", "-fopenmp", "-c", "-o", "build/plain_blas.o"]
        limited([*plain, "layers/base/plain_blas.cpp"], 60)
        settings.append("BLAS=build/plain_blas.o")

    targets = (
        ("cuda", "bf16", CUDA, ("train_gpt", "test_gpt")),
        ("cuda", "fp32", CUDA_FP32, ("train_gpt",)),
        ("cpu", "fp32", CPU, ("train_gpt", "tokenize")),
    )

    def make(target):  # one for a folder of objects
        device, precision, folder, programs = target
        command = [
            "make",
            "-s",
            f"-j{len(programs)}",
            f"DEVICE={device}",
            f"PRECISION={precision}",
            *settings,
        ]
        done = limited([*command, *(f"{folder}/{name}" for name in programs)], min(300, left()))
        (logs / f"build_{device}_{precision}.log").write_text(done.stdout + done.stderr)
        return [f"{folder}: {last_line(done.stderr)}"] if done.returncode else []

    with ThreadPoolExecutor() as pool:
        failed = sum(pool.map(make, targets), [])
    note("build", not failed, "; ".join(failed) if failed else "all", time.time() - start)


TOOLCHAIN = """#include <cublasLt.h>
#include <cuda_bf16.h>
#include <nvtx3/nvToolsExt.h>
int main() {
    cublasLtHandle_t handle;
    return cublasLtCreate(&handle) != CUBLAS_STATUS_SUCCESS;
}
"""


def toolchain():
    """What the build needs, before it is waited for."""
    missing = [name for name in ("make", "g++", "nvcc", "compute-sanitizer") if not shutil.which(name)]
    print(f"not in PATH: {' '.join(missing) or 'nothing'}", flush=True)
    if o.rehearse:
        return note("toolchain", None, "a rehearsal takes what was built")
    source, program = logs / "toolchain.cu", logs / "toolchain"
    source.write_text(TOOLCHAIN)
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    library = Path(nvcc).resolve().parent.parent / "lib64"
    build_it = f"{nvcc} -o {program} {source} -lcublasLt -Xlinker -rpath -Xlinker {library} && {program}"
    run(
        "toolchain",
        ["bash", "-c", build_it],
        60,
        lambda code, text: (code == 0, last_line(text + "\nworks" * (not code))),
    )


def losses(folder, name, *options, ranks=1):
    """Of STEPS steps, on the README's bytes."""
    lines = logs / f"losses_{name}.jsonl"
    lines.unlink(missing_ok=True)
    start = ["mpirun", "-n", ranks] if ranks > 1 else []
    command = [*start, f"{folder}/train_gpt", "--train", logs / "text.bin", *MODEL, "--steps", STEPS]
    done = limited([*command, "--metrics", lines, *options], max(5, min(120, left())), env=environment)
    (logs / f"losses_{name}.log").write_text(done.stdout + done.stderr)
    if done.returncode:
        raise RuntimeError(last_line(done.stderr))
    if "cannot be captured" in done.stderr and not o.rehearse:
        raise RuntimeError(next(line for line in done.stderr.splitlines() if "captured" in line))
    return [json.loads(line)["loss"] for line in lines.read_text().splitlines()]


def compare_losses(what, wanted, most, folder, *options, ranks=1):
    start = time.time()
    try:
        mine = losses(folder, re.sub(r"\W+", "_", what), *options, ranks=ranks)
        worst = max(abs(a - b) / b for a, b in zip(mine, wanted))
        good = len(mine) == len(wanted) and worst <= most
        says = f"{len(mine)} steps, {worst:.1e} from what is wanted at most; {most:g} allowed; {mine[-1]:.4f}"
    except Exception as e:
        good, says = False, f"{type(e).__name__} {e}"[:200]
    note(what, good, says, time.time() - start)


def train_against_cpu():
    start = time.time()
    try:
        tokenize = [f"{CPU}/tokenize", "--vocabulary", "bytes", "--output", logs / "text", "README.md"]
        made = limited(tokenize, 60)
        if made.returncode:
            raise RuntimeError(last_line(made.stderr))
        cpu = losses(CPU, "cpu")
        if len(cpu) != STEPS:
            raise RuntimeError(f"{len(cpu)} steps, wants {STEPS}")
    except Exception as e:
        return note("losses of the CPU", False, f"{type(e).__name__} {e}"[:200], time.time() - start)

    variants = (
        ("fp32", CUDA_FP32, 2e-3, ()),
        ("bf16", CUDA, 3e-2, ()),
        ("bf16 as a graph", CUDA, 3e-2, ("--graph", "yes")),
        ("bf16, recompute light", CUDA, 3e-2, ("--recompute", "light")),
    )
    for name, folder, most, options in variants:
        compare_losses(f"training in {name}", cpu, most, folder, *options)


def sanitizers(checks, seconds, folder):
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    tiny = (
        "--layers 2 --hidden 128 --heads 2 --sequence 80 --batch 4 --micro-batch 2 --steps 2 --graph no"
        .split()
    )
    train = [f"{folder}/train_gpt", "--train", logs / "text.bin", *tiny, "--tuning", logs / "tuning"]
    if o.rehearse or not Path(tool).exists():
        return note(" ".join(checks), None, "compute-sanitizer is not here")
    limited(train, max(5, min(60, left())))  # what is timed is known then: a tool would find it slow

    for check in checks:
        run(
            check,
            [tool, "--tool", check, "--error-exitcode", 9, *train],
            seconds,
            lambda code, text: (
                code == 0,
                (re.findall(r"=+ (ERROR SUMMARY.*|RACECHECK SUMMARY.*)", text) or [last_line(text)])[-1],
            ),
        )


def layouts():
    """Several ranks on this one GPU, in fp32 over MPI through host memory, against one rank."""
    if not shutil.which("mpirun") or not shutil.which("mpicxx"):
        return note("layouts over MPI", None, "no MPI is here")
    make = ["make", "-s", "DEVICE=cuda", "PRECISION=fp32", "COMM=mpi", "GPU_CODE=native"]
    if not o.rehearse and not run("build over MPI", [*make, f"{CUDA_MPI}/train_gpt"], 200, by_code):
        return

    steps = ["--steps", 5, "--layers", 4]
    try:
        wanted = losses(CUDA_FP32, "one", *steps)
    except Exception as e:
        return note("losses of one rank", False, f"{type(e).__name__} {e}"[:200])
    several = (
        (2, "--tensor-parallel 2"),
        (2, "--pipeline-parallel 2 --pipeline-chunks 2"),
        (2, ""),
        (4, "--tensor-parallel 2 --pipeline-parallel 2"),
    )
    for ranks, words in several[-1:] if o.rehearse else several:
        what = f"{ranks} ranks, {words.replace('--', '') or 'data-parallel'}"
        compare_losses(what, wanted, 1e-6, CUDA_MPI, *steps, *words.split(), ranks=ranks)


def nccl():
    if o.rehearse or not shutil.which("mpirun") or not shutil.which("mpicxx"):
        return note("two ranks over NCCL", None, "no MPI is here")
    if limited(["nvidia-smi", "-L"], 20).stdout.count("GPU ") < 2:
        return note("two ranks over NCCL", None, "one GPU: NCCL wants one for each rank")
    make = ["make", "-s", "DEVICE=cuda", "PRECISION=bf16", "COMM=nccl", "GPU_CODE=native"]
    if run("build over NCCL", [*make, "build/cuda-bf16-nccl/train_gpt"], 200, by_code):
        train = ["build/cuda-bf16-nccl/train_gpt", "--train", logs / "text.bin", *MODEL, "--steps", 20]
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        for layout in ("--tensor-parallel", "--pipeline-parallel"):
            ranks = ["mpirun", "-n", 2, "--oversubscribe", *train, layout, 2]
            run(f"two ranks over NCCL, {layout[2:]}", ranks, 60, by_code, root)


def bench(name, models, minutes, *options):
    command = [sys.executable, "scripts/bench_gpu.py", "--models", *models, "--minutes", minutes]
    command += ["--output", logs / name, "--folder", CUDA, "--cpu-folder", CPU, *options]
    command += ["--rehearse", "--steps", 2] if o.rehearse else []

    def judge(code, text):
        report = json.loads((logs / f"{name}.json").read_text())
        rows = report["steps"]
        rates = {row["model"]: (row.get("ours") or {}).get("tokens_per_second") for row in rows}
        says = [f"{model} {rate:,.0f} tokens/s" if rate else f"{model} -" for model, rate in rates.items()]
        return code == 0, "; ".join(says + report["failed"])

    run(name.replace("_", " "), command, minutes * 60 + 40, judge)


# ---- report ----------------------------------------------------------------------------------------------


def write_report():
    figures = {}
    for path in sorted(logs.glob("bench_*.json")):
        figures[path.stem] = json.loads(path.read_text())
    report = {
        "rehearsal": o.rehearse,
        "minutes": (time.time() - began) / 60,
        "parts": parts,
        "bench": figures,
    }
    Path(o.output + ".json").write_text(json.dumps(report, indent=1) + "\n")
    title = "A rehearsal without a GPU: these figures mean nothing" if o.rehearse else "First contact"
    out = [f"# {title}", "", "| part | | says | s |", "|---|---|---|---|"]

    for part in parts:
        state = "left out" if part["good"] is None else "ok" if part["good"] else "**failed**"
        says = part["says"].replace("|", "/")
        out.append(f"| {part['part']} | {state} | {says} | {part['seconds']} |")
    for path in sorted(logs.glob("bench_*.md")):
        out += ["", path.read_text()]
    Path(o.output + ".md").write_text("\n".join(out) + "\n")

    with tarfile.open(o.output + ".tgz", "w:gz") as archive:  # one file, for a machine that gives few back
        for path in sorted([*logs.glob("*.log"), *logs.glob("*.json*"), *logs.glob("*.md")]):
            archive.add(path, path.name)


PARTS = {
    "build": lambda: (toolchain(), build()),
    "kernels": lambda: run(
        "kernels", [f"{CUDA}/test_gpt", "emulated" if o.rehearse else "kernels"], 150, by_count
    ),
    "hopper": lambda: run(
        "hopper", [f"{CUDA}/test_gpt", "emulated" if o.rehearse else "hopper"], 40, by_count
    ),
    "training": train_against_cpu,
    "124M": lambda: bench("bench_124M", ["124M"], 2, "--no-checks"),
    "memory": lambda: sanitizers(("memcheck", "synccheck"), 60, CUDA),
    "model": lambda: run("model", [f"{CUDA}/test_gpt", "pytorch", "training"], 60, by_count),
    "steps": lambda: bench("bench_steps", REST, max(0.5, left() / 60 - 0.7), "--only-steps"),
    # what cuBLASLt's bf16 kernels store through TMA is not written, as initcheck sees it
    "races": lambda: (
        sanitizers(("racecheck",), 90, CUDA),
        sanitizers(("initcheck",), 60, CUDA_FP32),
    ),
    "layouts": layouts,
    "nccl": nccl,
}


def main():
    if not o.rehearse and limited(["nvidia-smi", "-L"], 20).returncode:
        sys.exit("first_contact.sh: no GPU is here: run it where nvidia-smi finds one, or with --rehearse")
    logs.mkdir(parents=True, exist_ok=True)
    for old in logs.glob("bench_*"):
        old.unlink()
    for name in o.parts:
        if not (o.rehearse and name in ("model", "steps")):
            PARTS[name]()
    failed = [part["part"] for part in parts if part["good"] is False]
    print(f"{sum(part['good'] is True for part in parts)} passed, {len(failed)} failed: {o.output}.md")
    sys.exit(bool(failed))


main()
