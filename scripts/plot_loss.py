#!/usr/bin/env python3
"""Draws the losses of metrics files as SVG: python3 scripts/plot_loss.py [NAME=]METRICS.jsonl … OUT.svg

METRICS.jsonl is what train_gpt --metrics writes: step, tokens, loss and sometimes validation_loss. Of one
file both are drawn; of several the training losses, the mean of some steps each, and the last validation loss
beside the name.
"""

import json
import math
import sys

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 400, 60, 20, 36, 48


def ticks(low, high, count=6):
    """Round numbers between low and high, about `count` of them."""
    raw = max(high - low, 1e-9) / count
    size = 10 ** math.floor(math.log10(raw))
    step = next(m * size for m in (1, 2, 5, 10) if m * size >= raw)
    first = math.ceil(low / step)
    return [i * step for i in range(first, int(high / step + 1e-9) + 1)]


def read(path):
    try:
        lines = [json.loads(line) for line in open(path)]
    except (OSError, ValueError) as error:
        sys.exit(f"plot_loss.py: {path}: {error}")
    train = [(m["tokens"], m["loss"]) for m in lines if math.isfinite(m["loss"])]
    held = [(m["tokens"], m["validation_loss"]) for m in lines if "validation_loss" in m]
    if not train:
        sys.exit(f"plot_loss.py: {path}: has no line with a loss")
    return train, held


def smooth(points, parts=100):
    size = max(1, len(points) // parts)
    groups = [points[i : i + size] for i in range(0, len(points), size)]
    return [tuple(sum(p[k] for p in g) / len(g) for k in (0, 1)) for g in groups]


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    files = [(arg.rpartition("=")[0], *read(arg.rpartition("=")[2])) for arg in sys.argv[1:-1]]
    if len(files) == 1:  # training and validation
        name, train, held = files[0]
        lines = [("training", "#4878cf", 1.2, train)]
        if held:
            lines.append((f"validation ({held[-1][1]:.3f} at the end)", "#d1495b", 2, held))
    else:
        colours = ("#4878cf", "#9aa5b1", "#d1495b", "#3a9d5d", "#8a5fbf", "#c98a1b")
        lines = [
            (
                name + (f" (validation {held[-1][1]:.3f})" if held else ""),
                colours[i % len(colours)],
                1.2,
                smooth(train),
            )
            for i, (name, train, held) in enumerate(files)
        ]
    every = [p for _, _, _, points in lines for p in points]
    low, high, last = (
        math.floor(2 * min(y for _, y in every)) / 2,
        max(y for _, y in every),
        max(x for x, _ in every),
    )
    high = max(high, low + 0.5)
    px = lambda x: LEFT + (WIDTH - LEFT - RIGHT) * x / last
    py = lambda y: TOP + (HEIGHT - TOP - BOTTOM) * (high - y) / (high - low)
    out = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH}'
            f' {HEIGHT}" font-family="sans-serif" font-size="12">'
        ),
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for y in ticks(low, high):
        out.append(
            f'<path d="M{LEFT} {py(y):.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>'
            f'<text x="{LEFT - 8}" y="{py(y) + 4:.1f}" text-anchor="end">{y:g}</text>'
        )
    unit, name = (1e6, " million") if last >= 3e6 else (1e3, " thousand")
    for x in ticks(0, last / unit):
        out.append(
            f'<text x="{px(x * unit):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{x:g}</text>'
        )
    out.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 10}" text-anchor="middle">{name.strip()}'
        ' tokens</text>'
    )
    out.append(f'<text x="{LEFT}" y="20">loss, nats per token</text>')
    for i, (name, colour, width, points) in enumerate(lines):
        path = "".join(f'{"ML"[j > 0]}{px(x):.1f} {py(y):.1f}' for j, (x, y) in enumerate(points))
        out.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{width}"/>')
        out.append(
            f'<text x="{WIDTH - RIGHT}" y="{TOP + 14 + 18 * i}" text-anchor="end"'
            f' fill="{colour}">{name}</text>'
        )
        if width == 2:
            out += [f'<circle cx="{px(x):.1f}" cy="{py(y):.1f}" r="3" fill="{colour}"/>' for x, y in points]
    with open(sys.argv[-1], "w") as f:
        f.write("\n".join(out) + "\n</svg>\n")


main()
