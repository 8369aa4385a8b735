#!/usr/bin/env python3
"""The official Python packages of OpenAI and Anthropic against the server on the default model: chat, stream, tools, parse, errors.
SPDX-License-Identifier: MIT"""
import os, sys
from typing import Annotated

try:
    import anthropic, openai
    from pydantic import BaseModel, Field
except ImportError as e:
    print(f"SKIP serve_clients: {e}")
    sys.exit(77)
model = os.path.join(os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share"), "segue/models/SmolLM2-135M-Instruct.Q4_1.gguf")
if not os.path.exists(model):
    print("SKIP serve_clients: the default model is not there; run cmake/model.sh")
    sys.exit(77)
from servetest import *

s = Server("-m", model, "--parallel", "4")
c = openai.OpenAI(base_url=s.url + "/v1", api_key="none", max_retries=1)
ask = [{"role": "user", "content": "What is the capital of France?"}]

name = c.models.list().data[0].id
expect("models", name == "SmolLM2-135M-Instruct.Q4_1" and c.models.retrieve(name).id == name, name)
r = c.chat.completions.create(model=name, messages=ask, max_completion_tokens=24, temperature=0, logprobs=True, top_logprobs=2)
text = r.choices[0].message.content
expect("chat", "Paris" in text and r.usage.completion_tokens > 3 and len(r.choices[0].logprobs.content) >= 3, r)
chunks = list(c.chat.completions.create(model=name, messages=ask, max_completion_tokens=24, temperature=0, stream=True, stream_options={"include_usage": True}))
expect("stream", "".join(x.choices[0].delta.content or "" for x in chunks if x.choices) == text and chunks[-1].usage.completion_tokens == r.usage.completion_tokens, text)
r = c.completions.create(model=name, prompt="The capital of France is", max_tokens=5, temperature=0, logprobs=2)
expect("completions", "Paris" in r.choices[0].text and len(r.choices[0].logprobs.tokens) == 5, r)


class City(BaseModel):
    name: str = Field(max_length=30)
    population: int = Field(ge=0, le=99999999)
    rivers: list[Annotated[str, Field(max_length=30)]] = Field(max_length=3)


r = c.chat.completions.parse(model=name, messages=[{"role": "user", "content": "Describe Paris."}], response_format=City, max_completion_tokens=300,
                             temperature=0.7, seed=3)
expect("parse", r.choices[0].finish_reason == "stop" and isinstance(r.choices[0].message.parsed, City), r)
tools = [{"type": "function", "function": {"name": "get_weather", "description": "Weather of a city", "parameters": {"type": "object", "properties":
          {"city": {"type": "string", "maxLength": 30}, "unit": {"enum": ["C", "F"]}}, "required": ["city", "unit"], "additionalProperties": False}}}]
r = c.chat.completions.create(model=name, messages=[{"role": "user", "content": "How is the weather in Rome?"}], tools=tools, tool_choice="required",
                              parallel_tool_calls=False, max_completion_tokens=200, temperature=0)
call = r.choices[0].message.tool_calls[0]
expect("tools", r.choices[0].finish_reason == "tool_calls" and call.function.name == "get_weather" and json.loads(call.function.arguments)["unit"] in "CF", r)
back = c.chat.completions.create(model=name, max_completion_tokens=8, temperature=0, messages=[{"role": "user", "content": "How is the weather in Rome?"},
                                 r.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}], tools=tools)
expect("the result of a tool", back.choices[0].finish_reason in ("stop", "length", "tool_calls"), back)
with c.chat.completions.stream(model=name, messages=ask, tools=tools, tool_choice={"type": "function", "function": {"name": "get_weather"}},
                               parallel_tool_calls=False, max_completion_tokens=200, temperature=0) as stream:
    final = stream.get_final_completion()
expect("streamed tools", final.choices[0].message.tool_calls[0].function.name == "get_weather", final)
r = c.responses.create(model=name, input="What is the capital of France?", max_output_tokens=24, temperature=0)
expect("responses", "Paris" in r.output_text, r)
r2 = c.responses.create(model=name, input="And of Italy?", previous_response_id=r.id, max_output_tokens=8, temperature=0)
expect("previous_response_id", r2.usage.input_tokens_details.cached_tokens > 0, r2.usage)
done_event = [e for e in c.responses.create(model=name, input="Hi", max_output_tokens=6, temperature=0, stream=True)][-1]
expect("responses stream", done_event.type in ("response.completed", "response.incomplete"), done_event)
try:
    c.chat.completions.create(model=name, messages=ask, temperature=5000)
    expect("an error", False)
except openai.BadRequestError as e: expect("an error", e.param == "temperature", e)
expect("embeddings", len(c.embeddings.create(model=name, input=["a", "b"]).data) == 2)

a = anthropic.Anthropic(base_url=s.url, api_key="none", max_retries=1)
greedy = {"extra_body": {"temperature": 0}}
r = a.messages.create(model=name, max_tokens=24, messages=ask, **greedy)
expect("messages", "Paris" in r.content[0].text and r.usage.output_tokens > 3, r)
with a.messages.stream(model=name, max_tokens=24, messages=ask, **greedy) as stream: streamed = "".join(stream.text_stream)
expect("messages stream", streamed == r.content[0].text, streamed)
r = a.messages.create(model=name, max_tokens=200, messages=ask, **greedy, tool_choice={"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True},
                      tools=[{"name": "get_weather", "input_schema": tools[0]["function"]["parameters"]}])
expect("messages tools", r.stop_reason == "tool_use" and r.content[-1].type == "tool_use" and r.content[-1].input["unit"] in "CF", r)
expect("count_tokens", a.messages.count_tokens(model=name, messages=ask).input_tokens > 10)
try:
    a.messages.create(model=name, max_tokens=-1, messages=ask)
    expect("an error of messages", False)
except anthropic.BadRequestError as e: expect("an error of messages", "max_tokens" in str(e), e)
s.stop()

# A full server says when to come again, and the packages do. The request that fills it ends when it has seen a refusal.
s = Server("-m", tiny_model("long", context=200000), "--ctx", "150000", "--unit", "cpu", "-t", "1", "--queue", "1")


def let_go(response):
    if response.status_code == 503:
        r.close()
        held.close()


where = {"api_key": "none", "max_retries": 20}
hooks = {"event_hooks": {"response": [let_go]}, "timeout": LIMIT}
for retried in (openai.OpenAI(base_url=s.url + "/v1", http_client=openai.DefaultHttpxClient(**hooks), **where).chat.completions,
                anthropic.Anthropic(base_url=s.url, http_client=anthropic.DefaultHttpxClient(**hooks), **where).messages):
    while True: # the request before may not have left yet
        held = http.client.HTTPConnection("127.0.0.1", s.port, timeout=LIMIT)
        held.request("POST", "/v1/completions", json.dumps({"prompt": "x", "max_tokens": 149000, "ignore_eos": True, "stream": True}))
        r = held.getresponse()
        if r.status == 200: break
        held.close()
    r.readline() # it runs
    got = retried.with_raw_response.create(model="long", max_tokens=2, messages=ask)
    expect("retries", got.retries_taken >= 1 and got.status_code == 200, got.retries_taken)
s.stop()
done()
