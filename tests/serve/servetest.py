"""Helpers for the tests of the server: start it on a free port, talk to it over plain sockets and urllib.
SPDX-License-Identifier: MIT"""
import http.client, json, os, signal, socket, subprocess, sys, time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "cli"))
from clitest import *


def fim_model(name="coder", **more):
    """tiny_model with the tokens of fill-in-the-middle, 259 to 264."""
    folder = tiny_model(name, vocab=265, **more)
    path = os.path.join(folder, "tokenizer.json")
    with open(path) as f: t = json.load(f)
    for i, text in enumerate(["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"]):
        t["added_tokens"].append({**t["added_tokens"][0], "id": 259 + i, "content": text})
        t["model"]["vocab"][text] = 259 + i
    write(folder, "tokenizer.json", json.dumps(t))
    return folder


class Server:
    """A running server; with --json it prints its address as soon as it listens."""

    def __init__(self, *args, ready=True, **more):
        self.process = subprocess.Popen([command, "serve", "--json", "--port", "0", *map(str, args)], stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, env={**environment, **more})
        line = self.process.stdout.readline()
        if not line:
            print("FAIL the server did not start:", self.process.stderr.read().decode())
            sys.exit(77 if b"libmicrohttpd" in line else 1)
        self.port = json.loads(line)["port"]
        self.url = f"http://127.0.0.1:{self.port}"
        if ready: self.wait_ready()

    def wait_ready(self):
        while self.process.poll() is None:
            if self.call("GET", "/health")[0] == 200: return
            time.sleep(0.05)
        print("FAIL the server is not ready:", self.process.stderr.read().decode())
        sys.exit(1)

    def call(self, method, path, body=None, headers={}, raw=False):
        """(status, JSON or bytes)."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        c.request(method, path, data, {"Content-Type": "application/json", **headers})
        r = c.getresponse()
        text = r.read()
        self.headers = dict(r.getheaders())
        c.close()
        if raw: return r.status, text
        try: return r.status, json.loads(text)
        except ValueError: return r.status, text

    def post(self, path, body, **headers): return self.call("POST", path, body, headers)

    def stream(self, path, body):
        """The events of a stream: (event or None, data)."""
        status, text = self.call("POST", path, {**body, "stream": True}, raw=True)
        out = []
        for block in text.decode().split("\n\n"):
            fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line)
            if "data" in fields: out.append((fields.get("event"), fields["data"] if fields["data"] == "[DONE]" else json.loads(fields["data"])))
        return out

    def stop(self, expected=0):
        self.process.send_signal(signal.SIGTERM)
        out, err = self.process.communicate(timeout=LIMIT)
        expect("the server ends on SIGTERM", self.process.returncode == expected, (self.process.returncode, err))
        return err.decode()


def is_error(what, reply, status, *words, param=None):
    got, body = reply
    error = body.get("error") if isinstance(body, dict) else None
    expect(f"{what}: status {status}", got == status, reply)
    expect(f"{what}: error object", isinstance(error, dict) and isinstance(error.get("message"), str) and error.get("type"), reply)
    for w in words: expect(f"{what}: says {w}", error and w in error["message"], reply)
    if param: expect(f"{what}: names {param}", error and error.get("param") == param, reply)
