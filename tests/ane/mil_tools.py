#!/usr/bin/env python3
"""segue mil check, run, diff, explain: lines, JSON, exit codes. SPDX-License-Identifier: MIT"""
import os, shutil, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli"))
from clitest import *

sample = open(os.path.join(source, "docs", "examples", "ffn.mil")).read()
folder = os.path.join(top.name, "programs")
os.makedirs(folder)


def write_text(name, text):
    path = os.path.join(folder, name)
    with open(path, "w") as f: f.write(text)
    return path


good = write_text("p00.mil", sample)
for profile in "strict ieee m1 m2 m4 h13 h14 h16".split():
    code, out, err = run("mil", "check", folder, "--profile", profile)
    expect(f"the example passes {profile}", code == 0 and out == "", (code, out, err))
code, out, err = run("mil", "check", folder, "--profile", "m5")
expect("m5 wants rows of 128 bytes", code == 6 and "constraint 1 " in out, out)
bad = write_text("p01.mil", sample.replace("relu(x = h)", "gelu(x = h)").replace("[1, 64, 1, 32]> a_in", "[1, 64, 1, 33]> a_in"))
code, out, err = run("mil", "check", folder)
line = out.split("\n")[0]
expect("a line names file, place, constraint, op", code == 6 and line.startswith(f"{bad}:12:9: constraint 0 (op h): declared as fp16 [1, 128, 1, 32]"), out)
code, out, err = run("mil", "check", bad, "--json")
v = json.loads(out)["violations"]
expect("JSON", code == 6 and all(set(e) == {"file", "line", "column", "op", "constraint", "text"} for e in v) and v[0]["constraint"] == 0, out)
write_text("p01.mil", sample.replace("relu(x = h)", "gelu(x = h)"))
code, out, err = run("mil", "check", folder, "--json")
v = json.loads(out)["violations"]
expect("a rule by its number", code == 6 and [e["constraint"] for e in v] == [10] and v[0]["op"] == "r" and v[0]["line"] == 13, out)
expect("another profile allows it", run("mil", "check", folder, "--profile", "m4")[0] == 0)
write_text("p01.mil", sample[:900])
code, out, err = run("mil", "check", folder)
expect("a cut text has a place", code == 6 and "p01.mil:11:" in out and "constraint 0" in out, out)
refused(4, ["mil", "explain", folder], "p01.mil:11:")
# Programs that differ only in value names or dialect are equal; others are not.
renamed = sample.replace(" h = ", " hidden = ").replace("x = h)", "x = hidden)").replace('("h")', '("hidden")')
write_text("p01.mil", renamed)
expect("names do not matter", run("mil", "diff", good, bad)[0] == 0, run("mil", "diff", good, bad))
write_text("p01.mil", sample.replace("relu(x = h)", "tanh(x = h)"))
code, out, err = run("mil", "diff", good, bad)
expect("a changed operation is shown", code == 6 and "- " in out and "relu" in out and "+ " in out and "tanh" in out and out.count("\n") == 2, out)
code, out, err = run("mil", "diff", good, bad, "--json")
expect("diff JSON", code == 6 and json.loads(out)["equal"] is False and json.loads(out)["lines"] == 2, out)
os.remove(bad)
# A check reads the folders in a folder, as compiled models have them; a link to a folder is not followed.
inside = os.path.join(folder, "x.mlmodelc")
os.makedirs(inside)
write_text(os.path.join("x.mlmodelc", "model.mil"), sample[:900])
os.symlink(folder, os.path.join(inside, "loop"))
code, out, err = run("mil", "check", folder, "--json")
r = json.loads(out)
expect("folders in a folder", code == 6 and r["programs"] == 2 and [v["file"] for v in r["violations"]] == [os.path.join(inside, "model.mil")], out)
shutil.rmtree(inside)
os.makedirs(os.path.join(folder, *"123456789"))
code, out, err = run("mil", "check", folder)
expect("folders that are too deep are not left out in silence", code == 5 and "more than 8 folders" in err, (code, err))
shutil.rmtree(os.path.join(folder, "1"))
j = json.loads(run("mil", "explain", folder, "--json", "--profile", "m1")[1])
expect("explain counts", j["dispatches"] == 1 and j["ops"] == 3 and j["programs"][0]["flops"] == 2 * 2 * 64 * 128 * 32 + 128 * 32, j)
expect("explain: working set", j["working_set_bytes"] == 2 * (64 * 32 + 128 * 64 + 128 * 32) + 36, j)
# mil run, and its errors.
try:
    import numpy as np
    from safetensors.numpy import load_file, save_file
except ImportError:
    np = None
if np:
    i, o = os.path.join(top.name, "i.safetensors"), os.path.join(top.name, "o.safetensors")
    save_file({"a_in": np.ones((1, 64, 1, 32), np.float16)}, i)
    code, out, err = run("mil", "run", folder, "--in", i, "--out", o, "--json")
    r = json.loads(out or "{}")
    expect("run", code == 0 and r["dispatches"] == 1 and r["unit"] == "ane (software)" and r["simulated_us"] > 0, (code, out, err))
    expect("run: numbers", code == 0 and (load_file(o)["z_out"] == 1.0).all())
    save_file({"b_in": np.ones((1, 64, 1, 32), np.float16)}, i)
    refused(2, ["mil", "run", folder, "--in", i, "--out", o], "a_in")
    save_file({"a_in": np.full((1, 64, 1, 32), 60000, np.float16)}, i)
    refused(4, ["mil", "run", folder, "--in", i, "--out", o, "--profile", "m1"], "constraint 30", "op h")
    code, out, err = run("mil", "run", folder, "--in", i, "--out", o, "--profile", "m1", "--on-violation", "faithful")
    expect("faithful: infinite", code == 0 and np.isinf(load_file(o)["z_out"]).all(), err)
# Inputs of whole numbers and truth values; halves are rounded away from zero; comments; the operation that lost numbers.
if np:
    head = 'program(1.3)\n[buildInfo = dict<string, string>({{"a", "b"}})]\n{ // a comment\n    func main<ios18>('
    text = head + ('tensor<bool, [1, 1, 1, 64]> a, tensor<int8, [1, 1, 1, 64]> b) {\n        tensor<fp16, [1, 1, 1, 64]> w = cast(x = b, dtype = '
                   'string("fp16")); // another\n        tensor<fp16, [1, 1, 1, 64]> h = mul(x = w, y = fp16(0x1p-1));\n'
                   '        tensor<fp16, [1, 1, 1, 64]> r = round(x = h);\n        tensor<fp16, [1, 1, 1, 64]> z = select(cond = a, a = r, b = h);\n    } -> (z);\n}\n')
    path = write_text("mixed.mil", text)
    numbers, truth = np.arange(-32, 32, dtype=np.int8).reshape(1, 1, 1, 64), np.arange(64).reshape(1, 1, 1, 64) % 3 > 0
    save_file({"a": truth, "b": numbers}, i)
    code, out, err = run("mil", "run", path, "--in", i, "--out", o, "--profile", "ieee")
    half = numbers.astype(np.float32) / 2
    want = np.where(truth, np.sign(half) * np.floor(np.abs(half) + 0.5), half)
    expect("I8 and BOOL inputs, halves away from zero", code == 0 and (load_file(o)["z"] == want).all(), (code, err))
    for name, wrong in (("b", 300), ("b", 0.5), ("a", 2), ("b", np.nan)):  # not another number in their place
        given = {"a": truth.astype(np.float32), "b": numbers.astype(np.float32)}
        given[name][0, 0, 0, 5] = wrong
        save_file(given, i)
        refused(2, ["mil", "run", path, "--in", i, "--out", o, "--profile", "ieee"], f"input {name}: number 5 is", "no int8" if name == "b" else "no bool")
    os.remove(path)
j = json.loads(run("mil", "rules", "--json")[1])["rules"]
expect("the table of rules", len(j) > 40 - 5 and {"number", "text", "engine", "checked", "generations", "sources"} == set(j[0]) and
       next(r for r in j if r["number"] == 49)["generations"] == ["H13", "H14"], j[:1])
expect("layout operations are counted", {"layout_ops", "transposes"} <= set(json.loads(run("mil", "explain", folder, "--json")[1])["programs"][0]))
refused(2, ["mil", "frobnicate", folder], "check")
refused(2, ["mil", "diff", folder], "diff A B")
refused(2, ["mil", "check"], "check DIR")
refused(2, ["mil", "run"], "run DIR", "--in")
refused(2, ["mil", "emit"], "emit -m MODEL")
refused(2, ["mil", "explain", folder, folder], "explain -m MODEL")
refused(1, ["mil", "explain", "-m", os.path.join(top.name, "absent")], "absent")
refused(1, ["mil", "check", os.path.join(top.name, "absent.mil")], "absent.mil")
refused(1, ["mil", "check", home], "no .mil")
chip = os.path.join(top.name, "x.chip")
with open(chip, "w") as f: f.write("ane_tflops fast\n")
refused(4, ["mil", "explain", folder, "--chip", chip], "line 1", "ane_tflops")
with open(chip, "wb") as f: f.write(b"ane_row_bytes 64\n\x7fELF\x02\x01\x00\xff")
refused(4, ["mil", "check", folder, "--chip", chip], "line 2", "not text")
if sys.platform != "darwin":
    for c in ("ane-probe", "ane-report"): refused(3, [c], "not on this machine")
refused(2, ["ane-probe", "--unit", "cpu"], "not a Neural Engine")
refused(2, ["ane-report", "--unit", "ane:soft,profile=m9"], "m9")
# The report on the software NPU, whole, with a double of powermetrics: a log of constant power, written as the tool does, until it is
# interrupted.
DOUBLE = """#!/usr/bin/env python3
import sys, time, datetime
interval, log = int(sys.argv[sys.argv.index("-i") + 1]) / 1e3, open(sys.argv[sys.argv.index("-o") + 1], "w", buffering=1)
last = time.monotonic()
while True:
    time.sleep(interval)
    now = time.monotonic()
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%a %b %d %H:%M:%S %Y %z")
    log.write(f"*** Sampled system activity ({date}) ({(now - last) * 1000:.2f}ms elapsed) ***\\n\\nCPU Power: 1000 mW\\n"
              "GPU Power: 500 mW\\nANE Power: 1500 mW\\nCombined Power (CPU + GPU + ANE): 3000 mW\\n\\n")
    last = now
"""
folder = os.path.join(top.name, "bin")
os.mkdir(folder)
os.chmod(write(folder, "powermetrics", DOUBLE), 0o755)
path = os.path.join(top.name, "report.json")
p = subprocess.run([command, "ane-report", "--unit", "ane:soft,threads=2", "-o", path], capture_output=True, text=True,
                   env={**environment, "PATH": folder + os.pathsep + os.environ["PATH"]})   # minutes on a busy machine
code, err = p.returncode, p.stderr
r = json.load(open(path)) if code == 0 else {}
expect("ane-report: parts", code == 0 and [k for k in r if k != "energy_reason"] == [
    "version", "machine", "device", "answers", "trials", "check", "check_head_engine", "claim", "energy", "rules"] and "no engine ran" in err, (code, err))
expect("ane-report: energy, or the reason", bool(r["energy"]) != bool(r.get("energy_reason")), r["energy"])
if os.geteuid(): expect("powermetrics needs root", "root" in r["energy_reason"], r["energy_reason"])
else:
    e = r["energy"]
    expect("the idle power is that of the log", abs(e["idle_w"] - 3) < 0.15, e)
    expect("samples of both phases", e["prefill_samples"] >= 5 and e["decode_samples"] >= 5, e)
    expect("the parts of the log", {x["name"] for x in e["rails"]} == {"CPU", "GPU", "ANE"}, e)
    expect("nothing is left above the idle machine, whose power is constant", abs(e["prefill_j"]) < 1 and abs(e["decode_j"]) < 2, e)
expect("ane-report: device", r["device"]["software"] is True and r["device"]["methods"] is None and r["device"]["methods_reason"], r["device"])
expect("ane-report: answers", all(a["verdict"] for a in r["answers"]) and {a["name"]: a["verdict"] for a in r["answers"]}["argmax"] == "works", r["answers"])
for name in ("check", "check_head_engine"):
    expect(f"ane-report: {name}", r[name]["tokens_equal"] == r[name]["n_gen"] and 0 < r[name]["logits_error"] < 0.01, r[name])
expect("ane-report: three numbers instead of a row", r["check"]["host_bytes"] - r["check_head_engine"]["host_bytes"] == 15 * 2 * (256 - 3), r)
expect("ane-report: claim", [c["basis"] for c in r["claim"]].count("host") == 3 and all(c["verdict"] is None for c in r["claim"] if c["basis"] == "host"), r["claim"])
done()
