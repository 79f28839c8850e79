// recipe.js   batch ramp, learning rate, and a blend drawn sample by sample
"use strict";

// a curve; points: [x, y]; in steps: y holds since the point before
function curve(given, label, xName, yName, inSteps = false) {
  const points = inSteps ? given.flatMap((p, i) => [[i ? given[i - 1][0] : 0, p[1]], p]) : given;
  const wide = 700,
    high = 190,
    left = 70,
    bottom = 28;
  const xs = points.map((p) => p[0]),
    ys = points.map((p) => p[1]);
  const x = (v) => left + (v - Math.min(...xs)) / (Math.max(...xs) - Math.min(...xs)) * (wide - left - 10);
  const y = (v) => high - bottom - v / Math.max(...ys) * (high - bottom - 16);
  const svg = element("svg", { viewBox: `0 0 ${wide} ${high}`, width: wide,
  role: "img", "aria-label": label });
  svg.append(element("line", { x1: left, x2: wide - 10, y1: high - bottom, y2: high - bottom,
      stroke: "var(--line)" }),
    element("polyline", {
      points: points.map((p) => `${x(p[0]).toFixed(1)},${y(p[1]).toFixed(1)}`).join(" "),
      fill: "none",
      stroke: "var(--forward)",
      "stroke-width": 2
    }),
    element("text", { x: left - 6, y: y(Math.max(...ys)) + 4, "text-anchor": "end" }, number(Math.max(...
      ys), 3)),
    element("text", { x: left - 6, y: high - bottom + 4, "text-anchor": "end" }, "0"),
    element("text", { x: wide - 10, y: high - 10, "text-anchor": "end" },
      `${xName}: to ${number(Math.max(...xs))}`),
    element("text", { x: left, y: 10 }, yName));
  return scroller(label, svg);
}

Tour.widgets["recipe.curves"] = (place, data) => {
  const rows = data.ramped;
  const batches = rows.map((r, i) => [r.tokens, (r.tokens - (i ? rows[i - 1].tokens : 0)) / 8]);
  place.append(element("div", { class: "panel" },
    curve(batches, "batch size against tokens", "tokens", "samples in a step", true),
    curve(rows.map((r) => [r.tokens, r.learning_rate]), "learning rate against tokens", "tokens",
      "learning rate")));
};

Tour.widgets["recipe.blend"] = (place, data) => {
  const names = [...new Set(data.drawn)];
  const cells = data.drawn.map((name, i) => element("span", {
    title: `sample ${i}: ${name}`,
    style: name === names[0] ? "background: var(--mark)" : ""
  }, name === names[0] ? "A" : "B"));
  const taken = element("p", { "aria-live": "polite" });
  const show = (n) => {
    cells.forEach((c, i) => { c.style.opacity = i < n ? 1 : .25; });
    const a = data.drawn.slice(0, n).filter((name) => name === names[0]).length;
    taken.textContent =
      `After ${n} samples: ${a} of A (its weight asks for ${(.7 * n).toFixed(1)}), ${n - a} of B ` +
      `(${(.3 * n).toFixed(1)}).`;
  };
  const samples = slider("samples drawn", data.drawn.length, show, data.drawn.length);
  place.append(element("div", { class: "panel" }, samples.row, element("div", { class: "lanes" }, ...
    cells), taken));
  show(data.drawn.length);
};

Tour.widgets["recipe.mtnlg"] = (place, data) => {
  const rows = data.blend.map((s) => [s.set, String(s.weight), `${s.drawn.toFixed(1)} billion`]);
  place.append(scroller("MT-NLG's sets", table(["set", "weight", "of the tokens drawn"], rows)));
};
