#!/usr/bin/env python3
"""Table of quantised storages on one GPU: bytes of weights on the GPU over those of the file, decode speed, and share of the stream.

    pip install gguf numpy
    storages.py SEGUE [--unit cuda:0] [--layers N] [--dir DIR] [--only Q4_K,mlx4] [--sequences 16] [--kl] [--jsonl FILE]

Writes one model of random weights per storage, a Llama of 2,048 (--layers up to 24) or 4,096 columns, runs `segue bench`, prints a
row and removes the file (GB: its quantised matrices). Random bytes are codes; scales are set so that activations stay finite.
--kl: the mean KL divergence from `ref` of a model of two layers, of single tokens (decode kernels) and of a prompt, the larger one.
--jsonl FILE: the rows, also; those that FILE has already for the same --layers and build are not measured again.
"""
import argparse, concurrent.futures, json, os, shutil, subprocess, sys, tempfile
import numpy as np
import gguf

# bytes of a block: gguf.GGML_QUANT_SIZES; offsets of its fp16 scales, of its fp16 minima; one over what codes (times scales) reach.
GGUF = {"Q4_0": ([0], [], 8), "Q4_1": ([0], [2], 8), "Q5_0": ([0], [], 16), "Q5_1": ([0], [2], 16), "Q8_0": ([0], [], 127),
        "Q2_K": ([80], [82], 30), "Q3_K": ([108], [], 90), "Q4_K": ([0], [2], 400), "Q5_K": ([0], [2], 800), "Q6_K": ([208], [], 3000),
        "IQ4_NL": ([0], [], 100), "IQ4_XS": ([0], [], 3000), "MXFP4": ([], [], 6)}
rng = np.random.default_rng(26)


def blocks(kind, n, scale):
    """n random blocks whose weights are about `scale`."""
    t = gguf.GGMLQuantizationType[kind]
    d, m, reach = GGUF[kind]
    x = rng.integers(0, 256, (n, gguf.GGML_QUANT_SIZES[t][1]), dtype=np.uint8)
    for at in d + m:
        v = np.full(n, (scale if at in d else -scale / 2 if kind[-1] == "1" else scale / 2) / reach, np.float16)
        x[:, at:at + 2] = v.view(np.uint8).reshape(n, 2)
    if kind == "MXFP4":
        x[:, 0] = 127 + int(np.floor(np.log2(scale / reach)))
    return x


def add_bytes_vocabulary(w, n):
    """A token per byte, the rest without meaning."""
    w.add_tokenizer_model("gpt2"); w.add_tokenizer_pre("gpt-2")
    byte = [chr(c) for c in range(33, 127)] + [chr(c) for c in range(161, 173)] + [chr(c) for c in range(174, 256)]
    byte += [chr(256 + i) for i in range(256 - len(byte))]
    w.add_token_list(byte + [f"<t{i}>" for i in range(n - 256)]); w.add_token_types([1] * n); w.add_token_merges(["h e"])
    w.add_bos_token_id(256); w.add_eos_token_id(257)


def shapes(a):
    e, f, kv = (2048, 8192, 512) if a.layers <= 24 else (4096, 14336, 1024)
    yield "output", "lm_head", a.vocab, e
    for i in range(a.layers):
        for g, m, rows, cols in (("attn_q", "self_attn.q_proj", e, e), ("attn_k", "self_attn.k_proj", kv, e), ("attn_v", "self_attn.v_proj", kv, e),
                                 ("attn_output", "self_attn.o_proj", e, e), ("ffn_gate", "mlp.gate_proj", f, e), ("ffn_up", "mlp.up_proj", f, e),
                                 ("ffn_down", "mlp.down_proj", e, f)):
            yield f"blk.{i}.{g}", f"model.layers.{i}.{m}", rows, cols


def write_gguf(a, kind, path):
    t = gguf.GGMLQuantizationType[kind]
    e, f = (2048, 8192) if a.layers <= 24 else (4096, 14336)
    w = gguf.GGUFWriter(path, "llama")
    w.add_name("storages-" + kind); w.add_context_length(4096); w.add_embedding_length(e); w.add_block_count(a.layers)
    w.add_feed_forward_length(f); w.add_head_count(e // 128); w.add_head_count_kv(e // 512); w.add_vocab_size(a.vocab)
    w.add_layer_norm_rms_eps(1e-6); w.add_rope_freq_base(5e5); w.add_rope_dimension_count(128)
    add_bytes_vocabulary(w, a.vocab)
    per, size = gguf.GGML_QUANT_SIZES[t]
    pool = blocks(kind, (1 << 22) // per, e ** -0.5)
    w.add_tensor("token_embd.weight", rng.standard_normal((a.vocab, e), np.float32).astype(np.float16))
    w.add_tensor("output_norm.weight", np.ones(e, np.float32))
    for i in range(a.layers):
        for n in ("attn_norm", "ffn_norm"): w.add_tensor(f"blk.{i}.{n}.weight", np.ones(e, np.float32))
    for name, _, rows, cols in shapes(a):
        w.add_tensor(name + ".weight", np.resize(pool, (rows * cols // per, size)).reshape(rows, cols // per * size), raw_dtype=t)
    w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(progress=False); w.close()


def write_mlx(a, bits, folder):
    e, f = (2048, 8192) if a.layers <= 24 else (4096, 14336)
    os.makedirs(folder, exist_ok=True)
    json.dump({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": e, "intermediate_size": f, "num_hidden_layers": a.layers,
               "num_attention_heads": e // 128, "num_key_value_heads": e // 512, "head_dim": 128, "vocab_size": a.vocab, "rms_norm_eps": 1e-6,
               "rope_theta": 5e5, "max_position_embeddings": 4096, "tie_word_embeddings": False, "bos_token_id": 256, "eos_token_id": 257,
               "torch_dtype": "bfloat16", "quantization": {"group_size": 64, "bits": bits}}, open(folder + "/config.json", "w"))
    vocab = {chr(33 + i) if i < 94 else f"<t{i}>": i for i in range(a.vocab)}
    json.dump({"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": vocab, "merges": []}, "normalizer": None,
               "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False}, "decoder": {"type": "ByteLevel"}}, open(folder + "/tokenizer.json", "w"))
    half = lambda x: (np.asarray(x, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    head, data, at = {}, [], 0

    def put(name, x, dtype):
        nonlocal at
        head[name] = {"dtype": dtype, "shape": list(x.shape), "data_offsets": [at, at + x.nbytes]}
        data.append(x); at += x.nbytes

    put("model.embed_tokens.weight", half(np.resize(rng.standard_normal(1 << 20, np.float32), (a.vocab, e))), "BF16")
    put("model.norm.weight", half(np.ones(e)), "BF16")
    for i in range(a.layers):
        for n in ("input_layernorm", "post_attention_layernorm"): put(f"model.layers.{i}.{n}.weight", half(np.ones(e)), "BF16")
    pool = rng.integers(0, 1 << 32, 1 << 20, dtype=np.uint32)
    scale = e ** -0.5 / (1 << bits)
    for _, name, rows, cols in shapes(a):
        put(name + ".weight", np.resize(pool, (rows, cols * bits // 32)), "U32")
        put(name + ".scales", half(np.full((rows, cols // 64), 2 * scale)), "BF16")
        put(name + ".biases", half(np.full((rows, cols // 64), -scale * (1 << bits))), "BF16")
    text = json.dumps(head).encode()
    with open(folder + "/model.safetensors", "wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for x in data: out.write(x.tobytes())


def write(a, name, folder):
    write_mlx(a, int(name[3:]), folder + "/m") if name.startswith("mlx") else write_gguf(a, name, folder + "/m.gguf")


def matrices(a, name):
    """Bytes of the quantised matrices in the file."""
    n = sum(rows * cols for _, _, rows, cols in shapes(a))
    if name.startswith("mlx"): return n * int(name[3:]) / 8 + n / 64 * 4
    per, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    return n / per * size


def bench(a, path, n, *extra):
    r = subprocess.run([a.segue, "bench", "--unit", a.unit, "-m", path, "-p", "0", "-o", "json", "-n", str(n), *extra], capture_output=True, text=True)
    if r.returncode: raise RuntimeError(r.stderr.strip())
    return json.loads(r.stdout)[0]


def divergence(a, name, folder):
    """Mean KL divergence from ref over 96 random tokens, one by one and as a prompt."""
    small = argparse.Namespace(layers=2, vocab=1024 if a.vocab > 1024 else a.vocab)
    write(small, name, folder)
    path, base = folder + ("/m" if name.startswith("mlx") else "/m.gguf"), folder + "/base"
    ids = ",".join(str(int(i)) for i in np.random.default_rng(1).integers(0, 256, 96))

    def evaluate(unit, *flags):
        r = subprocess.run([a.segue, "eval", "--unit", unit, "-m", path, "--ids", ids, "--json", *flags], capture_output=True, text=True)
        if r.returncode: raise RuntimeError(r.stderr.strip())
        return json.loads(r.stdout).get("kl_mean")

    evaluate(f"ref:threads={min(64, os.cpu_count() or 1)}", "--kl-out", base)
    return max(evaluate(a.unit, "--kl-base", base, *chunk) for chunk in ([], ["--chunk", "1"]))


def measure(a, name, path, folder):
    """The fields of a storage's row."""
    one = bench(a, path, 96, "-r", "3")
    many = bench(a, path, 32, "-r", "2", "--sequences", str(a.sequences)) if a.sequences else None
    read = one["weight_read_gb_s"] * sorted(one["samples_ns"])[1] / 95  # the last token is not read back
    row = {"storage": name, "gb": matrices(a, name) / 1e9, "memory_ratio": read / matrices(a, name), "tok_s": one["avg_ts"],
           "share": one["bandwidth_utilization"], "commit": one["build_commit"], "layers": a.layers}
    if many: row.update(sequences=a.sequences, tok_s_many=many["avg_ts"])
    if a.kl: row["kl"] = divergence(a, name, folder)
    return row


def print_row(r):
    if "error" in r: return print(f"{r['storage']:8} {r['error']}", flush=True)
    many = f" {r['tok_s_many']:9.1f} {r['tok_s_many'] / r['tok_s']:5.1f}" if "tok_s_many" in r else ""
    kl = f" {r['kl']:8.1e}" if "kl" in r else ""
    print(f"{r['storage']:8} {r['gb']:6.2f} {r['memory_ratio']:8.3f} {r['tok_s']:8.1f} {r['share']:6.2f}{many}{kl}", flush=True)


def rows_before(a):
    """Rows of --jsonl that this build has measured."""
    if not a.jsonl or not os.path.exists(a.jsonl): return {}
    commit = json.loads(subprocess.run([a.segue, "version", "--json"], capture_output=True, text=True, check=True).stdout)["commit"]
    rows = [json.loads(line) for line in open(a.jsonl) if line.strip()]
    return {r["storage"]: r for r in rows if "error" not in r and r["commit"] == commit and r["layers"] == a.layers and ("kl" in r or not a.kl)}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("segue"); ap.add_argument("--unit", default="cuda:0"); ap.add_argument("--layers", type=int, default=16)
    ap.add_argument("--vocab", type=int, default=32768); ap.add_argument("--dir"); ap.add_argument("--only")
    ap.add_argument("--sequences", type=int, default=16, help="0: one sequence only"); ap.add_argument("--ahead", type=int, default=3, help="files written ahead")
    ap.add_argument("--kl", action="store_true"); ap.add_argument("--jsonl")
    a = ap.parse_args()
    names = list(GGUF) + [f"mlx{b}" for b in (2, 3, 4, 5, 6, 8)]
    if a.only: names = [n for n in names if n in a.only.split(",")]
    print(f"{'storage':8} {'GB':>6} {'GPU/file':>8} {'tok/s':>8} {'share':>6}" + (f" {'x' + str(a.sequences):>9} {'times':>5}" if a.sequences else "")
          + (f" {'KL':>8}" if a.kl else ""), flush=True)
    before = rows_before(a)
    for name in names:
        if name in before: print_row(before[name])
    names = [n for n in names if n not in before]
    with tempfile.TemporaryDirectory(dir=a.dir) as root, concurrent.futures.ProcessPoolExecutor(a.ahead) as pool:
        folders = [root + "/" + n for n in names]
        for f in folders: os.makedirs(f)
        jobs = [pool.submit(write, a, n, f) for n, f in list(zip(names, folders))[:a.ahead]]
        for i, name in enumerate(names):
            jobs[i].result()
            path = folders[i] + ("/m" if name.startswith("mlx") else "/m.gguf")
            try: row = measure(a, name, path, folders[i])
            except RuntimeError as e: row = {"storage": name, "error": str(e)}
            print_row(row)
            if a.jsonl: open(a.jsonl, "a").write(json.dumps(row) + "\n")
            shutil.rmtree(folders[i])
            if i + a.ahead < len(names): jobs.append(pool.submit(write, a, names[i + a.ahead], folders[i + a.ahead]))


if __name__ == "__main__":
    sys.exit(main())
