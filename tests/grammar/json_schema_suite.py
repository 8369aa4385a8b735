#!/usr/bin/env python3
"""The cases of the JSON Schema Test Suite against constrained output: not part of `make test`, since the suite is not here. Usage:
  json_schema_suite.py GRAMMAR_TOOL FOLDER
FOLDER has the suite's files of one draft, for example json/tests/draft2020-12 of the source package of jsonschema. Fails where a document
that does not satisfy a schema is accepted. Schemas that are refused and valid documents that are not accepted are counted: a schema without
`type` gets one from its keywords (docs/SERVER.md), formats are demanded, and 1.0 is not written for the constant 1.
SPDX-License-Identifier: MIT"""
import collections, glob, json, os, subprocess, sys

tool = subprocess.Popen([sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
counts, wrong = collections.Counter(), []
for path in sorted(glob.glob(os.path.join(sys.argv[2], "*.json"))):
    with open(path) as f: groups = json.load(f)
    for group in groups:
        texts = [json.dumps(case["data"]) for case in group["tests"]]
        tool.stdin.write(json.dumps({"kind": 1, "source": json.dumps(group["schema"]), "texts": texts, "samples": 0, "seed": 1}) + "\n")
        tool.stdin.flush()
        reply = json.loads(tool.stdout.readline())
        if reply.get("error"):
            counts["refused schemas"] += 1
            continue
        for case, text, end in zip(group["tests"], texts, reply["accepts"]):
            counts[("valid" if case["valid"] else "invalid") + (", accepted" if end == -1 else ", not accepted")] += 1
            if end == -1 and not case["valid"]: wrong.append((os.path.basename(path), group["description"], case["description"], text))
print(", ".join(f"{k}: {n}" for k, n in sorted(counts.items())))
for w in wrong: print("FAIL accepted:", *w)
sys.exit(bool(wrong) or not counts)
