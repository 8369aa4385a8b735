#!/usr/bin/env python3
"""docs/INTERFACE.md against the command: every command, every flag of every table and every JSON field stands there, and what
it marks as later is refused. SPDX-License-Identifier: MIT"""
import re
from clitest import *

page = open(os.path.join(source, "docs", "INTERFACE.md")).read()
m = tiny_model()
commands = run("--list")[1].split()
for c in commands:
    expect(f"command {c} is stated", re.search(rf"\b{c}\b", page))
    man = run("--man", c)[1].replace("\\-", "-")
    flags = re.findall(r"^\\fB(?:-(\w)\\fR, \\fB)?--([a-z0-9-]+)\\fR", man, re.M)
    expect(f"{c}: flags are read", len(flags) >= 2, man[:200])
    for letter, name in flags:
        expect(f"{c} --{name} is stated", re.search(rf"--{name}(?![\w-])", page))
        if letter and letter not in "hq": expect(f"{c} -{letter} is stated", re.search(rf"(?<![\w-])-{letter}\b", page))
later = re.findall(r"`([a-z-]+)`", page.split("## Later")[1].split(":")[0])
expect("later commands", "serve" in later and "train" in later, later)
for c in later: refused(3, [c], c)


def fields(value, out):
    if isinstance(value, list):
        for v in value: fields(v, out)
    if isinstance(value, dict):
        for k, v in value.items():
            if k.endswith("_reason") and k != "reuse_reason": continue
            out.add(k)
            if k not in ("numbers", "ops"): fields(v, out)
    return out


ids = ",".join(map(str, range(40)))
base = os.path.join(top.name, "base")
run("eval", "-m", m, "--ids", ids, "-c", 16, "--kl-out", base)
state = os.path.join(top.name, "x.state")
run("run", "-m", m, "-p", "x", "-n", 2, "--save", state)
objects = {"run": ["run", "-m", m, "-p", "x", "-n", 3, "--logprobs", 1, "--json"], "inspect": ["inspect", "-m", m, "--json"],
           "units": ["units", "--json"], "version": ["version", "--json"], "eval": ["eval", "-m", m, "--kl-base", base, "--json"],
           "bench": ["bench", "-m", m, "-p", 8, "-n", 2, "-r", 1, "-o", "json"], "models": ["models", "--json"],
           "state": ["state", "info", state, "--json"], "state verify": ["state", "verify", state, "-m", m, "--json"],
           "state list": ["state", "list", "--json"], "cache": ["cache", "--json"], "tokenize": ["tokenize", "-m", m, "-p", "x", "--pieces", "--json"]}
for name, call in objects.items():
    code, out, err = run(*call)
    expect(f"{name} answers", code == 0, err)
    for f in sorted(fields(json.loads(out or "{}"), set())): expect(f"{name}: field {f} is stated", re.search(rf"`{f}`", page))

stated = page.split("The JSON of a run:")[1].split("`text` leaves")[0]
got = fields(json.loads(run(*objects["run"])[1]), set())
optional = {"why", "op", "layer", "to", "rows", "replayed_rows",
            "max_abs", "bound", "near_ties", "state_error", "state_bound", "ok", "action"}   # of refusals, losses, hand-offs
for f in set(re.findall(r"`([a-z_]+)`", stated)) - optional: expect(f"run: {f} is there", f in got, sorted(got))
done()
