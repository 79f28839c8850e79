#!/usr/bin/env python3
"""Mutation testing: removes synchronisation, one site at a time, and expects a check to fail.

Usage: python3 scripts/mutate.py barriers [--only REGEX] [--jobs N] [--list]
       python3 scripts/mutate.py hopper [--only REGEX] [--jobs N] [--list]
       python3 scripts/mutate.py nccl [--only REGEX] [--jobs N] [--list]
       python3 scripts/mutate.py layouts [--transport nccl]
                                              nothing removed: only runs the layouts over several ranks

`barriers` removes, one after the other, every __syncthreads(), __syncwarp(), copy_async_wait, wait_until and
publish in a layer, and every wait for a stream, an event, a parameter or a message in layers/model, in a
copy of the working tree; builds the emulated device with SANITIZE=thread, and runs the commands below until
one fails. Prints for each site what caught it, and exits with 1 if a mutation survives or fails for another
reason. Takes two minutes per site and core. `hopper` removes or alters what synchronises and addresses the
sm_90a kernels (barriers, fences, waits, parities, arrivals, byte counts, descriptors), and runs only the
chapter of that name in ./test_gpt: half a minute per site and core. `nccl` alters comm_nccl.cpp and
nccl_start.h, and runs scripts/test_nccl.py and layouts over NCCL's stand-in with the race detector.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

from over_ranks import check, copy_tree, environment, finish, limited

ROOT = Path(__file__).parent.parent
BUILD = "build/emulated-bf16-watched-mpi"
BUILD_NCCL = "build/emulated-bf16-watched-nccl"
MAKE_WATCHED = "make -s DEVICE=emulated PRECISION=bf16 SANITIZE=thread"
MAKE = [*MAKE_WATCHED.split(), "COMM=mpi"]
DATA = f"{BUILD}/mutate"
RUN = (
    f"mpirun -n {{ranks}} {BUILD}/train_gpt --train {DATA}.train.bin"
    f" --validation {DATA}.validation.bin --evaluate-every 2 --evaluate-sequences 8 --layers 4 --hidden 32"
    " --heads 2 --sequence 8 --batch 8 --micro-batch 2 --steps 3 --attention materialised {options}"
)
LAYOUTS = (
    (2, f"--zero 1 --save {DATA}.saves --save-every 1"),
    (2, "--zero 1 --check-every 2"),  # the step before leaves parameters to be waited for
    (2, "--zero 1 --check-every 1"),  # replicas are compared without an evaluation before
    (2, "--pipeline-parallel 2 --pipeline-chunks 2"),
    (2, "--pipeline-parallel 2"),
    (2, "--zero 0 --recompute full"),
    (2, "--tensor-parallel 2"),
    (4, "--pipeline-parallel 2 --tensor-parallel 2"),
    (4, "--pipeline-parallel 2 --zero 1"),
    (1, "--moments bf16"),
    # a spike as soon as 30 losses are known: with this warm-up they rise, whatever the GEMMs round
    (
        2,
        f"--zero 1 --save {DATA}.saves --save-every 1 --on-spike back --spike-z 0.01 --learning-rate 3"
        " --warmup-tokens 1088 --layers 1 --batch 4 --evaluate-every 99 --steps 34",
    ),
    (2, "--tensor-parallel 2 --recompute light"),
    (2, "--tensor-parallel 2 --sequence-parallel no"),
    (2, "--zero 1 --loss-chunk 8"),  # backward is the first to read the LM head's parameters
)
# what a layout's run must print, or it has not tested what it is for
SAYS = {"--on-spike back": "back to the newest checkpoint"}

# each with another order of streams: a race that is hidden in one shows in another
LAYOUT_COMMANDS = [
    f"env EMULATED_SEED={seed} {RUN.format(ranks=ranks, options=options)}"
    for seed, (ranks, options) in enumerate(LAYOUTS, 1)
]

# messages that only a missing order causes; any other failure needs a person to look at it
SAYS_WHY = (
    r"races with|NCCL|nobody has written|waits for|never waited for|written again or freed|FAILED|DIFFER"
    r"|outside of the capture|recorded in a capture"
)

# what is freed is overwritten: a copy that comes later finds something else
PERTURBED = dict(environment, MALLOC_PERTURB_="165")

# which calls, in which files, and what is built and run
KERNELS = {
    "files": ("layers/base/device.h", "layers/*.cuh", "layers/fast/*.cuh"),
    "calls": r"__syncthreads\(\)|__syncwarp\(\)|copy_async_wait<0>\(\)|\bwait_until\(|\bpublish\(",
    "commands": [" ".join([*MAKE, f"{BUILD}/test_gpt"]), f"{BUILD}/test_gpt kernels packed"],
}
PLAIN_NCCL = "build/emulated-fp32-nccl"
TEST_NCCL = f"python3 scripts/test_nccl.py {PLAIN_NCCL} build/emulated-fp32"
# over NCCL: a step as a CUDA graph, which has to wait for what came before it, and those of the layouts where
# calls run beside computations
GRAPH = LAYOUT_COMMANDS[8] + " --graph yes --steps 5"  # from step 2 on, and launched again from step 4 on
NCCL_LAYOUTS = [
    command.replace(f"{BUILD}/train_gpt", f"{BUILD_NCCL}/train_gpt")
    for command in (GRAPH, *(LAYOUT_COMMANDS[i] for i in (1, 2, 6, 7, 10, 11)))
]
MAKE_NCCL = f"{MAKE_WATCHED} COMM=nccl {BUILD_NCCL}/train_gpt"
MODEL = {
    "files": ("layers/model/*.h", "layers/run/*.h", "layers/run/*.cpp"),
    "calls": r"comm::wait_stream\(|comm::wait_event\(|\bawait_(?!all_ranks)\w+\(|\bsynchronize\(",
    "commands": [
        " ".join([*MAKE, f"{BUILD}/train_gpt"]),
        *LAYOUT_COMMANDS,
        MAKE_NCCL,
        NCCL_LAYOUTS[0],
        " ".join([*MAKE, f"{BUILD}/test_gpt"]),
        f"{BUILD}/test_gpt pytorch scores checkpoint training",
    ],
}
NCCL = {
    "commands": [
        f"make -s DEVICE=emulated PRECISION=fp32 COMM=nccl {PLAIN_NCCL}/train_gpt {PLAIN_NCCL}/test_gpt"
        f" {PLAIN_NCCL}/test_nccl",
        f"{TEST_NCCL} --quick",
        MAKE_NCCL,
        *NCCL_LAYOUTS[:4],
        f"{TEST_NCCL} --faults",
    ],
}
# of comm/comm_nccl.cpp and comm/mpi/nccl_start.h: what is written in its place
NCCL_CHANGES = (
    (r"c\.forked\.record\(compute\);", ""),
    (r"c\.forked\.block\(comm_stream\);", ""),
    (r"c\.marks\[[^]]*\]->record\(comm_stream\);", "c.given++;"),
    (r"c\.marks\[mark\]->block\(compute\);", "{}"),
    (r"c->forked\.(record|block)\([a-z]*\);", ""),  # the end of a capture
    (r"c\.is_captured \|= capturing;", ""),
    (r"c\.calls_at\[[^]]*\] = c\.calls;", ""),
    (r"ncclBfloat16", "ncclFloat16"),
    (r"\? ncclFloat32", "? ncclFloat64"),
    (r"ncclFloat64 : ncclInt64", "ncclInt64 : ncclFloat64"),
    (r"ncclSum : ncclMax", "ncclMax : ncclSum"),
    (r"ncclSum, c", "ncclMax, c"),
    (r"(?<=ncclAllReduce\(c\.in, c\.out, )c\.n", "c.n - 1"),
    (r"(?<=ncclReduceScatter\()c\.in", "c.out"),
    (r"(?<=ncclAllGather\()c\.in", "c.out"),
    (r"(?<=ncclSend\(c\.in, )c\.n", "(c.n + 1) / 2"),
    (r"(?<=type, )c\.peer(?=, comm)", "1 - c.peer"),
    # calls of the compute stream; those of a comm stream would only be ordered more strictly there
    (
        r"(?<=comm, )c\.stream(?=\);)",
        "comm_streams.empty() || comm_streams.count(c.stream) ? c.stream : comm_streams.begin()->first",
    ),
    (r"check_nccl\(ncclGroup(Start|End)\(\), [^;]*;", ""),
    (r"(?<=, size, id, )rank", "0"),
    (r"(?<=&joining->comm, )size", "size + rank"),
    (r"while_waiting = look;", ""),
    (r"check_nccl\(error, each[^;]*;", ""),
    (r"communicators\.push_back\([^;]*;", ""),
)


HOPPER_PROGRAM = """
#define WITH_REF
#include "layers/compute.cu"
#include "layers/fast/test_hopper.h"
int main() {
    try {
        test_hopper();
    } catch (const std::exception& e) {
        check(false, std::string("stopped: ") + e.what());
    }
    return failed > 0;
}
"""
HOPPER = {
    "variables": dict(environment, OMP_NUM_THREADS="2"),  # blocks run in parallel, and wait for turns
    "commands": [
        "g++ -std=c++20 -fopenmp -O1 -march=native -DPRECISION_BF16 -DDEVICE_EMULATED -I. -x c++"
        " build/hopper.cpp layers/fast/bf16_widened.cpp -o build/hopper"
        " -L/usr/lib/x86_64-linux-gnu/openblas-openmp -lopenblas",
        "build/hopper",
    ],
}
HOPPER_CALLS = (
    r"\b(wgmma_fence|wgmma_commit|wgmma_wait<\d>|mbarrier_fence_init|__syncthreads|mbarrier_wait|tma_load|"
    r"mbarrier_arrive_expect|mbarrier_arrive|named_barrier<\d+>|named_barrier_arrive<\d+>|fence_for_async|"
    r"stmatrix_x4|store_for_async|bulk_store|bulk_add|bulk_commit|bulk_load|bulk_wait_read|bulk_wait|"
    r"wait_until|publish|mask)(?=\()"
)
# of the same files: what is written in its place
HOPPER_CHANGES = (
    (r"(?<=mbarrier_wait\(&at\.\w{9}\[stage\], )before", "1 - before"),
    (r"(?<=mbarrier_wait\(&at\.\w{11}\[stage\], )before", "1 - before"),
    (r"(?<=\[stage\], )\(done \+ i\) / stages % 2", "1 - (done + i) / stages % 2"),
    (r"(?<=\[stage\], )n / stages % 2", "1 - n / stages % 2"),
    (r"\(n / stages \+ 1\) % 2", "n / stages % 2"),
    (r"done \+= own\.tile \+ 1", "done += own.tile"),
    (r"\+ ctas - 1", "+ ctas"),
    (r"\+ (n % stages|stage) \* Tiles::all_queries", "+ 0"),
    (r"\(done / stages \+ 1\) % 2(?=\))", "done / stages % 2"),
    (r"(?<=\[stage\], )done / stages % 2", "1 - done / stages % 2"),
    (r"(?<=dq_ready\[group\], )done % 2", "(done + 1) % 2"),
    (r"(?<=full, )done % 2", "(done + 1) % 2"),
    (r"\(done \+ 1\) % 2 \* Tiles::ds_bytes", "done % 2 * Tiles::ds_bytes"),
    (r"done % 2 \* Tiles::ds_bytes", "0"),
    (r"\(blocks \+ 1\) % 2(?=\))", "blocks % 2"),
    (r"(?<=keys_full, )n % 2", "(n + 1) % 2"),
    (r"tile == own\.tiles - 1(?=\))", "tile == own.first_tile"),
    (r"(?<=keys_free, )10", "9"),
    (r"own\.head >= a\.B \* a\.NH(?=\) break)", "begins && done > 0"),
    (r"own\.block == 0 && before > 0", "false"),
    (r"own\.turn_of\(tile( \+ 1)?\) > 0", "false"),
    (r"begins = left == 0", "begins = left <= 1"),
    (r"before == 0(?=\) bulk)", "false"),
    (r"(?<=dq_full\[i\], )128", "127"),
    (r"group == 1 && count > 1(?=\))", "false"),
    (r"wgmma_wait<0>", "wgmma_wait<1>"),
    (r"wgmma_wait<1>", "wgmma_wait<2>"),
    (r"(?<=free\[i\], )(warps|8)", r"\1 - 1"),
    (r"(?<=_full\[i\], )1", "2"),
    (r"(?<=\.full\[i\], )33", "32"),
    (r"2 \* Tiles::all_(keys|queries)\)", r"2 * Tiles::all_\1 - 16)"),
    (r"k_own \+ Tiles::all_keys", "k_own"),
    (r"q_now \+ Tiles::all_queries", "q_now"),
    (r"tile \+ Tiles::all_queries", "tile"),
    (r"\+ stage \* 2 \* Tiles::all_queries", "+ 0"),
    (r"\+ (i|j|x / 64|column / 64) \* Tiles::(key|query)_tile", "+ 0"),
    (r"\(HS (==|>) 64\) \* group", "0"),
    (r"column % 64 \* 2\)", "column % 64 * 2 ^ 16)"),
    (r"columns / 64 \* rows \* 128", "columns / 64 * rows * 128 - 16"),
    (r"column < columns(?=\))", "column + 8 < columns"),
    (r"HS - 64(?=, stride)", "HS - 72"),
    (r"HS % 64 \? HS - 64 \* group", "HS % 64 ? 64"),
    (r"i / HS \* Tiles::columns", "i / HS * HS"),
    (r"\(1024 - shared_address\(shared\) % 1024\) % 1024", "0"),
    (r"\+ x / 64 \* rows \* 128", "+ 0"),
    (r"(?<=here = )stage \* Tiles::all_keys", "0"),
    (r"\+ (i % stages|stage) \* Tiles::all_keys", "+ 0"),
    (r"x % 64\)", "0)"),
    (r"16 \* j", "8 * j"),
    (r"group \* 64 \* 128", "0"),
    (r"abreast(?=\), true)", "1024"),
    (r"16 \* j, 0\)", "8 * j, 0)"),
    (r"tile, 2 \*", "tile, 4 *"),
    (r"tile, 128 \*", "tile, 64 *"),
    (r"offset >> 4", "offset >> 3"),
    (r"(?<=, )1024(?=\);)", "512"),
    (r"(?<=, )16(?=, 1024)", "32"),
    (r"(?<=, )tile_bytes(?=, 1024)", "2 * tile_bytes"),
    (r"1u << 30", "2u << 30"),
    (r"\(leading >> 4\) << 16", "(leading >> 4) << 15"),
    (r"\(uint64_t\)a\.T \* row\}", "row}"),
    (r"\{64, 1, \(uint32_t\)rows, 1\}", "{64, 1, 64, 1}"),
)


@dataclass
class Site:
    kind: dict
    path: Path
    line: int
    text: str
    start: int
    end: int
    becomes: str = "(void)0"

    def __str__(self):
        return f"{self.path}:{self.line} {self.text}" + (
            f" -> {self.becomes}" if self.becomes != "(void)0" else ""
        )

    def take_out(self, folder):
        """in a copy of the tree; gives what undoes it"""
        file = folder / self.path
        before = file.read_text()
        file.write_text(before[: self.start] + self.becomes + before[self.end :])
        return lambda: file.write_text(before)


def end_of_call(text, at):
    depth = 0
    for i in range(at, len(text)):
        depth += {"(": 1, ")": -1}.get(text[i], 0)
        if depth == 0 and text[i] == ")":
            return i + 1
    raise ValueError("a call without an end")


def find_sites():
    for kind in (KERNELS, MODEL):
        for path in sorted(path for pattern in kind["files"] for path in ROOT.glob(pattern)):
            if path.name.startswith(("test_", "bench")) or path.stem.endswith("_hopper"):  # hopper_sites
                continue
            text = path.read_text()
            for found in re.finditer(kind["calls"], text):
                line_start = text.rfind("\n", 0, found.start()) + 1
                line = text[line_start : text.find("\n", found.start())]
                code = line.split("//")[0]
                is_definition = re.match(r"\s*(inline |static )?void \w+\(", line)
                if found.start() - line_start >= len(code) or is_definition:
                    continue  # or in a comment
                first = found.start()
                while text[first - 1].isalnum() or text[first - 1] in "._>-":  # model.await_…
                    first -= 1
                end = end_of_call(text, text.find("(", found.start()))
                yield site_of(kind, path.relative_to(ROOT), text, first, end)


def site_of(kind, path, text, first, end, becomes="(void)0"):
    line = text.count("\n", 0, first) + 1
    return Site(kind, path, line, text[first:end], first, end, becomes)


def in_comment(text, at):
    return "//" in text[text.rfind("\n", 0, at) + 1 : at]


def hopper_sites():
    names = ("flash_attention", "flash_backward")
    kernels = [Path(f"layers/fast/{name}_hopper.cuh") for name in names]
    for path in kernels:
        text = (ROOT / path).read_text()
        for found in re.finditer(HOPPER_CALLS, text):
            if in_comment(text, found.start()):
                continue
            end = end_of_call(text, text.find("(", found.end()))
            yield site_of(HOPPER, path, text, found.start(), end)
    yield from changed_sites(HOPPER, (*kernels, Path("layers/fast/hopper.h")), HOPPER_CHANGES)


def changed_sites(kind, paths, changes):
    """Where each pattern matches; one that matches nowhere has outlived the code that it was written for."""
    unused = {pattern for pattern, _ in changes}
    for path in paths:
        text = (ROOT / path).read_text()
        # in front of it in hopper.h: PTX, and what emulates it
        begin = text.rfind("namespace gpu {")
        for pattern, becomes in changes:
            for found in re.finditer(pattern, text):
                if found.start() > begin and not in_comment(text, found.start()):
                    unused.discard(pattern)
                    yield site_of(kind, path, text, found.start(), found.end(), found.expand(becomes))
    if unused:
        sys.exit(f"mutate.py: these match nothing: {', '.join(sorted(unused))}")


def nccl_sites():
    names = ("comm/comm_nccl.cpp", "comm/mpi/nccl_start.h", "comm/mpi/nccl_watch.h")
    yield from changed_sites(NCCL, map(Path, names), NCCL_CHANGES)


def run(command, folder, variables=None):
    """The line that says what is wrong, or nothing where it succeeds."""
    shutil.rmtree(folder / f"{DATA}.saves", ignore_errors=True)
    done = limited(command.split(), 900, stderr=subprocess.STDOUT, cwd=folder, env=variables or PERTURBED)
    if done.returncode == 0:
        unsaid = [says for option, says in SAYS.items() if option in command and says not in done.stdout]
        return f"never said: {unsaid[0]}" if unsaid else ""
    lines = done.stdout.splitlines() or [f"exit {done.returncode}, without a word"]
    for says in (SAYS_WHY, "_gpt: "):
        if found := next((line for line in lines if re.search(says, line)), ""):
            return found
    return lines[-1]


def prepare(folder):
    """Programs and data, in a tree's build folder."""
    programs = [f"{BUILD}/{name}" for name in ("test_gpt", "train_gpt", "tokenize")]
    subprocess.run([*MAKE, *programs], cwd=folder, check=True)
    lines = (f"{i} green bottles hanging on the wall, {i * i} of them.\n" for i in range(5000))
    (folder / f"{DATA}.txt").write_text("".join(lines))
    tokenize = [programs[2], *f"--vocabulary bytes --validation 0.1 --output {DATA} {DATA}.txt".split()]
    subprocess.run(tokenize, cwd=folder, check=True, capture_output=True)


def prepare_hopper(folder):
    (folder / "build").mkdir()
    (folder / "build/hopper.cpp").write_text(HOPPER_PROGRAM)


def prepare_nccl(folder):
    prepare(folder)
    make = "make -s DEVICE=emulated PRECISION=fp32 build/emulated-fp32/train_gpt build/emulated-fp32/tokenize"
    subprocess.run(make.split(), cwd=folder, check=True)


def check_layouts(transport):
    prepare(ROOT)
    if transport == "nccl":
        subprocess.run(MAKE_NCCL.split(), cwd=ROOT, check=True)
    for command in LAYOUT_COMMANDS if transport == "mpi" else NCCL_LAYOUTS:
        wrong = run(command, ROOT)
        check(not wrong, f"{command}: {wrong}")
    finish()


def attempt(site, folder):
    undo = site.take_out(folder)
    try:
        for command in site.kind["commands"]:
            wrong = run(command, folder, site.kind.get("variables"))
            if wrong and command.startswith(("make ", "g++ ")):
                return f"does not compile: {wrong}"
            if wrong:
                return wrong
        return ""
    finally:
        undo()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("family", choices=["barriers", "hopper", "nccl", "layouts"])
    parser.add_argument("--transport", choices=["mpi", "nccl"], default="mpi", help="of `layouts`")
    parser.add_argument("--only", default="", help="sites whose file, line or text match")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if options.family == "layouts":
        return check_layouts(options.transport)

    find, get_ready = {
        "barriers": (find_sites, prepare),
        "hopper": (hopper_sites, prepare_hopper),
        "nccl": (nccl_sites, prepare_nccl),
    }[options.family]
    sites = [site for site in find() if re.search(options.only, str(site))]
    if options.list or not sites:
        return print("\n".join(map(str, sites)) or "no such site")

    with tempfile.TemporaryDirectory(prefix="mutate.") as scratch:
        folders = Queue()
        for i in range(min(options.jobs, len(sites))):
            folder = Path(scratch) / str(i)
            folder.mkdir()
            copy_tree(ROOT, folder)
            get_ready(folder)
            folders.put(folder)

        unmutated = next(iter(folders.queue))
        kinds = {id(site.kind): site.kind for site in sites}.values()
        for command, kind in ((command, kind) for kind in kinds for command in kind["commands"]):
            if wrong := run(command, unmutated, kind.get("variables")):
                sys.exit(f"fails before anything is taken out: {command}\n{wrong}")

        def try_one(site):
            folder = folders.get()
            try:
                return attempt(site, folder)
            finally:
                folders.put(folder)

        counts = {"caught": 0, "unclear": 0, "SURVIVED": 0}
        with ThreadPoolExecutor(len(folders.queue)) as pool:
            for site, wrong in zip(sites, pool.map(try_one, sites)):
                verdict = "caught" if re.search(SAYS_WHY, wrong) else "unclear" if wrong else "SURVIVED"
                counts[verdict] += 1
                print(f"{verdict:8} {site}\n    {wrong}", flush=True)

    print("{caught} caught, {unclear} unclear, {SURVIVED} survived".format(**counts))
    return 1 if counts["SURVIVED"] or counts["unclear"] else 0


if __name__ == "__main__":
    sys.exit(main())
