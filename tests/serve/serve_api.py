#!/usr/bin/env python3
"""The routes of `segue serve` on a tiny model: answers, streams, constraints, several models, keys, draining.
SPDX-License-Identifier: MIT"""
import re, threading
from servetest import *

m = tiny_model()
other = fim_model("other", seed=2)
s = Server("-m", m, "-m", other, "--metrics", "--unit", "cpu", "-t", "1", "--parallel", "4")
hello = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, "temperature": 0, "ignore_eos": True}

# Models and health.
expect("health", s.call("GET", "/health") == (200, {"status": "ok"}))
status, models = s.call("GET", "/v1/models")
expect("models", status == 200 and [x["id"] for x in models["data"]] == ["tiny", "other"] and models["data"][0]["meta"]["n_ctx"] == 2048, models)
status, one = s.call("GET", "/v1/models/other")
expect("one model", status == 200 and one == models["data"][1], one)
is_error("an unknown one", s.call("GET", "/v1/models/none"), 404)
is_error("no model named models", s.call("GET", "/v1/models/"), 404)
props = s.call("GET", "/props")[1]
expect("props", props["total_slots"] == 4 and props["model_path"] == m, props)
expect("slots", len(s.call("GET", "/slots")[1]) == 4)
is_error("an unknown path", s.call("GET", "/nothing"), 404)
is_error("a wrong method", s.call("GET", "/v1/chat/completions"), 405)

# Chat: a whole answer equals the stream and the command.
status, whole = s.post("/v1/chat/completions", hello)
expect("chat", status == 200 and whole["object"] == "chat.completion" and whole["choices"][0]["finish_reason"] == "length", whole)
text = whole["choices"][0]["message"]["content"]
expect("usage", whole["usage"]["completion_tokens"] == 8 and whole["usage"]["prompt_tokens"] > 5, whole["usage"])
expect("report", whole["segue"]["units"]["decode"].startswith("cpu") and whole["segue"]["reuse_reason"], whole["segue"])
events = s.stream("/v1/chat/completions", {**hello, "stream_options": {"include_usage": True}})
joined = "".join(e["choices"][0]["delta"].get("content") or "" for _, e in events[:-2])
expect("the stream has the same text", joined == text, (joined, text))
expect("the stream ends", events[-1][1] == "[DONE]" and events[-2][1]["usage"]["completion_tokens"] == 8 and
       events[-3][1]["choices"][0]["finish_reason"] == "length", events[-3:])
expect("role first", events[0][1]["choices"][0]["delta"]["role"] == "assistant", events[0])
again = s.post("/v1/chat/completions", hello)[1]
expect("the prompt is reused", again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0 and
       again["choices"][0]["message"]["content"] == text, again)
code, out, err = run("run", "-m", m, "-p", "Hi", "-n", 8, "--temp", 0, "--ignore-eos", "--unit", "cpu", "--json")
expect("the command has the same text", json.loads(out)["text"] == text, (out, text))
with_parts = {**hello, "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]}
expect("content parts", s.post("/v1/chat/completions", with_parts)[1]["choices"][0]["message"]["content"] == text)
is_error("images", s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}),
         400, "image_url", param="messages")
null = {**hello, "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": None}, {"role": "user", "content": "b"}], "top_p": None}
expect("null content and null fields", s.post("/v1/chat/completions", null)[0] == 200)
many = s.post("/v1/chat/completions", {**hello, "n": 3, "seed": 5, "temperature": 1.0})[1]
expect("n", len(many["choices"]) == 3 and [c["index"] for c in many["choices"]] == [0, 1, 2], many)
same = s.post("/v1/chat/completions", {**hello, "n": 3, "seed": 5, "temperature": 1.0})[1]
expect("seed", [c["message"] for c in same["choices"]] == [c["message"] for c in many["choices"]])
probs = s.post("/v1/chat/completions", {**hello, "logprobs": True, "top_logprobs": 3})[1]["choices"][0]["logprobs"]["content"]
expect("logprobs", len(probs) == 8 and all(len(p["top_logprobs"]) == 3 and p["logprob"] <= 0 for p in probs) and
       bytes(b for p in probs for b in p["bytes"]).decode("utf-8", "replace") == text, probs)
stop = text[3]
stopped = s.post("/v1/chat/completions", {**hello, "stop": [stop]})[1]["choices"][0]
expect("stop", stopped["finish_reason"] == "stop" and stopped["message"]["content"] == text.split(stop)[0], stopped)
biased = s.post("/v1/chat/completions", {**hello, "logit_bias": {"65": 100}})[1]["choices"][0]["message"]["content"]
expect("logit_bias", biased == "A" * 8, biased)
expect("the other model", s.post("/v1/chat/completions", {**hello, "model": "other"})[1]["model"] == "other")
is_error("an unknown model", s.post("/v1/chat/completions", {**hello, "model": "gpt-4"}), 404, "gpt-4", param="model")

# Completions.
completed = s.post("/v1/completions", {"prompt": "ab", "max_tokens": 4, "temperature": 0, "echo": True, "logprobs": 1, "ignore_eos": True})[1]
expect("echo", completed["choices"][0]["text"].startswith("ab") and len(completed["choices"][0]["logprobs"]["tokens"]) == 4, completed)
two = s.post("/v1/completions", {"prompt": ["ab", [97, 98]], "max_tokens": 4, "temperature": 0, "ignore_eos": True})[1]
expect("several prompts", len(two["choices"]) == 2 and two["choices"][0]["text"] == two["choices"][1]["text"], two)
parts = s.stream("/v1/completions", {"prompt": "ab", "max_tokens": 4, "temperature": 0, "ignore_eos": True})
expect("stream", "".join(e["choices"][0]["text"] for _, e in parts[:-1]) == two["choices"][0]["text"], parts)

# llama.cpp's own form, without a default length.
own = s.post("/completion", {"prompt": "ab", "n_predict": 4, "temperature": 0, "ignore_eos": True})[1]
expect("/completion", own["content"] == two["choices"][0]["text"] and own["stop"] and own["stop_type"] == "limit" and own["tokens_predicted"] == 4 and
       own["tokens_evaluated"] == 2 and own["choices"][0]["text"] == own["content"], own)
expect("timings", own["timings"]["prompt_n"] + own["timings"]["cache_n"] == 2 and own["timings"]["predicted_n"] == 4 and own["timings"]["predicted_per_second"] > 0, own)
expect("it has no default length", s.post("/completion", {"prompt": "ab", "regex": "[0-9]{40}"})[1]["tokens_predicted"] >= 40)
word = s.post("/completions", {"prompt": "ab", "grammar": 'root ::= "xyz"', "stop": ["y"]})[1]
expect("a stop word", word["content"] == "x" and word["stop_type"] == "word", word)
expect("the end of the text", s.post("/completions", {"prompt": "ab", "grammar": 'root ::= "xyz"'})[1]["stop_type"] == "eos")
parts = s.stream("/completion", {"prompt": "ab", "n_predict": 4, "temperature": 0, "ignore_eos": True})
expect("its stream", "".join(e["content"] for _, e in parts if e != "[DONE]") == own["content"] and [e["stop"] for _, e in parts if e != "[DONE]"][-2:] == [False, True], parts)
expect("its stream ends as OpenAI's", [e["choices"][0]["finish_reason"] for _, e in parts if e != "[DONE]"][-2:] == [None, "length"], parts)

# Constraints: what a random model writes under a schema is valid.
schema = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}, "b": {"type": "boolean"}}, "required": ["a", "b"], "additionalProperties": False}
for i in range(3):
    r = s.post("/v1/chat/completions", {**hello, "ignore_eos": False, "max_tokens": 200, "temperature": 1.5, "seed": i, "response_format":
               {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}}})[1]["choices"][0]
    v = json.loads(r["message"]["content"])
    expect("json_schema", r["finish_reason"] == "stop" and set(v) == {"a", "b"} and v["a"] in ("x", "y") and isinstance(v["b"], bool), r)
r = s.post("/v1/completions", {"prompt": "x", "max_tokens": 50, "temperature": 1.5, "grammar": 'root ::= "yes" | "no"'})[1]["choices"][0]
expect("grammar", r["text"] in ("yes", "no"), r)
r = s.post("/v1/completions", {"prompt": "x", "max_tokens": 50, "temperature": 1.5, "regex": "[0-9]{4}"})[1]["choices"][0]
expect("regex", len(r["text"]) == 4 and r["text"].isdigit(), r)
is_error("an unsupported keyword", s.post("/v1/chat/completions", {**hello, "ignore_eos": False, "response_format": {"type": "json_schema",
         "json_schema": {"name": "n", "schema": {"not": {}}}}}), 400, "not", param="response_format")
is_error("a wrong grammar", s.post("/v1/completions", {"prompt": "x", "grammar": "root ::= ("}), 400, "grammar", param="grammar")

# Compiled constraints are shared by requests, and more of them than are kept do not disturb each other.
found = {}


def constrained(i):
    body = {"prompt": "x", "max_tokens": 60, "temperature": 1.5, "seed": i, "regex": f"[a-z]{{3}}{i % 20}(,[0-9]{{2}})+;"}
    found[i] = s.post("/v1/completions", body)[1]["choices"][0]


threads = [threading.Thread(target=constrained, args=(i,)) for i in range(60)]
for t in threads: t.start()
for t in threads: t.join()
expect("many constraints at once", all(re.fullmatch(rf"[a-z]{{3}}{i % 20}(,[0-9]{{2}})*(,[0-9]{{0,2}})?;?", c["text"]) and (c["finish_reason"] == "length" or c["text"][-1] == ";")
                                       for i, c in found.items()) and len(found) == 60, found)

# Tools: a forced call has the form of the template and valid arguments.
tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"k": {"enum": [1, 2]}}, "required": ["k"],
          "additionalProperties": False}}}]
r = s.post("/v1/chat/completions", {**hello, "ignore_eos": False, "max_tokens": 300, "tools": tools, "tool_choice": "required",
                                    "parallel_tool_calls": False})[1]["choices"][0]
call = (r["message"].get("tool_calls") or [{}])[0]
expect("a forced call", r["finish_reason"] == "tool_calls" and call["function"]["name"] == "f" and json.loads(call["function"]["arguments"])["k"] in (1, 2), r)
named = {"type": "function", "function": {"name": "f"}}
events = s.stream("/v1/chat/completions", {**hello, "ignore_eos": False, "max_tokens": 300, "tools": tools, "tool_choice": named, "parallel_tool_calls": False})
deltas = [e["choices"][0]["delta"] for _, e in events[:-1]]
expect("a streamed call", any(d.get("tool_calls", [{}])[0].get("function", {}).get("name") == "f" for d in deltas), deltas)
is_error("an unknown tool", s.post("/v1/chat/completions", {**hello, "tools": tools, "tool_choice": {"type": "function", "function": {"name": "g"}}}),
         400, "g", param="tool_choice")

# Responses with a kept conversation.
first = s.post("/v1/responses", {"input": "Hi", "max_output_tokens": 8, "temperature": 0, "ignore_eos": True})[1]
expect("responses", first["object"] == "response" and first["output"][0]["content"][0]["text"] == text and first["status"] == "incomplete", first)
second = s.post("/v1/responses", {"input": "More", "previous_response_id": first["id"], "max_output_tokens": 4, "temperature": 0})[1]
expect("previous_response_id", second["usage"]["input_tokens"] > first["usage"]["input_tokens"] and
       second["usage"]["input_tokens_details"]["cached_tokens"] > 0, second)
is_error("an unknown response", s.post("/v1/responses", {"input": "x", "previous_response_id": "resp_none"}), 404, param="previous_response_id")
events = s.stream("/v1/responses", {"input": "Hi", "max_output_tokens": 8, "temperature": 0, "ignore_eos": True})
expect("responses stream", events[0][0] == "response.created" and events[-1][0] == "response.incomplete" and
       "".join(e["delta"] for n, e in events if n == "response.output_text.delta") == text, [n for n, _ in events])

# Anthropic's form.
status, message = s.post("/v1/messages", {"max_tokens": 8, "messages": hello["messages"], "temperature": 0, "stop_sequences": [stop]})
expect("messages", status == 200 and message["type"] == "message" and message["stop_reason"] == "stop_sequence" and message["stop_sequence"] == stop and
       message["content"][0]["text"] == text.split(stop)[0], message)
counted = s.post("/v1/messages/count_tokens", {"messages": hello["messages"]})[1]["input_tokens"]
expect("count_tokens", counted == whole["usage"]["prompt_tokens"], counted)
events = s.stream("/v1/messages", {"max_tokens": 8, "messages": hello["messages"], "temperature": 0, "system": "S"})
expect("messages stream", [n for n, _ in events][:3] == ["message_start", "content_block_start", "content_block_delta"] and
       [n for n, _ in events][-3:] == ["content_block_stop", "message_delta", "message_stop"], [n for n, _ in events])
status, body = s.post("/v1/messages", {"messages": hello["messages"]})
expect("an error of messages", status == 400 and body["type"] == "error" and "max_tokens" in body["error"]["message"], body)

# Text.
expect("tokenize", s.post("/tokenize", {"content": "hé"})[1] == {"tokens": list("hé".encode())})
expect("detokenize", s.post("/detokenize", {"tokens": [104, 105]})[1] == {"content": "hi"})
prompt = s.post("/apply-template", {"messages": hello["messages"]})[1]["prompt"]
expect("apply-template", prompt == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", prompt)

# An answer that goes on from a text of the assistant, as llama.cpp, vLLM and Anthropic have it.
begun = {**hello, "messages": hello["messages"] + [{"role": "assistant", "content": "Well, "}]}
expect("the prompt ends with the text", s.post("/apply-template", begun)[1]["prompt"] == prompt + "Well, ")
expect("asked for by vLLM's switches", s.post("/apply-template", {**begun, "add_generation_prompt": False, "continue_final_message": True})[1]["prompt"] == prompt + "Well, ")
closed = prompt + "Well, <|im_end|>\n"
expect("a new answer", s.post("/apply-template", {**begun, "add_generation_prompt": True})[1]["prompt"] == closed + "<|im_start|>assistant\n")
expect("no answer", s.post("/apply-template", {**begun, "add_generation_prompt": False})[1]["prompt"] == closed)
is_error("both switches", s.post("/v1/chat/completions", {**begun, "add_generation_prompt": True, "continue_final_message": True}), 400, param="continue_final_message")
is_error("nothing to go on from", s.post("/v1/chat/completions", {**hello, "continue_final_message": True}), 400, param="continue_final_message")
same = s.post("/v1/completions", {"prompt": prompt + "Well, ", "max_tokens": 8, "temperature": 0, "ignore_eos": True})[1]["choices"][0]["text"]
expect("the answer goes on", s.post("/v1/chat/completions", begun)[1]["choices"][0]["message"]["content"] == same)
expect("also in Anthropic's form", s.post("/v1/messages", {"max_tokens": 8, "messages": begun["messages"], "temperature": 0})[1]["content"][0]["text"] == same)
expect("an answer of /v1/responses is new", s.post("/v1/responses", {"input": begun["messages"], "max_output_tokens": 1})[1]["usage"]["input_tokens"] > len(closed) - 40)

# Rerank and embeddings.
r = s.post("/v1/rerank", {"query": "a", "documents": ["b", "a", "c"], "top_n": 2, "return_documents": True})
expect("rerank", r[0] == 200 and len(r[1]["results"]) == 2 and r[1]["results"][0]["relevance_score"] >= r[1]["results"][1]["relevance_score"], r)
tei = s.post("/rerank", {"query": "a", "texts": ["b", "a", "c"], "top_n": 2, "return_text": True})
expect("rerank in the form of text-embeddings-inference", tei == (200, [{"index": x["index"], "score": x["relevance_score"], "text": x["document"]["text"]} for x in r[1]["results"]]), tei)
status, body = s.post("/v1/embeddings", {"input": ["a", "b"]})
expect("embeddings", status == 200 and [abs(sum(x * x for x in d["embedding"]) - 1) < 1e-3 for d in body["data"]] == [True, True], body)

# Many at once give what one gives.
results = [None] * 12


def client(i): results[i] = s.post("/v1/chat/completions", {**hello, "max_tokens": 24, "seed": i % 3, "temperature": 1.0})[1]["choices"][0]["message"]["content"]


threads = [threading.Thread(target=client, args=(i,)) for i in range(12)]
for t in threads: t.start()
for t in threads: t.join()
expect("many clients", all(results[i] == results[i % 3] for i in range(12)), results)
metrics = s.call("GET", "/metrics", raw=True)[1].decode()
expect("metrics", "# TYPE segue_tokens_predicted_total counter" in metrics and 'segue_requests_processing{model="tiny"} 0' in metrics, metrics)

# Every path of the description answers, and every field of it is read: a value of a wrong type is refused by its name.
BASE = {"messages": [{"role": "user", "content": "x"}], "prompt": "x", "input": "x", "query": "x", "documents": ["y"], "content": "x", "tokens": [97], "filename": "x"}
WRONG = {"string": 5, "array": 5, "integer": "x", "number": "x", "boolean": 5, "object": 5}
paths = s.call("GET", "/openapi.json")[1]["paths"]
for path, methods in paths.items():
    for method in methods:
        kept = s.post("/v1/responses", {"input": "Hi", "max_output_tokens": 1})[1]["id"] if "/responses/" in path else "tiny" if "/models/" in path else "0"
        got = s.call(method.upper(), path.replace("{id}", kept), {} if method == "post" else None)[0]
        expect(f"{method} {path}", got in ((403,) if "states" in path else (200, 400)), got)
        body = methods[method].get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {}).get("properties", {})
        for name, kind in body.items() if "states" not in path and "{id}" not in path else ():
            if "type" not in kind: continue
            more = {"model": "other", "input_prefix": "x", "input_suffix": "x"} if path == "/infill" else {}
            got = s.post(path, {**BASE, **more, "max_tokens": 1, name: WRONG[kind["type"][0]]})
            expect(f"{path} reads {name}", got[0] == 400 and name in got[1]["error"]["message"], got)

# SIGTERM: the running answer is finished, new requests are refused.
slow = {**hello, "max_tokens": 1500}
holder = [None]
t = threading.Thread(target=lambda: holder.__setitem__(0, s.post("/v1/chat/completions", slow)))
t.start()
while 'segue_requests_processing{model="tiny"} 1' not in s.call("GET", "/metrics", raw=True)[1].decode() and t.is_alive(): pass
err = s.stop()
t.join()
expect("the running answer was finished", holder[0][0] == 200 and holder[0][1]["usage"]["completion_tokens"] == 1500, holder[0])

# Keys: needed off loopback, checked, and prefixes are kept apart.
refused(2, ["serve", "-m", m, "--host", "0.0.0.0", "--port", "0"], "api-key-file")
keys = write(top.name, "keys", "# two keys\nalpha\nbeta\n")
config = write(top.name, "serve.json", json.dumps({"api_key_file": keys, "metrics": True, "unit": "cpu", "threads": 1, "model": m}))
s = Server("--config", config)
is_error("no key", s.post("/v1/chat/completions", hello), 401)
is_error("a wrong key", s.post("/v1/chat/completions", hello, Authorization="Bearer gamma"), 401)
expect("the first key", s.post("/v1/chat/completions", hello, Authorization="Bearer alpha")[0] == 200)
r = s.post("/v1/chat/completions", hello, **{"x-api-key": "beta"})
expect("the second key", r[0] == 200, r)
s.stop()
done()
