"""What checks and benchmarks of whole programs share: starting programs, counting, comparing."""

import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path

passed = failed = 0
environment = dict(
    os.environ,
    OMP_NUM_THREADS="1",
    OMPI_ALLOW_RUN_AS_ROOT="1",
    OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
    OMPI_MCA_rmaps_base_oversubscribe="1",
    OMPI_MCA_mpi_yield_when_idle="1",
    OMPI_MCA_btl_vader_single_copy_mechanism="none",
    HWLOC_COMPONENTS="-pci,-linuxio",  # no search for PCI devices: a third of a rank's start
    OMPI_MCA_pml="ob1",  # a fifth of a second faster than looking for absent networks
)


def count(good, bad):
    global passed, failed
    passed, failed = passed + good, failed + bad


def check(good, what):
    count(bool(good), not good)
    if not good:
        print("FAILED ", what, flush=True)


def start(program, ranks, arguments, timeout=60, **variables):
    """Runs the program over so many ranks, to its end."""
    command = [program, *arguments]
    if ranks > 1:
        command = ["mpirun", "-n", str(ranks), *command]
    return limited(command, timeout, env=dict(environment, **variables), encoding="latin-1")


def limited(command, seconds, **more):
    """Runs the program to its end, or after so many seconds kills it and all it has started (exit code 124);
    with stderr=subprocess.STDOUT the two outputs are one."""
    words = [str(word) for word in command]
    usual = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "encoding": "utf8", "errors": "replace"}
    try:
        process = subprocess.Popen(words, start_new_session=True, **{**usual, **more})
    except OSError as e:
        return subprocess.CompletedProcess(words, 127, "", str(e))
    try:
        out, error = process.communicate(timeout=seconds)
        return subprocess.CompletedProcess(words, process.returncode, out or "", error or "")
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, error = process.communicate()
        stopped = f"\nstopped after {seconds:.0f} s"
        return subprocess.CompletedProcess(words, 124, (out or "") + stopped, (error or "") + stopped)
    except BaseException:  # this program ends, and with it what it has started
        os.killpg(process.pid, signal.SIGKILL)
        raise


def output_of(command, seconds=600, **more):
    """What a program prints; where it fails, this one ends with its error."""
    done = limited(command, seconds, env=environment, **more)
    if done.returncode:
        sys.exit(done.stderr.strip() or f"{command[0]}: exit {done.returncode}")
    return done.stdout


def take_counts(done, what):
    """The checks of a program that ends with `N passed, N failed` are counted here."""
    counts = re.search(r"(\d+) passed, (\d+) failed$", "".join(done.stdout.splitlines()[-1:]))
    check(counts and done.returncode == 0, f"{what}: {done.stdout[-900:]} {(done.stderr or '')[-700:]}")
    if counts:
        count(int(counts[1]), int(counts[2]))


def json_lines(path):
    return [json.loads(line) for line in Path(path).read_text("utf8").splitlines()]


def make_tokens(folder, prefix, text, validation=None):
    """PREFIX.txt, and its bytes as tokens: PREFIX.bin, or PREFIX.train.bin and PREFIX.validation.bin."""
    Path(f"{prefix}.txt").write_text(text, "utf8")
    options = {"vocabulary": "bytes", "output": prefix, **({"validation": validation} if validation else {})}
    done = limited([f"{folder}/tokenize", *words(options), f"{prefix}.txt"], 60)
    check(done.returncode == 0, f"tokens: {done.stderr}")


def letters(count):
    return "".join(" " if i % 7 == 6 else chr(97 + (i * i + i // 7) % 26) for i in range(count))


def copy_tree(root, folder):
    """The files of a clone, with what is not committed yet, but for what git ignores."""
    files = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(files, cwd=root, capture_output=True, text=True, check=True).stdout.split():
        if (root / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, folder / name)


def near(a, b, scale=1.0, most=1e-10):
    return 0 < len(a) == len(b) and all(abs(x - y) <= most * (scale + abs(y)) for x, y in zip(a, b))


def words(options):
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]


def finish():
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed > 0)


def checksum(data):
    """layers/base/file.h"""
    odd, mask = 0x9E3779B97F4A7C15, (1 << 64) - 1

    def step(h, word):
        h = (h ^ word) * odd & mask
        return (h << 29 | h >> 35) & mask

    lanes, whole = [1, 2, 3, 4], len(data) // 32 * 32
    words = struct.unpack(f"<{whole // 8}Q", data[:whole])
    for i, word in enumerate(words):
        lanes[i % 4] = step(lanes[i % 4], word)
    tail = struct.unpack("<4Q", data[whole:].ljust(32, b"\0"))
    out = len(data)
    for lane, word in zip(lanes, tail):
        out = step(out, step(lane, word))
    return out ^ out >> 32
