#!/usr/bin/env python3
"""Draws what the programs write as numbers:

python3 scripts/draw.py timeline STEP.json [STEP.svg]    of train_gpt --plan --timeline, or of --trace
python3 scripts/draw.py funnel FOLDER                    FOLDER/report.svg, from the steps of ./corpus run
"""

import colorsys
import json
import math
import sys
from collections import defaultdict
from html import escape
from pathlib import Path

import charts

# in a page of the tour the colours are the page's; a file of its own follows the reader's system
STYLE = """<style>
  .drawn .paper { fill: var(--paper, #fff) } .drawn .rows { fill: var(--panel, #f1f1f1) }
  .drawn text { fill: #222 } .drawn .outside text, .drawn text.title { fill: var(--ink, #222) }
  .drawn .quiet text, .drawn text.quiet { fill: var(--quiet, #666) }
  @media (prefers-color-scheme: dark) {
    :root.drawn { --paper: #1c1f23; --panel: #2b2f35; --ink: #ddd; --quiet: #aaa } } </style>"""


def svg(width, height, body):
    return (
        f'<svg class="drawn" xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}"'
        f' viewBox="0 0 {width:.0f} {height:.0f}" font-family="sans-serif" font-size="12">\n{STYLE}\n'
        f'<rect class="paper" width="100%" height="100%"/>\n{body}</svg>\n'
    )


# ---- a step: one row per stage or rank, time to the right --------------------------------------------------

# where in its row, which is 1 high, a span is drawn: offset, height; its colour, if not a micro-batch's
PARTS = {
    "forward": (0.04, 0.7, None),
    "backward": (0.04, 0.7, None),
    "wait": (0.04, 0.5, "#ffffff"),
    "collective": (0.04, 0.14, "#b3261e"),
    "message": (0.75, 0.09, None),
    "reduce": (0.85, 0.12, "#8a8a8a"),
    "gather": (0.85, 0.12, "#2e9e6b"),
    "update": (0.85, 0.12, "#222222"),
}
ON_TOP = ("forward", "wait", "collective")  # in this order
LEFT, WIDE, RIGHT = 90, 1500, 60


def micro_batch_colour(micro_batch, of, dark):
    """If there are few, neighbours get different colours; if many, it shows the position in the step."""
    hue = micro_batch * 137 % 360 if of <= 24 else micro_batch * 12 % 360
    return "#" + "".join(f"{round(255 * c):02x}" for c in colorsys.hls_to_rgb(hue / 360, dark, 0.72))


def legend(kinds):
    said = ["light: forward, dark: backward, a colour a micro-batch"]
    said += ["red: tensor-parallel calls"] * ("collective" in kinds) + ["white: waits"] * ("wait" in kinds)
    thin = ["messages"] * ("message" in kinds)
    thin += ["buckets reduced (grey), gathered (green)"] * bool({"reduce", "gather"} & kinds)
    return "; ".join(said) + "; below: " + ", ".join([*thin, "update (black)"])


def panel(p, scale, top):
    """A timeline's drawing from y = top on, and where it ends."""
    row = min(44, max(9, 760 / len(p["rows"])))
    first = top + 46
    paths, labels = defaultdict(str), defaultdict(str)  # labels: a line a row
    for kind, at, micro_batch, chunk, start, end in p["spans"]:
        offset, high, colour = PARTS[kind]
        colour = colour or micro_batch_colour(
            micro_batch, p["micro_batches"], 0.56 if kind == "backward" else 0.78
        )
        x, wide = LEFT + start * scale, max(0.15, (end - start) * scale)
        y = first + (at + offset) * row
        order = ON_TOP.index(kind) if kind in ON_TOP else 0
        paths[order, colour] += f"M{x:.2f} {y:.1f}h{wide:.2f}v{high * row:.1f}h-{wide:.2f}z"
        name = f"{micro_batch}.{chunk}" if p["chunks"] > 1 else f"{micro_batch}"
        if kind in ("forward", "backward") and wide > 8 * len(name) and row > 14:
            labels[at] += f'<text x="{x + wide / 2:.1f}" y="{y + high * row * 0.6 + 4:.1f}">{name}</text>'

    bottom = first + row * len(p["rows"])
    out = [
        f'<text class="title" x="{LEFT}" y="{top + 18}" font-size="15">{escape(p["title"])}</text>',
        f'<text class="quiet" x="{LEFT}" y="{top + 36}">{legend({span[0] for span in p["spans"]})}</text>',
        f'<rect class="rows" x="{LEFT}" y="{first}" width="{WIDE}" height="{bottom - first:.1f}"/>',
    ]
    out += [f'<path fill="{colour}" d="{path}"/>' for (_, colour), path in sorted(paths.items())]
    out += ['<g text-anchor="middle" font-size="11">', *labels.values()]
    out.append('</g><g class="outside" text-anchor="end">')
    for i in range(0, len(p["rows"]), 2 if row < 12 else 1):
        out.append(
            f'<text x="{LEFT - 6}" y="{first + (i + 0.5) * row + 4:.1f}">{escape(p["rows"][i])}</text>'
        )

    # the axis of time
    out.append('</g><g class="quiet" text-anchor="middle">')
    every = WIDE / scale
    tick = 10 ** math.floor(math.log10(every / 5))
    while every / tick > 12:
        tick *= 5 if every / tick > 30 else 2
    for i in range(int(every / tick * 1.0001) + 1):
        out.append(f'<text x="{LEFT + i * tick * scale:.1f}" y="{bottom + 18:.1f}">{i * tick:.4g} s</text>')
    return "\n".join(out) + "</g>\n", bottom + 40


def timeline(panels):
    """panels: title, seconds, micro_batches, chunks, rows; spans (kind, row, micro-batch, chunk, times)."""
    longest = max(max(span[5] for span in p["spans"]) for p in panels)  # some work runs past a step's end
    scale, bottom, body = WIDE / max(longest, *(p["seconds"] for p in panels)), 0, ""
    for p in panels:
        drawn, bottom = panel(p, scale, bottom)
        body += drawn
    return svg(LEFT + WIDE + RIGHT, bottom, body)


# ---- what became of every set of a corpus: five beside each other, a bar for each step ---------------------

STEPS = {
    "extract": "main text",
    "clean": "cleaned",
    "filter": "of quality",
    "dedup": "no duplicates",
    "decontaminate": "no test data",
    "tokens": "tokens",
}


def funnel(folder):
    paths = {step: Path(folder) / step / f"{step}.json" for step in STEPS}
    steps = {step: json.loads(path.read_text()) for step, path in paths.items() if path.is_file()}
    if not steps:
        sys.exit(f"draw.py: {folder}: holds no step's counts: expected the output folder of ./corpus run")
    sets = list(dict.fromkeys(name for counts in steps.values() for name in counts))
    bar, row, gap, left, top, across = 220, 26, 30, 110, 44, 5
    band = top + row * (len(steps) + 1) + 16
    out = []

    def draw(middle, y, share, colour, label):
        wide = max(2, bar * min(share, 1))
        out.append(f'<rect x="{middle - wide / 2:.1f}" y="{y + 2}" width="{wide:.1f}" height="{row - 4}"'
                   f' fill="{colour}"/><text x="{middle}" y="{y + 17}" text-anchor="middle">{label}</text>'
        )  # fmt: skip

    for s, name in enumerate(sets):
        y, middle = s // across * band + top, left + s % across * (bar + gap) + bar / 2
        if s % across == 0:
            for i, said in enumerate(("given", *(STEPS[step] for step in steps))):
                out.append(f'<text class="title" x="10" y="{y + row * i + 17}">{said}</text>')
        out.append(f'<text class="title" x="{middle}" y="{y - 18}" text-anchor="middle" font-weight="bold">'
                   f'{escape(name)}</text>')  # fmt: skip
        given = None
        for i, (step, counts) in enumerate(steps.items()):
            if name not in counts:
                continue
            c = defaultdict(int, counts[name])
            if given is None:
                given = max(c["documents"], 1)
                draw(middle, y, 1, "#c6dbef", f"{c['documents']:,} documents")
            if step == "tokens":
                left_over = c["documents"] + c["validation documents"]
                draw(middle, y + row * (i + 1), left_over / given, "#a1d99b",
                     f'{c["tokens"] + c["validation tokens"]:,} tokens')  # fmt: skip
            else:
                draw(middle, y + row * (i + 1), c["kept"] / given, "#9ecae1", f"{c['kept']:,}")
    bands = -(-len(sets) // across)
    return svg(left + min(len(sets), across) * (bar + gap), bands * band, "\n".join(out) + "\n")


def main(words):
    if words[:1] == ["timeline"] and len(words) in (2, 3):
        to = Path(words[2] if len(words) > 2 else words[1].removesuffix(".json") + ".svg")
        try:
            picture = timeline(json.loads(Path(words[1]).read_text())["timelines"])
        except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
            sys.exit(f"draw.py: {words[1]}: expected a file of --timeline or --trace: {error!r}")
    elif words[:1] == ["funnel"] and len(words) == 2:
        to, picture = Path(words[1]) / "report.svg", funnel(words[1])
    else:
        sys.exit(__doc__.strip())
    charts.write(to, picture)
    print(f"drawn     {to}")


if __name__ == "__main__":
    main(sys.argv[1:])
