#!/usr/bin/env python3
"""Files that are sound to open and bad to use: weights or scales that are no numbers, and a mapped file that becomes
shorter while it is read.

    damage.py SEGUE        exit 77: the Python packages are missing
"""
import os, shutil, subprocess, sys, tempfile

try:
    import gguf, numpy as np
except ImportError as e:
    print(f"SKIP damage: {e}")
    sys.exit(77)

segue = sys.argv[1]


def write(path, kind, bad, scales={}, heads=None):
    """A one-layer llama; `bad` names the tensor that gets one NaN."""
    rng = np.random.default_rng(3)
    w = gguf.GGUFWriter(path, "llama")
    w.add_block_count(1); w.add_context_length(64); w.add_embedding_length(64); w.add_feed_forward_length(64)
    w.add_head_count(2)
    if heads: w.add_array("llama.attention.head_count_kv", heads)
    w.add_layer_norm_rms_eps(1e-5); w.add_vocab_size(32); w.add_rope_dimension_count(32)
    shapes = {"token_embd": (32, 64), "output_norm": (64,), "blk.0.attn_norm": (64,), "blk.0.ffn_norm": (64,)}
    shapes.update({f"blk.0.{n}": (64, 64) for n in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")})
    for name, shape in shapes.items():
        x = (rng.standard_normal(shape) * scales.get(name, 0.1)).astype(np.float32)
        if len(shape) == 1 or kind == gguf.GGMLQuantizationType.F32:
            if name == bad: x.flat[5] = np.nan
            w.add_tensor(name + ".weight", x)
            continue
        q = gguf.quants.quantize(x, kind)
        if name == bad: q.view(np.uint8).reshape(-1)[0:2] = (0, 0x7e)     # the first block's scale: a NaN half
        w.add_tensor(name + ".weight", q, raw_dtype=kind)
    w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()


def run(path, unit):
    return subprocess.run([segue, "run", "-m", path, "--unit", unit, "--ids", "1,2,3", "-n", "2", "--greedy"],
                          capture_output=True, text=True)


def numbers(tmp):
    path = os.path.join(tmp, "bad.gguf")
    for kind in (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_1):
        for unit in ("ref", "cpu"):
            write(path, kind, None)
            assert run(path, unit).returncode == 0, run(path, unit).stderr
            for bad in ("token_embd", "blk.0.ffn_down", "blk.0.attn_norm"):
                write(path, kind, bad)
                r = run(path, unit)
                assert r.returncode == 4 and bad in r.stderr and r.stderr.count("\n") == 1, (kind, unit, bad, r.returncode, r.stderr)


def overflow(tmp):
    """Weights that are numbers, but whose products are not: the same error in this process and in another one."""
    path = os.path.join(tmp, "big.gguf")
    write(path, gguf.GGMLQuantizationType.F32, None, {"output_norm": 3e37, "token_embd": 1e4})
    for unit in ("cpu", "proc:cpu", "ref", "proc:ref"):
        r = run(path, unit)
        assert r.returncode == 4 and r.stderr.count("\n") == 1, (unit, r.returncode, r.stderr)


def fractions(tmp):
    """A list with one number of heads per layer has whole numbers."""
    path = os.path.join(tmp, "heads.gguf")
    for heads, want in (([2], 0), ([2.5], 4)):
        write(path, gguf.GGMLQuantizationType.F32, None, heads=heads)
        r = run(path, "ref")
        assert r.returncode == want and (not want or "head_count_kv has the item 2.5" in r.stderr), (heads, r.returncode, r.stderr)


def too_large(tmp):
    """A file beyond the limit of the shell is an error of one line, and leaves nothing behind."""
    path, out = os.path.join(tmp, "sound.gguf"), os.path.join(tmp, "out")
    write(path, gguf.GGMLQuantizationType.F32, None)
    os.mkdir(out)
    r = subprocess.run(["sh", "-c", 'ulimit -f 1; exec "$@"', "sh", segue, "run", "-m", path, "--unit", "ref", "--ids", "1,2,3",
                        "-n", "2", "--save", os.path.join(out, "s.state")], capture_output=True, text=True,
                       env={**os.environ, "SEGUE_HOME": tmp})
    assert r.returncode == 1 and "File too large" in r.stderr and r.stderr.count("segue: ") >= 1, (r.returncode, r.stderr)
    assert os.listdir(out) == [], os.listdir(out)


def vanishing(tmp):
    """Cut the file short once the first text is out; `ref` reads weights from the map at every token."""
    home = os.environ.get("SEGUE_HOME")
    data = os.path.join(home, "data") if home else os.path.join(
        os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share"), "segue")
    model = os.path.join(data, "models", "SmolLM2-135M-Instruct.Q4_1.gguf")
    if not os.path.exists(model):
        print("damage: the default model is not in the data folder; the vanishing file was not tried")
        return
    copy = os.path.join(tmp, "copy.gguf")
    shutil.copyfile(model, copy)
    p = subprocess.Popen([segue, "run", "-m", copy, "--unit", "ref", "--raw", "-p", "Once upon a time", "-n", "500", "--greedy",
                          "--ignore-eos"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert p.stdout.read(1)
    os.truncate(copy, 4096)
    _, err = p.communicate(timeout=500)
    assert p.returncode == 1 and b"truncated while in use" in err, (p.returncode, err)


with tempfile.TemporaryDirectory() as folder:
    numbers(folder)
    overflow(folder)
    fractions(folder)
    too_large(folder)
    vanishing(folder)
print("damage: refused by name")
