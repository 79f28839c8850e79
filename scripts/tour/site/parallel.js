// parallel.js   one layer over tensor-parallel ranks; buckets and memory of data parallelism
"use strict";

Tour.widgets["tensor.player"] = (place, data) => {
  let ranks = 2,
    split = false,
    pass = "forward",
    at = 0;
  const page = element("div", { "aria-live": "polite" });
  const list = element("div", { class: "operations",
  role: "group", "aria-label": "operations of the layer" });
  const layout = () => data.layouts.find((l) => l.ranks === ranks && l.sequence_parallel === (split &&
    ranks > 1));
  const linesOf = (rank) => layout().lines.filter((l) => l.rank === rank && l.pass === pass);
  const controls = [
    choice("tensor-parallel ranks", [1, 2, 4], (v) => { ranks = Number(v);
      restart(); }, 2),
    choice("sequence parallelism", ["no", "yes"], (v) => { split = v === "yes";
      restart(); }),
    choice("pass", ["forward", "backward"], (v) => { pass = v;
      restart(); }),
  ];
  place.append(element("div", { class: "panel" },
    element("div", { class: "row" }, ...controls.map((c) => c.row)), list, page));

  const title = (line) => (line.kind === "call" ? `${line.name}: ${line.label}` : line.name);

  function restart() {
    const lines = linesOf(0);
    const call = lines.findIndex((l) => l.kind === "call");
    list.replaceChildren(...lines.map((line, i) => element("button", { type: "button", click: () => show(
          i) },
      element("span", { class: "pass" }, line.kind === "call" ? "all ranks talk" :
        "each rank alone"), title(line))));
    show(Math.max(0, call));
  }

  // what the collective promises, computed here from the values that were recorded
  function proof(lines) {
    if (lines[0].name !== "all_reduce" || !lines[0].tensors[0].before) return null;
    const tensors = lines.map((l) => l.tensors[0]);
    let worst = 0;
    tensors[0].values.forEach((_, i) => {
      const sum = tensors.reduce((s, t) => s + t.before[i], 0);
      for (const t of tensors) worst = Math.max(worst, Math.abs(t.values[i] - sum));
    });
    return element("p", {},
      "The values before, added up here, differ from the values after by at most ",
      element("b", { "data-worst": worst }, number(worst)), ".");
  }

  function show(next) {
    at = next;
    markCurrent([...list.children], at);
    const lines = [...Array(ranks).keys()].map((rank) => linesOf(rank)[at]);
    const isCall = lines[0].kind === "call";
    const boxes = lines.map((line, rank) => {
      const box = element("div", { class: "tensors" });
      for (const tensor of line.tensors) {
        if (tensor.before && tensor.values) box.append(tensorFigure(tensor, "before", 0, "before"));
        box.append(tensorFigure(tensor, "values", 0, tensor.before ? "after" : tensor.use));
      }
      return element("div", {}, element("h2", {}, `rank ${rank}`), box);
    });
    page.replaceChildren(...[element("h2", {}, title(lines[0])),
      element("p", {}, isCall ? data.calls[lines[0].name] : data.operations[lines[0].name].text),
      isCall ? element("p", { class: "quiet" },
        `${number(lines[0].values_in_all)} values over ${lines[0].ranks.length} ` +
        `ranks of group “${lines[0].group}”`) : null, isCall ? proof(lines) : null, ...boxes
    ].filter(Boolean));
  }
  restart();
};

// ---- data parallelism -------------------------------------------------------------------------------------

Tour.widgets["data.calls"] = (place, data) => {
  const page = element("div", {});
  const show = (zero) => {
    const calls = data.runs.find((r) => r.zero === zero).calls;
    const rows = calls.map((c) => [c.name, c.label || (zero ? "the rank's slice" : "all parameters"),
      c.bucket === undefined ? "" : String(c.bucket), c.values_in_all ? number(c.values_in_all) : "",
      c.ranks ? c.ranks.join(" ") : "0", c.stream]);
    const heads = ["in this order", "of", "bucket", "values", "ranks", "stream"];
    page.replaceChildren(scroller("what rank 0 sends and updates, in order", table(heads, rows)));
  };
  const zero = choice("optimizer state sharded (ZeRO-1)", ["yes", "no"], (v) => show(v === "yes" ? 1 :
  0));
  place.append(element("div", { class: "panel" }, element("div", { class: "row" }, zero.row), page));
  show(1);
};

// bars of memory by what it is for
function memoryBars(rows, label) {
  const kinds = ["parameters", "gradients", "optimizer", "activations", "scratch", "GEMM workspace"];
  const shades = [1, 2, 3, 4, 5, 6].map((n) => `--series-${n}`);
  const most = Math.max(...rows.map((r) => kinds.reduce((s, k) => s + (r.memory[k] || 0), 0)));
  const wide = 720,
    left = 170,
    step = 26;
  const svg = element("svg", {
    viewBox: `0 0 ${wide} ${rows.length * step + 34}`,
    width: wide,
    role: "img",
    "aria-label": label
  });
  rows.forEach((row, i) => {
    let x = left;
    svg.append(element("text", { x: 0, y: i * step + 17 }, row.name));
    kinds.forEach((kind, k) => {
      const width = (row.memory[kind] || 0) / most * (wide - left - 80);
      svg.append(element("rect", { x, y: i * step + 4, width, height: step - 8,
          fill: `var(${shades[k]})` },
        element("title", {}, `${kind}: ${bytes(row.memory[kind] || 0)}`)));
      x += width;
    });
    const all = kinds.reduce((s, k) => s + (row.memory[k] || 0), 0);
    svg.append(element("text", { x: x + 6, y: i * step + 17 }, bytes(all)));
  });
  kinds.forEach((kind, k) => {
    const x = k * 118,
      y = rows.length * step + 14;
    svg.append(element("rect", { x, y, width: 11, height: 11, fill: `var(${shades[k]})` }),
      element("text", { x: x + 16, y: y + 10 }, kind));
  });
  return scroller(label, svg);
}

Tour.widgets["data.memory"] = (place, data) => {
  const rows = data.memory.map((m) => ({
    memory: m.memory,
    name: `${m.ranks} rank${m.ranks > 1 ? "s" : ""}, ZeRO ${m.zero}`
  }));
  place.append(element("div", { class: "panel" }, memoryBars(rows,
    "memory of a rank by data-parallel ranks")));
};