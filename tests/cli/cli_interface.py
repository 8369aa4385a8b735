#!/usr/bin/env python3
"""Compares docs/CLI.md with the command: every command, every flag and every JSON field is documented. SPDX-License-Identifier: MIT"""
import re
from clitest import *

page = open(os.path.join(source, "docs", "CLI.md")).read()
m = tiny_model()
commands = run("--list")[1].split()
for c in commands:
    expect(f"command {c} is documented", re.search(rf"\b{c}\b", page))
    man = run("--man", c)[1].replace("\\-", "-")
    flags = re.findall(r"^\\fB(?:-(\w)\\fR, \\fB)?--([a-z0-9-]+)\\fR", man, re.M)
    expect(f"{c}: the man page lists flags", len(flags) >= 2, man[:200])
    for letter, name in flags:
        expect(f"{c} --{name} is documented", re.search(rf"--{name}(?![\w-])", page))
        if letter and letter not in "hq": expect(f"{c} -{letter} is documented", re.search(rf"(?<![\w-])-{letter}\b", page))


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
           "bench": ["bench", "-m", m, "-p", 8, "-n", 2, "-r", 1, "-o", "json"], "models": ["models", "--json"], "config": ["config", "--json"],
           "state": ["state", "info", state, "--json"], "state verify": ["state", "verify", state, "-m", m, "--json"],
           "state list": ["state", "list", "--json"], "cache": ["cache", "--json"], "tokenize": ["tokenize", "-m", m, "-p", "x", "--pieces", "--json"]}
for name, call in objects.items():
    code, out, err = run(*call)
    expect(f"{name} answers", code == 0, err)
    for f in sorted(fields(json.loads(out or "{}"), set())): expect(f"{name}: field {f} is documented", re.search(rf"`{f}`", page))

stated = page.split("### JSON of a run")[1].split("\n## ")[0]
got = fields(json.loads(run(*objects["run"])[1]), set())
optional = {"reason", "replacement", "position", "tokens", "recomputed_tokens",
            "max_abs", "bound", "near_ties", "state_error", "state_bound", "ok", "action",   # of losses and hand-offs
            "prefill", "decode", "token_ms", "total_ms", "depth_tokens", "turns", "sessions", "why",
            "measured", "expected", "mid", "lo", "hi", "inside", "j",   # of the plan that an uncalibrated machine lacks
            "name", "prefill_w", "decode_w"}               # of the rails of a meter
for f in set(re.findall(r"`([a-z_]+)`", stated)) - optional: expect(f"run: {f} is a field of the JSON", f in got, sorted(got))
done()
