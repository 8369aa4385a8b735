#!/usr/bin/env python3
"""Files of `segue quantize` beside those of llama-quantize (release b11434), from the same F16 or F32 file:
bytes of Q8_0, Q4_0 and Q4_1 equal those of the Python package gguf; the root-mean-square error of every Q4_K and Q6_K tensor
is at most 1.05 times llama-quantize's; llama-bench loads and runs each file.

    LLAMA=BIN versus_llama.py SEGUE FILE.gguf...        exit 77: no LLAMA, or no packages
Not under CTest: it needs a build of llama.cpp. SPDX-License-Identifier: MIT"""
import os, subprocess, sys, tempfile

try:
    import gguf, numpy as np
except ImportError as e:
    print(f"SKIP versus_llama: {e}")
    sys.exit(77)
llama = os.environ.get("LLAMA")
if not llama:
    print("SKIP versus_llama: LLAMA names no folder with llama-quantize and llama-bench")
    sys.exit(77)
segue, *files = sys.argv[1:]
TYPES = gguf.GGMLQuantizationType
ROWS = 256  # of a tensor: enough for its error; the package is slow


def run(*cmd):
    r = subprocess.run(cmd, capture_output=True, text=True)
    if r.returncode: sys.exit(f"versus_llama: {' '.join(cmd)}: exit {r.returncode}: {(r.stdout + r.stderr)[-800:]}")
    return r.stdout


def tensors(path): return {t.name: t for t in gguf.GGUFReader(path).tensors}


def numbers(t): return np.asarray(gguf.quants.dequantize(t.data[:ROWS], t.tensor_type), np.float32)


def error(t, plain):
    return float(np.sqrt(np.mean((numbers(t) - plain).astype(np.float64) ** 2) / np.mean(plain.astype(np.float64) ** 2)))


def compare(kind, mine, theirs, source):
    """A line of what was seen, and whether it passes."""
    a, want = tensors(mine), TYPES[kind.upper()]
    same = [n for n, t in a.items() if t.tensor_type == want and len(source[n].data.shape) > 1 and source[n].tensor_type != want]
    if kind in ("q8_0", "q4_0", "q4_1"):
        equal = 0
        for n in same:
            right = gguf.quants.quantize(numbers(source[n]), want)
            equal += np.array_equal(np.ascontiguousarray(a[n].data[:ROWS]).view(np.uint8).ravel(), np.ascontiguousarray(right).view(np.uint8).ravel())
        return f"{equal} of {len(same)} tensors byte-equal to gguf", equal == len(same) > 0
    if kind not in ("q4_k", "q6_k"): return f"{len(same)} tensors changed", True
    b = tensors(theirs)
    both = [(n, numbers(source[n])) for n in same if n in b and b[n].tensor_type == want]
    e = [(error(a[n], x), error(b[n], x)) for n, x in both]
    worst, mean = max(x / y for x, y in e), sum(x for x, _ in e) / sum(y for _, y in e)
    return f"rms {mean:.3f} of llama-quantize's over {len(e)} tensors, worst {worst:.3f}", worst <= 1.05


def main():
    failed = 0
    for path in files:
        source = tensors(path)
        print(os.path.basename(path))
        with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as tmp:
            mine, theirs = os.path.join(tmp, "mine.gguf"), os.path.join(tmp, "theirs.gguf")
            for kind in ("f16", "bf16", "q8_0", "q4_0", "q4_1", "q4_k", "q6_k"):
                run(segue, "quantize", "-m", path, "-o", mine, "--type", kind)
                if kind in ("q4_k", "q6_k"): run(os.path.join(llama, "llama-quantize"), "--allow-requantize", "--pure", path, theirs, kind.upper())
                seen, ok = compare(kind, mine, theirs, source)
                run(os.path.join(llama, "llama-bench"), "-m", mine, "-p", "8", "-n", "2", "-r", "1", "-t", "2")
                failed += not ok
                print(f"  {kind}: {seen}; llama-bench runs it: {'ok' if ok else 'FAILED'}", flush=True)
    sys.exit(1 if failed else 0)


main()
