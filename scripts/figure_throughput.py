"""MT-NLG's throughput, planned and published: the figure `throughput` of figures.py.

From 280 to 420 servers the published TFLOP/s fall further than the planned ones. Hypotheses about the
difference are tested one by one. Each is a plan with one number changed, for which the share of peak that the
GEMMs reach is refitted to the three published times (least squares of relative errors): the more time a
hypothesis explains at all sizes, the less is attributed to the GEMMs. It holds if the three times are
reproduced to within NEAR.
"""

import math

from charts import bars, table
from planned import plan

PUBLISHED = {
    280: (60.1, 126),
    350: (50.2, 121),
    420: (44.4, 113),
}  # servers: seconds, TFLOP/s (arXiv 2201.11990)
ALONE = (
    ("8 × 8 × 35", {"world-size": 2240}),
    (
        "data parallelism alone",
        {"tensor-parallel": 1, "pipeline-parallel": 1, "batch": 2240, "world-size": 2240},
    ),
    (
        "tensor parallelism over all 128 heads",
        {"tensor-parallel": 128, "pipeline-parallel": 1, "world-size": 2048},
    ),
    ("pipeline of single layers", {"tensor-parallel": 1, "pipeline-parallel": 105, "world-size": 2100}),
)
SERVERS = tuple(PUBLISHED)
SECONDS = tuple(seconds for seconds, _ in PUBLISHED.values())
NEAR = 0.005  # root mean square of relative errors; the published seconds are rounded to 0.1 %
NETWORK = 25  # GB/s of a GPU to other nodes, as planned


def published_flops(batch):
    """A step's FLOPs as the paper counts them: with recomputation (arXiv 2104.04473, section 5.1)."""
    T, L, C, V = 2048, 105, 20480, 51200
    return 96 * batch * T * L * C * C * (1 + T / (6 * C) + V / (16 * L * C))


def fall(seconds):
    """By which share TFLOP/s per GPU fall from the fewest servers to the most."""
    return 1 - seconds[0] * SERVERS[0] / (seconds[-1] * SERVERS[-1])


# ---- plans in which the GEMMs' efficiency is left open ---------------------------------------------------


class OpenPlan:
    """Seconds on each number of servers, near the efficiency that fits: base + slope / efficiency."""

    def __init__(self, base, slope):
        self.base, self.slope = base, slope

    @classmethod
    def of(cls, **options):
        rough = cls.between(0.5, 0.7, options).fit()
        return cls.between(0.98 * rough, 1.02 * rough, options)

    @classmethod
    def between(cls, low, high, options):
        asked = [
            {"world-size": 8 * servers, "ramp-start": 0, "gemm-efficiency": e, **options}
            for e in (low, high)
            for servers in SERVERS
        ]
        times = [plan(each)["seconds"] for each in asked]
        pairs = list(zip(times[: len(SERVERS)], times[len(SERVERS) :]))
        slope = [(a - b) / (1 / low - 1 / high) for a, b in pairs]
        return cls([a - b / low for (a, _), b in zip(pairs, slope)], slope)

    def seconds(self, efficiency):
        return [a + b / efficiency for a, b in zip(self.base, self.slope)]

    def plus(self, seconds):
        return OpenPlan([a + seconds for a in self.base], self.slope)

    def times(self, factors):
        return OpenPlan([a * f for a, f in zip(self.base, factors)],
                        [b * f for b, f in zip(self.slope, factors)])  # fmt: skip

    def fit(self):
        """The efficiency that brings the three times nearest to the published ones."""
        pulls = [b * (p - a) / p**2 for a, b, p in zip(self.base, self.slope, SECONDS)]
        return sum(b**2 / p**2 for b, p in zip(self.slope, SECONDS)) / sum(pulls)


def error(seconds):
    return math.sqrt(sum((s / p - 1) ** 2 for s, p in zip(seconds, SECONDS)) / len(SECONDS))


def best_constant(open_plan):
    """The extra seconds, the same at all sizes, with which the fit is best."""
    tried = [step / 100 for step in range(0, 2001)]
    return min(tried, key=lambda c: error(open_plan.plus(c).seconds(open_plan.plus(c).fit())))


def straggler_factors(sigma):
    """Slowdown by the slowest of n GPUs, speeds normally distributed: sqrt(2 ln n) sigma behind the mean."""
    return [1 + sigma * math.sqrt(2 * math.log(8 * servers)) for servers in SERVERS]


def hypotheses(as_planned, by_rate):
    """What is tried, and how near it comes; by_rate: OpenPlans by GB/s a GPU to other nodes."""
    constant = best_constant(as_planned)
    tried = [
        ("nothing: the bubble of fewer micro-batches, all-reduces over more replicas", "", as_planned),
        *(
            ("a slower network, or ranks placed so that they share links",
             f"{rate} GB/s a GPU to other nodes", open_plan)
            for rate, open_plan in by_rate.items()
        ),
        *(
            ("stragglers: all wait for the slowest GPU", f"speeds differ by {sigma:.0%}",
             as_planned.times(straggler_factors(sigma)))
            for sigma in (0.01, 0.05, 0.2)
        ),
        ("a cost of each step that is the same at all sizes", f"{constant:.1f} s", as_planned.plus(constant)),
    ]  # fmt: skip
    return [
        {"what": what, "number": number, "efficiency": p.fit(), "seconds": p.seconds(p.fit()),
         "fall": fall(p.seconds(p.fit())), "error": error(p.seconds(p.fit())),
         "holds": error(p.seconds(p.fit())) < NEAR and p.fit() <= 1}
        for what, number, p in tried
    ]  # fmt: skip


def contended_rates(free, slow, slow_rate):
    """GB/s a GPU would have on each number of servers, if only that had changed since the fewest; free, slow:
    OpenPlans with the network as planned, and at slow_rate."""
    e = free.slope[0] / (SECONDS[0] - free.base[0])  # such that the fewest servers take what was published
    out = []
    for have, much_less, published in zip(free.seconds(e), slow.seconds(e), SECONDS):
        share = max(0, published - have) / (much_less - have)
        out.append(1 / (1 / NETWORK + share * (1 / slow_rate - 1 / NETWORK)))
    return out


def explain(planned):
    """What is known about the part of the fall that the plan does not show, as text and numbers."""
    alone = plan({"world-size": 8 * SERVERS[0], "ramp-start": 0, "batch": 1920 * SERVERS[0] // SERVERS[-1]})
    fewer = fall([planned[0], alone["seconds"]])
    as_planned = OpenPlan.of()
    by_rate = {rate: OpenPlan.of(**{"network-rate": rate}) for rate in (6, 3, 2, 1.5, 1)}
    tested, rates = hypotheses(as_planned, by_rate), contended_rates(as_planned, by_rate[3], 3)
    rows = [
        (h["what"], h["number"], f"{h['efficiency']:.3f}" + " (impossible)" * (h["efficiency"] > 1),
         *(f"{s:.1f}" for s in h["seconds"]),
         f"{100 * h['fall']:.1f} %", f"{100 * h['error']:.2f} %", "yes" if h["holds"] else "no")
        for h in tested
    ]  # fmt: skip
    head = ("besides what is planned", "", "efficiency fitted", *(f"{s} servers" for s in SERVERS), "fall",
            "error", "holds")  # fmt: skip

    g = straggler_factors(1e9)
    text = (
        "\n## Where the rest of the fall may come from\n\n"
        f"Of the planned {100 * fall(planned):.1f} %, {100 * fewer:.1f} points are the bubble: as many"
        f" micro-batches on {SERVERS[0]} servers take as long, to"
        f" {abs(alone['seconds'] - planned[-1]):.2f} s;"
        " the all-reduce over more replicas is what is left. Published are"
        f" {', '.join(f'{s} s' for s in SECONDS)}, a fall of {100 * fall(SECONDS):.1f} %. Each line is"
        " planned with one number changed, and the GEMMs' efficiency fitted to the three published times:\n\n"
        + table(head, rows)
        + f"\nStragglers cannot be all of it, however slow: of {8 * SERVERS[-1]:,} GPUs the slowest lies only"
        f" {100 * (g[-1] / g[0] - 1):.1f} % further behind than of {8 * SERVERS[0]:,}. What holds is time"
        " that does not become less with the micro-batches. Gradients that are reduced over a slow network"
        " are such a cost, for a rank sends nearly the same bytes in each run; so is anything that is done"
        " once a step (reading data, the update, reports). Three published numbers cannot tell these apart."
        " Contention that grows with the number of servers would do as well: had nothing but the network"
        " changed, a GPU would have had"
        f" {', '.join(f'{rate:.1f} GB/s on {servers}' for rate, servers in zip(rates, SERVERS))} servers.\n"
    )
    return text, {"fewer_micro_batches": fewer, "hypotheses": tested, "contended_rates": rates}


# ---- the figure ------------------------------------------------------------------------------------------


def each_axis_alone():
    """MT-NLG's layout, and one kind of parallelism alone: what a GPU holds, what a step takes."""
    out = []
    for name, layout in ALONE:
        made = plan({"ramp-start": 0, **layout})
        out.append({
            "layout": name, "gpus": layout["world-size"], "seconds": made["seconds"], "mfu": made["mfu"],
            "gigabytes": max(sum(stage["memory"].values()) for stage in made["stages"]) / 1e9,
            "fits": made["fits"],
        })  # fmt: skip
    return out


def throughput(_options):
    out = []
    for servers, (seconds, rate) in PUBLISHED.items():
        d = servers // 35
        made = plan({"world-size": 8 * servers, **({"ramp-start": 0} if 32 % d else {})})
        ours = published_flops(1920) / made["seconds"] / (8 * servers) / 1e12
        out.append({
            "servers": servers, "planned_seconds": made["seconds"], "published_seconds": seconds,
            "planned_tflops": ours, "published_tflops": rate, "bubble": made["bubble"], "idle": made["idle"],
            "mfu": made["mfu"],
        })  # fmt: skip

    rows = [
        (s["servers"], f"{s['planned_seconds']:.2f}", s["published_seconds"],
         f"{s['published_seconds'] - s['planned_seconds']:+.2f}", f"{s['planned_tflops']:.1f}",
         s["published_tflops"], *(f"{100 * s[key]:.1f} %" for key in ("bubble", "idle", "mfu")))
        for s in out
    ]  # fmt: skip
    head = (
        "servers",
        "planned s",
        "published s",
        "difference",
        "planned TFLOP/s",
        "published",
        "bubble",
        "idle",
        "MFU",
    )

    falls = {
        which: 1 - out[-1][f"{which}_tflops"] / out[0][f"{which}_tflops"]
        for which in ("planned", "published")
    }
    said, rest = explain([s["planned_seconds"] for s in out])
    alone = each_axis_alone()
    alone_rows = [
        (a["layout"], a["gpus"], f"{a['gigabytes']:,.1f} GB", "yes" if a["fits"] else "no",
         f"{a['seconds']:.1f}", f"{100 * a['mfu']:.1f} %")
        for a in alone
    ]  # fmt: skip
    counted = (
        "\nTFLOP/s count recomputation, as the paper does. From 280 to 420 servers they fall by"
        f" {100 * falls['published']:.1f} % as published and by {100 * falls['planned']:.1f} % as planned.\n"
    )

    alone_head = ("layout", "GPUs", "a GPU of 80 GB holds", "fits", "a step, s", "MFU")
    text = table(head, rows) + counted + said
    text += "\n## One kind of parallelism alone\n\n" + table(alone_head, alone_rows)
    pictures = [
        (
            f"{s['servers']} servers",
            [(round(s["planned_seconds"], 1), "ours", None), (s["published_seconds"], "published", None)],
        )
        for s in out
    ]
    return text, {"runs": out, "fall": falls, "rest": rest, "alone": alone}, bars(
        "Seconds of a step", pictures, "s", {"ours": "planned", "published": "published"})  # fmt: skip
