#!/usr/bin/env python3
"""The guided tour: runs the toy models, writes the site, and serves it on 127.0.0.1.

Usage: bash scripts/tour.sh [--output DIR] [--port N]      builds the programs first, then calls this

With --output the site is written there and nothing is served: open DIR/index.html. Otherwise it lies in
build/tour, and a server answers on http://127.0.0.1:PORT (8530) until Ctrl-C.
"""

import argparse
import json
import re
import sys
import tempfile
from functools import cache
from pathlib import Path

import corpus_pages
import latex2mathml.converter
import operations
import runs
import source
from facts import facts, shown
from server import serve

HERE = Path(__file__).resolve().parent
CHAPTERS = {  # name: title, scripts beside tour.js
    "step": ("A token's way through a step", ["step.js"]),
    "kernels": ("A kernel, thread by thread", ["kernels.js"]),
    "tensor": ("One layer over several ranks", ["parallel.js"]),
    "pipeline": ("The pipeline", ["pipeline.js"]),
    "data": ("Replicas, buckets and ZeRO", ["parallel.js"]),
    "planet": ("530 billion parameters on 2,240 GPUs", ["parallel.js", "planet.js"]),
    "recipe": ("The recipe", ["recipe.js"]),
    "corpus": ("From a web page to tokens", ["corpus.js"]),
}
SHORT = {"planet": "530B"}
FORMULA = re.compile(r"\$([^$\n]+)\$")
FACT = re.compile(r"\{\{(\w+)(?:\|(\w+))?\}\}")
SOURCE = re.compile(r"\{\{source ([^|}]+)\|([^|}]+)\}\}")


def formula(tex):
    return latex2mathml.converter.convert(tex)


@cache
def told_operations():
    """Title, formula and text of each operation."""
    return {
        name: {"title": title, "formula": formula(tex), "text": text}
        for name, (title, tex, text) in operations.OPERATIONS.items()
    }


def prepared(name, data):
    """What a chapter's page gets: its data with excerpts, formulas and texts beside them."""
    if "missing" in data:
        return data
    if name == "step":
        operations.number_steps(data["lines"])
        sources = {}
        for line in data["lines"]:
            line["source"] = f"{line['name']} at {line['file']}:{line['line']}"
            if line["source"] not in sources:
                sources[line["source"]] = source.sources_of(line["name"], line["file"], line["line"])
        return {**data, "operations": told_operations(), "sources": sources}

    if name == "tensor":
        for layout in data["layouts"]:
            C = layout["head"]["model"]["hidden"]
            for tensor in (t for line in layout["lines"] if line["kind"] == "call" for t in line["tensors"]):
                tensor["shape"] = [tensor["shape"][0] * tensor["shape"][1] // C, C]
        return {**data, "operations": told_operations(), "calls": operations.CALLS}

    return data


def filled(text, chapter_facts):
    """A chapter's text: {{fact}} or {{fact|how}}, {{source FILE|TEXT}}, formulas between dollars."""

    def code(match):
        made = source.excerpt_of(match[1], match[2])
        head = f"{made['file']}, lines {made['first']} to {made['last']}"
        return (
            f'<div class="small quiet">{head}</div><div class="code" tabindex="0" role="group"'
            f' aria-label="{head}" data-file="{made["file"]}" data-first="{made["first"]}"'
            f' data-last="{made["last"]}"><pre>{made["html"]}</pre></div>'
        )

    def fact(match):
        if not chapter_facts:
            return "…"
        value = shown(chapter_facts[match[1]], match[2] or "")
        return f'<span class="number" data-fact="{match[1]}" data-how="{match[2] or ""}">{value}</span>'

    text = FORMULA.sub(lambda match: formula(match[1]), text)
    return FACT.sub(fact, SOURCE.sub(code, text))


def page(name, title, body, scripts, live):
    links = [("index", "Contents")] + [
        (chapter, f"{i} {SHORT.get(chapter, chapter)}") for i, chapter in enumerate(CHAPTERS, 1)
    ]
    nav = "".join(
        f'<a href="{link}.html"{" aria-current=page" if link == name else ""}'
        f' title="{CHAPTERS[link][0] if link in CHAPTERS else "Contents"}">{label}</a>'
        for link, label in links
    )
    order = list(CHAPTERS)

    around = ""
    if name in CHAPTERS:
        at = order.index(name)
        before = (
            f'<a href="{order[at - 1]}.html">← {CHAPTERS[order[at - 1]][0]}</a>' if at else "<span></span>"
        )
        after = (
            f'<a href="{order[at + 1]}.html">{CHAPTERS[order[at + 1]][0]} →</a>'
            if at + 1 < len(order)
            else ""
        )
        around = f'<nav class="pages" aria-label="chapters beside this one">{before}{after}</nav>'
        title = f"{at + 1}. {title}"

    tags = "".join(f'<script src="{script}"></script>' for script in scripts)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}: a guided tour</title>
<link rel="stylesheet" href="tour.css">
<link rel="icon" href="data:,">
<script src="tour.js"></script><script>Tour.live = {"true" if live else "false"};</script>{tags}
</head>
<body>
<a class="skip" href="#main">to the text</a>
<header><div class="inner"><nav aria-label="chapters">{nav}</nav>
<button type="button" id="theme" aria-label="switch between light and dark">dark</button></div></header>
<main id="main"><h1>{title}</h1>
{body}
{around}</main>
<footer><div class="inner">Made by the programs of this repository, on this machine, when the tour was
built. Times and memory of GPUs are planned, not measured; published figures name their source.</div></footer>
</body>
</html>
"""


def write_site(folder, data, live):
    folder.mkdir(parents=True, exist_ok=True)
    for file in (HERE / "site").iterdir():
        (folder / file.name).write_text(file.read_text())
    known = facts(data)
    (folder / "facts.json").write_text(json.dumps(known, indent=1))

    items = []
    for name, (title, scripts) in CHAPTERS.items():
        made = json.dumps(prepared(name, data[name]), separators=(",", ":"), ensure_ascii=False)
        (folder / f"{name}.data.js").write_text(f"Tour.data.{name} = {made};\n")
        body = filled((HERE / "chapters" / f"{name}.html").read_text(), known.get(name))
        whole = page(name, title, body, [f"{name}.data.js", *scripts], live)
        (folder / f"{name}.html").write_text(whole)
        lead = re.sub(r"</?span[^>]*>", "", re.search(r'<p class="lead">(.*?)</p>', body, re.S)[1])
        items.append(f'<li><a href="{name}.html">{title}</a><br><span class="quiet">{lead}</span></li>')

    text = (HERE / "chapters/index.html").read_text().replace("{{chapters}}", "\n".join(items))
    (folder / "index.html").write_text(
        page("index", "A training step that one can walk through", text, [], live)
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=Path, help="write the site there and serve nothing")
    parser.add_argument("--port", type=int, default=8530, help="of 127.0.0.1; 0: any free one")
    options = parser.parse_args()
    if not 0 <= options.port < 65536:
        parser.error(f"--port {options.port}: choose 1024 to 65535")
    folder = options.output or runs.ROOT / "build/tour"
    print("running the toy models")

    with tempfile.TemporaryDirectory() as work:
        try:
            data = runs.everything(Path(work))
        except runs.ProgramError as error:
            sys.exit(f"tour: {error}\nrun it through scripts/tour.sh, which builds what it needs")
        data["corpus"] = corpus_pages.everything(Path(work))

    write_site(folder, data, live=not options.output)
    if options.output:
        print(f"open {folder / 'index.html'}")
    else:
        serve(folder, options.port)


if __name__ == "__main__":
    main()
