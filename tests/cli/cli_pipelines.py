#!/usr/bin/env python3
"""Splits by name, another storage per unit, and two units at once: tokens as alone, work that overlaps.
SPDX-License-Identifier: MIT"""
from clitest import *

m = tiny_model(context=4096)
prompt = ",".join(str(i * 7 % 256) for i in range(600))
A, B = "cpu:isa=generic,threads=1", "cpu:isa=generic,threads=2"   # equal to the last bit, but two units


def parts(*args, ids=prompt, n=6):
    code, out, err = run("run", "-m", m, "--ids", ids, "-n", n, "--greedy", "--ignore-eos", "--json", *args)
    expect(f"{args} runs", code == 0, err)
    o = json.loads(out)
    return o, {u["phase"]: u for u in o["units"]}


alone, _ = parts("--unit", A)
for name, runs in ((f"one:{A}", 2), (f"fixed:{A}", 2), (f"fixed:{A}+{B}", 2), (f"ane-seq:{A}", 600), (f"ane-seq:{A}+{B}", 600),
                   (f"ane-batch:{A}", 19), (f"ane-batch:{A}+{B}", 19)):
    o, u = parts("--pipeline", name)
    expect(f"{name}: runs of its shape", u["prefill"]["runs"] == runs and u["decode"]["runs"] == 5, (name, u["prefill"]["runs"], u["decode"]["runs"]))
    expect(f"{name}: the unit that ran", ("threads=2" in u["decode"]["unit"]) == ("+" in name) and "threads=1" in u["prefill"]["unit"], u)
    expect(f"{name}: tokens of one unit", o["ids"] == alone["ids"], (o["ids"], alone["ids"]))
    if "+" in name: expect(f"{name}: passed on", o["copied_bytes"] == 0 and o["handoff_ms"] > 0 and o["handoff_bytes"] > 0, o["handoff_ms"])
o, _ = parts("--prefill", "ref", "--decode", B, "--kv", "f16")
expect("ref to cpu flows", o["copied_bytes"] == o["handoff_bytes"] > 0 and o["handoff_exposed_ms"] > 0, o["handoff_ms"])
o, _ = parts("--prefill", A + "@0-0", "--prefill", B + "@1-1", "--decode", B + "@0-0", "--decode", A + "@1-1")
expect("layer ranges", o["ids"] == alone["ids"] and len(o["units"]) == 4 and all(u["runs"] > 0 for u in o["units"]), o["units"])
few = ["run", "-m", m, "-n", "2", "--greedy", "--ignore-eos", "--prefill", "ane:soft,keys=32", "--ids"]
code, out, err = run(*few, ",".join(prompt.split(",")[:40]), "--decode", B)
expect("rows that are gone cannot be handed over", code == 3 and err.count("\n") == 1 and "row 0, which is gone" in err, (code, err))
code, out, err = run(*few, ",".join(prompt.split(",")[:30]), "--decode", B)
expect("fewer can", code == 0, err)
code, out, err = run(*few, ",".join(prompt.split(",")[:40]), "--decode", "proc:ane:soft,keys=32")
expect("and those to a unit that sees no more", code == 0, err)

present = {u["unit"].split(":")[0] for u in json.loads(run("units", "--json")[1]) if u["present"]}
if not present & {"cuda", "mlx"}: refused(3, ["run", "-m", m, "--ids", "1", "--pipeline", "gpu"], "gpu", "cuda")
if "ane" not in present:
    for name in ("ane-seq", "ane-seq+cpu", "ane-batch", "ane-batch+cpu"): refused(3, ["run", "-m", m, "--ids", "1", "--pipeline", name], "ane")
refused(2, ["run", "-m", m, "--ids", "1", "--pipeline", "fixd"], "fixed")
refused(2, ["run", "-m", m, "--ids", "1", "--pipeline", "one"], "one:U")
refused(2, ["run", "-m", m, "--ids", "1", "--pipeline", "fixed+"], "unit")
refused(2, ["run", "-m", m, "--ids", "1", "--pipeline", "fixed", "--unit", "cpu"], "--pipeline")

# another storage of the model for one unit
half = os.path.join(top.name, "tiny-f16.gguf")
code, out, err = run("quantize", "-m", m, "-o", half, "--type", "f16")
expect("quantize", code == 0, err)
o, u = parts("--prefill", A, "--decode", f"{B},model={half}")
expect("model= is named", u["decode"]["model"]["path"] == half and u["decode"]["model"]["weights_id"] != o["model"]["weights_id"]
       and u["decode"]["model"]["shape_id"] == o["model"]["shape_id"] and "model" not in u["prefill"], u["decode"])
pair = ["--prefill", A, "--decode", f"{B},model={half}"]
saved = os.path.join(top.name, "pair.state")
code, out, err = run("run", "-m", m, "--ids", "1,2,3", "-n", "2", "--greedy", "--ignore-eos", *pair, "--save", saved)
expect("a pair's state", code == 0, err)
info = json.loads(run("state", "info", saved, "--json")[1])
ids = [json.loads(run("inspect", "-m", x, "--json")[1])["weights_id"] for x in (m, half)]
expect("the file names both storages and both units", [info["weights_first"], info["weights_second"]] == ids and info["weights_id"] not in ids
       and " > " in info["unit"] and " > " in info["kernels"], info)
refused(4, ["run", "-m", m, "--load", saved, "-n", "1", "--unit", A], "pair")
expect("loads into the pair", run("run", "-m", m, "--load", saved, "-n", "1", *pair)[0] == 0)
other = tiny_model("other", width=48)
refused(4, ["run", "-m", m, "--ids", "1", "--prefill", A, "--decode", f"{B},model={other}"], "shape")
refused(1, ["run", "-m", m, "--ids", "1", "--unit", f"{A},model=/nowhere.gguf"], "/nowhere.gguf")

# weights made at load
o, u = parts("--unit", A, "--storage", "fp8")
plain = json.loads(run("inspect", "-m", m, "--json")[1])["weights_id"]
made = o["model"]["weights_id"]
expect("fp8 is another content", o["model"]["storage"] == "fp8" and made != plain and len(made) == len(plain), o["model"])
o, u = parts("--prefill", A, "--decode", f"{B},storage=fp8")
expect("fp8 for one unit", u["decode"]["model"]["storage"] == "fp8" and u["decode"]["model"]["weights_id"] == made
       and o["model"]["weights_id"] == plain and "model" not in u["prefill"], u["decode"])
o, u = parts("--prefill", A, "--decode", f"{B},model={half},storage=fp8")
expect("of another file", u["decode"]["model"]["storage"] == "fp8" and u["decode"]["model"]["weights_id"] not in (made, plain), u["decode"])
one = ["run", "-m", m, "--ids", "1,2,3", "-n", "6", "--greedy", "--ignore-eos", "--json", "--storage", "fp8"]
texts = [json.loads(run(*one, "--unit", x)[1])["ids"] for x in ("ref", A, f"proc:{A}", B)]
expect("the same weights everywhere", texts[0] == texts[1] == texts[2] == texts[3], texts)
code, out, err = run("run", "-m", m, "--ids", "1,2,3", "-n", "2", "--unit", A, "--storage", "fp8", "--save", saved)
expect("an fp8 state", code == 0 and json.loads(run("state", "info", saved, "--json")[1])["weights_id"] == made, err)
refused(4, ["run", "-m", m, "--load", saved, "-n", "1", "--unit", A], "weights")
expect("loads where it was made", run("run", "-m", m, "--load", saved, "-n", "1", "--unit", A, "--storage", "fp8")[0] == 0)
refused(2, ["run", "-m", m, "--ids", "1", "--storage", "fp4"], "fp8")
refused(2, ["run", "-m", m, "--ids", "1", "--unit", f"{A},storage=fp4" if ":" in A else f"{A}:storage=fp4"], "fp4")

# the table
code, out, err = run("bench", "-m", m, "--pipelines", "--pipeline", f"one:{A}", "--pipeline", f"fixed:{A}+{B}", "--pipeline", "ane-seq",
                     "-p", "6,70", "-n", "4", "-o", "json")
rows = json.loads(out)
expect("bench --pipelines", code == 0 and [r["n_prompt"] for r in rows if r["present"] and "ane" not in r["pipeline"]] == [6, 70, 6, 70], err)
expect("nulls have reasons", all(v is not None or r.get(k + "_reason") for r in rows for k, v in r.items()), rows)
expect("cold apart", all(bool(r["cold_ttft_ms"]) == (r["n_prompt"] == 6) for r in rows if r["present"]), rows)
expect("equal ids", len({r["ids_hash"] for r in rows if r["n_prompt"] == 70 and "ane" not in r["pipeline"]}) == 1, rows)
expect("what ran", all(r["units"] and all(u["runs"] and (u["dispatches"] or u["phase"] == "helper") for u in r["units"]) for r in rows if r["present"]), rows)
expect("hand-off", all(bool(r["handoff_ms"]) == (B in r["pipeline"]) for r in rows if r["present"] and "ane" not in r["pipeline"]), rows)
if "ane" not in present: expect("absent", [r["present"] for r in rows if r["pipeline"] == "ane-seq"] == [False] and "ane" in rows[-1]["why"], rows[-1])
refused(2, ["bench", "-m", m, "--pipelines", "--pipeline", "nothing"], "nothing")

# two requests, one read while the other one is answered
lines = [{"id": 1, "ids": "1,2,3,4,5,6", "n": 2000}, {"id": 2, "ids": ",".join(str(i * 11 % 256) for i in range(3000)), "n": 4}]
path = write(top.name, "two.jsonl", "\n".join(json.dumps({**l, "greedy": True, "ignore_eos": True, "context": 4096}) for l in lines))
trace = os.path.join(top.name, "trace.json")
base = ["run", "-m", m, "--requests", path, "--parallel", "2"]
code, out, err = run(*base, "--prefill", A, "--decode", B, "--trace", trace)
both = [json.loads(l) for l in out.strip().split("\n")]
want = [json.loads(l) for l in run(*base, "--parallel", "1", "--unit", A)[1].strip().split("\n")]
expect("tokens as alone", code == 0 and [r["ids"] for r in both] == [r["ids"] for r in want], err)
events = json.load(open(trace))["traceEvents"]
expect("rows are named", {e["args"]["name"] for e in events if e["ph"] == "M"} == {A, B}, events[-2:])


def extent(name, session):
    spans = [e for e in events if e["name"] == name and e["args"]["session"] == session]
    return (min(e["ts"] for e in spans), max(e["ts"] + e["dur"] for e in spans)) if spans else (0, 0)


writes, reads = extent("decode", 0), extent("prefill", 1)
overlap = min(writes[1], reads[1]) - max(writes[0], reads[0])
expect("reading and writing overlap", overlap > 0, (writes, reads))   # how much is the scheduler's
code, out, err = run("run", "-m", m, "--ids", "1", "-n", "1", "-q", "--trace", os.path.join(top.name, "no", "trace.json"))
expect("a trace that cannot be written", code == 1 and err.count("\n") == 1 and "trace.json" in err, (code, err))

# a conversation whose next turn is read ahead
talk = "Tell me a story.\nGo on, please, and make it a long one.\nAnd then?\n"
base = ["chat", "-m", m, "--greedy", "--ignore-eos", "-n", "120", "-c", "2048", "--json"]
one = json.loads(run(*base, "--unit", A, stdin=talk)[1])
two = json.loads(run(*base, "--prefill", A, "--decode", B, stdin=talk)[1])
expect("the same conversation", one["messages"] == two["messages"], (one["messages"], two["messages"]))
expect("read ahead", [t["ahead"]["tokens"] > 120 for t in two["turns"]] == [False, True, True], [t["ahead"] for t in two["turns"]])
expect("only new words are left", all(t["prompt_tokens"] - t["reused_tokens"] < 60 for t in two["turns"][1:]),
       [(t["prompt_tokens"], t["reused_tokens"]) for t in two["turns"]])
done()
