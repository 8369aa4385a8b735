"""mlx-lm's model code for a tiny checkpoint of the tests. SPDX-License-Identifier: MIT"""
import json
import shutil

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.utils import load_model


def old_names(config):
    """The rotary parameters of transformers 5 as mlx-lm reads them, by the names of transformers 4."""
    rope = config.get("rope_parameters", {})
    full = rope.get("full_attention", rope)
    new = {"rope_theta": full["rope_theta"]} if "rope_theta" in full else {}
    if full.get("rope_type", "default") != "default":
        new["rope_scaling"] = full
    if "sliding_attention" in rope:
        new["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
    return new


def load(folder, temporary, fp32):
    """The checkpoint alone is copied, because mlx-lm would also read the goldens beside it."""
    alone = temporary / folder.name
    alone.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(folder / name, alone)
    model, _ = load_model(alone, model_config=old_names(json.loads((alone / "config.json").read_text())))
    if fp32:
        model.update(tree_map(lambda p: p.astype(mx.float32) if mx.issubdtype(p.dtype, mx.floating) else p, model.parameters()))
    return model
