#!/usr/bin/env python3
"""Decode speed of several sequences of unequal length: mlx:cpu against mlx-lm's batch generator, on the same random weights (the
shape of SmolLM2-135M with 6 layers, 4 bits, groups of 32, fp32 values). Not a test: it prints processor time per token, alternating:
that of a process with 16 steps less that of one with 8, which load, read the prompts and issue one step too many alike.

    mlx_batch.py SEGUE [PAIRS [SEQUENCES...]]          SPDX-License-Identifier: MIT
"""
import json
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_map
from mlx_lm.generate import BatchGenerator
from mlx_lm.models import llama
from mlx_lm.utils import load_model

STEPS = 8
CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 576, "num_hidden_layers": 6,
          "intermediate_size": 1536, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "rms_norm_eps": 1e-5,
          "vocab_size": 49152, "max_position_embeddings": 8192, "rope_theta": 100000.0, "tie_word_embeddings": True,
          "hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "quantization": {"group_size": 32, "bits": 4}}


def write(folder):
    mx.random.seed(1)
    model = llama.Model(llama.ModelArgs.from_dict(CONFIG))
    model.update(tree_map(lambda p: p.astype(mx.float32), model.parameters()))
    nn.quantize(model, 32, 4)
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())), metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(CONFIG))


def prompts(n):
    return [[(i * 7 + k * 13 + 1) % 49152 for k in range(8 + 3 * i)] for i in range(n)]


def theirs(folder, n, steps):
    model, _ = load_model(folder)
    generator = BatchGenerator(model, max_tokens=steps + 1, prefill_batch_size=n, completion_batch_size=n)
    generator.insert(prompts(n))
    tokens = {}
    while sum(map(len, tokens.values())) < n * (steps + 1):
        for r in generator.next_generated():
            tokens.setdefault(r.uid, []).append(r.token)
    print(json.dumps([tokens[k] for k in sorted(tokens)]))


def children():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_segue(folder, n, steps):
    lines = [json.dumps({"id": i, "ids": ",".join(map(str, p)), "n": steps + 1, "greedy": True, "ignore_eos": True})
             for i, p in enumerate(prompts(n))]
    (folder / "requests.jsonl").write_text("\n".join(lines))
    out = subprocess.run([segue, "run", "-m", str(folder), "--unit", "mlx:cpu", "--requests", str(folder / "requests.jsonl"),
                          "--parallel", str(n)], check=True, capture_output=True, text=True).stdout
    return [r["ids"] for r in sorted((json.loads(line) for line in out.splitlines()), key=lambda r: r["id"])]


def run_mlx_lm(folder, n, steps):
    return json.loads(subprocess.run([sys.executable, __file__, "--theirs", str(folder), str(n), str(steps)], check=True,
                                     capture_output=True, text=True).stdout)


def measure(run, folder, n):
    """Processor time of a token, and all tokens."""
    begun = children()
    run(folder, n, STEPS)
    between = children()
    tokens = run(folder, n, 2 * STEPS)
    return ((children() - between) - (between - begun)) / (n * STEPS), tokens


mx.set_default_device(mx.cpu)
if sys.argv[1] == "--theirs":
    theirs(pathlib.Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    sys.exit(0)
segue = sys.argv[1]
with tempfile.TemporaryDirectory() as temporary:
    folder = pathlib.Path(temporary)
    write(folder)
    for n in map(int, sys.argv[3:] or (1, 4, 16)):
        a, b, equal = [], [], True
        for _ in range(int(sys.argv[2]) if len(sys.argv) > 2 else 3):
            mine, tokens = measure(run_segue, folder, n)
            other, want = measure(run_mlx_lm, folder, n)
            a, b, equal = a + [mine], b + [other], equal and tokens == want
        ratio = statistics.median(y / x for x, y in zip(a, b))
        print(f"{n:>2} sequences: {statistics.median(a) * 1e3:.1f} ms a token, mlx-lm {statistics.median(b) * 1e3:.1f}, "
              f"ratio of speeds {ratio:.2f}, tokens equal: {equal}", flush=True)
