"""What scripts/test_faults.py and its chapters share: programs to start and disturb, and what they wrote."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from over_ranks import check, environment, json_lines, limited, make_tokens

REPOSITORY = Path(__file__).resolve().parent.parent
BUILD = (
    Path(sys.argv[1]).resolve()
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-")
    else sys.exit("usage: test_faults.py BUILD [NAME…]")
)
WORK = Path(tempfile.mkdtemp(prefix="faults."))
SHIM = WORK / "faults.so"
DATA = WORK / "text.train.bin"
MODEL = (
    "--layers 2 --hidden 32 --heads 4 --sequence 16 --batch 8 --micro-batch 1 --learning-rate 1e-2".split()
)


def skipped(what, why):
    print(f"skipped  {what}: {why}", flush=True)


def command(*options, ranks=1, data=None):
    words = [str(BUILD / "train_gpt"), "--train", str(data or DATA), *MODEL, *map(str, options)]
    return ["mpirun", "-n", str(ranks), *words] if ranks > 1 else words


def make_data():
    """DATA, and a validation file beside it, bytes as tokens: lines, some easier than others."""
    easy, hard = "green bottles hanging on the wall, ", "{} fell. "
    lines = (f"{i} {easy}" + hard.format(i**4 % 99991) * (i * i % 5) for i in range(700))
    make_tokens(BUILD, WORK / "text", "\n".join(lines), 0.1)


def shimmed(**settings):
    """Environment in which faults.c acts; mpirun hands it on to the ranks."""
    return dict(environment, LD_PRELOAD=str(SHIM), **{name: str(value) for name, value in settings.items()})


def run(words, env=None, timeout=120):
    return limited(words, timeout, env=env or environment, encoding="latin-1", cwd=WORK)


def start(words, env=None):
    return subprocess.Popen(
        words,
        env=env or environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="latin-1",
        cwd=WORK,
        start_new_session=True,
    )


def end(process, timeout=120):
    try:
        return process.communicate(timeout=timeout)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return "hangs: " + process.communicate()[0]


def until(condition, seconds=60):
    limit = time.time() + seconds
    while time.time() < limit:
        if condition():
            return True
        time.sleep(0.01)
    return False


def metrics(path):
    """The losses and norms by step, to the last bit; of a step that appears twice, the last line counts."""
    return {line["step"]: (line["loss"], line["gradient_norm"]) for line in json_lines(path)}


def steps_written(path):
    return Path(path).read_text().count("\n") if Path(path).exists() else 0


def ranks_of(process):
    """Process ids of a run's ranks, by rank."""
    out = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            session = os.getsid(int(folder.name))
            if session != process.pid or not words[0].endswith(b"train_gpt"):
                continue
            variables = (folder / "environ").read_bytes().split(b"\0")
        except (OSError, ProcessLookupError):
            continue
        rank = [v for v in variables if v.startswith(b"OMPI_COMM_WORLD_RANK=")]
        out[int(rank[0].split(b"=")[1]) if rank else 0] = int(folder.name)
    return out


def checkpoints(folder):
    return sorted(p.parent.name for p in Path(folder).glob("step-*/index.json"))


def write_into(path, offset, data):
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


LONG = ["--steps", 1000, "--save-every", 20, "--keep", 3]


def undisturbed():
    """Losses of an undisturbed run, which is made once."""
    path = WORK / "undisturbed.jsonl"
    if not path.exists():
        r = run(
            command(
                *LONG, "--metrics", path, "--save", WORK / "undisturbed", "--pipeline-parallel", 2, ranks=4
            )
        )
        check(r.returncode == 0, f"undisturbed: {r.stderr[-400:]}")
    return metrics(path)
