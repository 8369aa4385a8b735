#!/usr/bin/env python3
"""segue plan, and what run follows: JSON fields, limits, pages, claims, a calibration that is used, refined, damaged.
SPDX-License-Identifier: MIT"""
import fcntl, json, os, re, stat, subprocess, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli"))
from clitest import *

shape = ["-m", "shape:qwen3.5-0.8b"]


def plan(*args):
    code, out, err = run("plan", "--json", *args)
    expect(f"plan {args}", code == 0, (code, err))
    return json.loads(out) if code == 0 else {}


for chip in ("m1", "m1-max", "m2-pro", "m2-ultra", "m4", "m4-max", "m5", "a17-pro", "h100", "h200"):
    p = plan(*shape, "--chip", chip, "-p", 410, "-n", 200)
    expect(f"{chip}: a choice", p["choice"]["total_ms"]["lo"] < p["choice"]["total_ms"]["mid"] < p["choice"]["total_ms"]["hi"], p["choice"])
    expect(f"{chip}: fields", {"dominant", "crossover_tokens", "energy_crossover_tokens", "splits"} <= set(p), p.keys())
    again = plan(*shape, "--chip", chip, "-p", 410, "-n", 200)
    expect(f"{chip}: the same plan again", {**p, "plan_us": 0} == {**again, "plan_us": 0})
    for name in ("crossover_tokens", "energy_crossover_tokens"):
        expect(f"{chip}: {name} null has a reason", p[name] is not None or p[name + "_reason"], p)
p = plan(*shape, "--chip", "m2-ultra", "-p", 410)
expect("the published crossover at 410 tokens does not exist", p["crossover_tokens"] is None and p["choice"]["pipeline"] == "gpu", p["choice"])
fixed = [s for s in p["splits"] if s["pipeline"] == "fixed"][0]
expect("no joules where no power was read", fixed["j"] is None and fixed["j_reason"], fixed)
fixed = [s for s in plan(*shape, "--chip", "m2-ultra", "-p", 600)["splits"] if s["pipeline"] == "fixed"][0]
expect("fixed-length prefill ends at 512 tokens", "512" in fixed["excluded"], fixed)
# Every chip is marked by the sources in its file, and what is unverified is at least a factor of 2 wide.
for chip in ("m1", "m1-max", "m2-pro", "m2-ultra", "m4", "m4-max", "m5", "a17-pro", "h100", "h200"):
    lines = open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "chips", chip + ".chip")).read().splitlines()
    sources = {l.split("#", 1)[1].split()[0] for l in lines if "#" in l and l.split("#")[0].strip() and not l.startswith(("name ", "ane_"))}
    units = any(l.startswith("cuda.") for l in lines)
    guessed = "prior" in sources if units else not sources & {"fitted", "measured"}
    splits = [s for s in plan(*shape, "--chip", chip)["splits"] if s["total_ms"]]
    expect(f"{chip}: unverified is {guessed}", splits and all(s["unverified"] == guessed for s in splits), sources)
    for s in splits if guessed else []:
        expect(f"{chip}: wide intervals", all(s[k]["hi"] / s[k]["mid"] > 1.999 for k in ("ttft_ms", "token_ms", "total_ms")), s)
# Memory, sessions and contexts of the published pipelines.
p = plan("-m", "shape:qwen3.5-27b", "--chip", "m1", "-p", 100)
expect("27 billion weights of 16 bits do not fit in 16 GB", p["choice"] is None and "memory" in p["choice_reason"] and all(s["excluded"] for s in p["splits"]), p)
p = plan("-m", "shape:qwen3.5-27b", "--chip", "m2-ultra", "-p", 100)
expect("but in 192", p["choice"] and not any("memory" in s.get("excluded", "") for s in p["splits"]), p["choice"])
one, three, deep = (plan(*shape, "--chip", "m2-ultra", *f)["choice"] for f in ([], ["--sessions", 3], ["--depth", 100000]))
expect("sessions take turns, which nobody measured", abs(three["total_ms"]["mid"] / one["total_ms"]["mid"] - 3) < 1e-6 and three["unverified"] and not one["unverified"], three)
expect("a context costs", deep["token_ms"]["mid"] > 1.1 * one["token_ms"]["mid"] and deep["ttft_ms"]["mid"] > 1.5 * one["ttft_ms"]["mid"] and deep["unverified"], deep)
watts = [plan(*shape, "--chip", c)["choice"]["w"]["mid"] for c in ("a17-pro", "m1-max", "m2-ultra")]
expect("a phone draws less than a workstation", watts[0] < watts[1] < watts[2], watts)
refused(2, ["plan", *shape, "--chip", "h200", "--unit", "cpu"], "cuda")
turns = plan(*shape, "--chip", "h200", "--turns", 5)["choice"]["total_ms"]["mid"] / plan(*shape, "--chip", "h200")["choice"]["total_ms"]["mid"]
expect("five turns cost at least five times one", turns >= 5, turns)
code, out, err = run("plan", *shape, "--chip", "m2-ultra", "--explain")
expect("bars", code == 0 and "####" in out and "choice (latency)" in out, out)
page = os.path.join(top.name, "plan.html")
code, out, err = run("plan", *shape, "--chip", "m2-ultra", "--html", page)
text = open(page).read()
expect("a page", code == 0 and "<svg" in text and "none" in text and "http" not in text.replace("http://www.w3.org", ""), text[:200])
pipe = os.path.join(top.name, "pipe")
os.mkfifo(pipe)
for flag, args in (("--html", ["plan", *shape, "--chip", "m2-ultra"]), ("-o", ["plan", "--predict", os.path.join(source, "tests", "plan", "published.csv")])):
    refused(1, [*args, flag, pipe], "not supported")
    expect(f"{flag}: a pipe is not replaced", stat.S_ISFIFO(os.stat(pipe).st_mode))
for text in ("cpu.step_ms 1 ms\n", "cpu.wide_gb_s 10 GB/s\n"):
    p = plan(*shape, "--chip", write(top.name, "bare.chip", text))
    expect("what has no speed is not chosen", p["choice"] is None and "no speed" in p["splits"][0]["excluded"], p)
refused(4, ["plan", *shape, "--chip", write(top.name, "bare.chip", ".step_ms 1 ms\n")], "line 1", "no unit")
claims = json.loads(run("plan", "--claims", "--json")[1])
verdicts = {c["verdict"] for c in claims}
expect("claims", len(claims) >= 15 and verdicts == {"holds", "refuted", "unknown"} and all(c["reason"] and c["predicted"] for c in claims), claims)
refused(2, ["plan", "-m", "shape:none", "--chip", "m1"], "none")
refused(2, ["plan", *shape, "--storage", "q99", "--chip", "m1"], "q99")
refused(3, ["plan", *shape], "calibrate")

p = plan(*shape, "--chip", "h200", "--storage", "bf16", "--storage", "fp8", "--storage", "q4_0")
expect("storages are placements", [(s["storage"], s["storage_from"]) for s in p["splits"]] == [("bf16", "file"), ("fp8", "load"), ("q4_0", "quantize")], p["splits"])
expect("the least of them is the choice", p["choice"]["total_ms"]["mid"] == min(s["total_ms"]["mid"] for s in p["splits"]), p["choice"])
refused(2, ["plan", *shape, "--chip", "h200", "--storage", "bf16", "--storage", "q99"], "q99")

# K and V in other storages: chosen when named, or when nothing else fits, and never silently.
UNITS = "".join(f"{u}.{k}\n" for u, f in (("a", 1), ("b", 2)) for k in (
    f"step_ms {f} ms", "wide_gb_s 100 GB/s", "wide_512_tflops 10 TFLOPS", f"kv_gb_s {10 * f} GB/s", "attend_tflops 1 TFLOPS")) + "a>b.ms 1 ms\nb>a.ms 1 ms\n"
units = ["-m", "shape:qwen3-0.6b", "--chip"]
chip = write(top.name, "two.chip", UNITS)
p = plan(*units, chip, "-p", 4000)
expect("K and V in f16 unless asked", {s["kv"] for s in p["splits"]} == {"f16"} and not p["kv_lowered"], p["choice"])
p = plan(*units, chip, "-p", 4000, "--kv", "f16", "--kv", "q8", "--kv", "bf16")
expect("each is a placement", [s["kv"] for s in p["splits"][::len(p["splits"]) // 3]] == ["f16", "q8", "bf16"] and p["choice"]["kv"] == "q8", p["choice"])
expect("with its accuracy", "11 bits" in p["splits"][0]["kv_accuracy"] and "8 bits" in p["choice"]["kv_accuracy"] and not p["kv_lowered"], p["choice"])
code, out, err = run("plan", *units, chip, "-p", 4000, "--kv", "f16", "--kv", "q8")
expect("as text", code == 0 and "run with --kv q8" in out and "accuracy of K and V: 8 bits" in out and " kv=q8" in out, out)
ONE = "".join(l + "\n" for l in UNITS.splitlines() if l.startswith("a.")) + "a.memory_bytes 3e9 B\n"
small = write(top.name, "small.chip", ONE)
p = plan(*units, small, "-p", 20000)
expect("q8 where f16 does not fit", p["kv_lowered"] and p["choice"]["kv"] == "q8" and p["choice"]["decode"] == "a", p["choice"])
expect("and f16 is listed as too large", all("does not fit" in s["excluded"] for s in p["splits"] if s["kv"] == "f16"), p["splits"])
out = run("plan", *units, small, "-p", 20000)[1]
expect("said in words", "K and V in q8, because f16 does not fit: run with --kv q8" in out and "f16 has 11 bits" in out, out)
p = plan(*units, small, "-p", 20000, "--kv", "f16")
expect("not against --kv f16", p["choice"] is None and not p["kv_lowered"], p["choice"])
p = plan(*units, write(top.name, "f16.chip", ONE + "a.kv_forms 1 1\n"), "-p", 20000)
expect("nor on a unit without it", p["choice"] is None and not p["kv_lowered"], p["choice"])
p = plan(*units, write(top.name, "two.chip", UNITS + "a.memory_bytes 3e9 B\nb.memory_bytes 3e9 B\n"), "-p", 20000)
expect("layers are divided before K and V are lowered", p["choice"]["pipeline"] == "layers" and p["choice"]["kv"] == "f16", p["choice"])
refused(2, ["plan", *shape, "--chip", "m1", "--kv", "q9"], "q9")
p = plan(*shape, "--chip", "h200", "--objective", "energy")
expect("no joules, no choice for energy", p["choice"] is None and "joules" in p["choice_reason"], p)

# A calibration that run follows and refines.
refused(1, ["calibrate", "--unit", "ref", "-o", "/nonexistent/c.chip"], "/nonexistent")
model = tiny_model(context=8192)
cache = os.path.join(home, "cache")
os.makedirs(cache, exist_ok=True)
calibration = os.path.join(cache, "calibration.chip")
with open(os.path.join(cache, "calibration.lock"), "w") as held:
    fcntl.flock(held, fcntl.LOCK_EX)
    refused(1, ["calibrate", "--unit", "ref"], "another segue calibrate")
LINES = "".join(f"cpu.{k}\n" for k in (
    "step_ms 0.05 ms", "step_layer_ms 0.01 ms", "run_ms 0.1 ms", "run_layer_ms 0.02 ms", "wide_gb_s 20 GB/s", "wide_16_tflops 0.1 TFLOPS",
    "wide_64_tflops 0.1 TFLOPS", "wide_256_tflops 0.1 TFLOPS", "wide_512_tflops 0.1 TFLOPS", "kv_gb_s 10 GB/s"))


def calibrate(text, mode=0o600):
    with open(calibration, "w") as f: f.write(text)
    os.chmod(calibration, mode)


calibrate(LINES)
calibrate("")
os.remove(calibration)
err = run("run", "-m", model, "-p", "hello", "-n", "4", "--greedy")[2]
expect("without a calibration run says how to get one", "; not predicted: no calibration; run segue calibrate" in err and "plan:" not in err, err)
err = run("run", "-m", model, "-p", "hello", "-n", "4", "--greedy", "--unit", "cpu")[2]
expect("nothing is said where the unit was named", "predicted" not in err, err)
calibrate(LINES)
code, out, err = run("plan", "-m", model, "-p", "8000", "-n", "500")
expect("a task beyond the context of the model", code == 0 and "8500 tokens in one context: the model was trained on at most 8192" in err, err)
expect("plan by the calibration", plan("-m", model)["choice"]["prefill"] == "cpu")
p = plan("-m", model, "--storage", "f32", "--storage", "fp8")
expect("a file as it is, and as fp8", [s["storage"] for s in p["splits"]] == ["f32", "fp8"] and p["splits"][1]["disk_bytes"] == p["splits"][0]["disk_bytes"], p["splits"])
answer = ["run", "-m", model, "-p", "hello", "-n", "40", "--ignore-eos", "--greedy"]
code, out, err = run(*answer)
expect("run says which plan it follows", code == 0 and "segue: plan: cpu, expected" in err, err)
expect("and why", "(mostly " in err and "; the only placement)" in err, err)
expect("then what was measured beside what was expected", re.search(r"segue: plan: measured: first token after [\d.]+ ms \(expected [\d.]+, [\d.]+ to [\d.]+\), each further one ", err), err)
expect("for the prompt and the answer of the flags", "of 40 tokens after a prompt of " in err and "prompt of 256" not in err, err)
code, out, err = run("run", "-m", model, "--ids", "1,2,3", "-n", "3", "--ignore-eos", "--greedy")
expect("ids are counted", "of 3 tokens after a prompt of 3," in err, err)
expect("run refines the calibration", "cpu~" in open(calibration).read() and ".step " in open(calibration).read(), open(calibration).read())
# A restored session is planned, and learned from, at its depth.
state = os.path.join(top.name, "deep.state")
ids = [i % 200 for i in range(700)]
expect("a state of 700 tokens", run("run", "-m", model, "--ids", ",".join(map(str, ids)), "-n", "4", "--ignore-eos", "--greedy", "--save", state)[0] == 0)
code, out, err = run("run", "-m", model, "--load", state, "-n", "30", "--ignore-eos", "--greedy", "--json")
p = json.loads(out)["plan"]
expect("the depth of a restored session", 700 <= p["depth_tokens"] <= 704 and " at depth 70" in err, (p, err))
calibrate(LINES)
code, out, err = run("run", "-m", model, "--load", state, "-n", "30", "--ignore-eos", "--greedy")
nodes = {l.split()[0].split(".")[-1] for l in open(calibration).read().splitlines() if "~" in l}
expect("its steps teach those around 700 tokens", {"step", "step_deep"} <= nodes, nodes)
# chat: by the first message and the context; serve: by its context and requests.
calibrate(LINES)
chat = ["chat", "-m", model, "-n", "5", "--ignore-eos", "--greedy"]
short, long = (run(*chat, stdin=w * 30 + "\n")[2] for w in ("a ", "more words here "))
tokens = [float(re.search("after a prompt of (\\d+)", e).group(1)) for e in (short, long)]
expect("a longer first message, a longer prompt", tokens[0] + 100 < tokens[1] < 700 and "of 5 tokens" in short and "; 4 turns" in short, (short, long))
expect("-p is the first message", f"prompt of {tokens[0]:.0f}," in run(*chat, "-p", "a " * 30, stdin="")[2], short)
few = run(*chat, "-c", str(int(tokens[0]) * 2 + 12), stdin="a " * 30 + "\n")[2]
expect("as many turns as the context holds", "; 2 turns" in few or "; 1 turns" in few or "turns" not in few, few)
expect("no message, no plan of one", "prompt of 256," in run(*chat, stdin="/help\n")[2])


def served(*flags):
    p = subprocess.Popen([command, "serve", "-m", model, "--port", "0", *flags], env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    lines = ""
    for line in p.stderr:
        lines += line
        if "plan: " in line: break
    p.terminate()
    p.wait()
    return lines


out = served("-c", "800", "--parallel", "3")
expect("serve: parts of its context, its requests", "of 100 tokens after a prompt of 200," in out and "; 3 requests at a time" in out, out)
out = served("--plan-prompt", "333", "--plan-answer", "44")
expect("serve: as its flags say", "of 44 tokens after a prompt of 333," in out and "; 8 requests at a time" in out, out)
calibrate(LINES.replace("step_ms 0.05", "step_ms 1e-6").replace("step_layer_ms 0.01", "step_layer_ms 1e-6").replace("20 GB/s", "90000 GB/s"))
code, out, err = run(*answer)
expect("a machine slower than it was is noticed", code == 0 and "throttled or changed" in err, err)
calibrate(LINES)
run(*answer)
report = json.loads(run(*answer, "--json")[1])
expect("the plan in the report", report["plan"] and report["plan"]["prefill"] == "cpu" and report["plan"]["token_ms"] > 0, report["plan"])
for key in ("ttft_ms", "token_ms"):
    m = report["plan"]["measured"][key]
    e = m["expected"]
    expect(f"{key}: expected, measured, inside", e["lo"] < e["mid"] < e["hi"] and m["inside"] == (e["lo"] <= m["measured"] <= e["hi"]), m)
expect("the measured figure is the report's", report["plan"]["measured"]["ttft_ms"]["measured"] == report["ttft_ms"], report["plan"]["measured"])
expect("the expected prompt is the real one", abs(report["plan"]["prompt_tokens"] - report["prompt_tokens"]) <= 2, (report["plan"], report["prompt_tokens"]))
expect("no measurement of one token's steps", set(json.loads(run(*answer[:5], "-n", "1", "--json")[1])["plan"]["measured"]) == {"ttft_ms"})
expect("quiet", "plan" not in run(*answer, "-q")[2])
report = json.loads(run(*answer, "--json", "--unit", "cpu")[1])
expect("a named unit is no plan", report["plan"] is None and "named" in report["plan_reason"], report["plan"])
# Two units: why this one; a unit that is gone is named, left out, and kept in the calibration.
OTHER = LINES.replace("cpu.", "cpu:threads=1.").replace("20 GB/s", "19 GB/s")
calibrate(LINES.replace("cpu.", "gone:1.").replace("20 GB/s", "90000 GB/s") + LINES + OTHER)
code, out, err = run(*answer)
expect("a unit that is gone", code == 0 and "plan: unit not opened: gone:1" in err and "planned without it" in err, err)
expect("the next placement is named", re.search(r"least of 4 placements, next cpu(:threads=1)?( > cpu(:threads=1)?)?: [\d.]+ times as long|none of 4 placements is clearly faster", err), err)
expect("the calibration keeps it", "gone:1.step_ms" in open(calibration).read() and "cpu~" in open(calibration).read())
calibrate(LINES.replace("cpu.", "gone:1."))
code, out, err = run(*answer, "--json")
expect("no unit of the calibration left", code == 0 and json.loads(out)["plan"] is None and "none can be opened" in json.loads(out)["plan_reason"], err)
# Layers are divided where no unit holds the model.
model_bytes = plan("-m", model, "--chip", write(top.name, "one.chip", LINES))["choice"]["memory_bytes"]["prefill_weights"]
calibrate(LINES + OTHER + "".join(f"{u}.memory_bytes {model_bytes * .9:.0f} B\n" for u in ("cpu", "cpu:threads=1")))
short = ["run", "-m", model, "--ids", "1,2,3", "-n", "4", "--ignore-eos", "--greedy"]
code, out, err = run(*short, "-c", "64", "--json")
units = {(u["unit"], tuple(u["layers"])) for u in json.loads(out)["units"]}
expect("divided layers are followed", code == 0 and "@" in json.loads(out)["plan"]["prefill"] and len(units) == 2, (units, err))
expect("with the same tokens", json.loads(out)["ids"] == json.loads(run(*short, "--json", "--unit", "cpu")[1])["ids"])
for text, mode, word in ((LINES + "cpu.step_ms fast ms\n", 0o600, "cannot be read"), (LINES, 0o666, "cannot be read"),
                         ("machine 0123456789abcdef - # measured\n" + LINES, 0o600, "another machine")):
    calibrate(text, mode)
    code, out, err = run(*answer)
    expect(f"run without {word}", code == 0 and "plan:" not in err, err)
    refused(3, ["plan", "-m", model], word)
done()
