#!/usr/bin/env python3
"""Tool calls in every form that the supported models write: a grammar makes a tiny model write the text; checked are the calls of whole
answers and of the streams of the three APIs, in which arguments come piece by piece.
SPDX-License-Identifier: MIT"""
import re
from servetest import *

s = Server("-m", tiny_model(), "--unit", "cpu", "-t", "1", "--ctx", "2048")
TOOLS = [{"type": "function", "function": {"name": n, "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "n": {"type": "integer"},
          "code": {"type": "string"}}}}} for n in ("get_weather", "add")]
WEATHER, ADD = ("get_weather", {"city": "Rome", "n": 3}), ("add", {"n": 1})
J, JP = '{"name": "get_weather", "arguments": {"city": "Rome", "n": 3}}', '{"name": "get_weather", "parameters": {"city": "Rome", "n": 3}}'
A = '{"name":"add","arguments":{"n":1}}'
# text of the model, calls, content
FORMS = {
    "Hermes": (f"<tool_call>\n{J}\n</tool_call>", [WEATHER], None),
    "SmolLM2, text before": (f"I look.\n<tool_call>{J}</tool_call>", [WEATHER], "I look."),
    "SmolLM2, a list": (f"<tool_call>[{J}, {A}]</tool_call>", [WEATHER, ADD], None),
    "Qwen3, two calls": (f"<tool_call>\n{J}\n</tool_call>\n<tool_call>\n{A}\n</tool_call>", [WEATHER, ADD], None),
    "Qwen3.5": ("<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>", [WEATHER], None),
    "Qwen3.5, a text of digits": ("<tool_call>\n<function=add>\n<parameter=code>\n12\n</parameter>\n</function>\n</tool_call>", [("add", {"code": "12"})], None),
    "Qwen3.5, no arguments": ("<tool_call>\n<function=add>\n</function>\n</tool_call>", [("add", {})], None),
    "Mistral": (f"[TOOL_CALLS][{J}]", [WEATHER], None),
    "Mistral, two calls": (f"[TOOL_CALLS] [{J}, {A}]", [WEATHER, ADD], None),
    "Mistral, newer": ('[TOOL_CALLS]get_weather[ARGS]{"city": "Rome", "n": 3}[TOOL_CALLS]add[CALL_ID]abc123[ARGS]{"n": 1}', [WEATHER, ADD], None),
    "Llama 3.1": (f"<|python_tag|>{JP}", [WEATHER], None),
    "Llama 3.1, bare": (JP, [WEATHER], None),
    "Llama 3.1, two bare": (f"{JP}; {A}", [WEATHER, ADD], None),
    "Llama 3.1, built in": ('<|python_tag|>brave_search.call(query="sky")', [("brave_search", {"query": "sky"})], None),
    "Gemma, JSON": (f"```tool_call\n{JP}\n```", [WEATHER], None),
    "Gemma, Python": ("```tool_code\nget_weather(city='Rome', n=3)\n```", [WEATHER], None),
    "Gemma, printed": ('```tool_code\nprint(get_weather(city="Rome", n=3))\n```', [WEATHER], None),
    "FunctionGemma": ("<start_function_call>call:get_weather{city:<escape>Rome<escape>,n:3}<end_function_call>", [WEATHER], None),
    "members in another order": ('<tool_call>{"arguments": {"city": "Rome", "n": 3}, "name": "get_weather"}</tool_call>', [WEATHER], None),
    "Mistral, members in another order": ('[TOOL_CALLS][ {"arguments": {"n": 1}, "name": "add"}, {"name": "add", "arguments": {"n": 1}}]', [ADD, ADD], None),
    "a list, the second in another order": (f'<tool_call>[{J}, {{"arguments": {{"n": 1}}, "name": "add"}}]</tool_call>', [WEATHER, ADD], None),
    "a list that is no call": ('[TOOL_CALLS][ {"sky": "blue"}]', [], '[TOOL_CALLS][{"sky": "blue"}]'),
    "OpenAI's own": ('<tool_call>{"type": "function", "function": {"name": "add", "arguments": "{\\"n\\": 1}"}}</tool_call>', [ADD], None),
    "a mark inside a text": ('<tool_call>{"name": "add", "arguments": {"code": "a </tool_call> \\" } b"}}</tool_call>', [("add", {"code": 'a </tool_call> " } b'})], None),
    "nested arguments": ('<tool_call>{"name": "add", "arguments": {"code": {"x": [1, {"y": "}"}]}}}</tool_call>', [("add", {"code": {"x": [1, {"y": "}"}]}})], None),
    "no call: text": ("The {sky} is <b>blue</b> [1].", [], "The {sky} is <b>blue</b> [1]."),
    "no call: JSON": ('{"sky": "blue"}', [], '{"sky": "blue"}'),
    "no call: damaged": ("<tool_call>sky</tool_call>", [], "<tool_call>sky</tool_call>"),
}


def request(text, stream):
    """A chat whose answer is the text."""
    return {"messages": [{"role": "user", "content": "x"}], "tools": TOOLS, "max_tokens": 400, "temperature": 0, "stream": stream,
            "grammar": "root ::= " + json.dumps(text, ensure_ascii=False)}


def same(calls, expected): return [(c[0], json.loads(c[1])) for c in calls] == expected


for name, (text, calls, content) in FORMS.items():
    r = s.post("/v1/chat/completions", request(text, False))[1]["choices"][0]
    got = [(c["function"]["name"], c["function"]["arguments"]) for c in r["message"].get("tool_calls") or []]
    expect(f"{name}: calls", same(got, calls) and (r["message"]["content"] or None) == content, r)
    expect(f"{name}: finish", r["finish_reason"] == ("tool_calls" if calls else "stop"), r)
    streamed, said, pieces = [], "", 0
    for _, e in s.stream("/v1/chat/completions", request(text, True)):
        delta = e["choices"][0]["delta"] if e != "[DONE]" else {}
        said += delta.get("content") or ""
        for c in delta.get("tool_calls") or []:
            if c["index"] == len(streamed):
                expect(f"{name}: a call begins with its id and name", c["id"] and c["type"] == "function" and c["function"]["name"], c)
                streamed.append([c["function"]["name"], ""])
            streamed[c["index"]][1] += c["function"].get("arguments", "")
            pieces += 1
    expect(f"{name}: the stream", same(streamed, calls) and (said or None) == content, (streamed, said))
    # One byte a token: arguments that are JSON in the text come byte by byte.
    if name in ("Hermes", "Mistral, newer", "Llama 3.1, bare"): expect(f"{name}: arguments are streamed", pieces > 20, pieces)

# The other two APIs: blocks and items of a streamed call.
text, calls, _ = FORMS["Qwen3, two calls"]
body = {**request(text, True), "tools": [{"name": t["function"]["name"], "input_schema": t["function"]["parameters"]} for t in TOOLS]}
blocks, open_block = [], None
for event, e in s.stream("/v1/messages", body):
    if event == "content_block_start":
        expect("blocks do not overlap", open_block is None, e)
        open_block = e["index"]
        blocks.append([e["content_block"]["name"], ""])
    if event == "content_block_delta": blocks[-1][1] += e["delta"]["partial_json"]
    if event == "content_block_stop": open_block = None
    if event == "message_delta": expect("the reason to stop", e["delta"]["stop_reason"] == "tool_use", e)
expect("blocks of Anthropic", same(blocks, calls) and open_block is None, blocks)
body = {**request(text, True), "input": "x", "tools": [{"type": "function", **t["function"]} for t in TOOLS], "max_output_tokens": 400}
items, ends = [], 0
for event, e in s.stream("/v1/responses", body):
    if event == "response.output_item.added": items.append([e["item"]["name"], ""])
    if event == "response.function_call_arguments.delta": items[-1][1] += e["delta"]
    if event == "response.function_call_arguments.done": expect("arguments at the end", e["arguments"] == items[-1][1], e)
    if event == "response.output_item.done": ends += 1
expect("items of Responses", same(items, calls) and ends == 2, (items, ends))

r = s.post("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 9, "grammar": 'root ::= "abcd"', "stop_sequences": ["z", "bc", "d"]})[1]
expect("the stop sequence that was found", r["stop_reason"] == "stop_sequence" and r["stop_sequence"] == "bc" and r["content"][0]["text"] == "a", r)

# Earlier calls and results reach the model whatever the template has a place for. This one knows no tools: all is text.
turns = [{"role": "system", "content": "SYS"}, {"role": "user", "content": "Rome?"}, {"role": "assistant", "content": None, "tool_calls": [
         {"id": "call_" + "x" * 24, "type": "function", "function": {"name": "get_weather", "arguments": J[J.index('{"city'):-1]}}]},
         {"role": "tool", "tool_call_id": "call_" + "x" * 24, "content": "sunny"}, {"role": "tool", "tool_call_id": "y", "content": "warm"}, {"role": "user", "content": "And?"}]
prompt = lambda server, **more: server.post("/apply-template", {"messages": turns, "tools": TOOLS, **more})[1].get("prompt", "")
text = prompt(s)
expect("calls and results as text", f"assistant\n<tool_call>\n{J}\n</tool_call>" in text and
       "user\n<tool_response>\nsunny\n</tool_response>\n<tool_response>\nwarm\n</tool_response>" in text and text.index("</tools>") < text.index("Rome?"), text)

# An answer that is cut inside a call has what was written of it.
r = s.post("/v1/chat/completions", {**request(FORMS["Hermes"][0], False), "max_tokens": 60})[1]["choices"][0]
expect("a cut call", r["finish_reason"] == "length" and r["message"]["tool_calls"][0]["function"]["arguments"].startswith('{"ci'), r)
s.stop()

# A template of Mistral: ids of nine letters, and roles that take turns, so that messages are merged. A tool without a description.
mistral = """{% set ns = namespace(user=true) %}{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}
{%- if m.role in ('user', 'assistant') and not m.tool_calls %}{% if (m.role == 'user') != ns.user %}{{ raise_exception('roles must alternate') }}{% endif %}{% set ns.user = not ns.user %}{% endif %}
{%- for c in m.tool_calls or [] %}{% if c.id|length != 9 %}{{ raise_exception('length 9') }}{% endif %}[TOOL_CALLS]{{ c.id + c.function.name }}{% endfor %}
{%- if m.role == 'tool' %}[RESULT]{{ m.tool_call_id }}{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}{% for t in tools or [] %}{{ '[' + t.function.description + ']' }}{% endfor %}"""
s = Server("-m", tiny_model(), "--unit", "cpu", "-t", "1", "--chat-template-file", write(top.name, "mistral.jinja", mistral))
text = prompt(s)
ids = re.findall(r"\[TOOL_CALLS\](.{9})get_weather|\[RESULT\](.{9})\[tool\]", text)
expect("merged messages", "[user]SYS\n\nRome?" in text and "[tool]warm\n\nAnd?" in text and text.endswith("[][]"), text)
expect("short ids", len(ids) == 3 and ids[0][0] == ids[1][1] != ids[2][1] and all(re.fullmatch("[a-zA-Z0-9]{9}", a or b) for a, b in ids), ids)
r = s.post("/v1/chat/completions", {"messages": turns, "max_tokens": 1})[1]
expect("it is said", r["segue"]["messages_merged"] is True, r)
r = s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "tools": TOOLS, "tool_choice": "required", "max_tokens": 900, "temperature": 1, "seed": 1})[1]
expect("a list of calls without the token [TOOL_CALLS]", "messages_merged" not in r["segue"] and r["choices"][0]["message"]["tool_calls"] and not r["choices"][0]["message"]["content"], r)
s.stop()

# Thinking is returned apart, and ends with its budget: a template that opens it, on a model that never closes it.
s = Server("-m", tiny_model("thinker", template=TEMPLATE.replace("assistant\\n' }}", "assistant\\n<think>\\n' }}")), "--unit", "cpu", "-t", "1")
body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 40, "seed": 1, "ignore_eos": True, "thinking_budget": 10}
r = s.post("/v1/chat/completions", body)[1]
message, used = r["choices"][0]["message"], r["usage"]["completion_tokens_details"]["reasoning_tokens"]
expect("thinking has its budget", used == 10 and message["reasoning_content"] and message["content"] and "</think>" not in json.dumps(message), r)
r = s.post("/v1/chat/completions", {**body, "thinking_budget": -1})[1]["choices"][0]["message"]
expect("thinking without a budget", len(r["reasoning_content"]) >= 20 and not r["content"], r)
# Where none is wanted, and for constraints, it is closed in the prompt.
none = {"messages": body["messages"], "enable_thinking": False}
expect("no thinking", s.post("/apply-template", none)[1]["prompt"].endswith("<think>\n</think>") and s.post("/apply-template", body)[1]["prompt"].endswith("<think>\n"))
r = s.post("/v1/chat/completions", {**none, "grammar": 'root ::= "\\n\\nabcd"', "enable_thinking": True})[1]["choices"][0]["message"]
expect("a constrained answer is not reasoning", r["content"] == "abcd" and "reasoning_content" not in r, r)
r = s.post("/apply-template", {**none, "messages": [*none["messages"], {"role": "assistant", "content": "Well"}]})[1]
expect("a text of the assistant is continued after it", r.get("prompt", "").endswith("<think>\n</think>Well"), r)
events = s.stream("/v1/messages", {**body, "thinking": {"type": "enabled", "budget_tokens": 10}})
kinds = [e["content_block"]["type"] for n, e in events if n == "content_block_start"]
expect("thinking as a block", kinds == ["thinking", "text"], kinds)
kinds = [e["delta"]["type"] for n, e in events if n == "content_block_delta" and e["index"] == 0]
expect("which ends with a signature", kinds[-1] == "signature_delta" and set(kinds[:-1]) == {"thinking_delta"}, kinds)
s.stop()

# Chats reason unless the request or --reasoning says otherwise, constrained answers do not; --chat-template-file replaces the model's
# template, which gets today's date; --verbose.
template = TEMPLATE.replace("assistant\\n' }}", "assistant\\n' }}{% if enable_thinking %}{{ date_string + datetime + '<think>\\n' }}{% endif %}")
path = write(top.name, "think.jinja", template)
s = Server("-m", tiny_model(), "--unit", "cpu", "-t", "1", "--verbose", "--chat-template-file", path)
expect("the template is shown", s.call("GET", "/props")[1]["chat_template"] == template)
body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 20, "seed": 1, "ignore_eos": True}
answers = [s.post("/v1/chat/completions", {**body, **more})[1]["choices"][0]["message"] for more in ({}, {"enable_thinking": False}, {"grammar": 'root ::= "abcd"', "ignore_eos": False})]
expect("reasoning", [bool(a.get("reasoning_content")) for a in answers] == [True, False, False] and answers[2]["content"] == "abcd", answers)
before = time.strftime("%d %b %Y%b %d %Y")
prompt = s.post("/v1/chat/completions", body)[1]["__verbose"]["prompt"]
expect("the prompt, with the date", prompt.removesuffix("<think>\n").endswith((before, time.strftime("%d %b %Y%b %d %Y"))), prompt)
s.stop()
s = Server("-m", tiny_model(), "--unit", "cpu", "-t", "1", "--reasoning", "off", "--chat-template-file", path)
expect("--reasoning off", not s.post("/v1/chat/completions", body)[1]["choices"][0]["message"].get("reasoning_content"))
s.stop()
code, out, err = run("serve", "--port", "0", "-m", tiny_model(), "--chat-template-file", write(top.name, "empty.jinja", ""))
expect("an empty template is refused", code != 0 and "empty.jinja" in err and "it is empty" in err, err)
done()
