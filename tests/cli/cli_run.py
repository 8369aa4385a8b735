#!/usr/bin/env python3
"""`segue run`: prompts, report, rejected inputs, interrupts, --requests, states. SPDX-License-Identifier: MIT"""
import fcntl, glob, select, signal, subprocess
from clitest import *

m = tiny_model(generation={"temperature": 0.5, "top_k": 7, "eos_token_id": 258})
base = ["run", "-m", m]

# An answer and its report.
code, text, err = run(*base, "-p", "hello", "-n", 12, "--seed", 3)
expect("run", code == 0 and text.endswith("\n") and err.count("\n") == 1 and "tok/s" in err, (code, text, err))
code, out, err = run(*base, "-p", "hello", "-n", 12, "--seed", 3, "--json", "--logprobs", 2)
o = json.loads(out)
expect("same seed, same answer", o["text"].rstrip("\n") == text.rstrip("\n"), (o["text"], text))
FIELDS = """text ids prompt_ids finish prompt_tokens output_tokens reused_tokens reuse_reason seed logprobs model version load_ms
compile_ms ttft_ms start_ms prefill_ms handoff_ms handoff_exposed_ms decode_ms prefill_tok_s decode_tok_s peak_bytes weight_bytes
state_bytes handoff_bytes copied_bytes weight_read_gb_s memory_bandwidth_gb_s bandwidth_utilization machine compiles dispatches energy units plan verify""".split()
expect("fields", not set(FIELDS) - set(o), set(FIELDS) - set(o))


def reasons(value, where=""):
    if isinstance(value, list):
        for v in value: reasons(v, where)
    if not isinstance(value, dict): return
    for k, v in value.items():
        if v is None and not (k == "id"): expect(f"null has a reason: {where}{k}", value.get(k + "_reason"), value)
        reasons(v, where + k + ".")


reasons(o)
expect("seed", o["seed"] == 3)
expect("counts", o["output_tokens"] == len(o["ids"]) <= 12 and o["prompt_tokens"] == len(o["prompt_ids"]), out[:300])
expect("finish", o["finish"] in ("length", "stop"))
expect("logprobs", len(o["logprobs"]) == len(o["ids"]) and all(len(l["top"]) == 2 and l["logprob"] <= 0 for l in o["logprobs"]), o["logprobs"][:2])
expect("model", set(o["model"]) >= {"path", "family", "storage", "shape_id", "weights_id"} and o["model"]["family"] == "llama")
expect("machine", set(o["machine"]) >= set("cpu cores memory_bytes os kernel gpu driver compiler".split()))
cards = [l.split(":", 1)[1].strip() for f in sorted(glob.glob("/proc/driver/nvidia/gpus/*/information")) for l in open(f) if l.startswith("Model")]
expect("device_bytes", "device_bytes" in o and (o["device_bytes"] is None) == (o["units"][-1]["unit"].split(":")[0].split()[0] in ("cpu", "ref")), o.get("device_bytes"))
expect("gpu: as the driver lists it", o["machine"]["gpu"] == (cards or [None])[0]
       and (cards or "no NVIDIA driver lists one" in o["machine"]["gpu_reason"]), (cards, o["machine"]))
expect("energy", set(o["energy"]) >= set("prefill_j decode_j power_w sources samples meter".split()))
expect("units", [u["phase"] for u in o["units"]] == ["prefill", "decode"] and all(
    set(u) >= set("unit phase layers ops dispatches ms pid".split()) for u in o["units"]), o["units"])
expect("a named unit", json.loads(run(*base, "-p", "a", "-n", 1, "--unit", "ref", "--json")[1])["units"][0]["unit"].startswith("ref"))

# Prompts: the template, raw, ids, files, messages give the same tokens.
rendered = "<|im_start|>system\nbe<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
want = json.loads(run("tokenize", "-m", m, "-p", rendered, "--json")[1])["ids"]
expect("specials", want[0] == 257 and 258 in want, want)


def ids_of(*args, **more):
    code, out, err = run(*base, "-n", 0, "--json", *args, **more)
    return json.loads(out)["prompt_ids"] if code == 0 else (code, err)


expect("-p --system", ids_of("-p", "hello", "--system", "be") == want)
expect("-f -", ids_of("-f", "-", "--system", "be", stdin="hello") == want)
expect("-f FILE", ids_of("-f", write(top.name, "p.txt", "hello"), "--system", "be") == want)
expect("--raw", ids_of("--raw", "-p", rendered) == want)
expect("--ids", ids_of("--ids", ",".join(map(str, want))) == want)
expect("--ids @FILE", ids_of("--ids", "@" + write(top.name, "ids.json", json.dumps(want))) == want)
messages = [{"role": "system", "content": "be"}, {"role": "user", "content": "hello"}]
expect("--messages", ids_of("--messages", write(top.name, "m.json", json.dumps(messages))) == want)
expect("--messages object", ids_of("--messages", write(top.name, "m2.json", json.dumps({"messages": messages}))) == want)
expect("--messages --system", ids_of("--messages", write(top.name, "m3.json", json.dumps(messages[1:])), "--system", "be") == want)

# Sampling: greedy decoding gives the same tokens on every unit and thread count; an answer ends before a stop string.
greedy = [json.loads(run(*base, "-p", "hi", "-n", 40, "--greedy", "--json", *u)[1]) for u in
          ([], ["-t", 1], ["--unit", "cpu:isa=generic"], ["--temp", "0"], ["--chunk", "3"], ["--prefill", "cpu", "--decode", "cpu"])]
expect("greedy: the same answer everywhere", all(g["ids"] == greedy[0]["ids"] for g in greedy), [g["ids"] for g in greedy])
full = greedy[0]["text"]
if len(full) > 6:
    code, out, err = run(*base, "-p", "hi", "-n", 40, "--greedy", "--json", "--stop", full[3:6])
    o = json.loads(out)
    expect("--stop", o["finish"] == "stop" and o["text"] == full[:full.index(full[3:6])], (full, o["text"]))
banned = greedy[0]["ids"][0]
code, out, err = run(*base, "-p", "hi", "-n", 1, "--greedy", "--json", "--logit-bias", f"{banned}=-100")
expect("--logit-bias", json.loads(out)["ids"][0] != banned)
code, out, err = run(*base, "-p", "hi", "-n", 300, "--ignore-eos", "--json", "--seed", 1)
expect("--ignore-eos", json.loads(out)["output_tokens"] == 300 and 258 not in json.loads(out)["ids"], out[:200])
seeds = {json.loads(run(*base, "-p", "hi", "-n", 1, "--json")[1])["seed"] for _ in range(3)}
expect("a random seed is reported", len(seeds) == 3, seeds)

# Rejected inputs.
refused(2, base, "prompt missing")
refused(2, [*base, "-p", "x", "--ids", "1"], "two prompts")
refused(2, [*base, "-p", "", "--raw"], "empty")
refused(2, [*base, "--ids", "1,2,300"], "300")
refused(2, [*base, "--ids", "1,two"], "two")
refused(2, [*base, "-p", "x", "--logit-bias", "5"], "ID=V")
refused(2, [*base, "-p", "x", "--raw", "--system", "y"], "--system")
refused(2, [*base, "-p", "x", "--session", "../x"], "plain name")
refused(1, [*base, "-f", os.path.join(top.name, "absent")], "absent")
refused(1, ["run", "-m", "absent", "-p", "x"], "absent")
refused(2, ["run", "-p", "x"], "-m")
present = [u["unit"] for u in json.loads(run("units", "--json")[1]) if u["available"]]
if "mlx:gpu" not in present: refused(3, [*base, "-p", "x", "--unit", "mlx:gpu"], "mlx")
refused(1, [*base, "-p", "x", "--unit", "cpu:model=y"], "y: no such file")
refused(4, [*base, "--messages", write(top.name, "bad.json", "{nope")], "bad.json")
refused(4, [*base, "--messages", write(top.name, "bad2.json", '{"a":1}')], "messages")
refused(4, ["run", "-m", write(top.name, "x.gguf", b"GGUF" + b"\0" * 100), "-p", "x"])
refused(4, [*base, "-p", "x", "--lora", write(top.name, "x.safetensors", b"\xff" * 64)])
refused(4, [*base, "--load", write(top.name, "x.state", b"nonsense" * 9)])
code, out, err = run(*base, "-p", "x", "--unit", "cpu:frob=1", "-n", 1)
expect("an unknown option of a unit", code in (2, 3) and "frob" in err, (code, err))
refused(5, [*base, "-f", write(top.name, "big.txt", "many words here " * 650000)])
refused(5, [*base, "--raw", "-f", os.path.join(top.name, "big.txt")])
code, out, err = run(*base, "-p", "hello", "-c", 64, "-n", 500, "--ignore-eos", "--json")
o = json.loads(out)
expect("a full context", code == 5 and o["error"]["code"] == 5 and 0 < o["output_tokens"] < 64 and o["finish_reason"], (code, out[:400]))
code, out, err = run(*base, "-p", "hello", "-c", 64, "-n", 500, "--ignore-eos")
expect("a full context, text", code == 5 and len(out) > 0 and err.startswith("segue: ") and err.count("\n") == 1, (code, err))

# stdout is full or closed.
with open("/dev/full", "w") as full_disk:
    for more in (["--ignore-eos"], ["--logit-bias", "258=100"], ["--json"]):   # text, an immediate stop token, JSON
        r = subprocess.run([command, *base, "-p", "hello", "-n", "8", *more], stdout=full_disk, stderr=subprocess.PIPE, env=environment)
        expect(f"full disk, {more[0]}", r.returncode == 1 and b"No space" in r.stderr and r.stderr.count(b"\n") == 1, r)
r = subprocess.Popen([command, *base, "-p", "hello", "-n", "-1", "--ignore-eos", "-c", "2000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
r.stdout.read(3)
r.stdout.close()
err = r.stderr.read()
expect("closed pipe", r.wait() == 1 and err.count(b"\n") == 1, err)

# An interrupt: exit 130, the text so far is printed, also as JSON.
def at_work(pid):
    """Its object comes at the end only: the time that it has used tells that it writes."""
    while sum(map(int, open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[11:13])) < 50: pass


long = tiny_model("long", layers=4, width=128, context=200000)
for more in ([], ["--json"]):
    r = subprocess.Popen([command, "run", "-m", long, "-p", "hello", "-n", "-1", "-c", "190000", "--ignore-eos", *more],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    if not more: r.stdout.read(5)
    else: at_work(r.pid)
    r.send_signal(signal.SIGINT)
    out, err = r.communicate(timeout=LIMIT)
    expect("interrupted", r.returncode == 130, (r.returncode, err))
    if more:
        o = json.loads(out)
        expect("interrupted, JSON", o.get("finish") == "cancel" and o["output_tokens"] > 0, out[:200])

# An interrupt while the prompt is computed: the report counts what was computed.
big = write(top.name, "big.txt", "many words " * 15000)
r = subprocess.Popen([command, "run", "-m", long, "-f", big, "-n", "5", "-c", "190000", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                     env=environment)
at_work(r.pid)
r.send_signal(signal.SIGINT)
out, err = r.communicate(timeout=LIMIT)
o = json.loads(out)
expect("interrupted prompt", r.returncode == 130 and o["output_tokens"] == 0 and o["computed_prompt_tokens"] < o["prompt_tokens"],
       (r.returncode, o.get("computed_prompt_tokens"), o.get("prompt_tokens"), err))
# A prompt that is too long: no size that the file does not have.
noise = write(top.name, "noise.bin", bytes(random.Random(1).randrange(256) for _ in range(100000)))
code, out, err = run(*base, "-f", noise)
expect("a random file", code == 5 and "bytes" not in err, (code, err))

# A reader that does not read must not keep an interrupted run alive.
reading, writing = os.pipe()
fcntl.fcntl(writing, 1031, 4096)   # F_SETPIPE_SZ
r = subprocess.Popen([command, "run", "-m", long, "-p", "hello", "-n", "-1", "-c", "190000", "--ignore-eos"], stdout=writing,
                     stderr=subprocess.DEVNULL, env=environment)
while select.select([], [writing], [], 0)[1]: pass   # until the pipe is full
r.send_signal(signal.SIGINT)
expect("interrupted before a full pipe", r.wait(timeout=LIMIT) == 130, r.returncode)
os.close(reading), os.close(writing)

# Many requests in one process, in order; an invalid line does not affect the others.
lines = [{"id": "a", "prompt": "hello", "n": 5, "greedy": True}, {"id": 2, "prompt": "x", "temp": "hot"},
         {"id": 3, "ids": want, "tokens": 9, "greedy": True}, "not an object",
         {"id": 5, "messages": messages, "n": 9, "greedy": True}, {"prompt": "z", "n": 2, "stop": ["a", "b"], "top_k": 3},
         {"id": 7, "prompt": "q", "model": "other"}, {"id": 8, "prompt": "z", "n": 0}]
path = write(top.name, "r.jsonl", "\n".join(map(json.dumps, lines)) + "\n\n")
for parallel in (1, 3, 8):
    code, out, err = run(*base, "--requests", path, "--parallel", parallel)
    replies = [json.loads(l) for l in out.strip().split("\n")]
    expect("requests: order", [r["id"] for r in replies] == ["a", 2, 3, None, 5, None, 7, 8], out[:300])
    expect("requests: exit code of the first failure", code == 2, code)
    expect("requests: errors", ["error" in r for r in replies] == [False, True, False, True, False, False, True, False], [r.get("error") for r in replies])
    alone = json.loads(run(*base, "--ids", ",".join(map(str, want)), "-n", 9, "--greedy", "--json")[1])
    expect("requests: same answers as alone", replies[2]["ids"] == alone["ids"] == replies[4]["ids"], (replies[2]["ids"], alone["ids"]))

# --keep: from a full context on, the answer is that to the first tokens and the later half of the rest.
code, out, err = run(*base, "--raw", "-p", "hello there", "-n", 100, "-c", 64, "--keep", 5, "--greedy", "--ignore-eos", "--json")
o = json.loads(out)
whole = o["prompt_ids"] + o["ids"]
n, at = len(o["prompt_ids"]), 64   # as many tokens fill the context
expect("--keep: to the end", code == 0 and o["finish"] == "length" and len(o["ids"]) == 100 and o["dropped_tokens"] > 0, (code, err, o.get("finish")))
read, dropped = whole[:64], 0
while at < n + 100:
    read = read[:5] + read[5 + (64 - 5 + 1) // 2:]
    dropped += 64 - len(read)
    more = min(64 - len(read), n + 100 - at)
    want = json.loads(run(*base, "--ids", ",".join(map(str, read)), "-n", more, "-c", 64, "--greedy", "--ignore-eos", "--json")[1])["ids"]
    expect(f"--keep: tokens {at} to {at + more}", whole[at:at + more] == want, (whole[at:at + more], want))
    read, at = read + want, at + more
expect("--keep: dropped_tokens", o["dropped_tokens"] == dropped, (o["dropped_tokens"], dropped))
expect("--keep: the report", f"{dropped} tokens were dropped" in run(*base, "--raw", "-p", "hello there", "-n", 100, "-c", 64, "--keep", 5, "--greedy",
                                                                  "--ignore-eos")[2])
refused(5, [*base, "-p", "hi", "-n", 100, "-c", 64, "--keep", 64, "--ignore-eos"], "--keep", "64")
refused(2, [*base, "--keep", 5, "--requests", path], "--keep", "--requests")
refused(2, [*base, "--keep", 5, "--regex", "a+"], "--keep", "--regex")

# States: saved, continued, reused; named sessions.
state = os.path.join(top.name, "s.state")
whole = json.loads(run(*base, "-p", "hi", "-n", 20, "--greedy", "--json", "--ignore-eos")[1])
code, out, err = run(*base, "-p", "hi", "-n", 8, "--greedy", "--json", "--ignore-eos", "--save", state)
expect("--save", code == 0 and os.path.exists(state) and os.stat(state).st_mode & 0o77 == 0, err)
o = json.loads(run(*base, "--load", state, "-n", 12, "--greedy", "--json", "--ignore-eos")[1])
expect("--load continues", o["ids"] == whole["ids"][8:20], (o["ids"], whole["ids"]))
o = json.loads(run(*base, "--load", state, "-p", "hi", "-n", 20, "--greedy", "--json", "--ignore-eos")[1])
expect("--load with a prompt", o["ids"] == whole["ids"] and o["reused_tokens"] > 0 and o["reuse_reason"] == "edited", (o["ids"], o["reused_tokens"], o["reuse_reason"]))
other = tiny_model("other", seed=9)
refused(4, ["run", "-m", other, "--load", state], "s.state")
# A named session is one conversation, for run and chat.
talk = []
for turn, text in enumerate(("hi", "and you?", "bye")):
    talk.append({"role": "user", "content": text})
    want = json.loads(run(*base, "--messages", write(top.name, "talk.json", json.dumps(talk)), "-n", 4, "--greedy", "--json")[1])
    if turn < 2: o = json.loads(run(*base, "-p", text, "-n", 4, "--greedy", "--json", "--session", "one")[1])
    else: o = json.loads(run("chat", *base[1:], "-n", 4, "--greedy", "--json", "--session", "one", stdin=text + "\n")[1])["turns"][0]
    expect(f"--session, turn {turn}", o["ids"] == want["ids"] and o["prompt_ids"] == want["prompt_ids"], (o["ids"], want["ids"]))
    expect(f"--session reuses, turn {turn}", (o["reused_tokens"] > 0) == (turn > 0), o["reused_tokens"])
    talk.append({"role": "assistant", "content": o["text"]})
    stored = json.load(open(os.path.join(home, "data/sessions/one.json")))
    expect(f"--session stores the conversation, turn {turn}", stored == talk, stored)
path = os.path.join(home, "data/sessions/one.state")
expect("--session file", os.path.exists(path) and os.stat(path).st_mode & 0o777 == 0o600)

# Where the prompt comes from: an argument, standard input, a file and a text.
text = write(top.name, "input.txt", "some text\n")
ids_of = lambda *args, stdin="": json.loads(run(*base, "-n", 1, "--greedy", "--json", *args, stdin=stdin)[1])["prompt_ids"]
expect("argument", ids_of("some text") == ids_of("-p", "some text"))
expect("standard input", ids_of(stdin="some text") == ids_of("-", stdin="some text") == ids_of("-f", "-", stdin="some text") == ids_of("-p", "some text"))
expect("file and text", ids_of("-f", text, "-p", "Sum up") == ids_of("-p", "some text\n\nSum up") == ids_of("-f", text, "Sum up"))
expect("standard input and text", ids_of("-", "-p", "Sum up", stdin="some text") == ids_of("-p", "some text\n\nSum up"))
expect("standard input is not read beside a prompt", ids_of("-p", "x", stdin="y") == ids_of("-p", "x"))
refused(2, [*base, "a", "-p", "b"], "two prompts")
refused(2, [*base, "-", "-f", text], "two files")
refused(2, [*base, "a", "b"], "b")
refused(2, [*base, "a", "--requests", text], "--requests")
refused(2, base, "prompt missing")

# Limits: -n -1 fills the context and reports its figures; a context beyond the trained one is noted.
code, out, err = run(*base, "-p", "hi", "-n", -1, "-c", 64, "--ignore-eos", "--json")
o = json.loads(out)
expect("-n -1", code == 0 and o["finish"] == "length" and o["prompt_tokens"] + o["output_tokens"] in (64, 65) and o["decode_tok_s"], (code, out[:300], err))
expect("-n -1: all of the prompt", o["computed_prompt_tokens"] == o["prompt_tokens"], o["computed_prompt_tokens"])
expect("-n N beyond the context", run(*base, "-p", "hi", "-n", 100, "-c", 64, "--ignore-eos")[0] == 5)
short = tiny_model("short", context=128)
note = "trained on at most 128"
expect("context beyond the trained one", note in run("run", "-m", short, "-p", "x", "-n", 1, "-c", 200)[2] and note in run("chat", "-m", short, "-c", 200, stdin="")[2])
expect("context within the trained one", note not in run("run", "-m", short, "-p", "x", "-n", 1, "-c", 128)[2])
for _ in range(5):
    line = run(*base, "-p", "hi", "-n", 30, "--ignore-eos")[2]
    share = line.split(" % of")[0].rsplit("(", 1)[-1] if " % of" in line else "0"
    expect("the closing line stays within the bandwidth", int(share) <= 100, line)
r = run(*base, "-p", "hi", "-n", 2, "--save", "/nowhere/x.state")
expect("--save into a missing folder", r[0] == 1 and "/nowhere" in r[2], r)

# Models without a tokenizer.
bare = tiny_model("bare", tokenizer=False)
code, out, err = run("run", "-m", bare, "--ids", "1,2,3", "-n", 4, "--greedy")
expect("ids only", code == 0 and len(out.strip().split(",")) == 4, (out, err))
o = json.loads(run("run", "-m", bare, "--ids", "1,2,3", "-n", 4, "--greedy", "--json")[1])
expect("ids only, JSON", o["text"] is None and o["text_reason"] and len(o["ids"]) == 4)
refused(4, ["run", "-m", bare, "-p", "x"], "tokenizer")
plain = tiny_model("plain", template=None)
expect("no template", json.loads(run("run", "-m", plain, "-p", "abc", "-n", 0, "--json")[1])["prompt_ids"] == [97, 98, 99])
expect("SEGUE_MODEL", run("run", "-p", "abc", "-n", 2, SEGUE_MODEL=plain)[0] == 0)
done()
