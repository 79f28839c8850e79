#!/usr/bin/env python3
"""What the compiler made of each kernel: registers, static shared memory, stack and spills, as Markdown. Run:
make kernel-report

    python3 scripts/kernel_report.py NVCC [PRECISION]

Compiles train_gpt.cu for sm_80 and sm_90a with ptxas -v; needs no GPU. Shared memory that a launch asks for
is not in it.
"""

import re
import subprocess
import sys

nvcc, precision = sys.argv[1], (sys.argv[2:] or ["bf16"])[0]
defines = ["-DPRECISION_BF16"] if precision == "bf16" else []
result = subprocess.run(
    [
        nvcc,
        "-std=c++20",
        "-O3",
        "--threads",
        "2",
        "-gencode",
        "arch=compute_80,code=sm_80",
        "-gencode",
        "arch=compute_90a,code=sm_90a",
        "-Xptxas",
        "-v",
        "-Xcompiler",
        "-fopenmp",
        *defines,
        "-x",
        "cu",
        "-c",
        "train_gpt.cu",
        "-o",
        "/dev/null",
    ],
    capture_output=True,
    text=True,
)
if result.returncode:
    sys.exit(f"kernel_report.py: {nvcc}: {result.stderr[-2000:]}")
kernels = {}
for block in re.split(r"ptxas info\s*: Compiling entry function ", result.stderr)[1:]:
    name, arch = re.match(r"'(\S+)' for '(\w+)'", block).groups()
    registers = re.search(r"Used (\d+) registers", block)
    stack, stores, loads = re.search(
        r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", block
    ).groups()
    shared = re.search(r"(\d+) bytes smem", block)
    kernels.setdefault(name, {})[arch] = (
        int(registers.group(1)),
        int(shared.group(1)) if shared else 0,
        int(stack),
        int(stores) + int(loads),
    )
if not kernels:
    sys.exit("kernel_report.py: the compiler named no kernel")
try:
    shown = subprocess.run(
        ["c++filt"], input="\n".join(kernels), capture_output=True, text=True, check=True
    ).stdout.splitlines()
except (OSError, subprocess.CalledProcessError):
    shown = list(kernels)
print(
    f"| kernel ({precision}) | registers sm_80, sm_90a | shared, bytes | stack, bytes | spilt, bytes"
    " |\n|---|---|---|---|---|"
)
for name, long in sorted(zip(kernels, shown), key=lambda pair: pair[1]):
    short = re.sub(r"^void |gpu::|\(.*$", "", long)
    a, b = (kernels[name].get(arch, ("-",) * 4) for arch in ("sm_80", "sm_90a"))
    print(
        f"| {short} | "
        + " | ".join(f"{x}, {y}" if x != y or i == 0 else f"{x}" for i, (x, y) in enumerate(zip(a, b)))
        + " |"
    )
spilt = sum(v[3] for k in kernels.values() for v in k.values())
print(f"\n{len(kernels)} kernels, {spilt} bytes spilt")
