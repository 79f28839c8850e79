#!/usr/bin/env bash
# The figures of MT-NLG's announcement, made again: a picture (SVG), a table (Markdown), its numbers (JSON).
# Run: bash scripts/figures.sh NAME [--output FOLDER] [--resume CHECKPOINTS] […]; without NAME it lists them.
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '2,3s/^# //p' "$0"; exit ;; esac
here=$(dirname "$0")/..
mkdir -p "$here/build"
# another script may build the same programs just now
flock "$here/build/.building" make -s -C "$here" DEVICE=cpu PRECISION=fp32 build/cpu-fp32/{train_gpt,tasks}
exec python3 "$here/scripts/figures.py" "$@"
