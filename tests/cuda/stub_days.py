"""The command with a missing, full or failing GPU, over the stub driver: output and exit codes of `units` and `run`, that no
kernel is launched on a GPU with too little memory, and that a session continues on another unit when its GPU is lost.
stub_days.py SEGUE STUB_FOLDER DRIVER_H MODEL
SPDX-License-Identifier: MIT"""
import json
import os
import re
import subprocess
import sys
import tempfile

segue, stub, header, model = sys.argv[1:5]
failures = 0


def call(*args, library=stub, **env):
    whole = dict(os.environ, LD_LIBRARY_PATH=library, SEGUE_STUB_LOG="1", **env)
    return subprocess.run([segue, *args], env=whole, capture_output=True, text=True, timeout=500)


def expect(what, true, told=""):
    global failures
    if not true:
        failures += 1
        print(f"FAIL {what}: {told}")


def units(what, why, **env):
    r = call("units", "--json", **env)
    expect(f"units, {what}", r.returncode == 0, r.stderr)
    entry = next((u for u in json.loads(r.stdout) if u["unit"].startswith("cuda")), None)
    expect(f"units, {what}: absent", entry and entry["built"] and not entry["available"], r.stdout)
    expect(f"units, {what}: why", why in (entry or {}).get("reason", ""), (entry or {}).get("reason"))
    r = call("run", "--unit", "cuda:0", "-m", model, "--ids", "1,2", "-n", "1", **env)
    expect(f"run, {what}", r.returncode == 3, r.stderr)
    expect(f"run, {what}: one line", r.stderr.count("\n") == 1 and r.stderr.startswith("segue: "), r.stderr)


units("old driver", "too old", SEGUE_STUB="old")
units("no GPU", "no GPU", SEGUE_STUB="none")

# Every function that the unit looks up is missing once: its name in the library is changed.
whole = open(os.path.join(stub, "libcuda.so.1"), "rb").read()
needed, wished = open(header).read().split("#define CU_GREEN_FUNCTIONS")
symbols, parts = (re.findall(r'X\(\w+, "(cu\w+)"', text) for text in (needed, wished))
expect("symbols", len(symbols) > 40 and len(parts) == 7, (len(symbols), len(parts)))
for name in symbols + parts:
    old, new = b"\0" + name.encode() + b"\0", b"\0x" + name.encode()[1:] + b"\0"
    expect(f"{name} in the stub", old in whole)
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "libcuda.so.1"), "wb") as f:
            f.write(whole.replace(old, new))
        r = call("run", "--unit", "cuda:0", "-m", model, "--ids", "1,2", "-n", "1", library=folder)
        if name in parts: # an optional function: without SM partitions or tensor maps
            expect(f"without {name}", r.returncode == 0, r.stderr)
        else:
            expect(f"without {name}", r.returncode == 3 and name in r.stderr, r.stderr)

task = ["-m", model, "--ids", "1,2,3,4,5", "-n", "8", "--greedy", "--ignore-eos", "--json"]
r = call("run", "--unit", "cuda:0", *task)
said = json.loads(r.stdout or "{}")
expect("the report names the GPU", said.get("machine", {}).get("gpu") == "stub", said.get("machine"))
expect("and counts its memory", said.get("device_bytes", 0) == said.get("weight_bytes", 0) + said.get("state_bytes", 0) > 0 and
       said["peak_bytes"] > said["device_bytes"], {k: said.get(k) for k in ("device_bytes", "weight_bytes", "state_bytes", "peak_bytes")})
r = call("run", "--unit", "cuda:0", *task, SEGUE_STUB_MB="0")
expect("full GPU", r.returncode == 5 and "MB free" in r.stderr and "stub: launch" not in r.stderr, r.stderr)
r = call("run", "--unit", "cuda:0", *task, SEGUE_STUB="alloc:12")
expect("another process takes the memory", r.returncode == 5 and "MB free" in r.stderr, r.stderr)

alone = call("run", "--unit", "cpu", *task)
expect("cpu alone", alone.returncode == 0, alone.stderr)
want = json.loads(alone.stdout)["ids"]
for pair in (("cpu", "cuda:0"), ("cuda:0", "cpu")):
    r = call("run", "--prefill", pair[0], "--decode", pair[1], *task, SEGUE_STUB="lost:1")
    expect(f"lost at once, {pair}", r.returncode == 0 and json.loads(r.stdout)["ids"] == want, r.stderr or r.stdout[:300])
for n in (2, 40, 90):
    r = call("run", "--prefill", "cpu", "--decode", "cuda:0", *task, SEGUE_STUB=f"lost:{n}")
    expect(f"lost at launch {n}", r.returncode == 0 and len(json.loads(r.stdout)["ids"]) == 8, r.stderr)
r = call("run", "--unit", "cuda:0", *task, SEGUE_STUB="lost:3")
expect("lost with nowhere to go", r.returncode == 7 and "STUB_ERROR" in r.stderr, r.stderr)

r = call("run", "--unit", "cuda:0", *task)
expect("the report names the GPU", r.returncode == 0 and json.loads(r.stdout)["machine"]["gpu"] == "stub", r.stderr or r.stdout[:300])
o = json.loads(r.stdout) if r.returncode == 0 else {}
expect("and its memory", o and o["device_bytes"] == o["weight_bytes"] + o["state_bytes"], r.stdout[:300])

r = call("run", "--unit", "cuda:0,screen=1", *task)
expect("screened head", r.returncode == 0 and "screen=1" in json.loads(r.stdout)["units"][0]["unit"], r.stderr or r.stdout[:300])

for args in (("--unit", "cuda:0", "--storage", "fp8"), ("--prefill", "cpu", "--decode", "cuda:0,storage=fp8")):
    r = call("run", *args, *task)
    o = json.loads(r.stdout) if r.returncode == 0 else {}
    one = o["units"][-1].get("model", o["model"]) if o else {}
    expect(f"fp8, {args}", one.get("storage") == "fp8" and len(o["ids"]) == 8, r.stderr or r.stdout[:300])

# The stub's GPU uses 50 W. Phases of a few ms have too few samples; those of bench together last a second, which takes few runs if
# most of a run is measured: many launches each.
r = call("run", "--unit", "cuda:0", *task, "--meter", "nvml")
e = json.loads(r.stdout)["energy"] if r.returncode == 0 else {}
expect("energy of a run", e.get("meter") == "nvml" and e["sources"] == ["cuda:0"] and
       all(e[f"{k}_j"] is not None or "samples" in e[f"{k}_j_reason"] for k in ("prefill", "decode")), r.stderr or e)
r = call("bench", "--unit", "cuda:0", "-m", model, "-p", "100", "-n", "100", "--chunk", "4", "-r", "1", "--meter", "nvml", "-o", "json")
rows = [row["energy"] for row in json.loads(r.stdout)] if r.returncode == 0 else []
expect("energy in bench", len(rows) == 2 and 
       all(25 < row["power_w"] < 100 if row[f"{k}_j_per_token"] else "samples" in row[f"{k}_j_per_token_reason"]
           for k, row in zip(("prefill", "decode"), rows)), r.stderr or rows)
for args, env in ((("--unit", "cuda:0"), {"SEGUE_STUB_NVML": "deaf"}), (("--unit", "cpu"), {})):
    r = call("run", *args, *task, "--meter", "nvml", **env)
    expect(f"no meter, {args}", r.returncode == 3 and "meter" in r.stderr, r.stderr)

# Logits stay on the GPU until they are requested, which saving a session does.
with tempfile.TemporaryDirectory() as folder:
    state = os.path.join(folder, "a.state")
    r = call("run", "--unit", "cuda:0", *task, "--save", state)
    expect("saved", r.returncode == 0 and os.path.getsize(state) > 0, r.stderr)
    r = call("run", "--unit", "cpu", "-m", model, "--load", state, "-n", "2", "--greedy", "--json")
    expect("goes on elsewhere", r.returncode == 0 and len(json.loads(r.stdout)["ids"]) == 2, r.stderr)

n = 1
while n < 2500:
    for form in ("once", "from"):
        r = call("run", "--unit", "cuda:0", *task, SEGUE_STUB=f"{form}:{n}")
        expect(f"{form}:{n}", r.returncode in (0, 3, 7), f"{r.returncode} {r.stderr}")
    n += 1 + n
print(f"{len(symbols)} symbols, {failures} failures")
sys.exit(failures > 0)
