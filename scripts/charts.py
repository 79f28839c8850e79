"""Charts as SVG, tables as Markdown: shared by the scripts that draw."""

import math
import os
import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path

COLOURS = {"others": "#9aa5b1", "ours": "#4878cf", "published": "#d1495b"}
LINES = ("#4878cf", "#d1495b", "#3a9d5d", "#8a5fbf", "#c98a1b", "#7a8591")


def svg(wide, high, drawn, title=""):
    head = f'<text x="8" y="18" font-size="14">{escape(title)}</text>\n' if title else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}" viewBox="0 0 {wide} {high}"'
        ' font-family="sans-serif" font-size="12">\n'
        f'<rect width="{wide}" height="{high}" fill="white"/>\n{head}' + "\n".join(drawn) + "\n</svg>\n"
    )


def write(path, picture):
    """Writes an SVG; a file of another kind is not replaced."""
    program, path = os.path.basename(sys.argv[0]), Path(path)
    try:
        if path.is_file():
            with path.open("rb") as before:
                if before.read(4) not in (b"<svg", b"<?xm", b""):
                    sys.exit(f"{program}: {path}: exists, and is no SVG: choose another name for the drawing")
        path.write_text(picture, encoding="utf8")
    except OSError as error:
        sys.exit(f"{program}: {path}: cannot be written: {error.strerror}")


def bars(title, rows, unit, legend, note=""):
    """Horizontal bars as SVG. rows: name, [(value, what, error)], where an error of None has no bar of its
    own; legend: what each of `what` stands for."""
    wide, left, step, head = 760, 210, 16, 62 if note else 48
    top = max(value + (error or 0) for _, values in rows for value, _, error in values)
    high = head + 10 + sum(step * len(values) + 8 for _, values in rows)
    out = []

    x = 8
    for what, name in legend.items():
        out.append(f'<rect x="{x}" y="28" width="12" height="12" fill="{COLOURS[what]}"/>')
        out.append(f'<text x="{x + 18}" y="38">{escape(name)}</text>')
        x += 40 + 7 * len(name)
    if note:
        out.append(f'<text x="8" y="56" fill="#666">{escape(note)}</text>')

    y = head
    scale = (wide - left - 130) / top
    for name, values in rows:
        out.append(f'<text x="{left - 8}" y="{y + 12}" text-anchor="end">{escape(name)}</text>')
        for value, what, error in values:
            end = left + value * scale
            out.append(
                f'<rect x="{left}" y="{y}" width="{value * scale:.1f}" height="13" fill="{COLOURS[what]}"/>'
            )
            said = f"{value:g}"
            if error is not None:
                low = max(left, end - error * scale)
                out.append(f'<path d="M{low:.1f} {y + 6.5}H{end + error * scale:.1f}" stroke="#222"/>')
                end += error * scale
                said += f" ± {error:.1f}"
            out.append(f'<text x="{end + 6:.1f}" y="{y + 11}">{said} {unit}</text>')
            y += step
        y += 8

    return svg(wide, high, out, title)


def over_time(title, models):
    """Parameters over years, on a logarithmic scale, as SVG."""
    wide, high, left, bottom = 760, 420, 70, 44
    first, last = 2018, 2022
    least, most = 7.5, 12.2  # powers of ten

    def x_of(year):
        return left + (year - first) / (last - first) * (wide - left - 90)

    def y_of(power):
        return 40 + (most - power) / (most - least) * (high - bottom - 40)

    out = []

    for power, said in (
        (8, "100 million"),
        (9, "1 billion"),
        (10, "10 billion"),
        (11, "100 billion"),
        (12, "1 trillion"),
    ):
        y = y_of(power)
        out.append(f'<path d="M{left} {y:.1f}H{wide - 20}" stroke="#ddd"/>')
        out.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end" font-size="10">{said}</text>')

    for year in range(first, last + 1):
        out.append(f'<text x="{x_of(year):.1f}" y="{high - 16}" text-anchor="middle">{year}</text>')
    places = [(x_of(model["year"]), y_of(math.log10(model["parameters"]))) for model in models]
    for i, model in enumerate(models):
        x, y = places[i]
        # a label on the right would run into a neighbour, or into its label
        width = 14 + 7 * len(model["name"])
        others = places[:i] + places[i + 1 :]
        crowded = any(0 <= other[0] - x < width and abs(other[1] - y) < 14 for other in others)
        colour = COLOURS["ours" if model["preset"] else "others"]
        out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{colour}"/>')
        at = f'x="{x - 9:.1f}" text-anchor="end"' if crowded else f'x="{x + 9:.1f}"'
        out.append(f'<text {at} y="{y + 4:.1f}">{escape(model["name"])}</text>')

    out.append(f'<text x="{wide - 20}" y="34" text-anchor="end" fill="{COLOURS["ours"]}">presets here</text>')
    return svg(wide, high, out, title)


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows]) + "\n"


# ---- curves ----------------------------------------------------------------------------------------------

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 400, 60, 20, 36, 48


@dataclass
class Curve:
    name: str
    colour: str
    width: float  # 2: with its points marked
    points: list


def ticks(low, high, count=6):
    """Round numbers between low and high, about `count` of them."""
    raw = max(high - low, 1e-9) / count
    size = 10 ** math.floor(math.log10(raw))
    step = next(m * size for m in (1, 2, 5, 10) if m * size >= raw)
    first = math.ceil(low / step)
    return [i * step for i in range(first, int(high / step + 1e-9) + 1)]


def line_chart(curves, x_said, y_said, low, x_names=()):
    """Curves over x from 0, y from low; x_names: labels at x = 0, 1, … instead of numbers."""
    every = [p for curve in curves for p in curve.points]
    high, last = max(max(y for _, y in every), low + 0.5), max(x for x, _ in every) or 1

    def px(x):
        return LEFT + (WIDTH - LEFT - RIGHT) * x / last

    def py(y):
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - y) / (high - low)

    out = []
    for y in ticks(low, high):
        out.append(
            f'<path d="M{LEFT} {py(y):.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>'
            f'<text x="{LEFT - 8}" y="{py(y) + 4:.1f}" text-anchor="end">{y:g}</text>'
        )

    for x, name in list(enumerate(x_names)) or [(x, f"{x:g}") for x in ticks(0, last)]:
        at = f'x="{px(x):.1f}" y="{HEIGHT - BOTTOM + 18}"'
        out.append(f'<text {at} text-anchor="middle">{escape(name)}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    out.append(f'<text x="{middle}" y="{HEIGHT - 10}" text-anchor="middle">{escape(x_said)}</text>')
    out.append(f'<text x="{LEFT}" y="20">{escape(y_said)}</text>')

    for i, curve in enumerate(curves):
        path = "".join(f"{'ML'[j > 0]}{px(x):.1f} {py(y):.1f}" for j, (x, y) in enumerate(curve.points))
        out.append(f'<path d="{path}" fill="none" stroke="{curve.colour}" stroke-width="{curve.width}"/>')
        at = f'x="{WIDTH - RIGHT}" y="{TOP + 14 + 18 * i}"'
        out.append(f'<text {at} text-anchor="end" fill="{curve.colour}">{escape(curve.name)}</text>')
        if curve.width == 2:
            dots = [f'cx="{px(x):.1f}" cy="{py(y):.1f}"' for x, y in curve.points]
            out += [f'<circle {dot} r="3" fill="{curve.colour}"/>' for dot in dots]

    return svg(WIDTH, HEIGHT, out)
