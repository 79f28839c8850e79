#!/usr/bin/env python3
"""Runs what the READMEs show: python3 scripts/test_readme.py BUILD (one for CPUs in fp32).

Every command in a fenced block of a README is run, in one folder, in the order in which the READMEs are read,
at toy sizes where the real ones would take hours (RULES), and must succeed. Files that are named must exist,
and planned figures must be those that the program prints. The last line is `N passed, N failed`."""

import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

from over_ranks import check, environment, finish

build = os.path.abspath(sys.argv[1])
root = os.path.abspath(os.path.join(os.path.dirname(__file__), ".."))
work = tempfile.mkdtemp()
READMES = """README.md data/README.md layers/README.md layers/inference/README.md layers/plan/README.md
comm/README.md data/tasks/README.md data/corpus/README.md scripts/README.md""".split()
EXAMPLES = ("corpus.conf", "train.blend")  # files of the reader's own
listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
tree = subprocess.check_output(listed, cwd=root, text=True).split()

# what a command becomes: (pattern, replacement); "" where another check runs the very command
TOY = "--layers 2 --hidden 32 --heads 2 --sequence 32"
RULES = [
    (r"^bash scripts/(demo|test|replica|tour)\.sh.*", ""),  # test.sh runs two of these, CI the others
    (r"^bash scripts/install\.sh --with-corpus && make corpus$", ""),  # CI's first step
    (r"^bash scripts/crawl\.sh .*", ""),  # scripts/test_corpus.py
    (r"^\./corpus run .*|.*corpus/tokens/train\.blend.*", ""),  # scripts/test_corpus.py
    (
        r"^bash scripts/launch_mpirun\.sh .*|^sbatch .*|^bash scripts/launch_530b\.sh .*",
        "",
    ),  # test_parallel.py
    (r"^bash scripts/status\.sh .*", ""),  # test_faults.py
    (r"^python3 scripts/serve\.py .*", ""),  # test_serve.py
    (r"^\./train_gpt … ", f"./train_gpt --train data.train.bin --batch 4 --steps 4 {TOY} "),
    (r"^make profile$", f"{build}/test_gpt profile --sequence 32 --micro-batch 1"),
    (r"--model 124M (--train data.*)--batch 512 --micro-batch 8", TOY + r" \1--batch 8 --micro-batch 4"),
    (r"--until-tokens 10e9", "--until-tokens 3000"),
    (r"--save-every 500", "--save-every 5"),
    (r"--steps 100 --save four", "--steps 3 --save four"),
    (r"(--generate \"[^\"]*\")", r"\1 --sample-tokens 5"),
    (r"(scripts/bias\.py .*)", r"\1 --samples 1 --tokens 3"),
    (r"--steps 200 --save base", "--steps 5 --save base"),
    (r"--loss-on answers --batch 16 --steps 700", "--loss-on answers --batch 16 --steps 8"),
]


def commands(text):
    """Of the fenced blocks: lines that begin as a command, continuation lines joined, comments cut; or the
    whole, where it holds a program."""
    for block in re.findall(r"^```\n(.*?)^```", text, re.S | re.M):
        if "<<'" in block:
            yield block.strip()
            continue
        for line in re.sub(r"\\\n\s*", "", block).split("\n"):
            line = re.sub(r"\s+#.*", "", line).strip()
            if re.match(r"(\./|bash |python3 |mpirun |sbatch |make )", line):
                yield line


def prepare():
    """The files that the READMEs take for granted."""
    os.symlink(f"{root}/scripts", f"{work}/scripts")
    for name in ("train_gpt", "tokenize", "tasks"):
        os.symlink(f"{build}/{name}", f"{work}/{name}")
    with open(f"{work}/text.txt", "w") as f:
        f.write("It was the best of times, it was the worst of times. " * 400)
    with open(f"{work}/questions.jsonl", "w") as f:
        f.write('{"context": "It was", "continuations": [" the best", " not"], "gold": 0}\n')
    with open(f"{work}/prompts.jsonl", "w") as f:
        f.write('{"prompt": "It was", "tokens": 5}\n')


def run(readme, command):
    words = command
    for pattern, replacement in RULES:
        words = re.sub(pattern, replacement, words)
        if not words:
            return
    result = subprocess.run(
        ["bash", "-c", words], cwd=work, env=environment, capture_output=True, text=True, errors="replace"
    )
    check(
        result.returncode == 0,
        f"{readme}: {command}\n    as {words}\n{(result.stdout + result.stderr)[-800:]}",
    )


def check_files(readme, text):
    """Links, and paths in backquotes that look like files of the repository."""
    folder = os.path.dirname(f"{root}/{readme}")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        check(os.path.exists(os.path.join(folder, target)), f"{readme} links to {target}")
    for name in re.findall(r"`((?:[\w.]+/)*[\w*]+\.(?:h|cuh|cu|cpp|py|sh|conf|blend))`", text):
        if "*" not in name and name not in EXAMPLES:
            check(any(path == name or path.endswith("/" + name) for path in tree), f"{readme} names {name}")


def check_plans():
    """The planned seconds are those that the program prints."""
    with open(f"{root}/layers/plan/README.md") as f:
        text = f.read()
    with open(f"{root}/README.md") as f:
        shown = f.read()
    rows = re.findall(r"^\| [^|]+ \| ([\d.]+) \| ([\d.]+) \| ([-+][\d.]+) % \|", text, re.M)
    command = ["./train_gpt", "--plan", "published"]
    out = subprocess.run(command, cwd=work, capture_output=True, text=True).stdout
    printed = re.findall(r" ([\d.]+) +([\d.]+) +([-+][\d.]+) %$", out.split("not fitted")[0], re.M)
    check(len(rows) == 7, "seven published runs")

    for row, says in zip(rows, printed, strict=True):
        same = row[0] == says[0] and float(row[1]) == float(says[1]) and row[2] == says[2]
        check(same, f"a published run: layers/plan/README.md has {row}, the program says {says}")
    for planned, *_ in rows[4:]:
        check(re.search(rf"\b{planned}\b", shown), f"README.md has the planned {planned} s")

    today = "scripts/mtnlg-530b-today.conf", "scripts/mtnlg-530b.conf --ramp-start 0"
    for name, config, gpu in (
        ("A100, as MT-NLG was trained", today[1], "dgx-a100"),
        ("A100, today's layout", today[0], "dgx-a100"),
        ("H100, today's layout", today[0], "dgx-h100"),
    ):
        found = re.search(rf"^\| {name} \| ([\d.]+) s \| ([\d.]+) s \|$", text, re.M)
        check(found, f"the table has {name}")
        for efficiency, seconds in zip(("0.545", "0.765"), found.groups() if found else ()):
            words = f"./train_gpt --config {config} --world-size 2240 --plan --hardware {gpu}"
            words += f" --gemm-efficiency {efficiency}"
            done = subprocess.run(words.split(), cwd=work, capture_output=True, text=True)
            planned = f"step            {seconds} s on {gpu}" in done.stdout and done.returncode == 0
            check(planned, f"{name}, {efficiency}: wants {seconds} s: {done.stderr}")


def check_layouts():
    """Configurations that are said to be laid out as --plan search finds are."""
    names = ("tensor-parallel", "pipeline-parallel", "pipeline-chunks", "micro-batch", "recompute")
    usual = {"tensor-parallel": "1", "pipeline-parallel": "1", "pipeline-chunks": "1", "recompute": "none"}
    found = 0
    for path in sorted(glob.glob(f"{root}/scripts/*.conf")):
        with open(path) as f:
            text = f.read()
        command = re.search(r"^#   .* --world-size (\d+) .*--hardware (\S+)", text, re.M)
        if "--plan search" not in text or not command:
            continue
        found += 1
        options = {**usual, **dict(re.findall(r"^(\S+) (\S+)$", text, re.M))}
        words = f"./train_gpt --model {options['model']} --batch {options['batch']} --plan search"
        words += f" --world-size {command[1]} --hardware {command[2]}"
        out = subprocess.run(words.split(), cwd=work, capture_output=True, text=True).stdout
        rows = [row.split() for row in out.splitlines() if re.match(r" +\d+ +\d+ +\d+ +\d+ +\d+ +[a-z]", row)]
        roomy = [row for row in rows if float(row[9]) <= 80 * 11 / 12]
        best = [roomy[0][i] for i in (0, 2, 3, 4, 5)] if roomy else None
        has = [options[name] for name in names]
        check(has == best, f"{path}: has {has}, --plan search finds {best}")
    check(found == 7, f"{found} configurations are laid out by --plan search, expected 7")


try:
    prepare()
    for readme in READMES:
        with open(f"{root}/{readme}") as f:
            text = f.read()
        check_files(readme, text)
        for command in commands(text):
            run(readme, command)
    check_plans()
    check_layouts()
finally:
    shutil.rmtree(work)
finish()
