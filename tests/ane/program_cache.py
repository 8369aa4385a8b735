#!/usr/bin/env python3
"""Compiled programs in the cache folder: a second start compiles nothing; profile, weights and rows are told apart; what
is damaged is refused and written again; the answer never depends on it.

    program_cache.py SEGUE [faults]      faults: the build has SEGUE_FAULT. Exit 77: the Python packages are missing
"""
import json, os, shutil, subprocess, sys, tempfile

try:
    import gguf, tiny_llama
except ImportError as e:
    print(f"SKIP program_cache: {e}")
    sys.exit(77)

segue, faults = sys.argv[1], len(sys.argv) > 2
LAYERS = 3
UNIT = "ane:soft,layers=2"        # two programs


def answer(home, model, unit=UNIT, ids="1,2,3", fault=None):
    env = dict(os.environ, SEGUE_HOME=home)
    if fault: env["SEGUE_FAULT"] = fault
    r = subprocess.run([segue, "run", "-m", model, "--unit", unit, "--ids", ids, "-n", "4", "--greedy", "--ignore-eos", "--json",
                        "-q"], capture_output=True, text=True, env=env, timeout=500)
    assert r.returncode == 0, (r.returncode, r.stderr)
    o = json.loads(r.stdout)
    return o["weight_cache"], o["compiles"], o["ids"], o.get("weight_cache_reason")


def entries(home, ending=""):
    folder = os.path.join(home, "cache", "ane")
    return sorted(os.path.join(folder, n) for n in os.listdir(folder) if "." in n and n.endswith(ending))


def change_in_place(path, at, bits=0x15):
    with open(path, "r+b") as f:
        f.seek(at); old = f.read(1)
        f.seek(at); f.write(bytes([old[0] ^ bits]))


def compiled_once(tmp, model, ids):
    home = os.path.join(tmp, "once")
    assert answer(home, model) == ("written", 4, ids, None)           # 2 programs for 32 rows and 2 for one
    assert answer(home, model) == ("mapped", 0, ids, None)
    assert [len(entries(home, e)) for e in (".weights", ".program", ".packed")] == [2, 4, 2]
    info = json.loads(subprocess.run([segue, "cache", "info", "--json"], capture_output=True, env=dict(os.environ, SEGUE_HOME=home)).stdout)
    sizes = sum(os.path.getsize(e) for ending in (".weights", ".program", ".packed") for e in entries(home, ending))
    assert (info["program_files"], info["program_bytes"], info["packed_files"]) == (4, sizes, 0), info
    long = ",".join(str(i % 90) for i in range(70))
    packed, compiles, longer, _ = answer(home, model, ids=long)        # 64 rows: new texts, weights as they are
    assert (packed, compiles) == ("written", 2) and len(entries(home, ".weights")) == 2, (packed, compiles)
    assert answer(home, model, ids=long) == ("mapped", 0, longer, None)
    copy = os.path.join(tmp, "copy.gguf")                              # the same bytes under another name
    shutil.copyfile(model, copy)
    assert answer(home, copy) == ("mapped", 0, ids, None)
    packed, compiles, _, _ = answer(home, model, "ane:soft,layers=2,profile=ieee")
    assert (packed, compiles) == ("written", 4), (packed, compiles)    # another profile is another compiler
    packed, compiles, _, _ = answer(home, model, "ane:soft,layers=2,on_violation=faithful")
    assert (packed, compiles) == ("written", 4), (packed, compiles)
    assert answer(home, model) == ("mapped", 0, ids, None)


def changed_model(tmp):
    home, model = os.path.join(tmp, "changed"), os.path.join(tmp, "changed.gguf")
    tiny_llama.write(model, LAYERS, 1)
    old = answer(home, model)[2]
    s = os.stat(model)
    t = {t.name: t for t in gguf.GGUFReader(model).tensors}["blk.0.ffn_down.weight"]
    for at in range(3, int(t.n_bytes), 8): change_in_place(model, int(t.data_offset) + at, 0x80)   # every second sign
    os.utime(model, ns=(s.st_atime_ns, s.st_mtime_ns))
    packed, compiles, got, _ = answer(home, model)
    fresh = answer(os.path.join(tmp, "fresh"), model)[2]
    assert (packed, compiles, got) == ("written", 2, fresh) and fresh != old, (packed, compiles, got, fresh, old)
    assert answer(home, model) == ("mapped", 0, fresh, None)


def damaged(tmp, model, ids):
    home = os.path.join(tmp, "damaged")
    answer(home, model)
    for ending in (".weights", ".program", ".packed"):
        entry = entries(home, ending)[0]
        whole = open(entry, "rb").read()
        for at in (12, 60, 128, len(whole) - 1):
            change_in_place(entry, at)
            packed, compiles, got, why = answer(home, model)
            assert (packed, got) == ("written", ids) and "written again" in why, (ending, at, packed, why, got)
            assert compiles == (ending == ".program"), (ending, at, compiles)
            assert open(entry, "rb").read() == whole, (ending, at)
        for n in (100, len(whole) - 1):
            os.truncate(entry, n)
            packed, _, got, why = answer(home, model)
            assert (packed, got) == ("written", ids) and "truncated" in why, (ending, n, packed, why)
    assert answer(home, model) == ("mapped", 0, ids, None)


def nowhere(tmp, model, ids):
    home = os.path.join(tmp, "nowhere")
    open(home, "w").close()                                            # a file where the folder should be
    packed, compiles, got, why = answer(home, model)
    assert packed is None and compiles == 4 and got == ids and why, (packed, why)


def full_disk(tmp, model, ids):
    home, failed = os.path.join(tmp, "full"), 0
    for n in list(range(1, 12)) + [15, 20, 25, 30]:
        shutil.rmtree(home, ignore_errors=True)
        packed, compiles, got, why = answer(home, model, fault=f"write:{n}")
        assert got == ids and compiles == 4
        assert not [x for x in os.listdir(os.path.join(home, "cache", "ane")) if ".tmp-" in x]
        failed += why is not None and "space" in why
        again = answer(home, model)
        assert again[1:3][1] == ids and again[1] <= 1, again
    assert failed >= 8, failed


with tempfile.TemporaryDirectory() as folder:
    model = os.path.join(folder, "model.gguf")
    tiny_llama.write(model, LAYERS, 1)
    expected = answer(os.path.join(folder, "first"), model)[2]
    if faults:
        full_disk(folder, model, expected)
        print("program_cache: a full disk is survived")
        sys.exit(0)
    compiled_once(folder, model, expected)
    changed_model(folder)
    damaged(folder, model, expected)
    nowhere(folder, model, expected)
print("program_cache: compiled once, told apart, refused, replaced")
