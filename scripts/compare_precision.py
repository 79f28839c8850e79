#!/usr/bin/env python3
"""Compares training in fp32 with lower precision: python3 scripts/compare_precision.py [TEXTFILE]
[--vocabulary bytes|PATH/vocab.bpe] [--steps N] [--output FOLDER]

Trains one small model on TEXTFILE (default: the text of this repository) in fp32 on the CPU, and in bf16
alone, with --fp8 yes, with --fp8-lm-head yes as well, with --moments bf16, and with --master-weights no as
well: on a GPU if there is one, else with the CPU's loops, which round as the kernels do. A second fp32 run
with another seed shows how much runs differ by chance. Draws the losses (FOLDER/loss.svg), and fails if a run
ends further from fp32 than twice that difference.
"""

import argparse
import glob
import json
import os
import shutil
import subprocess
import sys

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("text", nargs="?", help="a text file")
parser.add_argument("--vocabulary", default="bytes", help="bytes, or GPT-2's vocab.bpe")
parser.add_argument("--steps", type=int, default=600)
parser.add_argument("--output", default="precision")
o = parser.parse_args()
if o.text:
    o.text = os.path.abspath(o.text)
if o.vocabulary != "bytes":
    o.vocabulary = os.path.abspath(o.vocabulary)
o.output = os.path.abspath(o.output)
os.chdir(os.path.dirname(os.path.abspath(__file__)) + "/..")
os.makedirs(o.output, exist_ok=True)

gpu = shutil.which("nvcc") and shutil.which("nvidia-smi")
gpu = gpu and subprocess.run(["nvidia-smi", "-L"], capture_output=True).returncode == 0
device = "cuda" if gpu else "cpu"
for target, precision in (("cpu", "fp32"), (device, "bf16")):
    subprocess.run(["make", "-s", "-j2", f"DEVICE={target}", f"PRECISION={precision}"], check=True)
if not o.text:
    o.text = f"{o.output}/text.txt"
    with open(o.text, "w") as out:
        for name in sorted(
            n
            for pattern in ("*.md", "*.cu", "layers/*.cuh", "layers/*/*.h", "data/*.h", "scripts/*.py")
            for n in glob.glob(pattern)
        ):
            out.write(open(name).read())
subprocess.run(
    [
        *"build/cpu-fp32/tokenize --validation 0.1 --output".split(),
        f"{o.output}/text",
        "--vocabulary",
        o.vocabulary,
        o.text,
    ],
    check=True,
)

# head size 64, so that a GPU takes flash attention; sizes that fp8 requires
model = [
    *("--train", f"{o.output}/text.train.bin", "--validation", f"{o.output}/text.validation.bin"),
    *"--layers 4 --hidden 128 --heads 2 --sequence 128 --batch 16 --micro-batch 16".split(),
    *f"--learning-rate 3e-3 --steps {o.steps} --evaluate-sequences 200".split(),
    *f"--evaluate-every {max(1, o.steps // 10)}".split(),
]
runs = {
    "fp32": ("cpu", "fp32", []),
    "fp32, another seed": ("cpu", "fp32", ["--seed", "4321"]),
    "bf16": (device, "bf16", []),
    "fp8": (device, "bf16", ["--fp8", "yes"]),
    "fp8, LM head too": (device, "bf16", ["--fp8", "yes", "--fp8-lm-head", "yes"]),
    "bf16 moments": (device, "bf16", ["--moments", "bf16"]),
    "…, no master weights": (device, "bf16", ["--moments", "bf16", "--master-weights", "no"]),
}
loss, curves = {}, []
for number, (name, (target, precision, extra)) in enumerate(runs.items()):
    metrics = f"{o.output}/{number}.jsonl"
    if os.path.exists(metrics):
        os.remove(metrics)
    result = subprocess.run(
        [f"build/{target}-{precision}/train_gpt", *model, *extra, "--metrics", metrics],
        capture_output=True,
        text=True,
    )
    if result.returncode:
        sys.exit(f"compare_precision.py: {name}: {result.stderr[-1000:]}")
    with open(metrics) as f:
        loss[name] = [json.loads(line) for line in f][-1]["validation_loss"]
    print(
        f"{name:20s} {target:5s} validation loss {loss[name]:.4f}  ({loss[name] - loss['fp32']:+.4f})",
        flush=True,
    )
    curves.append(f"{name}={metrics}")
draw = ["scripts/compare_runs.py", *curves, "--output", f"{o.output}/loss.svg"]
subprocess.run([sys.executable, *draw], check=True)
chance = abs(loss["fp32, another seed"] - loss["fp32"])
worst = max(abs(loss[name] - loss["fp32"]) for name in runs if not name.startswith("fp32"))
print(
    f"by chance {chance:.4f}, by precision {worst:.4f}: {'within' if worst <= 2 * chance else 'BEYOND'} twice"
    " the chance"
)
sys.exit(worst > 2 * chance)
