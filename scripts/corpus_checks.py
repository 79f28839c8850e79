"""What the checks of ./corpus share: starting it, documents in and out, made-up prose."""

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

from over_ranks import check, environment as ENVIRONMENT

CORPUS, TRAINER = (os.path.abspath(p) for p in sys.argv[1:3])
SHARED = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", "shared", "data"))


def run(*words, ranks=0, fails=None):
    """The program's output; each of words: one or several; fails: what it must say, exiting with 1."""
    command = ["mpirun", "-n", str(ranks)] if ranks else []
    command += [CORPUS, *" ".join(map(str, words)).split()]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=600)
    if fails is None:
        check(done.returncode == 0, f"{words}: {done.stderr[-500:]}")
    else:
        check(
            done.returncode == 1 and done.stderr.count(fails) == 1,
            f"{words} does not say {fails}: {done.stderr[-300:]}",
        )
    return done.stdout


def write(path, documents):
    with open(path, "w") as f:
        for i, d in enumerate(documents):
            f.write(json.dumps(d if isinstance(d, dict) else {"text": d, "id": f"d{i}"}) + "\n")
    return path


def read(path):
    with open(path, encoding="utf8") as f:
        return [json.loads(line) for line in f]


def counts(folder, step):
    return json.load(open(f"{folder}/{step}.json"))


def tree(folder):
    """Every file below a folder, by its bytes."""
    out = {}
    for where, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(where, name)
            out[os.path.relpath(path, folder)] = hashlib.sha256(open(path, "rb").read()).hexdigest()
    return out


# words for made-up prose: those of these checks' own sources
SOURCES = sorted(Path(__file__).parent.glob("corpus_*.py"))
WORDS = [w for path in SOURCES for w in re.findall(r"[a-z]{2,9}", path.read_text().lower())]


def sentence(r, n=12):
    return " ".join(r.choice(WORDS) for _ in range(n)).capitalize() + ". "


def prose(r, characters):
    out = ""
    while len(out) < characters:
        out += sentence(r, r.randint(5, 20))
    return out.strip()
