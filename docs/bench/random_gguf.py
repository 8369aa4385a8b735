#!/usr/bin/env python3
"""Writes a GGUF file with random weights in the exact shape of a real model. Speeds and memory are those of the real one, the text
has no meaning. Equal arguments give equal files.

    pip install gguf numpy
    random_gguf.py SHAPE STORAGE OUT.gguf [--layers N] [--vocab N]        random_gguf.py --list

STORAGE: f32 f16 bf16, a storage of storages.py such as q4_0, or q4_k_m, the mixture of llama-quantize. SPDX-License-Identifier: MIT
"""
import argparse, sys, zlib
import numpy as np
import gguf
import storages

Type = gguf.GGMLQuantizationType
# architecture, layers, width, feed-forward, heads, K and V heads, width of a head, vocabulary, 1: the head is the embedding
SHAPES = {
    "gpt2-124m": ("gpt2", 12, 768, 3072, 12, 12, 64, 50257, 1), "smollm2-135m": ("llama", 30, 576, 1536, 9, 3, 64, 49152, 1),
    "smollm2-360m": ("llama", 32, 960, 2560, 15, 5, 64, 49152, 1), "llama3.2-1b": ("llama", 16, 2048, 8192, 32, 8, 64, 128256, 1),
    "llama3.2-3b": ("llama", 28, 3072, 8192, 24, 8, 128, 128256, 1), "llama3-8b": ("llama", 32, 4096, 14336, 32, 8, 128, 128256, 0),
    "qwen3-0.6b": ("qwen3", 28, 1024, 3072, 16, 8, 128, 151936, 1), "qwen3-1.7b": ("qwen3", 28, 2048, 6144, 16, 8, 128, 151936, 1),
    "qwen3-4b": ("qwen3", 36, 2560, 9728, 32, 8, 128, 151936, 1), "gemma3-1b": ("gemma3", 26, 1152, 6912, 4, 1, 256, 262144, 1),
    "qwen3.5-0.8b": ("qwen35", 24, 1024, 3584, 8, 2, 256, 248320, 1), "qwen3.5-2b": ("qwen35", 24, 2048, 6144, 8, 2, 256, 248320, 1),
    "qwen3.5-4b": ("qwen35", 32, 2560, 9216, 16, 4, 256, 248320, 1), "qwen3.5-9b": ("qwen35", 32, 4096, 12288, 16, 4, 256, 248320, 0),
}
KEY_HEADS, STATE, TAPS, EVERY = 16, 128, 4, 4      # Qwen3.5: key heads, width of a head of the delta rule, convolution; each EVERY-th layer attends
VALUE_HEADS = {1024: 16, 2048: 16, 2560: 32, 4096: 32}
POOL = 1 << 22                                     # weights; every matrix is cut from such a pool
CONTEXT = 262144


class Shape:
    def __init__(self, name, layers=None, vocab=None):
        (self.arch, self.layers, self.width, self.ff, self.heads, self.kv, self.head, self.vocab, self.tied) = SHAPES[name]
        self.layers, self.vocab = layers or self.layers, vocab or self.vocab
        self.value_heads = VALUE_HEADS.get(self.width, 16)


def matrices(s, i):
    """(name, rows, columns) of layer i."""
    e, q, kv, values = s.width, s.heads * s.head, s.kv * s.head, s.value_heads * STATE
    if s.arch == "gpt2":
        return [("attn_qkv", 3 * e, e), ("attn_output", e, e), ("ffn_up", s.ff, e), ("ffn_down", e, s.ff)]
    if s.arch == "qwen35" and (i + 1) % EVERY:
        mixer = [("attn_qkv", 2 * KEY_HEADS * STATE + values, e), ("attn_gate", values, e), ("ssm_beta", s.value_heads, e),
                 ("ssm_alpha", s.value_heads, e), ("ssm_out", e, values)]
    else:
        mixer = [("attn_q", q * (2 if s.arch == "qwen35" else 1), e), ("attn_k", kv, e), ("attn_v", kv, e), ("attn_output", e, q)]
    return mixer + [("ffn_gate", s.ff, e), ("ffn_up", s.ff, e), ("ffn_down", e, s.ff)]


def vectors(s, i):
    """(name, numbers, mean, deviation) of layer i."""
    e = s.width
    if s.arch == "gpt2":
        return [(f"{n}.{k}", size, float(k == "weight"), 0.02) for n in ("attn_norm", "ffn_norm") for k, size in (("weight", e), ("bias", e))] + \
               [("attn_qkv.bias", 3 * e, 0, 0.02), ("attn_output.bias", e, 0, 0.02), ("ffn_up.bias", s.ff, 0, 0.02), ("ffn_down.bias", e, 0, 0.02)]
    rule = s.arch == "qwen35" and (i + 1) % EVERY
    names = ["attn_norm", "post_attention_norm" if s.arch == "qwen35" else "ffn_norm"]
    if s.arch == "gemma3": names += ["post_attention_norm", "post_ffw_norm"]
    out = [(n + ".weight", e, 1, 0.02) for n in names]
    if rule: return out + [("ssm_norm.weight", STATE, 1, 0.02), ("ssm_dt.bias", s.value_heads, 0.5, 0.02), ("ssm_a", s.value_heads, -3, 0.5)]
    if s.arch in ("qwen3", "qwen35", "gemma3"): out += [(n + ".weight", s.head, 1, 0.02) for n in ("attn_q_norm", "attn_k_norm")]
    return out


def storage_of(s, storage, name, i, columns):
    """The type of a matrix. q4_k_m: Q6_K for the head, and for v and down of the first and last eighth and each third layer between."""
    if storage == "q4_k_m":
        eighth = s.layers // 8
        more = i is not None and name in ("attn_v", "ffn_down") and (i < eighth or i >= 7 * s.layers // 8 or (i - eighth) % 3 == 2)
        storage = "q6_k" if more or name == "output" or (name == "token_embd" and s.tied) else "q4_k"
    t = Type[storage.upper()]
    return t if columns % gguf.GGML_QUANT_SIZES[t][0] == 0 else Type.F16


class Pools:
    def __init__(self): self.made = {}

    def bytes_of(self, t, scale):
        key = t, round(float(np.log2(scale)) * 8)
        if key not in self.made:
            rng = np.random.default_rng(zlib.crc32(repr((int(t), key[1])).encode()))
            if t.name in storages.GGUF: x = storages.blocks(t.name, POOL // gguf.GGML_QUANT_SIZES[t][0], scale)
            else: x = gguf.quants.quantize(rng.standard_normal((1024, POOL // 1024), np.float32) * np.float32(scale), t)
            self.made[key] = np.ascontiguousarray(x).view(np.uint8).ravel()
        return self.made[key]

    def matrix(self, name, rows, columns, t, scale):
        per, size = gguf.GGML_QUANT_SIZES[t]
        pool = np.roll(self.bytes_of(t, scale), -size * (zlib.crc32(name.encode()) & 0xffff))
        return np.resize(pool, (rows, columns // per * size))


def metadata(w, s, name):
    w.add_name(name + "-random"); w.add_context_length(1024 if s.arch == "gpt2" else CONTEXT); w.add_embedding_length(s.width)
    w.add_block_count(s.layers); w.add_feed_forward_length(s.ff); w.add_head_count(s.heads); w.add_head_count_kv(s.kv); w.add_vocab_size(s.vocab)
    if s.arch == "gpt2": w.add_layer_norm_eps(1e-5)
    else:
        w.add_layer_norm_rms_eps(1e-6); w.add_key_length(s.head); w.add_value_length(s.head)
        w.add_rope_freq_base({"qwen35": 1e7, "qwen3": 1e6, "gemma3": 1e6}.get(s.arch, 5e5))
    if s.arch == "llama": w.add_rope_dimension_count(s.head)
    if s.arch == "gemma3": w.add_sliding_window(512)
    if s.arch == "qwen35":
        w.add_rope_dimension_count(s.head // 4); w.add_rope_dimension_sections([11, 11, 10, 0]); w.add_ssm_conv_kernel(TAPS)
        w.add_ssm_state_size(STATE); w.add_ssm_group_count(KEY_HEADS); w.add_ssm_time_step_rank(s.value_heads)
        w.add_ssm_inner_size(s.value_heads * STATE); w.add_uint32("qwen35.full_attention_interval", EVERY)
    storages.add_bytes_vocabulary(w, s.vocab)


def tensors(s, storage, pools):
    """(name, type, function that makes the bytes), in the order of the file."""
    def matrix(name, rows, columns, i=None, t=None, scale=None):
        t = t or storage_of(s, storage, name.split(".")[-1], i, columns)
        full = (f"blk.{i}." if i is not None else "") + name + ".weight"
        return full, t, (rows, columns), lambda: pools.matrix(full, rows, columns, t, scale or columns ** -0.5)

    def vector(name, n, mean, deviation):
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        return name, Type.F32, (n,), lambda: (mean + deviation * rng.standard_normal(n)).astype(np.float32).view(np.uint8)

    yield matrix("token_embd", s.vocab, s.width, scale=0.02)
    if not s.tied: yield matrix("output", s.vocab, s.width)
    yield vector("output_norm.weight", s.width, 1, 0.02)
    if s.arch == "gpt2":
        yield vector("output_norm.bias", s.width, 0, 0.02)
        yield matrix("position_embd", 1024, s.width, t=Type.F32, scale=0.02)
    for i in range(s.layers):
        for name, n, mean, deviation in vectors(s, i): yield vector(f"blk.{i}.{name}", n, mean, deviation)
        if s.arch == "qwen35" and (i + 1) % EVERY:
            yield matrix("ssm_conv1d", 2 * KEY_HEADS * STATE + s.value_heads * STATE, TAPS, i, Type.F32, 0.5)
        for name, rows, columns in matrices(s, i): yield matrix(name, rows, columns, i)


def write(name, storage, path, layers=None, vocab=None):
    s, pools = Shape(name, layers, vocab), Pools()
    w = gguf.GGUFWriter(path, s.arch)
    metadata(w, s, name)
    rows = list(tensors(s, storage, pools))
    for full, t, shape, _ in rows:
        per, size = gguf.GGML_QUANT_SIZES[t]
        at = (*shape[:-1], shape[-1] // per * size)
        w.add_tensor_info(full, at, np.dtype(np.uint8), int(np.prod(at)), t)
    w.write_header_to_file(); w.write_kv_data_to_file(); w.write_ti_data_to_file()
    for _, _, _, make in rows: w.write_tensor_data(make())     # one after the other, so that memory holds one
    w.close()


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("shape", nargs="?", choices=sorted(SHAPES)); a.add_argument("storage", nargs="?"); a.add_argument("out", nargs="?")
    a.add_argument("--layers", type=int); a.add_argument("--vocab", type=int); a.add_argument("--list", action="store_true")
    o = a.parse_args()
    if o.list: return print("\n".join(sorted(SHAPES)))
    if not o.out: a.error("SHAPE, STORAGE and OUT.gguf are needed")
    if o.storage != "q4_k_m" and o.storage.upper() not in ("F32", "F16", "BF16", *storages.GGUF): a.error(f"{o.storage}: no such storage")
    write(o.shape, o.storage, o.out, o.layers, o.vocab)


if __name__ == "__main__":
    sys.exit(main())
