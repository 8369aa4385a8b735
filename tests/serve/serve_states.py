#!/usr/bin/env python3
"""States of the server: slots saved and restored, states as files over HTTP, what is said about prompts that changed, models that make
room for each other. SPDX-License-Identifier: MIT"""
import threading
from servetest import *

tiny = tiny_model()
folder = os.path.join(top.name, "slots")
os.makedirs(folder)
keys = write(top.name, "keys", "alpha\nbeta\n")
start = ["-m", tiny, "--unit", "cpu", "-t", "1", "--parallel", "2", "--slot-save-path", folder, "--api-key-file", keys]
ALPHA, BETA = {"Authorization": "Bearer alpha"}, {"Authorization": "Bearer beta"}
story = {"messages": [{"role": "user", "content": "A story of a fox and a hen. " * 8}], "max_tokens": 12, "temperature": 0, "ignore_eos": True}


def cached(reply): return reply[1]["usage"]["prompt_tokens_details"]["cached_tokens"]


# A slot is saved by one process and restored by another one, for the same key only.
s = Server(*start)
first = s.post("/v1/chat/completions", {**story, "id_slot": 1}, **ALPHA)
slots = s.call("GET", "/slots", headers=ALPHA)[1]
expect("the slot remembers its request", slots[1]["n_tokens"] == first[1]["usage"]["total_tokens"] and not slots[1]["is_processing"], slots)
expect("another key does not see it", s.call("GET", "/slots", headers=BETA)[1][1]["n_tokens"] == 0)
r = s.post("/slots/1?action=save", {"filename": "fox.state"}, **ALPHA)
expect("save", r[0] == 200 and r[1]["n_saved"] == slots[1]["n_tokens"] and r[1]["n_written"] == os.path.getsize(os.path.join(folder, "fox.state")), r)
is_error("save for another key", s.post("/slots/1?action=save", {"filename": "x"}, **BETA), 404)
for name in ("../x", "a/b", ".x", "", "x" * 200, None, 5, "a\u0000b"):
    is_error(f"the name {name}", s.post("/slots/1?action=save", {"filename": name}, **ALPHA), 400)
is_error("no such slot", s.post("/slots/9?action=save", {"filename": "x"}, **ALPHA), 404)
is_error("no such action", s.post("/slots/1?action=eat", {"filename": "x"}, **ALPHA), 400)
export = s.call("POST", "/v1/states/export", {"messages": story["messages"]}, headers=ALPHA, raw=True)
expect("export", export[0] == 200 and len(export[1]) > 1000, export[0])
s.stop()

s = Server(*start)
fresh = s.post("/v1/chat/completions", story, **BETA)
expect("nothing is known of a new process", cached(fresh) == 0, fresh)
is_error("restore what is not there", s.post("/slots/0?action=restore", {"filename": "hen.state"}, **ALPHA), 404)
r = s.post("/slots/0?action=restore", {"filename": "fox.state"}, **ALPHA)
expect("restore", r[0] == 200 and r[1]["n_restored"] == slots[1]["n_tokens"], r)
again = s.post("/v1/chat/completions", story, **ALPHA)
expect("the restored prompt is not read again", cached(again) >= again[1]["usage"]["prompt_tokens"] - 1, again)
expect("the same answer", again[1]["choices"][0]["message"] == first[1]["choices"][0]["message"], (again, first))
expect("erase", s.post("/slots/0?action=erase", {}, **ALPHA)[1]["n_erased"] > 0)

# The exported file, by the other key.
r = s.call("POST", "/v1/states/import", export[1][:-50], headers=BETA)
is_error("a damaged state", r, 400)
is_error("no state", s.call("POST", "/v1/states/import", b"x" * 100, headers=BETA), 400)
s.stop()
s = Server(*start)
r = s.call("POST", "/v1/states/import", export[1], headers=BETA)
expect("import", r[0] == 200 and r[1]["tokens"] == first[1]["usage"]["prompt_tokens"], r)
expect("not for another key", cached(s.post("/v1/chat/completions", story, **ALPHA)) == 0)
again = s.post("/v1/chat/completions", story, **BETA)
expect("the imported prompt is not read again", cached(again) >= again[1]["usage"]["prompt_tokens"] - 1, again)
expect("the same answer after an import", again[1]["choices"][0]["message"] == first[1]["choices"][0]["message"], again)
s.stop()

# What changed: a coding agent whose first system block differs in each request.
s = Server("-m", tiny, "--unit", "cpu", "-t", "1")
is_error("states need a key", s.post("/v1/states/export", {"prompt": "x"}), 403)
is_error("slots need a folder", s.post("/slots/0?action=save", {"filename": "x"}), 501)


def agent(stamp, system="You write programs. " * 10, turns=("Hi",), tools=None, **more):
    messages = [{"role": "user" if i % 2 == 0 else "assistant", "content": t} for i, t in enumerate(turns)]
    mark = {"cache_control": {"type": "ephemeral"}}
    return s.post("/v1/messages", {"max_tokens": 4, "temperature": 0, "messages": messages, **({"tools": tools} if tools else {}), **more,
                                   "system": [{"type": "text", "text": stamp}, {"type": "text", "text": system, **mark}]})[1]


one = agent("header: 1")
two = agent("header: 2")
expect("the block that does not change is reused", two["usage"]["cache_read_input_tokens"] >= 190, two["usage"])
expect("the changed block is named", two["segue"]["reuse_changed"] == "system[0]", two["segue"])
expect("no diagnostics unless asked for", two["diagnostics"] is None, two)
tool = [{"name": "f", "input_schema": {"type": "object"}}]
for what, reply, reason in (("system", agent("header: 3", diagnostics={"previous_message_id": one["id"]}), "system_changed"),
                            ("tools", agent("header: 1", tools=tool, diagnostics={"previous_message_id": one["id"]}), "tools_changed"),
                            ("messages", agent("header: 1", turns=("Ho",), diagnostics={"previous_message_id": one["id"]}), "messages_changed"),
                            ("parameters", agent("header: 1", tool_choice={"type": "none"}, diagnostics={"previous_message_id": one["id"]}), "unavailable"),
                            ("nothing known", agent("header: 1", diagnostics={"previous_message_id": "msg_x"}), "previous_message_not_found"),
                            ("appended", agent("header: 1", turns=("Hi", "Ho", "Hu"), diagnostics={"previous_message_id": one["id"]}), None),
                            ("first turn", agent("header: 1", diagnostics={"previous_message_id": None}), None)):
    got = reply["diagnostics"] and reply["diagnostics"]["cache_miss_reason"]
    expect(f"diagnostics: {what}", (got and got["type"]) == reason, reply)
    if reason and reason.endswith("_changed"): expect(f"diagnostics: {what}: tokens", isinstance(got["cache_missed_input_tokens"], int), got)
try:
    from anthropic.types.beta import BetaMessage
    BetaMessage.model_validate(agent("header: 4", diagnostics={"previous_message_id": one["id"]}), strict=False)
except ImportError: print("SKIP the types of the package anthropic: not installed")

# A chat of 20 turns reads only what is new; after an edit of the last turn, what follows the edit.
turns, unread = [{"role": "user", "content": "Let us count. " * 10}], []
for i in range(20):
    r = s.post("/v1/chat/completions", {"messages": turns, "max_tokens": 6, "temperature": 0, "ignore_eos": True})
    unread.append(r[1]["usage"]["prompt_tokens"] - cached(r))
    turns += [{"role": "assistant", "content": r[1]["choices"][0]["message"]["content"]}, {"role": "user", "content": f"And {i}?"}]
expect("each turn reads its own tokens", max(unread[1:]) < 64, unread)
expect("energy is not made up", r[1]["segue"]["joules"] is None and "--meter" in r[1]["segue"]["joules_reason"], r[1]["segue"])
s.stop()

# With a folder, the store outlives the server; deterministic answers do not depend on their neighbours.
for again in (False, True):
    s = Server("-m", tiny, "--unit", "cpu", "-t", "2", "--store", "on", "--deterministic", "--parallel", "4")
    r = s.post("/v1/chat/completions", story)
    expect(f"the store on disk, {again}", (cached(r) > 100) == again, r)
    body = {**story, "temperature": 1.0, "max_tokens": 40}
    alone, beside = [s.post("/v1/chat/completions", {**body, "seed": i}) for i in range(4)], [None] * 4
    threads = [threading.Thread(target=lambda i=i: beside.__setitem__(i, s.post("/v1/chat/completions", {**body, "seed": i}))) for i in range(4)]
    for t in threads: t.start()
    for t in threads: t.join()
    expect("the same bytes beside others", [x[1]["choices"] for x in alone] == [x[1]["choices"] for x in beside], (alone, beside))
    s.stop()

# A store that evicts hundreds of prefixes goes on: the marks of what it evicted are cleared now and then.
s = Server("-m", tiny, "--unit", "cpu", "-t", "1", "--store-memory", "1")
for i in range(380): r = s.post("/v1/completions", {"prompt": [i % 200, i // 200 + 1] * 20, "max_tokens": 1})
expect("evictions", r[0] == 200 and s.post("/v1/completions", {"prompt": [0, 1] * 20, "max_tokens": 1})[1]["segue"]["reuse_reason"] in ("evicted", "first-use"), r)
s.stop()

# Memory for one model only: running answers are finished, then the next model is loaded.
names = ["first", "other", "third"]
models = [x for i, n in enumerate(names) for x in ("-m", tiny_model(n, seed=i, width=128))] # 0.7 MB each
s = Server(*models, "--unit", "cpu", "-t", "1", "--models-max", "8", "--models-memory", 1, "--metrics")
long = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1000, "ignore_eos": True}
results = {}


def ask(name, body): results[name] = s.post("/v1/chat/completions", {**body, "model": name})


threads = [threading.Thread(target=ask, args=("first", long))]
threads[0].start()
while 'segue_requests_processing{model="first"} 1' not in s.call("GET", "/metrics", raw=True)[1].decode() and threads[0].is_alive(): pass
for name in ("other", "third"):
    threads.append(threading.Thread(target=ask, args=(name, {**long, "max_tokens": 4})))
    threads[-1].start()
for t in threads: t.join()
expect("the running answer was finished", results["first"][1]["usage"]["completion_tokens"] == 1000, results["first"])
expect("the others were answered", all(results[n][0] == 200 for n in ("other", "third")), results)
expect("the first model again", s.post("/v1/chat/completions", {**long, "max_tokens": 4, "model": "first"})[0] == 200)
states = {x["id"]: x["status"]["value"] for x in s.call("GET", "/v1/models")[1]["data"]}
expect("one is loaded", states == {"first": "loaded", "other": "unloaded", "third": "unloaded"}, states)
s.stop()
done()
