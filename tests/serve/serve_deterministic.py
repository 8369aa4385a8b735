#!/usr/bin/env python3
"""`segue serve --deterministic --unit cuda:0` on a machine with a GPU: the bytes of an answer, and its log-probabilities, do not depend on
other requests, earlier ones, how prompts are divided beside answers, or restarts; nor do constrained answers, whose masks are made beside
the runs. Without a GPU it is skipped. SEGUE_TEST_MODEL: another model than a tiny one; SEGUE_TEST_UNIT: another unit.
SPDX-License-Identifier: MIT"""
import random, threading
from servetest import *

unit = os.environ.get("SEGUE_TEST_UNIT", "cuda:0,invariant=1")
code, out, err = run("units", "--json")
if unit.startswith("cuda") and not any(u["unit"].startswith("cuda") and u["available"] for u in json.loads(out)):
    print("SKIP serve_deterministic: no GPU")
    sys.exit(77)
model = os.environ.get("SEGUE_TEST_MODEL") or tiny_model(layers=4, width=64)
rnd = random.Random(1)
common = "".join(rnd.choice("abcdefgh ") for _ in range(90))
schema = {"type": "object", "properties": {"a": {"enum": ["x", "yy"]}, "b": {"type": "integer"}}, "required": ["a", "b"], "additionalProperties": False}


def body(i):
    n = (3, 17, 40, 64, 65, 130, 300, 512)[i % 8]
    text = (common if i % 3 == 0 else "") + "".join(rnd.choice("ijklmnop ") for _ in range(n))
    b = {"prompt": text, "max_tokens": 24, "seed": i, "temperature": (0, 0.9, 1.3)[i % 3], "logprobs": 3}
    if i % 5 == 4: return {**b, "max_tokens": 60, "json_schema": schema}
    return {**b, "ignore_eos": True}


bodies = [body(i) for i in range(24)]


def ask(s, i):
    status, r = s.post("/v1/completions", bodies[i])
    expect(f"request {i}", status == 200, r)
    c = r["choices"][0]
    if "json_schema" in bodies[i] and c["finish_reason"] == "stop": expect("it fits the schema", set(json.loads(c["text"])) == {"a", "b"}, c)
    return c["text"], c["logprobs"]["token_logprobs"], c["logprobs"]["top_logprobs"]


def at_once(s, order):
    found = {}
    threads = [threading.Thread(target=lambda i=i: found.__setitem__(i, ask(s, i))) for i in order]
    for t in threads: t.start()
    for t in threads: t.join()
    return [found.get(i) for i in range(len(bodies))]


def same(what, got):
    wrong = [i for i in range(len(bodies)) if got[i] != want[i]]
    expect(what, not wrong, [(i, got[i][0][:40], want[i][0][:40]) for i in wrong[:3]])


def server(*more): return Server("-m", model, "--unit", unit, "--deterministic", "--ctx", "1024", "--chunk", "64", *more)


order = list(range(len(bodies)))
s = server("--parallel", "16")
want = [ask(s, i) for i in order]
same("one after the other again", [ask(s, i) for i in order])
same("all at once", at_once(s, order))
same("in another order", at_once(s, order[::-1]))
s.stop()
s = server("--parallel", "3", "--token-time", "1")
same("after a restart, three at a time, short chunks", at_once(s, order))
s.stop()
s = server("--parallel", "16", "--token-time", "1000")
rnd.shuffle(order)
same("long chunks", at_once(s, order))
turns = {**bodies[1], "prompt": bodies[1]["prompt"] + want[1][0]}  # goes on from an answer
first = s.post("/v1/completions", turns)[1]["choices"][0]["text"]
s.stop()
s = server()
expect("a later turn, without the earlier one", s.post("/v1/completions", turns)[1]["choices"][0]["text"] == first)
s.stop()
done()
