#!/usr/bin/env python3
"""Draws the losses of a metrics file as SVG: python3 scripts/plot_loss.py METRICS.jsonl OUT.svg

METRICS.jsonl is what train_gpt --metrics writes: step, tokens, loss and sometimes validation_loss.
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


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        lines = [json.loads(line) for line in open(sys.argv[1])]
    except (OSError, ValueError) as error:
        sys.exit(f"plot_loss.py: {sys.argv[1]}: {error}")
    train = [(m["tokens"], m["loss"]) for m in lines if math.isfinite(m["loss"])]
    held = [(m["tokens"], m["validation_loss"]) for m in lines if "validation_loss" in m]
    if not train:
        sys.exit(f"plot_loss.py: {sys.argv[1]}: has no line with a loss")
    low = math.floor(2 * min(y for _, y in train + held)) / 2
    high, last = max(y for _, y in train), max(x for x, _ in train)
    high = max(high, low + 0.5)
    px = lambda x: LEFT + (WIDTH - LEFT - RIGHT) * x / last
    py = lambda y: TOP + (HEIGHT - TOP - BOTTOM) * (high - y) / (high - low)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
           'font-family="sans-serif" font-size="12">', f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
    for y in ticks(low, high):
        out.append(f'<path d="M{LEFT} {py(y):.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>'
                   f'<text x="{LEFT - 8}" y="{py(y) + 4:.1f}" text-anchor="end">{y:g}</text>')
    unit, name = (1e6, " million") if last >= 3e6 else (1e3, " thousand")
    for x in ticks(0, last / unit):
        out.append(f'<text x="{px(x * unit):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{x:g}</text>')
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 10}" text-anchor="middle">{name.strip()} tokens</text>')
    out.append(f'<text x="{LEFT}" y="20">loss, nats per token</text>')
    path = "".join(f'{"ML"[i > 0]}{px(x):.1f} {py(y):.1f}' for i, (x, y) in enumerate(train))
    out.append(f'<path d="{path}" fill="none" stroke="#4878cf" stroke-width="1.2"/>')
    out.append(f'<text x="{WIDTH - RIGHT}" y="20" text-anchor="end" fill="#4878cf">training</text>')
    if held:
        path = "".join(f'{"ML"[i > 0]}{px(x):.1f} {py(y):.1f}' for i, (x, y) in enumerate(held))
        out.append(f'<path d="{path}" fill="none" stroke="#d1495b" stroke-width="2"/>')
        out += [f'<circle cx="{px(x):.1f}" cy="{py(y):.1f}" r="3" fill="#d1495b"/>' for x, y in held]
        out.append(f'<text x="{WIDTH - RIGHT - 70}" y="20" text-anchor="end" fill="#d1495b">validation '
                   f'({held[-1][1]:.3f} at the end)</text>')
    with open(sys.argv[2], "w") as f:
        f.write("\n".join(out) + "\n</svg>\n")


main()
