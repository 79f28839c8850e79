#!/usr/bin/env python3
"""Our log-likelihoods against lm-evaluation-harness's, request by request, on the same model.

    python3 scripts/compare_harness.py CHECKPOINT VOCAB.BPE TASKS [--limit N] [--program ./train_gpt] [--dtype
    float32]

TASKS is a folder with lambada_test.jsonl and piqa/. The checkpoint is evaluated by ./tasks and train_gpt
--evaluate, and, exported to Hugging Face's format, by lm-evaluation-harness through transformers, with its
data as local files. Requests are matched by their text. Exits with 1 if a log-likelihood differs by more than
1e-10 (float64), 1e-5 (float32) or 2^-7 (bfloat16: both sides round every activation and logit by 2^-9),
relative to its magnitude or to 1, whichever is larger; or if in bfloat16 the mean difference exceeds 1e-3.
Needs lm-eval, transformers and torch from PyPI, which the trainer does not.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("checkpoint")
parser.add_argument("vocabulary")
parser.add_argument("tasks")
parser.add_argument("--limit", type=int, default=0, help="documents of each task [all]")
parser.add_argument("--program", default="./train_gpt")
parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float64"])
options = parser.parse_args()
try:
    import lm_eval
    import lm_eval.tasks
except ImportError:
    sys.exit("compare_harness.py: lm_eval is not here: pip install lm_eval[hf]")
softmax = "float64" if options.dtype == "float64" else "float32"  # in bf16 it alone would be off by 4e-3
most = {"float32": 1e-5, "float64": 1e-10, "bfloat16": 2**-7}[options.dtype]
here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
work = tempfile.mkdtemp()

# the harness shuffles nothing now and takes documents in the order of the file; ours are those of the
# shuffled order, so both get the same few documents in files of their own
lambada = [json.loads(line) for line in open(f"{options.tasks}/lambada_test.jsonl", encoding="utf8")]
piqa = [json.loads(line) for line in open(f"{options.tasks}/piqa/valid.jsonl", encoding="utf8")]
labels = open(f"{options.tasks}/piqa/valid-labels.lst").read().split()
chosen = random.Random(0)
if options.limit:
    lambada = chosen.sample(lambada, min(options.limit, len(lambada)))
    picked = chosen.sample(range(len(piqa)), min(options.limit, len(piqa)))
    piqa, labels = [piqa[i] for i in picked], [labels[i] for i in picked]
os.makedirs(f"{work}/piqa")


def write(name, lines):
    with open(f"{work}/{name}", "w", encoding="utf8") as f:
        f.write("".join(line + "\n" for line in lines))


write("lambada_test.jsonl", map(json.dumps, lambada))
write("piqa/valid.jsonl", map(json.dumps, piqa))
write("piqa/valid-labels.lst", labels)
write("piqa/theirs.jsonl", (json.dumps(dict(d, label=int(label))) for d, label in zip(piqa, labels)))


def run(*command):
    result = subprocess.run(command, capture_output=True, encoding="utf8")
    if result.returncode:
        sys.exit(f"compare_harness.py: {' '.join(command)}: {result.stderr}")
    return result.stdout


# ours
run(f"{here}/convert", "--from-checkpoint", options.checkpoint, "--to-huggingface", f"{work}/hf")
for task, folder in (("lambada", work), ("piqa", f"{work}/piqa")):
    files = ["--output", f"{work}/{task}.eval", "--requests", f"{work}/{task}.json"]
    run(f"{here}/tasks", "--task", task, "--from", folder, "--vocabulary", options.vocabulary, *files)
evaluate = ["--evaluate", f"{work}/lambada.eval", f"{work}/piqa.eval", "--results", f"{work}/ours.json"]
print(run(options.program, "--resume", options.checkpoint, *evaluate))
results = json.load(open(f"{work}/ours.json"))
ours = {}
for task, twice in (("lambada", 2), ("piqa", 1)):
    requests = json.load(open(f"{work}/{task}.json"))[::twice]
    values = [x for document in results["log_likelihoods"][task] for x in document]
    assert len(requests) == len(values)
    ours[task] = {(context, continuation): x for (context, continuation), x in zip(requests, values)}

# theirs
tasks = f"{work}/yaml"
os.makedirs(tasks)
write(
    "yaml/lambada.yaml",
    [
        "task: lambada_here",
        "dataset_path: json",
        "dataset_kwargs:",
        "  data_files:",
        f"    test: {work}/lambada_test.jsonl",
        "output_type: loglikelihood",
        "test_split: test",
        "doc_to_text: \"{{text.rsplit(' ', 1)[0]}}\"",
        "doc_to_target: \"{{' ' + text.rsplit(' ', 1)[1]}}\"",
        "metric_list:",
        "  - metric: acc",
        "  - metric: perplexity",
    ],
)
write(
    "yaml/piqa.yaml",
    [
        "task: piqa_here",
        "dataset_path: json",
        "dataset_kwargs:",
        "  data_files:",
        f"    validation: {work}/piqa/theirs.jsonl",
        "output_type: multiple_choice",
        "validation_split: validation",
        'doc_to_text: "Question: {{goal}}\\nAnswer:"',
        "doc_to_target: label",
        'doc_to_choice: "{{[sol1, sol2]}}"',
        "metric_list:",
        "  - metric: acc",
        "  - metric: acc_norm",
    ],
)
theirs = lm_eval.simple_evaluate(
    model="hf",
    model_args=f"pretrained={work}/hf,dtype={options.dtype},softmax_dtype={softmax}",
    tasks=["lambada_here", "piqa_here"],
    device="cpu",
    batch_size=16,
    task_manager=lm_eval.tasks.TaskManager(include_path=tasks, include_defaults=False),
    log_samples=True,
)

good = True
for task in ("lambada", "piqa"):
    differences, missing = [], 0
    for sample in theirs["samples"][f"{task}_here"]:
        for arguments, response in zip(sample["arguments"], sample["resps"]):
            context, continuation = arguments if not isinstance(arguments, dict) else arguments.values()
            value = response[0][0] if isinstance(response[0], (list, tuple)) else response[0]
            if (context, continuation) not in ours[task]:
                missing += 1
                continue
            mine = ours[task][(context, continuation)]
            differences.append(abs(mine - float(value)) / max(1.0, abs(mine)))
    r, t = results["results"][task], theirs["results"][f"{task}_here"]
    measures = ", ".join(
        f"{name} {r[ours_name]:.4f} and {t[name + ',none']:.4f}"
        for name, ours_name in (("acc", "acc"), ("acc_norm", "acc_norm"), ("perplexity", "ppl"))
        if ours_name in r
    )
    worst, mean = max(differences), sum(differences) / len(differences)
    print(
        f"{task}: {len(differences)} requests compared, {missing} of theirs are not ours, largest difference"
        f" {worst:.1e}, mean {mean:.1e}; ours and theirs: {measures}"
    )
    good = good and missing == 0 and worst <= most and mean <= 1e-3
print(f"{'equal' if good else 'NOT equal'} to {most:g}")
sys.exit(not good)
