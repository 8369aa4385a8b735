#!/usr/bin/env python3
"""`segue state` and --repair: info, rejection of damaged files, conversion, verification that fails if the slots do not belong to
the tokens, and repair from the tokens. SPDX-License-Identifier: MIT"""
import struct
from clitest import *

m, other = tiny_model(), tiny_model("other", seed=9)
base = ["run", "-m", m, "--greedy", "--ignore-eos", "--json"]
ask = lambda *a, **k: json.loads(run(*base, *a, **k)[1])
state = os.path.join(top.name, "a.state")
whole = ask("-p", "hello there", "-n", 20)
ask("-p", "hello there", "-n", 8, "--save", state)

# info: every field; the offsets are those of the file.
code, out, err = run("state", "info", state, "--json")
i = json.loads(out)
expect("info", code == 0 and {"format", "shape_id", "weights_id", "token_hash", "tokens", "storage", "layout", "unit", "kernels",
                              "version", "slots"} <= set(i), sorted(i))
expect("info of slots", all({"name", "layer", "kind", "storage", "shape", "first_pos", "end_pos", "offset", "bytes", "checksum"} == set(s)
                            for s in i["slots"]) and [s["name"] for s in i["slots"]] == ["k.0", "v.0", "k.1", "v.1"], i["slots"])
expect("info of the model", i["weights_id"] == whole["model"]["weights_id"] and i["bytes"] == os.path.getsize(state), i)
last = i["slots"][-1]
expect("offsets", last["offset"] + last["bytes"] == i["bytes"] and last["shape"][0] == last["end_pos"] == i["computed_tokens"], last)
code, out, err = run("state", "info", state)
expect("info as text", code == 0 and i["token_hash"] in out, out)

# Damaged files are rejected by every command.
broken = os.path.join(top.name, "broken.state")
content = open(state, "rb").read()
def damage(at, n=1):
    b = bytearray(content)
    for k in range(n): b[at + k] ^= 1
    open(broken, "wb").write(b)
    return broken
for at in (100, 300, len(content) - 1): refused(4, ["state", "info", damage(at)], "broken.state", "damaged")
open(broken, "wb").write(content[:-1])
refused(4, ["state", "verify", broken, "-m", m], "broken.state")
open(broken, "wb").write(b"hello")
refused(4, ["state", "info", broken], "not a state file")
refused(4, ["state", "rm", broken], "not a state file")
refused(1, ["state", "info", "/nowhere/x.state"], "/nowhere")
refused(2, ["state", "frob"], "frob")
refused(2, ["state", "info"], "FILE")

# convert: another data type, and safetensors.
q8 = os.path.join(top.name, "q8.state")
code, out, err = run("state", "convert", state, "--kv", "q8", "-o", q8, "--json")
j = json.loads(run("state", "info", q8, "--json")[1])
expect("convert", code == 0 and j["storage"] == "q8_0" and j["bytes"] < i["bytes"] and j["token_hash"] == i["token_hash"], (err, j))
expect("converted states can be continued", run(*base, "--load", q8, "-n", 3)[0] == 0)
f32 = os.path.join(top.name, "f32.state")
back = os.path.join(top.name, "back.state")
run("state", "convert", state, "--kv", "f32", "-o", f32)
run("state", "convert", f32, "--kv", "f16", "-o", back)
expect("to f32 and back: the same bytes", open(back, "rb").read() == content)
tensors = os.path.join(top.name, "a.safetensors")
run("state", "convert", state, "-o", tensors)
head = open(tensors, "rb").read()
table = json.loads(head[8:8 + struct.unpack("<Q", head[:8])[0]])
expect("tensors", {"tokens", "k.0", "v.0", "k.1", "v.1"} <= set(table) and table["k.0"]["shape"] == [2, i["computed_tokens"], 8], table)
dump = os.path.join(top.name, "dump.safetensors")
ids = ",".join(map(str, (whole["prompt_ids"] + whole["ids"])[:i["computed_tokens"]]))
run("eval", "-m", m, "--ids", ids, "--dump", dump)
d = open(dump, "rb").read()
dt = json.loads(d[8:8 + struct.unpack("<Q", d[:8])[0]])
expect("tensors have the shapes of a dump", all(table[k]["shape"] == dt[k]["shape"] for k in ("k.0", "v.1")), (table, dt))
refused(2, ["state", "convert", state, "--kv", "q8"], "-o")
refused(2, ["state", "convert", state, "-o", q8], "--kv")

# verify: exit 0; 4 for another model; 6 if slots differ although every checksum is right.
code, out, err = run("state", "verify", state, "-m", m, "--json")
v = json.loads(out)
expect("verify", code == 0 and v["ok"] and v["slots"] == 4 and v["slots_failed"] == 0 and v["max_error"] < v["bound"], (v, err))
expect("verify on ref", run("state", "verify", state, "-m", m, "--unit", "ref")[0] == 0)
refused(4, ["state", "verify", state, "-m", other], "a.state", "weights")
try:
    import ctypes, ctypes.util
    class Sum(ctypes.Structure): _fields_ = [("lo", ctypes.c_uint64), ("hi", ctypes.c_uint64)]
    xxh = ctypes.CDLL(ctypes.util.find_library("xxhash") or "libxxhash.so.0").XXH3_128bits_withSeed
    xxh.restype, xxh.argtypes = Sum, [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint64]
except (OSError, AttributeError):
    print("SKIP cli_state verify of a lie: no libxxhash")
else:   # the tokens of one state with the slots of another, and correct checksums
    swapped, lie = os.path.join(top.name, "swapped.state"), os.path.join(top.name, "lie.state")
    ask("-p", "HELLO THERE", "-n", 8, "--save", swapped)
    b = bytearray(open(swapped, "rb").read())
    at, n = struct.unpack("<Q", content[128:136])[0], 4 * i["tokens"]
    b[152:168], b[at:at + n] = content[152:168], content[at:at + n]
    open(lie, "wb").write(b)
    refused(4, ["state", "info", lie], "checksum")
    end = 448 + 80 * len(i["slots"])
    s = xxh(bytes(b[:end]), end, 2)
    b[end:end + 16] = struct.pack("<QQ", s.lo, s.hi)
    open(lie, "wb").write(b)
    expect("the forged file is consistent", run("state", "info", lie)[0] == 0)
    code, out, err = run("state", "verify", lie, "-m", m, "--json")
    expect("verify finds a state of other tokens", code == 6 and not json.loads(out)["ok"] and "differs" in err, (code, out, err))

# list and rm, by the name of a session.
ask("-p", "hi", "-n", 2, "--session", "one")
l = json.loads(run("state", "list", "--json")[1])
expect("list", [s["name"] for s in l["states"]] == ["one"] and l["states"][0]["tokens"] > 0, l)
expect("info by name", json.loads(run("state", "info", "one", "--json")[1])["bytes"] == l["states"][0]["bytes"])
run("state", "rm", "one")
expect("rm", json.loads(run("state", "list", "--json")[1])["states"] == [])

# --repair: the tokens are recomputed; without it exit 4.
refused(4, ["run", "-m", m, "--load", damage(len(content) - 1)], "broken.state")
o = ask("--load", broken, "--repair", "-n", 12)
expect("--repair continues", o["ids"] == whole["ids"][8:20] and o["reused_tokens"] == 0 and o["reuse_reason"] == "no-checkpoint", (o["ids"], o["reuse_reason"]))
o = json.loads(run("run", "-m", other, "--greedy", "--json", "--load", state, "--repair", "-n", 4)[1])
expect("--repair with another model", o["reuse_reason"] == "model-changed" and o["output_tokens"] > 0, o.get("reuse_reason"))
refused(4, ["run", "-m", m, "--load", damage(100), "--repair"], "broken.state")
code, out, err = run(*base, "--load", damage(100), "--repair", "-p", "hello there", "-n", 20)
expect("--repair with a prompt", code == 0 and json.loads(out)["ids"] == whole["ids"] and "broken.state" in err, err)

# The prefix store: on in chat, off elsewhere; off writes nothing.
cache = os.path.join(home, "cache", "prefixes")
long = "tell me of the sea, and of the ships that go on it, and of the winds"
lines = lambda *args, **k: json.loads(run("chat", "-m", m, "--greedy", "-n", 6, "--json", *args, stdin=long + "\nand?\n", **k)[1])
ask("-p", long, "-n", 4)
o = lines("--store", "off")
expect("--store off", not os.path.exists(cache) and o["turns"][0]["reuse_reason"] == "off" and o["turns"][0]["reused_tokens"] == 0, o["turns"][0]["reuse_reason"])
first = lines()
mode = lambda p: os.stat(p).st_mode & 0o777
expect("files of the prefix store", mode(cache) == 0o700 and os.listdir(cache) and {mode(os.path.join(cache, f)) for f in os.listdir(cache)} == {0o600}, os.listdir(cache))
expect("first use", first["turns"][0]["reuse_reason"] == "first-use", first["turns"][0]["reuse_reason"])
again = lines()
expect("after a restart", again["turns"][0]["reused_tokens"] >= again["turns"][0]["prompt_tokens"] - 1 and again["turns"][0]["reuse_reason"] == "all", again["turns"][0])
expect("the same answers", again["messages"] == first["messages"] == o["messages"])
o = ask("-p", long, "-n", 4, "--store", "on")
expect("run --store on", o["reused_tokens"] >= o["prompt_tokens"] - 1, (o["reused_tokens"], o["reuse_reason"]))
o = ask("-p", long, "-n", 4, "--store", "on", "--kv", "f32")
expect("another KV type reuses nothing", o["reused_tokens"] == 0, o["reused_tokens"])
o = ask("-p", long, "-n", 4, "--store", "on", "--unit", "ref")
expect("another unit reuses nothing", o["reused_tokens"] == 0, o["reused_tokens"])
for f in os.listdir(cache):
    b = bytearray(open(os.path.join(cache, f), "rb").read())
    b[-1] ^= 1
    open(os.path.join(cache, f), "wb").write(b)
o = lines()
expect("damaged entries are ignored", o["turns"][0]["reused_tokens"] == 0 and o["messages"] == first["messages"], o["turns"][0])
lines_file = write(top.name, "r.jsonl", "\n".join(json.dumps({"prompt": long + " " + str(i % 2), "tokens": 3, "greedy": True}) for i in range(6)))
replies = [json.loads(l) for l in run("run", "-m", m, "--requests", lines_file, "--parallel", 1, "--store", "on")[1].split("\n") if l]
expect("requests share the prefix store", len(replies) == 6 and all(r["reused_tokens"] > 0 for r in replies[1:]), [(r["reused_tokens"], r["reuse_reason"]) for r in replies])
expect("requests: the same answers", replies[0]["ids"] == replies[2]["ids"] == replies[4]["ids"])
run("cache", "clear")
expect("cache clear", not os.path.exists(cache) or not os.listdir(cache))
expect("a folder that cannot be created", run("chat", "-m", m, "-n", 2, stdin="x\n", SEGUE_HOME="/proc/nowhere")[0] == 0)
refused(1, ["run", "-m", m, "-p", "x", "--store", "on"], "nowhere", SEGUE_HOME="/proc/nowhere")
done()
