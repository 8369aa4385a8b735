#!/usr/bin/env python3
"""train_delta_memory.py SEGUE TINY: one layer of the delta rule in the shape of Qwen3.5-0.8B, one update of 4,096 tokens on cpu:
the process stays below 2 GB (2e9 bytes). TINY: a checkpoint of the family, whose configuration is enlarged; the weights are random.
"""
import json
import math
import os
import resource
import shutil
import struct
import subprocess
import sys
import tempfile

SEGUE, TINY = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
WIDTH, FF, HEADS, HEAD, VOCAB, TOKENS = 1024, 3584, 16, 128, 64, 4096
INNER = HEADS * HEAD
LAYER = {"input_layernorm": [WIDTH], "post_attention_layernorm": [WIDTH], "linear_attn.norm": [HEAD],
         "linear_attn.conv1d": [3 * INNER, 1, 4], "linear_attn.in_proj_a": [HEADS, WIDTH], "linear_attn.in_proj_b": [HEADS, WIDTH],
         "linear_attn.in_proj_qkv": [3 * INNER, WIDTH], "linear_attn.in_proj_z": [INNER, WIDTH],
         "linear_attn.out_proj": [WIDTH, INNER], "mlp.gate_proj": [FF, WIDTH], "mlp.up_proj": [FF, WIDTH], "mlp.down_proj": [WIDTH, FF]}

work = tempfile.mkdtemp()
os.chdir(work)
os.mkdir("shape")
config = json.load(open(os.path.join(TINY, "config.json")))
config["text_config"].update(
    hidden_size=WIDTH, intermediate_size=FF, num_hidden_layers=1, layer_types=["linear_attention"], linear_num_key_heads=HEADS,
    linear_num_value_heads=HEADS, linear_key_head_dim=HEAD, linear_value_head_dim=HEAD, max_position_embeddings=TOKENS)
json.dump(config, open("shape/config.json", "w"))
shapes = {f"layers.0.{k}.weight": v for k, v in LAYER.items()}
shapes.update({"embed_tokens.weight": [VOCAB, WIDTH], "norm.weight": [WIDTH], "layers.0.linear_attn.A_log": [HEADS],
               "layers.0.linear_attn.dt_bias": [HEADS]})
header, at = {}, 0
for name, shape in shapes.items():
    header["model.language_model." + name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + 2 * math.prod(shape)]}
    at += 2 * math.prod(shape)
text = json.dumps(header).encode()
with open("shape/model.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text + bytes(at))
with open("lines.jsonl", "w") as f:
    f.write(json.dumps({"tokens": [(k * k + k // 7) % 60 for k in range(TOKENS)]}) + "\n")
r = subprocess.run([SEGUE, "train", "-m", "shape", "--full", "--random", "--data", "lines.jsonl", "-c", str(TOKENS), "--steps", "1",
                    "--batch", "1", "--held-out", "0", "--unit", "cpu:threads=2", "-o", "out", "--json"], capture_output=True,
                   text=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
step = json.loads((r.stdout.splitlines() or ["{}"])[0])
good = r.returncode == 0 and step.get("tokens") == TOKENS and used.ru_maxrss * 1024 < 2e9
print("PASS" if good else "FAIL", f"{used.ru_maxrss / 1024:.0f} MiB, {used.ru_utime:.0f} CPU s, loss {step.get('loss')}", r.stderr)
os.chdir("/")
shutil.rmtree(work)
sys.exit(not good)
