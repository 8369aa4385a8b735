"""The tables of on_gpu.py: speeds on models of random weights (docs/bench/random_gguf.py), each row written to STEP.jsonl as soon as
it is measured. A row that is there is not measured again. SPDX-License-Identifier: MIT"""
import json, os, shutil, subprocess, sys, tempfile

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BENCH = os.path.join(SOURCE, "docs", "bench")
sys.path[:0] = [BENCH]
DISK = 30 << 30                # bytes of models that are kept at a time
DEPTHS = (0, 4096, 16384, 65536, 131072)
FOUR = [("llama3-8b", "f16"), ("llama3.2-1b", "bf16"), ("qwen3.5-0.8b", "bf16"), ("smollm2-135m", "f16")]
UNTUNED = ["qwen3-4b", "qwen3.5-4b", "llama3.2-3b", "qwen3-1.7b", "gemma3-1b", "qwen3-0.6b", "smollm2-360m"]
# Decode at a depth: shape, storage, depth, options of the unit, goal in tok/s on an H200 (None: none is set).
ROWS = [("llama3-8b", "q4_k_m", 0, "", 500), ("qwen3.5-9b", "q4_0", 0, "", 500), ("qwen3.5-0.8b", "q4_0", 0, "", 2800),
        ("llama3.2-1b", "bf16", 0, "", 1400), ("llama3.2-1b", "bf16", 4096, "", 1300), ("llama3.2-1b", "bf16", 16384, "", 1030),
        ("qwen3.5-0.8b", "bf16", 0, "", 2000), ("qwen3.5-0.8b", "bf16", 4096, "", 1950), ("qwen3.5-0.8b", "bf16", 16384, "", 1750),
        ("llama3-8b", "f16", 0, "", 250), ("llama3-8b", "f16", 4096, "", 245), ("llama3-8b", "f16", 16384, "", 220),
        ("qwen3.5-0.8b", "bf16", 0, "hopper=0", 1300), ("llama3-8b", "q4_k_m", 0, "hopper=0", 380)]
# Prompts: shape, storage, tokens, options, goal in ms.
PROMPTS = [("qwen3.5-0.8b", "bf16", 2048, "", 6.5), ("qwen3.5-0.8b", "bf16", 410, "", 3.0), ("qwen3.5-0.8b", "bf16", 133, "", 2.0),
           ("llama3-8b", "q4_k_m", 410, "", 17), ("qwen3.5-0.8b", "bf16", 2048, "hopper=0", 11)]
SAMPLING = ["--temp", "0.8", "--top-k", "40", "--top-p", "0.95", "--min-p", "0.05"]


def small(run, cases):
    """Over the stub one of the smallest models."""
    return [c for c in cases if c[0] in ("smollm2-135m", "smollm2-360m", "qwen3.5-0.8b")][-1:] if run.stub else cases


class NoModel(RuntimeError):
    """A model that this GPU has no memory for, or that cannot be written here."""


class Models:
    """Models of random weights, made when they are needed; the one that was not used for longest is removed first."""

    def __init__(self, run):
        self.run, self.kept = run, {}
        self.own = None if run.o.models else tempfile.TemporaryDirectory(dir=run.out)
        self.folder = run.o.models or self.own.name
        os.makedirs(self.folder, exist_ok=True)

    def bytes_of(self, shape, storage):
        import random_gguf as r
        s = r.Shape(shape)
        per, size = r.gguf.GGML_QUANT_SIZES[r.storage_of(s, storage, "attn_q", 0, 256)]
        n = s.vocab * s.width * (1 if s.tied else 2) + sum(rows * cols for i in range(s.layers) for _, rows, cols in r.matrices(s, i))
        return n * size // per

    def path(self, shape, storage):
        try: import random_gguf as r
        except ImportError as e: raise NoModel(f"{e}; pip install gguf numpy") from None
        size = self.bytes_of(shape, storage)
        if not self.run.stub and self.run.memory and size > 0.9 * self.run.memory: raise NoModel(f"{size / 1e9:.1f} GB do not fit into this GPU")
        path = os.path.join(self.folder, f"{shape}-{storage}{'-stub' if self.run.stub else ''}.gguf")
        if not os.path.exists(path):
            self.make_room(size)
            r.write(shape, storage, path + ".part", *((2, 512) if self.run.stub else ()))
            os.replace(path + ".part", path)
        self.kept.pop(path, None)
        self.kept[path] = size
        return path

    def make_room(self, size):
        while self.own and self.kept and sum(self.kept.values()) + size > DISK:
            path = next(iter(self.kept))
            del self.kept[path]
            os.remove(path)
        if not self.run.stub and shutil.disk_usage(self.folder).free < 1.1 * size: raise NoModel(f"{size / 1e9:.1f} GB do not fit into {self.folder}")


class Table:
    """The rows of a step. add measures what is not there yet; verdict counts goals."""

    def __init__(self, run, step):
        self.run, self.path, self.rows, self.cut = run, run.path(step + ".jsonl"), [], False
        try:
            with open(self.path) as f: known = [json.loads(line) for line in f if line.strip()]
        except FileNotFoundError: known = []
        self.known = {r["case"]: r for r in known if not r.get("error")}

    def add(self, case, measure):
        """measure() returns the fields of a row, with `met` True or False where there is a goal; None: the time was over."""
        if case in self.known and not self.run.o.again: return self.rows.append(self.known[case])
        if self.cut or (self.run.left() < 30 and not self.run.stub):
            self.cut = True
            return
        try: row = measure()
        except NoModel as e: row = {"skipped": str(e)}
        if row is None:
            self.cut = True
            return
        row = {"case": case, **self.run.key, **row}
        self.rows.append(row)
        if "skipped" not in row:
            with open(self.path, "a") as f: f.write(json.dumps(row) + "\n")

    def verdict(self):
        """(verdict, text, fields of the step's row)"""
        measured, missed = [r for r in self.rows if "skipped" not in r], [r["case"] for r in self.rows if r.get("met") is False]
        errors = [f"{r['case']}: {r['error']}" for r in self.rows if r.get("error")]
        text = f"{len(measured)} rows" + (f", {len(missed)} below the goal: {', '.join(missed[:6])}" if missed else "")
        skipped = [f"{r['case']}: {r['skipped']}" for r in self.rows if "skipped" in r]
        if skipped: text += f", {len(skipped)} skipped ({skipped[0]})"
        if errors: return "FAILED", "; ".join(errors)[:300], {}
        if not measured: return "cut off" if self.cut else "skipped", skipped[0] if skipped else text, {}
        return "cut off" if self.cut else "missed" if missed and not self.run.stub else "ok", text, {"rows": len(measured), "missed": missed}


def bench(run, path, options, *args):
    """Rows of `segue bench`; None: no time; a row with `error` where it failed."""
    code, out, err = run.run([run.segue, "bench", "--unit", run.spec(options), "-m", path, "-o", "json", *args])
    if code is None: return None
    if code == 5: raise NoModel((err.strip().splitlines() or ["out of memory"])[-1])
    if code: return [{"error": (err.strip().splitlines() or [f"exit {code}"])[-1]}]
    return json.loads(out)


def llama_bench(run, path, depth):
    """Tokens per second of llama.cpp; None: it is not here or does not run the file."""
    if not run.llama: return None
    code, out, _ = run.run([os.path.join(run.llama, "llama-bench"), "-m", path, "-ngl", "99", "-fa", "1", "-p", "0", "-n", "128", "-d", depth, "-r", "2", "-o", "json"])
    return json.loads(out)[0]["avg_ts"] if code == 0 else None


def depth_step(run):
    """Time of a token at a depth over its time at depth 0 plus the K and V bytes at 70 % of the stream: at most 1. Depths that leave a
    tenth of the GPU's memory."""
    t = Table(run, "depth")
    for shape, storage in small(run, FOUR):
        def measure():
            path, size = run.models.path(shape, storage), run.models.bytes_of(shape, storage)
            depths = ["0", "8", "16"] if run.stub else [str(d) for d in DEPTHS if not run.memory or size + kv_bytes(shape) * d <= 0.9 * run.memory]
            rows = bench(run, path, "", "-p", "0", "-n", "4" if run.stub else "96", "-d", ",".join(depths), "-r", "2")
            if rows is None or "error" in rows[0]: return rows and rows[0]
            ratios = {str(r["n_depth"]): r["depth_ratio"] for r in rows}
            return {"tok_s": {str(r["n_depth"]): r["avg_ts"] for r in rows}, "depth_ratio": ratios,
                    "met": all(v is None or v <= 1 for v in ratios.values())}
        t.add(f"{shape} {storage}", measure)
    return t.verdict()


def kv_bytes(shape):
    """Of one position, in f16."""
    import random_gguf as r
    s = r.Shape(shape)
    return 4 * s.kv * s.head * attentions(s)


def attentions(s):
    import random_gguf as r
    return sum(s.arch != "qwen35" or (i + 1) % r.EVERY == 0 for i in range(s.layers))


def operations(shape, tokens, depth):
    """Products and attention of a prompt chunk behind `depth` positions; the head has one row."""
    import random_gguf as r
    s = r.Shape(shape)
    weights = sum(rows * cols for i in range(s.layers) for _, rows, cols in r.matrices(s, i))
    return 2 * weights * tokens + 4 * s.heads * s.head * attentions(s) * tokens * (depth + tokens / 2)


def prefill_depth_step(run):
    """A chunk of 512 tokens at depth 32,000 over its operations at the rate of depth 0: at most 1.3."""
    t = Table(run, "prefill-depth")
    deep = 64 if run.stub else 32000
    for shape, storage in small(run, FOUR[:3]):
        def measure():
            rows = bench(run, run.models.path(shape, storage), "", "-n", "0", "-p", "512" if not run.stub else "32", "-d", f"0,{deep}", "-r", "5", "--chunk", "512")
            if rows is None or "error" in rows[0]: return rows and rows[0]
            ms = [sorted(r["samples_ns"][2:])[len(r["samples_ns"][2:]) // 2] / 1e6 for r in rows]
            times = ms[1] / (ms[0] * operations(shape, 512, deep) / operations(shape, 512, 0))
            return {"ms": ms, "times_its_arithmetic": times, "met": times <= 1.3}
        t.add(f"{shape} {storage}", measure)
    return t.verdict()


def rows_step(run):
    """Decode of the cases with goals, in turn with llama.cpp where --llama names it. Goals are those of an H200."""
    t, goals = Table(run, "rows"), "H200" in run.key["gpu"]
    for shape, storage, depth, options, goal in small(run, ROWS):
        def measure():
            path = run.models.path(shape, storage)
            theirs = llama_bench(run, path, depth) if not options else None
            rows = bench(run, path, options, "-p", "0", "-n", "4" if run.stub else "128", "-d", min(depth, 16) if run.stub else depth, "-r", "3")
            if rows is None or "error" in rows[0]: return rows and rows[0]
            r = rows[0]
            return {"tok_s": r["avg_ts"], "share_of_stream": r["bandwidth_utilization"], "llama_tok_s": theirs, "goal": goal, "ids_hash": r["ids_hash"],
                    **({"met": r["avg_ts"] >= goal} if goals else {})}
        t.add(" ".join([shape, storage, f"depth {depth}", options]).strip(), measure)
    return t.verdict()


def prompts_step(run):
    t, goals = Table(run, "prompts"), "H200" in run.key["gpu"]
    for shape, storage, n, options, goal in small(run, PROMPTS):
        def measure():
            rows = bench(run, run.models.path(shape, storage), options, "-n", "0", "-p", min(n, 32) if run.stub else n, "-r", "12", "--chunk", "2048")
            if rows is None or "error" in rows[0]: return rows and rows[0]
            samples = sorted(rows[0]["samples_ns"][2:])
            ms = samples[len(samples) // 2] / 1e6
            return {"ms": ms, "goal": goal, **({"met": ms <= goal} if goals else {})}
        t.add(" ".join([shape, storage, f"{n} tokens", options]).strip(), measure)
    return t.verdict()


def sampling_step(run):
    """Decode with settings over greedy decode, and the time from the start of a process to its first token."""
    t = Table(run, "sampling")
    def decode(*flags):
        code, out, err = run.run([run.segue, "run", "-m", run.models.path("qwen3.5-0.8b", "bf16"), "--unit", run.unit, "--ids", "7,8,9,10,11", "-n", "8" if run.stub else "400",
                                  "--ignore-eos", "--seed", "1", "--json", *flags])
        if code == 5: raise NoModel((err.strip().splitlines() or ["out of memory"])[-1])
        return None if code is None else json.loads(out) if code == 0 else {"error": err.strip()[-200:]}
    greedy = None
    for name, flags, goal in (("greedy", ["--greedy"], None), ("top-k 40, top-p 0.95, min-p 0.05", SAMPLING, 0.93),
                              ("the same, repeat penalty 1.1", [*SAMPLING, "--repeat-penalty", "1.1"], 0.93), ("greedy, 5 log-probabilities", ["--greedy", "--logprobs", "5"], 0.9)):
        def measure():
            r = decode(*flags)
            if r is None or "error" in r: return r
            share = greedy and greedy.get("tok_s") and r["decode_tok_s"] / greedy["tok_s"]
            return {"tok_s": r["decode_tok_s"], "start_ms": r["start_ms"], "share_of_greedy": share, **({"met": share >= goal} if share and goal else {})}
        t.add(name, measure)
        greedy = greedy or (t.rows[0] if t.rows else None)
    return t.verdict()


def untuned_step(run):
    """Shapes that nobody tuned for: at least 60 % of the stream from 3 GB on, 45 % from 1 GB on."""
    t = Table(run, "untuned")
    for (shape,) in small(run, [(s,) for s in UNTUNED]):
        def measure():
            rows = bench(run, run.models.path(shape, "bf16"), "", "-p", "0", "-n", "4" if run.stub else "96", "-r", "3")
            if rows is None or "error" in rows[0]: return rows and rows[0]
            r, size = rows[0], run.models.bytes_of(shape, "bf16")
            goal = 0.6 if size >= 3e9 else 0.45 if size >= 1e9 else None
            return {"tok_s": r["avg_ts"], "share_of_stream": r["bandwidth_utilization"], "goal": goal,
                    **({"met": r["bandwidth_utilization"] >= goal} if goal else {})}
        t.add(f"{shape} bf16", measure)
    return t.verdict()


def storages_step(run):
    """docs/bench/storages.py: bytes, speed, share of the stream and KL divergence from ref of each storage."""
    args = [sys.executable, os.path.join(BENCH, "storages.py"), run.segue, "--unit", run.unit, "--jsonl", run.path("storages.jsonl"), "--kl", "--dir", run.out]
    if run.stub: args += ["--layers", "1", "--vocab", "512", "--only", "Q4_K,mlx4", "--sequences", "2", "--ahead", "1"]
    code, out, err = run.run(args, "storages.txt")
    if "No module named" in err: return "skipped", err.strip().splitlines()[-1] + "; pip install gguf numpy", {}
    try:
        with open(run.path("storages.jsonl")) as f: rows = list({r["storage"]: r for r in map(json.loads, f)}.values())   # the last of each
    except FileNotFoundError: rows = []
    bad = [f"{r['storage']}: {r['error']}" for r in rows if r.get("error")] + [f"{r['storage']}: KL {r['kl']:.2g}" for r in rows if (r.get("kl") or 0) > 2e-3]
    low = [r["storage"] for r in rows if not r.get("error") and (r["memory_ratio"] > 1.05 or r["share"] < 0.35)]
    text = f"{len(rows)} storages" + (f", {len(low)} below the goal: {', '.join(low)}" if low else "")
    verdict = "cut off" if code is None else "FAILED" if code or (bad and not run.stub) else "missed" if low and not run.stub else "ok"
    return verdict, "; ".join([text, *bad])[:300], {"rows": len(rows)}


def steps():
    def with_models(function):
        def step(run):
            run.models = getattr(run, "models", None) or Models(run)
            return function(run)
        return step
    return [("rows", 8, "decode of the cases with goals, beside llama.cpp with --llama", with_models(rows_step)),
            ("depth", 8, "a token at 4k to 131k over its time at depth 0 and the K and V bytes", with_models(depth_step)),
            ("prefill-depth", 4, "512 tokens at depth 32,000 over their arithmetic", with_models(prefill_depth_step)),
            ("prompts", 3, "prompts of the cases with goals", with_models(prompts_step)),
            ("sampling", 1, "settings over greedy; start of a process", with_models(sampling_step)),
            ("storages", 12, "each storage: bytes, speed, share of the stream, KL divergence", storages_step),
            ("untuned", 6, "shapes that nobody tuned for", with_models(untuned_step))]
