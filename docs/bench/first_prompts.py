#!/usr/bin/env python3
"""Time of the first, second and later prompts of a length in a running `segue serve`, at the client.
first_prompts.py SEGUE MODEL UNIT [LENGTH...]     SPDX-License-Identifier: MIT"""
import http.client, json, random, re, subprocess, sys, time

segue, model, unit = sys.argv[1:4]
lengths = [int(n) for n in sys.argv[4:]] or [133, 410, 300]
server = subprocess.Popen([segue, "serve", "-m", model, "--unit", unit, "--port", "0", "--store", "off", "--json"],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
try:
    port = next(int(m.group(1)) for m in (re.search(r"127\.0\.0\.1:(\d+)", line) for line in server.stdout) if m)
    connection, rng = http.client.HTTPConnection("127.0.0.1", port), random.Random(5)

    def ask(n, tokens=1):
        """Milliseconds of one request with n random tokens."""
        body = json.dumps({"prompt": [rng.randrange(10, 200) for _ in range(n)], "max_tokens": tokens, "temperature": 0})
        begin = time.perf_counter()
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        text = reply.read()
        if reply.status != 200: sys.exit(f"{reply.status}: {text[:300]!r}")
        return round((time.perf_counter() - begin) * 1e3, 1)

    ask(37, 64)
    time.sleep(1.5)   # as between two requests of a person
    for n in lengths: print(json.dumps({"unit": unit, "tokens": n, "ms": [ask(n) for _ in range(5)]}), flush=True)
finally:
    server.kill()
