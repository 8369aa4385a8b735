#!/usr/bin/env python3
"""Energy of phases: a run over a powercap tree whose counters a thread advances at a known power, and `segue energy` over traces and
logs with known joules. The logs follow the formats of powermetrics(1) (text, and -f plist, which asitop records) and are written
here; plistlib is the other reader of the latter. SPDX-License-Identifier: MIT"""
import contextlib, csv, datetime, plistlib, threading, time
from clitest import *

# --- RAPL: 40 W package, 10 W core. The counters move when the thread gets to run, so each bound has room for its longest pause ---
tree, WATTS = os.path.join(top.name, "pc"), 40
for folder, name in (("intel-rapl:0", "package-0"), ("intel-rapl:0:0", "core")):
    os.makedirs(os.path.join(tree, folder))
    for file, text in (("name", name), ("max_energy_range_uj", 2**50), ("energy_uj", 0)): write(os.path.join(tree, folder), file, f"{text}\n")
pause = 0


@contextlib.contextmanager
def advancing():
    """The counters advance until the end of the block, also if it fails."""
    stop, begin = threading.Event(), time.monotonic()

    def advance():
        global pause
        last = begin
        while not stop.wait(0.002):
            now = time.monotonic()
            for folder, part in (("intel-rapl:0", 1), ("intel-rapl:0:0", 0.25)):
                write(tree, "next", f"{int((now - begin) * WATTS * 1e6 * part)}\n")
                os.replace(os.path.join(tree, "next"), os.path.join(tree, folder, "energy_uj"))
            pause, last = max(pause, time.monotonic() - last), now

    thread = threading.Thread(target=advance)
    thread.start()
    try: yield
    finally:
        stop.set()
        thread.join()


def about(watts, seconds, of=WATTS): return 0.5 - pause / seconds < watts / of < 2 + pause / seconds


def measured(o):
    """`run` on the counters: package and core, and the power of both phases."""
    e = o["energy"]
    expect("meter of a run", e["meter"] == "rapl" and [x.split(":")[0] for x in e["sources"]] == ["cpu"], e)
    for k, tokens in (("prefill", o["prompt_tokens"]), ("decode", o["output_tokens"])):
        if e[f"{k}_samples"] < 5:
            expect(f"{k}: too few samples are refused", e[f"{k}_j"] is None and "samples" in e[f"{k}_j_reason"], e)
            continue
        rail, seconds = next(r for r in e["rails"] if r["name"] == "core 0"), tokens / o[f"{k}_tok_s"]
        expect(f"{k}: rail and package apart", about(rail[f"{k}_j"] / seconds, seconds, WATTS / 4) and about(e[f"{k}_j"] / seconds, seconds), (e, pause))
    expect("decode was measured", e["decode_j"] is not None and about(e["power_w"], tokens / o["decode_tok_s"]), (e, pause))


def on_counters(unit):
    code, out, err = run("run", "-m", m, "--unit", unit, "--raw", "-p", "x" * 1500, "-n", "500", "--ignore-eos", "--greedy", "--json",
                         "--meter", "rapl")
    expect("a run with a meter", code == 0, err)
    measured(json.loads(out))
    code, out, err = run("bench", "-m", m, "--unit", unit, "-p", "0", "-n", "256", "-r", "1", "--json", "--meter", "all", "--meter-idle", "1")
    row = json.loads(out)[0]
    e, seconds = row["energy"], 256 / row["avg_ts"]
    expect("idle power is subtracted", about(e["idle_w"], 1) and abs(e["power_w"]) < WATTS * (0.5 + pause / seconds + pause), (err, e, pause))
    # Without --meter, the pipelines take the counters of their units.
    code, out, err = run("bench", "--pipelines", "-m", m, "--unit", unit, "-p", "1200", "-n", "256", "-r", "3", "-o", "jsonl")
    e = json.loads(out) if code == 0 else {}
    seconds = 255 / e.get("decode_tok_s", 1e9)
    expect("a pipeline is measured", e.get("meter") == "rapl" and e.get("decode_j") is not None and about(e["power_w"], seconds), (err, e, pause))
    # The joules are the mean of two runs, the speed is their median: one may have been much slower.
    expect("the joules of one run", 0.3 - pause / seconds < e.get("decode_j", 0) / seconds / WATTS < 3 + pause / seconds, (e, pause))
    code, out, err = run("bench", "--pipelines", "-m", m, "--unit", unit, "-p", "9", "-n", "9", "-r", "1", "-o", "jsonl", "--meter", "none")
    e = json.loads(out) if code == 0 else {}
    expect("--meter none", e.get("decode_j", 0) is None and e["decode_j_reason"] == "not requested", (err, e))
    data = write(top.name, "train.jsonl", json.dumps({"text": "x" * 200}) + "\n")
    code, out, err = run("train", "-m", m, "--unit", unit, "--data", data, "-o", os.path.join(top.name, "adapter"), "--steps", "6",
                         "--held-out", "0", "--json", "--meter", "rapl", "--metrics", os.path.join(top.name, "m.csv"))
    expect("a training run with a meter", code == 0, err)
    steps = [json.loads(l) for l in out.splitlines()]
    total, seconds = steps.pop()["joules"], sum(s["ms"] for s in steps) / 1e3
    expect("joules of every update of a training run", about(total / seconds, seconds) and
           abs(sum(s["joules"] for s in steps) - total) < 1e-6 * total, (total, seconds, pause))
    with open(os.path.join(top.name, "m.csv"), encoding="utf-8") as f: rows = list(csv.DictReader(f))
    expect("joules in the metrics", [float(r["joules"]) for r in rows] == [float(f"{s['joules']:.9g}") for s in steps], rows[:2])


m = tiny_model("tiny", layers=8, width=256)
if len(f"cpu:threads=1,powercap={tree}") > 63:
    print("SKIP meter_phases.py: RAPL: the path of the temporary folder is too long for a spec")
else:
    with advancing(): on_counters(f"cpu:threads=1,powercap={tree}")
refused(3, ["run", "-m", m, "--unit", "cpu:powercap=/nonexistent", "-p", "x", "-n", "1", "--meter", "rapl"], "RAPL")
refused(3, ["run", "-m", m, "--unit", "ref", "-p", "x", "-n", "1", "--meter", "nvml"], "meter")
refused(2, ["run", "-m", m, "-p", "x", "-n", "1", "--meter", "guess"], "asitop:FILE")
refused(1, ["run", "-m", m, "-p", "x", "-n", "1", "--meter", "asitop:/nonexistent"], "/nonexistent")

# --- powermetrics as a child, here a stand-in that writes its format: 3 W ---
STAND_IN = '''#!/usr/bin/env python3
import datetime, sys, time
with open(sys.argv[sys.argv.index("-o") + 1], "w") as log:
    print("Machine model: Mac14,13\\nOS version: 23A344\\n", file=log, flush=True)
    begin = time.time()
    while True:
        time.sleep(0.1)
        begin, last = time.time(), begin # without a gap
        date = datetime.datetime.now(datetime.timezone.utc)
        print(f"*** Sampled system activity ({date.strftime('%a %b %d %H:%M:%S %Y %z')}) ({(begin - last) * 1000:.2f}ms elapsed) ***\\n\\n"
              "CPU Power: 1000 mW\\nGPU Power: 1500 mW\\nANE Power: 500 mW\\nCombined Power (CPU + GPU + ANE): 3000 mW\\n", file=log, flush=True)
'''
if os.geteuid() == 0:
    os.makedirs(os.path.join(top.name, "bin"))
    write(os.path.join(top.name, "bin"), "powermetrics", STAND_IN)
    os.chmod(os.path.join(top.name, "bin", "powermetrics"), 0o755)
    code, out, err = run("bench", "--pipelines", "-m", m, "--unit", "cpu:threads=1", "-p", "9", "-n", "900", "-r", "2", "-o", "jsonl",
                         "--meter", "powermetrics", PATH=os.path.join(top.name, "bin") + ":" + os.environ["PATH"])
    e = json.loads(out) if code == 0 else {}
    expect("powermetrics is started", e.get("meter") == "powermetrics" and (e.get("decode_j") or "samples" in e.get("decode_j_reason", "")), (err, e))
    expect("powermetrics has 3 W", not e.get("decode_j") or 2 < e["power_w"] < 4, e)
else:
    refused(3, ["bench", "--pipelines", "-m", m, "-p", "9", "-n", "9", "--meter", "powermetrics"], "root")

# --- logs: prefill from 10 s to 20 s at 5 W, decode from 20 s to 40 s at 2 W; 1 W before ---
BASE = 1_700_000_000  # seconds since 1970; monotonic time 0


def watts(t): return 1 if t <= 10 else 5 if t <= 20 else 2


def powermetrics(step=0.5, shift=0.3, zone=-8):
    text, n = "Machine model: Mac14,13\nOS version: 23A344\n\n", int(45 / step)
    for i in range(1, n):
        end = i * step
        date = datetime.datetime.fromtimestamp(BASE + shift + end, datetime.timezone(datetime.timedelta(hours=zone)))
        mw = watts(end) * 1000
        text += (f"*** Sampled system activity ({date.strftime('%a %b %d %H:%M:%S %Y %z')}) ({step * 1000:.2f}ms elapsed) ***\n\n"
                 f"**** Processor usage ****\n\nE-Cluster HW active frequency: 1017 MHz\nCPU Power: {mw // 4} mW\nGPU Power: {mw // 2} mW\n"
                 f"ANE Power: {mw // 4} mW\nCombined Power (CPU + GPU + ANE): {mw} mW\n\n")
    return text


def asitop(step=0.5, shift=0.3, package=True):
    out = []
    for i in range(1, int(45 / step)):
        end, mj = i * step, watts(i * step) * step * 1000
        processor = {"clusters": [{"name": "E-Cluster", "freq_hz": 1.0e9, "idle_ratio": 0.5}], "cpu_energy": mj / 4, "gpu_energy": mj / 2,
                     "ane_energy": mj / 4, "dram_energy": 1.0}
        processor |= {"package_energy": int(mj)} if package else {"combined_power": watts(end) * 1000}
        out.append(plistlib.dumps({"is_delta": True, "elapsed_ns": int(step * 1e9), "hw_model": "Mac14,13", "processor": processor,
                                   "timestamp": datetime.datetime.fromtimestamp(int(BASE + shift + end), datetime.timezone.utc).replace(tzinfo=None),
                                   "gpu": {"freq_hz": 1.0, "gpu_energy": 999999}}, sort_keys=False))
    return b"\0".join(out)


def event(name, begin, end, tokens, session=0):
    return {"name": name, "ph": "X", "ts": begin * 1e6, "dur": (end - begin) * 1e6, "pid": 1, "tid": 0,
            "args": {"session": session, "first_pos": 0, "tokens": tokens, "layers": [0, 1]}}


# The samples end 0.3 s after whole seconds of the monotonic clock, as their stamps round it off; so the trace is shifted, too.
shift = 0.3
trace = {"traceEvents": [event("prefill", 10 + shift, 15 + shift, 60), event("prefill", 15 + shift, 20 + shift, 40),
                         *(event("decode", 20 + shift + i, 21 + shift + i, 1) for i in range(20)),
                         {"name": "thread_name", "ph": "M", "pid": 1, "tid": 0, "args": {"name": "cpu"}}],
         "otherData": {"unix_minus_monotonic_ns": BASE * 10**9}}
t = write(top.name, "trace.json", json.dumps(trace))


def energy(kind, text, *more, trace=t):
    code, out, err = run("energy", trace, "--meter", f"{kind}:{write(top.name, kind + '.log', text)}", "--json", *more)
    return json.loads(out) if code == 0 else {"error": err}


logs = {"powermetrics": powermetrics(), "asitop": asitop()}
for kind, text in logs.items():
    o = energy(kind, text)
    # Stamps with whole seconds leave a quarter of a second of doubt, at most 5 W: 1.25 J.
    expect(f"{kind}: prefill 50 J", abs(o.get("prefill_j", 0) - 50) < 1.3 and abs(o["prefill_j_per_token"] - 0.5) < 0.013, o)
    expect(f"{kind}: decode 40 J", abs(o.get("decode_j", 0) - 40) < 1.3 and abs(o["decode_j_per_token"] - 2) < 0.065, o)
    expect(f"{kind}: samples", o.get("prefill_samples") in (19, 20) and o["decode_samples"] in (39, 40) and o["meter"] == kind, o)
    rails = {r["name"]: r for r in o.get("rails", [])}
    expect(f"{kind}: rails apart", abs(rails["GPU"]["prefill_j"] * 2 - o["prefill_j"]) < 1e-6 and abs(rails["ANE"]["decode_w"] - 0.5) < 0.05, o)
    o = energy(kind, text, "--meter-idle", "5")
    expect(f"{kind}: 1 W of idle power subtracted", abs(o.get("prefill_j", 0) - 40) < 1.3 and abs(o["idle_w"] - 1) < 0.2, o)
    cut = energy(kind, text[:int(len(text) * 0.97)])
    expect(f"{kind}: a log that is still being written", abs(cut.get("prefill_j", 0) - 50) < 1.3, cut)
expect("sources", energy("powermetrics", powermetrics())["sources"] == ["CPU + GPU + ANE"] and energy("asitop", asitop())["sources"] == ["package"])
expect("newer asitop", abs(energy("asitop", asitop(package=False)).get("prefill_j", 0) - 50) < 1.3)
o = energy("powermetrics", powermetrics(step=3))
expect("fewer than 5 samples are refused", o.get("prefill_j", 0) is None and "samples" in o["prefill_j_reason"] and o["decode_j"], o)
o = energy("powermetrics", powermetrics().replace("Combined Power (CPU + GPU + ANE)", "Something"))
expect("rails only", o.get("prefill_j", 0) is None and "rails" in o["prefill_j_reason"] and len(o["rails"]) == 3, o)
late = write(top.name, "late.json", json.dumps({**trace, "otherData": {"unix_minus_monotonic_ns": (BASE + 100) * 10**9}}))
o = energy("powermetrics", powermetrics(), trace=late)
expect("a log of another time", o.get("prefill_j", 0) is None and "cover" in o["prefill_j_reason"], o)

# --- bad input: refused with file and line ---
head = "*** Sampled system activity (Fri Nov 15 10:00:00 2024 -0800) (100.00ms elapsed) ***\n"
plist = asitop(step=20).decode().split("\0")[0]
bad = [("powermetrics", "", "line 0"), ("powermetrics", "CPU Power: 5 mW\n", "line 1"), ("powermetrics", head + "CPU Power: many mW\n", "line 2"),
       ("powermetrics", head + "GPU Power: -5 mW\n", "line 2"), ("powermetrics", head + "ANE Power: 1e300 W\n", "line 2"),
       ("powermetrics", "\n*** Sampled system activity (today) ***\n", "line 2"), ("powermetrics", head.replace("Nov", "Nix"), "line 1"),
       ("powermetrics", head.replace("100.00", "-1"), "line 1"), ("powermetrics", head + "a\0b\n", "line 2"), ("asitop", "", "line 1"),
       ("asitop", "plain text\n", "line"), ("asitop", plist.replace("</dict>", "", 1) + "\0", "line"),
       ("asitop", plist.replace("20000000000", "soon", 1) + "\0", "line"), ("asitop", "<dict>" * 100, "line 1"),
       ("asitop", plist.replace("timestamp", "when", 1) + "\0", "line"), ("asitop", "</dict>", "line 1"),
       ("asitop", plist.replace("<key>hw_model", "<key>" + "k" * 100, 1) + "\0", "line")]
for i, (kind, text, word) in enumerate(bad):
    path = write(top.name, f"bad{i}.log", text)
    refused(4, ["energy", t, "--meter", f"{kind}:{path}"], word, f"bad{i}.log")
for i, text in enumerate(("{", "[]", '{"traceEvents":[{}],"otherData":{"unix_minus_monotonic_ns":1}}', '{"traceEvents":[]}',
                          json.dumps({**trace, "traceEvents": [event("prefill", 5, 4, 1)]}), json.dumps({**trace, "traceEvents": []}))):
    refused(4, ["energy", write(top.name, f"trace{i}.json", text), "--meter", f"powermetrics:{os.path.join(top.name, 'powermetrics.log')}"],
            f"trace{i}.json")
refused(2, ["energy", t], "--meter")
done()
