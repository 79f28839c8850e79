#!/usr/bin/env python3
"""The architecture, checked without a compiler: who includes whom, limits, comma statements, the spine's
size.

Run: make check (which also compiles every header alone: scripts/check.sh)."""

import ast
import re
import subprocess
import sys
from pathlib import Path

SOURCES = ("*.h", "*.cuh", "*.cu", "*.cpp")
SCRIPTS = ("scripts/*.sh", "scripts/*.py", "scripts/tour/*", "scripts/tour/site/*", ".ci/run", "Makefile")

# a folder includes only what stands beside it here; checks and benchmarks may include wings as well
ARROWS = {
    "layers/base": "layers/base",
    "comm": "comm layers/base",
    "comm/nccl_on_cpu": "comm/nccl_on_cpu layers/base",
    "data": "data layers/base",
    "layers": "layers layers/base",
    "layers/model": "layers/model layers layers/base comm data",
    "layers/inference": "layers/inference layers/model layers layers/base comm data data/tasks",
    "layers/convert": "layers/convert layers/model layers layers/base comm data",
    "layers/plan": "layers/plan layers/model layers layers/base comm data",
    "data/tasks": "data/tasks data layers/base",
    "data/corpus": "data/corpus data/tasks data comm layers/base",
    "scripts/tour": "layers layers/base",
}
WINGS = {"comm/nccl_on_cpu", "layers/convert", "layers/inference", "layers/plan"}
WINGS |= {"data/tasks", "data/corpus", "scripts/tour"}
SPINE = (
    "train_gpt.cu",
    "layers/*.cuh",
    "layers/model/*.h",
    "comm/*.h",
    "comm/*.cpp",
    "data/tokens.h",
    "data/loader.h",
)
TOP = {
    "Makefile",
    "train_gpt.cu",
    "test_gpt.cu",
    "layers",
    "comm",
    "data",
    "scripts",
    "README.md",
    "LICENSE",
    ".gitignore",
    ".ci",
    ".github",
}

COLUMNS, FUNCTION, KERNEL = 110, 60, 120
AIR, AIR_OF_CHECKS = 30, 40  # statements that may follow one another without a blank line
MOST_LINES = {"test_gpt.cu": 200, "train_gpt.cu": 320}

complaints = []


def complain(text):
    complaints.append(text)


def listed(*patterns):
    out = subprocess.check_output(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns], text=True
    )
    return [f for f in out.split() if Path(f).exists()]


def is_check(name):
    return Path(name).name.startswith(("test_", "testing")) or name.startswith("layers/model/bench")


def check_arrows(name, text):
    folder = str(Path(name).parent)
    if folder == ".":
        return
    allowed = set(ARROWS.get(folder, "").split())
    if is_check(name):
        allowed |= set(ARROWS)
    for included in re.findall(r'^ *#include "([^"]*)"', text, re.M):
        target = str((Path(name).parent / included).resolve().relative_to(Path.cwd()).parent)
        if target not in allowed:
            complain(f"{name} includes {included}: {folder} may not include {target}")
        path = str((Path(name).parent / included).resolve().relative_to(Path.cwd()))
        if is_check(path) and not is_check(name):
            complain(f"{name} includes {included}: only checks include checks")


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


TYPES = (
    "unsigned",
    "long",
    "short",
    "int",
    "char",
    "double",
    "float",
    "bool",
    "auto",
    "const",
    "static",
    "constexpr",
    "thread_local",
    "inline",
    "volatile",
    "mutable",
    "size_t",
    "real",
    "floatX",
)
HEADS = ("if", "for", "while", "switch")
OTHERS = (
    "using",
    "typedef",
    "template",
    "struct",
    "class",
    "enum",
    "union",
    "namespace",
    "public",
    "private",
    "static_assert",
    "case",
    "default",
    "friend",
    "extern",
    "goto",
    "throw",
)


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
        if match.group(1) in HEADS + ("catch", "defined") or of_libraries:
            continue  # their interfaces are not ours
        count = parameters_of(re.sub(r"//[^\n]*", "", match.group(2)))
        if count > most:
            line = text.count("\n", 0, match.start(1)) + 1
            complain(f"{name}:{line}: {match.group(1)} has {count} parameters, at most {most}")


# ---- limits
# ---------------------------------------------------------------------------------------------------
OPENING = re.compile(
    r"(inline|static|template|__global__|__device__|[A-Za-z_:<>]+ )[^=;]*\) *(const )?\{$|"
    r"    [A-Za-z_:<>&\* ]+\([^;=]*\) (const )?\{$"
)


def check_size(name, text):
    lines = text.split("\n")
    most = MOST_LINES.get(name)
    if most and len(lines) - 1 > most:
        complain(f"{name} has {len(lines) - 1} lines, at most {most}")
    for number, line in enumerate(lines, 1):
        if len(line) > COLUMNS:
            complain(f"{name}:{number}: {len(line)} columns, at most {COLUMNS}")


def check_air(name, text):
    """Blank lines part thoughts: no long run of statements without one. Tables are no statements."""
    most = AIR_OF_CHECKS if is_check(name) else AIR
    start, statements = None, 0
    for number, line in enumerate(text.split("\n"), 1):
        if not line.startswith(" "):
            if statements > most:
                complain(f"{name}:{start}: {statements} statements without a blank line, at most {most}")
            start, statements = None, 0
            continue
        start = start or number
        statements += line.split("//")[0].rstrip().endswith((";", "{", "}"))


def check_functions(name, text):
    start, indent, limit = None, 0, 0
    for number, line in enumerate(text.split("\n"), 1):
        if start is None and OPENING.match(line) and "struct" not in line:
            start, indent = number, len(line) - len(line.lstrip())
            limit = KERNEL if "__global__" in line else FUNCTION
        elif start and line.startswith(" " * indent + "}"):
            if number - start > limit and not is_check(name):
                complain(f"{name}:{start}: a function of {number - start} lines, at most {limit}")
            start = None


def check_choices(name, text):
    """The transport, the device and the precision are chosen in one place."""
    if name.startswith("layers/base/") or is_check(name):
        return
    for number, line in enumerate(text.split("\n"), 1):
        if "<<<" in line:
            complain(f"{name}:{number}: a launch outside LAUNCH")
        if re.match(r" *# *if", line) and "HAS_KERNELS" not in line:
            complain(f"{name}:{number}: a preprocessor fence outside layers/base")


def main():
    for name in listed():
        if name.split("/")[0] not in TOP:
            complain(f"{name}: the top level holds {', '.join(sorted(TOP))}")
    sizes = {}
    for name in listed(*SOURCES):
        text = Path(name).read_text(encoding="utf8")
        sizes[name] = text.count("\n")
        check_arrows(name, text)
        check_size(name, text)
        check_functions(name, text)
        check_air(name, text)
        check_choices(name, text)
        check_parameters(name, text)
        for at in comma_statements(read_groups(text)):
            complain(f"{name}:{text.count(chr(10), 0, at) + 1}: a comma statement: one statement a line")

    for name in listed(*SCRIPTS):
        text = Path(name).read_text(encoding="utf8")
        for node in ast.walk(ast.parse(text)) if name.endswith(".py") else ():
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Tuple):
                complain(f"{name}:{node.lineno}: a comma statement: one statement a line")
        check_size(name, text)

    in_spine = [f for f in listed(*SPINE) if str(Path(f).parent) not in WINGS]
    spine = [f for f in in_spine if not is_check(f) and f in sizes]
    layers = sum(sizes[f] for f in spine if f.endswith(".cuh"))
    model = sum(sizes[f] for f in spine if f.startswith("layers/model/"))
    print(
        f"the spine: {len(spine)} files, {sum(sizes[f] for f in spine)} lines (kernels {layers}, layers/model"
        f" {model}); everything: {len(sizes)} files, {sum(sizes.values())} lines"
    )
    for text in complaints:
        print("check:", text)
    return bool(complaints)


if __name__ == "__main__":
    sys.exit(main())
