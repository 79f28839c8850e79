// planet.js   530 billion parameters on 2,240 GPUs
"use strict";

Tour.widgets["planet.ranks"] = (place, data) => {
  const plan = data.plan,
    t = plan.tensor,
    d = plan.data,
    p = plan.pipeline;
  const cell = 14,
    left = 70,
    perRow = t * d;
  const wide = left + perRow * 10 + (d - 1) * 4,
    high = p * cell + 8;
  const canvas = element("canvas", {
    width: wide,
    height: high,
    role: "img",
    tabindex: 0,
    "aria-label": `${plan.world} GPUs: a row is a pipeline stage, a block of ${t} a tensor-parallel group`
  });
  const said = element("div", { "aria-live": "polite" });
  const input = element("input", {
    type: "number",
    min: 0,
    max: plan.world - 1,
    value: 0,
    "aria-label": "rank",
    style: "width: 6rem",
    input: () => show(Number(input.value))
  });
  let chosen = 0;

  // rank = tensor + t * (data + d * stage): comm/grid.h
  const place_of = (rank) => ({ tensor: rank % t, data: Math.floor(rank / t) % d, stage: Math.floor(rank /
      t / d) });
  const rank_of = (tensor, data_, stage) => tensor + t * (data_ + d * stage);
  const xOf = (at) => left + (at.data * t + at.tensor) * 10 + at.data * 4;

  function draw() {
    const pen = canvas.getContext("2d"),
      me = place_of(chosen);
    pen.clearRect(0, 0, wide, high);
    pen.font = "11px system-ui, sans-serif";
    for (let rank = 0; rank < plan.world; rank++) {
      const at = place_of(rank),
        tp = at.data === me.data && at.stage === me.stage;
      const dp = at.tensor === me.tensor && at.stage === me.stage,
        pp = at.tensor === me.tensor && at.data === me.data;
      pen.fillStyle = rank === chosen ? color("ink") : tp ? color("series-1") : dp ? color("series-2") :
        pp ? color("series-3") : color("line");
      pen.fillRect(xOf(at), at.stage * cell + 4, 8, cell - 4);
    }
    pen.fillStyle = color("ink");
    for (let stage = 0; stage < p; stage += 2) pen.fillText(`stage ${stage}`, 4, stage * cell + 13);
  }
  document.addEventListener("theme", draw);

  function show(rank) {
    chosen = Math.max(0, Math.min(plan.world - 1, Math.floor(rank) || 0));
    const at = place_of(chosen),
      each = plan.layers / p;
    const stage = plan.stages.find((s) => s.stage === at.stage),
      next = at.stage + 1 < p;
    const groups = Object.entries(stage.sent).filter(([, s]) => s.bytes > 0);
    const whom = {
      tensor: `ranks ${rank_of(0, at.data, at.stage)} to ${rank_of(t - 1, at.data, at.stage)}`,
      data: `ranks ${[...Array(d).keys()].map((x) => rank_of(at.tensor, x, at.stage)).join(", ")}`,
      forward: next ? `rank ${rank_of(at.tensor, at.data, at.stage + 1)}` : "nobody",
      backward: at.stage > 0 ? `rank ${rank_of(at.tensor, at.data, at.stage - 1)}` : "nobody",
      "tied embedding": `rank ${rank_of(at.tensor, at.data, at.stage === 0 ? p - 1 : 0)}`,
      world: "everybody",
    };
    draw();
    said.replaceChildren(
      element("h2", {}, `rank ${chosen}: tensor ${at.tensor}, data ${at.data}, stage ${at.stage}`),
      element("p", {}, `Layers ${at.stage * each} to ${(at.stage + 1) * each - 1}` +
        `${at.stage === 0 ? " and the embedding" : ""}${at.stage === p - 1 ? " and the LM head" : ""}: ` +
        `${number(stage.parameters)} parameters.`),
      memoryBars([{ name: `rank ${chosen}`, memory: stage.memory }], `memory of rank ${chosen}`),
      scroller("what it sends in a step", table(["sends in a step", "calls, including receives", "with"],
        groups.map(([name, s]) => [`${name}: ${bytes(s.bytes)}`, number(s.calls), whom[name]]))));
  }
  canvas.addEventListener("click", (event) => {
    const scale = wide / canvas.getBoundingClientRect().width;
    const stage = Math.floor((event.offsetY * scale - 2) / cell),
      x = event.offsetX * scale - left;
    const data_ = Math.floor(x / (t * 10 + 4)),
      tensor = Math.floor((x - data_ * (t * 10 + 4)) / 10);
    if (stage >= 0 && stage < p && data_ >= 0 && data_ < d && tensor >= 0 && tensor < t) {
      input.value = rank_of(tensor, data_, stage);
      show(Number(input.value));
    }
  });
  canvas.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: t * d, ArrowUp: -t * d } [event.key];
    if (by === undefined) return;
    event.preventDefault();
    input.value = Math.max(0, Math.min(plan.world - 1, chosen + by));
    show(Number(input.value));
  });
  const key = [
    ["series-1", "its tensor-parallel group"],
    ["series-2", "its data-parallel group"],
    ["series-3", "its pipeline"]
  ];
  place.append(element("div", { class: "panel" },
    element("div", { class: "row" }, element("label", {}, "rank ", input), ...key.map(([name,
      what]) => element("span", {},
        element(
        "span", { style: `display: inline-block; width: .8em; height: .8em; background: var(--${name})` }),
        ` ${what}`))),
    scroller("all GPUs", canvas),
    said));
  show(0);
};

Tour.widgets["planet.axes"] = (place, data) => {
  const rows = data.axes.map((a) => [a.layout, number(a.gpus), `${a.gigabytes.toFixed(1)} GB`,
    a.fits ? `${a.seconds.toFixed(1)} s` : "does not fit", a.fits ? `${(100 * a.mfu).toFixed(1)} %` : ""]);
  const heads = ["layout", "GPUs", "a GPU holds", "a step takes", "MFU"];
  place.append(scroller("each axis alone", table(heads, rows)));
};

Tour.widgets["planet.published"] = (place, data) => {
  place.append(element("div", { class: "code", tabindex: 0,
    role: "group", "aria-label": "published runs, planned" },
    element("pre", {}, data.published)));
};

Tour.widgets["planet.timeline"] = (place, data) => {
  const frame = new DOMParser().parseFromString(data.timeline, "image/svg+xml").documentElement;
  frame.setAttribute("role", "img");
  frame.setAttribute("aria-label",
    "A planned step of the stages: forwards, backwards, messages and buckets");
  place.append(scroller("timeline", frame));
};

// asks the planner itself: only where scripts/tour.sh serves the page
Tour.widgets["planet.ask"] = (place, data) => {
  if (!location.protocol.startsWith("http") || !Tour.live) {
    place.append(element("p", { class: "quiet" },
      "bash scripts/tour.sh serves this page with a planner that answers here."));
    return;
  }
  const fields = {
    "tensor-parallel": [1, 2, 4, 8, 16],
    "pipeline-parallel": [1, 5, 7, 15, 21, 35, 105],
    "world-size": [280, 560, 1120, 2240, 2800, 3360],
    "batch": [1440, 1680, 1920, 2240, 2400],
    "ramp-start": [32, 0],
    "recompute": ["none", "full"],
    hardware: ["dgx-a100", "dgx-h100", "dgx-h200"]
  };
  const asked = { "tensor-parallel": 8, "pipeline-parallel": 35, "world-size": 2240, batch: 1920,
    "ramp-start": 32, recompute: "full",
    hardware: "dgx-a100" };
  const answer = element("div", { class: "code", tabindex: 0, role: "group", "aria-label": "the plan" },
    element("pre", {}, ""));
  const ask = async () => {
    const got = await fetch(`api/plan?${new URLSearchParams(asked)}`);
    answer.firstChild.textContent = await got.text();
  };
  place.append(element("div", { class: "panel" }, element("div", { class: "row" }, ...Object.entries(
      fields).map(([name, options]) =>
      choice(name, options, (value) => { asked[name] = value; }, asked[name]).row),
    element("button", { type: "button", click: ask }, "plan it")), answer));
};