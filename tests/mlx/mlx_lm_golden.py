#!/usr/bin/env python3
"""Logits of mlx-lm's own model code for tiny checkpoints, in fp32, against those of mlx:cpu.

    mlx_lm_golden.py MLX_GOLDEN FOLDER

Exit 77 without the Python package mlx-lm. SPDX-License-Identifier: MIT
"""
import pathlib
import subprocess
import sys
import tempfile

try:
    import mlx.core as mx
    import numpy as np
    from mlx_lm.models.cache import make_prompt_cache
    from mlx_lm_folder import load
    from safetensors.numpy import save_file
except ImportError as why:
    print(f"SKIP mlx_lm: {why}; `pip install mlx-lm` in the build's venv")
    sys.exit(77)

MODELS = ["llama", "llama_mlx4", "llama_mha", "llama3", "qwen2", "qwen3", "qwen3_5_mlx4", "qwen3_5_asym_mlx", "gemma3"]
# Sums in another order. For Gemma, mlx-lm rounds the factor of the embedding, sqrt(32), to bf16: by 1.1e-4.
BOUNDS = {"gemma3": "5e-4"}
PROMPT, STEPS = [7, 3, 11, 23, 42, 5, 5, 19, 31, 2, 57, 13], 8


def golden(folder, temporary, out):
    model = load(folder, temporary, True)
    cache = make_prompt_cache(model)
    logits = np.array(model(mx.array([PROMPT]), cache=cache)[0])
    greedy, steps = [int(logits[-1].argmax())], []
    for _ in range(STEPS):
        steps.append(np.array(model(mx.array([[greedy[-1]]]), cache=cache)[0, -1]))
        greedy.append(int(steps[-1].argmax()))
    assert logits.dtype == np.float32
    save_file({"prompt": np.array(PROMPT, np.int32), "greedy": np.array(greedy[:STEPS], np.int32), "logits": logits,
               "step_logits": np.stack(steps)}, out)


mx.set_default_device(mx.cpu)
with tempfile.TemporaryDirectory() as temporary:
    arguments = []
    for name in MODELS:
        folder, out = pathlib.Path(sys.argv[2]) / name, f"{temporary}/{name}.safetensors"
        golden(folder, pathlib.Path(temporary), out)
        arguments += [str(folder), out, BOUNDS.get(name, "1e-5")]
    sys.exit(subprocess.run([sys.argv[1], *arguments]).returncode)
