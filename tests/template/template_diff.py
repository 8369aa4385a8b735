#!/usr/bin/env python3
"""Compare the template interpreter with Python's jinja2, byte for byte.

Usage: template_diff.py RENDER [--templates FOLDER] [--count N] [--seed N] [--show N]
RENDER is the program built from template_render.c. FOLDER (default: models/templates under SEGUE_LLAMA_SOURCE) holds
*.jinja, each rendered with every conversation of message_sets.py; N generated templates follow. A case fails when one
side renders and the other refuses, or when the texts differ. Exit 77: jinja2 is missing.
SPDX-License-Identifier: MIT
"""
import argparse
import copy
import glob
import json
import os
import subprocess
import sys
import warnings

try:
    import template_oracle
except ImportError as e:
    print("SKIP template_diff: %s" % e)
    sys.exit(77)
import generate
import message_sets

NOW = 1753900800
warnings.simplefilter("ignore", SyntaxWarning)


def real_cases(folder):
    for path in sorted(glob.glob(os.path.join(folder, "*.jinja"))):
        with open(path, newline="", encoding="utf-8") as f:
            source = f.read()
        for name, variables in message_sets.variables():
            yield os.path.basename(path) + " " + name, source, variables


def run(program, cases):
    lines = "".join(json.dumps({"template": s, "vars": v, "now": NOW}) + "\n" for _, s, v in cases)
    env = dict(os.environ, TZ="UTC")
    out = subprocess.run([program], input=lines, stdout=subprocess.PIPE, text=True, env=env, encoding="utf-8")
    answers = [json.loads(line) for line in out.stdout.splitlines()]
    if out.returncode or len(answers) != len(cases):
        at = cases[len(answers)] if len(answers) < len(cases) else None
        sys.exit("the renderer ended with %d after %d of %d cases: %r" % (out.returncode, len(answers), len(cases), at))
    return answers


# What the interpreter refuses by design: integers beyond 64 bits, limits, formats of marked strings; a slice of a constant
# that has none (jinja2 folds that to undefined); and addresses of objects, which it does not print.
def excused(expected, error, answer):
    if "64 bits" in answer.get("error", "") or "not supported" in answer.get("error", ""):
        return True
    if "is not real" in answer.get("error", "") or "more than" in answer.get("error", "") or "grows beyond" in answer.get("error", ""):
        return True
    if "cannot be sliced" in answer.get("error", ""):
        return True
    return expected is not None and (" at 0x" in expected.lower() or " object at" in expected.lower())


def compare(program, cases, show):
    bad = rendered = refused = 0
    environments = {}
    for at in range(0, len(cases), 2000):
        part = cases[at:at + 2000]
        for (name, source, variables), answer in zip(part, run(program, part)):
            if source not in environments:
                environments.clear()
                try:
                    environments[source] = template_oracle.environment(NOW).from_string(source)
                except Exception as e:
                    environments[source] = e
            template, expected, error = environments[source], None, None
            try:
                if isinstance(template, Exception):
                    raise template
                expected = template.render(**copy.deepcopy(variables))  # jinja2's indent changes a list
                expected.encode("utf-8")
            except Exception as e:
                expected, error = None, "%s: %s" % (type(e).__name__, e)
            rendered += expected is not None
            refused += expected is None
            if answer.get("text") == expected or excused(expected, error, answer):
                continue
            bad += 1
            if bad <= show:
                print("DIFFERS %s\n  template: %r\n  expected: %r %s\n  got:      %r" % (
                    name, source if len(source) < 700 else "(%d bytes)" % len(source),
                    clip(expected, answer.get("text")), error or "", clip(answer.get("text"), expected) or answer))
    return bad, rendered, refused


def clip(text, other):
    """The neighbourhood of the first difference."""
    if text is None or other is None or len(text) < 200:
        return text if text is None or len(text) < 300 else text[:300] + "..."
    i = next((i for i, (a, b) in enumerate(zip(text, other)) if a != b), min(len(text), len(other)))
    return "...%s..." % text[max(0, i - 60):i + 60]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--templates", default=None)
    parser.add_argument("--count", type=int, default=int(os.environ.get("SEGUE_TEMPLATE_CASES", "6000")))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=10)
    args = parser.parse_args()
    os.environ["TZ"] = "UTC"
    import time
    time.tzset()
    total = 0
    source = os.environ.get("SEGUE_LLAMA_SOURCE")
    folder = args.templates or (source and os.path.join(source, "models", "templates"))
    if folder and glob.glob(os.path.join(folder, "*.jinja")):
        cases = list(real_cases(folder))
        bad, rendered, refused = compare(args.program, cases, args.show)
        print("templates: %d cases of %d files, %d rendered, %d refused by both, %d differ" % (
            len(cases), len({c[1] for c in cases}), rendered, refused - 0, bad))
        total += bad
    else:
        print("SKIP real templates: SEGUE_LLAMA_SOURCE names no folder with models/templates/*.jinja")
    cases = list(generate.cases(args.seed, args.count))
    bad, rendered, refused = compare(args.program, cases, args.show)
    print("generated: %d cases (seed %d), %d rendered, %d refused, %d differ" % (len(cases), args.seed, rendered, refused, bad))
    return 1 if total + bad else 0


if __name__ == "__main__":
    sys.exit(main())
