#!/usr/bin/env python3
"""segue mil emit and explain -m: the files, and the results of the programs against NumPy. SPDX-License-Identifier: MIT"""
import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli"))
from clitest import *

try:
    import numpy as np
    from safetensors.numpy import load_file, save_file
except ImportError:
    print("SKIP mil_emit: NumPy and safetensors are not here")
    sys.exit(77)

layers, width, rows = 3, 32, 32
model = tiny_model(layers=layers, width=width)
folder = os.path.join(top.name, "p")
code, out, err = run("mil", "emit", "-m", model, "--tokens-per-dispatch", rows, "--layers-per-program", 2, "-o", folder, "--json")
report = json.loads(out or "{}")
expect("emitted programs break no rule", code == 0 and report["programs"] == 2 and report["violations"] == [], (code, out, err))
manifest = json.load(open(os.path.join(folder, "manifest.json")))
expect("two layers, then one", [p["layers"] for p in manifest["programs"]] == [[0, 1], [2, 2]], manifest["programs"])
shapes = {i["name"]: i["shape"] for i in manifest["programs"][0]["inputs"]}
expect("ports rise in size", list(shapes) == ["a_x", "b_state", "c_info"] and shapes["a_x"] == [1, width, 1, rows], shapes)
expect("the helper's part is named", [h["op"] for h in manifest["helper"]] == ["embed", "rows", "norm", "linear"] and
       all(h["reason"] for h in manifest["helper"]), manifest["helper"])

# Weights: those of the model in fp16, at the offsets of the manifest.
given = load_file(os.path.join(model, "model.safetensors"))
for p in manifest["programs"]:
    blob = open(os.path.join(folder, p["weights"]), "rb").read()
    expect("a blob counts its tensors", struct.unpack("<II", blob[:8]) == (len({t["offset"] for t in p["tensors"]}), 2), blob[:8])
    for t in p["tensors"]:
        mark, kind, size, at = struct.unpack("<IIQQ", blob[t["offset"]:t["offset"] + 24])
        want = np.atleast_2d(given[t["tensor"]])[t["row"]:t["row"] + t["rows"]].astype(np.float16)
        mine = at + 2 * want.shape[1] * t["below"]
        whole = 2 * want.shape[1] * sum(o["rows"] for o in p["tensors"] if o["offset"] == t["offset"]) if want.shape[0] > 1 else size
        expect(f"{t['tensor']}: its numbers", (mark, kind, size) == (0xDEADBEEF, 1, whole) and
               blob[mine:mine + want.nbytes] == want.tobytes(), t)


# The layers in NumPy: 20 rows from an empty state, the remaining columns are padding.
def layer(x, i):
    w = lambda name: given[f"model.layers.{i}.{name}.weight"].astype(np.float64)
    norm = lambda v, g: v / np.sqrt((v * v).mean(-1, keepdims=True) + 1e-5) * g
    n, d = len(x), 8
    def turned(v):
        angle = np.arange(n)[:, None] * 10000.0 ** (-np.arange(d // 2) / (d // 2))
        a, b = v[..., :d // 2], v[..., d // 2:]
        c, s = np.cos(angle)[:, None], np.sin(angle)[:, None]
        return np.concatenate([a * c - b * s, b * c + a * s], -1)
    h = norm(x, w("input_layernorm"))
    q, k, v = (h @ w(f"self_attn.{p}_proj").T for p in "qkv")
    q, k, v = turned(q.reshape(n, 4, d)), turned(k.reshape(n, 2, d)), v.reshape(n, 2, d)
    score = np.einsum("ihd,jhd->hij", q, k.repeat(2, 1)) / np.sqrt(d) + np.triu(np.full((n, n), -1e9), 1)
    share = np.exp(score - score.max(-1, keepdims=True))
    share /= share.sum(-1, keepdims=True)
    x = x + np.einsum("hij,jhd->ihd", share, v.repeat(2, 1)).reshape(n, width) @ w("self_attn.o_proj").T
    h = norm(x, w("post_attention_layernorm"))
    g = h @ w("mlp.gate_proj").T
    return x + (g / (1 + np.exp(-g)) * (h @ w("mlp.up_proj").T)) @ w("mlp.down_proj").T


n, keys, where = 20, manifest["keys"], manifest["info"]
x = np.random.default_rng(5).normal(size=(n, width)).astype(np.float16)
info = np.zeros((1, shapes["c_info"][1], 1, rows), np.float16)
mask, place = where["masks"][0]["at"], where["masks"][0]["place"]
info[0, place + np.arange(n), 0, np.arange(n)] = 1
for s in range(rows): info[0, mask + min(s, n - 1) + 1:mask + keys, 0, s] = -10000
rope, pairs = where["ropes"][0]["at"], where["ropes"][0]["pairs"]
angle = np.arange(rows)[None] * 10000.0 ** (-np.arange(pairs) / pairs)[:, None]
info[0, rope:rope + pairs, 0], info[0, rope + pairs:rope + 2 * pairs, 0] = np.cos(angle), np.sin(angle)
want, now = x.astype(np.float64), np.zeros((1, width, 1, rows), np.float16)
now[0, :, 0, :n] = x.T
for p in manifest["programs"]:
    one = os.path.join(top.name, "one.safetensors"), os.path.join(top.name, "two.safetensors")
    inputs = {i["name"]: np.zeros(i["shape"], np.float16) for i in p["inputs"]}
    for name in inputs: inputs[name] = now if name.endswith("_x") else info if name.endswith("_info") else inputs[name]
    save_file(inputs, one[0])
    code, out, err = run("mil", "run", os.path.join(folder, p["file"]), "--in", one[0], "--out", one[1])
    expect("it runs under strict", code == 0, err)
    results = load_file(one[1])
    now = np.ascontiguousarray(next(results[k] for k in results if k.endswith("_out")))
    for i in range(p["layers"][0], p["layers"][1] + 1): want = layer(want, i)
    got = now[0, :, 0, :n].T.astype(np.float64)
    expect(f"layers up to {p['layers'][1]}", np.abs(got - want).max() < 4e-3 * np.abs(want).max(), np.abs(got - want).max())
    state = next(results[k] for k in results if k.endswith("_state"))
    expect("memory holds the real rows alone", np.abs(state[0, :, 0, :n]).min(1).max() > 0 and not state[0, :, 0, n:].any())

again = os.path.join(top.name, "q")
# The head as one more program: the token of NumPy for the last row, of a vocabulary of several slices.
big = tiny_model("big", layers=layers, width=width, vocab=5000)
code, out, err = run("mil", "emit", "-m", big, "--tokens-per-dispatch", rows, "--head", "engine", "-o", again)
with_head = json.load(open(os.path.join(again, "manifest.json")))
head = with_head["head"]
expect("the head is the last program", code == 0 and head["file"] == "p01.mil" and [h["op"] for h in with_head["helper"]] == ["embed", "rows"], (code, err, with_head["helper"]))
table = load_file(os.path.join(big, "model.safetensors"))
for seed in range(8):
    row = np.random.default_rng(seed).normal(size=width).astype(np.float32)
    port = np.zeros(head["inputs"][0]["shape"], np.float16)
    port[0, :width, 0, 0] = row / head["x"][0]["divided_by"]
    save_file({head["inputs"][0]["name"]: port}, one[0])
    code, out, err = run("mil", "run", os.path.join(again, head["file"]), "--in", one[0], "--out", one[1])
    part, index, logit = (float(v) for v in load_file(one[1])["z_out"][0, :3, 0, 0])
    normed = row / np.sqrt((row * row).mean() + 1e-5) * table["model.norm.weight"]
    logits = table.get("lm_head.weight", table["model.embed_tokens.weight"]) @ normed
    token = int(part) * head["slice"] + int(index)
    near = np.abs(logits).max() * 0.01
    expect(f"the head chooses, row {seed}", logits[token] >= logits.max() - near and abs(logit - logits[token]) < near, (token, logits.argmax(), logit))
thought = json.loads(run("mil", "explain", "-m", big, "--tokens-per-dispatch", rows, "--head", "engine", "--json")[1])
expect("explained with the head", thought["dispatches"] == 2 and [h["op"] for h in thought["helper"]] == ["embed", "rows", "sample"], thought)
# Model families against activations recorded from transformers, run with docs/examples/mil_ports.py.
sys.path.insert(0, os.path.join(source, "docs", "examples"))
sys.dont_write_bytecode = True
import mil_ports
for family in ("llama", "llama3", "gemma3", "gpt2", "qwen3_5"):
    tiny = os.path.join(source, "tests", "golden", "tiny", family)
    golden = load_file(os.path.join(tiny, "golden.safetensors"))
    deep = max(int(k[7:]) for k in golden if k.startswith("hidden.")) - 1
    n = len(golden["hidden.0"])
    code, out, err = run("mil", "emit", "-m", tiny, "--layers", f"0-{deep - 1}", "--layers-per-program", 2, "--tokens-per-dispatch", 32 if n <= 32 else 128, "-o", again)
    expect(f"{family}: written", code == 0, err)
    got, want = mil_ports.run_programs(again, golden["hidden.0"], command), golden[f"hidden.{deep}"]
    # fp16 rounds each of several products by 2^-11; one number out of thousands is a few times further off than their root mean square.
    apart = got[:, :want.shape[1]] - want
    rms, most = np.sqrt((apart**2).mean() / (want**2).mean()), np.abs(apart).max() / np.abs(want).max()
    expect(f"{family}: what goes into layer {deep} is as recorded", rms < 4e-3 and most < 1e-2, (rms, most))

# Layout: no program has a transpose; 8 chunks of the delta rule share what does not depend on the state.
def explained(family, n): return json.loads(run("mil", "explain", "-m", os.path.join(source, "tests", "golden", "tiny", family), "--tokens-per-dispatch", n, "--json")[1])
for family in ("llama", "qwen2", "qwen3", "gpt2", "gemma3", "qwen3_5"):
    for n in (1, 32, 128, 512):
        o = explained(family, n)
        expect(f"{family}, {n} rows: no transposes", o["transposes"] == 0 < o["layout_ops"], o)
# An M5 has rows of 64 numbers: programs for it have ports of as many columns, also the head and programs of one row.
for n in (1, 32):
    to = os.path.join(top.name, f"m5-{n}")
    code, out, err = run("mil", "emit", "-m", os.path.join(source, "tests", "golden", "tiny", "qwen3_5"), "--tokens-per-dispatch", n, "--head", "engine", "--profile", "m5", "-o", to)
    expect(f"{n} rows for m5", code == 0 and run("mil", "check", to, "--profile", "m5")[0] == 0, err)
    expect("64 columns", json.load(open(os.path.join(to, "manifest.json")))["columns"] == 64)
few, many = explained("qwen3_5", 64)["ops"], explained("qwen3_5", 512)["ops"]
expect("8 chunks are not 8 times the operations of one", many < 2.5 * few, (few, many))

# The same model again is the same program; other rows are another one. Explaining needs no files.
run("mil", "emit", "-m", model, "--tokens-per-dispatch", rows, "--layers-per-program", 2, "-o", again)
expect("equal programs", run("mil", "diff", folder, again)[0] == 0)
run("mil", "emit", "-m", model, "--tokens-per-dispatch", 64, "--layers-per-program", 2, "-o", again)
expect("other programs", run("mil", "diff", folder, again)[0] == 6)
written = json.loads(run("mil", "explain", folder, "--json")[1])
thought = json.loads(run("mil", "explain", "-m", model, "--tokens-per-dispatch", rows, "--layers-per-program", 2, "--json")[1])
expect("explained alike", all(written[k] == thought[k] for k in ("dispatches", "ops", "weight_bytes", "working_set_bytes", "estimated_us")), (written, thought))
expect("and the helper", [h["op"] for h in thought["helper"]] == ["embed", "rows", "norm", "linear", "sample"], thought)
fixed = ["run", "-m", model, "-n", 3, "--greedy", "--ignore-eos", "--json"]  # an answer that stops early has fewer runs
units = json.loads(run(*fixed, "--ids", "1,2,3", "--unit", "ane")[1])["units"]
expect("a run reports it too", [u["phase"] for u in units] == ["prefill", "decode", "helper"] and
       units[2]["ops"] == {"embed": 1, "rows": 1, "norm": 1, "linear": 1} and units[2]["runs"] == 3 and units[2]["dispatches"] == 0 and
       units[0]["ops"]["norm"] == 2 * layers and "embed" not in units[0]["ops"], units)
engine = json.loads(run(*fixed, "--ids", "1,2,3", "--unit", "ane:head=engine")[1])["units"]
expect("with head=engine the head is one dispatch more", [u["dispatches"] for u in engine] == [units[0]["dispatches"] + 1, units[1]["dispatches"] + 2, 0] and
       engine[2]["ops"] is None and "head=engine" in engine[2]["ops_reason"], engine)
expect("a token reads three numbers instead of a row", units[1]["host_bytes"] - engine[1]["host_bytes"] == 2 * 2 * (width - 3), (units[1], engine[1]))
sums = [sum(p["layout_ops"] for p in json.loads(run("mil", "explain", "-m", model, "--tokens-per-dispatch", n, "--json")[1])["programs"]) for n in (32, 1)]
expect("layout operations of the dispatches", [u["layout_ops"] for u in units] == [sums[0], 2 * sums[1], None], (units, sums))
expect("the head's too", engine[0]["layout_ops"] > sums[0] and engine[1]["layout_ops"] > 2 * sums[1], engine)
expect("with padding", [u["padded_ratio"] and round(u["padded_ratio"], 3) for u in units] == [10.667, 32, None], units)
told = []
for unit in ("ane", "proc:ane"):
    code, out, err = run(*fixed, "--ids", "1,2,3,4,5", "--unit", unit, SEGUE_HOME=os.path.join(top.name, "home-" + unit.partition(":")[0]))
    expect(f"{unit}: it runs", code == 0, err)
    report = json.loads(out)
    told.append((report["compiles"], [[u[k] for k in ("phase", "dispatches", "host_bytes", "padded_ratio", "tokens_truncated", "layout_ops")] for u in report["units"]]))
expect("a child reports what it did", told[0] == told[1] and told[0][0] > 0 and told[0][1][0][2] > 0, told)
only = json.loads(run("mil", "explain", "-m", model, "--layers", "1-1", "--json")[1])
expect("one layer alone", only["dispatches"] == 1 and only["helper"] == [], only)


def zeros(name, dim, hidden, deep, heads, kv):
    """A model of that shape as a sparse file of zeros: explain reads no weights."""
    path, vocab, context = os.path.join(top.name, name), 32000, 1024
    numbers = vocab * dim + deep * (2 * dim + 2 * dim * dim + 2 * dim * dim // heads * kv + 3 * dim * hidden) + dim + context * dim // heads
    with open(path, "wb") as f:
        f.write(struct.pack("<7i", dim, hidden, deep, heads, kv, vocab, context))
        f.truncate(28 + 4 * numbers)
    return path


def explained(*args):
    code, out, err = run("mil", "explain", "-m", *args, "--tokens-per-dispatch", 256, "--json")
    expect(f"{args}: explained", code == 0, err)
    return json.loads(out)


stories = zeros("stories110M.bin", 768, 2048, 12, 12, 12)
for more in ([], ["--layers-per-program", 6]):
    r = explained(stories, *more)
    expect("110M: two layer dispatches, head apart", r["dispatches"] == 2 and "linear" in [h["op"] for h in r["helper"]], r)
    expect("110M: weights of six layers each", [round(p["weight_bytes"] / 1e5) for p in r["programs"]] == [850, 850], r)
# Bytes in fp16: old and new K and V of 6 layers with 512 rows, 2 ports and 2 masks of 256 columns, rows and scores of one attention.
held = 2 * (2 * 12 * 768 * 512 + 2 * 768 * 256 + 2 * 512 * 256 + 256 * (4 * 768 + 2 * 12 * 512))
expect("110M: what a dispatch holds", [p["resident_bytes"] for p in r["programs"]] == [held, held], (held, r["programs"]))
expect("110M: all in one, when asked", explained(stories, "--layers-per-program", 12)["dispatches"] == 1)
r = explained(zeros("wide.bin", 1024, 12288, 4, 16, 16))
expect("a wider model is cut finer", 1 < r["dispatches"] < 4 and max(p["resident_bytes"] for p in r["programs"]) <= 32 << 20, r)

refused(2, ["mil", "emit", "-m", model, "--tokens-per-dispatch", 48, "-o", folder], "48 rows")
refused(2, ["mil", "emit", "-m", model, "--context", 700, "-o", folder], "700 keys")
refused(2, ["mil", "emit", "-m", model, "--layers", "2-9", "-o", folder], "A-B")
refused(2, ["mil", "emit", "-m", model], "-o DIR")
refused(1, ["mil", "emit", "-m", model, "-o", os.path.join(model, "config.json")], "config.json")
done()
