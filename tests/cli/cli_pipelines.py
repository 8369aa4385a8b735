#!/usr/bin/env python3
"""Predefined pipelines, another data type per unit, and two units at work at the same time: the tokens equal those of one unit.
SPDX-License-Identifier: MIT"""
from clitest import *

m = tiny_model(context=4096)
prompt = ",".join(str(i * 7 % 256) for i in range(600))
A, B = "cpu:isa=generic,threads=1", "cpu:isa=generic,threads=2"   # bitwise equal results, but two units


def parts(*args, ids=prompt, n=6):
    code, out, err = run("run", "-m", m, "--ids", ids, "-n", n, "--greedy", "--ignore-eos", "--json", *args)
    expect(f"{args} runs", code == 0, err)
    o = json.loads(out)
    return o, {u["phase"]: u for u in o["units"]}


alone, _ = parts("--unit", A)
for name, runs in ((f"single:{A}", 2), (f"fixed:{A}", 2), (f"fixed:{A}+{B}", 2), (f"ane-seq:{A}", 600), (f"ane-seq:{A}+{B}", 600),
                   (f"ane-batch:{A}", 19), (f"ane-batch:{A}+{B}", 19)):
    o, u = parts("--pipeline", name)
    expect(f"{name}: runs of the expected shape", u["prefill"]["runs"] == runs and u["decode"]["runs"] == 5, (name, u["prefill"]["runs"], u["decode"]["runs"]))
    expect(f"{name}: the units that ran", ("threads=2" in u["decode"]["unit"]) == ("+" in name) and "threads=1" in u["prefill"]["unit"], u)
    expect(f"{name}: tokens of one unit", o["ids"] == alone["ids"], (o["ids"], alone["ids"]))
    if "+" in name: expect(f"{name}: state passed without a copy", o["copied_bytes"] == 0 and o["handoff_ms"] > 0 and o["handoff_bytes"] > 0, o["handoff_ms"])
o, _ = parts("--prefill", "ref", "--decode", B, "--kv", "f16")
expect("streaming hand-off from ref to cpu", o["copied_bytes"] == o["handoff_bytes"] > 0 and o["handoff_exposed_ms"] > 0, o["handoff_ms"])
o, _ = parts("--prefill", A + "@0-0", "--prefill", B + "@1-1", "--decode", B + "@0-0", "--decode", A + "@1-1")
expect("layer ranges", o["ids"] == alone["ids"] and len(o["units"]) == 4 and all(u["runs"] > 0 for u in o["units"]), o["units"])
few = ["run", "-m", m, "-n", "2", "--greedy", "--ignore-eos", "--prefill", "ane:soft,keys=32", "--ids"]
code, out, err = run(*few, ",".join(prompt.split(",")[:40]), "--decode", B)
expect("truncated positions cannot be handed over", code == 3 and err.count("\n") == 1 and "position 0, which is gone" in err, (code, err))
code, out, err = run(*few, ",".join(prompt.split(",")[:30]), "--decode", B)
expect("a prompt within the window can", code == 0, err)
code, out, err = run(*few, ",".join(prompt.split(",")[:40]), "--decode", "proc:ane:soft,keys=32")
expect("and so can a state for a unit with the same window", code == 0, err)

# A unit that stores K and V as f16 only: the hand-off converts. The exposed time is part of the hand-off's.
for other, same in (("q8", False), ("f32", True), ("bf16", False)):
    o, u = parts("--prefill", "ane:soft", "--decode", B, "--kv", other, ids=",".join(prompt.split(",")[:70]), n=4)
    expect(f"ane to cpu with --kv {other}", u["decode"]["runs"] == 3 and o["handoff_bytes"] > 0, (u, o["handoff_bytes"]))
for n in (70, 600, 1200, 1200):
    o, _ = parts("--prefill", "ane:soft", "--decode", "cpu", ids=",".join((prompt.split(",") * 2)[:n]), n=2)
    expect(f"ane to cpu after {n} tokens: the exposed time is a part", 0 < o["handoff_exposed_ms"] <= o["handoff_ms"], (o["handoff_exposed_ms"], o["handoff_ms"]))
refused(3, ["run", "-m", m, "--ids", "1,2", "--unit", "ane:soft", "--kv", "q8"], "f16")
# A unit that pads takes the smallest shape of the pipeline that holds the rest, and no other.
for n, columns in ((2, 64), (64, 64), (65, 256), (256, 256), (257, 512), (514, 576)):
    o, u = parts("--pipeline", "fixed:ane:soft", ids=",".join((prompt.split(",") * 2)[:n]), n=1)
    expect(f"fixed: {n} tokens are padded to {columns}", round(u["prefill"]["padded_ratio"] * n) == columns, (n, u["prefill"]["padded_ratio"] * n))
o, u = parts("--pipeline", f"fixed:proc:ane:soft+{B}", ids=",".join(prompt.split(",")[:65]), n=2)
expect("fixed: also in another process", round(u["prefill"]["padded_ratio"] * 65) == 256, u["prefill"])

units = [u["unit"] for u in json.loads(run("units", "--json")[1]) if u["available"]]
present = {u.split(":")[0] for u in units}
if "cuda" not in present and "mlx:gpu" not in units: refused(3, ["run", "-m", m, "--ids", "1", "--pipeline", "gpu"], "gpu", "cuda")
if "ane" not in present:
    for name in ("ane-seq", "ane-seq+cpu", "ane-batch", "ane-batch+cpu"): refused(3, ["run", "-m", m, "--ids", "1", "--pipeline", name], "ane")
refused(2, ["run", "-m", m, "--ids", "1", "--pipeline", "fixd"], "fixed")
refused(2, ["run", "-m", m, "--ids", "1", "--pipeline", "single"], "single:U")
refused(2, ["run", "-m", m, "--ids", "1", "--pipeline", "fixed+"], "unit")
refused(2, ["run", "-m", m, "--ids", "1", "--pipeline", "fixed", "--unit", "cpu"], "--pipeline")

# another data type of the model for one unit
half = os.path.join(top.name, "tiny-f16.gguf")
code, out, err = run("quantize", "-m", m, "-o", half, "--type", "f16")
expect("quantize", code == 0, err)
o, u = parts("--prefill", A, "--decode", f"{B},model={half}")
expect("model= is reported", u["decode"]["model"]["path"] == half and u["decode"]["model"]["weights_id"] != o["model"]["weights_id"]
       and u["decode"]["model"]["shape_id"] == o["model"]["shape_id"] and "model" not in u["prefill"], u["decode"])
pair = ["--prefill", A, "--decode", f"{B},model={half}"]
saved = os.path.join(top.name, "pair.state")
code, out, err = run("run", "-m", m, "--ids", "1,2,3", "-n", "2", "--greedy", "--ignore-eos", *pair, "--save", saved)
expect("state of two model files", code == 0, err)
info = json.loads(run("state", "info", saved, "--json")[1])
ids = [json.loads(run("inspect", "-m", x, "--json")[1])["weights_id"] for x in (m, half)]
expect("the file lists both weights ids and both units", info["joined_weights_ids"] == ids and info["weights_id"] not in ids
       and " > " in info["unit"] and " > " in info["kernels"], info)
refused(4, ["run", "-m", m, "--load", saved, "-n", "1", "--unit", A], "pair")
expect("the state loads with the same two files", run("run", "-m", m, "--load", saved, "-n", "1", *pair)[0] == 0)
other = tiny_model("other", width=48)
refused(4, ["run", "-m", m, "--ids", "1", "--prefill", A, "--decode", f"{B},model={other}"], "shape")
refused(1, ["run", "-m", m, "--ids", "1", "--unit", f"{A},model=/nowhere.gguf"], "/nowhere.gguf")

# weights converted at load
o, u = parts("--unit", A, "--storage", "fp8")
plain = json.loads(run("inspect", "-m", m, "--json")[1])["weights_id"]
made = o["model"]["weights_id"]
expect("fp8 changes weights_id", o["model"]["storage"] == "fp8" and made != plain and len(made) == len(plain), o["model"])
o, u = parts("--prefill", A, "--decode", f"{B},storage=fp8")
expect("fp8 for one unit", u["decode"]["model"]["storage"] == "fp8" and u["decode"]["model"]["weights_id"] == made
       and o["model"]["weights_id"] == plain and "model" not in u["prefill"], u["decode"])
o, u = parts("--prefill", A, "--decode", f"{B},model={half},storage=fp8")
expect("fp8 of another file", u["decode"]["model"]["storage"] == "fp8" and u["decode"]["model"]["weights_id"] not in (made, plain), u["decode"])
one = ["run", "-m", m, "--ids", "1,2,3", "-n", "6", "--greedy", "--ignore-eos", "--json", "--storage", "fp8"]
texts = [json.loads(run(*one, "--unit", x)[1])["ids"] for x in ("ref", A, f"proc:{A}", B)]
expect("the same weights on every unit", texts[0] == texts[1] == texts[2] == texts[3], texts)
code, out, err = run("run", "-m", m, "--ids", "1,2,3", "-n", "2", "--unit", A, "--storage", "fp8", "--save", saved)
expect("a state with fp8 weights", code == 0 and json.loads(run("state", "info", saved, "--json")[1])["weights_id"] == made, err)
refused(4, ["run", "-m", m, "--load", saved, "-n", "1", "--unit", A], "weights")
expect("it loads with the same weights", run("run", "-m", m, "--load", saved, "-n", "1", "--unit", A, "--storage", "fp8")[0] == 0)
refused(2, ["run", "-m", m, "--ids", "1", "--storage", "fp4"], "fp8")
refused(2, ["run", "-m", m, "--ids", "1", "--unit", f"{A},storage=fp4" if ":" in A else f"{A}:storage=fp4"], "fp4")

# bench --pipelines
code, out, err = run("bench", "-m", m, "--pipelines", "--pipeline", f"single:{A}", "--pipeline", f"fixed:{A}+{B}", "--pipeline", "ane-seq",
                     "-p", "6,70", "-n", "4", "-o", "json")
rows = json.loads(out)
expect("bench --pipelines", code == 0 and [r["n_prompt"] for r in rows if r["available"] and "ane" not in r["pipeline"]] == [6, 70, 6, 70], err)
expect("nulls have reasons", all(v is not None or r.get(k + "_reason") for r in rows for k, v in r.items()), rows)
expect("cold figures only for the first prompt", all(bool(r["cold_ttft_ms"]) == (r["n_prompt"] == 6) for r in rows if r["available"]), rows)
expect("same ids on every pipeline", len({r["ids_hash"] for r in rows if r["n_prompt"] == 70 and "ane" not in r["pipeline"]}) == 1, rows)
expect("units of the last run", all(r["units"] and all(u["runs"] and (u["dispatches"] or u["phase"] == "helper") for u in r["units"]) for r in rows if r["available"]), rows)
expect("hand-off", all(bool(r["handoff_ms"]) == (B in r["pipeline"]) for r in rows if r["available"] and "ane" not in r["pipeline"]), rows)
if "ane" not in present: expect("missing unit", [r["available"] for r in rows if r["pipeline"] == "ane-seq"] == [False] and "ane" in rows[-1]["reason"], rows[-1])
refused(2, ["bench", "-m", m, "--pipelines", "--pipeline", "nothing"], "nothing")

# disk_bytes: the model and the cache entries that are used, whoever wrote them, and no others
size = sum(os.path.getsize(os.path.join(m, f)) for f in os.listdir(m))
disk = lambda model: [r["disk_bytes"] for r in json.loads(run("bench", "-m", model, "--pipelines", "--pipeline", "single:ane:soft", "--pipeline", "single:ref",
                                                              "-p", "6", "-n", "2", "-r", "2", "-o", "json")[1])]
run("cache", "clear")
first = disk(m)
disk(other)
write(os.path.join(home, "cache", "ane"), "0" * 32 + ".packed", "x" * 100000)
expect("disk_bytes counts what the pipeline used", first[0] > size + 10000 and size <= first[1] < size + 10000, (size, first))
again = disk(m)
expect("disk_bytes does not count entries of other models", abs(again[0] - first[0]) < 1000 and again[1] < size + 10000, (first, again))

# two requests: one is prefilled while the other one is answered
lines = [{"id": 1, "ids": "1,2,3,4,5,6", "n": 2000}, {"id": 2, "ids": ",".join(str(i * 11 % 256) for i in range(3000)), "n": 4}]
path = write(top.name, "two.jsonl", "\n".join(json.dumps({**l, "greedy": True, "ignore_eos": True, "context": 4096}) for l in lines))
trace = os.path.join(top.name, "trace.json")
base = ["run", "-m", m, "--requests", path, "--parallel", "2"]
code, out, err = run(*base, "--prefill", A, "--decode", B, "--trace", trace)
both = [json.loads(l) for l in out.strip().split("\n")]
want = [json.loads(l) for l in run(*base, "--parallel", "1", "--unit", A)[1].strip().split("\n")]
expect("same tokens as one request alone", code == 0 and [r["ids"] for r in both] == [r["ids"] for r in want], err)
events = json.load(open(trace))["traceEvents"]
expect("trace rows have names", {e["args"]["name"] for e in events if e["ph"] == "M"} == {A, B}, events[-2:])
# --verify with --requests: each hand-off is compared, its reply says so, and a line counts them
short = write(top.name, "verified.jsonl", "\n".join(json.dumps({"id": i, "ids": ",".join(str((i * 7 + k) % 256) for k in range(9)), "n": 3,
                                                                "greedy": True, "ignore_eos": True}) for i in range(5)))
for every, lines in ((1, [0, 1, 2, 3, 4]), (2, [0, 2, 4])):
    code, out, err = run("run", "-m", m, "--requests", short, "--prefill", A, "--decode", B, "--verify", 3, "--verify-every", every)
    seen = [json.loads(l) for l in out.strip().split("\n")]
    expect(f"verified, one in {every}", code == 0 and [r["id"] for r in seen if r["verify"]] == lines, (code, out, err))
    expect("three tokens each", all(r["verify"]["tokens"] == 3 and r["verify"]["ok"] for r in seen if r["verify"]), out)
    expect("counted", f"{len(lines)} hand-offs verified, 0 recomputed" in err, err)
code, out, err = run("run", "-m", m, "--requests", short, "--unit", A, "--verify", 3)
expect("one unit: nothing to verify", code == 0 and "0 hand-offs verified" in err and "one unit" in err, err)
expect("no count without --verify or with -q", "verified" not in run("run", "-m", m, "--requests", short, "--prefill", A, "--decode", B)[2]
       and "verified" not in run("run", "-m", m, "--requests", short, "--prefill", A, "--decode", B, "--verify", 3, "-q")[2])


def extent(name, session):
    spans = [e for e in events if e["name"] == name and e["args"]["session"] == session]
    return (min(e["ts"] for e in spans), max(e["ts"] + e["dur"] for e in spans)) if spans else (0, 0)


writes, reads = extent("decode", 0), extent("prefill", 1)
overlap = min(writes[1], reads[1]) - max(writes[0], reads[0])
expect("prefill and decode overlap", overlap > 0, (writes, reads))   # the amount depends on the scheduler
code, out, err = run("run", "-m", m, "--ids", "1", "-n", "1", "-q", "--trace", os.path.join(top.name, "no", "trace.json"))
expect("a trace that cannot be written", code == 1 and err.count("\n") == 1 and "trace.json" in err, (code, err))

# a conversation with read-ahead of the next turn
talk = "Tell me a story.\nGo on, please, and make it a long one.\nAnd then?\n"
base = ["chat", "-m", m, "--greedy", "--ignore-eos", "-n", "120", "-c", "2048", "--json"]
one = json.loads(run(*base, "--unit", A, stdin=talk)[1])
two = json.loads(run(*base, "--prefill", A, "--decode", B, stdin=talk)[1])
expect("the same conversation", one["messages"] == two["messages"], (one["messages"], two["messages"]))
expect("tokens read ahead", [t["read_ahead"]["tokens"] > 120 for t in two["turns"]] == [False, True, True], [t["read_ahead"] for t in two["turns"]])
expect("only new tokens remain", all(t["prompt_tokens"] - t["reused_tokens"] < 60 for t in two["turns"][1:]),
       [(t["prompt_tokens"], t["reused_tokens"]) for t in two["turns"]])
done()
