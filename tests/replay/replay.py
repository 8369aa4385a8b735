#!/usr/bin/env python3
"""`run --record` and `segue replay`: an answer repeats bit for bit, an op that is one ulp off is found to its layer (the unit option
ref:fault=LAYER.OP), and damaged records are refused with their line. SPDX-License-Identifier: MIT"""
import re
import stat
from clitest import *

m = tiny_model("tiny", layers=4, width=64)
ids = ",".join(str(i % 256) for i in range(40))
base = ["run", "-m", m, "--ids", ids, "-n", "6", "--ignore-eos", "--temp", "0.9", "--seed", "5", "--chunk", "16", "--json"]


def record(name, *units, same=True):
    path = os.path.join(top.name, name)
    code, out, err = run(*base, *units, "--record", path)
    expect(f"recorded: {units}", code == 0, err)
    plain = json.loads(run(*base, *units)[1])["ids"]
    # Programs of ane and passes of cuda that give out the values between layers round in other places than those that do not.
    if same: expect(f"recording changes no token: {units}", json.loads(out)["ids"] == plain, (out[:200], plain))
    return path


def replay(path, *units):
    code, out, err = run("replay", path, *units, "--json")
    expect(f"replay {units}: exit 0 or 6", code in (0, 6), (code, err))
    o = json.loads(out) if out else {}
    expect(f"replay {units}: exit says what the object says", o.get("equal") == (code == 0), o)
    expect("nulls have reasons", all(v is not None or o.get(k + "_reason") for k, v in o.items()), o)
    return o


on_ref = record("ref.rec", "--unit", "ref")
lines = open(on_ref).read().splitlines()
head = json.loads(lines[0])
expect("private", stat.S_IMODE(os.stat(on_ref).st_mode) == 0o600)
expect("one line per run: three chunks and five tokens", [(r["first"], r["tokens"], r["phase"]) for r in map(json.loads, lines[1:])]
       == [(0, 16, "prefill"), (16, 16, "prefill"), (32, 8, "prefill")] + [(40 + i, 1, "decode") for i in range(5)], lines[1:][:1])
expect("slots", head["slots"] == [f"{k}.{i}" for i in range(4) for k in "kv"] and head["hidden"] == 5 and head["sampling"]["seed"] == 5, head)
o = replay(on_ref)
expect("equal on ref", o["equal"] and o["runs"] == o["runs_equal"] == 8, o)
for unit in ("cpu:threads=1", "cpu:threads=2,invariant=1"):
    expect(f"equal on {unit}", replay(record("cpu.rec", "--unit", unit))["equal"])
pair = record("pair.rec", "--prefill", "cpu:threads=1", "--decode", "ref")
o = replay(pair)
expect("equal over a hand-off", o["equal"] and len(json.loads(open(pair).readline())["units"]) == 2, o)
split = record("split.rec", "--prefill", "cpu:threads=1@0-1", "--prefill", "ref@2-3", "--decode", "ref")
expect("equal with divided layers", replay(split)["equal"] and json.loads(open(split).readline())["hidden"] == 0)

for layer in range(4):
    for op, inside in (("norm", True), ("attend", False), ("glu", False)):
        o = replay(on_ref, "--unit", f"ref:fault={layer}.{op}")
        expect(f"{op} of layer {layer} is one ulp off", not o["equal"] and o["layer"] == layer and ("slot" in o and o["slot"] == f"k.{layer}") == inside
               and o["unit"] == f"ref:fault={layer}.{op}" and o["recorded_unit"] == "ref" and o["position"] is not None, o)
code, out, err = run("replay", on_ref, "--unit", "ref:fault=2.glu")
expect("as text", code == 6 and "layer 2" in out and "ref:fault=2.glu" in out, out)
expect("in divided layers the state says the layer", replay(split, "--prefill", "cpu:threads=1@0-1", "--prefill", "ref:fault=3.norm@2-3", "--decode", "ref")["layer"] == 3)
o = replay(on_ref, "--unit", "cpu", "--chunk", "32")
expect("other chunk edges are named", o["edge"] == 0 and not o["equal"], o)
refused(2, ["replay", on_ref, "--unit", "ref:fault=x.norm"], "LAYER.OP")
refused(2, ["replay", on_ref, "--unit", "ref:fault=1.nrom"], "no operation")

# The same inside the kernels of the unit cpu, on the kernels that were recorded. Fused operations differ where their stage ends.
for spec in ("cpu:threads=1", "cpu:threads=2,invariant=1", "cpu:isa=generic,threads=2"):
    on_cpu = record("cpu.rec", "--unit", spec)
    for layer in (0, 3):
        for op in ("norm", "linear", "rope", "attend", "glu"):
            o = replay(on_cpu, "--unit", f"{spec},fault={layer}.{op}")
            expect(f"{spec}: {op} of layer {layer} is one ulp off", not o["equal"] and o["layer"] == layer, o)
            expect(f"{spec}: {op}: unit and token", "fault=" in o["unit"] and o["recorded_unit"] in o["unit"] and o["position"] is not None, o)
refused(2, ["replay", on_ref, "--unit", "cpu:fault=norm"], "LAYER.OP")

# The same in programs of the software NPU, where the next value of fp16 may be rounded away before the last layer, and on a GPU.
accelerators = ["ane:soft", "ane:soft,layers=1"] + [u["unit"] for u in json.loads(run("units", "--json")[1]) if u["unit"].startswith("cuda:") and u["available"]][:1]
for spec in accelerators:
    on_unit = record("unit.rec", "--unit", spec, same=False)
    expect(f"equal on {spec}", replay(on_unit)["equal"])
    for layer in (0, 3):
        for op in ("norm", "linear", "rope", "attend", "glu"):
            name = f"{spec}{',' if ':' in spec else ':'}fault={layer}.{op}"
            o = replay(on_unit, "--unit", name)
            expect(f"{spec}: {op} of layer {layer} is one ulp off", not o["equal"] and o["layer"] == layer and o["unit"] == name and o["recorded_unit"] == spec
                   and (o["position"] is not None or o["run_tokens"] > 1), o)
if len(accelerators) == 2: print("SKIP the faults of cuda: this machine has no GPU")
refused(2, ["replay", on_ref, "--unit", "ane:soft,fault=1"], "LAYER.OP")
hybrid = os.path.join(source, "tests", "golden", "tiny", "qwen3_5")
refused(4, ["replay", record("hybrid.rec", "-m", hybrid, "--unit", "ane:soft", same=False), "--unit", "ane:soft,fault=0.delta"], "0.delta", "part of another")

# chat: one record per turn, each of which can be repeated alone.
turns = os.path.join(top.name, "turns.rec")
talk = ["chat", "-m", m, "-n", "5", "--ignore-eos", "--temp", "0.8", "--unit", "ref", "--json", "--record", turns]
code, out, err = run(*talk, stdin="hello\nand now\n/retry\n")
said = json.loads(out)["turns"]
expect("chat recorded three turns", code == 0 and len(said) == 3, err)
heads = [json.loads(l) for l in open(turns) if "segue_record" in l]
expect("turns in order, with their own prompts and seeds", len(heads) == 3 and len(heads[0]["prompt"]) < len(heads[1]["prompt"]) == len(heads[2]["prompt"])
       and [h["runs"] for h in heads] == [sum(not r.get("segue_record") for r in p) for p in [[json.loads(l) for l in part.splitlines()] for part in
           re.split(r"(?=\{\"segue_record)", open(turns).read())[1:]]], heads)
expect("private", stat.S_IMODE(os.stat(turns).st_mode) == 0o600)
o = replay(turns)
expect("all turns repeat", o["equal"] and not o["cut"] and [r["request"] for r in o["requests"]] == [1, 2, 3] and all(r["equal"] for r in o["requests"]), o)
o = replay(turns, "--request", "2")
expect("one of them", o["equal"] and o["request"] == 2, o)
o = replay(turns, "--unit", "ref:fault=1.glu")
expect("a fault is found in each", [r["layer"] for r in o["requests"]] == [1, 1, 1], o)
refused(2, ["replay", turns, "--request", "4"], "3 records")
refused(2, [*talk, "--regex", "a"], "--record")
# A process that is killed leaves a part of its last record.
text = open(turns).read()
second = text.index("{\"segue_record", 1)
for end in (second + 9, text.index("\n", second) + 1, text.index("\n", text.index("\n", second) + 1) + 20, len(text) - 1):
    o = replay(write(top.name, "cut.rec", text[:end]), "--request", "1")
    expect(f"cut at {end}: the first record is complete", o["equal"], o)
code, out, err = run("replay", write(top.name, "cut.rec", text[:second + 9]))
expect("a cut record is named", code == 0 and "incomplete" in err and "request" not in out, (out, err))
refused(4, ["replay", write(top.name, "cut.rec", text[:40])], "line 1")
rows = text.splitlines(True)
middle = next(i for i, l in enumerate(rows) if i and "segue_record" in l)
refused(4, ["replay", write(top.name, "gap.rec", "".join(rows[:middle - 1] + rows[middle:]))], "fewer runs", f"line {middle}")
refused(4, ["replay", write(top.name, "more.rec", "".join(rows[:middle] + rows[middle - 1:]))], "more runs", f"line {middle + 1}")

other = tiny_model("other", seed=9, layers=4, width=64)
refused(4, ["replay", on_ref, "-m", other], "other weights")
refused(2, ["run", "-m", m, "--ids", "1", "--record", os.path.join(top.name, "x"), "--regex", "a"], "--record")
code, out, err = run("run", "-m", m, "--ids", "1", "-n", "1", "-q", "--record", os.path.join(top.name, "no/x.rec"))
expect("a record that cannot be written", code == 1 and "no/x.rec" in err, (code, err))
refused(1, ["replay", os.path.join(top.name, "nowhere")], "nowhere")


def damaged(change, line=None, at=0):
    text = lines.copy()
    if line is not None: text[line] = change(text[line])
    else: text = change(text)
    return "\n".join(text) + "\n"


def field(name, value):
    def change(text):
        o = json.loads(text)
        if value is None: o.pop(name)
        else: o[name] = value
        return json.dumps(o)
    return change


bad = [("", "line 0"), ("{", "line 1"), ("[]\n", "line 1"), ("{}\n", "line 1"), (damaged(field("segue_record", 99), 0), "newer"),
       (damaged(field("prompt", [1, -1]), 0), "line 1"), (damaged(field("prompt", "x"), 0), "line 1"), (damaged(field("tokens", [1 << 40]), 0), "line 1"),
       (damaged(field("weights_id", 5), 0), "line 1"), (damaged(field("units", []), 0), "line 1"), (damaged(field("hidden", 1e9), 0), "line 1"),
       (damaged(field("slots", [1]), 0), "line 1"), (damaged(field("flags", None), 0), "line 1"), (damaged(field("tokens", -5), 3), "line 4"),
       (damaged(field("first", 45), 2), "line 3"), (damaged(field("phase", "think"), 2), "line 3"), (damaged(field("unit", 1), 2), "line 3"),
       (damaged(field("slots", "00"), 2), "line 3"), (damaged(field("hidden", "x" * 80), 2), "line 3"), (damaged(field("rows", None), 2), "line 3"),
       (damaged(lambda t: t[:3] + ["not JSON"] + t[3:]), "line 4"), (damaged(lambda t: t[:2] + [t[2][:50]]), "line 3")]
for i, (text, word) in enumerate(bad):
    refused(4, ["replay", write(top.name, f"bad{i}.rec", text)], word, f"bad{i}.rec")
done()
