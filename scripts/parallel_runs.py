"""What test_parallel.py's files share: the model, its data, runs over ranks and what they have written."""

import json
import os
import struct
import sys
import tempfile

from over_ranks import check, json_lines, letters, make_tokens, start

build, build32, emulated = (os.path.abspath(folder) for folder in sys.argv[1:4])
work = tempfile.mkdtemp()
MODEL = (
    "--layers 4 --hidden 16 --heads 4 --sequence 8 --vocabulary 257 --pad-vocabulary 264 --batch 12"
    " --micro-batch 1 --steps 6 --learning-rate 1e-2 --clip 0.5 --evaluate-every 3 --evaluate-sequences 5"
).split()


def run(ranks, arguments, timeout=60, folder=None, program="train_gpt", **variables):
    return start(f"{folder or build}/{program}", ranks, arguments, timeout, **variables)


def metrics(name):
    return json_lines(f"{work}/{name}.jsonl")


def values(name):
    """Tensor and kind -> numbers, of a checkpoint that one process wrote."""
    folder = f"{work}/{name}/step-00000006"
    data = open(f"{folder}/rank-00000.bin", "rb").read()
    return {
        (p["tensor"], p["kind"]): struct.unpack_from(f"<{p['bytes'] // 8}d", data, p["offset"])
        for p in json.load(open(f"{folder}/rank-00000.json"))["pieces"]
    }


def train(name, ranks, extra, resume=None, **where):
    data = DATA[2:] if "--train" in extra else DATA
    arguments = [*data, *MODEL, "--save", f"{work}/{name}", "--metrics", f"{work}/{name}.jsonl", *extra]
    if resume:
        arguments += ["--resume", f"{work}/{resume}"]
    result = run(ranks, arguments, **where)
    check(result.returncode == 0, f"{name}: {result.stderr[-500:]}")
    where_equal = "this rank" if ranks == 1 else f"all {ranks} ranks"
    check(f"plan and run are equal on {where_equal}\n" in result.stdout, f"{name}: {result.stdout[-1000:]}")
    told = [
        result.stdout.count(line)
        for line in ("settings  (all of them: --verbose)\n", "\nmemory, MB", "\ndevice ")
    ]
    check(told == [1, 1, 1], f"{name}: settings, memory and device are told {told} times")
    return result.returncode == 0


text = f"{work}/text"
make_tokens(build, text, letters(4000), 0.2)
DATA = ["--train", f"{text}.train.bin", "--validation", f"{text}.validation.bin"]
KEYS = ("loss", "gradient_norm", "validation_loss")
