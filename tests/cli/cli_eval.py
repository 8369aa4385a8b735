#!/usr/bin/env python3
"""`segue eval`: figures are recomputed from a --dump and from base logits files, which are parsed here. SPDX-License-Identifier: MIT"""
import math
from clitest import *

m = tiny_model()
ids = [(i * i * 7 + 3 * i) % 250 for i in range(40)]
listed = ",".join(map(str, ids))


def tensors(path):
    data = open(path, "rb").read()
    n = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8:8 + n])
    out = {}
    for k, t in head.items():
        if k == "__metadata__": continue
        begin, end = t["data_offsets"]
        code = {"F32": "f", "I32": "i", "I64": "q"}[t["dtype"]]
        raw = data[8 + n + begin:8 + n + end]
        out[k] = (t["shape"], struct.unpack(f"<{len(raw) // struct.calcsize(code)}{code}", raw))
    return out


def log_softmax(row):
    high = max(row)
    s = high + math.log(sum(math.exp(x - high) for x in row))
    return [x - s for x in row]


dump = os.path.join(top.name, "d.safetensors")
code, out, err = run("eval", "-m", m, "--ids", listed, "--dump", dump, "--json", "--unit", "ref")
o, t = json.loads(out), tensors(dump)
expect("dump names", {"tokens", "logits", "k.0", "v.1"} <= set(t) and any(k.startswith("hidden.") for k in t), sorted(t))
shape, values = t["logits"]
rows = [log_softmax(values[i * 259:(i + 1) * 259]) for i in range(40)]
nll = -sum(rows[i][ids[i + 1]] for i in range(39)) / 39
expect("nll", o["tokens"] == 39 and abs(o["nll"] - nll) < 1e-4 and abs(o["perplexity"] - math.exp(nll)) < 1e-3 * math.exp(nll), (o, nll))

# Base logits in llama-perplexity's format.
base = os.path.join(top.name, "base.kld")
code, out, err = run("eval", "-m", m, "--ids", listed, "-c", "16", "--kl-out", base, "--json", "--unit", "ref")
o = json.loads(out)
data = open(base, "rb").read()
n_ctx, n_vocab, n_chunk = struct.unpack("<3i", data[8:20])
cells = 2 * ((n_vocab + 1) // 2) + 4
expect("header", data[:8] == b"_logits_" and (n_ctx, n_vocab, n_chunk) == (16, 259, 2), (data[:8], n_ctx, n_vocab, n_chunk))
expect("tokens", list(struct.unpack(f"<{n_ctx * n_chunk}i", data[20:20 + 4 * n_ctx * n_chunk])) == ids[:32])
expect("size", len(data) == 20 + 4 * 32 + n_chunk * (n_ctx - 1 - n_ctx // 2) * cells * 2, len(data))
expect("scored tokens", o["tokens"] == 2 * 7 and o["chunks"] == 2, o)
sums, at = [], 20 + 4 * 32
for chunk in range(2):
    for row in range(8, 15):
        scale, low = struct.unpack("<2f", data[at:at + 8])
        p = [scale * q + low for q in struct.unpack("<259H", data[at + 8:at + 8 + 518])]
        sums.append(sum(map(math.exp, p)))
        if chunk == 0 and row == 8: own = p
        at += cells * 2
expect("probabilities sum to one", all(abs(s - 1) < 1e-3 for s in sums), sums)
chunk0 = tensors(dump) if run("eval", "-m", m, "--ids", ",".join(map(str, ids[:16])), "--dump", dump, "--unit", "ref")[0] == 0 else None
want = log_softmax(tensors(dump)["logits"][1][8 * 259:9 * 259])
expect("values", max(abs(a - b) for a, b in zip(own, want) if b > -15) < 1e-3, [(a, b) for a, b in zip(own, want)][:5])

code, out, err = run("eval", "-m", m, "--kl-base", base, "--json")
o = json.loads(out)
expect("divergence of a model from itself", abs(o["kl_mean"]) < 1e-4 and o["same_top"] > 0.9 and o["kl_p99"] >= o["kl_mean"] and o["tokens"] == 14, o)
other = tiny_model("other", seed=5)
code, out, err = run("eval", "-m", other, "--kl-base", base, "--json")
far = json.loads(out)
logits = []
run("eval", "-m", other, "--ids", ",".join(map(str, ids[:16])), "--dump", dump, "--unit", "ref")
theirs = tensors(dump)["logits"][1]
at, kl = 20 + 4 * 32, []
for row in range(8, 15):
    scale, low = struct.unpack("<2f", data[at:at + 8])
    p = [scale * q + low for q in struct.unpack("<259H", data[at + 8:at + 8 + 518])]
    q = log_softmax(theirs[row * 259:(row + 1) * 259])
    kl.append(sum(math.exp(a) * (a - b) for a, b in zip(p, q) if a > -16))
    at += cells * 2
code, out, err = run("eval", "-m", other, "--kl-base", base, "--limit", 1, "--json", "--unit", "ref")
o = json.loads(out)
expect("divergence", abs(o["kl_mean"] - sum(kl) / 7) < 1e-3 and abs(o["kl_max"] - max(kl)) < 1e-3, (o, sum(kl) / 7, max(kl)))
expect("another model has a larger divergence", far["kl_mean"] > 100 * abs(o["kl_mean"]) / 200 and far["kl_mean"] > 0.05, far)

# Rejected inputs: damaged files, another vocabulary, another text, too few tokens.
for name, bad in (("magic", b"_Logits_" + data[8:]), ("cut", data[:-5]), ("header", data[:15]), ("absurd", data[:8] + struct.pack("<3i", 2 ** 30, 259, 2 ** 30) + data[20:]),
                  ("vocabulary", data[:12] + struct.pack("<i", 258) + data[16:]), ("token", data[:20] + struct.pack("<i", 5000) + data[24:]),
                  ("scale", data[:20 + 128] + struct.pack("<f", math.nan) + data[20 + 132:]), ("negative", data[:16] + struct.pack("<i", -1) + data[20:])):
    refused(4 if name != "scale" else 4, ["eval", "-m", m, "--kl-base", write(top.name, name + ".kld", bad)], name + ".kld")
refused(4, ["eval", "-m", m, "--kl-base", base, "--ids", "1,2,3"], "another text")
refused(2, ["eval", "-m", m, "--kl-base", base, "-c", 8], "chunks of")   # not another number of tokens without a word
refused(2, ["eval", "-m", m, "--kl-base", base, "-c", 64], "--context: 64", "chunks of 16 tokens")
expect("the same number of tokens", run("eval", "-m", m, "--kl-base", base, "-c", 16)[0] == 0)
refused(2, ["eval", "-m", m], "-f")
refused(2, ["eval", "-m", m, "--ids", "1"], "two tokens")
refused(2, ["eval", "-m", m, "--ids", "1,2", "-p", "x"], "more than one")
refused(2, ["eval", "-m", m, "--ids", listed, "-c", "8", "--dump", dump], "one chunk")
refused(1, ["eval", "-m", m, "--ids", listed, "--kl-out", "/nowhere/x"], "/nowhere")
refused(1, ["eval", "-m", m, "--ids", listed, "--dump", "/nowhere/x"], "/nowhere")
refused(1, ["eval", "-m", m, "--kl-base", "/nowhere/x"], "/nowhere")
expect("no incomplete file is left", not [f for f in os.listdir(top.name) if ".tmp" in f], os.listdir(top.name))
code, out, err = run("eval", "-m", m, "-f", write(top.name, "t.txt", "some words " * 30), "-c", "64")
expect("text", code == 0 and "perplexity" in out, (out, err))
done()
