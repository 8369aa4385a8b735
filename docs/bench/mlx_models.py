#!/usr/bin/env python3
"""Random weights at the exact shapes of Qwen3.5 as a folder of MLX safetensors, which mlx-lm and segue open. The text of such a
model has no meaning; speeds and memory are those of the real one.

    mlx_models.py SHAPE FOLDER [--bits 8] [--group 64] [--layers N] [--vocab N] [--cpu]

Without --bits the weights are bf16; with it, MLX's affine form, as `mlx_lm.convert -q` makes it. SPDX-License-Identifier: MIT
"""
import argparse
import json
import pathlib

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_map
from mlx_lm.models import qwen3_5

SHAPES = {"0.8b": {"hidden_size": 1024, "intermediate_size": 3584, "layers": 24, "heads": 8, "kv": 2, "v_heads": 16, "tied": True},
          "2b": {"hidden_size": 2048, "intermediate_size": 6144, "layers": 24, "heads": 8, "kv": 2, "v_heads": 16, "tied": True},
          "9b": {"hidden_size": 4096, "intermediate_size": 12288, "layers": 32, "heads": 16, "kv": 4, "v_heads": 32, "tied": False}}
SHARD_BYTES = 4 << 30


def config_of(shape, layers, vocab):
    layers = layers or shape["layers"]
    kinds = ["linear_attention" if (i + 1) % 4 else "full_attention" for i in range(layers)]
    text = {"model_type": "qwen3_5_text", "hidden_size": shape["hidden_size"], "intermediate_size": shape["intermediate_size"],
            "num_hidden_layers": layers, "num_attention_heads": shape["heads"], "num_key_value_heads": shape["kv"], "head_dim": 256,
            "linear_num_key_heads": 16, "linear_num_value_heads": shape["v_heads"], "linear_key_head_dim": 128,
            "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "full_attention_interval": 4, "layer_types": kinds,
            "rms_norm_eps": 1e-6, "vocab_size": vocab, "max_position_embeddings": 262144, "hidden_act": "silu",
            "attention_bias": False, "tie_word_embeddings": shape["tied"], "eos_token_id": 1, "bos_token_id": None,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25,
                                "mrope_interleaved": True, "mrope_section": [11, 11, 10]}}
    return {"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "text_config": text,
            "tie_word_embeddings": shape["tied"]}


def save(weights, folder):
    """Shards of SHARD_BYTES with an index, as mlx-lm writes them."""
    shards, used = [{}], 0
    for name, w in weights:
        if used + w.nbytes > SHARD_BYTES:
            shards.append({})
            used = 0
        shards[-1][name] = w
        used += w.nbytes
    index = {"metadata": {"total_size": sum(w.nbytes for s in shards for w in s.values())}, "weight_map": {}}
    for i, shard in enumerate(shards):
        file = f"model-{i + 1:05}-of-{len(shards):05}.safetensors" if len(shards) > 1 else "model.safetensors"
        mx.save_safetensors(str(folder / file), shard, metadata={"format": "mlx"})
        index["weight_map"].update({name: file for name in shard})
        shard.clear()
    if len(shards) > 1:
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("shape", choices=sorted(SHAPES))
    a.add_argument("folder", type=pathlib.Path)
    a.add_argument("--bits", type=int)
    a.add_argument("--group", type=int, default=64)
    a.add_argument("--layers", type=int)
    a.add_argument("--vocab", type=int, default=248320)
    a.add_argument("--cpu", action="store_true")
    o = a.parse_args()
    if o.cpu:
        mx.set_default_device(mx.cpu)
    mx.random.seed(1)
    config = config_of(SHAPES[o.shape], o.layers, o.vocab)
    model = qwen3_5.Model(qwen3_5.ModelArgs.from_dict(config))
    model.update(tree_map(lambda p: p.astype(mx.bfloat16), model.parameters()))     # nothing is computed before it is written
    if o.bits:
        nn.quantize(model, o.group, o.bits)
        config["quantization"] = config["quantization_config"] = {"group_size": o.group, "bits": o.bits, "mode": "affine"}
    o.folder.mkdir(parents=True, exist_ok=True)
    weights = tree_flatten(model.parameters())
    del model
    (o.folder / "config.json").write_text(json.dumps(config, indent=1))
    save(weights, o.folder)


main()
