#!/usr/bin/env python3
"""Does every header compile alone? Run: make check

A header that comes after others, all of which it includes itself, is read as if it stood alone. So one
compilation serves a chain of headers, each of which includes the one before, directly or not; there are as
few chains as can be. Headers that may have kernels are compiled with them (DEVICE_EMULATED). The corpus's,
MPI's and NCCL's headers are left out where their libraries are missing; those of checks are compiled by
./test_gpt."""

import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

from check import follow, is_check, listed

MAY_HAVE_KERNELS = re.compile(
    r"layers/[^/]*$|layers/(base|fast|emulator)/(?!no_device)|comm/mpi/nccl_"
)


def printed(command):
    """What it prints; nothing if it fails."""
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def chains(headers):
    """`headers` as the fewest lists in which each includes the one before. A maximum matching gives headers
    their successors; a list begins with each header that is nobody's successor."""
    included = {name: set(follow([name], lambda _: True)) - {name} for name in headers}
    before = {}

    def find_next(name, tried):
        for other in headers:
            if name in included[other] and other not in tried:
                tried.add(other)
                if other not in before or find_next(before[other], tried):
                    before[other] = name
                    return True
        return False

    for name in headers:
        find_next(name, set())
    after = {name: other for other, name in before.items()}
    for first in headers:
        if first not in before:
            chain = [first]
            while chain[-1] in after:
                chain.append(after[chain[-1]])
            yield chain


def compile_chain(chain, flags):
    """What the compiler says, if anything."""
    with tempfile.NamedTemporaryFile("w", suffix=".cpp") as file:
        file.write("".join(f'#include "{os.path.abspath(name)}"\n' for name in chain))
        file.flush()
        compiler = [os.environ.get("CXX", "g++"), "-std=c++20", "-fopenmp", "-fsyntax-only", "-w", *flags]
        done = subprocess.run([*compiler, file.name], capture_output=True, text=True)
    return f"check: {' < '.join(chain)}:\n{done.stderr}" if done.returncode else ""


def main():
    mpi = printed("mpicxx --showme:compile").split()
    nccl = printed("make -s nccl-folder")
    flags = [*mpi, "-I/usr/include/libxml2"]
    if nccl:
        flags += ["-Ilayers/emulator/nccl", "-idirafter", nccl]
    missing = [] if printed("make -s corpus-found && echo found") else ["data/corpus/"]
    missing += [] if mpi else ["comm/mpi/mpi_world.h", "comm/mpi/nccl_"]
    missing += [] if nccl else ["layers/emulator/nccl/", "comm/mpi/nccl_"]
    headers = [f for f in listed("*.h", "*.cuh") if not is_check(f) and not f.startswith(tuple(missing))]
    kernels = [f for f in headers if MAY_HAVE_KERNELS.match(f)]
    groups = (
        ([f for f in headers if not MAY_HAVE_KERNELS.match(f)], flags),
        (kernels, [*flags, "-DDEVICE_EMULATED", "-DCOMPUTES_HERE"]),
        (kernels, [*flags, "-DDEVICE_EMULATED"]),  # as all but layers/compute.cu sees them
    )
    work = [(chain, flags) for names, flags in groups for chain in chains(names)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        said = list(filter(None, pool.map(compile_chain, *zip(*work))))
    print("".join(said), end="")
    print(f"{len(headers)} headers alone, in {len(work)} compilations: {len(said)} failed")
    return bool(said)


if __name__ == "__main__":
    sys.exit(main())
