#!/usr/bin/env python3
"""What MLX computes for a decode step: the unit mlx against mlx-lm, counted in the graphs before they are computed.

    mlx_dispatches.py MLX_DISPATCHES FOLDER [UNIT [MODEL...]]

Twice: as the CPU computes it, where nothing is fused, and as a GPU does, where what mx.compile fuses counts once. UNIT mlx:gpu: the
second on a GPU. Fails where the unit has more than mlx-lm. Exit 77 without the Python package mlx-lm. SPDX-License-Identifier: MIT
"""
import collections
import io
import json
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
try:
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache
    from mlx_lm_folder import load
except ImportError as why:
    print(f"SKIP mlx_dispatches: {why}; `pip install mlx-lm` in the build's venv")
    sys.exit(77)

MODELS = ["llama", "llama_mlx4", "llama_mha", "qwen2", "qwen3", "qwen3_5_mlx4", "gemma3"]
PROMPT = [7, 3, 11, 23, 42, 5, 5, 19, 31, 2, 57, 13]
# Another view of the same memory.
VIEWS = {"Reshape", "Transpose", "Slice", "ExpandDims", "Squeeze", "Broadcast", "Flatten", "Unflatten", "Split", "AsStrided"}


def theirs(folder, temporary, fp32):
    model = load(folder, temporary, fp32)
    cache = make_prompt_cache(model)
    mx.eval(model(mx.array([PROMPT]), cache=cache))
    logits = model(mx.array([[PROMPT[0]]]), cache=cache)[:, -1, :]
    token = mx.argmax(logits, axis=-1)
    states = [c.state if isinstance(c.state, (list, tuple)) else [c.state] for c in cache]
    arrays = [token] + [a for state in states for a in state if isinstance(a, mx.array)]
    text = io.StringIO()
    mx.export_to_dot(text, *arrays)
    return collections.Counter(re.findall(r'label ="([^"]*)", shape=rectangle', text.getvalue()))


def ours(program, folder, unit, fused):
    out = subprocess.run([program, str(folder), unit] + ["fused"] * fused, check=True, capture_output=True, text=True).stdout
    return collections.Counter({line.rsplit(" ", 1)[0]: int(line.rsplit(" ", 1)[1]) for line in out.splitlines()})


def computed(counter):
    return sum(n for name, n in counter.items() if name not in VIEWS)


program, folder, unit = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "mlx:cpu"
cpu = unit.startswith("mlx:cpu")
if cpu:
    mx.set_default_device(mx.cpu)
worse = 0
for fused in (False, True) if cpu else (True,):
    mx.enable_compile() if fused else mx.disable_compile()
    print("fused as on a GPU:" if fused else "nothing fused:")
    for name in sys.argv[4:] or MODELS:
        with tempfile.TemporaryDirectory() as temporary:
            a, b = ours(program, folder / name, unit, fused), theirs(folder / name, pathlib.Path(temporary), cpu)
        more = {k: a[k] - b[k] for k in sorted(a.keys() | b.keys()) if k not in VIEWS and a[k] != b[k]}
        print(f"    {name}: {computed(a)} computed, mlx-lm {computed(b)}" + ("" if fused else f"; difference {json.dumps(more)}"))
        worse += computed(a) > computed(b)
sys.exit(1 if worse else 0)
