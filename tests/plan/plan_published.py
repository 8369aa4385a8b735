#!/usr/bin/env python3
"""Published measurements against the planner: shares within 10 %, also when each (chip, model, precision) is left out of the
fit; numbers of fitted constants; what cannot be predicted says why. The measurements are other projects' (tests/plan/published.csv).
SPDX-License-Identifier: MIT"""
import collections, csv, glob, io, os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli"))
from clitest import *

cells = os.path.join(source, "tests", "plan", "published.csv")
rows = list(csv.DictReader(open(cells)))


def within(text):
    """The share of predictions within 10 % of their values, computed here."""
    got = list(csv.DictReader(io.StringIO(text)))
    hits = [r["predicted"] and abs(float(r["predicted"]) / float(r["value"]) - 1) <= 0.1 for r in got]
    return len(got), sum(map(bool, hits)) / max(1, len(hits))


code, out, err = run("plan", "--predict", cells)
n, share = within(out)
expect("prediction of the published cells", code == 0 and n == len(rows) and share >= 0.85, (n, share, err))
again = run("plan", "--predict", cells)[1]
expect("equal inputs, equal predictions", again == out)
inside = [float(r["predicted_lo"]) <= float(r["value"]) <= float(r["predicted_hi"]) for r in csv.DictReader(io.StringIO(out))]
expect("90 % intervals", sum(inside) / len(inside) >= 0.9, sum(inside) / len(inside))

path = os.path.join(top.name, "left_out.csv")
code, out, err = run("calibrate", "--fit", cells, "--omit", "each", "-o", path)
n, share = within(open(path).read())
expect("left out, each (chip, model, precision)", code == 0 and n == len(rows) and share >= 0.68, (n, share, out, err))

# The files that are shipped hold what the fit makes, and no more constants than allowed.
fitted = os.path.join(top.name, "fitted.chip")
expect("fit", run("calibrate", "--fit", cells, "-o", fitted)[0] == 0)
values = {l.split()[0]: float(l.split()[1]) for l in open(fitted) if "# fitted" in l}
counts = collections.Counter(k.split(".")[0] if "." in k else "frameworks" for k in values)
expect("at most 24 constants of the frameworks", 0 < counts.pop("frameworks") <= 24, counts)
expect("at most 12 constants a chip", counts and max(counts.values()) <= 12, counts)
for name in glob.glob(os.path.join(source, "chips", "*.chip")):
    chip = os.path.basename(name)[:-5]
    for line in open(name):
        if "# fitted" not in line: continue
        key = line.split()[0] if chip == "frameworks" else f"{chip}.{line.split()[0]}"
        expect(f"{name}: {key}", key in values and abs(float(line.split()[1]) / values[key] - 1) < 2e-3, (line, values.get(key)))

# The constants of a fit replace the built-in ones, also those that the omission left undetermined.
code, out, err = run("calibrate", "--fit", cells, "--omit", "chip=M2 Ultra,model=Qwen3.5-2B,precision=BF16", "-o", fitted)
code, out, err = run("plan", "--predict", cells, "--chip", fitted)
left = {tuple(r[k] for k in ("chip", "model", "precision", "pipeline", "prompt_tokens", "metric")): r["predicted"]
        for r in csv.DictReader(open(path))}
for r in csv.DictReader(io.StringIO(out)):
    if (r["model"], r["precision"]) != ("Qwen3.5-2B", "BF16"): continue
    key = tuple(r[k] for k in ("chip", "model", "precision", "pipeline", "prompt_tokens", "metric"))
    expect(f"{key}: the same left out", abs(float(r["predicted"]) / float(left[key]) - 1) < 1e-3, (r["predicted"], left[key]))

head = "chip,model,precision,pipeline,prompt_tokens,metric\n"
for row, word in (("M9,Qwen3.5-2B,BF16,P1,6,ttft_ms", "chip"), ("M1,Qwen9-2B,BF16,P1,6,ttft_ms", "model"),
                  ("M1,Qwen3.5-2B,Q99,P1,6,ttft_ms", "precision"), ("M1,Qwen3.5-2B,BF16,P99,6,ttft_ms", "pipeline"),
                  ("M1,Qwen3.5-2B,BF16,P2,600,ttft_ms", "512"), ("M1,Qwen3.5-2B,BF16,P1,6,love", "metric"),
                  ("M1,Qwen3.5-2B,BF16,P3,6,avg_gpu_w", "power")):
    name = write(top.name, "one.csv", head + row + "\n")
    code, out, err = run("plan", "--predict", os.path.join(top.name, "one.csv"))
    got = list(csv.DictReader(io.StringIO(out)))
    expect(f"{row}: not predicted, with a reason", code == 0 and got[0]["predicted"] == "" and word in got[0]["reason"], out)
write(top.name, "one.csv", head + "M1,Qwen3.5-2B,BF16,P1,x6,ttft_ms\n")
refused(4, ["plan", "--predict", os.path.join(top.name, "one.csv")], "one.csv", "line 2")
write(top.name, "bad.chip", "name m9\nmemory_gb_s fast\n")
refused(4, ["plan", "--predict", cells, "--chip", os.path.join(top.name, "bad.chip")], "bad.chip", "line 2")
refused(2, ["plan", "--predict", cells, "--chip", "m77"], "m77", "m2-ultra")
refused(2, ["calibrate", "--fit", cells, "--omit", "colour=red"], "colour")
refused(1, ["calibrate", "--fit", os.path.join(top.name, "absent.csv")], "absent.csv")
done()
