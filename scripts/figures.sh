#!/usr/bin/env bash
# The figures of MT-NLG's announcement, made again: a picture (SVG), a table (Markdown), its numbers (JSON).
# Run: bash scripts/figures.sh NAME [--output FOLDER] [--resume CHECKPOINTS] […]; without NAME it lists them.
set -euo pipefail
cd "$(dirname "$0")/.."
[ "${1:-}" != --help ] || { sed -n '2,3s/^# //p' "scripts/${0##*/}"; exit; }
mkdir -p build
# another script may build the same programs just now
flock build/.building make -s DEVICE=cpu PRECISION=fp32 build/cpu-fp32/{train_gpt,tasks}
exec python3 scripts/figures.py "$@"
