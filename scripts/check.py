#!/usr/bin/env python3
"""The architecture, checked without a compiler: the book and its seams, who includes whom, limits, comma
statements.

Run: make check (which also compiles every header alone: scripts/check_headers.py). Needs tree-sitter
(scripts/install.sh --with-check)."""

import ast
import re
import subprocess
import sys
from pathlib import Path

try:
    import tree_sitter_cuda
    from tree_sitter import Language, Parser
except ImportError:
    sys.exit("check.py: requires tree-sitter and tree-sitter-cuda: bash scripts/install.sh --with-check")

SOURCES = ("*.h", "*.cuh", "*.cu", "*.cpp")
SCRIPTS = ("scripts/*.sh", "scripts/*.py", "scripts/tour/*", "scripts/tour/site/*", ".ci/run", "Makefile")

# The book: how a transformer is trained over tensor-, pipeline- and data-parallel ranks. All else is an
# appendix, which the book does not include, but for the seams below
BOOK = ("layers/base", "comm", "data", "layers", "layers/model")
BOOK_ROOTS = ("train_gpt.cu", "layers/*.cuh", "layers/model/*.h", "comm/*.h", "comm/*.cpp")
BOOK_ROOTS += ("data/tokens.h", "data/loader.h")
# a folder includes only itself and what is listed here; train_gpt.cu includes the book, checks anything
ARROWS = {
    "layers/base": "",
    "comm": "layers/base",
    "data": "layers/base",
    "layers": "layers/base",
    "layers/model": "layers layers/base comm data",
    "layers/fast": "layers layers/base layers/emulator",
    "layers/emulator": "layers/base layers/fast",
    "layers/emulator/nccl": "layers/base layers/emulator",
    "layers/run": "layers/model layers layers/base layers/fast comm comm/mpi data",
    "layers/inference": "layers/run layers/model layers layers/fast layers/base comm comm/mpi data "
    "data/tasks",
    "layers/convert": "layers/run layers/model layers layers/base comm data",
    "layers/plan": "layers/run layers/model layers layers/base comm comm/mpi data",
    "layers/start": "layers/run layers/plan layers/inference layers/model layers/base comm comm/mpi data",
    "comm/mpi": "comm layers/base layers/emulator",
    "data/formats": "data layers/base",
    "data/tasks": "data layers/base",
    "data/corpus": "data/tasks data/formats data comm comm/mpi layers/base",
    "data/tokenize.cpp": "data/formats",  # a program, in a folder of the book
    "layers/compute.cu": "layers/fast layers/run",  # what all operations are compiled in
    "scripts/tour": "layers layers/base layers/fast",
}
# where the book reaches an appendix, and what for: these are all such places
SEAMS = {
    ("layers/base/device.h", "layers/emulator/streams_on_cpu.h"): "the device, emulated",
    ("layers/base/device.h", "layers/emulator/no_device.h"): "the host as the device",
    ("data/tokens.h", "data/formats/other_tokens.h"): "token files of other programs",
    ("data/loader.h", "data/formats/answers.h"): "--loss-on answers",
    ("comm/comm_nccl.cpp", "comm/mpi/nccl_watch.h"): "NCCL is bootstrapped over MPI, and watched",
    ("train_gpt.cu", "layers/start/start.h"): "options, files, memory; --plan, --generate",
    ("train_gpt.cu", "layers/run/trainer.h"): "samples ahead, reports, saves: what surrounds a step",
    ("train_gpt.cu", "layers/inference/evaluate.h"): "--evaluate while training",
    ("train_gpt.cu", "layers/plan/observe.h"): "each run checks its plan; --profile, --trace, --record",
}
MOST_IN_BOOK = {"files": 28, "lines": 6000}
MOST_INCLUDED = 7000  # lines that train_gpt.cu includes
TOP = """Makefile train_gpt.cu test_gpt.cu layers comm data scripts README.md LICENSE .gitignore .ci
.github""".split()

COLUMNS, FUNCTION = 110, 60
KERNEL = 127  # flash_backward_kernel's; the aim: 120
# besides layers/base and the emulator, the files that may test which device they are compiled for
DEVICE_CODE = ("autotune", "cublaslt", "fp8", "gemm_choice", "graph", "hopper", "mma", "turns")
DEVICE_CODE = {f"layers/fast/{name}.h" for name in DEVICE_CODE}

complaints = []


def complain(text):
    complaints.append(text)


def listed(*patterns):
    out = subprocess.check_output(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns], text=True
    )
    return [f for f in out.split() if Path(f).exists()]


def is_check(name):
    return Path(name).name.startswith(("test_", "testing")) or name.startswith("layers/run/bench")


def includes_of(name):
    for included in re.findall(r'^ *#include "([^"]*)"', Path(name).read_text(encoding="utf8"), re.M):
        yield str((Path(name).parent / included).resolve().relative_to(Path.cwd()))


def folder_of(name):
    return str(Path(name).parent)


def in_book(name):
    return folder_of(name) in BOOK or name == "train_gpt.cu"


def check_arrows(name):
    folder = folder_of(name)
    if name == "train_gpt.cu":
        allowed = set(BOOK)
    elif is_check(name):
        allowed = {*ARROWS, "."}  # in builds for checks, test_gpt is train_gpt too
    else:
        allowed = {folder, *ARROWS[folder].split()} if folder in ARROWS else set()
        allowed |= set(ARROWS.get(name, "").split())
    for included in includes_of(name):
        if folder_of(included) not in allowed and (name, included) not in SEAMS:
            complain(f"{name} includes {included}: {folder} may not include {folder_of(included)}")
        if is_check(included) and not is_check(name):
            complain(f"{name} includes {included}: only checks include checks")


def follow(names, through):
    """`names` and all that they include, directly or not; what a file includes counts if through(file)."""
    found, left = [], list(names)
    while left:
        name = left.pop()
        if name in found:
            continue
        found.append(name)
        if through(name):
            left += includes_of(name)
    return found


# ---- C++, as tree-sitter reads it --------------------------------------------------------------------------

# macros, and what replaces them for the parser
MACROS = (
    (r"^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", ""),
    (r"\bHOST_DEVICE\b|__launch_bounds__\([^;{]*?\)\)?(?=\s)", ""),
    (r"\b(?:DYNAMIC_)?SHARED\([^;]*\);", "int shared;"),
    (r"\bPRECISION_NAME\b", '""'),
)
CUDA = Parser(Language(tree_sitter_cuda.language()))
LIBRARIES = ("cblas_", "cublasLt")  # functions with their interfaces, which are not ours


def nodes_of(text):
    """All nodes of a file's syntax tree; lines are those of the file."""
    for macro, instead in MACROS:
        text = re.sub(macro, lambda found: instead + "\n" * found[0].count("\n"), text, flags=re.M)
    left = [CUDA.parse(text.encode()).root_node]
    while left:
        node = left.pop()
        yield node
        left += node.children


def check_function(name, node):
    declarator = node.child_by_field_name("declarator")
    while declarator is not None and declarator.type != "function_declarator":  # behind *, & and ()
        inner = declarator.child_by_field_name("declarator")
        declarator = inner or next(iter(declarator.named_children), None)
    if declarator is None:
        return
    at = f"{name}:{node.start_point.row + 1}: {declarator.child_by_field_name('declarator').text.decode()}"
    lines = node.end_point.row - node.start_point.row
    most = KERNEL if re.match(rb"[^{]*__(global|device)__", node.text) else FUNCTION
    if lines > most and not is_check(name):
        complain(f"{at} has {lines} lines, at most {most}")

    # 12 parameters for a layer's function and kernels, 8 for every other
    is_layer = name.endswith(".cuh") or name in ("layers/model/block.h", "layers/model/vocabulary.h")
    parameters = declarator.child_by_field_name("parameters").named_children
    count, most = sum(each.type != "comment" for each in parameters), 12 if is_layer else 8
    if count > most and not any(library in at for library in LIBRARIES):
        complain(f"{at} has {count} parameters, at most {most}")


def check_syntax(name, text):
    for node in nodes_of(text):
        if node.type == "function_definition":
            check_function(name, node)
        ends = node.parent is not None and node.parent.type in ("expression_statement", "return_statement")
        # std::vector<T> a((size_t)n), b(n) reads as one, and so do the operands of assembly
        is_other = ends and re.match(rb'std::[\w:]+<|[:"]|\(?asm|IN_OUT', node.parent.text)
        if node.type == "comma_expression" and ends and not is_other:
            complain(f"{name}:{node.start_point.row + 1}: a comma statement: one statement a line")


# ---- limits ------------------------------------------------------------------------------------------------


def check_size(name, text):
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > COLUMNS:
            complain(f"{name}:{number}: {len(line)} columns, at most {COLUMNS}")


def check_choices(name, text):
    """The transport, the device and the precision are chosen in one place."""
    chooses = ("layers/base/", "layers/emulator/", "layers/fast/bf16_")
    if name.startswith(chooses) or name in DEVICE_CODE or is_check(name):
        return
    for number, line in enumerate(text.split("\n"), 1):
        if "<<<" in line:
            complain(f"{name}:{number}: a launch outside LAUNCH")
        if re.match(r" *# *if", line) and not re.search(r"HAS_KERNELS|KERNELS_HERE|REF_HERE", line):
            complain(f"{name}:{number}: a preprocessor fence outside layers/base")


def check_options(texts):
    """Complains about options that nothing reads: they would have no effect."""
    table = "layers/run/config.h"
    code = "".join(text for name, text in texts.items() if not is_check(name))
    for option, field in re.findall(r'{"([\w-]+)", &O::(\w+)', texts[table]):
        if not re.search(rf"\b([a-z]?o|options|with|Options)(\.|->|::){field}\b(?!\s*=[^=])", code):
            complain(f"{table}: --{option}: nothing reads Options::{field}")


def check_operations(texts):
    """Complains about operations whose kernel no check compares with ref."""
    checks = "".join(text for name, text in texts.items() if is_check(name))
    for name, text in texts.items():
        named = r"struct (\w+)[^;{\n]*{(?!.*}).*\n(?:(?!^}).*\n)*? +void gpu\(Stream"
        for operation in re.findall(named, text, re.M):
            if name.startswith("layers/") and not re.search(rf"\b{operation}\b", checks):
                complain(f"{name}: no check compares {operation}'s ref() and gpu()")


def main():
    for name in listed():
        if name.split("/")[0] not in TOP:
            complain(f"{name}: the top level holds {', '.join(sorted(TOP))}")
    texts = {}
    for name in listed(*SOURCES):
        text = Path(name).read_text(encoding="utf8")
        texts[name] = text
        check_arrows(name)
        check_size(name, text)
        check_choices(name, text)
        check_syntax(name, text)

    check_options(texts)
    check_operations(texts)
    sizes = {name: text.count("\n") for name, text in texts.items()}
    for name in listed(*SCRIPTS):
        text = Path(name).read_text(encoding="utf8")
        for node in ast.walk(ast.parse(text)) if name.endswith(".py") else ():
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Tuple):
                complain(f"{name}:{node.lineno}: a comma statement: one statement a line")
        check_size(name, text)

    roots = [f for f in listed(*BOOK_ROOTS) if in_book(f) and not is_check(f)]
    book = [f for f in follow(roots, in_book) if in_book(f)]
    for seam in SEAMS:
        if seam[0] not in sizes or seam[1] not in includes_of(seam[0]):
            complain(f"{seam[0]} does not include {seam[1]}: no seam any more")
    lines = sum(sizes[f] for f in book)
    if len(book) > MOST_IN_BOOK["files"] or lines > MOST_IN_BOOK["lines"]:
        complain(f"the book has {lines} lines in {len(book)} files, at most {MOST_IN_BOOK}")
    said = f"the **book**: {len(book)} files, {round(lines, -2):,} lines"
    if said not in Path("README.md").read_text(encoding="utf8"):
        complain(f"README.md does not say '{said}'")
    # on a GPU, CUDA's own headers take the place of the emulated device
    compiled = follow(["train_gpt.cu"], lambda name: True)
    compiled = [f for f in compiled if not f.startswith("layers/emulator/")]
    included = sum(sizes[f] for f in compiled)
    if included > MOST_INCLUDED:
        complain(f"train_gpt.cu includes {included} lines, at most {MOST_INCLUDED}")
    if "--book" in sys.argv:
        print("\n".join(f"{sizes[name]:6}  {name}" for name in book))
    stripped = [line.strip() for f in book for line in Path(f).read_text(encoding="utf8").splitlines()]
    comments = sum(line.startswith("//") for line in stripped) / lines
    print(
        f"the book: {len(book)} files, {lines} lines ({comments:.1%} comments,"
        f" {stripped.count('') / lines:.1%} blank), {len(SEAMS)} seams; train_gpt.cu includes"
        f" {len(compiled) - 1} files, {included} lines in all; everything:"
        f" {len(sizes)} files, {sum(sizes.values())} lines"
    )
    for text in complaints:
        print("check:", text)
    return bool(complaints)


if __name__ == "__main__":
    sys.exit(main())
