#!/usr/bin/env python3
"""`segue quantize` against other programs: bytes of Q8_0, Q4_0, Q4_1, Q5_x, F16, BF16 equal those of the Python package
gguf; Q4_K and Q6_K stay below a root-mean-square error that the package's own reader sees; names, shapes and keys of a
Hugging Face folder written as GGUF are readable. Refusals: odd types, a full disk leaves nothing.

    quantize.py SEGUE CHECKPOINT-FOLDER        exit 77: the packages are missing
"""
import json, os, struct, subprocess, sys, tempfile

try:
    import gguf, numpy as np
except ImportError as e:
    print(f"SKIP quantize: {e}")
    sys.exit(77)

segue, folder = sys.argv[1:3]
TYPES = gguf.GGMLQuantizationType


def run(*args, code=0):
    r = subprocess.run([segue, "quantize", "--json", *args], capture_output=True, text=True)
    assert r.returncode == code, f"{args}: exit {r.returncode}, wanted {code}: {r.stderr}"
    return json.loads(r.stdout)


def tensors(path):
    return {t.name: t for t in gguf.GGUFReader(path).tensors}


def numbers_held(path):
    """Of a safetensors file, by its header: numpy has no bfloat16."""
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    return sum(int(np.prod(t["shape"])) for name, t in header.items() if name != "__metadata__")


def source_gguf(path, stored={}):
    """A GGUF with matrices whose rows divide into 256: Gaussian, heavy-tailed, and one with rows of 96."""
    rng = np.random.default_rng(5)
    w = gguf.GGUFWriter(path, "llama")
    w.add_block_count(1); w.add_context_length(64); w.add_embedding_length(256); w.add_feed_forward_length(96)
    w.add_head_count(4); w.add_layer_norm_rms_eps(1e-5); w.add_vocab_size(64); w.add_rope_dimension_count(64)
    for name, rows, cols in (("token_embd", 64, 256), ("output", 64, 256), ("blk.0.attn_q", 256, 256), ("blk.0.attn_k", 256, 256),
                             ("blk.0.attn_v", 256, 256), ("blk.0.attn_output", 256, 256), ("blk.0.ffn_gate", 96, 256),
                             ("blk.0.ffn_up", 96, 256), ("blk.0.ffn_down", 256, 96)):
        x = rng.standard_t(4, (rows, cols)) if "ffn" in name else rng.standard_normal((rows, cols))
        data, kind = stored.get(name + ".weight", (x.astype(np.float32), None))
        w.add_tensor(name + ".weight", data, raw_dtype=kind)
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        w.add_tensor(name + ".weight", np.ones(256, np.float32))
    w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()


def readings(tmp):
    """Random blocks of every type that gguf reads, as a whole matrix in a file: `quantize --type f32` gives the same numbers.
    gguf does not read Q8_K; its definition is a scale in f32, 256 numbers and sums, which are not needed."""
    rng, source, out = np.random.default_rng(12), os.path.join(tmp, "blocks.gguf"), os.path.join(tmp, "read.gguf")
    rows, cols = 64, 256
    places = {"Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82), "Q3_K": (108,),
              "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "TQ1_0": (52,), "TQ2_0": (64,), "IQ1_M": (), "MXFP4": (),
              "NVFP4": (), "Q8_K": (),
              **{n: (0,) for n in ("IQ4_NL", "IQ4_XS", "IQ3_S", "IQ3_XXS", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_S")}}
    for name, halves in places.items():
        kind = gguf.GGMLQuantizationType[name]
        block, size = gguf.GGML_QUANT_SIZES[kind]
        raw = rng.integers(0, 256, (rows * cols // block, size), dtype=np.uint8)
        scale = rng.uniform(-2, 2, len(raw)).astype(np.float16).view(np.uint16)
        for at in halves: raw[:, at:at + 2] = scale.view(np.uint8).reshape(-1, 2)
        if name == "MXFP4": raw[:, 0] = rng.integers(118, 134, len(raw))
        if name == "NVFP4": raw[:, :4] &= 0x77
        if name == "IQ1_M":   # the scale is spread over the upper bits of four words
            words = raw[:, 48:56].copy().view(np.uint16)
            for i in range(4): words[:, i] = (words[:, i] & 0x0fff) | ((scale >> (4 * i) & 15) << 12)
            raw[:, 48:56] = words.view(np.uint8)
        if name == "Q8_K":
            raw[:, :4] = rng.uniform(-2, 2, len(raw)).astype(np.float32).view(np.uint8).reshape(-1, 4)
            want = raw[:, :4].copy().view(np.float32) * raw[:, 4:260].copy().view(np.int8).astype(np.float32)
        else:
            want = gguf.quants.dequantize(raw.reshape(rows, -1), kind)
        source_gguf(source, {"token_embd.weight": (raw.reshape(rows, -1), kind)})
        run("-m", source, "-o", out, "--type", "f32")
        got = np.asarray(tensors(out)["token_embd.weight"].data, np.float32).reshape(rows, cols)
        want = want.reshape(rows, cols)
        assert np.isfinite(want).all() and (got == want).all(), (name, np.abs(got - want).max())
        os.remove(source), os.remove(out)
    kinds = {k.name for k in gguf.quants._type_traits} - {"F32", "F16", "BF16"}
    assert kinds <= set(places), kinds - set(places)


def vocabulary(tmp):
    """A GGUF without the key vocab_size, as published ones are: the rows of the embedding are the vocabulary, not the key, and
    without the embedding the list of tokens is; what is missing is said by its name."""
    def written(name, tokens=0, key=0, rows=0):
        path = os.path.join(tmp, name + ".gguf")
        w = gguf.GGUFWriter(path, "llama")
        w.add_block_count(1); w.add_context_length(64); w.add_embedding_length(32); w.add_feed_forward_length(32)
        w.add_head_count(2); w.add_layer_norm_rms_eps(1e-5); w.add_rope_dimension_count(16)
        if key: w.add_vocab_size(key)
        if tokens:
            w.add_tokenizer_model("llama"); w.add_token_list(["<unk>", "<s>", "</s>", *(f"t{i}" for i in range(tokens - 3))])
            w.add_token_scores([0.0] * tokens); w.add_token_types([2, 3, 3] + [1] * (tokens - 3))
        shapes = {"token_embd": (rows, 32), "output_norm": (32,), **{"blk.0." + n: (32,) for n in ("attn_norm", "ffn_norm")},
                  **{"blk.0." + n: (32, 32) for n in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up",
                                                      "ffn_down")}}
        for n, shape in shapes.items() if rows else (): w.add_tensor(n + ".weight", np.ones(shape, np.float32))
        w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()
        r = subprocess.run([segue, "inspect", "-m", path, "--json"], capture_output=True, text=True)
        os.remove(path)
        return r.returncode, json.loads(r.stdout)
    for tokens, key in ((70, 0), (72, 0), (70, 99), (0, 0)):
        code, o = written("rows", tokens, key, 72)
        assert code == 0 and o["numbers"]["vocab"] == 72, (tokens, key, code, o)
    code, o = written("more", 73, 0, 72)
    assert code == 4 and "73" in o["error"]["text"] and "72" in o["error"]["text"], (code, o)
    # Headers alone, with a list of tokens and without one.
    for name, tokens in (("header", 70), ("nothing", 0)):
        code, o = written(name, tokens)
        assert code == 4 and "no weights" in o["error"]["text"], (code, o)


def error_of(data, kind, right):
    """Root-mean-square error of stored blocks, relative to the numbers."""
    return float(np.sqrt(((gguf.quants.dequantize(data, kind) - right) ** 2).mean() / (right ** 2).mean()))


def layered_gguf(path, layers):
    """A llama with that many layers and two query heads per K and V head."""
    rng = np.random.default_rng(6)
    w = gguf.GGUFWriter(path, "llama")
    w.add_block_count(layers); w.add_context_length(64); w.add_embedding_length(256); w.add_feed_forward_length(256)
    w.add_head_count(4); w.add_head_count_kv(2); w.add_layer_norm_rms_eps(1e-5); w.add_rope_dimension_count(64)
    shapes = {"attn_q": 256, "attn_k": 128, "attn_v": 128, "attn_output": 256, "ffn_gate": 256, "ffn_up": 256, "ffn_down": 256}
    for name, rows in [("token_embd", 64), ("output", 64)] + [(f"blk.{i}.{n}", r) for i in range(layers) for n, r in shapes.items()]:
        w.add_tensor(name + ".weight", (rng.standard_normal((rows, 256)) * 0.1).astype(np.float32))
    for name in ["output_norm"] + [f"blk.{i}.{n}" for i in range(layers) for n in ("attn_norm", "ffn_norm")]:
        w.add_tensor(name + ".weight", np.ones(256, np.float32))
    w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()


# What llama-quantize gives to eight layers: attn_v, ffn_down, attn_output of each, then all other matrices; and its file type.
# 'More bits' are layers 0, 3, 6 and 7: the first and last eighth, and every third between.
MORE = (0, 3, 6, 7)
MIXTURES = {
    "Q4_K_M": (lambda i: ("Q6_K" if i in MORE else "Q4_K",) * 2 + ("Q4_K",), "Q4_K", 15),
    "Q4_K_S": (lambda i: ("Q5_K" if i < 4 else "Q4_K", "Q5_K" if i < 1 else "Q4_K", "Q4_K"), "Q4_K", 14),
    "q5_k_m": (lambda i: ("Q6_K" if i in MORE else "Q5_K",) * 2 + ("Q5_K",), "Q5_K", 17),
    "q5_k_s": (lambda i: ("Q5_K",) * 3, "Q5_K", 16),
    "Q3_K_M": (lambda i: ("Q5_K" if i < 2 else "Q4_K", "Q4_K", "Q4_K"), "Q3_K", 12),
    "Q3_K_L": (lambda i: ("Q5_K",) * 3, "Q3_K", 13),
    "Q3_K_S": (lambda i: ("Q3_K",) * 3, "Q3_K", 11),
    "Q2_K": (lambda i: ("Q3_K",) * 3, "Q2_K", 10),
    "Q2_K_S": (lambda i: ("Q2_K", "Q4_K" if i < 1 else "Q2_K", "Q2_K"), "Q2_K", 21),
}


def mixtures(tmp):
    source, out = os.path.join(tmp, "eight.gguf"), os.path.join(tmp, "mixed.gguf")
    layered_gguf(source, 8)
    for name, (per_layer, base, file_type) in MIXTURES.items():
        r = subprocess.run([segue, "quantize", source, out, name, "2"], capture_output=True, text=True)   # as llama-quantize is called
        assert r.returncode == 0, (name, r.stderr)
        got = tensors(out)
        for i in range(8):
            kinds = tuple(got[f"blk.{i}.{n}.weight"].tensor_type.name for n in ("attn_v", "ffn_down", "attn_output"))
            assert kinds == per_layer(i), (name, i, kinds)
            for n in ("attn_q", "attn_k", "ffn_gate", "ffn_up"): assert got[f"blk.{i}.{n}.weight"].tensor_type.name == base, (name, i, n)
        assert got["output.weight"].tensor_type.name == "Q6_K" and got["token_embd.weight"].tensor_type.name == base, name
        field = gguf.GGUFReader(out).fields["general.file_type"]
        assert int(field.parts[field.data[0]][0]) == file_type, name
        if name not in ("Q2_K", "Q3_K_M", "q5_k_m"): continue
        r = subprocess.run([segue, "run", "-m", out, "--ids", "1,2,3", "-n", "2", "--greedy"], capture_output=True, text=True)
        assert r.returncode == 0, (name, r.stderr)
    r = subprocess.run([segue, "quantize", source, "Q4_K_M"], capture_output=True, text=True)
    assert r.returncode == 0 and os.path.exists(os.path.join(tmp, "eight-Q4_K_M.gguf")), r
    for name in ("eight.gguf", "mixed.gguf", "eight-Q4_K_M.gguf"): os.remove(os.path.join(tmp, name))


def main():
    with tempfile.TemporaryDirectory() as tmp:
        vocabulary(tmp)
        readings(tmp)
        source, out = os.path.join(tmp, "in.gguf"), os.path.join(tmp, "out.gguf")
        source_gguf(source)
        plain = {n: np.array(t.data) for n, t in tensors(source).items()}
        for kind in ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "f16", "bf16"):
            run("-m", source, "-o", out, "--type", kind)
            got = tensors(out)
            want = TYPES[kind.upper()]
            for name in ("blk.0.attn_q.weight", "blk.0.ffn_up.weight", "blk.0.ffn_down.weight"):
                assert got[name].tensor_type == want, (kind, name, got[name].tensor_type)
                right = np.ascontiguousarray(gguf.quants.quantize(plain[name], want)).view(np.uint8).ravel()
                assert np.array_equal(np.ascontiguousarray(got[name].data).view(np.uint8).ravel(), right), (kind, name)
            assert got["blk.0.attn_norm.weight"].tensor_type == TYPES.F32
        # Bounds: llama-quantize (release b11434) on the same distributions reaches 0.0714 and 0.0178 (normal), 0.089 and
        # 0.025 (Student's t with 4 degrees of freedom); five per cent above is the limit.
        for kind, normal, tails in (("q4_k", 0.0749, 0.094), ("q6_k", 0.0187, 0.0263)):
            r = run("-m", source, "-o", out, "--type", kind)
            got = tensors(out)
            assert got["output.weight"].tensor_type == TYPES.Q6_K
            assert [f["name"] for f in r["fallbacks"]] == ["blk.0.ffn_down.weight"], r
            assert got["blk.0.ffn_down.weight"].tensor_type == (TYPES.Q5_0 if kind == "q4_k" else TYPES.Q8_0)
            for name, bound in (("blk.0.attn_q.weight", normal), ("blk.0.ffn_up.weight", tails)):
                back = gguf.quants.dequantize(got[name].data, got[name].tensor_type)
                error = float(np.sqrt(((back - plain[name]) ** 2).mean() / (plain[name] ** 2).mean()))
                assert error <= bound, (kind, name, error)
        # The other K types against what the package gguf makes of the same numbers in types of about as many bits.
        plain_q = plain["blk.0.attn_q.weight"]
        simple = {k: error_of(gguf.quants.quantize(plain_q, TYPES[k]), TYPES[k], plain_q) for k in ("Q4_0", "Q4_1", "Q5_1")}
        for kind, bound in (("q5_k", simple["Q5_1"]), ("q4_k", simple["Q4_1"]), ("q3_k", 2 * simple["Q4_0"]), ("q2_k", 4 * simple["Q4_0"])):
            run("-m", source, "-o", out, "--type", kind)
            t = tensors(out)["blk.0.attn_q.weight"]
            error = error_of(t.data, t.tensor_type, plain_q) if t.tensor_type.name == kind.upper() else t.tensor_type
            assert error <= bound, (kind, error, bound)
        mixtures(tmp)
        run("-m", folder, "-o", out, "--type", "f32")
        total = sum(int(np.prod(t.shape)) for t in tensors(out).values())
        held = numbers_held(os.path.join(folder, "model.safetensors"))
        assert total == held, (total, held)
        os.remove(out)
        run("-m", source, "-o", out, "--type", "q9_k", code=2)
        run("-m", source, "-o", "/dev/full/x.gguf", "--type", "q8_0", code=1)
        assert sorted(os.listdir(tmp)) == ["in.gguf"], os.listdir(tmp)
        # The input is never replaced, also not through a link; a quantised input is reported.
        with open(source, "rb") as f: before = f.read()
        link = os.path.join(tmp, "link.gguf")
        os.symlink("in.gguf", link)
        for name in (source, link, os.path.join(tmp, ".", "in.gguf")): run("-m", source, "-o", name, "--type", "q8_0", code=2)
        with open(source, "rb") as f: assert f.read() == before
        assert run("-m", source, "-o", out, "--type", "q8_0")["requantized"] == 0
        r = subprocess.run([segue, "quantize", "-m", out, "-o", out + "2", "--type", "q4_0"], capture_output=True, text=True)
        assert r.returncode == 0 and "already quantised" in r.stderr, r
        assert run("-m", out, "-o", out + "2", "--type", "f16")["requantized"] == 0
    print("quantize: 7 types byte-equal to gguf, Q4_K and Q6_K within bounds")


main()
