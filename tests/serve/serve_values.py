#!/usr/bin/env python3
"""Every number field on every route with values at and beyond the limits: 200, or an error object whose text names the field; the
server lives. Fields come from /openapi.json, and from the spellings that it does not list. SPDX-License-Identifier: MIT"""
from servetest import *

folder = os.path.join(top.name, "slots")
os.mkdir(folder)
s = Server("-m", fim_model(), "--unit", "cpu", "-t", "1", "--slot-save-path", folder, "--api-key-file", write(top.name, "keys", "alpha\n"))
connection = http.client.HTTPConnection("127.0.0.1", s.port, timeout=LIMIT)


def post(path, body):
    """(status, JSON); one connection for all, so that an answer which breaks it shows."""
    connection.request("POST", path, body.encode(), {"Content-Type": "application/json", "Authorization": "Bearer alpha"})
    r = connection.getresponse()
    text = r.read()
    try: return r.status, json.loads(text)
    except ValueError: return r.status, {"stream": text.decode(errors="replace")}


def refusal(path, body):
    """The error object in the form of the route, or None."""
    e = body.get("error") if isinstance(body, dict) else None
    if not isinstance(e, dict) or not isinstance(e.get("message"), str) or not isinstance(e.get("type"), str): return None
    if path.startswith("/v1/messages"): return e if body.get("type") == "error" else None
    return e if {"param", "code"} <= set(e) else None


# Values as they stand in the body: 2**63 and 1e309 are beyond what parsers of JSON hold.
VALUES = ["-1", "2147483648", "9223372036854775808", "1e309", '"5"', "null", "[]", "{}", "true"]
RIGHT = {"top_k": {"-1"}, "seed": {"-1", "2147483648"}, "repeat_last_n": {"-1"}, "thinking_budget": {"-1"}, "reasoning_budget": {"-1"},
         "n_predict": {"-1"}, "t_max_predict_ms": {"-1"}, "sse_ping_interval": {"-1"}, "id_slot": {"-1"}, "presence_penalty": {"-1"}, "frequency_penalty": {"-1"}, "logprobs": {"true"},
         "stream_options": {"{}"}, "logit_bias": {"{}", "[]"}}
LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict")
CHAT = {"messages": [{"role": "user", "content": "x"}]}
SAMPLED = ["max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict", "repetition_penalty", "typ_p", "n_probs", "reasoning_budget",
           "logprobs", "logit_bias"]
OPENAI = [*SAMPLED, "stream_options"]
BODIES = {"/v1/chat/completions": (CHAT, OPENAI), "/v1/completions": ({"prompt": "x"}, [*OPENAI, "best_of"]), "/v1/responses": ({"input": "x"}, SAMPLED),
          "/completion": ({"prompt": "x"}, [*OPENAI, "best_of"]), "/infill": ({"input_prefix": "x", "input_suffix": "y"}, [*OPENAI, "best_of"]), "/v1/messages": (CHAT, []), "/v1/messages/count_tokens": (CHAT, []), "/v1/embeddings": ({"input": "x"}, []), "/embedding": ({"input": "x"}, []), "/v1/chat/completions/input_tokens": (CHAT, []), "/chat/completions/input_tokens": (CHAT, []), "/v1/responses/input_tokens": ({"input": "x"}, SAMPLED),
          "/models/load": ({"model": "coder"}, []), "/models/unload": ({"model": "coder"}, []),
          **{f"/v1/{name}": ({"query": "x", "documents": ["y"]}, []) for name in ("rerank", "reranking")}, "/tokenize": ({"content": "x"}, []), "/detokenize": ({"tokens": [97]}, []),
          "/apply-template": (CHAT, []), "/slots/{id}": ({"filename": "x"}, []), "/v1/states/export": ({"prompt": "x"}, [])}
ANY = {*SAMPLED, "n", "stream_options", "best_of", "dimensions", "budget_tokens", "top_n"}


def check(path, body, name, value, right, named):
    status, reply = post(path, body)
    e = refusal(path, reply)
    expect(f"{path} {body[-60:]}: an answer or an error object", status == 200 or (400 <= status < 500 and e), (status, reply))
    if right is None: return
    expect(f"{path} {body[-60:]}: {'200' if right else '400'}", (status == 200) == right and status in (200, 400), (status, reply))
    if status != 200: expect(f"{path} {body[-60:]}: names {named}", e and named in e["message"] and e.get("param", named) == named, reply)


paths = s.call("GET", "/openapi.json", headers={"Authorization": "Bearer alpha"})[1]["paths"]
known = {}
for path, methods in paths.items():
    fields = methods.get("post", {}).get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {}).get("properties")
    if fields is not None: known[path] = {n for n, k in fields.items() if k.get("type", [""])[0] in ("integer", "number")}
numbers = set().union(*known.values()) | ANY
expect("the description lists number fields", len(known) > 10 and {"max_tokens", "seed", "temperature", "top_n"} <= numbers, numbers)
for path, described in known.items():
    same = path if path in BODIES else "/v1" + path
    expect(f"{path}: this test knows a body", same in BODIES)
    if same not in BODIES: continue
    base, more = BODIES[same]
    read = described | set(more)
    for name in sorted(numbers):
        for value in VALUES if path == same else VALUES[:2]:
            # Other limits of the answer's length would hide the one under test.
            short = {} if name in LIMITS and name in read and name != "n_predict" else {"max_tokens": 1}
            if name == "max_tokens" or same == "/v1/messages": short = {"max_tokens": 1} if name != "max_tokens" else {}
            right = value == "null" or value in RIGHT.get(name, ()) if name in read else None
            if name == "max_tokens" and same == "/v1/messages" and value == "null": right = False
            text = json.dumps({**base, **short, "ignore_eos": False})[:-1] + f', "{name}": {value}}}'
            url = path.replace("{id}", "0?action=save")
            check(url, text, name, value, right, name)

# Numbers and switches inside objects.
for path, base in (("/v1/chat/completions", CHAT), ("/v1/messages", CHAT), ("/v1/responses", {"input": "x"})):
    start = json.dumps({**base, "max_tokens": 1})[:-1]
    for value in VALUES:
        beyond = value in VALUES[2:4]
        check(path, start + f', "thinking": {{"type": "enabled", "budget_tokens": {value}}}}}', "thinking", value, value == "null",
              "thinking" if beyond else "budget_tokens")
        check(path, start + f', "thinking": {value}}}', "thinking", value, value in ("null", "{}"), "thinking")
        if path == "/v1/messages": continue
        check(path, start + f', "logit_bias": {{"5": {value}}}}}', "logit_bias", value, value in ("-1", "2147483648"), "logit_bias")
        check(path, start + f', "reasoning_effort": {value}}}', "reasoning_effort", value, value in ("null", '"5"'), "reasoning_effort")
        if path == "/v1/responses":
            check(path, start + f', "reasoning": {value}}}', "reasoning", value, value in ("null", "{}"), "reasoning")
        else:
            check(path, start + f', "stream": true, "stream_options": {{"include_usage": {value}}}}}', "stream_options", value,
                  value in ("null", "true"), "stream_options" if beyond else "include_usage")

# Bodies that are not JSON, on every route with a body; the connection is used further where the server leaves it open.
for path in known:
    for body in (b"{", b"{\"a\":}", b"\xff\xfe{}", b"{\"max_tokens\":\"\xc3\x28\"}", b"[" * 100000, b"{\"max_tokens\":" * 100000, b"[]", b"{} {}"):
        got = s.call("POST", path.replace("{id}", "0?action=save"), body, {"Authorization": "Bearer alpha"})
        expect(f"{path} {body[:20]}: refused", got[0] == 400 and isinstance(got[1], dict) and refusal(path, got[1]), got)
for data in (b"-1\r\n", b"fffffffffffffffff\r\n{}", b"5\r\n{}\r\n0\r\n\r\n", b"2\r\n{}XX0\r\n\r\n", b"2;" + b"x" * 100000 + b"\r\n{}\r\n0\r\n\r\n"):
    c = socket.create_connection(("127.0.0.1", s.port), timeout=LIMIT)
    try: c.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer alpha\r\nTransfer-Encoding: chunked\r\n\r\n" + data)
    except ConnectionError: pass
    out = b""
    try: # the server may have closed the connection before it read all
        c.shutdown(socket.SHUT_WR)
        while part := c.recv(65536): out += part
    except TimeoutError: expect(f"chunks {data[:20]}: the connection ends", False)
    except OSError: pass
    c.close()
    expect(f"chunks {data[:20]}: no 200", b" 200 " not in out.split(b"\r\n")[0], out[:100])
expect("the server lives", s.call("GET", "/health")[0] == 200)
expect("and answers", post("/v1/chat/completions", json.dumps({**CHAT, "max_tokens": 1}))[0] == 200)
connection.close()
s.stop()
done()
