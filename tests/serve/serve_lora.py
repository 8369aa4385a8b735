#!/usr/bin/env python3
"""Adapters of the server change between requests: for all later requests (POST /lora-adapters) and for one ("lora"). Answers are those
of `segue run` with and without the adapters. SPDX-License-Identifier: MIT"""
import threading
from servetest import *

tiny = tiny_model()
lines = write(top.name, "lines.jsonl", "".join(json.dumps({"text": t * 4}) + "\n" for t in ("red fox ", "blue hen ", "old dog ")))
for name, seed in (("one", "1"), ("two", "2")):
    code, _, err = run("train", "-m", tiny, "--data", lines, "-o", os.path.join(top.name, name), "--steps", "12", "--lr", "0.05", "--rank", "4", "-c",
            "32", "--held-out", "0", "--seed", seed, "--unit", "cpu", "-t", "1")
    expect(f"adapter {name}", code == 0, err)
one, two = (os.path.join(top.name, n) for n in ("one", "two"))


def direct(*lora):
    """What the command answers."""
    _, out, _ = run("run", "-m", tiny, "--raw", "-p", PROMPT, "-n", "12", "--greedy", "--ignore-eos", "--json", "--unit", "cpu", "-t", "1",
            *[x for path in lora for x in ("--lora", path)])
    return json.loads(out)["ids"]


PROMPT = "the fox and the hen "
BODY = {"prompt": PROMPT, "n_predict": 12, "temperature": 0, "ignore_eos": True, "return_tokens": True}
none, first, second, half, both = direct(), direct(one), direct(two), direct(one + "=0.5"), direct(one + "=0.5", two)
expect("the adapters change the answer", len({tuple(x) for x in (none, first, second)}) == 3, (none, first, second))

s = Server("-m", tiny, "--unit", "cpu", "-t", "1", "--parallel", "2", "--lora", one + "=0.5", "--lora", two)


def answer(**more):
    return s.post("/completion", {**BODY, **more})[1].get("tokens")


def scales(*list): return [{"id": i, "scale": x} for i, x in list]


r = s.call("GET", "/lora-adapters")
expect("the list has the scales of the flags", r == (200, [{"id": 0, "path": one, "scale": 0.5}, {"id": 1, "path": two, "scale": 1.0}]), r)
expect("both from the start", answer() == both)
expect("one request with its own scales", answer(lora=scales((0, 1.0))) == first)
expect("... without adapters", answer(lora=[]) == none)
expect("... which concern no other", answer() == both)
r = s.post("/lora-adapters", scales((1, 1.0)))
expect("a change", r[0] == 200 and r[1] == {"success": True}, r)
expect("the list has it", [x["scale"] for x in s.call("GET", "/lora-adapters")[1]] == [0.0, 1.0])
expect("later requests have the second only", answer() == second)
s.post("/lora-adapters", [])
expect("swapped out", answer() == none)
s.post("/lora-adapters", scales((0, 0.5)))
expect("swapped in", answer() == half)

# A request keeps what it began with, whatever changes meanwhile.
s.post("/lora-adapters", scales((0, 1.0)))
whole = answer(n_predict=100)
running = {}
t = threading.Thread(target=lambda: running.update(answer=answer(n_predict=100)))
t.start()
while not any(x["is_processing"] for x in s.call("GET", "/slots")[1]) and t.is_alive(): pass
for x in range(8): s.post("/lora-adapters", scales((1, x / 8)))
t.join()
expect("a change does not reach a request in progress", running["answer"] == whole, running)
expect("... and the next one has it", answer(lora=scales((1, 1.0))) == second)
for i in range(80): expect(f"scale {i}", len(answer(lora=scales((0, 1 + i / 64)), n_predict=1)) == 1)
expect("after many scales", answer(lora=scales((0, 1.0))) == first)

for bad in ({}, "x", 5, [5], [{}], [{"id": 0}], [{"scale": 1}], scales((2, 1.0)), scales((-1, 1.0)), scales((0, 1e9)), [{"id": "0", "scale": 1}],
            scales(*[(0, 1.0)] * 17)):
    is_error(f"the list {bad}", s.post("/lora-adapters", bad), 400, "lora")
    is_error(f"a request with {bad}", s.post("/completion", {**BODY, "lora": bad}), 400, "lora", param="lora")
is_error("no JSON", s.post("/lora-adapters", b"{["), 400)
s.stop()
s = Server("-m", tiny, "--unit", "cpu", "-t", "1")
expect("no adapters", s.call("GET", "/lora-adapters") == (200, []))
is_error("... so none changes", s.post("/lora-adapters", scales((0, 1.0))), 400, "0 adapters")
s.stop()
done()
