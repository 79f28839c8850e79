#!/usr/bin/env python3
"""Compares ./corpus extract with the Python programs: python3 scripts/compare_justext.py FILE.warc.gz…

Needs, from PyPI: pip install justext lxml_html_clean pycld2 warcio. Every HTML page's text is compared with
jusText's (its defaults, its English stop words, which ./corpus is given too), its language with pycld2's.
Both must use the same libxml2: versions parse broken markup differently. lxml 4.9.2 has Debian 12's 2.9.14.
"""

import json
import os
import subprocess
import sys
import tempfile

try:
    import justext
    import pycld2
    from warcio.archiveiterator import ArchiveIterator
except ImportError as error:
    sys.exit(f"compare_justext.py: {error}: pip install justext lxml_html_clean pycld2 warcio")


def theirs(path):
    """id, page, text of every page that holds HTML."""
    stop = justext.get_stoplist("English")
    with open(path, "rb") as f:
        for record in ArchiveIterator(f):
            kind = (record.http_headers and record.http_headers.get_header("content-type")) or ""
            if record.rec_type != "response" or "html" not in kind:
                continue
            page = record.content_stream().read()
            if not page.strip():
                continue
            try:
                paragraphs = justext.justext(page, stop)
            except (UnicodeError, LookupError, ValueError) as error:  # a page that jusText itself cannot read
                print(f"jusText gives up on {record.rec_headers.get_header('WARC-Target-URI')}: {error}")
                continue
            yield (
                record.rec_headers.get_header("WARC-Record-ID"),
                page,
                "\n\n".join(p.text for p in paragraphs if not p.is_boilerplate),
            )


def ours(path, *options):
    with tempfile.TemporaryDirectory() as work:
        subprocess.run(
            [
                *"./corpus extract --language any --compress none --output".split(), work, *options,
                f"s={path}"
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )

        name = next(n for n in os.listdir(f"{work}/s") if n.endswith(".jsonl"))
        return {d["id"]: d for d in map(json.loads, open(f"{work}/s/{name}"))}


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    given = [os.path.abspath(path) for path in sys.argv[1:]]
    os.chdir(os.path.join(os.path.dirname(__file__), ".."))
    pages = texts = built_in = languages = asked = 0
    for path in given:
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as words:
            words.write("\n".join(justext.get_stoplist("English")))
            words.flush()
            same_words = ours(path, "--stopwords", words.name)
        own_words = ours(path)
        for name, page, text in theirs(path):
            pages += 1
            mine = same_words.get(name, {"text": ""})
            texts += mine["text"] == text
            built_in += own_words.get(name, {"text": ""})["text"] == text
            if mine["text"] != text:
                print(f"{name}: {len(mine['text'])} characters here, {len(text)} there")
            if "meta" in mine:
                asked += 1
                languages += mine["meta"]["language"] == pycld2.detect(page)[2][0][1]

    print(
        f"{texts} of {pages} texts are jusText's, {built_in} with the stop words that are built in; "
        f"{languages} of {asked} languages are pycld2's"
    )
    sys.exit(texts < 0.95 * pages or languages < asked)


main()
