#!/usr/bin/env python3
"""Logits of mlx-lm's own model code for tiny checkpoints against those of mlx:cpu: in fp32, and in bf16 with every bit equal.

    mlx_lm_golden.py MLX_GOLDEN FOLDER

Exit 77 without the Python package mlx-lm. SPDX-License-Identifier: MIT
"""
import pathlib
import subprocess
import sys
import tempfile

try:
    import mlx.core as mx
    import mlx.nn as nn
    import numpy as np
    from mlx_lm.models import gated_delta, qwen3_5
    from mlx_lm.models.cache import make_prompt_cache
    from mlx_lm_folder import load
    from safetensors.numpy import save_file
except ImportError as why:
    print(f"SKIP mlx_lm: {why}; `pip install mlx-lm` in the build's venv")
    sys.exit(77)

MODELS = ["llama", "llama_mlx4", "llama_mha", "llama3", "qwen2", "qwen3", "qwen3_5_mlx4", "qwen3_5_asym_mlx", "gemma3"]
# Sums in another order. For Gemma, mlx-lm rounds the factor of the embedding, sqrt(32), to bf16: by 1.1e-4.
BOUNDS = {"gemma3": "5e-4"}
MODELS_BF16 = ["llama", "llama_mha", "qwen2", "qwen3", "qwen3_5", "gemma3"]
PROMPT, STEPS = [7, 3, 11, 23, 42, 5, 5, 19, 31, 2, 57, 13], 8


def precise_update(q, k, v, a, b, a_log, dt_bias, state=None, mask=None, **_):
    """mlx-lm's update, but with fp32 gates, as transformers and the unit have the decay; mlx-lm rounds them to bf16."""
    a, b, a_log, dt_bias = (x.astype(mx.float32) for x in (a, b, a_log, dt_bias))
    decay = mx.exp(-mx.exp(a_log) * nn.softplus(a + dt_bias))
    return gated_delta.gated_delta_ops(q, k, v, decay, mx.sigmoid(b), state, mask)


def golden(folder, temporary, fp32, out):
    model = load(folder, temporary, fp32)
    cache = make_prompt_cache(model)
    rows = model(mx.array([PROMPT]), cache=cache)
    assert rows.dtype == (mx.float32 if fp32 else mx.bfloat16)
    logits = np.array(rows[0].astype(mx.float32))
    greedy, steps = [int(logits[-1].argmax())], []
    for _ in range(STEPS):
        steps.append(np.array(model(mx.array([[greedy[-1]]]), cache=cache)[0, -1].astype(mx.float32)))
        greedy.append(int(steps[-1].argmax()))
    save_file({"prompt": np.array(PROMPT, np.int32), "greedy": np.array(greedy[:STEPS], np.int32), "logits": logits,
               "step_logits": np.stack(steps)}, out)


def compare(models, fp32, options):
    with tempfile.TemporaryDirectory() as temporary:
        arguments = []
        for name in models:
            folder, out = pathlib.Path(sys.argv[2]) / name, f"{temporary}/{name}.safetensors"
            golden(folder, pathlib.Path(temporary), fp32, out)
            arguments += [str(folder), out, BOUNDS.get(name, "1e-5") if fp32 else "0"]
        return subprocess.run([sys.argv[1], *options, *arguments]).returncode


mx.set_default_device(mx.cpu)
failed = compare(MODELS, True, ["mlx:cpu", "f32"])
mx.disable_compile()  # fused kernels of the CPU round elsewhere; the unit has none there
qwen3_5.gated_delta_update = precise_update
sys.exit(compare(MODELS_BF16, False, ["mlx:cpu,type=bf16", "bf16"]) or failed)
