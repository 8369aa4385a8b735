#!/usr/bin/env python3
"""train_ane.py SEGUE FILES: training whose products with weights run on the Neural Engine (here its software NPU), on the tiny
checkpoints FILES/llama and others.

The loss follows that of `cpu`; weights are inputs, so nothing is compiled after the first update; a continued run has the bits of
a whole one; sequences of other lengths need no other program; what is not finite stops the run by name.
"""
import json, math
from traintest import *


def train(model, out, *args):
    """The objects of the updates and that of the result."""
    r = segue("train", "-m", os.path.join(FILES, model), "--data", "lines.jsonl", "-c", "48", "--held-out", "20", "--json", "-t",
              "2", "-o", out, *args)
    lines = [json.loads(line) for line in r.stdout.splitlines()]
    check(f"{out} ends well", r.returncode == 0 and len(lines) > 1, r.stderr)
    return (lines[:-1], lines[-1]) if r.returncode == 0 else ([], {})


def worst(a, b):
    return max((abs(x["loss"] / y["loss"] - 1) for x, y in zip(a, b)), default=9)


with open("lines.jsonl", "w") as f:
    for i in range(24):
        f.write(json.dumps({"tokens": [(7 * i + k * (1 + i % 3)) % 60 for k in range(12 + 9 * (i % 4))]}) + "\n")

FULL = ["--full", "--random", "--seed", "3", "--lr", "0.004", "--batch", "4", "--steps", "40", "--checkpoint", "20"]
cpu, _ = train("llama", "cpu", *FULL, "--unit", "cpu")
ane, result = train("llama", "ane", *FULL, "--unit", "ane:soft", "--trace", "trace.json")
check("40 updates of both", len(cpu) == len(ane) == 40, f"{len(cpu)} {len(ane)}")
check("the loss falls", ane[-1]["loss"] < 0.65 * ane[0]["loss"], f"{ane[0]} {ane[-1]}")
check("every loss is within 2 % of that of cpu", worst(ane, cpu) < 0.02, str(worst(ane, cpu)))
check("and not equal: the products are rounded to fp16", worst(ane, cpu) > 0)
step = result["per_step"]
check("all programs are compiled in the first update", ane[0]["compiles"] > 0 and
      all(x["compiles"] == 0 for x in ane[1:]) and step["compiles_after_first_step"] == 0, str(step))
check("products are counted", step["dispatches"] >= 2 * 8 and step["input_weight_bytes"] > 0 and step["simulated_ms"] > 0, str(step))
check("the roof is that of both units", result["roof_gflops"] > 0 and all(x["roof_share"] > 0 for x in ane), str(result))
check("nothing was clamped", step["overflows"] == 0, str(step))
# The trace: the host does not wait for an input gradient before it computes weight gradients. How long both run at once depends on
# the cores that are free, so the order is checked: weight gradients begin before the input gradient of their group ends.
events = json.load(open("trace.json"))["traceEvents"]
rows = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
spans = {}
for e in events:
    if e["ph"] == "X":
        spans.setdefault((e["tid"], e["name"].split(" of ")[0]), []).append((e["ts"], e["ts"] + e["dur"]))
check("the trace has a row for each unit", rows[0].startswith("ane") and rows[1].startswith("cpu") and set(spans) == {
    (0, "product"), (0, "input gradient"), (1, "weight gradients"), (1, "update")}, f"{rows} {set(spans)}")
check("with all products and updates", len(spans[1, "update"]) == 40 and len(spans[0, "product"]) == len(spans[0, "input gradient"]) ==
      len(spans[1, "weight gradients"]) == 40 * step["dispatches"] / 2, f"{ {k: len(v) for k, v in spans.items()} } {step}")
ahead = sum(host[0] < engine[1] for engine, host in zip(spans[0, "input gradient"], spans[1, "weight gradients"]))
check("weight gradients do not wait for dispatches", ahead > 0 and 0 <= step["overlap_ratio"] <= 1, f"{ahead} {step}")
# The first update and the one after a checkpoint find the weights of the forward pass from the evaluation before.
sizes = {x["input_weight_bytes"] for i, x in enumerate(ane) if i not in (0, 20)}
check("weights are written once per update and direction", len(sizes) == 1 and all(
    ane[i]["input_weight_bytes"] == max(sizes) / 2 for i in (0, 20)), str(ane[:3]))

for model, args in (("gpt2", FULL), ("gemma3", FULL), ("qwen3_5", FULL), ("llama", ["--rank", "4", "--lr", "0.02", "--steps", "20"])):
    name = model + ("-lora" if "--rank" in args else "")
    a, _ = train(model, "cpu-" + name, *args, "--unit", "cpu")
    b, o = train(model, "ane-" + name, *args, "--unit", "ane:soft")
    check(f"{name}: the losses of cpu", worst(a, b) < 0.02, str(worst(a, b)))
    check(f"{name}: no late compile", o.get("per_step", {}).get("compiles_after_first_step") == 0, str(o))

a, _ = train("llama", "recompute", *FULL, "--unit", "ane:soft", "--recompute")
check("recomputation changes no bit", [x["loss"] for x in a] == [x["loss"] for x in ane])
a, _ = train("llama", "chip", *FULL, "--unit", "ane:soft,profile=m1")
check("the arithmetic of an M1", worst(a, cpu) < 0.02, str(worst(a, cpu)))

# Killed after its first checkpoint.
KILL = [SEGUE, "train", "-m", os.path.join(FILES, "llama"), "--data", "lines.jsonl", "-c", "48", "--held-out", "20", "-t", "2", "-o",
        "killed", *FULL, "--unit", "ane:soft"]
run_killed("killed/checkpoint.state", *KILL[1:])
r = subprocess.run(KILL, capture_output=True, text=True)
check("a killed run has the bits of the whole one", r.returncode == 0 and
      open("killed/model.safetensors", "rb").read() == open("ane/model.safetensors", "rb").read(), r.stderr)

# A process whose compiles are used up ends by name and leaves the checkpoint; the next process continues from it.
HALF = [x.replace("killed", "budget") for x in KILL]
run_killed("budget/checkpoint.state", *HALF[1:])
r = subprocess.run([x.replace("ane:soft", "ane:soft,compiles=3") for x in HALF], capture_output=True, text=True)
check("a used up budget ends the run by name", r.returncode == 5 and "constraint 5" in r.stderr and "restart" in r.stderr, r.stderr)
r = subprocess.run(HALF, capture_output=True, text=True)
check("a restart at the budget resumes exactly", r.returncode == 0 and
      open("budget/model.safetensors", "rb").read() == open("ane/model.safetensors", "rb").read(), r.stderr)

r = segue("train", "-m", os.path.join(FILES, "llama"), "--data", "lines.jsonl", "-o", "high", "--full", "--unit", "ane:soft", "--lr",
          "10", "--clip", "0", "--steps", "40", "--checkpoint", "1", "--json")
losses = [x["loss"] for x in map(json.loads, r.stdout.splitlines()) if "loss" in x]
check("a loss that is not finite stops the run by name, or all are finite",
      bool(losses) and all(isinstance(x, float) and math.isfinite(x) for x in losses) if r.returncode == 0
      else "not finite" in r.stderr, r.stderr)
finish()
