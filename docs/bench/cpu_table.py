#!/usr/bin/env python3
"""The `cpu` unit beside llama.cpp: one command, every row of the table in docs/BENCH.md.

    docs/bench/cpu_table.py --llama BIN --models DIR [--segue build/segue] [--out ROWS.jsonl]
                            [--pairs 5] [-t 2] [--rows speed,batch,...] [--only NAME,...]

BIN holds llama-bench and llama-completion of release b11434. DIR holds q35-0.8b-{q4_0,q8_0,q4_k}.gguf (Qwen3.5-0.8B's
shape, random weights) and gpt2-f16.gguf; the default model comes from the data folder. A file that is missing is named and
its rows are left out. Rows:
  speed    prompt of 410 tokens and 128 generated, alternating pairs, in turns the first; each tool loads, warms up and
           repeats twice. A decode row also passes at 88 % of the stream that `segue bench` measures between its samples
  batch    4 sequences at once against one, alternating; and the ids of four prompts together against each alone
  depth    decode at depth 4,096 against 0;   long   prefill of 4,096 tokens against 410
  threads  4 threads on 2 cores against 2 threads, decode
  start    process start to end of one token, wall time, ten alternations against llama-completion
  memory   peak bytes of a warm start over weights + state + 20 MB
Nothing else should run; the machine's other tenants are why only ratios of one run are compared. Exit 1: a row failed.
SPDX-License-Identifier: MIT"""
import argparse, json, os, platform, shlex, statistics, subprocess, sys, tempfile, time

MODELS = {  # name: (file, decode, prefill, the share of the stream must hold as well)
    "SmolLM2-135M Q4_1": (None, 2.2, 9.0, False),
    "Qwen3.5-0.8B Q4_0": ("q35-0.8b-q4_0.gguf", 1.35, 3.2, False),
    "Qwen3.5-0.8B Q8_0": ("q35-0.8b-q8_0.gguf", 1.3, 5.5, False),
    "Qwen3.5-0.8B Q4_K": ("q35-0.8b-q4_k.gguf", 1.2, 2.5, False),
    "GPT-2 124M F16": ("gpt2-f16.gguf", 0.97, 1.7, True),
}
BATCH = {"Qwen3.5-0.8B Q8_0": 2.2, "SmolLM2-135M Q4_1": 1.5}
LONG = ("Qwen3.5-0.8B Q8_0", "Qwen3.5-0.8B Q4_0")
SHARE = 0.88
PROMPT = "Why is the sky blue, and why does it turn red when the sun goes down?"


def run(cmd, **more):
    r = subprocess.run(cmd, capture_output=True, text=True, **more)
    if r.returncode: sys.exit(f"failed ({r.returncode}): {shlex.join(cmd)}\n{r.stderr[-2000:]}")
    return r.stdout


def middle(values): return statistics.median(values)


class Table:
    def __init__(self, a):
        self.a, self.failed = a, 0
        self.out = open(a.out, "a") if a.out else None

    def row(self, kind, name, value, goal, more="", ok=None, **raw):
        ok = value >= goal if ok is None else ok
        self.failed += not ok
        sign = "≥" if raw.pop("least", True) else "≤"
        print(f"| {kind} | {name} | {value:.2f} | {sign} {goal:g} | {more} | {'yes' if ok else '**no**'} |", flush=True)
        if self.out:
            print(json.dumps(dict(row=kind, model=name, value=value, goal=goal, ok=bool(ok), **raw)), file=self.out, flush=True)

    def segue_bench(self, path, *more, threads=None):
        return json.loads(run([self.a.segue, "bench", "-m", path, "-t", str(threads or self.a.t), "-r", "2", "-o", "json", "--unit",
                               self.a.unit, *more]))

    def llama_bench(self, path, *more):
        return json.loads(run([os.path.join(self.a.llama, "llama-bench"), "-m", path, "-t", str(self.a.t), "-r", "2", "-fa", "1", "-o",
                               "json", *more]))

    def alternate(self, n, *what):
        """Each of `what` once per turn, in turns forwards and backwards; a list of results per entry."""
        got = [[] for _ in what]
        for i in range(n):
            for k in (range(len(what)) if i % 2 == 0 else reversed(range(len(what)))): got[k].append(what[k]())
        return got

    def speed(self, name, path, decode, prefill, both):
        length = ("-p", "410", "-n", "128")
        peer, mine = self.alternate(self.a.pairs, lambda: self.llama_bench(path, *length), lambda: self.segue_bench(path, *length))
        for phase, field, goal in (("prefill", "n_prompt", prefill), ("decode", "n_gen", decode)):
            pick = lambda rows: [next(r for r in x if r[field]) for x in rows]
            p, m = pick(peer), pick(mine)
            ratios = [x["avg_ts"] / y["avg_ts"] for x, y in zip(m, p)]
            ratio, ok, raw = middle(ratios), None, {}
            more = (f"{middle([x['avg_ts'] for x in m]):.1f} to {middle([y['avg_ts'] for y in p]):.1f} tok/s; "
                    f"pairs {min(ratios):.2f} to {max(ratios):.2f}")
            if phase == "decode" and m[0]["weight_read_gb_s"]:
                share = middle([x["bandwidth_utilization"] for x in m])
                more += (f"; {middle([x['weight_read_gb_s'] for x in m]):.1f} of {middle([x['memory_bandwidth_gb_s'] for x in m]):.1f} GB/s, "
                         f"{100 * share:.0f} % of the stream")
                ok = (ratio >= goal and share >= SHARE) if both else (ratio >= goal or share >= SHARE)
                raw = dict(share=share, gb_s=[x["weight_read_gb_s"] for x in m], memory_bandwidth_gb_s=[s for x in m for s in x["samples_memory_bandwidth_gb_s"]])
            self.row(phase, name, ratio, goal, more, ok, segue=[x["avg_ts"] for x in m], llama=[y["avg_ts"] for y in p], **raw)

    def against(self, kind, name, goal, base, other):
        one, two = self.alternate(self.a.pairs, base, other)
        ratios = [y / x for x, y in zip(one, two)]
        self.row(kind, name, middle(ratios), goal, f"{middle(two):.1f} to {middle(one):.1f} tok/s; pairs {min(ratios):.2f} to {max(ratios):.2f}",
                 one=one, two=two)

    def rate(self, path, *more, threads=None): return lambda: self.segue_bench(path, *more, threads=threads)[0]["avg_ts"]

    def batch(self, name, path):
        if name not in BATCH: return
        length = ("-p", "0", "-n", "64", "--sequences")
        self.against("4 sequences to one", name, BATCH[name], self.rate(path, *length, "1"), self.rate(path, *length, "4"))
        prompts = [PROMPT[i:] for i in (0, 7, 20, 33)]
        with tempfile.TemporaryDirectory() as tmp:
            requests = os.path.join(tmp, "requests.jsonl")
            with open(requests, "w") as f:
                for i, p in enumerate(prompts): f.write(json.dumps(dict(id=str(i), prompt=p, tokens=32, greedy=True, raw=True)) + "\n")
            ids = lambda n: [json.loads(l)["ids"] for l in run([self.a.segue, "run", "-m", path, "-t", str(self.a.t), "--unit", self.a.unit,
                                                                "--requests", requests, "--parallel", n]).strip().split("\n")]
            same = sum(x == y for x, y in zip(ids("1"), ids("4")))
        self.row("4 sequences, equal ids", name, same, 4, "of 4 prompts, 32 tokens each")

    def depth(self, name, path):
        if name in LONG:
            self.against("decode at depth 4,096 to 0", name, 0.85, self.rate(path, "-p", "0", "-n", "64"),
                         self.rate(path, "-p", "0", "-n", "64", "-d", "4096"))

    def long(self, name, path):
        if name in LONG:
            self.against("prefill 4,096 to 410", name, 0.8, self.rate(path, "-p", "410", "-n", "0"), self.rate(path, "-p", "4096", "-n", "0"))

    def threads(self, name, path):
        if name not in BATCH or not hasattr(os, "sched_setaffinity"): return
        all_cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, sorted(all_cores)[-2:])
        length = ("-p", "0", "-n", "64")
        self.against("4 threads on 2 cores to 2", name, 0.7, self.rate(path, *length, threads=2), self.rate(path, *length, threads=4))
        os.sched_setaffinity(0, all_cores)

    def start(self, name, path):
        def wall(cmd):
            def once():
                begun = time.monotonic()
                run(cmd, stdin=subprocess.DEVNULL)
                return time.monotonic() - begun
            return once
        mine = [self.a.segue, "run", "-m", path, "-p", PROMPT, "--raw", "-n", "1", "--greedy", "-t", str(self.a.t), "--unit", self.a.unit]
        peer = [os.path.join(self.a.llama, "llama-completion"), "-m", path, "-p", PROMPT, "-n", "1", "-no-cnv", "--no-warmup", "-t", str(self.a.t)]
        wall(mine)(), wall(peer)()  # the page cache and the cache folder are warm
        p, m = self.alternate(10, wall(peer), wall(mine))
        ratio = middle(m) / middle(p)
        self.row("start to first token", name, ratio, 0.5, f"{1e3 * middle(m):.0f} to {1e3 * middle(p):.0f} ms", ratio <= 0.5, least=False,
                 segue=m, llama=p)

    def memory(self, name, path):
        cmd = [self.a.segue, "run", "-m", path, "-p", PROMPT, "--raw", "-n", "16", "--greedy", "--json", "-t", str(self.a.t), "--unit", self.a.unit]
        run(cmd)
        r = json.loads(run(cmd))
        share = r["peak_bytes"] / (r["weight_bytes"] + r["state_bytes"] + 20e6)
        self.row("peak of a warm start", name, share, 1.15, f"{r['peak_bytes'] / 1e6:.0f} MB", share <= 1.15, least=False)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--llama", required=True); ap.add_argument("--models", required=True); ap.add_argument("--segue", default="build/segue")
    ap.add_argument("--pairs", type=int, default=5); ap.add_argument("-t", type=int, default=2); ap.add_argument("--unit", default="cpu")
    ap.add_argument("--out"); ap.add_argument("--only", default=""); ap.add_argument("--rows", default="speed,batch,depth,long,threads,start,memory")
    a = ap.parse_args()
    t = Table(a)
    default = json.loads(run([a.segue, "inspect", "--json"]))["path"]
    version = json.loads(run([a.segue, "version", "--json"]))
    cpu = platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        cpu = next((l.split(":")[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), cpu)
    print(f"{time.strftime('%Y-%m-%d %H:%M')}, segue {version['commit']}, {a.t} threads, {a.pairs} pairs, {os.cpu_count()} cores: {cpu}\n")
    print("| what | model | ratio | goal | segue to the other | passes |\n|---|---|--:|--:|---|---|")
    for name, (file, decode, prefill, both) in MODELS.items():
        path = os.path.join(a.models, file) if file else default
        if a.only and not any(o.lower() in name.lower() for o in a.only.split(",")): continue
        if not os.path.exists(path): print(f"SKIP {name}: {path}: no such file"); continue
        for kind in a.rows.split(","):
            if kind == "speed": t.speed(name, path, decode, prefill, both)
            else: getattr(t, kind)(name, path)
    sys.exit(1 if t.failed else 0)


main()
