"""Numbers in the chapters' texts, and answers to their questions: from the chapters' data alone."""


def of_step(d):
    lines, model = d["lines"], d["head"]["model"]
    flops = {p: sum(x["flops"] for x in lines if x.get("pass") == p) for p in ("forward", "backward")}
    cross_entropy = next(x for x in lines if x["name"] == "cross_entropy")
    losses = next(t for t in cross_entropy["tensors"] if t["name"] == "losses")["values"]
    attention = next(x for x in lines if x["name"] == "attention_forward")
    probabilities = next(t for t in attention["tensors"] if t["name"] == "p")
    return {
        "operations": len(lines),
        "T": model["sequence"],
        "C": model["hidden"],
        "layers": model["layers"],
        "forward_flops": flops["forward"],
        "backward_flops": flops["backward"],
        "ratio": flops["backward"] / flops["forward"],
        "loss": sum(losses) / len(losses),
        "second_row": probabilities["values"][model["sequence"] : model["sequence"] + 3],
        "logit_flops": next(x["flops"] for x in lines if x["name"] == "linear_forward" and "layer" not in x),
    }


def of_kernels(d):
    norm, flash = d["kernels"]
    loads = [r for r in norm["requests"] if r["tensor"] == 3 and r["warp"] == 0]
    sectors = {at // 32 for lane in loads[0]["lanes"] for at in (lane[1], lane[1] + lane[2] - 1)}
    barriers = max(r["barriers"] for r in flash["requests"])
    turns = [c for c in flash["counts"].values() if c[3]]
    return {
        "lanes": len(loads[0]["lanes"]),
        "bytes_a_lane": loads[0]["lanes"][0][2],
        "sectors": len(sectors),
        "norm_block": norm["block"],
        "norm_grid": norm["grid"],
        "flash_requests": flash["all_requests"],
        "flash_barriers": barriers,
        "turns": sum(c[3] for c in turns),
        "conflicts": sum(c[3] - c[4] for c in turns),
    }


def of_tensor(d):
    def calls(ranks, split, which):
        layout = next(x for x in d["layouts"] if x["ranks"] == ranks and x["sequence_parallel"] == split)
        lines = [x for x in layout["lines"] if x["rank"] == 0]
        return [x for x in lines if x["kind"] == "call" and x["pass"] == which]

    def weight(ranks, operation):
        layout = next(x for x in d["layouts"] if x["ranks"] == ranks and not x["sequence_parallel"])
        line = next(x for x in layout["lines"] if x["rank"] == 0 and x["name"] == operation)
        return " × ".join(map(str, next(t for t in line["tensors"] if t["name"] == "w")["shape"]))

    plain, split = calls(2, False, "forward"), calls(2, True, "forward")
    return {
        "qkv_1": weight(1, "linear_forward"),
        "qkv_2": weight(2, "linear_forward"),
        "qkv_4": weight(4, "linear_forward"),
        "forward_calls": len(plain),
        "backward_calls": len(calls(2, False, "backward")),
        "values": plain[0]["values_in_all"],
        "split_calls": len(split),
        "split_backward": len(calls(2, True, "backward")),
    }


def of_pipeline(d):
    def one(p, m, v):
        return next(s for s in d["schedules"] if (s["p"], s["m"], s["v"]) == (p, m, v))

    plain, more, chunks = one(4, 8, 1), one(4, 16, 1), one(4, 8, 2)
    activations = [stage["activations"] for stage in plain["memory"]]
    return {
        "bubble": plain["bubble"],
        "bubble_16": more["bubble"],
        "bubble_chunks": chunks["bubble"],
        "seconds": plain["seconds"],
        "seconds_chunks": chunks["seconds"],
        "first_stage": activations[0],
        "last_stage": activations[-1],
        "layers": d["layers"],
    }


def of_data(d):
    sharded = next(r for r in d["runs"] if r["zero"] == 1)["calls"]
    scatters = [c for c in sharded if c["name"] == "reduce_scatter"]

    def optimizer(ranks, zero):
        found = next(m for m in d["memory"] if m["ranks"] == ranks and m["zero"] == zero)
        return found["memory"]["optimizer"]

    return {
        "buckets": len(scatters),
        "first_bucket": scatters[0]["bucket"],
        "optimizer_8": optimizer(8, 1),
        "optimizer_8_whole": optimizer(8, 0),
        "share": optimizer(8, 1) / optimizer(8, 0),
    }


def of_planet(d):
    plan = d["plan"]
    first = plan["stages"][0]
    return {
        "parameters": plan["parameters"],
        "ranks": plan["world"],
        "bytes_alone": next(a for a in d["axes"] if "data" in a["layout"])["gigabytes"] * 1e9,
        "first_bytes": sum(first["memory"].values()),
        "tensor_bytes": first["sent"]["tensor"]["bytes"],
        "forward_bytes": first["sent"]["forward"]["bytes"],
        "times_more": first["sent"]["tensor"]["bytes"] / first["sent"]["forward"]["bytes"],
        "seconds": plan["seconds"],
        "days": plan["days"],
        "bubble": plan["bubble"],
        "micro_batches": plan["micro_batches"],
        "one_gpu_years": plan["gpu_hours"] / 24 / 365,
    }


def of_recipe(d):
    drawn = d["drawn"]
    first = drawn[0]
    return {
        "drawn": len(drawn),
        "of_a": drawn.count(first),
        "of_b": len(drawn) - drawn.count(first),
        "steps": d["mtnlg"]["steps"],
        "ramp_steps": d["mtnlg"]["ramp_steps"],
        "tokens": d["mtnlg"]["tokens"],
        "days": d["mtnlg"]["days"],
        "sets": len(d["blend"]),
        "largest": max(d["blend"], key=lambda s: s["weight"])["set"],
    }


def of_corpus(d):
    ends = [page["end"] for page in d["pages"]]
    return {"pages": len(ends), "kept": sum(end == "tokens" for end in ends)}


def facts(data):
    """The facts of each chapter that could be made."""
    makers = {
        "step": of_step, "kernels": of_kernels, "tensor": of_tensor, "pipeline": of_pipeline,
        "data": of_data, "planet": of_planet, "recipe": of_recipe, "corpus": of_corpus,
    }  # fmt: skip
    return {name: make(data[name]) for name, make in makers.items() if "missing" not in data[name]}


def shown(value, how):
    """A fact as text; how: nothing, bytes, percent, billions, or the number of decimals."""
    if isinstance(value, list):
        return ", ".join(shown(v, how) for v in value)
    if how == "bytes":
        for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
            if value >= size:
                return f"{value / size:.1f} {unit}"
        return f"{value} bytes"
    if how == "percent":
        return f"{100 * value:.1f} %"
    if how == "billions":
        return f"{value / 1e9:.1f} billion"
    if how.isdigit():
        return f"{value:,.{how}f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
