// pipeline.js   a pipeline schedule, played
"use strict";

Tour.widgets["pipeline.player"] = (place, data) => {
  let p = 4,
    m = 8,
    v = 1,
    time = 0,
    playing = null;
  const live = location.protocol.startsWith("http") && Tour.live;
  const drawing = scroller("the schedule");
  const said = element("div", { "aria-live": "polite" });
  const clock = slider("time", 1000, (value) => { time = value / 1000;
    move(); }, 1000, (t) => `${t / 10} %`);
  const sizes = (key) => [...new Set(data.schedules.map((s) => s[key]))];
  const controls = [
    choice("stages p", live ? [1, 2, 4, 8, 16] : sizes("p"), (x) => { p = Number(x);
      draw(); }, 4),
    choice("micro-batches m", live ? [1, 2, 4, 6, 8, 12, 16, 32] : sizes("m"), (x) => { m = Number(x);
      draw(); }, 8),
    choice("chunks a stage v", live ? [1, 2, 4] : sizes("v"), (x) => { v = Number(x);
      draw(); }),
  ];
  const play = element("button", {
    type: "button",
    click: () => {
      if (playing) return stop();
      if (time >= 1) time = 0;
      play.textContent = "pause";
      playing = setInterval(() => {
        time = Math.min(1, time + 1 / 150);
        clock.input.value = time * 1000;
        clock.input.show();
        move();
        if (time >= 1) stop();
      }, 50);
    }
  }, "play");

  function stop() {
    clearInterval(playing);
    playing = null;
    play.textContent = "play";
  }
  place.append(element("div", { class: "panel" }, element("div", { class: "row" }, ...controls.map((c) =>
      c.row), play),
    clock.row, drawing, said));

  let asked = 0, schedule = null,
    bars = [];
  async function fetched() {
    const known = data.schedules.find((s) => s.p === p && s.m === m && s.v === v);
    if (known || !live) return known ||
    { refused: `${p} stages cannot have ${v} chunks: one stage has nobody to wait for` };
    const answer = await fetch(`api/pipeline?p=${p}&m=${m}&v=${v}`);
    return answer.json();
  }

  async function draw() {
    stop();
    const mine = ++asked, answer = await fetched();
    if (mine !== asked) return; // another one was asked for meanwhile
    schedule = answer;
    if (schedule.refused) {
      drawing.replaceChildren();
      said.replaceChildren(element("p", {}, `The program refuses: ${schedule.refused}`));
      return;
    }
    const end = Math.max(...schedule.spans.map((s) => s[5])),
      wide = 760,
      left = 60,
      step = 26;
    const svg = element("svg", {
      viewBox: `0 0 ${wide} ${p * step + 8}`,
      width: wide,
      role: "img",
      "aria-label": `1F1B schedule of ${p} stages, ${m} micro-batches, ${v} chunks a stage`
    });
    for (let stage = 0; stage < p; stage++)
      svg.append(element("text", { x: 0, y: stage * step + 19 }, `stage ${stage}`));
    bars = schedule.spans.map(([stage, kind, batch, chunk, from, to]) => {
      const x = left + from / end * (wide - left - 4),
        width = Math.max(1, (to - from) / end * (wide - left - 4));
      const bar = element("g", {}, element("title", {},
          `${kind === "f" ? "forward" : "backward"} of micro-batch ${batch}` +
          (v > 1 ? `, chunk ${chunk}` : "")),
        element("rect", {
          x,
          y: stage * step + 5,
          width,
          height: step - 6,
          stroke: "var(--panel)",
          fill: kind === "f" ? "var(--forward)" : "var(--backward)",
          "fill-opacity": chunk % 2 ? .62 : 1
        }));
      if (width > 13) bar.append(element("text", {
        x: x + width / 2,
        y: stage * step + 20,
        "text-anchor": "middle",
        style: "fill: var(--paper)"
      }, String(batch)));
      svg.append(bar);
      return { bar, from: from / end, to: to / end, stage, kind };
    });
    drawing.replaceChildren(svg);
    time = 1;
    clock.input.value = 1000;
    clock.input.show();
    move();
  }

  function move() {
    if (!schedule || schedule.refused) return;
    const held = Array(schedule.p).fill(0),
      peak = Array(schedule.p).fill(0);
    for (const b of bars) b.bar.style.opacity = b.from <= time ? 1 : .12;
    // a backward that ends when a forward begins has given its memory back; the planner's times are rounded
    const moment = 1e-5;
    const events = bars.map((b) => ({
      at: b.kind === "f" ? b.from : b.to - moment,
      stage: b.stage,
      by: b.kind === "f" ? 1 : -1
    }));
    for (const e of events.sort((a, b) => a.at - b.at || a.by - b.by)) {
      if (e.at > time) continue;
      held[e.stage] += e.by;
      peak[e.stage] = Math.max(peak[e.stage], held[e.stage]);
    }
    const most = schedule.memory.map((x) => x.activations);
    said.replaceChildren(
      element("p", {},
        `The step takes ${schedule.seconds.toFixed(3)} s on the planned machine. The bubble is ` +
        `${(100 * schedule.bubble).toFixed(1)} % of the ideal time by the formula (p − 1) / (v m); ` +
        "the average stage is " +
        `idle for ${(100 * schedule.idle).toFixed(1)} % of the step.`),
      scroller("in flight", element("table", {}, element("tbody", {},
        row("stage", held.map((_, i) => String(i))),
        row("chunks of micro-batches in flight now", held.map(String)),
        row("at most, until now", peak.map(String)),
        row("memory for activations", most.map(bytes))))));
  }
  draw();
};