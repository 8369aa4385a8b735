#!/usr/bin/env python3
"""Values beyond fp16: refused by name under strict; with range=weights scaled by powers of two, so that the results are those of
the unit ref. SPDX-License-Identifier: MIT"""
import os, shutil, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli"))
from clitest import *

try:
    import numpy as np
    from safetensors.numpy import load_file, save_file
except ImportError:
    print("SKIP mil_range: NumPy and safetensors are not here")
    sys.exit(77)

ids = ",".join(str(7 * i % 61) for i in range(160))


def grown(name, **factors):
    """The tiny model with some matrices scaled up, which scales the residual stream and the products."""
    folder = tiny_model(name=name, layers=3)
    path = os.path.join(folder, "model.safetensors")
    weights = load_file(path)
    for key in weights:
        for part, by in factors.items():
            if part in key: weights[key] = weights[key] * np.float32(by)
    save_file(weights, path)
    return folder


def divergence(model, *flags, context=80):
    """Compares a unit with ref over `context` positions; returns (exit code, JSON, stderr)."""
    base = os.path.join(top.name, "base")
    expect("ref", run("eval", "-m", model, "--ids", ids, "-c", context, "--unit", "ref", "--kl-out", base, "-q")[0] == 0)
    code, out, err = run("eval", "-m", model, "--ids", ids, "-c", context, *flags, "--kl-base", base, "-q", "--json")
    return code, json.loads(out or "{}"), err


for name, factors, word in (("product", {"up_proj": 60, "down_proj": 300}, "constraint 30"), ("gate", {"gate_proj": 9000, "up_proj": 7, "down_proj": 0.07}, "65504"),
                            ("stream", {"o_proj": 20000, "down_proj": 3000}, "constraint 30")):
    model = grown(name, **factors)
    code, r, err = divergence(model, "--unit", "ane:soft,range=none")
    expect(f"{name}: refused by name", code == 3 and word in err, (code, err))
    code, r, err = divergence(model, "--unit", "ane")
    expect(f"{name}: divided, it runs", code == 0, err)
    expect(f"{name}: and answers as ref does", code == 0 and r["kl_mean"] <= 5e-3 and r["same_top"] >= 0.97, r)
# Powers of two that cancel between a norm and the matrices that read it: exact, so the tokens are those of ref. A matrix that alone
# exceeds the range, or whose numbers are all subnormal, is refused by name.


def load_wide(path):
    """The tensors of a file as float32; NumPy has no bfloat16."""
    with open(path, "rb") as f: raw = f.read()
    n = int.from_bytes(raw[:8], "little")
    weights = {}
    for key, t in json.loads(raw[8:8 + n]).items():
        if key == "__metadata__": continue
        data = raw[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]]
        wide = {"BF16": lambda: (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32),
                "F16": lambda: np.frombuffer(data, np.float16).astype(np.float32), "F32": lambda: np.frombuffer(data, np.float32)}
        weights[key] = wide[t["dtype"]]().reshape(t["shape"])
    return weights


def moved(name, to, exponents):
    """The tiny model of a golden folder with some weights times powers of two."""
    folder = os.path.join(top.name, name)
    shutil.copytree(os.path.join(source, "tests", "golden", "tiny", to), folder)
    path = os.path.join(folder, "model.safetensors")
    weights = load_wide(path)
    for key in weights:
        for part, by in exponents.items():
            if part in key: weights[key] = np.ldexp(weights[key], by)
    save_file(weights, path)
    return folder


for family, norm, readers in (("llama", "post_attention_layernorm", ("gate_proj", "up_proj")), ("llama", "input_layernorm", ("q_proj", "k_proj", "v_proj")),
                              ("qwen3", "post_attention_layernorm", ("gate_proj", "up_proj")), ("gpt2", "ln_2", ("c_fc.weight",))):
    for by in (19, -19, 30):
        model = moved(f"{family}{norm}{by}", family, {norm: -by, **dict.fromkeys(readers, by)})
        code, r, err = divergence(model, "--unit", "ane", context=48)
        expect(f"{family}, {norm} times 2^{-by}: answers as ref does", code == 0 and r["kl_mean"] <= 5e-3 and r["same_top"] >= 0.97, (code, r, err))
for by, word in ((24, "exceed the fp16 range"), (-24, "below the fp16 range")):
    model = moved(f"alone{by}", "llama", {"v_proj": by, "o_proj": -by})
    code, r, err = divergence(model, "--unit", "ane")
    expect(f"v_proj times 2^{by}: refused by name", code == 3 and "v_proj" in err and word in err, (code, err))
    # K and V keep the scale of the model, but the factors of a gated product can pass it on.
    model = moved(f"gated{by}", "llama", {"up_proj": by, "down_proj": -by})
    code, r, err = divergence(model, "--unit", "ane", context=48)
    expect(f"up_proj times 2^{by}: answers as ref does", code == 0 and r["kl_mean"] <= 5e-3 and r["same_top"] >= 0.97, (code, r, err))
# An M1 reads subnormal operands of products as 0, and strict does too, so a matrix of them is refused there.
model = moved("flushed", "llama", {"q_proj": -11, "k_proj": 11})
for unit in ("ane", "ane:soft,profile=m1"):
    code, r, err = divergence(model, "--unit", unit, context=48)
    expect(f"q_proj of subnormal numbers on {unit}: refused by name", code == 3 and "q_proj" in err and "below the fp16 range" in err, (code, r, err))
code, r, err = divergence(model, "--unit", "ane:soft,profile=m4", context=48)
expect("other chips keep subnormal numbers", code == 0 and r["kl_mean"] <= 5e-3 and r["same_top"] >= 0.97, (code, r, err))
# Results beyond the range at run time are counted, under a profile that hides them, and end the run or are computed in fp32.
model = grown("overflow", gate_proj=9000, up_proj=7, down_proj=0.07)
options = "profile=ieee,range=none"
code, r, err = divergence(model, "--unit", "ane:soft," + options)
expect("an overflow ends the run", code == 3 and "exceed fp16" in err and "out_of_range=fp32" in err, (code, err))
code, r, err = divergence(model, "--unit", f"ane:soft,{options},out_of_range=fp32")
expect("in fp32 on the host it answers as ref does", code == 0 and r["kl_mean"] <= 5e-3 and r["same_top"] >= 0.97, (code, r, err))
for choice, phases in (("fp32", {"prefill", "decode", "helper"}), ("count", {"prefill", "decode", "helper"})):
    code, out, err = run("run", "-m", model, "--unit", f"ane:soft,{options},out_of_range={choice}", "-p", "a b c d", "-n", 2, "--greedy", "--json")
    units = json.loads(out or "{}").get("units", [])
    expect(f"{choice}: counted", code in (0, 4) and sum(u["overflows"] for u in units if u["phase"] == "prefill") > 0, (code, units, err))
small = grown("underflow", gate_proj=2e-4, up_proj=1e-3)
code, r, err = divergence(small, "--unit", "ane:soft," + options)
expect("results that are lost end the run", code == 3 and "below the range of fp16" in err, (code, err, r))
code, r, err = divergence(small, "--unit", f"ane:soft,{options},out_of_range=fp32")
expect("in fp32 they are kept", code == 0 and r["kl_mean"] <= 5e-3, (code, r, err))
# Without large values nothing is scaled: the same program and the same results.
a, b = os.path.join(top.name, "a"), os.path.join(top.name, "b")
model = tiny_model(name="small")
run("mil", "emit", "-m", model, "-o", a, "--fp16-scaling", "none")
run("mil", "emit", "-m", model, "-o", b)
expect("a model that fits stays as it is", run("mil", "diff", a, b)[0] == 0)
done()
