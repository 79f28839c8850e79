#!/usr/bin/env python3
"""Analyses the machine code of each kernel, and estimates the time that a training step spends in it. Nothing
here is measured: no GPU is needed. Run:

    make kernel-report                                   the whole report, as Markdown
    make check-kernels                                   compare with scripts/kernel_counts.json

    python3 scripts/kernel_report.py NVCC [--arch sm_80 sm_90a …] [--models 124M …] [--check | --record]

For each kernel and architecture: registers, bytes of shared memory and bytes spilt, as ptxas reports them;
and for its hottest loop (the one with most tensor instructions, else with the widest loads; a kernel without
a loop counts as one iteration) the instructions of each kind, and how often it waits for global memory
(adjacent loads count as one wait).

The estimate for a kernel is the largest of
    bytes    what it must move, at 90 % of the memory's bandwidth
    units    its loop's instructions on the busiest unit of an SM (issue, tensor, special, shared memory) and
             half of those on the other units, which overlap only while warps are out of phase
    waits    the latency of one warp's pass through its loop, with every wait for memory, fences and barriers;
             only the other blocks of the SM hide it
Latencies are those of arXiv 2402.13499 (H100: L2 262 cycles, memory 479); there mma.sync reaches 62 % of
wgmma's rate. Assumed: GEMMs run at 63 % of peak, a fence takes twice the latency of L2, and a launch takes at
least 2 microseconds.
"""

import argparse
import concurrent.futures
import json
import math
import os
import subprocess
import sys
from dataclasses import dataclass

import machine_code
from charts import table
from models import MODELS, VOCABULARY

COUNTS = os.path.join(machine_code.ROOT, "scripts", "kernel_counts.json")

# ---- what a step does with them ----------------------------------------------------------------------


@dataclass
class Gpu:
    name: str
    sms: int
    clock: float
    bandwidth: float
    peak: float
    tensor: float  # cycles of a sub-partition for an mma.m16n8k16
    shared: int  # bytes of an SM
    l2: int = 262
    memory: int = 479


GPUS = {
    "sm_80": Gpu("A100", 108, 1.41e9, 2.039e12, 312e12, 8, 164 << 10),
    "sm_90a": Gpu("H200", 132, 1.755e9, 4.8e12, 989.4e12, 4 / 0.62, 227 << 10),
}
GEMM_RATE, BYTES_RATE, LAUNCH = 0.63, 0.9, 2e-6


@dataclass
class Work:
    kernel: str
    launches: int
    bytes: float  # of a launch
    turns: float  # of the hottest loop, by a block, over all blocks of a launch
    threads: int
    dynamic: int = 0  # bytes of shared memory
    trips: object = lambda body: 1
    instead: object = None  # the Work of another kernel, which this one replaces


def planned_operations(m):
    """What a step on one GPU consists of, as the program's own plan says: name -> calls, flops, bytes."""
    program = os.path.join(machine_code.ROOT, "train_gpt")
    batch = m.micro_batches[0]
    words = f"--plan --plan-json - --hardware dgx-h200 --layers {m.layers} --hidden {m.hidden}"
    words += f" --heads {m.heads} --sequence {m.sequence} --batch {batch} --micro-batch {batch}"
    out = subprocess.run([program, *words.split()], capture_output=True, text=True).stdout
    if not out.startswith("{"):
        sys.exit(f"kernel_report.py: {program} plans no step: run make first")
    return json.loads(out)["stages"][0]["operations"]


def works_of(m, kernels, operations, gpu):
    C, NH, T, B, Vp = m.hidden, m.heads, m.sequence, m.micro_batches[0], VOCABULARY
    N, HS, rows = B * T, C // NH, B * T * C * 2
    warps = 1 if C <= 1024 else 4 if C <= 4096 else 16
    vectors = 3 if C <= 768 else 2 if 1024 < C <= 2048 else 4
    threads, groups = max(128, warps * 32), max(4 // warps, 1)
    M, BM = (2, 128) if HS == 64 else (1, 64)
    heads, tiles = B * NH, math.ceil(T / BM)
    forward = heads * sum(math.ceil(min((i + 1) * BM, T) / 64) for i in range(tiles))
    back = 32 if HS > 128 or (HS >= 96 and gpu.shared < 200 << 10) else 64
    queries, keys = math.ceil(T / back), math.ceil(T / 64)
    backward = heads * sum(queries - k * 64 // back for k in range(keys))
    row, lanes = (HS + 8) * 2, 8 if HS <= 64 else 16 if HS <= 128 else 32

    def trips(tile):  # of the loops inside flash attention's
        def of(body):
            kinds = [i.kind() for i in body]
            if "tensor" in kinds:
                return HS // 16 * (1 if kinds.count("tensor") == back // 8 else 0.5)
            return tile * HS // 8 / 128 if "copy" in kinds else 1

        return of

    L = operations["flash_attention_forward"]["calls"]
    attention = Work(
        f"flash_forward_kernel<{HS},{M},64,4>", L, 4 * rows, forward, 128, (BM + 128) * row, trips(64)
    )
    attention_backward = Work(
        f"flash_backward_kernel<{HS},{back},4>",
        L,
        8 * rows,
        backward,
        128,
        2 * (64 + 2 * back) * row + 128 * (back + 8),
        trips(back),
    )

    hopper = [f"flash_{way}_hopper_kernel<{HS}>" for way in ("forward", "backward")]
    if hopper[0] in kernels and kernels[hopper[0]]["loop"].count("tensor"):  # its 8 warps that multiply
        columns = math.ceil(HS / 64) * 64  # of tiles: beyond the head's they hold zeros
        blocks, tile = math.ceil(T / 128), 128 * columns * 2

        def repeats(times):  # loops inside: those that multiply, so often; others once
            return lambda body: times if "tensor" in [i.kind() for i in body] else 1

        attention = Work(
            hopper[0],
            L,
            4 * rows,
            heads * blocks,
            256,
            6 * tile + 1024,
            repeats((blocks - 1) / 2),  # of a tile of queries, the tiles of keys after the first
            instead=attention,
        )
        queries = 128 if HS == 64 else 64
        tiles = (blocks + 1) / 2 * 128 / queries  # of queries, that see a block of keys
        shared = 2 * tile + 4 * queries * columns * 2 + 2 * 128 * queries * 2 + 2 * 16384
        shared += 8 * 3 * columns * 4 + 1024
        attention_backward = Work(
            hopper[1], L, 8 * rows, heads * blocks, 256, shared, repeats(tiles), instead=attention_backward
        )

    def of(operation, kernel, turns, threads, per_call=1, bytes=None, **more):
        """A kernel of one of the step's operations, which moves its bytes unless others are given."""
        o = operations[operation]
        own = o["bytes"] / o["calls"] if bytes is None else bytes
        return Work(kernel, o["calls"] * per_call, own, turns, threads, **more)

    P = operations["square_sums"]["bytes"] / 4
    norm = f"layernorm_forward_rows_kernel<{warps},{vectors}>"
    return [
        of("layernorm_forward", norm, N / groups, threads),
        attention,
        Work(f"flash_delta_kernel<{HS}>", attention.launches, 2 * rows, N * NH * lanes / 128, 128),
        attention_backward,
        of("layernorm_backward", norm.replace("forward", "backward"), N / groups, threads),
        of("layernorm_backward", "column_sum_kernel<float>", 0, 256, 1, 0),
        of("layernorm_backward", "column_sum_finish_kernel", 0, 128, 1, 0),
        Work("column_sum_kernel<bfloat16>", L, 4 * rows, 0, 256),  # up's bias gradient
        of("bias_backward", "column_sum_kernel<bfloat16>", 0, 256),
        of("bias_backward", "column_sum_finish_kernel", 0, 128, 1, 0),
        of("cross_entropy", "cross_entropy_kernel", N * Vp / (512 * 8 * 4), 512, dynamic=Vp * 2),
        of("embedding_forward", "embedding_forward_kernel", N * C / 2048, 256),
        of("embedding_backward", "embedding_backward_kernel", 0, 128),
        of("position_backward", "position_backward_kernel", 0, 128),
        of("adamw", "adamw_kernel<AdamWState<float,true> >", P / 1024, 256),
        of("square_sums", "square_sums_kernel", 0, 256),
        of("square_sums", "square_sums_add_kernel", 0, 128, 1, 0),
        of("sum_values", "sum_values_kernel", 0, 1024),
        of("decide_update", "decide_update_kernel", 0, 1),
    ]


def resident_blocks(kernel, work, gpu):
    warps = math.ceil(work.threads / 32)
    by_registers = 65536 // (warps * 32 * math.ceil(kernel["registers"] / 8) * 8)
    by_shared = gpu.shared // max(kernel["shared"] + work.dynamic + 1024, 1)
    return max(1, min(32, 2048 // work.threads, by_registers, by_shared))


def estimate(kernel, work, gpu):
    """seconds of a launch by bytes, by units and by waits"""
    loop, warps = kernel["loop"], math.ceil(work.threads / 32)
    blocks = resident_blocks(kernel, work, gpu)
    units = {
        "issue": loop.count(None, work.trips) / 4,
        "tensor": loop.tensor_cycles(gpu.tensor, work.trips) / 4,
        "special": loop.count("special", work.trips) * 2,
        "shared": loop.shared_bytes(work.trips) / 128,
    }
    unit = max(units, key=units.get)
    busy = (units[unit] + sum(units.values())) / 2

    near, far = loop.waits(work.trips)
    fences, barriers = (loop.count(kind, work.trips) for kind in ("fence", "barrier"))
    alone = near * gpu.l2 + far * gpu.memory + fences * 2 * gpu.l2 + barriers * 30
    alone += busy * 4  # a warp has its sub-partition alone
    turns = work.turns / gpu.sms
    return {
        "bytes": work.bytes / gpu.bandwidth / BYTES_RATE,
        unit: turns * warps * busy / gpu.clock,
        "waits": turns / blocks * alone / gpu.clock,
    }


def step_table(kernels, model, gpu):
    """rows of a table, and the seconds of a step"""
    m = MODELS[model]
    operations = planned_operations(m)
    flops = sum(o["flops"] for name, o in operations.items() if name.startswith("linear_"))
    gemms = flops / gpu.peak / GEMM_RATE
    rows, total = [[f"GEMMs, {flops * 1e-12:.1f} TFLOP", "", "", "tensor", f"{gemms * 1e3:.2f}"]], gemms

    for work in works_of(m, kernels, operations, gpu):
        if work.kernel not in kernels:
            sys.exit(f"kernel_report.py: no kernel {work.kernel} is compiled: correct works_of()")
        times = estimate(kernels[work.kernel], work, gpu)
        largest = max(times, key=times.get)
        seconds = work.launches * max(times[largest], LAUNCH)
        total += seconds
        largest = largest if times[largest] > LAUNCH else "launch"
        blocks = resident_blocks(kernels[work.kernel], work, gpu)
        rows.append([work.kernel, work.launches, blocks, largest, f"{seconds * 1e3:.2f}"])
        if work.instead:
            before = work.launches * max(estimate(kernels[work.instead.kernel], work.instead, gpu).values())
            rows.append([f"(instead of {work.instead.kernel})", "", "", "", f"({before * 1e3:.2f})"])

    return rows, total


# ---- the report --------------------------------------------------------------------------------------

SHOWN = ("tensor", "special", "shared", "copy", "global", "barrier", "fence", "region", "branch")
IN_ALL = ("tensor", "special", "global", "local", "barrier", "fence")  # of these all, not of the loop alone


def counts_of(kernel):
    loop, whole = kernel["loop"], machine_code.Loop(kernel["code"][0])
    waits = machine_code.waits_of(*kernel["code"])
    near, far = loop.waits()
    return {
        "registers": kernel["registers"],
        "spilt": kernel["spilt"],
        "frame": kernel["frame"],  # of arrays that are indexed at run time, say
        "instructions": len(loop.body),
        "waits": near + far,
        **{kind: loop.count(kind) for kind in SHOWN},
        # of the whole kernel, so that nothing grows unseen outside of the loop
        **{f"all {kind}": whole.count(kind) for kind in IN_ALL},
        "timed waits": sum(map(machine_code.ends_in_time, waits)),
        "endless waits": len(waits) - sum(map(machine_code.ends_in_time, waits)),
    }


def worse(now, recorded):
    """what has grown: anything that is waited for, spilt, or 3 % of the instructions; and any wait for
    another thread that is not left in time"""
    out = ["a wait without an end"] * now["endless waits"]
    for key, before in recorded.items():
        slack = max(2, 0.03 * before) if key in ("instructions", "registers") else 0
        if now[key] > before + slack:
            out.append(f"{key} {before} -> {now[key]}")
    return out


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("nvcc")
    parser.add_argument("--arch", nargs="+", help="[those recorded; for the report also sm_100 and sm_120]")
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--check", action="store_true", help="fail where a hot loop is worse than recorded")
    parser.add_argument("--record", action="store_true", help="write what was counted instead")
    parser.add_argument("--counts", default=COUNTS, help="the record [scripts/kernel_counts.json]")
    o = parser.parse_args()
    folder = os.path.join(machine_code.ROOT, "build", "kernel-report")
    os.makedirs(folder, exist_ok=True)
    recorded = ["sm_80", "sm_90a"]
    o.arch = o.arch or (recorded if o.check or o.record else [*recorded, "sm_100", "sm_120"])

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        compiled = pool.map(lambda arch: machine_code.compile_kernels(o.nvcc, arch, folder), o.arch)
        report = dict(zip(o.arch, compiled))
    counts = {arch: {k: counts_of(v) for k, v in kernels.items()} for arch, kernels in report.items()}
    compiler = subprocess.run([o.nvcc, "--version"], capture_output=True, text=True).stdout.split()[-1]

    if o.record:
        record(counts, compiler, o.counts)
        return print(f"recorded {sum(map(len, counts.values()))} kernels in {o.counts}")
    if o.check:
        return check(counts, compiler, o.counts)
    print_report(report, counts, o.models)


def record(counts, compiler, path):
    """A kernel a line, with its counts on each architecture."""
    columns = list(next(iter(next(iter(counts.values())).values())))
    rows = []
    for name in sorted({name for kernels in counts.values() for name in kernels}):
        on = {arch: list(kernels[name].values()) for arch, kernels in counts.items() if name in kernels}
        rows.append(f"{json.dumps(name)}: {json.dumps(on)}")
    with open(path, "w") as f:
        f.write(f'{{"compiler": "{compiler}",\n"columns": {json.dumps(columns)},\n"counts": {{\n')
        f.write(",\n".join(rows) + "}}\n")


def check(counts, compiler, path):
    with open(path) as f:
        recorded = json.load(f)
    if compiler != recorded["compiler"]:
        was = recorded["compiler"]
        sys.exit(f"not checked: nvcc is {compiler}, what was recorded is of {was}: make record-kernels")

    passed = failures = 0
    for arch, kernels in counts.items():
        rows = {name: on[arch] for name, on in recorded["counts"].items() if arch in on}
        before = {name: dict(zip(recorded["columns"], row, strict=True)) for name, row in rows.items()}
        for name in sorted(kernels.keys() | before.keys()):
            problem = ""
            if name not in before:
                problem = "is not recorded: make record-kernels"
            elif name not in kernels:
                problem = "is recorded, and no more there: make record-kernels"
            elif found := worse(kernels[name], before[name]):
                problem = "is worse than recorded: " + ", ".join(found)
            passed += not problem
            failures += bool(problem)
            if problem:
                print(f"FAILED  {name} on {arch} {problem}")

    # and it notices what it should: one fence more than before
    now = next(iter(counts[arch].values()))
    sees = f"fence {now['fence'] - 1} -> {now['fence']}" in worse(now, {**now, "fence": now["fence"] - 1})
    if not sees:
        print("FAILED  one fence more than before is not seen")
    passed, failures = passed + sees, failures + (not sees)
    print(f"{passed} passed, {failures} failed")
    sys.exit(failures > 0)


def print_report(report, counts, models):
    print("Read from machine code; nothing is measured. Instructions are of a turn of the hottest loop.")
    for arch, kernels in counts.items():
        columns = "kernel, registers, bytes shared, bytes spilt, instructions, waits for memory".split(", ")
        rows = []
        for name, c in sorted(kernels.items()):
            own = [c["registers"], report[arch][name]["shared"], c["spilt"], c["instructions"], c["waits"]]
            rows.append([name, *own, *(c[kind] for kind in SHOWN)])
        print(f"\n## {arch}\n\n" + table([*columns, *SHOWN], rows))
        print(f"{len(kernels)} kernels, {sum(c['spilt'] for c in kernels.values())} bytes spilt")

    for arch in [a for a in report if a in GPUS]:
        gpu = GPUS[arch]
        for model in models:
            m = MODELS[model]
            rows, total = step_table(report[arch], model, gpu)
            B, T = m.micro_batches[0], m.sequence
            print(f"\n## Estimated: {model}, B {B}, T {T} on {gpu.name}\n")
            print(table(["kernel", "launches", "blocks an SM", "bound by", "ms a step"], rows))
            print(f"estimated: {total * 1e3:.1f} ms a step, {B * T / total:,.0f} tokens/s")


try:
    main()
except (OSError, subprocess.CalledProcessError, ValueError, KeyError, IndexError) as e:
    sys.exit(
        f"kernel_report.py: {type(e).__name__}: {e}: needs nvcc, nvdisasm, c++filt and a record of this form"
    )
