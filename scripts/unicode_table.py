#!/usr/bin/env python3
"""Writes data/unicode.h: the code points that GPT-2's splitting rule calls letter, number and space.

Needs the PyPI package `regex`, whose \\p{L}, \\p{N} and \\s are the ones GPT-2's own encoder uses.
Run: python3 scripts/unicode_table.py > data/unicode.h
"""

import regex


def ranges(pattern):
    rule, out = regex.compile(pattern), []
    for c in range(0x80, 0x110000):
        if 0xD800 <= c < 0xE000 or not rule.match(chr(c)):
            continue
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


print("""// unicode.h   code points from U+0080 on that are letters (\\p{L}), numbers (\\p{N}) or spaces (\\s)
//   written by scripts/unicode_table.py; first and last of each range
#pragma once
#include <stdint.h>

struct CodeRange { uint32_t first, last; };
""")
for name, pattern in (("letters", r"\p{L}"), ("numbers", r"\p{N}"), ("spaces", r"\s")):
    print(f"constexpr CodeRange unicode_{name}[] = {{")
    line = "   "
    for a, b in ranges(pattern):
        item = f" {{{a},{b}}},"
        if len(line) + len(item) > 110:
            print(line)
            line = "   "
        line += item
    print(line + "\n};")
