#!/usr/bin/env python3
"""Values beyond fp16: refused by name under strict; with range=weights scaled by powers of two, so that the results are those of
the unit ref. SPDX-License-Identifier: MIT"""
import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli"))
from clitest import *

try:
    import numpy as np
    from safetensors.numpy import load_file, save_file
except ImportError:
    print("SKIP mil_range: NumPy and safetensors are not here")
    sys.exit(77)

ids = ",".join(str(7 * i % 250) for i in range(160))


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


def divergence(model, *flags):
    """Compares a unit with ref over 80 positions; returns (exit code, JSON, stderr)."""
    base = os.path.join(top.name, "base")
    expect("ref", run("eval", "-m", model, "--ids", ids, "-c", 80, "--unit", "ref", "--kl-out", base, "-q")[0] == 0)
    code, out, err = run("eval", "-m", model, "--ids", ids, "-c", 80, *flags, "--kl-base", base, "-q", "--json")
    return code, json.loads(out or "{}"), err


for name, factors, word in (("product", {"up_proj": 60, "down_proj": 300}, "constraint 30"), ("gate", {"gate_proj": 100, "up_proj": 900, "down_proj": 0.05}, "65504"),
                            ("stream", {"o_proj": 20000, "down_proj": 3000}, "constraint 30")):
    model = grown(name, **factors)
    code, r, err = divergence(model, "--unit", "ane")
    expect(f"{name}: refused by name", code == 3 and word in err, (code, err))
    code, r, err = divergence(model, "--unit", "ane:soft,range=weights")
    expect(f"{name}: divided, it runs", code == 0, err)
    expect(f"{name}: and answers as ref does", code == 0 and r["kl_mean"] <= 5e-3 and r["same_top"] >= 0.97, r)
# Without large values nothing is scaled: the same program and the same results.
a, b = os.path.join(top.name, "a"), os.path.join(top.name, "b")
model = tiny_model(name="small")
run("mil", "emit", "-m", model, "-o", a)
run("mil", "emit", "-m", model, "-o", b, "--fp16-scaling", "weights")
expect("a model that fits stays as it is", run("mil", "diff", a, b)[0] == 0)
done()
