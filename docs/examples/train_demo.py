#!/usr/bin/env python3
"""train_demo.py SEGUE FOLDER [STEPS]: train a small language model from a random start, on text that is made here.

Writes FOLDER/stories.txt (4,000 short stories from patterns; the text is as free as this file), FOLDER/shape (a Llama of 0.8
million weights, all 0, and a tokenizer of single bytes) and FOLDER/model, which `segue run` opens. Ends with 1 unless the loss of
the held-out part is below that of a bigram model. Needs no packages.
SPDX-License-Identifier: MIT
"""
import collections
import json
import math
import os
import random
import struct
import subprocess
import sys
WIDTH, LAYERS, HEADS, FF, VOCAB = 128, 4, 4, 352, 257

# --- text ---

WHO = ["Tom", "Anna", "Ben", "Lily", "Max", "Mia", "Sam", "Zoe"]
WHAT = ["dog", "cat", "bird", "boat", "ball", "kite", "drum", "fish", "cake", "book"]
LIKE = ["red", "blue", "new", "small", "happy", "round", "soft", "shiny"]
WHERE = ["in the park", "at the beach", "in the garden", "near the river", "under a tree", "at home"]
END = ["They went home and slept.", "It was a good day.", "They were friends from then on.", "Everyone laughed."]


def story(r):
    a, b = r.sample(WHO, 2)
    like, what, where = r.choice(LIKE), r.choice(WHAT), r.choice(WHERE)
    return " ".join([
        r.choice([f"Once there was a child named {a}.", f"One day {a} woke up early.", f"{a} had a {like} {what}."]),
        r.choice([f"{a} played with the {like} {what} {where}.", f"{a} lost the {what} {where}.",
                  f"{a} saw a {like} {what} {where}."]),
        r.choice([f'"Can I have the {what}?" asked {b}.', f"{b} wanted to play too.", f"{b} came and helped {a}."]),
        r.choice([f"{a} gave the {what} to {b}.", f"{a} and {b} looked at the {what} together.", f'"Yes," said {a}.']),
        r.choice(END)]) + "\n"


def bigram_loss(text):
    """Mean -log p of each byte after the one before it, counted on the same text: no bigram model of it is better."""
    pairs, firsts = collections.Counter(zip(text, text[1:])), collections.Counter(text[:-1])
    return -sum(n * math.log(n / firsts[a]) for (a, _), n in pairs.items()) / (len(text) - 1)


# --- the shape: a folder as Hugging Face's ---


def byte_names():
    """The 256 letters that byte-level tokenizers write for bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    return {**{b: chr(b) for b in plain}, **{b: chr(256 + i) for i, b in enumerate(rest)}}


def write_shape(folder, tied=True, width=WIDTH, layers=LAYERS, heads=HEADS, ff=FF, vocab=VOCAB):
    os.makedirs(folder, exist_ok=True)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": width, "num_hidden_layers": layers,
              "num_attention_heads": heads, "num_key_value_heads": heads, "intermediate_size": ff, "vocab_size": vocab,
              "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
              "tie_word_embeddings": tied, "bos_token_id": 256, "eos_token_id": 256}
    end = {"id": 256, "content": "<end>", "special": True, "single_word": False, "lstrip": False, "rstrip": False,
           "normalized": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    tokenizer = {"version": "1.0", "added_tokens": [end], "normalizer": None, "pre_tokenizer": level, "post_processor": None,
                 "decoder": level, "model": {"type": "BPE", "vocab": {name: b for b, name in byte_names().items()}, "merges": []}}
    for name, value in (("config.json", config), ("tokenizer.json", tokenizer)):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            json.dump(value, f)
    shapes = {"model.embed_tokens.weight": [vocab, width], "model.norm.weight": [width]}
    if not tied:
        shapes["lm_head.weight"] = [vocab, width]
    for i in range(layers):
        layer = {"self_attn." + p: [width, width] for p in ("q_proj", "k_proj", "v_proj", "o_proj")}
        layer.update({"mlp.gate_proj": [ff, width], "mlp.up_proj": [ff, width], "mlp.down_proj": [width, ff],
                      "input_layernorm": [width], "post_attention_layernorm": [width]})
        shapes.update({f"model.layers.{i}.{name}.weight": shape for name, shape in layer.items()})
    header, at = {}, 0
    for name, shape in shapes.items():
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + 4 * math.prod(shape)]}
        at += 4 * math.prod(shape)
    text = json.dumps(header).encode()
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + bytes(at))


def main():
    segue, folder = os.path.abspath(sys.argv[1]), sys.argv[2]
    steps = sys.argv[3] if len(sys.argv) > 3 else "300"
    rng, shape, model = random.Random(1), os.path.join(folder, "shape"), os.path.join(folder, "model")
    write_shape(shape)
    text = "".join(story(rng) for _ in range(4000))
    data = os.path.join(folder, "stories.txt")
    with open(data, "w", encoding="utf-8") as f:
        f.write(text)
    done = subprocess.run([segue, "train", "--full", "--random", "-m", shape, "--data", data, "-o", model, "--steps", steps,
                           "--batch", "16", "-c", "128", "--lr", "0.003", "--weight-decay", "0.1", "--held-out", "2",
                           "--checkpoint", steps, "--unit", "cpu", "--json"], stdout=subprocess.PIPE, text=True, check=True)
    report, bigram = json.loads(done.stdout.splitlines()[-1]), bigram_loss(text.encode())
    print(f"{report['numbers']} weights, {report['steps']} steps, {report['tokens_per_second']:.0f} tokens/s")
    print(f"held-out loss per byte: {report['held_out_loss']:.3f}, at the start {report['held_out_loss_before']:.3f}; "
          f"a bigram model: {bigram:.3f}")
    for seed in ("1", "2", "3"):
        subprocess.run([segue, "run", "-m", model, "--raw", "-p", "One day ", "-n", "160", "--seed", seed, "--temp", "0.7"],
                       check=True)
    return report["held_out_loss"] >= bigram


if __name__ == "__main__":
    sys.exit(main())
