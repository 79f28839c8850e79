// step.js   a training step, operation by operation
"use strict";

Tour.widgets["step.player"] = (place, data) => {
  const lines = data.lines;
  let at = 0;
  const list = element("div", { class: "operations",
  role: "group", "aria-label": "operations of the step" });
  const page = element("div", { "aria-live": "polite" });

  const passOf = (line) => [line.pass || "before", line.steps.length || line.layer === undefined ? "" :
    `layer ${line.layer}`, ...line.steps.map(([layer, step], i) =>
      (i && layer === line.steps[0][0] ? String(step) : `layer ${layer}: ${step}`))
  ].filter(Boolean).join(", ");
  const buttons = lines.map((line, i) => element("button", { type: "button", click: () => show(i) },
    element("span", { class: "pass" }, passOf(line)), line.name));
  list.append(...buttons);

  function tensorsOf(line) {
    const box = element("div", { class: "tensors" });
    for (const tensor of line.tensors) {
      if (tensor.before && tensor.values) {
        const both = [...tensor.before, ...tensor.values].map((v) => Math.abs(v ?? 0));
        box.append(tensorFigure(tensor, "before", Math.max(...both, 1e-30), "before"),
          tensorFigure(tensor, "values", Math.max(...both, 1e-30), "after"));
      } else box.append(tensorFigure(tensor));
    }
    return box;
  }

  // forward and backward of a block share their numbers
  function partnersOf(line) {
    const other = line.pass === "forward" ? "backward" : "forward";
    const shares = ([layer, step]) => lines.findIndex((l) => l.pass === other && l.steps.some(
      (s) => s[0] === layer && s[1] === step));
    const found = [...new Set(line.steps.map(shares))].filter((i) => i >= 0);
    return found.map((i) => element("button", { type: "button", click: () => show(i) },
      `its ${other}: ${lines[i].name} (${passOf(lines[i]).replace(/^\w+, /, "")})`));
  }

  function show(next, setHash = true) {
    at = Math.max(0, Math.min(lines.length - 1, next));
    const line = lines[at],
      told = data.operations[line.name],
      sources = data.sources[line.source];
    markCurrent(buttons, at);
    const top = buttons[at].offsetTop - list.offsetTop;
    list.scrollTop = Math.max(0, top - list.clientHeight / 2);
    if (setHash) history.replaceState(null, "", `#operation-${at}`);
    const formula = element("div", { class: "formula" });
    formula.innerHTML = told.formula;
    page.replaceChildren(
      element("h2", {}, `${at + 1} of ${lines.length}. ${told.title}`),
      element("p", { class: "quiet" },
        `${line.name}: ${passOf(line)}. ${number(line.flops)} FLOPs in matrix products, ` +
        `${number(line.bytes)} bytes read and written.`),
      formula, element("p", {}, told.text),
      element("div", { class: "row" }, ...partnersOf(line)),
      tensorsOf(line),
      ...["ref", "gpu", "said"].filter((key) => sources[key]).map((key) => codeBlock(sources[
      key], { ref: "in plain loops", gpu: "on a GPU", said: "as an operation" } [key])));
  }

  const buttonsRow = element("div", { class: "row" },
    element("button", { type: "button", click: () => show(at - 1) }, "← previous"),
    element("button", { type: "button", click: () => show(at + 1) }, "next →"),
    ...["forward", "backward", "update"].map((pass) => element("button", {
      type: "button",
      click: () => show(lines.findIndex((l) => l.pass === pass))
    }, `to ${pass}`)),
    element("span", { class: "quiet small" }, "keys: ← and →"));
  document.addEventListener("keydown", (event) => {
    if (event.target.matches("input, select, .code, [role=group]") || event.altKey || event.ctrlKey)
      return;
    if (event.key === "ArrowRight") show(at + 1);
    if (event.key === "ArrowLeft") show(at - 1);
  });
  place.append(element("div", { class: "panel" }, buttonsRow, list, page));
  const linked = /^#operation-(\d+)$/.exec(location.hash);
  show(linked ? Number(linked[1]) : lines.findIndex((l) => l.name === "layernorm_forward"), false);
};

// the input tokens, as text, and the targets
Tour.widgets["step.tokens"] = (place, data) => {
  const load = data.lines.find((l) => l.name === "upload_values"),
    T = data.head.model.sequence;
  const tokens = load.tensors[0].values.slice(0, T);
  const embedding = data.lines.find((l) => l.name === "cross_entropy");
  const targets = embedding.tensors.find((t) => t.name === "targets").values;
  const losses = embedding.tensors.find((t) => t.name === "losses").values;
  const asText = (token) => (token > 32 && token < 127 ?
    String.fromCharCode(token) : token === 32 ? "space" : `byte ${token}`);
  place.append(scroller("tokens", element("table", {}, element("tbody", {},
      row("token", tokens.map(asText)), row("next token (target)", targets.map(asText)),
      row("loss", losses.map((l) => l.toFixed(3)))))));
};