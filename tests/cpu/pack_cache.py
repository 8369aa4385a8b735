#!/usr/bin/env python3
"""The cache of packed weights through the command line: written, mapped, refused, replaced. The output never changes.

    pack_cache.py SEGUE [faults]      faults: the build has SEGUE_FAULT. Exit 77: the Python packages are missing
"""
import json, os, shutil, stat, subprocess, sys, tempfile

try:
    import gguf, numpy as np
except ImportError as e:
    print(f"SKIP pack_cache: {e}")
    sys.exit(77)

segue, faults = sys.argv[1], len(sys.argv) > 2
WIDTH, VOCAB = 256, 8192


def write(path, kind, seed):
    """A one-layer llama whose packed form is large enough to be cached."""
    rng = np.random.default_rng(seed)
    w = gguf.GGUFWriter(path, "llama")
    w.add_block_count(1); w.add_context_length(64); w.add_embedding_length(WIDTH); w.add_feed_forward_length(WIDTH)
    w.add_head_count(4); w.add_layer_norm_rms_eps(1e-5); w.add_vocab_size(VOCAB); w.add_rope_dimension_count(WIDTH // 4)
    shapes = {"token_embd": (VOCAB, WIDTH), "output": (VOCAB, WIDTH), "output_norm": (WIDTH,), "blk.0.attn_norm": (WIDTH,),
              "blk.0.ffn_norm": (WIDTH,)}
    shapes.update({f"blk.0.{n}": (WIDTH, WIDTH)
                   for n in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")})
    for name, shape in shapes.items():
        x = (rng.standard_normal(shape) * 0.1).astype(np.float32)
        if len(shape) == 1: w.add_tensor(name + ".weight", x)
        else: w.add_tensor(name + ".weight", gguf.quants.quantize(x, kind), raw_dtype=kind)
    w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()


def run(home, model, *more, fault=None):
    env = dict(os.environ, SEGUE_HOME=home)
    if fault: env["SEGUE_FAULT"] = fault
    return subprocess.run([segue, "run", "-m", model, "--unit", "cpu", "--ids", "1,2,3", "-n", "6", "--greedy", "--ignore-eos",
                           "--json", "-q", *more], capture_output=True, text=True, env=env)


def answer(home, model, *more, **other):
    r = run(home, model, *more, **other)
    assert r.returncode == 0, (r.returncode, r.stderr)
    o = json.loads(r.stdout)
    return o["weight_cache"], o["ids"], o.get("weight_cache_reason")


def entries(home, ending=".pack"):
    folder = os.path.join(home, "cache", "cpu")
    return sorted(os.path.join(folder, n) for n in os.listdir(folder) if n.endswith(ending)) if os.path.isdir(folder) else []


def change_in_place(path, at, keep_dates=True):
    """Flips bits of one byte; size, inode and, if asked, dates stay the same."""
    s = os.stat(path)
    with open(path, "r+b") as f:
        f.seek(at); old = f.read(1)
        f.seek(at); f.write(bytes([old[0] ^ 0x15]))
    if keep_dates: os.utime(path, ns=(s.st_atime_ns, s.st_mtime_ns))


def hit_and_miss(tmp, model, ids):
    home = os.path.join(tmp, "hit")
    assert answer(home, model) == ("written", ids, None)
    assert answer(home, model) == ("mapped", ids, None)
    assert answer(home, model, "-t", "1") == ("mapped", ids, None) == answer(home, model, "-t", "3")
    assert len(entries(home)) == 1
    copy = os.path.join(tmp, "copy.gguf")                          # a copy with the same bytes
    shutil.copyfile(model, copy)
    assert answer(home, copy) == ("mapped", ids, None)
    os.chmod(entries(home)[0], 0)                                  # unreadable (except for root): packed again
    assert answer(home, model)[1] == ids


def changed_model(tmp, kind, ids):
    """Some quants change in place, outside the sampled hash of the file, with unchanged dates: a new pack is made."""
    home, model = os.path.join(tmp, "changed"), os.path.join(tmp, "changed.gguf")
    write(model, kind, 1)
    assert answer(home, model) == ("written", ids, None)
    clean = answer(home, model)
    assert clean == ("mapped", ids, None)
    tensors = {t.name: t for t in gguf.GGUFReader(model).tensors}
    t = tensors["output.weight"]
    for row in range(0, VOCAB, 97):                                # enough rows to change the output
        change_in_place(model, int(t.data_offset) + row * int(t.n_bytes) // VOCAB + 9)
    fresh = answer(os.path.join(tmp, "fresh"), model)[1]
    packed, got, _ = answer(home, model)
    assert packed == "written" and got == fresh, (packed, got, fresh)
    assert answer(home, model) == ("mapped", fresh, None)


def damaged(tmp, model, ids):
    home = os.path.join(tmp, "damaged")
    answer(home, model)
    entry = entries(home)[0]
    whole = open(entry, "rb").read()
    rng = np.random.default_rng(5)
    sums_end = 104 + 16 * ((len(whole) - 4096 + (1 << 20) - 1) >> 20)  # header, one hash per MiB; zeros up to the data at 4096
    assert any(whole[sums_end - 8:sums_end]) and not any(whole[sums_end:4096])
    # every field of the header and every hash has 8 bytes or more
    for at in list(range(0, sums_end, 7)) + [sums_end - 1, 4096, 4097, len(whole) - 1] + [int(x) for x in rng.integers(4096, len(whole), 8)]:
        change_in_place(entry, at)
        packed, got, why = answer(home, model)
        assert got == ids and packed == "written" and why, (at, packed, why, got)
        assert open(entry, "rb").read() == whole, at
    for n in (0, 1, 103, 104, 4000, 4096, len(whole) // 2, len(whole) - 1):
        os.truncate(entry, n)
        packed, got, why = answer(home, model)
        assert (packed, got) == ("written", ids) and why, (n, packed, why)
    with open(entry, "ab") as f: f.write(b"x")
    assert answer(home, model)[:2] == ("written", ids)
    open(entry, "wb").write(os.urandom(len(whole)))
    assert answer(home, model)[:2] == ("written", ids)
    os.unlink(entry); os.mkdir(entry)                              # a folder with that name: not cached, not fatal
    packed, got, why = answer(home, model)
    assert packed is None and got == ids and why, (packed, why)
    os.rmdir(entry)
    other = os.path.join(tmp, "other.gguf")                        # the entry of another model under this key
    write(other, gguf.GGMLQuantizationType.Q8_0, 9)
    answer(home, model); ours = entries(home)[0]
    answer(home, other)
    theirs = [e for e in entries(home) if e != ours][0]
    shutil.copyfile(theirs, ours)
    assert answer(home, model)[:2] == ("written", ids)


def damaged_stamp(tmp, model, ids):
    """A corrupt stamp only means that the file is hashed."""
    home = os.path.join(tmp, "stamp")
    answer(home, model)
    for at in range(0, 72, 7):
        stamps = entries(home, ".seal")
        if stamps: change_in_place(stamps[0], at)
        assert answer(home, model)[:2] == ("mapped", ids)


def version(tmp, model, ids):
    """Another layout version in the header is refused and named as the reason."""
    home = os.path.join(tmp, "version")
    answer(home, model)
    entry = entries(home)[0]
    change_in_place(entry, 12)
    packed, got, why = answer(home, model)
    assert (packed, got) == ("written", ids) and "version" in why, (packed, why)


def two_at_once(tmp, model, ids):
    home = os.path.join(tmp, "both")
    env = dict(os.environ, SEGUE_HOME=home)
    command = [segue, "run", "-m", model, "--unit", "cpu", "--ids", "1,2,3", "-n", "6", "--greedy", "--ignore-eos", "--json", "-q",
               "-t", "1"]
    for _ in range(2):
        shutil.rmtree(home, ignore_errors=True)
        all_ = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, text=True) for _ in range(6)]
        for p in all_:
            out, err = p.communicate(timeout=500)
            assert p.returncode == 0, err
            o = json.loads(out)
            assert o["ids"] == ids and (o["weight_cache"] in ("written", "mapped") or "another process" in o["weight_cache_reason"]), o
        names = os.listdir(os.path.join(home, "cache", "cpu"))
        assert not [n for n in names if ".tmp-" in n] and len(entries(home)) == 1, names
        assert answer(home, model) == ("mapped", ids, None)


def nowhere(tmp, model, ids):
    home = os.path.join(tmp, "nowhere")
    open(home, "w").close()                                        # a file with the name of the folder
    packed, got, why = answer(home, model)
    assert packed is None and got == ids and why, (packed, why)
    r = subprocess.run([segue, "run", "-m", model, "--unit", "cpu", "--ids", "1,2", "-n", "1"], capture_output=True, text=True,
                       env=dict(os.environ, SEGUE_HOME=home))
    assert r.returncode == 0 and "not cached" in r.stderr, r.stderr


def killed(tmp, model, ids):
    """Temporary files of a killed writer are removed by the next one."""
    home = os.path.join(tmp, "killed")
    folder = os.path.join(home, "cache", "cpu")
    os.makedirs(folder)
    open(os.path.join(folder, "0123.pack.tmp-99999"), "wb").write(b"x" * 5000)
    assert answer(home, model) == ("written", ids, None)
    assert not [n for n in os.listdir(folder) if ".tmp-" in n]


def full_disk(tmp, model, ids):
    """Fails the first, second, ... write: no partial file remains, and the run succeeds."""
    home = os.path.join(tmp, "full")
    failed = 0
    for n in range(1, 40):
        shutil.rmtree(home, ignore_errors=True)
        packed, got, why = answer(home, model, fault=f"write:{n}")
        assert got == ids
        names = os.listdir(os.path.join(home, "cache", "cpu"))
        assert not [x for x in names if ".tmp-" in x], names
        if packed == "written": break
        assert packed is None and "space" in why, (n, packed, why)
        assert not entries(home)
        failed += 1
    assert failed >= 3, failed


def storages(tmp):
    """All weight storages give the same output from a mapped pack as from a new one, whatever the storage of K and V."""
    for name, kvs in (("Q8_0", ("f16", "q8")), ("Q4_1", ("f32",)), ("Q4_0", ("bf16",)), ("F16", ("f16",)), ("BF16", ("q8",)), ("F32", ("f32",))):
        kind, home, model = getattr(gguf.GGMLQuantizationType, name), os.path.join(tmp, "s" + name), os.path.join(tmp, name + ".gguf")
        write(model, kind, 3)
        for i, kv in enumerate(kvs):
            first, second = answer(home, model, "--kv", kv), answer(home, model, "--kv", kv)
            assert second[0] == "mapped" and first[1] == second[1], (name, kv, first, second)
            assert first[0] == ("mapped" if i else "written")


def shown_and_cleared(tmp):
    home = os.path.join(tmp, "hit")
    env = dict(os.environ, SEGUE_HOME=home)
    look = lambda verb: json.loads(subprocess.run([segue, "cache", verb, "--json"], capture_output=True, text=True, env=env).stdout)
    o = look("info")
    assert o["packed_files"] == 1 and o["packed_bytes"] == os.path.getsize(entries(home)[0]) <= o["bytes"], o
    assert look("clear")["cleared_bytes"] == o["bytes"] and not entries(home) and look("info")["packed_files"] == 0


# An entry is synced when it is written, which is slow on a disk. Stamps need a file system that records the time of each write.
memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory(dir=memory) as fast:
    model = os.path.join(folder, "model.gguf")
    write(model, gguf.GGMLQuantizationType.Q8_0, 1)
    expected = answer(os.path.join(folder, "first"), model)[1]
    if faults:
        full_disk(fast, model, expected)
        print("pack_cache: runs succeed on a full disk")
        sys.exit(0)
    hit_and_miss(folder, model, expected)
    changed_model(folder, gguf.GGMLQuantizationType.Q8_0, expected)
    damaged(fast, model, expected)
    damaged_stamp(folder, model, expected)
    version(fast, model, expected)
    two_at_once(fast, model, expected)
    nowhere(folder, model, expected)
    killed(folder, model, expected)
    storages(fast)
    shown_and_cleared(folder)
print("pack_cache: written, mapped, refused, replaced")
