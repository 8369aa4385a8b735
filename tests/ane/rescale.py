#!/usr/bin/env python3
"""Fuzz test: powers of two that cancel between neighbouring weights change no result in exact arithmetic, so a model keeps its
answers on every unit, whatever the exponents. Six families, random exponents. SPDX-License-Identifier: MIT"""
import os, random, shutil, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli"))
from clitest import *

try:
    import numpy as np
    from safetensors.numpy import save_file
except ImportError:
    print("SKIP rescale: NumPy and safetensors are not here")
    sys.exit(77)

seed = int(os.environ.get("SEED", 31))
rounds = int(os.environ.get("ROUNDS", 1))
rng = random.Random(seed)
ids = ",".join(str(7 * i % 61) for i in range(96))

# Pairs of a norm and the matrices that read it, and of matrices whose results are multiplied. `small`: K and V keep the scale of
# the model outside a unit, and q k^T is one number, so these exponents stay within fp16. The norms of qwen3_5 and gemma3 have the weight 1 + w, which no exponent leaves exact.
norms = {"gpt2": (("ln_1", ("c_attn.weight",)), ("ln_2", ("c_fc.weight",))),
         "gemma3": (),
         "qwen3_5": ()}
usual = (("input_layernorm", ("q_proj", "k_proj", "v_proj")), ("post_attention_layernorm", ("gate_proj", "up_proj")))
products = {"gpt2": ()}
families = ("gpt2", "llama", "qwen2", "qwen3", "qwen3_5", "gemma3")


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


def rescaled(family, name):
    """A copy of the tiny model; each layer has its own exponents."""
    folder = os.path.join(top.name, name)
    shutil.copytree(os.path.join(source, "tests", "golden", "tiny", family), folder)
    path = os.path.join(folder, "model.safetensors")
    weights, used = load_wide(path), []
    layers = sorted({k[:k.index(".", k.index("layers.") + 7 if "layers." in k else k.index("h.") + 2) + 1]
                     for k in weights if "layers." in k or ".h." in k or k.startswith("h.")})
    def scale(prefix, part, by, bias=False):
        for key in weights:
            if not key.startswith(prefix) or part not in key or (key.endswith(".bias") and not bias): continue
            weights[key] = np.ldexp(weights[key], by)
    for prefix in layers:
        pairs = [(norm, readers, 24, True) for norm, readers in norms.get(family, usual)]
        pairs += [(a, (b,), big, True) for a, b, big in products.get(family, (("up_proj", "down_proj", 24), ("v_proj", "o_proj", 3)))]
        for first, seconds, big, bias in pairs:
            if first == "input_layernorm" and family == "qwen2" : big = 12
            by = rng.randint(-big, big)
            used.append((prefix, first, by))
            scale(prefix, first, by, bias)
            for second in seconds: scale(prefix, second, -by)
    save_file(weights, path)
    return folder, used


def evaluate(model, unit, *flags):
    code, out, err = run("eval", "-m", model, "--ids", ids, "-c", 48, "--unit", unit, *flags, "-q", "--json")
    return code, json.loads(out or "{}"), err


def same(what, result, exact):
    """The file of --kl-out rounds log-probabilities to 16 bits, which alone gives a KL of up to 7e-6. Where all numbers are fp32 or have
    a scale of their own, powers of two change no bit, and no token. In fp16 the unit's own divisors (range=weights) depend on the
    weights, and numbers below 2^-14 have fewer bits: 9e-6 more was seen, and another token only where two were equal within that."""
    code, r, err = result
    expect(what, code == 0 and r["kl_mean"] <= 1e-5 and r["kl_max"] <= (1e-5 if exact else 1e-4) and
           (r["same_top"] == 1 or not exact and r["kl_max"] < 1e-5), (code, r, err))


exact = ["ref", "cpu"]
units = exact + ["ane", "ane:soft,profile=m1", "ane:soft,profile=m5"]
units += [u["unit"] for u in json.loads(run("units", "--json")[1]) if u["available"] and u["unit"] in ("cuda:0", "mlx:cpu")]
if "cuda:0" not in units: print("rescale: cuda:0 is skipped: no GPU")

for family in families:
    plain = os.path.join(source, "tests", "golden", "tiny", family)
    for k, unit in enumerate(units):
        code, out, err = evaluate(plain, unit, "--kl-out", os.path.join(top.name, str(k)))
        expect(f"{family} on {unit}", code == 0, err)
    for i in range(rounds):
        model, used = rescaled(family, f"{family}{i}")
        for k, unit in enumerate(units):
            same(f"{family} on {unit}, SEED={seed} {used}: the same answers", evaluate(model, unit, "--kl-base", os.path.join(top.name, str(k))),
                 unit in exact)

# K and V have no scale of their own in f16: beyond its range the run is refused with the remedy, which gives the same answers.
# llama is refused by its weights, qwen2, whose K and V have a bias, by its results.
base = os.path.join(top.name, "wide")
for family, unit in (("llama", "ref"), ("llama", "cpu"), ("qwen2", "cpu"), ("qwen2", "cpu:isa=generic")):
    plain = os.path.join(source, "tests", "golden", "tiny", family)
    evaluate(plain, unit, "--kv", "f32", "--kl-out", base)
    for first, second, by in (("v_proj", "o_proj", 20), ("v_proj", "o_proj", -26), ("k_proj", "q_proj", 20), ("k_proj", "q_proj", -26)):
        folder = os.path.join(top.name, f"{family}-{first}{by}")
        if not os.path.exists(folder):
            shutil.copytree(plain, folder)
            weights = load_wide(os.path.join(folder, "model.safetensors"))
            for key in weights: weights[key] = np.ldexp(weights[key], by if first in key else -by if second in key else 0)
            save_file(weights, os.path.join(folder, "model.safetensors"))
        code, r, err = evaluate(folder, unit, "--kv", "f16")
        expect(f"{first} times 2^{by} on {unit}: refused", code == 3 and f"{first[0].upper()} of layer 0" in err and "--kv bf16" in err, (code, r, err))
        same(f"{first} times 2^{by} on {unit} with f32", evaluate(folder, unit, "--kv", "f32", "--kl-base", base), True)
done()
