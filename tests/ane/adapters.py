#!/usr/bin/env python3
"""Adapters as inputs: two adapters in one file of requests on the unit `ane` compile what the first one compiles, and give
the texts that merged weights give; a third request without any gives the model's own.

    adapters.py SEGUE SOURCE      Exit 77: NumPy is missing
"""
import json, os, subprocess, sys, tempfile

try:
    import numpy as np
except ImportError as e:
    print(f"SKIP ane_adapters: {e}")
    sys.exit(77)

segue, source = sys.argv[1:3]
TINY = os.path.join(source, "tests", "golden", "tiny", "llama")
UNIT = "ane:soft,layers=2,threads=2"


def read(path):
    raw = open(path, "rb").read()
    n = int.from_bytes(raw[:8], "little")
    head, out = json.loads(raw[8:8 + n]), {}
    head.pop("__metadata__", None)
    for name, t in head.items():
        a, b = t["data_offsets"]
        data = raw[8 + n + a:8 + n + b]
        if t["dtype"] == "BF16": x = (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
        else: x = np.frombuffer(data, {"F32": "<f4", "F16": "<f2"}[t["dtype"]]).astype(np.float32)
        out[name] = x.reshape(t["shape"])
    return out


def write(path, tensors):
    head, at, parts = {}, 0, []
    for name, x in tensors.items():
        data = np.ascontiguousarray(x, "<f4").tobytes()
        head[name] = {"dtype": "F32", "shape": list(x.shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
        parts.append(data)
    text = json.dumps(head).encode()
    with open(path, "wb") as f: f.write(len(text).to_bytes(8, "little") + text + b"".join(parts))


def adapter(folder, model, targets, rank, alpha, seed):
    """A PEFT folder; returns the model's tensors with it merged in."""
    rng, low, merged = np.random.default_rng(seed), {}, dict(model)
    os.mkdir(folder)
    for name, w in model.items():
        target = name.removesuffix(".weight").rsplit(".", 1)[-1]
        if target not in targets or w.ndim != 2: continue
        a = (rng.standard_normal((rank, w.shape[1])) * 0.2).astype(np.float32)
        b = (rng.standard_normal((w.shape[0], rank)) * 0.2).astype(np.float32)
        stem = "base_model.model." + name.removesuffix(".weight")
        low[stem + ".lora_A.weight"], low[stem + ".lora_B.weight"] = a, b
        merged[name] = w + alpha / rank * (b @ a)
    assert low
    write(os.path.join(folder, "adapter_model.safetensors"), low)
    json.dump({"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "target_modules": sorted(targets), "bias": "none",
               "fan_in_fan_out": False, "modules_to_save": None, "use_dora": False, "use_rslora": False, "alpha_pattern": {},
               "rank_pattern": {}}, open(os.path.join(folder, "adapter_config.json"), "w"))
    return merged


def model_of(folder, tensors):
    os.mkdir(folder)
    write(os.path.join(folder, "model.safetensors"), tensors)
    with open(os.path.join(folder, "config.json"), "w") as f: f.write(open(os.path.join(TINY, "config.json")).read())
    return folder


def run(model, *more, unit=UNIT):
    r = subprocess.run([segue, "run", "-m", model, "--unit", unit, "-n", "6", "--greedy", "--ignore-eos", "--json", "-q",
                        "--logprobs", "5", *more], capture_output=True, text=True, timeout=500)
    assert r.returncode == 0, (more, r.stderr, r.stdout)
    return [json.loads(line) for line in r.stdout.splitlines() if line.startswith("{")]


def same(got, want, what):
    """Tokens are equal until one of two that were as good as equal was taken; probabilities within fp16's bound."""
    for a, b in zip(got["logprobs"], want["logprobs"]):
        top = {t["id"]: t["logprob"] for t in b["top"]}
        if a["id"] != b["id"]:
            assert a["id"] in top and b["logprob"] - top[a["id"]] < 0.03, (what, a, b)
            return
        assert abs(a["logprob"] - b["logprob"]) < 0.03, (what, a, b)


with tempfile.TemporaryDirectory() as tmp:
    os.environ["SEGUE_HOME"] = os.path.join(tmp, "home")               # nothing is compiled yet
    base = read(os.path.join(TINY, "model.safetensors"))
    plain = model_of(os.path.join(tmp, "plain"), base)
    one, two, many = (os.path.join(tmp, n) for n in ("one", "two", "many"))
    merged = {one: adapter(one, base, {"q_proj", "v_proj", "down_proj"}, 4, 8.0, 1),
              two: adapter(two, base, {"q_proj", "k_proj", "o_proj", "gate_proj", "up_proj"}, 8, 16.0, 2)}
    merged[many] = adapter(many, base, {"v_proj"}, 40, 20.0, 3)        # more than the least number of columns
    prompt = [3, 17, 9, 41, 5, 23, 8]
    lines = os.path.join(tmp, "requests.jsonl")
    wanted = [(one, one), (two, two), (None, None), (one, one), ([one, two], None)]
    with open(lines, "w") as f:
        for lora, _ in wanted: f.write(json.dumps({"ids": prompt, "lora": lora}) + "\n")
    for parallel in ("1", "4"):
        got = run(plain, "--requests", lines, "--parallel", parallel)
        assert len(got) == len(wanted), got
        if parallel == "1":
            compiles = [o["compiles"] for o in got]
            assert compiles[0] > 0 and compiles[1] == compiles[0], compiles     # another adapter compiles nothing
            assert compiles[3] == compiles[4] == compiles[2], compiles
        for (lora, key), o in zip(wanted, got):
            if key:
                folder = os.path.join(tmp, "merged_" + os.path.basename(key))
                if not os.path.isdir(folder): model_of(folder, merged[key])
                same(o, run(folder, "--ids", ",".join(map(str, prompt)), unit="cpu:threads=2")[0], (parallel, key))
            elif lora is None:
                same(o, run(plain, "--ids", ",".join(map(str, prompt)), unit="cpu:threads=2")[0], (parallel, "none"))
            else:
                both = {n: merged[one][n] + merged[two][n] - base[n] for n in base}
                folder = os.path.join(tmp, "merged_both")
                if not os.path.isdir(folder): model_of(folder, both)
                same(o, run(folder, "--ids", ",".join(map(str, prompt)), unit="cpu:threads=2")[0], (parallel, "both"))
    folder = model_of(os.path.join(tmp, "merged_many"), merged[many])
    same(run(plain, "--lora", many, "--ids", ",".join(map(str, prompt)))[0],
         run(folder, "--ids", ",".join(map(str, prompt)), unit="cpu:threads=2")[0], "rank 40")
    got = [tuple(o["ids"]) for o in run(plain, "--requests", lines, "--parallel", "1")]
    assert got[0] != got[2] and got[1] != got[2], got                 # the adapters do change the texts
print("ane_adapters: inputs, not compiles; as merged weights")
