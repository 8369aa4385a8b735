#!/usr/bin/env python3
"""Every command of docs/SERVER.md: the servers start, and each request of curl succeeds.
SPDX-License-Identifier: MIT"""
import re, shlex, shutil
from servetest import *

if not shutil.which("curl"):
    print("SKIP serve_docs: curl is not installed")
    sys.exit(77)
text = open(os.path.join(source, "docs/SERVER.md")).read()
lines = [l.split("#")[0].strip() for block in re.findall(r"```sh\n(.*?)```", text, re.S) for l in block.split("\n") if l.strip()]
folder = os.path.join(top.name, "docs")
os.makedirs(os.path.join(folder, "models"))
os.chdir(folder)
for name in ("a.gguf", "b.gguf", "models/c"): shutil.copytree(tiny_model(), name)
write(folder, "keys", "secret\n")
servers, requests = [l for l in lines if l.startswith("segue serve")], [l for l in lines if l.startswith("curl")]
expect("the document has commands", len(servers) >= 3 and len(requests) >= 4 and len(servers) + len(requests) == len(lines), lines)
last = None
for line in servers:
    args = shlex.split(line)[2:]
    if "0.0.0.0" in args: args[args.index("0.0.0.0")] = "127.0.0.1"
    if last: last.stop()
    last = Server("--unit", "cpu", "-t", "1", *args, *([] if "-m" in args else ["-m", "a.gguf"]))
environment["KEY"] = "secret"
for line in requests:
    if "KEY" not in line: line = line.replace("curl ", "curl -H 'x-api-key: secret' ", 1)
    r = subprocess.run(["sh", "-c", line.replace("curl ", "curl -sS --fail-with-body ", 1).replace("localhost:8080", f"127.0.0.1:{last.port}")], capture_output=True,
                       env=environment)
    expect(line, r.returncode == 0, (r.stdout[:500], r.stderr))
last.stop()
done()
