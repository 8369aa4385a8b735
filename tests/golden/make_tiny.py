#!/usr/bin/env python3
"""Write tiny random models in every naming convention, and what transformers computes with them.

    make_tiny.py OUT [--large]

OUT/CASE/ holds config.json, generation_config.json, model.safetensors and golden.safetensors:
    prompt [T] I32, greedy [G] I32, logits [T,V], step_logits [G,V] (one per greedy step after the prompt),
    hidden.<i> [T,H]: input of layer i, the last one after the final norm,
    k.<i> v.<i> [heads,T,D] attention cache (K after norm and rotation; sliding layers keep the last window-1 rows),
    conv.<i> [C,taps-1] oldest first, rec.<i> [heads,key,value];
    mistake.<name> [T,V]: logits as published implementations get them, see mistakes_of.
Beside them: model.gguf, model-q8_0.gguf, model.bin, ..., and OUT/CASE_mlx/ and the like: the same weights under other
conventions. A quantised variant has a golden of its own, VARIANT.golden.safetensors, made from the dequantised weights.
Goldens of variants hold no hidden states or caches.
OUT/lora/ holds adapters and the goldens of the merged weights.
Deterministic: every parameter comes from a generator seeded by its name, and is a BF16 number; most files store BF16, so
that they are small, and F32 where the format or a convention makes other numbers of them. --large takes shapes near 64
wide and stores F32. Needs torch, transformers >= 5, safetensors, gguf; mlx for its quantised variants (left out without it).
"""
import argparse
import hashlib
import json
import math
import os
import struct

import gguf
import numpy as np
import torch
import transformers
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch

STEPS = 8
SMALL = dict(vocab=64, width=32, heads=4, ff=64)
LARGE = dict(vocab=512, width=64, heads=4, ff=160)


def lcg_ids(n, seed, vocab):
    x, out = seed, []
    for _ in range(n):
        x = (x * 1664525 + 1013904223) & 0xFFFFFFFF
        out.append((x >> 16) % vocab)
    return out


def cases(size):
    """case -> (configuration class, model class, configuration, prompt length)"""
    v, h, n, ff = size["vocab"], size["width"], size["heads"], size["ff"]
    ids = dict(bos_token_id=v - 3, eos_token_id=v - 2, pad_token_id=v - 1)
    base = dict(ids, vocab_size=v, hidden_size=h, intermediate_size=ff, num_hidden_layers=2, num_attention_heads=n,
                num_key_value_heads=n // 2, rms_norm_eps=1e-5, max_position_embeddings=256)
    rope = lambda theta, kind="default", **more: dict(rope_type=kind, rope_theta=theta, **more)
    llama = lambda **kw: ("LlamaConfig", "LlamaForCausalLM", dict(base, **kw))
    delta = dict(vocab_size=v, hidden_size=h, intermediate_size=ff, num_hidden_layers=4, num_attention_heads=n,
                 num_key_value_heads=n // 2, head_dim=h // 2, linear_num_key_heads=2, linear_num_value_heads=4,
                 linear_key_head_dim=16, linear_value_head_dim=16, linear_conv_kernel_dim=4, full_attention_interval=4,
                 rms_norm_eps=1e-6, max_position_embeddings=256, tie_word_embeddings=True, attention_bias=False,
                 rope_parameters=rope(1e7, partial_rotary_factor=0.25, mrope_section=[1, 1, 0], mrope_interleaved=True),
                 bos_token_id=None, eos_token_id=v - 2, pad_token_id=v - 1)
    delta_model = lambda **kw: ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM", dict(delta, **kw))
    return {
        "gpt2": ("GPT2Config", "GPT2LMHeadModel",
                 dict(vocab_size=v, n_embd=h, n_layer=2, n_head=n, n_positions=64, bos_token_id=v - 2,
                      eos_token_id=v - 2), 24),
        "llama": (*llama(tie_word_embeddings=True, rope_parameters=rope(100000.0)), 32),
        "llama_mha": (*llama(tie_word_embeddings=False, num_key_value_heads=n, rope_parameters=rope(10000.0)), 24),
        "llama_bias": (*llama(tie_word_embeddings=True, attention_bias=True, mlp_bias=True,
                              rope_parameters=rope(10000.0)), 24),
        # the original length is such that all three bands of frequencies occur
        "llama3": (*llama(tie_word_embeddings=False, head_dim=h // 2,
                          rope_parameters=rope(500.0, "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                               original_max_position_embeddings=64)), 80),
        "llama_linear": (*llama(tie_word_embeddings=True, rope_parameters=rope(10000.0, "linear", factor=4.0)), 24),
        "llama_yarn": (*llama(tie_word_embeddings=True, head_dim=h // 2,
                              rope_parameters=rope(10000.0, "yarn", factor=4.0, original_max_position_embeddings=32)), 72),
        "llama_yarn_mscale": (*llama(tie_word_embeddings=True, head_dim=h // 2,
                                     rope_parameters=rope(500.0, "yarn", factor=8.0, original_max_position_embeddings=32,
                                                          mscale=0.7, mscale_all_dim=0.4, beta_fast=16.0, beta_slow=2.0,
                                                          truncate=False)), 32),
        "mistral": ("MistralConfig", "MistralForCausalLM",
                    dict(base, tie_word_embeddings=False, sliding_window=8, head_dim=h // n,
                         rope_parameters=rope(10000.0)), 24),
        "qwen2": ("Qwen2Config", "Qwen2ForCausalLM",
                  dict(base, rms_norm_eps=1e-6, tie_word_embeddings=True, use_sliding_window=False,
                       rope_parameters=rope(1000000.0)), 24),
        "qwen3": ("Qwen3Config", "Qwen3ForCausalLM",
                  dict(base, rms_norm_eps=1e-6, head_dim=h // 2, tie_word_embeddings=True, attention_bias=False,
                       rope_parameters=rope(1000000.0)), 24),
        # more than 64 tokens cross a chunk; the published files are image-and-text wrappers
        "qwen3_5": (*delta_model(), 70),
        # key width is not value width: shows transposed states; untied like the large ones
        "qwen3_5_asym": (*delta_model(linear_value_head_dim=24, tie_word_embeddings=False), 70),
        "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM",
                   dict(base, num_hidden_layers=3, num_key_value_heads=1, head_dim=h // 2, query_pre_attn_scalar=h // 2,
                        sliding_window=8, rms_norm_eps=1e-6, tie_word_embeddings=True, sliding_window_pattern=3,
                        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
                        rope_parameters=dict(full_attention=rope(1000000.0, "linear", factor=8.0),
                                             sliding_attention=rope(10000.0))), 28),
    }


def fill(model):
    """Every parameter, norms and biases too: the usual zeros and ones would hide mistakes."""
    seen = set()
    for name, p in sorted(model.named_parameters()):
        if p.data_ptr() in seen:
            continue
        seen.add(p.data_ptr())
        g = torch.Generator().manual_seed(int(hashlib.sha256(name.encode()).hexdigest()[:12], 16))
        r = torch.randn(p.shape, generator=g)
        with torch.no_grad():
            if name.endswith("A_log"):
                p.copy_(torch.log(1e-2 + 4.0 * torch.rand(p.shape, generator=g)))
            elif name.endswith("dt_bias"):
                p.copy_(-1.0 + r)
            elif "norm" in name or ".ln_" in name:
                centred = float(p.detach().abs().max()) == 0.0
                p.copy_((1.0 if name.endswith("weight") and not centred else 0.0) + 0.2 * r)
            elif p.ndim == 1:
                p.copy_(0.2 * r)
            elif "conv1d" in name:
                p.copy_(0.5 * r)
            elif "embed" in name or "wte" in name or "wpe" in name:
                p.copy_(r * (0.06 if "Gemma" in type(model).__name__ else 0.12))
            else:
                conv1d = name.endswith(("c_attn.weight", "c_fc.weight", "c_proj.weight"))
                p.copy_(r * (1.2 / math.sqrt(p.shape[0] if conv1d else p.shape[-1])))
            if "in_proj_qkv" in name or "conv1d" in name:
                # independent q and k make the gated norm divide by almost nothing, and the model chaotic
                keys = model.config.linear_num_key_heads * model.config.linear_key_head_dim
                p[keys:2 * keys].copy_(0.9 * p[:keys] + 0.45 * p[keys:2 * keys])
            p.copy_(p.to(torch.bfloat16).float())


def compute(model, prompt):
    """What the golden file holds."""
    out, steps, greedy = {}, [], []
    with torch.no_grad():
        r = model(torch.tensor([prompt]), use_cache=True, output_hidden_states=True)
        out.update({f"hidden.{i}": h[0].numpy() for i, h in enumerate(r.hidden_states)})
        out["logits"] = r.logits[0].numpy()
        for i, layer in enumerate(r.past_key_values.layers):
            conv = getattr(layer, "conv_states", None)
            if conv and conv[0] is not None:
                out[f"conv.{i}"] = conv[0][0, :, -3:].numpy().copy()
                out[f"rec.{i}"] = layer.recurrent_states[0][0].numpy().copy()
            else:
                out[f"k.{i}"], out[f"v.{i}"] = layer.keys[0].numpy().copy(), layer.values[0].numpy().copy()
        last = r.logits[0, -1]
        for _ in range(STEPS):
            greedy.append(int(last.argmax()))
            r = model(torch.tensor([[greedy[-1]]]), past_key_values=r.past_key_values, use_cache=True)
            last = r.logits[0, -1]
            steps.append(last.numpy())
    out.update(step_logits=np.stack(steps), greedy=np.array(greedy, np.int32), prompt=np.array(prompt, np.int32))
    return {k: np.ascontiguousarray(v) for k, v in out.items()}


def weights_of(model):
    tied = model.config.tie_word_embeddings
    return {k: v.detach().numpy().copy() for k, v in model.state_dict().items() if not (tied and k == "lm_head.weight")}


def golden_of(case, weights, path):
    """Golden file of the same architecture with other weights: what comes out, not how."""
    case.model.load_state_dict({k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in weights.items()}, strict=False)
    golden = compute(case.model, case.prompt)
    save_file({k: golden[k] for k in ("prompt", "greedy", "logits", "step_logits")}, path)
    case.model.load_state_dict({k: torch.from_numpy(v) for k, v in case.weights.items()}, strict=False)


class Case:
    def __init__(self, name, size):
        config, cls, keys, length = cases(size)[name]
        torch.manual_seed(0)
        self.name, self.cls = name, cls
        self.config = getattr(transformers, config)(**keys)
        self.config._attn_implementation = "eager"
        self.model = getattr(transformers, cls)(self.config).float().eval()
        fill(self.model)
        self.prompt = lcg_ids(length, 42 + len(name), size["vocab"])
        self.weights = weights_of(self.model)
        self.small = size is SMALL and name != "gpt2"
        self.json = json.loads(self.config.to_json_string())
        self.json["architectures"] = [cls]
        if name.startswith("qwen3_5"):
            self.json["full_attention_interval"] = 4


def is_bf16(t):
    return t.dtype == np.float32 and not (t.view(np.uint32) & 0xFFFF).any()


def save_weights(weights, path, small):
    """small: BF16 where that is exact."""
    turn = lambda t: torch.from_numpy(np.ascontiguousarray(t)).to(torch.bfloat16 if small and is_bf16(t) else None)
    save_torch({k: turn(v) for k, v in weights.items()}, path, metadata={"format": "pt"})


def write_folder(folder, config, weights, eos, small):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f, indent=1, sort_keys=True)
    with open(os.path.join(folder, "generation_config.json"), "w") as f:
        json.dump(dict(eos_token_id=[eos], do_sample=False), f)
    save_weights(weights, os.path.join(folder, "model.safetensors"), small)


def wrap(config, model_type, cls):
    """The configuration of an image-and-text model around a text model."""
    inner = {k: v for k, v in config.items() if k != "architectures"}
    return dict(architectures=[cls], model_type=model_type, text_config=inner, vision_config=dict(depth=1, hidden_size=8),
                tie_word_embeddings=config["tie_word_embeddings"])


# --- GGUF: what the usual converter does to each family ---

def tile(t, dim, hk, hv, d, back=False):
    """Value heads, kh*R + r (Hugging Face) -> r*Hk + kh (GGUF), or back."""
    shape = list(t.shape)
    groups = [hv // hk, hk] if back else [hk, hv // hk]
    return np.ascontiguousarray(np.swapaxes(t.reshape(shape[:dim] + groups + [d] + shape[dim + 1:]), dim, dim + 1).reshape(shape))


def gguf_tensor(arch, c, name, t):
    """One tensor as a GGUF file of this architecture holds it; name stays Hugging Face's."""
    if arch == "gpt2" and name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
        t = t.T
    if arch == "llama" and ("q_proj." in name or "k_proj." in name):
        n = c.num_attention_heads if "q_proj" in name else c.num_key_value_heads
        t = t.reshape(n, 2, t.shape[0] // n // 2, *t.shape[1:]).swapaxes(1, 2).reshape(t.shape)
    if arch in ("gemma3", "qwen35") and name.endswith("norm.weight") and "linear_attn" not in name:
        t = t + 1.0
    if arch == "qwen35" and "linear_attn" in name:
        hk, hv, dk, dv = c.linear_num_key_heads, c.linear_num_value_heads, c.linear_key_head_dim, c.linear_value_head_dim
        keys = 2 * hk * dk
        if "in_proj_qkv" in name or "conv1d" in name:
            t = t.reshape(t.shape[0], -1)
            t = np.concatenate([t[:keys], tile(t[keys:], 0, hk, hv, dv)])
        elif "in_proj_z" in name:
            t = tile(t, 0, hk, hv, dv)
        elif "in_proj_a" in name or "in_proj_b" in name:
            t = tile(t, 0, hk, hv, 1)
        elif name.endswith(("A_log", "dt_bias")):
            t = tile(t[:, None], 0, hk, hv, 1)[:, 0]
        elif "out_proj" in name:
            t = tile(t, 1, hk, hv, dv)
        if name.endswith("A_log"):
            t = -np.exp(t)
    return np.ascontiguousarray(t, dtype=np.float32)


def arch_of(c):
    return {"gpt2": "gpt2", "gemma3_text": "gemma3", "qwen3_5_text": "qwen35", "mistral": "llama"}.get(c.model_type, c.model_type)


def gguf_name(arch, layers, name):
    enum = {v: k for k, v in gguf.MODEL_ARCH_NAMES.items()}[arch]
    return gguf.get_tensor_name_map(enum, layers).get_name(name.replace(".dt_bias", ".dt_proj.bias"), try_suffixes=(".weight", ".bias"))


def add_rope_keys(w, c, arch, head):
    parts = c.rope_parameters
    p = parts["full_attention"] if "full_attention" in parts else parts
    w.add_rope_freq_base(float(p["rope_theta"]))
    w.add_rope_dimension_count(int(head * p.get("partial_rotary_factor", 1.0)))
    if p["rope_type"] == "linear":
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(p["factor"])
    if p["rope_type"] == "yarn":
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(p["factor"])
        w.add_rope_scaling_orig_ctx_len(p["original_max_position_embeddings"])
    if p["rope_type"] == "llama3":       # becomes one divisor for each pair
        f = p["rope_theta"] ** -(np.arange(0, head, 2, dtype=np.float64) / head)
        wave = 2 * np.pi / f
        low, high, k = p["low_freq_factor"], p["high_freq_factor"], p["factor"]
        whole = p["original_max_position_embeddings"]
        s = (whole / wave - low) / (high - low)
        div = np.where(wave < whole / high, 1.0, np.where(wave > whole / low, k, 1.0 / ((1 - s) / k + s)))
        w.add_tensor("rope_freqs.weight", div.astype(np.float32))


def add_keys(w, c, arch, switches=False):
    w.add_name("tiny")
    w.add_block_count(c.num_hidden_layers)
    w.add_embedding_length(c.hidden_size)
    w.add_head_count(c.num_attention_heads)
    w.add_context_length(c.max_position_embeddings)
    if arch == "gpt2":
        w.add_feed_forward_length(4 * c.hidden_size)
        w.add_layer_norm_eps(c.layer_norm_epsilon)
        return
    head = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    w.add_feed_forward_length(c.intermediate_size)
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    w.add_head_count_kv(c.num_key_value_heads)
    w.add_key_length(head)
    w.add_value_length(head)
    add_rope_keys(w, c, arch, head)
    if arch == "gemma3":
        w.add_sliding_window(c.sliding_window)
        if switches:                     # one for each layer, as newer converters write it
            w.add_array("gemma3.attention.sliding_window_pattern", [t == "sliding_attention" for t in c.layer_types])
        else:
            w.add_uint32("gemma3.attention.sliding_window_pattern", 3)
    if c.model_type == "mistral":
        w.add_sliding_window(c.sliding_window)
    if arch == "qwen35":
        w.add_rope_dimension_sections([1, 1, 0, 0])
        w.add_full_attention_interval(4)
        w.add_ssm_conv_kernel(c.linear_conv_kernel_dim)
        w.add_ssm_state_size(c.linear_key_head_dim)
        w.add_ssm_group_count(c.linear_num_key_heads)
        w.add_ssm_time_step_rank(c.linear_num_value_heads)
        w.add_ssm_inner_size(c.linear_num_value_heads * c.linear_value_head_dim)


def write_gguf(case, path, q8=False, switches=False):
    """Returns the weights as a reader sees them, under Hugging Face's names."""
    c, arch, seen = case.config, arch_of(case.config), dict(case.weights)
    w = gguf.GGUFWriter(path, arch)
    add_keys(w, c, arch, switches)
    for name, t in case.weights.items():
        target = gguf_name(arch, c.num_hidden_layers, name)
        stored = gguf_tensor(arch, c, name, t)
        if q8 and stored.ndim == 2 and stored.shape[-1] % 32 == 0 and "conv1d" not in name:
            kind = gguf.GGMLQuantizationType.Q8_0
            raw = gguf.quants.quantize(stored, kind)
            w.add_tensor(target, raw, raw_dtype=kind)
            if name == "transformer.wte.weight":   # converters store the head although it is tied
                w.add_tensor("output.weight", raw, raw_dtype=kind)
            seen[name] = t + unfix(arch, c, name, gguf.quants.dequantize(raw, kind) - stored)
        else:
            exact = case.small and stored.ndim > 1 and is_bf16(stored)
            kind = gguf.GGMLQuantizationType.BF16 if exact else gguf.GGMLQuantizationType.F32
            w.add_tensor(target, gguf.quants.quantize(stored, kind), raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return seen


def unfix(arch, c, name, difference):
    """A difference in GGUF's order, in Hugging Face's: the order is found by sending numbers through gguf_tensor."""
    shape = difference.T.shape if arch == "gpt2" and "wte" not in name and "wpe" not in name else difference.shape
    order = gguf_tensor(arch, c, name, np.arange(difference.size).reshape(shape)).astype(np.int64)
    out = np.zeros(difference.size, np.float32)
    out[order.ravel()] = difference.ravel()
    return out.reshape(shape)


# --- llama2.c ---

def write_bin(case, path, version):
    """Rows of q and k as Meta orders them: neighbouring pairs."""
    c, w = case.config, case.weights
    turn = lambda t, n: t.reshape(n, 2, t.shape[0] // n // 2, t.shape[1]).swapaxes(1, 2).reshape(t.shape)
    layer = lambda part: [w[f"model.layers.{i}.{part}.weight"] for i in range(c.num_hidden_layers)]
    head = [] if c.tie_word_embeddings else [w["lm_head.weight"]]
    numbers = [c.hidden_size, c.intermediate_size, c.num_hidden_layers, c.num_attention_heads, c.num_key_value_heads]
    q = [turn(t, c.num_attention_heads) for t in layer("self_attn.q_proj")]
    k = [turn(t, c.num_key_value_heads) for t in layer("self_attn.k_proj")]
    v, o = layer("self_attn.v_proj"), layer("self_attn.o_proj")
    gate, down, up = layer("mlp.gate_proj"), layer("mlp.down_proj"), layer("mlp.up_proj")
    first, second = layer("input_layernorm"), layer("post_attention_layernorm")
    with open(path, "wb") as f:
        put = lambda *lists: [f.write(np.ascontiguousarray(t, "<f4").tobytes()) for one in lists for t in one]
        if version == 0:
            f.write(struct.pack("<7i", *numbers, -c.vocab_size if head else c.vocab_size, c.max_position_embeddings))
            put([w["model.embed_tokens.weight"]], first, q, k, v, o, second, gate, down, up, [w["model.norm.weight"]])
            put([np.zeros((c.max_position_embeddings, c.hidden_size // c.num_attention_heads), np.float32)], head)
        else:
            start = struct.pack("<Ii7iB", 0x616b3432, 1, *numbers, c.vocab_size, c.max_position_embeddings, not head)
            f.write(start + bytes(256 - len(start)))
            put(first, second, [w["model.norm.weight"], w["model.embed_tokens.weight"]], q, k, v, o, gate, down, up, head)


# --- MLX ---

def mlx_weights(case):
    """The names and layouts that mlx-lm saves; F32."""
    out = {}
    for name, t in case.weights.items():
        if case.name.startswith("qwen3_5"):
            if name.endswith("norm.weight") and "linear_attn" not in name:
                t = t + 1.0
            if "conv1d" in name:
                t = np.moveaxis(t, 2, 1)
            name = "language_model." + name
        if case.name == "gpt2":
            name = name.replace("transformer.", "model.")
            t = t.T if name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")) else t
        out[name] = np.ascontiguousarray(t, dtype=np.float32)
    return out


def mlx_config(case):
    return wrap(case.json, "qwen3_5", "Qwen3_5ForConditionalGeneration") if case.name.startswith("qwen3_5") else dict(case.json)


def write_mlx_quantised(case, folder, bits):
    """Affine groups of 32; one module overrides the bits, one is left alone. Returns the weights as a reader sees them."""
    import mlx.core as mx
    prefix = "language_model." if case.name.startswith("qwen3_5") else ""
    down, left = f"{prefix}model.layers.0.mlp.down_proj", f"{prefix}model.layers.1.mlp.up_proj"
    config, out, seen = mlx_config(case), {}, dict(case.weights)
    config["quantization"] = config["quantization_config"] = {
        "group_size": 32, "bits": bits, "mode": "affine", down: {"group_size": 32, "bits": 8}, left: False}
    for name, t in mlx_weights(case).items():
        module = name.removesuffix(".weight")
        if t.ndim != 2 or t.shape[1] % 32 or module == left:
            out[name] = t
            continue
        b = 8 if module == down else bits
        q, s, z = mx.quantize(mx.array(t), group_size=32, bits=b)
        out[name], out[module + ".scales"], out[module + ".biases"] = np.array(q), np.array(s), np.array(z)
        seen[name.removeprefix(prefix)] = np.array(mx.dequantize(q, s, z, group_size=32, bits=b))
    write_folder(folder, config, out, case.json["eos_token_id"], False)
    return seen


# --- adapters ---

LORA_PARTS = {
    "llama": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.down_proj"],
    "qwen3_5_asym": ["self_attn.q_proj", "linear_attn.in_proj_qkv", "linear_attn.in_proj_z", "linear_attn.out_proj"],
}
RANK, SCALE, DOWN_SCALE = 4, 2.0, 3.0


def lora_pairs(case):
    out = {}
    for name, t in case.weights.items():
        if any(f".{part}.weight" in name for part in LORA_PARTS[case.name]):
            g = np.random.default_rng(len(name) * 1000 + sum(name.encode()))
            a = g.standard_normal((RANK, t.shape[1])) / math.sqrt(t.shape[1])
            b = g.standard_normal((t.shape[0], RANK)) * 0.1
            out[name.removesuffix(".weight")] = (a.astype(np.float32), b.astype(np.float32))
    return out


def scale_of(module):
    return DOWN_SCALE if module.endswith("down_proj") else SCALE


def write_peft(case, pairs, folder, rooted):
    os.makedirs(folder, exist_ok=True)
    alpha = (lambda s: s * math.sqrt(RANK)) if rooted else (lambda s: s * RANK)
    config = dict(peft_type="LORA", r=RANK, lora_alpha=alpha(SCALE), use_rslora=rooted, bias="none",
                  target_modules=sorted({m.split(".")[-1] for m in pairs}), alpha_pattern={"down_proj": alpha(DOWN_SCALE)},
                  rank_pattern={}, modules_to_save=None, use_dora=False, fan_in_fan_out=False)
    with open(os.path.join(folder, "adapter_config.json"), "w") as f:
        json.dump(config, f, indent=1, sort_keys=True)
    tensors = {}
    for module, (a, b) in pairs.items():
        tensors[f"base_model.model.{module}.lora_A.weight"] = a
        tensors[f"base_model.model.{module}.lora_B.weight"] = b
    save_file(tensors, os.path.join(folder, "adapter_model.safetensors"))


def write_mlx_adapter(case, pairs, folder):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "adapter_config.json"), "w") as f:
        json.dump(dict(fine_tune_type="lora", num_layers=-1, lora_parameters=dict(rank=RANK, scale=SCALE, dropout=0.0)), f)
    prefix = "language_model." if case.name.startswith("qwen3_5") else ""
    tensors = {}
    for module, (a, b) in pairs.items():
        tensors[f"{prefix}{module}.lora_a"] = np.ascontiguousarray(a.T)
        tensors[f"{prefix}{module}.lora_b"] = np.ascontiguousarray(b.T * (scale_of(module) / SCALE))
    save_file(tensors, os.path.join(folder, "adapters.safetensors"))


def write_gguf_adapter(case, pairs, path):
    c, arch = case.config, arch_of(case.config)
    w = gguf.GGUFWriter(path, arch)
    w.add_string("general.type", "adapter")
    w.add_string("adapter.type", "lora")
    w.add_float32("adapter.lora.alpha", SCALE * RANK)
    for module, (a, b) in pairs.items():
        name = module + ".weight"
        target = gguf_name(arch, c.num_hidden_layers, name)
        if "out_proj" in module:         # its columns move, so it is A that changes
            a = gguf_tensor(arch, c, name, a)
        else:
            b = gguf_tensor(arch, c, name, b)
        w.add_tensor(target + ".lora_a", np.ascontiguousarray(a))
        w.add_tensor(target + ".lora_b", np.ascontiguousarray(b * np.float32(scale_of(module) / SCALE)))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def write_adapters(case, out):
    pairs, folder = lora_pairs(case), os.path.join(out, "lora", case.name)
    write_peft(case, pairs, os.path.join(folder, "peft"), rooted=case.name != "llama")
    write_mlx_adapter(case, pairs, os.path.join(folder, "mlx"))
    write_gguf_adapter(case, pairs, os.path.join(folder, "adapter.gguf"))
    merged = dict(case.weights)
    for module, (a, b) in pairs.items():
        merged[module + ".weight"] = merged[module + ".weight"] + scale_of(module) * (b.astype(np.float64) @ a).astype(np.float32)
    golden_of(case, merged, os.path.join(folder, "golden.safetensors"))


# --- deliberate mistakes, as published implementations make them ---

def late_decay(query, key, value, g, beta, initial_state=None, output_final_state=False, **_):
    """The gated delta rule with the delta taken against the state before its decay."""
    from transformers.models.qwen3_5.modeling_qwen3_5 import l2norm
    groups = value.shape[2] // key.shape[2]
    q, k = (l2norm(t.float(), dim=-1, eps=1e-6).repeat_interleave(groups, dim=2) for t in (query, key))
    state = torch.zeros(value.shape[0], value.shape[2], key.shape[3], value.shape[3])
    out = torch.zeros_like(value)
    for t in range(value.shape[1]):
        delta = beta[:, t, :, None] * (value[:, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, t]))
        state = state * g[:, t].exp()[..., None, None] + torch.einsum("bhk,bhv->bhkv", k[:, t], delta)
        out[:, t] = torch.einsum("bhkv,bhk->bhv", state, q[:, t]) / key.shape[3] ** 0.5
    return out, state


def mistakes_of(case):
    """Logits of the same model computed wrongly: mistake.decay, mistake.pairs."""
    import transformers.models.qwen3_5.modeling_qwen3_5 as code
    out, right = {}, code.apply_rotary_pos_emb

    def neighbours(q, k, cos, sin, **kw):
        n = cos.shape[-1]
        turn = lambda x: torch.cat([x[..., 0:n:2], x[..., 1:n:2], x[..., n:]], dim=-1)
        return right(turn(q), turn(k), cos, sin, **kw)

    for name, attribute, wrong in (("decay", "torch_chunk_gated_delta_rule", late_decay),
                                   ("pairs", "apply_rotary_pos_emb", neighbours)):
        kept = getattr(code, attribute)
        setattr(code, attribute, wrong)
        with torch.no_grad():
            out["mistake." + name] = case.model(torch.tensor([case.prompt]), use_cache=False).logits[0].numpy()
        setattr(code, attribute, kept)
    return out


# --- all of it ---

def write_other_names(case, out):
    """The same weights, wrapped or bare."""
    eos = case.json["eos_token_id"]
    if case.name == "gpt2":
        bare = {k.removeprefix("transformer."): v for k, v in case.weights.items()}
        bare["h.0.attn.bias"] = np.ones((1, 1, 4, 4), np.float32)      # an old file's mask
        write_folder(os.path.join(out, "gpt2_bare"), case.json, bare, eos, True)
        write_folder(os.path.join(out, "gpt2_mlx"), mlx_config(case), mlx_weights(case), eos, True)
    if case.name == "qwen3_5_asym":
        write_folder(os.path.join(out, case.name + "_mlx"), mlx_config(case), mlx_weights(case), eos, True)
    if case.name == "gemma3":
        named = {"language_model." + k: v for k, v in case.weights.items()}
        named["vision_tower.vision_model.embeddings.patch_embedding.weight"] = np.zeros((4, 4), np.float32)
        named["multi_modal_projector.mm_soft_emb_norm.weight"] = np.zeros(4, np.float32)
        write_folder(os.path.join(out, "gemma3_wrapped"), wrap(case.json, "gemma3", "Gemma3ForConditionalGeneration"), named, eos, case.small)


def write_case(case, out):
    folder, eos = os.path.join(out, case.name), case.json["eos_token_id"]
    config, weights = case.json, case.weights
    if case.name == "qwen3_5":
        config = wrap(config, "qwen3_5", "Qwen3_5ForConditionalGeneration")
        weights = {k.replace("model.", "model.language_model.", 1): v for k, v in weights.items()}
        weights.update({"mtp.fc.weight": np.zeros((4, 8), np.float32), "model.visual.pos_embed.weight": np.zeros((4, 8), np.float32)})
    write_folder(folder, config, weights, eos, case.small)
    golden = compute(case.model, case.prompt)
    if case.name == "qwen3_5_asym":
        golden.update(mistakes_of(case))
    save_file(golden, os.path.join(folder, "golden.safetensors"))
    if case.name not in ("llama_yarn_mscale", "qwen3_5") or not case.small:
        write_gguf(case, os.path.join(folder, "model.gguf"))
    if case.name in ("gpt2", "llama", "qwen3_5"):
        seen = write_gguf(case, os.path.join(folder, "model-q8_0.gguf"), q8=True)
        golden_of(case, seen, os.path.join(folder, "model-q8_0.golden.safetensors"))
    if case.name == "gemma3":
        write_gguf(case, os.path.join(folder, "model-switches.gguf"), switches=True)
    if case.name == "llama_mha":
        write_bin(case, os.path.join(folder, "legacy.bin"), 0)
        write_bin(case, os.path.join(folder, "v1.bin"), 1)
    write_other_names(case, out)
    if case.name in ("llama", "qwen3_5"):
        try:
            seen = write_mlx_quantised(case, os.path.join(out, case.name + "_mlx4"), 4)
            golden_of(case, seen, os.path.join(out, case.name + "_mlx4", "golden.safetensors"))
        except ImportError:
            print("no mlx: quantised variants left out")
    if case.name in LORA_PARTS:
        write_adapters(case, out)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("out")
    ap.add_argument("--large", action="store_true")
    a = ap.parse_args()
    torch.set_num_threads(1)
    size = LARGE if a.large else SMALL
    for name in cases(size):
        write_case(Case(name, size), a.out)
        print(name)


if __name__ == "__main__":
    main()
