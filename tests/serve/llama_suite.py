#!/usr/bin/env python3
"""llama.cpp's own server tests against `segue serve`: not part of `make test`, since they need llama.cpp's source. Usage:
  llama_suite.py LLAMA_SOURCE SEGUE MODEL.gguf [arguments of pytest]
The flags of llama-server are translated, and every model that the tests name is the given one. The packages that
tools/server/tests/requirements.txt names must be installed. The failures are compared with llama_suite.txt, which names for each test
that fails the class of docs/SERVER-LLAMA.md. SPDX-License-Identifier: MIT"""
import os, shutil, subprocess, sys, tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
# Flags of llama-server: the number of their values, and the flag of segue (None: left out).
FLAGS = {"--port": (1, "--port"), "--host": (1, "--host"), "--temp": (1, "--temp"), "--seed": (1, "--seed"), "--n-predict": (1, "--n-predict"),
         "--alias": (1, "--alias"), "--parallel": (1, "--parallel"), "--metrics": (0, "--metrics"), "--slot-save-path": (1, "--slot-save-path"),
         "--no-slots": (0, "--no-slots"), "--lora": (1, "--lora"), "--offline": (0, "--offline"), "--hf-repo": (1, None), "--hf-file": (1, None), "--model": (1, None),
         "--batch-size": (1, "--chunk"), "--ubatch-size": (1, None), "--embedding": (0, "--embedding"), "--reranking": (0, "--reranking"), "--cont-batching": (0, "--cont-batching"),
         "--slots": (0, "--slots"), "--jinja": (0, "--jinja"), "--no-jinja": (0, None), "--verbose": (0, "--verbose"), "-fa": (1, None), "--pooling": (1, "--pooling"),
         "--kv-unified": (0, "--kv-unified"), "--swa-full": (0, None), "--no-ui": (0, "--no-ui"), "--reasoning-format": (1, "--reasoning-format"), "--threads": (1, "--threads"),
         "--cache-ram": (1, None), "--no-cache-idle-slots": (0, None), "--backend_sampling": (0, None), "--no-mmproj": (0, None),
         "--api-key": (1, "--api-key"), "--cors-origins": (1, None), "--chat-template-file": (1, "--chat-template-file"), "--reasoning": (1, "--reasoning")}
WRAPPER = """#!%s
import os, sys
sys.path.insert(0, %r)
from llama_suite import translate
os.execv(%r, translate(sys.argv[1:], %r, %r))
"""
PLUGIN = """import utils
utils.ServerPreset.load_all = staticmethod(lambda: None)
"""


def translate(args, segue, model):
    """The command line of segue for one of llama-server; a flag that is not in the table ends the server, so that the test says so."""
    out, context, slots, unified, i = [segue, "serve", "-m", model], None, 1, False, 0
    while i < len(args):
        flag = args[i]
        if flag == "--ctx-size": context, i = int(args[i + 1]), i + 2; continue
        if flag not in FLAGS: sys.exit(f"segue has no flag for {flag}")
        n, own = FLAGS[flag]
        if flag == "--parallel": slots = int(args[i + 1])
        unified |= flag == "--kv-unified"
        if own and args[i + 1:i + 1 + n] != ["-1"]: out += [own, *args[i + 1:i + 1 + n]]
        i += 1 + n
    if "--parallel" not in out: out += ["--parallel", "4"]
    if context: out += ["--ctx", str(context if unified else context // slots)]
    return out


def main(llama, segue, model, *rest):
    work = tempfile.mkdtemp(prefix="llama-suite-")
    tests = os.path.join(work, "tools/server/tests") # so that ../../../models/templates is found
    shutil.copytree(os.path.join(llama, "tools/server/tests"), tests)
    os.symlink(os.path.join(os.path.abspath(llama), "models"), os.path.join(work, "models"))
    wrapper = os.path.join(work, "llama-server")
    with open(wrapper, "w") as f: f.write(WRAPPER % (sys.executable, HERE, os.path.abspath(segue), os.path.abspath(segue), os.path.abspath(model)))
    os.chmod(wrapper, 0o755)
    with open(os.path.join(tests, "segue_plugin.py"), "w") as f: f.write(PLUGIN)
    paths = [os.path.join("unit", a) if a.startswith("test_") else a for a in rest] or ["unit"]
    environment = {**os.environ, "LLAMA_SERVER_BIN_PATH": wrapper, "PYTHONPATH": tests, "PYTHONDONTWRITEBYTECODE": "1", "NO_PROXY": "*"}
    command = [sys.executable, "-m", "pytest", "-p", "segue_plugin", "-v", "-rfEs", "--tb=short", "--color=no", *paths]
    p = subprocess.Popen(command, cwd=tests, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines = []
    for line in p.stdout:
        lines.append(line.rstrip("\n"))
        print(line, end="", flush=True)
    p.wait()
    shutil.rmtree(work)
    expected, failed = {}, []
    with open(os.path.join(HERE, "llama_suite.txt")) as f:
        for line in f:
            if line.strip() and line[0] != "#":
                name, reason = line.rsplit(None, 1)
                expected[name] = reason
    for line in lines:
        if line.startswith(("FAILED unit/", "ERROR unit/")): failed.append(line.split(" ", 1)[1].split(" - ")[0][len("unit/"):])
    classes = {t: expected.get(t) or expected.get(t.split("[")[0]) for t in failed}
    unknown = [t for t in failed if not classes[t]]
    counts = {}
    for c in classes.values(): counts[c or "unclassified"] = counts.get(c or "unclassified", 0) + 1
    print("failed by class:", ", ".join(f"{k} {n}" for k, n in sorted(counts.items())))
    for t in unknown: print("FAIL without a class:", t)
    return 1 if unknown else 0


if __name__ == "__main__":
    if len(sys.argv) < 4: sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
