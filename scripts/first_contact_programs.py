"""What first_contact.py runs, in one folder that can be carried to a machine with a GPU: the programs in all
variants, Open MPI's files, texts, and the CPU's losses."""

import array
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

from over_ranks import limited

FOLDER = Path("build/first_contact")
MOST = 60e6  # bytes
STEPS = 50  # of the losses
MODEL = (
    "--layers 2 --hidden 128 --heads 2 --sequence 64 --batch 8 --micro-batch 4 --learning-rate 1e-3".split()
)
# folder in FOLDER: make's settings, programs, and the build that stands in for it in a rehearsal
VARIANTS = {
    "bf16": ("DEVICE=cuda PRECISION=bf16 COMM=single", "train_gpt test_gpt", "emulated-bf16"),
    "fp32": ("DEVICE=cuda PRECISION=fp32 COMM=single", "train_gpt", "emulated-fp32"),
    "bf16-nccl": ("DEVICE=cuda PRECISION=bf16 COMM=nccl", "train_gpt", "emulated-bf16-nccl"),
    "fp32-nccl": ("DEVICE=cuda PRECISION=fp32 COMM=nccl", "train_gpt", "emulated-fp32-nccl"),
    "cpu": ("DEVICE=cpu PRECISION=fp32 COMM=single", "train_gpt tokenize", "cpu-fp32"),
}


def program(variant, name, rehearse):
    return Path("build", VARIANTS[variant][2], name) if rehearse else FOLDER / variant / name


def here(*words):
    done = limited(words, 60)
    return done.stdout.strip() if done.returncode == 0 else ""


def commit():
    return here("git", "rev-parse", "HEAD")


def sources():
    """A checksum of all sources of the programs, in a copy with or without git."""
    folders = [path for folder in ("layers", "comm", "data") for path in Path(folder).rglob("*.*")]
    files = [Path(name) for name in ("train_gpt.cu", "test_gpt.cu", "Makefile")]
    files += [path for path in folders if path.suffix in (".h", ".cuh", ".cpp", ".cu")]
    sums = [f"{path} {hashlib.sha256(path.read_bytes()).hexdigest()}\n" for path in sorted(files)]
    return hashlib.sha256("".join(sums).encode()).hexdigest()


def build(arch):
    """All variants, beside the builds of this machine; the CPU's for any processor with AVX2, with plain
    loops as BLAS."""
    Path("build").mkdir(exist_ok=True)
    plain = "build/plain_blas.o"
    words = f"g++ -O3 -march=x86-64-v3 -fopenmp -c -o {plain} layers/base/plain_blas.cpp"
    subprocess.run(words.split(), check=True)
    code = "native" if arch == "native" else f"-gencode arch=compute_{arch},code=sm_{arch}"
    for variant, (settings, names, _) in VARIANTS.items():
        device, precision, transport = (word.split("=")[1] for word in settings.split())
        if transport == "nccl" and not (shutil.which("mpicxx") and here("make", "-s", "nccl-folder")):
            print(f"{variant} is left out: no MPI or no NCCL is here")
            continue
        objects = f"build/carried-{arch}-{device}-{precision}"
        programs = [f"{objects}-{transport}/{name}" for name in names.split()]
        where = [f"OBJECTS={objects}", "TOOLS=build/carried-host", f"BLAS={plain}"]
        how = [f"GPU_CODE={code}", "ARCH=x86-64-v3", *settings.split()]
        subprocess.run(["make", "-s", f"-j{os.cpu_count() or 2}", *where, *how, *programs], check=True)
        (FOLDER / variant).mkdir(parents=True)
        for each in programs:
            shutil.copy2(each, FOLDER / variant)
            subprocess.run(["strip", FOLDER / variant / Path(each).name], check=True)


def libraries_of(paths):
    """The shared libraries that these files load, but those that belong to the C library and the compiler."""
    own = re.compile(r"ld-linux|linux-vdso|lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+|gomp)\.so")
    listed = here("ldd", *paths)
    found = re.findall(r"(\S+) => (/\S+)", listed)
    return {name: Path(path) for name, path in found if not own.search(name)}


def carry_mpi():
    """Open MPI's programs, plugins and libraries, as Debian has them; libraries_environment() finds them."""
    launcher = shutil.which("orterun")
    if not launcher:
        return print("Open MPI is left out: no orterun is here")
    libraries = Path("/usr/lib", f"{platform.machine()}-linux-gnu")
    to = FOLDER / "mpi"
    for folder in ("bin", "lib/openmpi3", "lib/pmix", "share"):
        (to / folder).mkdir(parents=True)
    shutil.copy2(launcher, to / "bin/mpirun")
    shutil.copy2(Path(launcher).with_name("orted"), to / "bin")
    for plugins, name in (
        (libraries / "openmpi/lib/openmpi3", "openmpi3"),
        (libraries / "pmix2/lib/pmix", "pmix"),
    ):
        for plugin in plugins.glob("*.so"):
            if "not found" not in here("ldd", plugin):
                shutil.copy2(plugin, to / "lib" / name)
    for name in ("openmpi", "pmix"):
        if Path("/usr/share", name).is_dir():
            shutil.copytree(Path("/usr/share", name), to / "share" / name)
    loading = [launcher, libraries / "libmpi.so.40", *(to / "lib").glob("*/*.so")]
    for name, path in libraries_of(loading).items():
        shutil.copy2(path.resolve(), to / "lib" / name)
    shutil.copy2((libraries / "libmpi.so.40").resolve(), to / "lib/libmpi.so.40")


def libraries_environment(python):
    """The variables with which the carried Open MPI runs, from wherever the folder lies, and a program finds
    NCCL, which may be the one that PyTorch brings."""
    path = [os.environ.get("LD_LIBRARY_PATH", "")]
    if "libnccl.so" not in here("ldconfig", "-p"):
        path.append(here(python, "-c", "import nvidia.nccl; print(nvidia.nccl.__path__[0] + '/lib')"))
    root = (FOLDER / "mpi").resolve()
    if not root.is_dir():
        return {"LD_LIBRARY_PATH": ":".join(filter(None, path))}
    return {
        "PATH": f"{root}/bin:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": ":".join(filter(None, [f"{root}/lib", *path])),
        "OPAL_PREFIX": f"{root}",
        "OPAL_LIBDIR": f"{root}/lib",
        "OPAL_PKGDATADIR": f"{root}/share/openmpi",
        "PMIX_PREFIX": f"{root}",
        "PMIX_LIBDIR": f"{root}/lib",
        "PMIX_PKGLIBDIR": f"{root}/lib/pmix",
        "PMIX_PKGDATADIR": f"{root}/share/pmix",
        "OMPI_MCA_btl": "self,vader,tcp",
    }


def make_tokens(path, count):
    """Meaningless tokens, in llm.c's format: a step's time does not depend on them."""
    tokens = array.array("H", ((i * 7919 + i // 13) % 50257 for i in range(count)))
    header = array.array("i", [20240520, 1, len(tokens)] + [0] * 253)
    path.write_bytes(header.tobytes() + tokens.tobytes())


def losses_of(command, metrics, seconds, environment):
    """The losses of each step, or an error in the program's own words."""
    metrics.unlink(missing_ok=True)
    done = limited([*command, "--metrics", metrics], seconds, env=environment)
    if done.returncode:
        lines = (done.stderr.strip() or "no message").splitlines()
        told = [line for line in lines if "train_gpt:" in line] or [lines[-1]]
        raise RuntimeError(f"exit {done.returncode}: {told[0]}\n" + "\n".join(lines[-30:]))
    return [json.loads(line)["loss"] for line in metrics.read_text().splitlines()], done


def prepare_texts(folder, rehearse, steps):
    """folder/text.bin, and the losses of the CPU on it."""
    folder.mkdir(parents=True, exist_ok=True)
    words = [program("cpu", "tokenize", rehearse), "--vocabulary", "bytes", "--output", folder / "text"]
    subprocess.run([*map(str, words), "README.md"], check=True, stdout=subprocess.DEVNULL)
    train = [program("cpu", "train_gpt", rehearse), "--train", folder / "text.bin", *MODEL, "--steps", steps]
    losses, _ = losses_of(train, folder / "cpu.jsonl", 300, dict(os.environ))
    return losses


def prepared():
    """What the folder says of itself."""
    try:
        return json.loads((FOLDER / "prepared.json").read_text())
    except (OSError, ValueError):
        return {}


def is_prepared():
    """Whether the folder was made from these sources."""
    return prepared().get("sources") == sources()


def prepare(arch):
    shutil.rmtree(FOLDER, ignore_errors=True)
    build(arch)
    carry_mpi()
    losses = prepare_texts(FOLDER, False, STEPS)
    (FOLDER / "prepared.json").write_text(
        json.dumps(
            {"commit": commit(), "sources": sources(), "arch": arch, "steps": STEPS, "cpu": losses}
        )
        + "\n"
    )
    size = sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file())
    print(f"{FOLDER}: {size / 1e6:.1f} MB, carried to a machine with a GPU it needs no building there")
    if size > MOST:
        sys.exit(f"first_contact.sh: {FOLDER} has {size / 1e6:.1f} MB: must be at most {MOST / 1e6:.0f}")
