#!/usr/bin/env python3
"""Names and forms of llama.cpp's server that its users rely on: flags, fields, paths. SPDX-License-Identifier: MIT"""
from servetest import *

# Its flags, and switches for what is always so here.
think = TEMPLATE.replace("assistant\\n' }}", "assistant\\n<think>\\n' }}")
m = tiny_model("thinker", template=think)
s = Server("-m", m, "-m", tiny_model("other", seed=1), "--unit", "cpu", "-t", "1", "--ctx-size", "2000", "-np", "1", "--n-predict=7", "--temperature", "0", "--jinja", "--no-webui",
           "--embeddings", "--api-key", "alpha,beta", "--reasoning-budget", "3")
refused(2, ["serve", "--jinja=1"], "flag --jinja: \"1\": the flag takes no value")
refused(2, ["serve", "-ngl", "99"], "did you mean --unit?")
refused(2, ["serve", "--ctx-size", "x"], "--ctx")
KEY = {"Authorization": "Bearer beta"}
is_error("--api-key", s.post("/completion", {"prompt": "x"}), 401)
props = s.call("GET", "/props", headers=KEY)[1]
expect("--ctx-size, -np, --temperature", props["default_generation_settings"]["n_ctx"] == 2000 and props["total_slots"] == 1 and
       props["default_generation_settings"]["params"]["temperature"] == 0, props)
body = {"prompt": "ab", "ignore_eos": True}
r = s.post("/completion", body, **KEY)
expect("--n-predict", r[0] == 200 and r[1]["tokens_predicted"] == 7, r)
r = s.post("/completion", {**body, "n_cmpl": 3}, **KEY)
expect("n_cmpl", len(r[1]["choices"]) == 3, r)

# Reasoning: its budget, and in which field it is returned.
chat = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 20, "ignore_eos": True, "temperature": 1, "seed": 1}
apart = s.post("/v1/chat/completions", chat, **KEY)[1]
message = apart["choices"][0]["message"]
expect("--reasoning-budget", apart["usage"]["completion_tokens_details"]["reasoning_tokens"] == 3 and message["reasoning_content"] and message["content"], apart)
longer = s.post("/v1/chat/completions", {**chat, "reasoning_budget_tokens": 9}, **KEY)[1]
expect("reasoning_budget_tokens", longer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 9, longer)
together = s.post("/v1/chat/completions", {**chat, "reasoning_format": "none"}, **KEY)[1]["choices"][0]["message"]
expect("reasoning_format none", "reasoning_content" not in together and together["content"].startswith(message["reasoning_content"] + "</think>\n\n") and
       together["content"].endswith(message["content"]) and not message["content"].startswith("\n"), (together, message))
is_error("reasoning_format", s.post("/v1/chat/completions", {**chat, "reasoning_format": "x"}, **KEY), 400, param="reasoning_format")

# The time of an answer is bounded, at a line break.
r = s.post("/completion", {"prompt": "ab", "n_predict": 1900, "regex": "(abc\n){1000}", "t_max_predict_ms": 1}, **KEY)[1]
expect("t_max_predict_ms", r["stop_type"] == "limit" and r["content"].endswith("\n") and r["tokens_predicted"] < 1900, r)

# Tokens of a request, and progress and times in a stream of /v1/responses.
asked = {"input": "Hi " * 40, "instructions": "Be short."}
counted, answered = s.post("/v1/responses/input_tokens", asked, **KEY), s.post("/v1/responses", {**asked, "max_output_tokens": 2}, **KEY)
expect("/v1/responses/input_tokens", counted[1] == {"object": "response.input_tokens", "input_tokens": answered[1]["usage"]["input_tokens"]}, (counted, answered))
is_error("/v1/responses/input_tokens", s.post("/v1/responses/input_tokens", {}, **KEY), 400, param="input")
c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=120)
c.request("POST", "/v1/responses", json.dumps({**asked, "input": "Ho " * 40, "stream": True, "max_output_tokens": 9, "timings_per_token": True, "return_progress": True}), KEY)
events = [json.loads(b[b.index("data: ") + 6:]) for b in c.getresponse().read().decode().split("\n\n") if "data: " in b]
kinds = [e["type"] for e in events]
progress = [e["prompt_progress"] for e in events if "prompt_progress" in e]
expect("the first events", kinds[:2] == ["response.created", "response.in_progress"], kinds)
expect("return_progress", progress and progress[-1]["processed"] == progress[-1]["total"] and all(e["type"] == "response.in_progress" for e in events if "prompt_progress" in e), progress)
deltas = [e for e in events if e["type"].endswith("text.delta")]
expect("timings_per_token", deltas and all("predicted_per_second" in e["timings"] for e in deltas) and "prompt_per_second" in events[-1]["timings"], deltas)

# A stream that waits is not silent: a comment comes before its first event while others hold the only slot.
hold = json.dumps({"prompt": "x", "max_tokens": 1900, "ignore_eos": True, "n": 16, "stream": True, "temperature": 1})
held = []
for i in range(6):
    held.append(http.client.HTTPConnection("127.0.0.1", s.port, timeout=120))
    held[i].request("POST", "/v1/completions", hold, KEY)
    if not i: held[0].getresponse().readline()
waiting = http.client.HTTPConnection("127.0.0.1", s.port, timeout=120)
waiting.request("POST", "/v1/chat/completions", json.dumps({**chat, "max_tokens": 2, "stream": True, "sse_ping_interval": 1}), KEY)
reply = waiting.getresponse()
first = reply.readline()
for h in held: h.close()
rest = reply.read()
expect("a comment while the stream waits", first == b":\n" and rest.endswith(b"data: [DONE]\n\n"), (first, rest))

# Models are loaded and unloaded by request; an unloaded one is loaded again when a request names it.
state = lambda name: next(x["status"]["value"] for x in s.call("GET", "/models", headers=KEY)[1]["data"] if x["id"] == name)
expect("the second model is not loaded", state("other") == "unloaded")
for path, name, status, after in (("load", "other", 200, "loaded"), ("unload", "other", 200, "unloaded"), ("unload", "other", 400, "unloaded"), ("load", "other", 200, "loaded"),
                                  ("unload", "thinker", 200, "unloaded")):
    r = s.post(f"/models/{path}", {"model": name}, **KEY)
    expect(f"{path} {name}", r[0] == status and (status != 200 or r[1] == {"success": True}) and state(name) == after, (r, state(name)))
is_error("load an unknown model", s.post("/models/load", {"model": "gpt-4"}, **KEY), 404, "gpt-4", param="model")
is_error("load no model", s.post("/models/load", {}, **KEY), 400, param="model")
is_error("an unloaded model", s.call("GET", "/props", headers=KEY), 503, "'thinker' is not loaded", param="model")
expect("an unloaded model is loaded again", s.post("/completion", {**body, "model": "thinker"}, **KEY)[1]["content"] == s.post("/completion", body, **KEY)[1]["content"])
s.stop()
done()
