#!/usr/bin/env python3
"""`segue serve --record`: each answered request has a record that `segue replay` repeats bit for bit, also of requests that ran at
the same time; the bound of the file; damage. SPDX-License-Identifier: MIT"""
import re, stat, threading
import servetest
from servetest import *

m, other = tiny_model(layers=4, width=64), tiny_model("other", seed=2)
path = os.path.join(top.name, "serve.rec")
start = ["-m", m, "-m", other, "--unit", "cpu", "-t", "1", "--parallel", "4", "--chunk", "16"]
greedy = {"prompt": [i % 250 for i in range(1, 60)], "max_tokens": 7, "temperature": 0, "ignore_eos": True}
sampled = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9, "temperature": 0.9, "seed": 5, "ignore_eos": True}
formed = {**sampled, "ignore_eos": False, "max_tokens": 12, "response_format": {"type": "regex", "pattern": "[a-c]{6}"}, "logit_bias": {"97": 3}}


def replay(file, *args):
    code, out, err = run("replay", file, *args, "--json")
    expect("replay: exit 0 or 6", code in (0, 6), (code, err))
    return json.loads(out) if out else {}


def heads(file): return [json.loads(l) for l in open(file) if l.startswith("{\"segue_record\"")]


# Without --record: what the answers are.
s = Server(*start)
plain = [s.post("/v1/completions", greedy)[1]["choices"][0]["text"], s.post("/v1/chat/completions", sampled)[1]["choices"][0]["message"]["content"]]
s.stop()

s = Server(*start, "--record", path)
events = s.stream("/v1/completions", greedy)
expect("a streamed answer is the same", "".join(e["choices"][0]["text"] for _, e in events[:-1] if e["choices"]) == plain[0], (events[-3:], plain))
status, a = s.post("/v1/chat/completions", sampled)
expect("a sampled answer is the same", status == 200 and a["choices"][0]["message"]["content"] == plain[1], (a, plain))
status, a = s.post("/v1/chat/completions", formed)
expect("a constrained one", status == 200 and re.fullmatch("[a-c]{6}", a["choices"][0]["message"]["content"]), a)
expect("two choices", len(s.post("/v1/completions", {**greedy, "temperature": 1, "seed": 3, "n": 2, "model": "other"})[1]["choices"]) == 2)
status, a = s.post("/v1/completions", {**greedy, "logit_bias": {"97": 100}, "max_tokens": 30, "stop": ["aaa"]})
expect("ended by a stop string", a["choices"][0]["finish_reason"] == "stop" and a["usage"]["completion_tokens"] == 3, a)
answers = [None] * 4


def client(i): answers[i] = s.post("/v1/completions", {**greedy, "prompt": [i + 1] * (20 + 9 * i), "max_tokens": 20})


threads = [threading.Thread(target=client, args=(i,)) for i in range(4)]
for t in threads: t.start()
for t in threads: t.join()
expect("requests at the same time", all(a and a[0] == 200 for a in answers), answers)
is_error("a refused one", s.post("/v1/completions", {**greedy, "max_tokens": -1}), 400)
err = s.stop()
expect("one line at the start, one at the end", err.count("recording requests to " + path) == 1 and f"recorded 10 answers in {path}" in err, err)
expect("private", stat.S_IMODE(os.stat(path).st_mode) == 0o600)
h = heads(path)
expect("a record each", len(h) == 10 and h[0]["prompt"] == greedy["prompt"] and len(h[0]["tokens"]) == 7 and h[1]["sampling"]["seed"] == 5 and
       sorted(x["sampling"]["seed"] for x in h[3:5]) == [3, 4] and h[2]["sampling"]["bias"] == [[97, 3.0]] and h[2]["sampling"]["constraint"]["text"] == "[a-c]{6}", h)
o = replay(path)
expect("all repeat, with all runs", o["equal"] and not o["cut"] and len(o["requests"]) == 10 and all(r["runs"] == r["runs_equal"] > 5 for r in o["requests"]), o)
o = replay(path, "--request", "2")
expect("one of them", o["equal"] and o["request"] == 2 and o["tokens"] == 9, o)
o = replay(path, "--request", "1", "--unit", "ref:fault=2.glu")
expect("another unit is compared", not o["equal"] and o["unit"] == "ref:fault=2.glu" and o["recorded_unit"].startswith("cpu"), o)

# Damage is refused with its line; a cut end is left out.
text = open(path).read()
lines = text.splitlines(True)
second = next(i for i, l in enumerate(lines) if i and l.startswith("{\"segue_record\""))
refused(4, ["replay", write(top.name, "bad.rec", "".join(lines[:1] + lines[2:]))], f"line {second}", "fewer runs")
refused(4, ["replay", write(top.name, "bad.rec", text.replace("\"constraint\":{\"kind\":2", "\"constraint\":{\"kind\":9", 1))], "constraint")
refused(4, ["replay", write(top.name, "bad.rec", text.replace("\"bias\":[[97", "\"bias\":[[-97", 1))], "bias")
changed = json.loads(lines[0])
changed["tokens"][3] ^= 1
o = replay(write(top.name, "bad.rec", json.dumps(changed) + "\n" + "".join(lines[1:])), "--request", "1")
expect("a changed token is found", not o["equal"] and o["first_token"] == 3, o)
o = replay(write(top.name, "bad.rec", text[:-9]))
expect("a cut end", o["equal"] and o["cut"] and len(o["requests"]) == 9, o)

# The bound: what does not fit is answered, but not recorded.
s = Server(*start, "--record", path, "--record-limit", "1")
long = {**greedy, "max_tokens": 1500}
expect("answered", [s.post("/v1/completions", long)[0] for _ in range(3)] == [200] * 3)
err = s.stop()
expect("the end of the recording is said", err.count("recording ended") == 1 and "1 MiB" in err, err)
expect("bounded", 0 < os.path.getsize(path) <= 1 << 20 and f"recorded {len(heads(path))} answers" in err, (os.path.getsize(path), err))
expect("what was recorded repeats", replay(path)["equal"])

# A write that fails leaves no part of a record behind.
servetest.command = write(top.name, "limited", f"#!/bin/sh\ntrap '' XFSZ\nulimit -f 150\nexec {command} \"$@\"\n")
os.chmod(servetest.command, 0o755)
s = Server(*start, "--record", path)
expect("answered", [s.post("/v1/completions", {**greedy, "max_tokens": 200})[0] for _ in range(3)] == [200] * 3)
err = s.stop()
o = replay(path)
expect("a full disk", err.count("recording ended") == 1 and o["equal"] and not o.get("cut") and 0 < len(heads(path)) < 3, (err, o))
servetest.command = command

# Flags that change what is computed are part of the record.
s = Server(*start, "--record", path, "--deterministic")
expect("answered", s.post("/v1/completions", greedy)[0] == 200)
s.stop()
expect("deterministic", heads(path)[0]["flags"]["deterministic"] == [""] and replay(path)["equal"], heads(path))
refused(2, ["serve", "-m", m, "--port", "0", "--record", path, "--memory", "100"], "--record", "--memory")
refused(1, ["serve", "-m", m, "--port", "0", "--record", os.path.join(top.name, "no/x.rec")], "no/x.rec")
done()
