"""Helpers for the tests of the command: a tiny model with a byte tokenizer and a chat template, written with the standard
library only, and functions that run the command. SPDX-License-Identifier: MIT"""
import json, os, random, struct, subprocess, sys, tempfile

command = os.environ.get("SEGUE_COMMAND", "")
source = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
failures = 0
LIMIT = 500   # seconds: what takes longer hangs. A busy machine may be many times slower; ctest ends a test after 600 s

if not os.path.exists(command):
    print(f"SKIP {os.path.basename(sys.argv[0])}: the command is not built")
    sys.exit(77)

top = tempfile.TemporaryDirectory()
home = os.path.join(top.name, "home")
os.makedirs(home)
environment = {**os.environ, "SEGUE_HOME": home, "HOME": home}
for name in ("SEGUE_MODEL", "XDG_CACHE_HOME", "XDG_DATA_HOME", "HF_HOME", "HF_HUB_CACHE", "HF_TOKEN", "HF_ENDPOINT"):
    environment.pop(name, None)


def run(*args, stdin="", **more):
    """Run the command; returns (exit code, stdout, stderr). Death by a signal is a failure."""
    r = subprocess.run([command, *map(str, args)], input=stdin.encode() if isinstance(stdin, str) else stdin,
                       capture_output=True, env={**environment, **more}, timeout=LIMIT)
    expect(f"{args}: no death by a signal", r.returncode >= 0, r.returncode)
    return r.returncode, r.stdout.decode("utf-8", "surrogateescape"), r.stderr.decode("utf-8", "replace")


def expect(what, condition, detail=""):
    global failures
    if not condition:
        failures += 1
        print(f"FAIL {what}: {str(detail)[:1500]}")


def refused(code, args, *words, **more):
    """The command fails with this code and one line on stderr that holds these words, and the same in JSON."""
    got, out, err = run(*args, **more)
    lines = [l for l in err.split("\n") if l]
    expect(f"{args}: exit {code}", got == code, (got, out, err))
    expect(f"{args}: one line", len(lines) == 1 and lines[0].startswith("segue: "), err)
    for w in words: expect(f"{args}: says {w!r}", w in err, err)
    got, out, err = run(*args[:1], "--json", *args[1:], **more)
    try: error = json.loads(out)["error"]
    except (ValueError, KeyError, TypeError): return expect(f"{args}: JSON error", False, (out, err))
    expect(f"{args}: JSON error", error["code"] == code and isinstance(error["name"], str) and error["text"], out)


def done():
    name = os.path.basename(sys.argv[0])
    print(f"{name}: {failures} failures" if failures else f"{name}: all as it should be")
    sys.exit(1 if failures else 0)


def byte_unicode():
    """The 256 characters that byte-level BPE writes bytes as."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    out, n = {}, 0
    for b in range(256):
        out[b] = chr(b) if b in plain else chr(256 + n)
        n += b not in plain
    return out


TEMPLATE = ("{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")


def tiny_model(name="tiny", seed=1, layers=2, width=32, context=2048, template=TEMPLATE, tokenizer=True, generation=None, vocab=259):
    """A llama of random F32 weights as a Hugging Face folder; vocabulary: 256 bytes and three special tokens. vocab: rows of the head."""
    folder = os.path.join(top.name, name)
    os.makedirs(folder, exist_ok=True)
    ff, kv = 64, width // 2
    rnd = random.Random(seed)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": width, "intermediate_size": ff,
              "num_hidden_layers": layers, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": vocab,
              "max_position_embeddings": context, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
              "tie_word_embeddings": True, "bos_token_id": 257, "eos_token_id": 258, "torch_dtype": "float32"}
    tensors = {"model.embed_tokens.weight": (vocab, width), "model.norm.weight": (width,)}
    for i in range(layers):
        p = f"model.layers.{i}."
        tensors |= {p + "input_layernorm.weight": (width,), p + "post_attention_layernorm.weight": (width,),
                    p + "self_attn.q_proj.weight": (width, width), p + "self_attn.k_proj.weight": (kv, width),
                    p + "self_attn.v_proj.weight": (kv, width), p + "self_attn.o_proj.weight": (width, width),
                    p + "mlp.gate_proj.weight": (ff, width), p + "mlp.up_proj.weight": (ff, width),
                    p + "mlp.down_proj.weight": (width, ff)}
    head, data = {}, bytearray()
    for key, shape in tensors.items():
        n = shape[0] * (shape[1] if len(shape) > 1 else 1)
        values = [1.0] * n if len(shape) == 1 else [rnd.gauss(0, 0.15) for _ in range(n)]
        begin = len(data)
        data += struct.pack(f"<{n}f", *values)
        head[key] = {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, len(data)]}
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    write(folder, "model.safetensors", struct.pack("<Q", len(text)) + text + bytes(data))
    write(folder, "config.json", json.dumps(config))
    if generation: write(folder, "generation_config.json", json.dumps(generation))
    if not tokenizer: return folder
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    pieces = {c: b for b, c in byte_unicode().items()}
    added = [{"id": 256 + i, "content": s, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": True} for i, s in enumerate(specials)]
    write(folder, "tokenizer.json", json.dumps({
        "version": "1.0", "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None, "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                  "vocab": {**pieces, **{s: 256 + i for i, s in enumerate(specials)}}, "merges": []}}))
    tokenizer_config = {"bos_token": specials[1], "eos_token": specials[2], "model_max_length": int(1e30)}   # the default of transformers
    if template: tokenizer_config["chat_template"] = template
    write(folder, "tokenizer_config.json", json.dumps(tokenizer_config))
    return folder


def write(folder, name, content):
    path = os.path.join(folder, name)
    with open(path, "wb") as f: f.write(content if isinstance(content, bytes) else content.encode())
    return path
