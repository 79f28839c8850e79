#!/usr/bin/env bash
# Everything about a GPU in one call: bash scripts/first_contact.sh [--minutes 9] [--output first_contact]
# Needs nvcc and Python; compares with PyTorch if it is installed, and runs over NCCL if there is MPI. Builds
# for this GPU only, checks every kernel, compares training losses with the CPU's, looks for races and invalid
# accesses, times kernels and steps. The most valuable parts run first; one that fails does not stop the rest.
# Writes OUTPUT.json, OUTPUT.md and the folder OUTPUT with what each part printed. --rehearse: small, without
# a GPU; its figures mean nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
exec python3 scripts/first_contact.py "$@"
