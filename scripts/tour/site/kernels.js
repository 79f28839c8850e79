// kernels.js   what two kernels read and write: request by request, as the emulated device saw it
"use strict";

Tour.widgets["kernels.player"] = (place, data) => {
  const panel = element("div", { class: "panel" });
  const page = element("div", { "aria-live": "polite" });
  let trace = data.kernels[0],
    warp = 0,
    at = 0;

  const requests = () => trace.requests.filter((r) => r.warp === warp);
  const steps = slider("request", 1, (value) => show(value), 0, (value) => String(value + 1));
  const kernels = choice("kernel", data.kernels.map((k) => k.kernel), (name) => {
    trace = data.kernels.find((k) => k.kernel === name);
    restart();
  });
  const warps = choice("warp", [0, 1], (value) => { warp = Number(value);
    restart(); });
  panel.append(element("div", { class: "row" }, kernels.row, warps.row), steps.row,
    element("div", { class: "row" },
      element("button", { type: "button", click: () => show(at - 1) }, "← previous"),
      element("button", { type: "button", click: () => show(at + 1) }, "next →")), page);
  place.append(panel);

  function restart() {
    steps.input.max = requests().length - 1;
    show(0);
  }

  // 32-byte sectors of device memory, or 4-byte banks of shared memory, that the lanes touch
  function sectorsOf(request) {
    const touched = new Map();
    const unit = request.tensor < 0 ? 4 : 32;
    for (const [lane, first, size] of request.lanes)
      for (let s = Math.floor(first / unit); s <= Math.floor((first + size - 1) / unit); s++)
        touched.set(s, [...(touched.get(s) || []), lane]);
    return touched;
  }

  function picture(request) {
    const touched = sectorsOf(request),
      places = [...touched.keys()].sort((a, b) => a - b);
    const shared = request.tensor < 0,
      wide = 640,
      height = 190;
    const svg = element("svg", {
      viewBox: `0 0 ${wide} ${height}`,
      role: "img",
      width: wide,
      "aria-label": shared ? "lanes above, the banks of shared memory that they touch below" :
        "lanes above, the sectors of device memory that they touch below"
    });
    const laneX = (lane) => 10 + lane * 19.5;
    const slots = shared ? 32 : places.length;
    const slotOf = (p) => (shared ? p % 32 : places.indexOf(p));
    const slotX = (slot) => 10 + slot * ((wide - 20) / Math.max(32, slots));
    for (const [spot, lanes] of touched)
      for (const lane of lanes)
        svg.append(element("line", {
          x1: laneX(lane) + 8,
          y1: 34,
          x2: slotX(slotOf(spot)) + 8,
          y2: 130,
          stroke: request.write ? "var(--backward)" : "var(--forward)",
          "stroke-opacity": .35
        }));
    for (let lane = 0; lane < 32; lane++) {
      const active = request.lanes.some((l) => l[0] === lane);
      svg.append(element("rect", {
          x: laneX(lane),
          y: 18,
          width: 17,
          height: 16,
          rx: 2,
          stroke: "var(--line)",
          fill: active ? "var(--mark)" : "var(--paper)"
        }),
        element("text", { x: laneX(lane) + 8, y: 30, "text-anchor": "middle" }, String(lane)));
    }
    const drawn = shared ? [...Array(32).keys()] : places.map((_, i) => i);
    for (const slot of drawn)
      svg.append(element("rect", {
        x: slotX(slot),
        y: 130,
        width: 16,
        height: 16,
        stroke: "var(--line)",
        fill: [...touched.keys()].some((p) => slotOf(p) === slot) ? "var(--mark)" : "var(--paper)"
      }));
    svg.append(element("text", { x: 10, y: 12 }, "lanes of the warp"),
      element("text", { x: 10, y: 164 }, shared ? "the 32 banks of shared memory" :
        `${places.length} sectors of 32 bytes, from byte ${places[0] * 32}`));
    return svg;
  }

  function show(next) {
    const all = requests();
    at = Math.max(0, Math.min(all.length - 1, next));
    steps.input.value = at;
    steps.input.show();
    const request = all[at],
      tensor = trace.tensors[request.tensor];
    const name = tensor ? `${tensor.name} (${tensor.rows} × ${tensor.columns}) ${tensor.type}` :
      "shared memory";
    const place = trace.lines[request.line].split(" in ").pop();
    const asked = request.lanes.reduce((sum, l) => sum + l[2], 0),
      touched = sectorsOf(request);
    const count = trace.counts[trace.lines[request.line]];
    page.replaceChildren(
      element("h2", {}, `${request.write ? "writes" : "reads"} ${name}`),
      element("p", { class: "quiet" },
        `Request ${at + 1} of the ${all.length} shown for warp ${warp}; after ` +
        `${request.barriers} __syncthreads(); ${place}`),
      scroller("lanes and memory", picture(request)),
      element("p", {}, request.tensor < 0 ?
        `${request.lanes.length} lanes, ${asked} bytes, ${touched.size} words.` :
        `${request.lanes.length} lanes ask for ${asked} bytes: ${touched.size} sectors, ` +
        `${touched.size * 32} bytes ` +
        `of traffic, of which ${Math.round(100 * asked / (touched.size * 32))} % was asked for.`),
      element("p", { class: "quiet" },
        `This line in the whole launch: ${number(count[0])} requests of device memory, ` +
        `${number(count[1])} sectors, ${number(count[3])} turns of shared memory where ` +
        `${number(count[4])} would be ` +
        "the least."));
  }
  restart();
};

Tour.widgets["kernels.counts"] = (place, data) => {
  const rows = data.kernels.flatMap((k) => Object.entries(k.counts).map(([line, c]) => [
    `${k.kernel}, ${line.split(" in ").pop()}`, number(c[0]), number(c[1]),
    c[1] ? `${Math.round(100 * c[2] / (32 * c[1]))} %` : "", number(c[3]), number(c[3] - c[4])]));
  const heads = ["line", "requests", "sectors", "used", "shared turns", "conflicts"];
  place.append(scroller("counts by line", table(heads, rows)));
};