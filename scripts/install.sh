#!/usr/bin/env bash
# Installs what is missing to build and run on this machine, and nothing else; silent when nothing is missing.
# --with-onednn: also oneDNN, for GEMMs in bf16 on a CPU.
# --with-corpus: also the libraries of ./corpus, which nothing else needs.
# --with-cluster-tests: also Slurm, sshd and ip, for the checks of launchers and of several hosts.
# --with-tour: also the two Python libraries of scripts/tour.
# --with-browser: also Chromium and what drives it, for the check that walks the tour, and TensorBoard.
# --with-check: also tree-sitter, for make check.
# Debian and Ubuntu (apt-get, through sudo where needed), Fedora and its kin (dnf); elsewhere it says what to
# install.
set -euo pipefail
cd "$(dirname "$0")/.."

with_onednn=no with_corpus=no with_cluster=no with_tour=no with_browser=no with_check=no
for option in "$@"; do
    case "$option" in
        --with-onednn) with_onednn=yes ;;
        --with-corpus) with_corpus=yes ;;
        --with-cluster-tests) with_cluster=yes ;;
        --with-tour) with_tour=yes ;;
        --with-browser) with_tour=yes with_browser=yes ;;
        --with-check) with_check=yes ;;
        -h | --help) sed -n '2,10s/^# //p' "scripts/${0##*/}"; exit ;;
        *) echo "install.sh: unknown option $option: did you mean --with-corpus?" >&2; exit 1 ;;
    esac
done

read -ra compiler <<< "${CXX:-g++}"  # of several words with ccache
missing() {  # the names of what is not there
    command -v "${compiler[0]}" >/dev/null && echo 'int main() {}' |
        "${compiler[@]}" -std=c++20 -fopenmp -x c++ - -o /dev/null 2>/dev/null || echo compiler
    command -v make >/dev/null || echo make
    command -v python3 >/dev/null || echo python
    command -v mpicxx >/dev/null && command -v mpirun >/dev/null || echo mpi
    if command -v make >/dev/null && command -v "${compiler[0]}" >/dev/null; then
        make -s found >/dev/null 2>&1 || echo blas
    else
        echo blas
    fi
    [ $with_onednn = no ] || [ -n "$(make -s onednn-flags 2>/dev/null)" ] || echo onednn
    [ $with_corpus = no ] || make -s corpus-found >/dev/null 2>&1 || echo corpus
    [ $with_corpus = no ] || command -v aria2c >/dev/null || echo aria2
    [ $with_cluster = no ] || command -v slurmctld >/dev/null || echo slurm
    [ $with_cluster = no ] || command -v sshd >/dev/null || [ -x /usr/sbin/sshd ] || echo sshd
    [ $with_cluster = no ] || command -v ip >/dev/null || [ -x /usr/sbin/ip ] || echo ip
    [ $with_browser = no ] || command -v chromedriver >/dev/null || echo browser
}

packages() {  # packages apt|dnf NAME…
    local system=$1 name
    shift
    for name in "$@"; do
        case $system-$name in
            *-make) echo make ;;
            *-python) echo python3 ;;
            *-aria2) echo aria2 ;;
            apt-compiler) echo g++ ;;
            apt-mpi) echo libopenmpi-dev openmpi-bin ;;
            dnf-mpi) echo openmpi-devel ;;
            apt-slurm) echo slurmctld slurmd slurm-client ;;
            dnf-slurm) echo slurm-slurmctld slurm-slurmd ;;
            apt-sshd) echo openssh-server openssh-client ;;
            dnf-sshd) echo openssh-server openssh-clients ;;
            apt-ip) echo iproute2 ;;
            dnf-ip) echo iproute ;;
            apt-browser) echo chromium chromium-driver ;;
            dnf-browser) echo chromium chromedriver ;;
            apt-blas) echo libopenblas-openmp-dev ;;
            apt-onednn) echo libdnnl-dev ;;
            dnf-onednn) echo onednn-devel ;;
            dnf-compiler) echo gcc-c++ ;;
            dnf-blas) echo openblas-devel openblas-openmp ;;
            apt-corpus) echo libxml2-dev libcld2-dev libfasttext-dev libbrotli-dev libuchardet-dev \
                libutf8proc-dev libsimdjson-dev libxxhash-dev libzstd-dev zlib1g-dev \
                libssl-dev ;;
            dnf-corpus) echo libxml2-devel cld2-devel fasttext-devel brotli-devel uchardet-devel \
                utf8proc-devel simdjson-devel xxhash-devel libzstd-devel zlib-devel openssl-devel ;;
        esac
    done
}

python_library() {  # python_library IMPORT PACKAGE…: from PyPI, into the python that is used here
    if python3 -c "import $1" 2>/dev/null; then return; fi
    shift
    echo "installing: $*"
    python3 -m pip install -q --root-user-action=ignore "$@" 2>/dev/null ||
        python3 -m pip install -q --user --break-system-packages "$@"
}
if [ $with_check = yes ]; then python_library tree_sitter,tree_sitter_cuda tree-sitter tree-sitter-cuda; fi
if [ $with_tour = yes ]; then
    python_library pygments pygments
    python_library latex2mathml latex2mathml
fi
if [ $with_browser = yes ]; then
    python_library selenium selenium
    python_library axe_core_python axe-core-python
    python_library tensorboard tensorboard
fi

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
        # where it fails, what is still missing is told below
        "${root[@]}" apt-get update -qq || true
        DEBIAN_FRONTEND=noninteractive "${root[@]}" apt-get install -y -qq $list >/dev/null || true
    fi
elif command -v dnf >/dev/null; then
    list=$(packages dnf $needed | tr '\n' ' ')
    command="dnf install -y $list"
    if able; then
        echo "installing: $list"
        "${root[@]}" dnf install -y -q $list >/dev/null || true
    fi
else
    command="your package manager: a C++20 compiler with OpenMP, make, python3, OpenBLAS built for OpenMP,"
    command+=" and Open MPI"
    corpus="libxml2, CLD2, fastText, brotli, uchardet, utf8proc, simdjson, xxhash, zstd, zlib"
    [ $with_onednn = no ] || command+="; oneDNN"
    [ $with_corpus = no ] || command+="; $corpus, OpenSSL, aria2"
fi

if ! command -v mpirun >/dev/null && [ -x /usr/lib64/openmpi/bin/mpirun ]; then
    echo "install.sh: Open MPI is in /usr/lib64/openmpi/bin: module load mpi/openmpi-x86_64, then again" >&2
    exit 1
fi
left=$(missing)
if [ -n "$left" ]; then
    echo "install.sh: still missing: $(echo $left). Install with: $command" >&2
    exit 1
fi
