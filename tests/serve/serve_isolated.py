#!/usr/bin/env python3
"""The server without a network, and a unit's process that is killed during an answer: no connection goes out, and the answer goes on
byte for byte. SPDX-License-Identifier: MIT"""
import fcntl, os, shutil, struct, subprocess, sys

NEW_NAMESPACE = ["unshare", "-r", "-n"]
if "SEGUE_TEST_NAMESPACE" not in os.environ:
    if not shutil.which("unshare") or subprocess.run([*NEW_NAMESPACE, "true"], capture_output=True).returncode:
        print("SKIP serve_isolated: this system does not let us make a network namespace")
        sys.exit(77)
    os.environ["SEGUE_TEST_NAMESPACE"] = "1"
    os.execvp("unshare", [*NEW_NAMESPACE, sys.executable, *sys.argv])
from servetest import *

with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as c: # the loopback interface goes up
    fcntl.ioctl(c, 0x8914, struct.pack("16sh", b"lo", 0x1 | 0x40))


def counters():
    """{"Tcp": {"ActiveOpens": n, ...}, ...} of this namespace."""
    out, lines = {}, open("/proc/net/snmp").read().split("\n")
    for names, values in zip(lines[::2], lines[1::2]): out[names.split(":")[0]] = dict(zip(names.split()[1:], map(int, values.split()[1:])))
    return out


calls = 0


def counted(*args, **more):
    global calls
    calls += 1
    return s.call(*args, **more)


s = Server("-m", tiny_model(), "--unit", "cpu", "-t", "1", ready=False)
while counted("GET", "/health")[0] != 200: pass
chat = {"messages": [{"role": "user", "content": "See https://example.com/x.png"}], "max_tokens": 8, "temperature": 0, "ignore_eos": True}
for path, body, status in (("/v1/chat/completions", chat, 200), ("/v1/messages", chat, 200), ("/v1/responses", {"input": "x", "max_output_tokens": 4}, 200),
                           ("/v1/embeddings", {"input": "x"}, 200), ("/v1/rerank", {"query": "x", "documents": ["y"]}, 200),
                           ("/v1/chat/completions", {**chat, "model": "https://example.com/model"}, 200),
                           ("/v1/chat/completions", {**chat, "response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "https://example.com/s"}}}}, 400),
                           ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://example.com/x"}}]}]}, 400)):
    got = counted("POST", path, body)
    expect(f"{path}: {status}", got[0] == status, got)
s.stop()
now = counters()
expect("no connection but ours", now["Tcp"]["ActiveOpens"] == calls, (now["Tcp"], calls))
expect("no datagram and no packet without a route", now["Udp"]["OutDatagrams"] == 0 and now["Ip"]["OutNoRoutes"] == 0, now)


def child(pid):
    """The process of the unit."""
    for name in os.listdir("/proc"):
        try: fields = open(f"/proc/{name}/stat").read().rsplit(") ", 1)[1].split()
        except (OSError, IndexError): continue
        if fields[1] == str(pid) and fields[0] != "Z": return int(name)


s = Server("-m", tiny_model(), "--unit", "proc:cpu:threads=1")
body = {"prompt": "ab" * 40, "max_tokens": 600, "temperature": 0, "ignore_eos": True}
whole = s.post("/v1/completions", body)[1]["choices"][0]["text"]
data = json.dumps({**body, "stream": True}).encode()


def answer_with_kill():
    """The unit's process is killed after 20 events; what was answered, and how many events had come."""
    expect("a process serves", s.post("/v1/completions", {**body, "max_tokens": 5})[0] == 200 and child(s.process.pid))
    c = socket.create_connection(("127.0.0.1", s.port), timeout=LIMIT)
    c.sendall(b"POST /v1/completions HTTP/1.0\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
    out, events, unit = b"", 0, child(s.process.pid)
    while part := c.recv(4096):
        out += part
        if not events and out.count(b"data: ") > 20:
            events = out.count(b"data: ")
            os.kill(unit, 9)
    c.close()
    return "".join(json.loads(x[6:])["choices"][0]["text"] for x in out.decode().split("\n") if x.startswith("data: {")), events


# On a busy machine the whole answer may have come before this process runs again: then once more.
for _ in range(50):
    text, events = answer_with_kill()
    expect("the answer went on byte for byte", text == whole, (len(text), len(whole), text[-300:]))
    if events < 500: break
expect("the kill came during the answer", 20 < events < 500, events)
expect("a new process serves", s.post("/v1/completions", {**body, "max_tokens": 5})[0] == 200 and child(s.process.pid))
s.stop()
done()
