#!/usr/bin/env bash
# Everything about a GPU in one call: bash scripts/first_contact.sh [--minutes 9] [--output first_contact]
# Wants nvcc and Python; beside PyTorch where it is installed, over NCCL where there is MPI. Builds for this
# GPU alone, checks every kernel, trains against the CPU's losses, looks for races and bad accesses, times
# kernels and steps; what fails does not hide the rest, what is worth most comes first. Writes OUTPUT.json,
# OUTPUT.md and the folder OUTPUT with what each part printed. --rehearse: small, without a GPU; its figures
# mean nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
exec python3 scripts/first_contact.py "$@"
