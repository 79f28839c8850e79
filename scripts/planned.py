"""MT-NLG's run as --plan plans it: what figures share."""

import json
import sys
from pathlib import Path

from over_ranks import environment, limited, words

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "build/cpu-fp32/train_gpt"
MTNLG = ROOT / "scripts/mtnlg-530b.conf"


def plan_of(options):
    """--plan as a dict, also where a layout does not fit."""
    command = [PROGRAM, "--plan", *words({"plan-json": "-", **options})]
    done = limited(command, 120, cwd=ROOT, env=environment)
    if not done.stdout.startswith("{"):
        sys.exit(f"figures.py: {done.stderr.strip()}")
    return json.loads(done.stdout)


def plan(options):
    return plan_of({"config": MTNLG, **options})
