#!/usr/bin/env python3
"""Times a step of GPT-2 124M on this machine's CPU against PyTorch: python3 scripts/bench_cpu.py BUILD

BUILD is a build for the CPU in fp32 or bf16. B 4, T 256, all cores; PyTorch eager and compiled, in fp32 and,
for a bf16 build, also under bf16 autocast. The programs alternate for three rounds of a few steps; the figure
of a run is the median of its later steps. Prints each program's median over the rounds, and the ratios.
"""

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from first_contact_programs import make_tokens
from over_ranks import environment, limited

BUILD = Path(sys.argv[1]) if len(sys.argv) == 2 else sys.exit(__doc__)
TWIN = Path(__file__).resolve().parent / "twin_pytorch.py"
B, T, STEPS, ROUNDS = 4, 256, 6, 3
THREADS = dict(environment, OMP_NUM_THREADS=str(os.cpu_count()))


def ours(work):
    words = f"--model 124M --vocabulary 50304 --sequence {T} --batch {B} --micro-batch {B} --steps {STEPS}"
    out = subprocess.run(
        [BUILD / "train_gpt", "--train", work / "tokens.bin", *words.split(), "--metrics", work / "metrics"],
        env=THREADS, capture_output=True, text=True,
    )  # fmt: skip
    if out.returncode:
        sys.exit(out.stderr.strip())
    lines = [json.loads(line) for line in (work / "metrics").read_text().splitlines()]
    (work / "metrics").unlink()
    return B * T / statistics.median(line["seconds"] for line in lines[STEPS // 2 :])


def pytorch(mode, precision):
    words = f"--model 124M --micro-batch {B} --sequence {T} --cpu --steps {STEPS} --forms {mode}".split()
    words += ["--bf16"] if precision == "bf16" else []
    done = limited([sys.executable, TWIN, *words], 600, env=THREADS)
    if done.returncode:
        sys.exit(done.stderr.strip())
    said = json.loads(done.stdout.splitlines()[-1])
    return said["tokens_per_second"], said["torch"]


def main():
    try:
        import torch  # noqa: F401
    except ImportError:
        print("PyTorch is not here: the step was not compared with it")
        return

    precision = BUILD.resolve().name.split("-")[1]
    peers = [(mode, each) for each in sorted({"fp32", precision}) for mode in ("none", "default")]
    rates = {peer: [] for peer in ["this program", *peers]}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        make_tokens(work / "tokens.bin", B * T * (STEPS + 2))
        for _ in range(ROUNDS):
            rates["this program"].append(ours(work))
            for peer in peers:
                rate, version = pytorch(*peer)
                rates[peer].append(rate)

    medians = {name: statistics.median(values) for name, values in rates.items()}
    processor = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    print(f"124M, B {B}, T {T}, {os.cpu_count()} cores of {processor[1] if processor else 'a CPU'}")
    print(f"this program, {precision}           {medians['this program']:7.1f} tokens/s")
    for mode, each in peers:
        name = f"PyTorch {version.split('+')[0]} {'eager' if mode == 'none' else 'compiled'}, {each}"
        ratio = medians["this program"] / medians[mode, each]
        print(f"{name:30} {medians[mode, each]:7.1f} tokens/s   {ratio:.2f} x")

    if kernels := os.environ.get("OPENBLAS_CORETYPE"):
        print(f"OPENBLAS_CORETYPE={kernels} is set: OpenBLAS does not choose by the processor")


main()
