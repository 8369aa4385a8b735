#!/usr/bin/env python3
"""Verdicts of `segue mil check` against those of Apple's compiler, per generation of the engine.

  conformance.py                            the texts of this file (needs SEGUE_COMMAND)
  conformance.py --write FOLDER             writes them, with their verdicts and sources as comments
  conformance.py --check FOLDER VERDICTS    texts of another project: VERDICTS has lines PATH,GENERATION,VERDICT, where a
                                            verdict is accept, refuse or refuse:RULE; nothing is downloaded.
                                            public_verdicts.csv has those of public projects

A text states its verdicts in its first line: `// verdict: h13=accept h14=refuse:49`. At least 95 % per generation must agree, of
all verdicts and of those of Apple's compiler, and each rule has a text on both sides on each generation that has it. The texts are
in verdict_texts.py.
SPDX-License-Identifier: MIT"""
import csv, json, os, re, subprocess, sys, tempfile

from verdict_texts import generations, write

command = os.environ.get("SEGUE_COMMAND", "segue")
# Rules of the table that `mil check` does not refuse by: advice, and rules that only an M5 has for a text.
ADVICE, ONLY = (20, 56), {1: ["h17"]}


def stated(folder):
    """(path, generation, verdict, from Apple's compiler, rule) of the texts of a folder that state them."""
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".mil"): continue
        with open(os.path.join(folder, name)) as f: head = [f.readline() for _ in range(3)]
        rule = re.match(r"// rule: (\d+)", head[2])
        for generation, verdict in re.findall(r"(h\d\d)=(\S+)", head[0]):
            yield os.path.join(folder, name), generation, verdict, head[1].startswith("// source: compiler"), int(rule[1]) if rule else None


def verdict_of(path, generation):
    """(accepted, numbers of the broken rules); None: no verdict, the file cannot be read."""
    r = subprocess.run([command, "mil", "check", path, "--profile", generation, "--json"], capture_output=True, text=True)
    if r.returncode not in (0, 6): return None, r.stdout + r.stderr
    return r.returncode == 0, [v["constraint"] for v in json.loads(r.stdout)["violations"]]


def verdicts_of(folder):
    """verdict_of for the texts of one folder, which is checked once per generation."""
    found = {}
    for generation in generations:
        r = subprocess.run([command, "mil", "check", folder, "--profile", generation, "--json"], capture_output=True, text=True)
        if r.returncode not in (0, 6): sys.exit(f"mil check {folder}: {r.stdout}{r.stderr}")
        for v in json.loads(r.stdout)["violations"]: found.setdefault((v["file"], generation), []).append(v["constraint"])
    return lambda path, generation: ((path, generation) not in found, found.get((path, generation), []))


def check(cases, verdict_of=verdict_of):
    """Compare, print the agreement per generation, and return (failed, {(rule, generation, side)} of the texts that agree)."""
    by, sides, bad = {}, set(), False
    for path, generation, verdict, by_compiler, rule in cases:
        accepted, rules = verdict_of(path, generation)
        wanted, _, reason = verdict.partition(":")
        # The first rule that is named is the reason that a user reads first.
        same = accepted == (wanted == "accept") and (not reason or rules[:1] == [int(reason)])
        for kind in ("all",) + (("compiler",) if by_compiler else ()):
            agreed, n = by.get((generation, kind), (0, 0))
            by[generation, kind] = (agreed + same, n + 1)
        if not same: print(f"{generation} {path}: expected {verdict}, found {'accept' if accepted else 'refuse'} {rules}")
        if same and wanted == "accept" and rule: sides.add((rule, generation, "accept"))
        if same and wanted == "refuse": sides |= {(r, generation, "refuse") for r in rules}
    for generation in sorted({g for g, _ in by}):
        agreed, n = by[generation, "all"]
        own, known = by.get((generation, "compiler"), (0, 0))
        print(f"{generation}: {agreed} of {n} verdicts agree ({100 * agreed / n:.1f} %)" + (f"; {own} of {known} of Apple's compiler" if known else ""))
        bad |= agreed < 0.95 * n or own < 0.95 * known
    return bad or not by, sides


def uncovered(rules, sides):
    """Rules that refuse a text on a generation, but have no text on one of their sides there."""
    missing = []
    for r in rules:
        if r["checked"] not in ("text", "blobs") or r["number"] in ADVICE: continue
        for g in ONLY.get(r["number"], [g.lower() for g in r["generations"]]):
            missing += [f"rule {r['number']}, {g}: no text that is {side}d" for side in ("accept", "refuse") if (r["number"], g, side) not in sides]
    return missing


if __name__ == "__main__":
    if sys.argv[1:2] == ["--write"] and len(sys.argv) == 3:
        write(sys.argv[2])
    elif sys.argv[1:2] == ["--check"] and len(sys.argv) == 4:
        with open(sys.argv[3], newline="") as f: rows = [r for r in csv.reader(f) if r and not r[0].startswith("#")]
        here = [(os.path.join(sys.argv[2], r[0]), r[1].strip(), r[2].strip(), False, None) for r in rows]
        here = [c for c in here if os.path.exists(c[0])]
        if len(here) < len(rows): print(f"skipped: {len(rows) - len(here)} of {len(rows)} verdicts, whose texts are not in {sys.argv[2]}")
        sys.exit(check(here)[0])
    elif len(sys.argv) > 1:
        sys.exit(__doc__)
    elif not os.path.exists(command):
        print("SKIP conformance: the command is not built")
        sys.exit(77)
    else:
        with tempfile.TemporaryDirectory() as folder:
            write(folder)
            bad, sides = check(stated(folder), verdicts_of(folder))
        rules = json.loads(subprocess.run([command, "mil", "rules", "--json"], capture_output=True, text=True).stdout)["rules"]
        if [r["number"] for r in rules] != sorted(r["number"] for r in rules) or not all(r["sources"] for r in rules):
            bad = print("the table of rules is not in order") or 1
        missing = uncovered(rules, sides)
        for line in missing: print(line)
        n = len({r for r, _, _ in sides if (r, "accept") in {(a, c) for a, _, c in sides} and (r, "refuse") in {(a, c) for a, _, c in sides}})
        print(f"{n} rules have texts on both sides, on each of their generations" if not missing else f"{len(missing)} sides are missing")
        sys.exit(1 if bad or missing else 0)
