#!/usr/bin/env bash
# Installs what is missing to build and run on this machine, and nothing else; silent when nothing is missing.
# Debian and Ubuntu (apt-get, through sudo where needed), Fedora and its kin (dnf); elsewhere it says what to install.
set -euo pipefail
cd "$(dirname "$0")/.."

missing() {  # the names of what is not there
    command -v "${CXX:-g++}" >/dev/null && echo 'int main() {}' |
        "${CXX:-g++}" -std=c++20 -fopenmp -x c++ - -o /dev/null 2>/dev/null || echo compiler
    command -v make >/dev/null || echo make
    command -v python3 >/dev/null || echo python
    command -v mpicxx >/dev/null && command -v mpirun >/dev/null || echo mpi
    if command -v make >/dev/null && command -v "${CXX:-g++}" >/dev/null; then
        make -s found >/dev/null 2>&1 || echo blas
    else
        echo blas
    fi
}

packages() {  # packages apt|dnf NAME…
    local system=$1 name
    shift
    for name in "$@"; do
        case $system-$name in
            *-make) echo make ;;
            *-python) echo python3 ;;
            apt-compiler) echo g++ ;;
            apt-mpi) echo libopenmpi-dev openmpi-bin ;;
            dnf-mpi) echo openmpi-devel ;;
            apt-blas) echo libopenblas-openmp-dev ;;
            dnf-compiler) echo gcc-c++ ;;
            dnf-blas) echo openblas-devel openblas-openmp ;;
        esac
    done
}

needed=$(missing)
[ -z "$needed" ] && exit 0

root=()
if [ "$(id -u)" != 0 ]; then root=(sudo); fi
able() { [ "$(id -u)" = 0 ] || command -v sudo >/dev/null; }
if command -v apt-get >/dev/null; then
    list=$(packages apt $needed | tr '\n' ' ')
    command="apt-get install -y $list"
    if able; then
        echo "installing: $list"
        "${root[@]}" apt-get update -qq
        DEBIAN_FRONTEND=noninteractive "${root[@]}" apt-get install -y -qq $list >/dev/null
    fi
elif command -v dnf >/dev/null; then
    list=$(packages dnf $needed | tr '\n' ' ')
    command="dnf install -y $list"
    if able; then
        echo "installing: $list"
        "${root[@]}" dnf install -y -q $list >/dev/null
    fi
else
    command="your package manager: a C++20 compiler with OpenMP, make, python3, OpenBLAS built for OpenMP, and Open MPI"
fi

left=$(missing)
if [ -n "$left" ]; then
    echo "install.sh: still missing: $(echo $left). Install with: $command" >&2
    exit 1
fi
