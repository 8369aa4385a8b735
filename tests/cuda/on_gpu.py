#!/usr/bin/env python3
"""One command that validates the unit cuda on a GPU, with a bound on its time. Needs a build (`segue` and `check`) and an NVIDIA GPU.

    on_gpu.py BUILD [--unit cuda:0] [--out FOLDER] [--minutes 30] [--only STEP,...] [--again] [--list]
        [--jobs N] [--llama FOLDER] [--models FOLDER] [--stub]

Steps run in the order of `--list`, the most valuable ones first. Each prints one line, `STEP VERDICT FIGURES`, and adds one to
FOLDER/steps.jsonl; its raw output is beside it. VERDICT: ok, FAILED, missed (a goal of speed), cut off (of time), skipped (with the
reason), not begun. A step that ended with one of the first three is not repeated for the same build and GPU, unless --again: then of its
cases those that failed, its tables whole. One that was cut off goes on where it stopped. --llama: a folder with llama-bench, --models: where
models of random weights are written and left (61 GB; otherwise at most 30 GB in FOLDER, removed at the end). --stub, over the stub driver of
the tests, whose kernels do nothing: the smallest form of each step, without a judgement.
Exit: 1 when a step FAILED, 77 without a GPU, else 0. SPDX-License-Identifier: MIT
"""
import argparse, concurrent.futures, hashlib, json, os, re, signal, subprocess, sys, time

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [HERE]
FINAL = ("ok", "FAILED", "missed", "ran")
LEAST = 20      # seconds that a process needs to be of use


class Run:
    """One call of this script: what it tests, and until when."""

    def __init__(self, o):
        self.o, self.unit, self.stub, self.llama = o, o.unit, o.stub, o.llama
        self.segue, self.check = os.path.join(o.build, "segue"), os.path.join(o.build, "check")
        self.out = os.path.abspath(o.out)
        self.end = time.monotonic() + 60 * o.minutes
        self.jobs, self.children = 1, set()
        os.makedirs(self.out, exist_ok=True)

    def tests(self, key, memory):
        """The build and GPU, of which the raw output has a folder. A process of `check` takes up to about 2 GB of the GPU."""
        self.key, self.memory = key, memory
        self.jobs = self.o.jobs or max(1, min(8, (os.cpu_count() or 1) // 2, (memory or 0) >> 31))
        self.raw = os.path.join(self.out, re.sub("[^A-Za-z0-9]+", "-", " ".join(key.values())))
        os.makedirs(self.raw, exist_ok=True)

    def left(self): return self.end - time.monotonic()

    def spec(self, options=""): return self.unit + ("," + options if options else "")

    def path(self, name): return os.path.join(self.raw, name)

    def run(self, args, name=None, env=None):
        """(exit code, stdout, stderr) of a command, which is stopped with what it started at the end of the time: code None. name: a file
        for both."""
        if self.left() <= 0: return None, "", ""
        p = subprocess.Popen([str(a) for a in args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                             env={**os.environ, **(env or {})}, start_new_session=True)
        self.children.add(p)
        try:
            out, err = p.communicate(timeout=max(0, self.left()))
            code = p.returncode if self.left() > 0 else None
            kill_group(p)   # a test that failed may have left its server, which holds memory of the GPU
        except subprocess.TimeoutExpired:
            kill_group(p)
            code, (out, err) = None, p.communicate()
        self.children.discard(p)
        if name:
            with open(self.path(name), "w") as f: f.write("$ " + " ".join(map(str, args)) + "\n" + out + err)
        return code, out, err

    def stop(self, *_):
        """^C: nothing else begins."""
        self.end = 0
        for p in list(self.children): kill_group(p)
        raise KeyboardInterrupt


def kill_group(p):
    try: os.killpg(p.pid, signal.SIGKILL)
    except ProcessLookupError: pass


# --- cases of `check` ---

def case_names(run, spec, level, *more):
    code, out, err = run.run([run.check, "--level", level, "--unit", spec, "--list", *more])
    if code: raise RuntimeError(err.strip() or f"check --list: exit {code}")
    names = list(dict.fromkeys(line.split()[3] for line in out.splitlines() if line.startswith(level) and len(line.split()) > 3))
    if not names: raise RuntimeError("check --list: no cases")
    return names


def parts_of(names):
    """Names for one process each: at most 24 (a limit of check), fewer of whole layers, which take longer."""
    large = [n for n in names if n.startswith(("rank.", "tail.", "attendlong", "attenddeep"))]
    small = [n for n in names if n not in set(large)]
    return [g[i:i + k] for g, k in ((large, 6), (small, 24)) for i in range(0, len(g), k)]


def one_part(run, folder, number, spec, level, more, names):
    """(cases, failed, skipped, names of failed cases); None: no time was left. What is in the folder is not computed again."""
    done = os.path.join(folder, f"{number:03}.json")
    if os.path.exists(done):
        with open(done) as f: kept = json.load(f)
        if kept["names"] == names and not kept["failed"]: return kept
    if run.left() < LEAST and not run.stub: return None
    args = [run.check, "--level", level, "--unit", spec, "--json", *more]
    for n in names: args += ["--case", "=" + n]
    code, out, err = run.run(args)
    if code is None: return None
    try: lines = json.loads(out)["cases"]
    except (ValueError, KeyError): return {"names": names, "cases": 0, "skipped": 0, "failed": [f"{names[0]} ...: exit {code}: {err.strip()[-300:]}"]}
    bad = [c["case"] for c in lines if c["skipped"] is None and not c["ok"]]
    absent = [n for n in names if n not in {c["case"] for c in lines}]
    skipped = sum(c["skipped"] is not None for c in lines)     # if all are, check ends with an exit code for that
    if absent or (code and not bad and skipped < len(lines)): bad.append(f"{(absent or names)[0]} ...: exit {code}: {err.strip()[-300:]}")
    kept = {"names": names, "cases": len(lines), "skipped": skipped, "failed": bad}
    with open(done, "w") as f: json.dump(kept, f)
    return kept


def check_step(level, options="", *more):
    """Every case of a level, a process for some of them, several beside each other."""
    def step(run):
        spec, flags = run.spec(options), [*more]
        names = case_names(run, spec, level, *flags)
        if run.stub: names = names[:: max(1, len(names) // 12)]
        folder = run.path("-".join([level, options or "default", *[m.strip("-") for m in more]]).replace("=", ""))
        os.makedirs(folder, exist_ok=True)
        parts = parts_of(names)
        with concurrent.futures.ThreadPoolExecutor(run.jobs) as pool:
            kept = list(pool.map(lambda i: one_part(run, folder, i, spec, level, flags, parts[i]), range(len(parts))))
        ended = [k for k in kept if k]
        failed, cases = [n for k in ended for n in k["failed"]], sum(k["cases"] for k in ended)
        row = {"cases": cases, "failed": len(failed), "skipped": sum(k["skipped"] for k in ended), "names": failed[:20]}
        text = f"{cases} cases, {len(failed)} failed, {row['skipped']} skipped" + (": " + ", ".join(failed[:5]) if failed else "")
        if len(ended) < len(kept): text += f"; {sum(len(k['names']) for k in ended)} of {len(names)} names"
        return "FAILED" if failed else "cut off" if len(ended) < len(kept) else "skipped" if row["skipped"] == cases else "ok", text, row
    return step


def handoff_step(run):
    more = ["--quick"] if run.stub else []
    code, out, err = run.run([run.check, "--level", "handoff", "--unit", run.unit, "--unit", "cpu", *more], "handoff.txt")
    said = re.findall(r"check: .*cases.*", err)
    return "cut off" if code is None else "FAILED" if code else "ok", said[-1][7:] if said else f"exit {code}", {}


# --- whole programs ---

def script_step(path, folder="cli", **env):
    """A test that is a Python program of this repository; exit 77: skipped, with the line it prints."""
    def step(run):
        e = {"SEGUE_COMMAND": run.segue, "SEGUE_TEST_UNIT": run.spec("invariant=1"), "PYTHONPATH": os.path.join(SOURCE, "tests", folder), **env}
        code, out, err = run.run([sys.executable, os.path.join(SOURCE, "tests", path)], os.path.basename(path) + ".txt", env=e)
        last = (out.strip().splitlines() or err.strip().splitlines() or [""])[-1]
        return "cut off" if code is None else "skipped" if code == 77 else "FAILED" if code else "ok", last[:160], {}
    return step


def train_step(run):
    program = os.path.join(run.o.build, "tests", "train_goldens")
    if not os.path.exists(program): return "skipped", f"{program} is not built", {}
    code, out, err = run.run([program], "train_goldens.txt", env={"SEGUE_TEST_TRAIN_UNIT": run.unit})
    said = re.findall(r"\[  PASSED  \] (\d+)", out + err)
    return "cut off" if code is None else "FAILED" if code or not said else "ok", f"{said[-1] if said else 0} tests passed", {}


def texts_step(run):
    """Greedy texts of the default model: with graphs and without equal; beside cpu equal, or parted where two tokens are nearly tied."""
    prompts = ["Why is the sky blue?", "Name three rivers.", "def fib(n):"][: 1 if run.stub else 3]
    apart, equal = [], 0
    for p in prompts:
        ids = {}
        for unit in (run.unit, run.spec("graphs=0"), "cpu"):
            code, out, err = run.run([run.segue, "run", "-p", p, "-n", "8" if run.stub else "60", "--greedy", "--ignore-eos", "--unit", unit, "--logprobs", "5", "--json"])
            if code is None: return "cut off", f"{equal} prompts equal", {}
            if code: return ("skipped" if ": not installed;" in err else "FAILED"), err.strip()[-160:], {}
            ids[unit] = json.loads(out)
        mine, other, cpu = (ids[u] for u in (run.unit, run.spec("graphs=0"), "cpu"))
        if mine["ids"] != other["ids"]: return "FAILED", f"{p}: graphs=0 gives another text", {}
        at = next((i for i, (a, b) in enumerate(zip(mine["ids"], cpu["ids"])) if a != b), None)
        if at is None: equal += 1
        else: apart.append((p, at, gap_of(mine, at, cpu["ids"][at])))
    bad = [f"{p}: other token {at} with a gap of {gap:.3f}" for p, at, gap in apart if gap > 0.1]
    text = f"{len(prompts)} prompts, {equal} equal to cpu, {len(apart) - len(bad)} part at near-ties"
    return "FAILED" if bad else "ok", "; ".join([text, *bad]), {"equal": equal, "apart": apart}


def gap_of(answer, at, other):
    """Log-probability of the best minus that of another token of a position."""
    top = {t["id"]: t["logprob"] for t in answer["logprobs"][at]["top"]}
    return max(top.values(), default=float("inf")) - top.get(other, float("-inf"))


# --- compute-sanitizer ---

def sanitize_step(tool):
    """All cases of the op level under a tool, by sanitize.sh, in processes that end within ten minutes; continued by the next call."""
    def step(run):
        if run.stub: return "skipped", "kernels of the stub do nothing", {}
        env = {"OUT": run.path("sanitize"), "AT_ONCE": str(run.jobs), "LIMIT": "570", "UNTIL": str(int(time.time() + run.left() - 15)), "CARDS": "1"}
        if run.o.sanitizer: env["SANITIZER"] = run.o.sanitizer
        code, out, err = run.run(["sh", os.path.join(HERE, "sanitize.sh"), run.check, tool, run.spec("graphs=0")], tool + ".txt", env=env)
        last = (out.strip().splitlines() or [err.strip()[-160:]])[-1]
        if code == 3: return "skipped", err.strip()[-160:], {}
        n = [int(x) for x in re.findall(r"\d+", last)][:4]
        whole = code == 0 and n[0] > 0 and n[2:] == [0, 0]
        return "FAILED" if code == 1 else "ok" if whole else "cut off", last, dict(zip(("clean", "not_clean", "cut_off", "not_begun"), n))
    return step


def steps():
    """(name, minutes that it takes on an H200 with 16 processors, about; what it does; function)."""
    import on_gpu_tables as tables
    return [
        ("op", 3, "every operation, layers, prompts, batches against ref", check_step("op")),
        ("op.invariant", 3, "the same, independent of the batch", check_step("op", "invariant=1")),
        ("op.hopper0", 3, "the same without kernels of Hopper", check_step("op", "hopper=0")),
        ("op.packed2", 3, "the same, kernels of packed weights for any size", check_step("op", "packed=2")),
        ("op.seed2", 3, "the same as op, other cases", check_step("op", "", "--seed", "2")),
        ("handoff", 2, "states: streaming, forks, marks, cuts, to and from cpu", handoff_step),
        ("gradient", 2, "the backward pass against ref", check_step("gradient")),
        ("gradient.bf16", 1, "the same with products=3", check_step("gradient", "products=3")),
        ("goldens", 1, "training against transformers", train_step),
        ("replay", 1, "recorded answers repeat; a fault of one ulp is found", script_step("replay/replay.py")),
        ("texts", 1, "greedy texts with graphs, without, and of cpu", texts_step),
        ("batches", 1, "answers do not depend on other requests", script_step("serve/serve_deterministic.py", "serve")),
        ("rescale", 1, "powers of two between weights change no text", script_step("ane/rescale.py")),
        ("memcheck", 10, "compute-sanitizer over the op level", sanitize_step("memcheck")),
        ("synccheck", 10, "the same", sanitize_step("synccheck")),
        ("racecheck", 30, "the same", sanitize_step("racecheck")),
        *tables.steps(),
    ]


# --- the order of steps ---

def machine_of(run):
    """The GPU and the build, and the GPU's memory; a reason instead, where the unit is absent."""
    def ask(*args): return subprocess.run([run.segue, *args, "--json"], capture_output=True, text=True)
    units = ask("units")
    if units.returncode: return None, units.stderr.strip() or f"segue units: exit {units.returncode}"
    rows = [u for u in json.loads(units.stdout) if u["unit"].split(":")[0] == "cuda"]
    name = re.match(r"cuda(:\d+)?", run.unit)
    found = [u for u in rows if u["available"] and name and u["unit"] == (name[0] if name[1] else "cuda:0")]
    if not found: return None, next((u["reason"] for u in rows if u.get("reason")), f"no unit {run.unit}" if rows else "this build has no unit cuda")
    commit = json.loads(ask("version").stdout)["commit"]
    return {"gpu": found[0]["features"].split(",")[0], "commit": commit + ("" if commit.isalnum() and commit != "unknown" else "-" + digest(run)),
            "unit": run.unit}, found[0]["memory_bytes"]


def digest(run):
    """Of the programs, where their source is no commit."""
    h = hashlib.sha256()
    for path in (run.segue, run.check):
        with open(path, "rb") as f: h.update(f.read())
    return h.hexdigest()[:8]


def earlier(run, key):
    """Steps that ended before, for the same build and GPU."""
    try:
        with open(os.path.join(run.out, "steps.jsonl")) as f: rows = [json.loads(line) for line in f if line.strip()]
    except FileNotFoundError: return {}
    return {r["step"]: r for r in rows if all(r.get(k) == v for k, v in key.items())}


def one_step(run, name, minutes, function):
    """(verdict, text, row); an exception of a step is its failure, not that of the others."""
    if run.left() < min(60 * minutes, LEAST) and not run.stub: return "not begun", f"{max(0, run.left()) / 60:.1f} minutes are left", {}
    try: return function(run)
    except Exception as e: return "FAILED", f"{type(e).__name__}: {e}", {"error": str(e)}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("build"); ap.add_argument("--unit", default="cuda:0"); ap.add_argument("--out", default="on_gpu")
    ap.add_argument("--minutes", type=float, default=30); ap.add_argument("--only"); ap.add_argument("--again", action="store_true")
    ap.add_argument("--list", action="store_true"); ap.add_argument("--jobs", type=int); ap.add_argument("--llama")
    ap.add_argument("--models"); ap.add_argument("--sanitizer"); ap.add_argument("--stub", action="store_true")
    o = ap.parse_args()
    all_steps = steps()
    if o.list: return print("\n".join(f"{n:18} {m:3} min  {what}" for n, m, what, _ in all_steps))
    wanted = o.only.split(",") if o.only else [s[0] for s in all_steps]
    unknown = [w for w in wanted if w not in {s[0] for s in all_steps}]
    if unknown: ap.error(f"no such step: {unknown[0]}; --list has them")
    run = Run(o)
    for path in (run.segue, run.check, *([os.path.join(o.llama, "llama-bench")] if o.llama else [])):
        if not os.access(path, os.X_OK): ap.error(f"{path}: no such program; build it first")
    key, more = machine_of(run)
    if not key:
        print(f"SKIP on_gpu: no GPU: {more}")
        return 77
    run.tests(key, more)
    signal.signal(signal.SIGINT, run.stop)
    before, failed = {} if o.again else earlier(run, key), 0
    print(f"{key['gpu']}, build {key['commit']}, at most {o.minutes:g} minutes, to {run.out}", flush=True)
    for name, minutes, _, function in all_steps:
        if name not in wanted: continue
        if before.get(name, {}).get("verdict") in FINAL: row = {**before[name], "seconds": 0, "text": before[name]["text"] + " (before)"}
        else:
            begin = time.monotonic()
            verdict, text, more = one_step(run, name, minutes, function)
            if o.stub and verdict == "FAILED" and not more.get("error"): verdict = "ran"     # what the stub computes is not judged
            row = {"step": name, **key, "verdict": verdict, "seconds": round(time.monotonic() - begin, 1), "text": text, **more}
            with open(os.path.join(run.out, "steps.jsonl"), "a") as f: f.write(json.dumps(row) + "\n")
        failed += row["verdict"] == "FAILED"
        print(f"{name:18} {row['verdict']:9} {row['text']}, {row['seconds']:.0f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    try: sys.exit(main())
    except KeyboardInterrupt: sys.exit(130)
