#!/usr/bin/env python3
"""/v1/responses with previous_response_id: only new tokens are read, whatever the model chose; ids belong to a key, are bounded in
number, and are not kept with store: false. What is kept is read and deleted by its id. SPDX-License-Identifier: MIT"""
from servetest import *

m, other = tiny_model(), tiny_model("other", seed=2)
s = Server("-m", m, "-m", other, "--unit", "cpu", "-t", "1", "--api-key-file", write(top.name, "keys", "alpha\nbeta\n"))
connection = http.client.HTTPConnection("127.0.0.1", s.port, timeout=LIMIT)


def call(method, path, body=None, key="alpha"):
    connection.request(method, path, body and json.dumps(body).encode(), {"Content-Type": "application/json", "Authorization": f"Bearer {key}"})
    r = connection.getresponse()
    return r.status, json.loads(r.read())


def post(path, body, key="alpha"): return call("POST", path, body, key)


def respond(body, key="alpha"):
    status, reply = post("/v1/responses", {"max_output_tokens": 24, "ignore_eos": True, **body}, key)
    expect(f"{str(body)[:60]}: 200", status == 200, reply)
    return reply


def text(r): return r["output"][0]["content"][0]["text"]


def cached(r): return r["usage"]["input_tokens_details"]["cached_tokens"]


# Sampled bytes are no valid text: as text they would become other tokens. All but the last token of an answer has been computed.
last = respond({"input": "Tell me more of it", "temperature": 1, "seed": 7})
expect("the answer is not what its text says", "\ufffd" in text(last), text(last))
for turn in range(3):
    r = respond({"input": f"Go on {turn}", "temperature": 1, "seed": turn, "previous_response_id": last["id"]})
    expect(f"turn {turn}: only new tokens are read", cached(r) == last["usage"]["total_tokens"] - 1 and r["segue"]["reuse_reason"] == "all",
           (last["usage"], r["usage"], r["segue"]))
    # "<|im_end|>", newline, the new message, the beginning of the answer
    new = len("\nuser\n" + f"Go on {turn}" + "\nassistant\n") + 4
    expect(f"turn {turn}: the prompt is the old one, the answer and the message", r["usage"]["input_tokens"] == last["usage"]["total_tokens"] + new,
           (last["usage"], r["usage"], new))
    expect("names the one before", r["previous_response_id"] == last["id"], r)
    before, last = last, r
branch = respond({"input": "Another way", "previous_response_id": before["id"]})
expect("an earlier answer is continued too", cached(branch) >= before["usage"]["total_tokens"] - 1, (branch["usage"], branch["segue"]))
connection.request("POST", "/v1/responses", json.dumps({"input": "x", "max_output_tokens": 4, "ignore_eos": True, "stream": True, "previous_response_id": last["id"]}).encode(),
                   {"Authorization": "Bearer alpha"})
events = [json.loads(x[6:]) for x in connection.getresponse().read().decode().split("\n") if x.startswith("data: {")]
expect("a stream continues", cached(events[-1]["response"]) == last["usage"]["total_tokens"] - 1, events[-1])
again = respond({"input": "x", "previous_response_id": events[-1]["response"]["id"]})
expect("an answer that was streamed is continued", cached(again) == events[-1]["response"]["usage"]["total_tokens"] - 1, again["usage"])

nul = respond({"input": "Hi", "logit_bias": {"0": 100}, "temperature": 0})
expect("an answer of NUL", set(text(nul)) == {"\0"}, text(nul))
expect("is continued", cached(respond({"input": "x", "previous_response_id": nul["id"]})) == nul["usage"]["total_tokens"] - 1, nul["usage"])

# Where text and tokens agree, the answer is that to the whole conversation.
plain = {"temperature": 0, "ignore_eos": False, "regex": "[a-z ]{12}"}
first = respond({"input": "Hi", **plain})
second = respond({"input": "More", "previous_response_id": first["id"], **plain})
whole = respond({"input": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": text(first)}, {"role": "user", "content": "More"}], **plain}, "beta")
expect("as the whole conversation", text(second) == text(whole) and second["usage"]["input_tokens"] == whole["usage"]["input_tokens"], (second, whole))
expect("the stop token is not read twice", cached(second) >= first["usage"]["total_tokens"] - 2, (first["usage"], second["usage"]))

# Instructions are of one answer: the same again are reused, others are read.
told = respond({"input": "Hi", "instructions": "Be brief", "temperature": 1, "seed": 1})
same = respond({"input": "More", "instructions": "Be brief", "previous_response_id": told["id"]})
expect("the same instructions", cached(same) == told["usage"]["total_tokens"] - 1, same["usage"])
new = respond({"input": "More", "instructions": "Sing", "previous_response_id": told["id"]})
expect("other instructions", cached(new) < 30 and new["usage"]["input_tokens"] > 60, new["usage"])
cut = respond({"input": "Hi", "stop": text(first)[3:5], **plain})
expect("after a stop string", cached(respond({"input": "More", "previous_response_id": cut["id"]})) >= cut["usage"]["input_tokens"] - 1, cut["usage"])
moved = respond({"input": "More", "model": "other", "previous_response_id": last["id"]})
expect("another model reads it all", cached(moved) == 0 and moved["usage"]["input_tokens"] > last["usage"]["input_tokens"], moved["usage"])

# Who may continue what.
unknown = {"input": "x", "max_output_tokens": 1}
is_error("another key", post("/v1/responses", {**unknown, "previous_response_id": last["id"]}, "beta"), 404, last["id"], param="previous_response_id")
is_error("an unknown id", post("/v1/responses", {**unknown, "previous_response_id": "resp_x"}), 404, "resp_x", param="previous_response_id")
for v in (5, [], True, {}): is_error(f"id {v}", post("/v1/responses", {**unknown, "previous_response_id": v}), 400, param="previous_response_id")
is_error("store", post("/v1/responses", {**unknown, "store": "no"}), 400, param="store")
dropped = respond({"input": "Hi", "store": False})
is_error("store: false", post("/v1/responses", {**unknown, "previous_response_id": dropped["id"]}), 404, param="previous_response_id")
once = respond({"input": "y", "store": False, "previous_response_id": last["id"]})
expect("store: false continues what is kept", cached(once) >= last["usage"]["total_tokens"] - 1, once["usage"])

# GET and DELETE of what is kept.
def is_unknown(what, *request): is_error(what, call(*request), 404, param="response_id")


for r in (first, second, nul, told, cut, moved): expect("GET returns the answer", call("GET", f"/v1/responses/{r['id']}") == (200, r), r["id"])
streamed = events[-1]["response"]
got = call("GET", f"/v1/responses/{streamed['id']}")[1]
expect("GET returns an answer that was streamed", got["output"] == streamed["output"] and got["usage"] == streamed["usage"] and got["status"] == "incomplete", got)
for method, end in (("GET", ""), ("GET", "/input_items"), ("DELETE", "")):
    for name in ("resp_x", "", "%00", "x" * 2000): is_unknown(f"{method} {name[:9]}{end}", method, f"/v1/responses/{name}{end}")
    is_unknown(f"{method} of another key", method, f"/v1/responses/{first['id']}{end}", None, "beta")
    is_unknown(f"{method}, store: false", method, f"/v1/responses/{dropped['id']}{end}")
expect("another method", call("PUT", f"/v1/responses/{first['id']}", {})[0] == 405)
expect("another path", call("GET", f"/v1/responses/{first['id']}/x")[0] == 404)


def items(r, query=""):
    status, reply = call("GET", f"/v1/responses/{r['id']}/input_items{query}")
    expect(f"items{query}: a list", status == 200 and reply["object"] == "list", reply)
    ids = [i["id"] for i in reply["data"]]
    expect(f"items{query}: the ends", [reply["first_id"], reply["last_id"]] == ([ids[0], ids[-1]] if ids else [None, None]), reply)
    return reply["data"], reply["has_more"]


def message(role, text): return ("message", role, [{"type": "output_text" if role == "assistant" else "input_text", "text": text}])


def brief(data): return [(i["type"], i["role"], i["content"]) for i in data]


got, more = items(second, "?order=asc")
expect("items: all that the answer was made from", brief(got) == [message("user", "Hi"), message("assistant", text(first)), message("user", "More")] and not more, got)
expect("items: newest first", items(second)[0] == got[::-1])
expect("items: instructions are none", brief(items(told)[0]) == [message("user", "Hi")], items(told))
one, more = items(second, "?order=asc&limit=1")
two, last_more = items(second, f"?order=asc&limit=2&after={one[0]['id']}")
expect("items: pages", one + two == got and more and not last_more, (one, two))
expect("items: after the last", items(second, f"?after={got[0]['id']}") == ([], False))
for query, name in (("limit=0", "limit"), ("limit=101", "limit"), ("limit=-1", "limit"), ("limit=1e1", "limit"), ("limit=", "limit"), ("limit=4294967297", "limit"),
                    ("order=up", "order"), ("after=x", "after"), ("after=", "after")):
    is_error(f"items?{query}", call("GET", f"/v1/responses/{second['id']}/input_items?{query}"), 400, param=name)
called = respond({"input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}, {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
                            {"type": "function_call_output", "call_id": "c1", "output": "5"}]})
got = [{k: v for k, v in i.items() if k != "id"} for i in items(called, "?order=asc")[0]]
expect("items: calls and their results", got == [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}], "status": "completed"},
    {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}", "status": "completed"},
    {"type": "function_call_output", "call_id": "c1", "output": "5", "status": "completed"}], got)
expect("DELETE", call("DELETE", f"/v1/responses/{first['id']}") == (200, {"id": first["id"], "object": "response", "deleted": True}))
is_unknown("GET of what was deleted", "GET", f"/v1/responses/{first['id']}")
is_unknown("DELETE of what was deleted", "DELETE", f"/v1/responses/{first['id']}")
is_error("what was deleted is not continued", post("/v1/responses", {**unknown, "previous_response_id": first["id"]}), 404, param="previous_response_id")
expect("what continued it is still there", call("GET", f"/v1/responses/{second['id']}") == (200, second))

# The newest 1,024 of a server are kept.
oldest = respond({"input": "a", "max_output_tokens": 1})
for _ in range(1023): newest = post("/v1/responses", {"input": "b", "max_output_tokens": 1}, "beta")[1]
respond({"input": "a", "store": False, "previous_response_id": oldest["id"], "max_output_tokens": 1})
respond({"input": "b", "max_output_tokens": 1}, "beta")
is_unknown("GET of the oldest", "GET", f"/v1/responses/{oldest['id']}")
is_error("the oldest is gone", post("/v1/responses", {**unknown, "previous_response_id": oldest["id"]}), 404, param="previous_response_id")
expect("the newest is there", post("/v1/responses", {**unknown, "previous_response_id": newest["id"]}, "beta")[0] == 200)
connection.close()
s.stop()
done()
