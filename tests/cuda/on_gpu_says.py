"""on_gpu.py without a GPU: skipped; over the stub driver: steps run and are not repeated; over a `check` that says what it is told to: a
failed case fails the step and is computed again, so does an end without a case, another build computes all, and what there is no time
for does not begin.
on_gpu_says.py BUILD STUB       STUB: folder of the stub driver. SPDX-License-Identifier: MIT"""
import json, os, subprocess, sys, tempfile

build, stub = map(os.path.abspath, sys.argv[1:3])
script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "on_gpu.py")
CHECK = """#!{python}
import json, os, sys
cases = [a[1:] for a in sys.argv if a[0] == "="]
here = os.path.dirname(os.path.abspath(__file__))
if "--list" in sys.argv:
    print(*(f"op cuda:0 ref case.{{i}}" for i in range(30)), sep="\\n")
else:
    open(here + "/calls", "a").write(" ".join(cases) + "\\n")
    if os.path.exists(here + "/lost"): cases = cases[:1]
    bad = os.path.exists(here + "/bad") and "case.25"
    why = "no memory" if os.path.exists(here + "/skip") else None
    print(json.dumps({{"cases": [{{"case": c, "ok": c != bad, "skipped": why}} for c in cases]}}))
    sys.exit(3 if why else 6 if bad in cases else 1 if os.path.exists(here + "/lost") else 0)
"""
SEGUE = """#!/bin/sh
if [ "$1" = version ] && [ -e "$(dirname "$0")/other" ]; then echo '{{"commit": "0ther"}}'; else exec "{segue}" "$@"; fi
"""


def call(folder, out, *flags, mode=""):
    """(exit code, verdicts by step, stdout)"""
    r = subprocess.run([sys.executable, script, folder, "--out", out, *flags], capture_output=True, text=True,
                       env={**os.environ, "LD_LIBRARY_PATH": stub, "SEGUE_STUB": mode})
    rows = [line.split(None, 2) for line in r.stdout.splitlines()[1:]]
    return r.returncode, {w[0]: w[1:] for w in rows if len(w) == 3}, r.stdout + r.stderr


def same(what, got, want):
    if got != want: sys.exit(f"on_gpu_says: {what}: {got!r}, not {want!r}")


with tempfile.TemporaryDirectory() as top:
    code, _, said = call(build, top + "/a", mode="none")
    same("without a GPU", (code, said.startswith("SKIP on_gpu: no GPU: ")), (77, True))
    same("a step that is not there", call(build, top + "/a", "--only", "nothing")[0], 2)
    same("--list", len(call(build, top + "/a", "--list")[2].splitlines()) >= 20, True)

    code, steps, said = call(build, top + "/b", "--stub", "--only", "handoff,memcheck")
    same(said, (code, steps["handoff"][0], steps["memcheck"][0]), (0, "ran", "skipped"))
    steps = call(build, top + "/b", "--stub", "--only", "handoff")[1]
    same("a step that ended is not repeated", "(before)" in steps["handoff"][1], True)
    same("rows", [json.loads(line)["step"] for line in open(top + "/b/steps.jsonl")], ["handoff", "memcheck"])

    fake, calls = top + "/fake", top + "/fake/calls"
    os.mkdir(fake)
    for name, text in (("check", CHECK.format(python=sys.executable)), ("segue", SEGUE.format(segue=build + "/segue"))):
        with open(fake + "/" + name, "w") as f: f.write(text)
        os.chmod(fake + "/" + name, 0o755)
    open(fake + "/bad", "w").close()
    code, steps, said = call(fake, top + "/c", "--only", "op", "--minutes", "0")
    same("no time", (code, steps["op"][0], os.path.exists(calls)), (0, "not", False))
    code, steps, said = call(fake, top + "/c", "--only", "op")
    same(said, (code, steps["op"][0], "case.25" in steps["op"][1]), (1, "FAILED", True))
    os.remove(fake + "/bad")
    code, steps, said = call(fake, top + "/c", "--only", "op", "--again")
    same(said, (code, steps["op"][0], steps["op"][1].startswith("30 cases, 0 failed")), (0, "ok", True))
    same("only the part that failed is computed again", [len(line.split()) for line in open(calls)], [24, 6, 6])
    for name in ("other", "lost"): open(fake + "/" + name, "w").close()
    code, steps, said = call(fake, top + "/c", "--only", "op")
    same(said, (code, steps["op"][0], "case.0 ...: exit 1" not in said, "case.1 ...: exit 1" in said), (1, "FAILED", True, True))
    same("another build", len(open(calls).readlines()), 5)
    os.remove(fake + "/lost")
    open(fake + "/skip", "w").close()
    code, steps, said = call(fake, top + "/c", "--only", "op.seed2")
    same(said, (code, steps["op.seed2"][0]), (0, "skipped"))
    same("a GPU that is not there", call(fake, top + "/c", "--unit", "cuda:7")[0], 77)
    same("a build that is not there", call(top, top + "/c")[0], 2)
