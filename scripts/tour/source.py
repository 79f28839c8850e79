"""Excerpts of the source, from the files as they are: the function of an operation, in ref and on a GPU."""

import re
from functools import lru_cache
from pathlib import Path

import operations
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import CppLexer

ROOT = Path(__file__).resolve().parent.parent.parent
# kernels of operations that are not called OPERATION_kernel
KERNELS = {
    "layernorm_forward": "layernorm_forward_rows_kernel",
    "layernorm_backward": "layernorm_backward_rows_kernel",
    "flash_attention_forward": "flash_forward_kernel",
    "flash_attention_backward": "flash_backward_kernel",
}


@lru_cache(maxsize=None)
def lines_of(file):
    return tuple((ROOT / file).read_text().splitlines())


def excerpt(file, first, last):
    """Lines first to last, from 1, as HTML."""
    code = "\n".join(lines_of(file)[first - 1 : last])
    shown = highlight(code, CppLexer(stripnl=False, ensurenl=False), HtmlFormatter(nowrap=True))
    return {"file": file, "first": first, "last": last, "html": shown.rstrip("\n"), "text": code}


def function_lines(file, name, begin=0, end=None):
    """First and last line of the function's definition between two lines, or None."""
    lines = lines_of(file)
    for i in range(begin, len(lines) if end is None else end):
        if not re.match(rf"[\w_].*\b{name}\(|{name}\(", lines[i]) or lines[i].startswith(("//", "#")):
            continue
        depth, opened, at = 0, False, i
        while at < len(lines):
            code = re.sub(r"//.*|'[{}]'", "", lines[at])
            if not opened and "{" not in code and code.rstrip().endswith(";"):
                break  # a declaration
            depth += code.count("{") - code.count("}")
            opened = opened or "{" in code
            if opened and depth <= 0:
                while i > 0 and re.match(r"template|__global__", lines[i - 1]):
                    i -= 1
                return i + 1, at + 1
            at += 1

    return None


def sources_of(operation, file, line):
    """The excerpts on an operation's page: {"said", "ref", "gpu"}, those that exist. For a call, the lines
    around this one."""
    if operation not in operations.declared():
        said = function_lines(file, operation, max(0, line - 12), line)
        said = said or (max(1, line - 4), min(len(lines_of(file)), line + 3))
        return {"said": excerpt(file, *said)}

    file, struct, first, last = operations.declared()[operation]
    out = {"said": excerpt(file, first, last)}
    files = [file, *(each[0] for each in operations.declared().values())]
    kernel = KERNELS.get(operation, operation + "_kernel")
    names = {"ref": [rf"{struct}(<\w+>)?::ref"], "gpu": [kernel, rf"{struct}(<\w+>)?::gpu"]}
    for space, candidates in names.items():
        places = ((name, each) for name in candidates for each in dict.fromkeys(files))
        found = ((each, function_lines(each, name)) for name, each in places)
        shown = next((excerpt(each, *lines) for each, lines in found if lines), None)
        if shown:
            out[space] = shown
    return out


def excerpt_of(file, text):
    """The excerpt from the first line that contains the text on: a whole function, or a paragraph up to a
    blank line or a comment that begins the next one."""
    lines = lines_of(file)
    for at, line in enumerate(lines):
        if text not in line:
            continue
        name = re.search(r"(\w+)\($", text)
        if name:
            return excerpt(file, *function_lines(file, name[1], at))
        is_comment = [each.lstrip().startswith("//") for each in lines]
        last = at + 1
        while last < len(lines) and lines[last].strip():
            of_file = line.startswith("//") and not is_comment[last]  # the comment at its beginning is over
            if of_file or (is_comment[last] and not is_comment[last - 1]):
                break
            last += 1
        return excerpt(file, at + 1, last)
    raise LookupError(f"{file} has no line with {text!r}: a chapter of the tour shows it")
