#!/usr/bin/env python3
"""`segue units --limits`: the answers of the units themselves, with a reason for every no. SPDX-License-Identifier: MIT"""
from clitest import *

code, out, err = run("units", "--limits", "--json")
units = {u["unit"].split(":")[0]: u for u in reversed(json.loads(out)) if u["available"]}
expect("units", code == 0 and {"ref", "cpu", "ane"} <= set(units), (err, list(units)))
for name, u in units.items():
    l = u["limits"]
    lists = [*l["operations"], *l["storages"], *l["shapes"]]
    expect(f"{name}: every no has a reason", all(x["can"] or x["why"] for x in lists) and len(l["operations"]) == 18, l)
    expect(f"{name}: storages", {"f32", "bf16", "q4_0", "q4_k", "iq2_xxs", "mxfp4", "nvfp4", "affine"} <= {s["name"] for s in l["storages"] if s["can"]}, l["storages"])
part = lambda unit, kind: {x["name"]: x for x in units[unit]["limits"][kind]}
expect("ref runs everything", all(x["can"] for x in part("ref", "operations").values()))
expect("a limit of cpu, and its reason", part("cpu", "shapes")["attend: head width"]["largest"] == 512 and "512" in part("cpu", "shapes")["attend: head width"]["why"])
expect("ane has no experts, and says why", not part("ane", "operations")["route and experts"]["can"] and "experts" in part("ane", "operations")["route and experts"]["why"])
expect("K and V", [units[u]["limits"]["kv"] for u in ("cpu", "ane")] == [["f16", "f32", "bf16", "q8"], ["f16"]])
text = run("units", "--limits")[1]
expect("as text", "K and V: f16 f32" in text and "operations: embed" in text and "attend: head width 512" in text, text)
expect("not asked, not there", "limits" not in json.loads(run("units", "--json")[1])[0])
done()
