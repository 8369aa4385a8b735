#!/usr/bin/env python3
"""LiteLLM and LangChain against the server on a tiny model: answers, streams, tools, structured output, embeddings, errors. Each part is
skipped where its packages are not installed. SPDX-License-Identifier: MIT"""
import os, sys, warnings

os.environ.update(LITELLM_LOCAL_MODEL_COST_MAP="True", LANGSMITH_TRACING="false", NO_PROXY="127.0.0.1")
warnings.simplefilter("ignore")
from servetest import *


def imported(*names):
    try: return [__import__(n) for n in names]
    except Exception as e: return print(f"SKIP {names[0]}: {type(e).__name__}: {e}")     # an installation may have been cut off


litellm, langchain = imported("litellm"), imported("langchain_openai", "langchain_anthropic", "langchain_core")
if not litellm and not langchain: sys.exit(77)
s = Server("-m", tiny_model(), "--unit", "cpu", "-t", "1")
ask = [{"role": "user", "content": "Hi"}]
schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}, "unit": {"enum": ["C", "F"]}}, "required": ["city", "unit"], "additionalProperties": False}
tools = [{"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": schema}}]

if litellm:
    litellm = litellm[0]
    litellm.suppress_debug_info = True
    for prefix, base in (("openai/", s.url + "/v1"), ("anthropic/", s.url)):
        to = dict(model=prefix + "tiny", api_base=base, api_key="none", max_tokens=12, temperature=0)
        whole = litellm.completion(messages=ask, **to)
        expect(f"LiteLLM {prefix}", whole.usage.completion_tokens == 12 and whole.choices[0].finish_reason == "length", whole)
        text = "".join(c.choices[0].delta.content or "" for c in litellm.completion(messages=ask, stream=True, **to))
        expect(f"LiteLLM {prefix} stream", text == whole.choices[0].message.content, (text, whole))
        r = litellm.completion(messages=ask, tools=tools, tool_choice="required", **{**to, "max_tokens": 400})
        call = r.choices[0].message.tool_calls[0].function
        expect(f"LiteLLM {prefix} tools", call.name == "get_weather" and json.loads(call.arguments)["unit"] in "CF", r)
    to = dict(model="openai/tiny", api_base=s.url + "/v1", api_key="none", max_tokens=400)
    r = litellm.completion(messages=ask, response_format={"type": "json_schema", "json_schema": {"name": "city", "schema": schema, "strict": True}}, **to)
    expect("LiteLLM structured output", json.loads(r.choices[0].message.content)["unit"] in "CF", r)
    r = litellm.embedding(model="openai/tiny", api_base=s.url + "/v1", api_key="none", input=["a", "b"])
    expect("LiteLLM embeddings", len(r.data) == 2 and len(r.data[0]["embedding"]) == 32, r)
    for prefix, base in (("openai/", s.url + "/v1"), ("anthropic/", s.url)):
        try:
            litellm.completion(messages=ask, model=prefix + "tiny", api_base=base, api_key="none", max_tokens=4, temperature=5000)
            expect(f"LiteLLM {prefix} error", False)
        except litellm.BadRequestError as e: expect(f"LiteLLM {prefix} error", "temperature" in str(e), e)

if langchain:
    import anthropic, openai
    from langchain_anthropic import ChatAnthropic
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings

    for name, chat in (("ChatOpenAI", ChatOpenAI(base_url=s.url + "/v1", api_key="none", model="tiny", temperature=0, max_tokens=400, seed=1)),
                       ("ChatAnthropic", ChatAnthropic(base_url=s.url, api_key="none", model="tiny", max_tokens=400, temperature=0))):
        short = chat.bind(max_tokens=12)
        whole = short.invoke([HumanMessage("Hi")])
        expect(f"{name}", whole.usage_metadata["output_tokens"] == 12, whole)
        expect(f"{name} stream", "".join(c.text if isinstance(c.text, str) else c.text() for c in short.stream([HumanMessage("Hi")])) == whole.text, whole)
        calls = chat.bind_tools(tools, tool_choice="any").invoke([HumanMessage("Rome?")])
        expect(f"{name} tools", calls.tool_calls[0]["name"] == "get_weather" and calls.tool_calls[0]["args"]["unit"] in "CF", calls)
        parts = list(chat.bind_tools(tools, tool_choice="any").stream([HumanMessage("Rome?")]))
        expect(f"{name} streamed tools", sum(parts[1:], parts[0]).tool_calls[0]["args"] == calls.tool_calls[0]["args"], parts)
        structured = chat.with_structured_output({"title": "City", "description": "A city", **schema}, method="function_calling").invoke("Rome?")
        expect(f"{name} structured output", structured["unit"] in "CF", structured)
        try:
            chat.bind(max_tokens=-5).invoke([HumanMessage("Hi")])
            expect(f"{name} error", False)
        except (openai.BadRequestError, anthropic.BadRequestError) as e: expect(f"{name} error", "max_" in str(e), e)
        back = chat.bind(max_tokens=4).invoke([HumanMessage("Rome?"), calls, *(ToolMessage("sunny", tool_call_id=c["id"]) for c in calls.tool_calls)])
        expect(f"{name} results of tools", back.usage_metadata["output_tokens"] >= 1, back)
    structured = ChatOpenAI(base_url=s.url + "/v1", api_key="none", model="tiny", max_tokens=400, temperature=0).with_structured_output(
        {"title": "City", **schema}, method="json_schema", strict=True).invoke("Rome?")
    expect("structured output", structured["unit"] in "CF", structured)
    vector = OpenAIEmbeddings(base_url=s.url + "/v1", api_key="none", model="tiny", check_embedding_ctx_length=False).embed_query("sky")
    expect("OpenAIEmbeddings", len(vector) == 32, vector)
s.stop()
done()
