#!/usr/bin/env bash
# Everything about a GPU in thirteen minutes: bash scripts/first_contact.sh [OPTION…]
# One call ends with its report after --minutes (9.5), and names the part to go on from (--from) in another.
# Needs Python and, to build, nvcc; compares with PyTorch if it is installed, and runs ranks that share the
# GPU over NCCL if there is MPI. The most valuable parts run first; each is ended when its time is over, and
# one that fails does not stop the rest. Writes OUTPUT.json, OUTPUT.md and the folder OUTPUT with what each
# part printed.
#   --list           the parts, and the seconds that each may take
#   --from PART, --parts PART…
#   --prepare        builds everything into build/first_contact (less than 60 MB), for sm_90a where no GPU is;
#                    carried to a machine with the same sources, nothing is built there
#   --peer NAME=MODEL=COMMAND   another trainer, timed in turn: its lines with `N tok/s` or `N tokens/s` count
#   --rehearse       small, without a GPU: its figures mean nothing
set -euo pipefail
cd "$(dirname "$0")/.."
exec python3 scripts/first_contact.py "$@"
