#!/usr/bin/env python3
"""How far the cpu unit's arithmetic is from `ref` on the default model, stored in Q4_1 (the file itself), Q8_0, Q4_K and F16
(made from it by `segue quantize`), over at least 2,048 positions of this project's own documents, for each instruction set
that is here; plain C on request (SEGUE_SLOW=1), it takes minutes. Bound: mean KL divergence 2e-3, the same best token 98 %.

    accuracy.py SEGUE SOURCE STORAGE...         q4_1 q8_0 q4_k f16; exit 77: the default model is not here
With LLAMA=BIN (a folder with llama-perplexity, release b11434) each storage is compared from the same base logits as well:
the unit's mean must be at most 1.1 times llama.cpp's. One command for all: LLAMA=BIN accuracy.py SEGUE SOURCE q4_1 q8_0 q4_k f16
SPDX-License-Identifier: MIT"""
import json, os, re, subprocess, sys, tempfile

import base_logits

SETS = ("", "generic", "avx2", "avx512", "amx", "neon")  # "": what the unit takes by itself
KL, TOP, TIMES = 2e-3, 0.98, 1.1
segue, source, *storages = sys.argv[1:]
llama = os.environ.get("LLAMA")


def run(*args, codes=(0,)):
    r = subprocess.run([segue, *args], capture_output=True, text=True)
    if r.returncode not in codes: sys.exit(f"accuracy: {' '.join(args)}: exit {r.returncode}: {r.stderr}")
    return r.returncode, json.loads(r.stdout) if r.returncode == 0 and "--json" in args else None


def model_of(storage, tmp):
    """The default model in this storage. Q8_0 and Q4_K go through F16, as they do elsewhere."""
    if storage == "q4_1": return []
    half, path = os.path.join(tmp, "f16.gguf"), os.path.join(tmp, storage + ".gguf")
    if not os.path.exists(half): run("quantize", "-o", half, "--type", "f16")
    if storage != "f16": run("quantize", "-m", half, "-o", path, "--type", storage)
    return ["-m", path]


def peer(path, text, base):
    """Mean divergence and share of equal first choices of llama-perplexity from the same base logits."""
    cmd = [os.path.join(llama, "llama-perplexity"), "-m", path, "-f", text, "-c", "512", "--kl-divergence", "--kl-divergence-base", base]
    r = subprocess.run(cmd, capture_output=True, text=True)
    out = r.stdout + r.stderr
    mean, top = re.search(r"Mean\s+KLD:\s*([-+0-9.e]+)", out), re.search(r"Same top p:\s*([0-9.]+)", out)
    if r.returncode or not mean or not top: sys.exit(f"accuracy: {' '.join(cmd)}: {out[-1000:]}")
    return float(mean[1]), float(top[1]) / 100


def one(storage, tmp):
    failed, model, own = 0, model_of(storage, tmp), os.path.join(tmp, "base")
    base = base_logits.make(segue, source, own, model) if model else base_logits.shared(segue, source, own)
    text = base + ".txt"
    common = ["eval", *model, "-f", text, "-c", base_logits.CHUNK, "--json"]
    theirs = peer(model[1] if model else run("inspect", "--json")[1]["path"], text, base) if llama else None
    if theirs: print(f"{storage}: llama.cpp: kl_mean {theirs[0]:.3g}, same_top {100 * theirs[1]:.2f} %", flush=True)
    for isa in SETS:
        if isa == "generic" and not os.environ.get("SEGUE_SLOW"): continue
        code, r = run(*common, "--unit", "cpu:isa=" + isa if isa else "cpu", "--kl-base", base, codes=(0, 2, 3))
        if code: continue  # not on this machine, or not in this build
        kl, top, tokens = r["kl_mean"], r["same_top"], r["tokens"]
        if tokens < 2048: sys.exit(f"accuracy: only {tokens} positions of text")
        bound = min(KL, TIMES * theirs[0]) if theirs else KL
        ok = kl <= bound and top >= TOP
        failed += not ok
        more = f", {kl / theirs[0]:.2f} of llama.cpp's" if theirs else ""
        print(f"{storage}: cpu{':isa=' + isa if isa else ''}: kl_mean {kl:.3g} (bound {bound:.3g}), same_top {100 * top:.2f} %, "
              f"{tokens} positions{more}: {'ok' if ok else 'FAILED'}", flush=True)
    if base == own: os.remove(own)
    return failed


def main():
    if subprocess.run([segue, "inspect", "--json"], capture_output=True).returncode:
        print(f"SKIP accuracy: the default model is not in the data folder")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as tmp:
        sys.exit(1 if sum([one(s, tmp) for s in storages]) else 0)


main()
