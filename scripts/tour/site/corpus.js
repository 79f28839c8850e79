// corpus.js   pages on their way through the corpus steps
"use strict";

Tour.widgets["corpus.pages"] = (place, data) => {
  const page = element("div", { "aria-live": "polite" });
  const cell = (p, step) => {
    if (step === "tokens") return p.end === "tokens" ? "yes" : "";
    if (step in p.texts) return String(p.texts[step].length);
    return step === p.end ? "ends here" : "";
  };
  const rows = data.pages.map((p) => [p.name, ...data.steps.map((step) => cell(p, step))]);
  const pages = choice("page", data.pages.map((p) => p.name), show);
  place.append(element("div", { class: "panel" },
    scroller("pages and steps", table(["page", ...data.steps], rows)),
    element("div", { class: "row" }, pages.row), page));

  const box = (title, text) => element("div", {}, element("div", { class: "small quiet" }, title),
    element("div", { class: "code", tabindex: 0, role: "group", "aria-label": title },
      element("pre", { style: "white-space: pre-wrap" }, text)));

  function show(name) {
    const p = data.pages.find((x) => x.name === name);
    const texts = Object.entries(p.texts);
    const changed = texts.filter(([, text], i) => i === 0 || text !== texts[i - 1][1]);
    page.replaceChildren(box("as it came", p.html),
      ...changed.map(([step, text]) => box(`after ${step}`, text)),
      element("p", {}, p.end === "tokens" ? "It goes on to be tokens." :
        `It ends at ${p.end}: ${p.why}.`));
  }
  show(data.pages[0].name);
};