#!/usr/bin/env python3
"""Mojibake repaired by ./corpus clean and by ftfy: python3 scripts/compare_ftfy.py ./corpus

The texts are CLDR's names of territories, a dozen to a text, in each language that Babel has. Needs from
PyPI: Babel, ftfy. Prints how many are repaired exactly, and how many undamaged ones are changed: as they are,
in capitals, in quotes, and with a sign behind each word."""

import json
import subprocess
import sys
import tempfile
import unicodedata

try:
    import ftfy
    import ftfy.bad_codecs  # noqa: F401
    from babel import Locale, localedata
except ImportError:
    sys.exit("compare_ftfy.py: needs Babel and ftfy: pip install babel ftfy")

SIGNS = "®™…”»’·©°—¿€§ª"


def cleaned(texts):
    with tempfile.TemporaryDirectory() as work:
        with open(f"{work}/a.jsonl", "w") as f:
            f.writelines(json.dumps({"text": text}) + "\n" for text in texts)
        words = ["clean", "--language", "any", "--compress", "none", "--output", f"{work}/c"]
        done = [sys.argv[1], *words, f"s={work}/a.jsonl"]
        subprocess.run(done, check=True, stdout=subprocess.DEVNULL)
        with open(f"{work}/c/s/a.jsonl") as f:
            return [json.loads(line)["text"] for line in f]


def texts_of_languages():
    out, languages = {}, 0
    for name in localedata.locale_identifiers():
        locale = Locale.parse(name)
        names = [unicodedata.normalize("NFC", str(each)) for each in locale.territories.values()]
        if locale.territory or locale.script or len(names) < 20 or all(each.isascii() for each in names):
            continue
        languages += 1
        for first in range(0, min(len(names), 120), 12):
            text = ", ".join(names[first : first + 12])
            if not text.isascii():
                out[text] = None
    return list(out), languages


def main():
    texts, languages = texts_of_languages()
    damaged = [text.encode().decode("sloppy-windows-1252") for text in texts]
    ours = sum(a == b for a, b in zip(texts, cleaned(damaged)))
    theirs = sum(ftfy.fix_encoding(bad) == text for text, bad in zip(texts, damaged))
    print(f"{len(texts)} texts in {languages} languages")
    print(f"damaged: {ours} repaired exactly; ftfy {ftfy.__version__}: {theirs}")
    capitals = [text.upper() for text in texts]
    capitals = [unicodedata.normalize("NFC", text) for text in capitals]
    signs = [" ".join(w + SIGNS[i % len(SIGNS)] for i, w in enumerate(t.split())) for t in texts + capitals]
    for what, undamaged in (
        ("as they are", texts),
        ("in capitals", capitals),
        ("in quotes", [f"“{a}”… «{b}» – ‘{a}’" for a, b in zip(texts, capitals)]),
        ("with a sign behind each word", signs),
    ):
        changed = sum(a != b for a, b in zip(undamaged, cleaned(undamaged)))
        print(f"undamaged, {what}: {changed} of {len(undamaged)} changed")


main()
