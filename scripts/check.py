#!/usr/bin/env python3
"""The architecture, checked without a compiler: the book and its seams, who includes whom, limits, comma
statements.

Run: make check (which also compiles every header alone: scripts/check_headers.py)."""

import ast
import re
import subprocess
import sys
from pathlib import Path

SOURCES = ("*.h", "*.cuh", "*.cu", "*.cpp")
SCRIPTS = ("scripts/*.sh", "scripts/*.py", "scripts/tour/*", "scripts/tour/site/*", ".ci/run", "Makefile")

# The book: how a transformer is trained over tensor-, pipeline- and data-parallel ranks. All else is an
# appendix, which the book does not include, but for the seams below
BOOK = ("layers/base", "comm", "data", "layers", "layers/model")
BOOK_ROOTS = ("train_gpt.cu", "layers/*.cuh", "layers/model/*.h", "comm/*.h", "comm/*.cpp")
BOOK_ROOTS += ("data/tokens.h", "data/loader.h")
# a folder includes only itself and what stands here; train_gpt.cu includes the book, checks include anything
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
    ("layers/model/activations.h", "layers/fast/fp8_linear.h"): "linear layers in fp8",
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
# beside layers/base and the emulator, what may ask which device it is compiled for
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
        allowed = {*ARROWS, "."}  # the builds for checks have one program of both
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


# ---- a small reader of C++: tokens, groups, statements
# ---------------------------------------------------------
TOKEN = re.compile(
    r"""(?P<space>\s+)|(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<directive>^[ \t]*\#(?:[^\n\\]|\\.|\\\n)*)
    |(?P<raw>R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)")|(?P<string>"(?:\\.|[^"\\])*")|(?P<char>'(?:\\.|[^'\\])+')
    |(?P<number>\.?\d(?:[\w.']|[eEpP][+-])*)|(?P<word>[A-Za-z_]\w*)
    |(?P<sign><<=|>>=|->|\+\+|--|<=>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|::|<<|\.\.\.|.)""",
    re.S | re.M | re.X,
)


class Group:
    """A bracket, what is inside, and where it begins and ends."""

    def __init__(self, bracket, start):
        self.bracket, self.start, self.end, self.items = bracket, start, start, []


def read_groups(text):
    root = Group("", 0)
    stack = [root]
    for match in TOKEN.finditer(text):
        kind, value = match.lastgroup, match.group(0)
        if kind in ("space", "comment", "directive"):
            continue
        if kind == "sign" and value in "([{":
            group = Group(value, match.start())
            stack[-1].items.append(group)
            stack.append(group)
        elif kind == "sign" and value in ")]}":
            stack.pop().end = match.end()
        else:
            stack[-1].items.append((kind, value, match.start()))
    return root


def sign(item, value):
    return not isinstance(item, Group) and item[0] == "sign" and item[1] == value


def word(item, *values):
    return not isinstance(item, Group) and item[0] == "word" and (not values or item[1] in values)


def without_templates(items):
    """Drops <…> behind a name where it reads as template arguments."""
    out, skip = [], 0
    for i, item in enumerate(items):
        if skip:
            skip -= 1
            continue
        if sign(item, "<") and out and word(out[-1]):
            depth = 1
            for j in range(i + 1, len(items)):
                other = items[j]
                if isinstance(other, Group) and other.bracket == "{":
                    break
                if not isinstance(other, Group) and other[0] == "sign":
                    depth += {"<": 1, ">": -1, ">>": -2}.get(other[1], 0)
                    if other[1] not in ("<", ">", ">>", "::", ",", "*", "&", "..."):
                        break
                if depth <= 0:
                    skip = j - i
                    break
            if skip:
                continue

        out.append(item)

    return out


TYPES = """unsigned long short int char double float bool auto const static constexpr thread_local inline
volatile mutable size_t real floatX""".split()
HEADS = ("if", "for", "while", "switch")
OTHERS = """using typedef template struct class enum union namespace public private static_assert case default
friend extern goto throw""".split()


def is_declaration(items):
    items = without_templates(items)
    if not items or word(items[0], *TYPES):
        return True
    i = 1 if sign(items[0], "::") else 0
    if i >= len(items) or not word(items[i]):
        return False
    i += 1
    while i + 1 < len(items) and sign(items[i], "::") and word(items[i + 1]):
        i += 2
    stars = i
    while i < len(items) and not isinstance(items[i], Group) and items[i][1] in ("*", "&", "&&"):
        i += 1
    if i >= len(items) or not word(items[i]):
        return False
    after = items[i + 1] if i + 1 < len(items) else None
    return i == stars or after is None or isinstance(after, Group) or after[1] in ("=", ",")


def comma_statements(group):
    """Where a statement ends in a comma operator; headers of `for` may."""
    for item in group.items:
        if isinstance(item, Group):
            yield from comma_statements(item)
    if group.bracket in ("(", "["):
        return

    statement = []
    for i, item in enumerate(group.items):
        following = group.items[i + 1] if i + 1 < len(group.items) else None
        if sign(item, ";"):
            yield from commas_of(statement)
            statement = []
        elif isinstance(item, Group) and item.bracket == "{":
            goes_on = following is not None and (
                following.bracket == "("
                if isinstance(following, Group)
                else following[0] == "sign" and following[1] not in ("*", "&", "&&", "::", "++", "--", "~")
            )
            statement = statement + [item] if goes_on else []
        elif sign(item, ":") and statement and word(statement[0], "case", "default", "public", "private"):
            statement = []
        else:
            statement.append(item)


def commas_of(statement):
    while statement and word(statement[0], "else", "do", *HEADS):
        if word(statement[0], *HEADS):
            while statement and not (isinstance(statement[0], Group) and statement[0].bracket == "("):
                statement = statement[1:]
        statement = statement[1:]
    body = without_templates(statement)
    first = next((i for i, item in enumerate(body) if sign(item, ",")), None)
    if (
        first is None
        or word(body[0], *OTHERS)
        or (not word(body[0], "return") and is_declaration(body[:first]))
    ):
        return
    yield body[first][2]


# ---- parameters: 12 for a layer's function and kernels, 8 for every other
# ------------------------------------
FUNCTION_HEAD = re.compile(
    r"^(?: {0,8})(?!return\b|else\b|new\b|delete\b|throw\b|case\b)(?:template[^\n]*\n)?"
    r"[\w:<>,*&\[\] ]*?[\w>*&\]] [*&]*(\w+)\(([^;{}]*?)\)(?: const)?(?: noexcept)?\s*\{",
    re.M,
)


def parameters_of(text):
    depth, count, last = 0, 0, ""
    for c in text:
        depth += (c in "(<[{") - (c in ")>]}")
        count += c == "," and depth == 0
        last += c
    return count + 1 if text.strip() else 0


def check_parameters(name, text):
    is_layer = name.endswith(".cuh") or name in (
        "layers/model/block.h",
        "layers/model/vocabulary.h",
    )
    most = 12 if is_layer else 8
    for match in FUNCTION_HEAD.finditer(text):
        of_libraries = match.group(1).startswith(("cblas_", "cublasLt"))
        if match.group(1) in (*HEADS, "catch", "defined") or of_libraries:
            continue  # their interfaces are not ours
        count = parameters_of(re.sub(r"//[^\n]*", "", match.group(2)))
        if count > most:
            line = text.count("\n", 0, match.start(1)) + 1
            complain(f"{name}:{line}: {match.group(1)} has {count} parameters, at most {most}")


# ---- limits
# ---------------------------------------------------------------------------------------------------
def check_size(name, text):
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > COLUMNS:
            complain(f"{name}:{number}: {len(line)} columns, at most {COLUMNS}")


def functions(group):
    """(where it begins, where it ends, whether it is device code) of every function with a body."""
    kinds = ("namespace", "struct", "class", "union", "extern")
    statement = []
    for item in group.items:
        if sign(item, ";"):
            statement = []
        elif not (isinstance(item, Group) and item.bracket == "{"):
            statement.append(item)
        else:
            head = [i[1] for i in without_templates(statement) if word(i)]
            takes = any(isinstance(i, Group) and i.bracket == "(" for i in statement)
            if head and head[0] in (*kinds, "template") and (not takes or head[0] in kinds):
                yield from functions(item)
                statement = []
            elif takes and not any(sign(i, "=") for i in statement):
                first = statement[0]
                on_device = "__global__" in head or "__device__" in head
                yield first.start if isinstance(first, Group) else first[2], item.end, on_device
                statement = []
            else:
                statement.append(item)


def check_functions(name, text):
    for begin, end, on_device in functions(read_groups(text)):
        lines, most = text.count("\n", begin, end), KERNEL if on_device else FUNCTION
        if lines > most and not is_check(name):
            line = text.count("\n", 0, begin) + 1
            complain(f"{name}:{line}: a function of {lines} lines, at most {most}")


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
    """An option that nothing reads is parsed, and has no effect."""
    table = "layers/run/config.h"
    readers = [text for name, text in texts.items() if name != table and not is_check(name)]
    for option, field in re.findall(r'{"([\w-]+)", &O::(\w+)', texts[table]):
        if not any(re.search(rf"(\.|->|::){field}\b", text) for text in readers):
            complain(f"{table}: --{option}: nothing reads Options::{field}")


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
        check_functions(name, text)
        check_choices(name, text)
        check_parameters(name, text)
        for at in comma_statements(read_groups(text)):
            complain(f"{name}:{text.count(chr(10), 0, at) + 1}: a comma statement: one statement a line")

    check_options(texts)
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
    print(
        f"the book: {len(book)} files, {lines} lines, {len(SEAMS)} seams; train_gpt.cu includes"
        f" {len(compiled) - 1} files, {included} lines in all; everything:"
        f" {len(sizes)} files, {sum(sizes.values())} lines"
    )
    for text in complaints:
        print("check:", text)
    return bool(complaints)


if __name__ == "__main__":
    sys.exit(main())
