// tour.js   what the chapters share: elements, heat maps, sliders, the theme
"use strict";

const Tour = { data: {}, widgets: {} };

// element("div", {class: "row"}, child, "text", …); an attribute that is a function listens to that event
function element(name, attributes = {}, ...children) {
  const space = Tour.svgNames.has(name) ? "http://www.w3.org/2000/svg" : "http://www.w3.org/1999/xhtml";
  const made = document.createElementNS(space, name);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(key, value);
    else if (value !== false && value !== undefined) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}
Tour.svgNames = new Set(["svg", "rect", "line", "path", "circle", "g", "text", "title", "polyline"]);

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function number(value, digits = 4) {
  if (value === null || value === undefined) return "not finite";
  if (Number.isInteger(value)) return value.toLocaleString("en");
  return Math.abs(value) >= 1e4 || Math.abs(value) < 1e-3 ? value.toExponential(2) : value.toPrecision(
    digits);
}

function bytes(value) {
  for (const [unit, size] of [
      ["TB", 1e12],
      ["GB", 1e9],
      ["MB", 1e6],
      ["kB", 1e3]
    ])
    if (value >= size) return `${(value / size).toFixed(2)} ${unit}`;
  return `${value} bytes`;
}

// ---- heat maps --------------------------------------------------------------------------------------------

function mixed(a, b, share) {
  const parts = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  const [from, to] = [parts(a), parts(b)];
  return `rgb(${from.map((v, i) => Math.round(v + (to[i] - v) * share)).join(" ")})`;
}

// a tensor's values, rows by columns; white is 0, blue above, red below; `most` is the full colour
function heatMap(values, rows, columns, label, most) {
  const cell = Math.max(2, Math.min(18, Math.floor(420 / columns), Math.floor(260 / Math.min(rows, 130))));
  const shown = Math.min(rows, 130);
  const canvas = element("canvas", {
    class: "map",
    width: columns * cell,
    height: shown * cell,
    role: "img",
    "aria-label": label
  });
  const top = most || Math.max(...values.map((v) => Math.abs(v ?? 0)), 1e-30);
  const draw = () => {
    const pen = canvas.getContext("2d");
    const [paper, high, low] = [color("paper"), color("positive"), color("negative")];
    for (let r = 0; r < shown; r++)
      for (let c = 0; c < columns; c++) {
        const v = values[r * columns + c];
        pen.fillStyle = v === null ? color("quiet") :
          mixed(paper, v > 0 ? high : low, Math.min(1, Math.sqrt(Math.abs(v) / top)));
        pen.fillRect(c * cell, r * cell, cell, cell);
      }
  };
  draw();
  document.addEventListener("theme", draw);
  const said = element("div", { class: "small quiet" }, "\u00a0");
  canvas.addEventListener("mousemove", (event) => {
    const c = Math.floor(event.offsetX / cell),
      r = Math.floor(event.offsetY / cell);
    if (c < columns && r < shown) said.textContent = `[${r}, ${c}] ${number(values[r * columns + c])}`;
  });
  return element("div", {}, canvas, said);
}

// what may be wider than the page
function scroller(label, ...children) {
  return element("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": label }, ...children);
}

// a table with a heading for each column; rows: lists of cells, or elements
function table(heads, rows) {
  const cells = (r) => (Array.isArray(r) ? element("tr", {}, ...r.map((c) => element("td", {}, c))) : r);
  const head = (h) => (h ? element("th", { scope: "col" }, h) : element("td", {}));
  return element("table", {}, element("thead", {}, element("tr", {}, ...heads.map(head))),
    element("tbody", {}, ...rows.map(cells)));
}

// a row of a table whose headings are on the left
function row(name, cells) {
  return element("tr", {}, element("th", { scope: "row" }, name), ...cells.map((c) => element("td", {}, c)));
}

function markCurrent(elements, at) {
  elements.forEach((e, i) => (i === at ? e.setAttribute("aria-current", "true") :
    e.removeAttribute("aria-current")));
}

function valueTable(values, rows, columns) {
  const lines = [];
  for (let r = 0; r < rows; r++)
    lines.push(row(String(r), values.slice(r * columns, (r + 1) * columns).map((v) => number(v))));
  return scroller("values", table(["", ...[...Array(columns).keys()].map(String)], lines));
}

// a tensor of a record, as a figure; key: values or before
function tensorFigure(tensor, key = "values", most = 0, said = tensor.use) {
  const [rows, columns] = tensor.shape;
  const values = tensor[key];
  const what = `${tensor.name} (${rows} × ${columns}) ${tensor.type}, ${said}`;
  const caption = element("figcaption", {}, element("b", {}, tensor.name),
    ` (${rows} × ${columns}) ${tensor.type}, ${said}`);
  if (!values) return element("figure", {}, caption, element("p", { class: "small quiet" },
    `${(rows * columns).toLocaleString("en")} values, more than are shown`));
  const wide = columns === 1 && rows > 8 ? [1, rows] : [rows, columns];
  const figure = element("figure", {}, heatMap(values, ...wide, what, most), caption);
  if (rows * columns <= 300)
    figure.append(element("details", {}, element("summary", { class: "small" }, "values"),
      valueTable(values, ...wide)));
  return figure;
}

// ---- code, controls ---------------------------------------------------------------------------------------

function codeBlock(source, title) {
  const pre = element("pre", {});
  pre.innerHTML = source.html;
  return element("div", {},
    element("div", { class: "small quiet" },
      `${title}: ${source.file}, lines ${source.first} to ${source.last}`),
    element("div", {
      class: "code",
      tabindex: 0,
      role: "group",
      "data-file": source.file,
      "data-first": source.first,
      "data-last": source.last,
      "aria-label": `${title}, ${source.file} from line ${source.first}`
    }, pre));
}

function slider(label, most, change, start = 0, show = String) {
  const shown = element("output", {}, show(start));
  const input = element("input", { type: "range", min: 0, max: most, value: start, "aria-label": label });
  input.addEventListener("input", () => {
    shown.textContent = show(Number(input.value));
    change(Number(input.value));
  });
  input.show = () => { shown.textContent = show(Number(input.value)); };
  return { input, row: element("label", { class: "slider" }, `${label} `, input, shown) };
}

function choice(label, options, change, start = options[0]) {
  const select = element("select", { "aria-label": label, change: () => change(select.value) },
    ...options.map((o) => element("option", { value: o, selected: String(o) === String(start) }, String(
      o))));
  return { select, row: element("label", {}, `${label} `, select) };
}

// ---- the page ---------------------------------------------------------------------------------------------

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  const button = document.getElementById("theme");
  if (button) button.textContent = theme === "dark" ? "light" : "dark";
  document.dispatchEvent(new Event("theme"));
}

document.addEventListener("DOMContentLoaded", () => {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  let theme = dark ? "dark" : "light";
  try { theme = localStorage.getItem("theme") ||
    theme; } catch { /* a file's page may have no storage */ }
  setTheme(theme);
  document.getElementById("theme").addEventListener("click", () => {
    setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
    try { localStorage.setItem("theme", document.documentElement.dataset
      .theme); } catch { /* the same */ }
  });
  for (const place of document.querySelectorAll("[data-widget]")) {
    const [chapter, widget] = place.dataset.widget.split(".");
    const data = Tour.data[chapter];
    if (data.missing) place.append(element("p", { class: "quiet" },
      `Not made on this machine: ${data.missing}`));
    else Tour.widgets[place.dataset.widget](place, data, widget);
  }
});