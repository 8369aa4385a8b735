"""A small Llama of random weights as a GGUF file, for tests of programs. SPDX-License-Identifier: MIT"""
import gguf, numpy as np

WIDTH, VOCAB = 64, 96


def write(path, layers, seed):
    rng = np.random.default_rng(seed)
    w = gguf.GGUFWriter(path, "llama")
    w.add_block_count(layers); w.add_context_length(600); w.add_embedding_length(WIDTH); w.add_feed_forward_length(WIDTH)
    w.add_head_count(2); w.add_layer_norm_rms_eps(1e-5); w.add_vocab_size(VOCAB); w.add_rope_dimension_count(WIDTH // 2)
    shapes = {"token_embd": (VOCAB, WIDTH), "output": (VOCAB, WIDTH), "output_norm": (WIDTH,)}
    for i in range(layers):
        shapes.update({f"blk.{i}.{n}": (WIDTH, WIDTH)
                       for n in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")})
        shapes.update({f"blk.{i}.attn_norm": (WIDTH,), f"blk.{i}.ffn_norm": (WIDTH,)})
    for name, shape in shapes.items():
        w.add_tensor(name + ".weight", (rng.standard_normal(shape) * (0.3 if "blk" in name else 0.1)).astype(np.float32))
    w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()
