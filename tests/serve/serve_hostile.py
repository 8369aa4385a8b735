#!/usr/bin/env python3
"""Bad input for the server: each wrong field gets an error that names it, each broken request an error, and the server lives.
SPDX-License-Identifier: MIT"""
import select, threading
from servetest import *

m = tiny_model()
s = Server("-m", m, "--unit", "cpu", "-t", "1", "--body-limit", "1", "--timeout", "3", "--connections", "200")
chat, completion = {"messages": [{"role": "user", "content": "x"}]}, {"prompt": "x"}


# Meanwhile: clients that send a byte of a header, or of a body, now and then. They are bounded by --timeout too.
def trickle(start, piece):
    c = socket.create_connection(("127.0.0.1", s.port), timeout=20)
    c.sendall(start)
    for _ in range(2000):
        try:
            if select.select([c], [], [], 0.2)[0] and not c.recv(1000): return trickled.append(piece)
            c.sendall(piece)
        except ConnectionError: return trickled.append(piece)


trickled, head = [], b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n"
slow = [threading.Thread(target=trickle, args=a) for a in ((head, b"X: y\r\n"), (head + b"X: ", b"y"), (head + b"Content-Length: 100000\r\n\r\n{", b" "))]
for t in slow: t.start()


def alive(after): expect(f"the server lives after {after}", s.call("GET", "/health")[0] == 200)


# Every number field with wrong values: 400 with its name (or the parser's error), never 200 and never 500.
WRONG = [-2, 2**31, 2**63, "1", [], {}, True, 1.5]
for name in ("max_tokens", "max_completion_tokens", "n", "seed", "top_k", "top_logprobs", "repeat_last_n", "dry_allowed_length", "thinking_budget", "n_predict"):
    for v in WRONG:
        if name == "seed" and v in (-2, 2**31): continue
        got = s.post("/v1/chat/completions", {**chat, "max_tokens": 1, name: v})
        if v == 2**63: is_error(f"{name}={v}", got, 400)
        else: is_error(f"{name}={v}", got, 400, name, param=name)
for name in ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repeat_penalty", "typical_p", "dry_multiplier", "dry_base"):
    for v in (-1e9, 1e30, "1", [], {}, False):
        is_error(f"{name}={v}", s.post("/v1/chat/completions", {**chat, "max_tokens": 1, name: v}), 400, name, param=name)
for name in ("stream", "ignore_eos", "cache_prompt", "parallel_tool_calls"):
    for v in (1, "true", []): is_error(f"{name}={v}", s.post("/v1/chat/completions", {**chat, "max_tokens": 1, name: v}), 400, name, param=name)
for name, v in (("model", 5), ("messages", 5), ("messages", []), ("messages", [5]), ("messages", [{"role": 5}]), ("messages", [{"content": "x"}]), ("stop", 5),
                ("stop", [5]), ("stop", ["x"] * 17), ("stop", "x" * 999), ("tools", 5), ("tools", [5]), ("tool_choice", 5), ("logit_bias", 5), ("logit_bias", {"x": None}),
                ("logit_bias", {"99999": 1}), ("logit_bias", {"5": "x"}), ("response_format", 5), ("response_format", {"type": "x"}), ("stream_options", 5),
                ("chat_template_kwargs", 5), ("grammar", 5), ("regex", "("), ("json_schema", {"type": 5})):
    is_error(f"{name}={str(v)[:40]}", s.post("/v1/chat/completions", {**chat, "max_tokens": 1, name: v}), 400, param=name)
for v in (5, [], [[]], [1.5], [-1], [99999], [["x"], 5.5], {}, [None], ""): is_error(f"prompt={v}", s.post("/v1/completions", {"prompt": v}), 400, "prompt")
is_error("a prompt beyond the context", s.post("/v1/completions", {"prompt": [97] * 5000}), 400)
for path, v in (("/tokenize", {"content": 5}), ("/tokenize", {}), ("/detokenize", {"tokens": [-1]}), ("/detokenize", {"tokens": "x"}), ("/apply-template", {}),
                ("/v1/responses", {}), ("/v1/responses", {"input": [5]}), ("/v1/rerank", {"query": "x"}), ("/v1/rerank", {"query": 5, "documents": ["x"]}),
                ("/v1/embeddings", {}), ("/v1/embeddings", {"input": [[]]})):
    is_error(f"{path} {v}", s.post(path, v), 400)
alive("wrong fields")

# Bodies that are not JSON objects of sane depth.
for body in (b"", b"{", b"[1]", b"null", b"{\"a\":1e309}", b"{\"a\":" + b"9" * 400 + b"}", b"\xff\xfe", b"{\"messages\":\"\xc3\x28\"}", b"{\"a\":\"\\u0000\"}",
             b"{\"a\":\"\\ud800\"}", b"[" * 100000, b"{\"a\":" * 100000, b"{\"a\":\"" + b"x" * 2000000):
    got = s.call("POST", "/v1/chat/completions", body)
    expect(f"body {body[:20]}: refused", got[0] in (400, 413) and "error" in got[1], got)
deep = {"type": "object"}
for _ in range(200): deep = {"type": "array", "items": deep}
for schema in (deep, {"$defs": {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 8} for i in range(40)} | {"d40": {}}, "$ref": "#/$defs/d0"},
               {"type": "string", "pattern": "(a|a)*" * 500}, {"type": "array", "items": {"type": "string", "maxLength": 1000000000}, "maxItems": 1000000000},
               {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(1000)}}, {"enum": ["x" * 50000] * 10}):
    got = s.post("/v1/chat/completions", {**chat, "max_tokens": 4, "response_format": {"type": "json_schema", "json_schema": {"schema": schema}}})
    expect(f"schema {str(schema)[:60]}", got[0] in (200, 400), got)
alive("bad bodies")


def raw(data, read=True):
    c = socket.create_connection(("127.0.0.1", s.port), timeout=LIMIT)
    c.sendall(data)
    if not read: return c
    out = b""
    try:
        while chunk := c.recv(65536): out += chunk
    except OSError: pass
    c.close()
    return out


# Broken HTTP.
for data in (b"\x00" * 100, b"GET / HTTP/9.9\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\nConnection: close\r\n\r\n",
             b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\nzz\r\n",
             b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\nConnection: close\r\n\r\n",
             b"GET /health HTTP/1.1\r\n" + b"X: " + b"y" * 100000 + b"\r\n\r\n", b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\n\r\n"):
    answer = raw(data)
    expect(f"{data[:40]}: no 200", b" 200 " not in answer.split(b"\r\n")[0], answer[:100])
good = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
expect("a chunked body", b'{"tokens":[97]}' in raw(good + b"5\r\n{\"con\r\nb\r\ntent\":\"a\"}\r\n0\r\n\r\n".replace(b"b\r\ntent\":\"a\"}", b"a\r\ntent\":\"a\"}")), "")
alive("broken HTTP")

# HTTP that is rare but right, and HTTP on whose meaning two servers may not agree.
end, body = b"Host: localhost\r\nConnection: close\r\n", b'{"content":"a"}'
tokens = b'{"tokens":[97]}'
post = b"POST /tokenize HTTP/1.1\r\n" + end
for what, data, status, text in (
        ("HTTP/1.0", b"GET /health HTTP/1.0\r\n\r\n", b"200", b"ok"), ("HTTP/1.0 with a body", b"POST /tokenize HTTP/1.0\r\nContent-Length: 15\r\n\r\n" + body, b"200", tokens),
        ("HEAD", b"HEAD /health HTTP/1.1\r\n" + end + b"\r\n", b"200", b"\r\n\r\n"), ("TRACE", b"TRACE / HTTP/1.1\r\n" + end + b"\r\n", b"404", b"no such path"),
        ("PUT", b"PUT /tokenize HTTP/1.1\r\n" + end + b"Content-Length: 15\r\n\r\n" + body, b"405", b"PUT"),
        ("Expect", post + b"Expect: 100-continue\r\nContent-Length: 15\r\n\r\n" + body, b"100", tokens),
        ("Expect with a large body", post + b"Expect: 100-continue\r\nContent-Length: 9999999\r\n\r\n", b"413", b"too large"),
        ("a trailer", post + b"Transfer-Encoding: chunked\r\n\r\nf\r\n" + body + b"\r\n0\r\nX: y\r\n\r\n", b"200", tokens),
        ("chunks of a byte", post + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(b"1\r\n%c\r\n" % c for c in body) + b"0\r\n\r\n", b"200", tokens),
        ("two lengths", post + b"Content-Length: 15\r\nContent-Length: 3\r\n\r\n" + body, b"400", b"twice"),
        ("a length and chunks", post + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nf\r\n" + body + b"\r\n0\r\n\r\n", b"400", b"twice"),
        ("many headers", b"GET /health HTTP/1.1\r\n" + end + b"X: y\r\n" * 1000 + b"\r\n", b"431", b""),
        ("NUL in a text", post + b'Content-Length: 23\r\n\r\n{"content":"a\\u0000bcd"}', b"400", b"not supported"),
        ("an option for a page of this machine", b"OPTIONS /v1/completions HTTP/1.1\r\n" + end + b"Origin: http://localhost:3000\r\nAccess-Control-Request-Headers: x-stainless-os\r\n\r\n", b"200", b"Access-Control-Allow-Headers: x-stainless-os"),
        ("the address of this machine as a part of a name", b"GET /health HTTP/1.1\r\nHost: [::1]evil.example\r\nConnection: close\r\n\r\n", b"403", b"Host")):
    answer = raw(data)
    expect(what, answer.startswith((b"HTTP/1.1 " + status, b"HTTP/1.0 " + status)) and text in answer, answer[:400])
expect("more arguments than there is memory for: the connection ends", raw(b"GET /health?" + b"a=b&" * 1000 + b" HTTP/1.1\r\n" + end + b"\r\n") == b"")
line = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
piped = raw((line + b"15\r\n\r\n" + body + line + b"1\r\n\r\n{") * 20 + b"GET /health HTTP/1.1\r\n" + end + b"\r\n")
expect("pipelined requests are answered in order", [piped.count(tokens), piped.count(b" 400 Bad Request"), piped.count(b'{"status":"ok"}')] == [20, 20, 1] and piped.endswith(b'{"status":"ok"}'), piped[-300:])
alive("rare HTTP")
is_error("biases of too many tokens", s.post("/v1/completions", {"prompt": "x", "max_tokens": 1, "logit_bias": {"x" * 900 + str(i): 1 for i in range(100)}}), 400, param="logit_bias")
for schema in (True, [], "x", 5): is_error(f"schema {schema}", s.post("/v1/completions", {"prompt": "x", "json_schema": schema}), 400, param="json_schema")

# Sites: the name of another host, and scripts of another site.
is_error("Host", s.call("GET", "/health", headers={"Host": "evil.example"}), 403, "Host")
is_error("Origin", s.call("POST", "/tokenize", {"content": "x"}, headers={"Origin": "https://evil.example"}), 403, "Origin")
expect("a local Origin", s.call("POST", "/tokenize", {"content": "x"}, headers={"Origin": "http://localhost:3000"})[0] == 200 and
       s.headers.get("Access-Control-Allow-Origin") == "http://localhost:3000", s.headers)
is_error("no path of a request is opened", s.call("GET", "/../../etc/passwd"), 404)

# Half-open connections and clients that leave do not hold the server.
idle = [raw(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{", read=False) for _ in range(50)]
body = json.dumps({**chat, "max_tokens": 1900, "ignore_eos": True, "stream": True}).encode()
for stream in (True, False):
    body = json.dumps({**chat, "max_tokens": 1900, "ignore_eos": True, "stream": stream}).encode()
    for _ in range(5):
        c = raw(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body, read=False)
        if stream: c.recv(100)
        c.close()
alive("clients that left")
expect("an answer after them", s.post("/v1/chat/completions", {**chat, "max_tokens": 4})[0] == 200)
for c in idle: c.close()
for t in slow: t.join()
expect("clients that trickle are cut off", len(trickled) == 3, trickled)
for _ in range(5000):
    left = [x for x in s.call("GET", "/slots")[1] if x["is_processing"]]
    if not left: break
expect("no request of a client that left still runs", not left, left)
s.stop()
done()
