#!/usr/bin/env python3
"""`segue bench`: rows, JSON fields and output formats. SPDX-License-Identifier: MIT"""
import csv, io, sqlite3
from clitest import *

m = tiny_model()
base = ["bench", "-m", m, "-r", "2"]
code, out, err = run(*base, "-p", "16,8", "-n", "4", "-d", "0,8", "-t", "1,2", "-o", "json", "--unit", "cpu")
rows = json.loads(out)
expect("rows", [(r["n_threads"], r["n_depth"], r["n_prompt"], r["n_gen"]) for r in rows]
       == [(t, d, p, n) for t in (1, 2) for d in (0, 8) for p, n in ((16, 0), (8, 0), (0, 4))], [list(r.items())[:12] for r in rows])
FIELDS = """n_prompt n_gen n_depth n_threads avg_ns stddev_ns avg_ts stddev_ts samples_ns samples_ts model_filename model_type model_size
ids_hash load_ms compile_ms peak_bytes device_bytes weight_bytes state_bytes weight_read_gb_s memory_bandwidth_gb_s bandwidth_utilization depth_ratio machine unit seed model""".split()
expect("fields", all(not set(FIELDS) - set(r) for r in rows), set(FIELDS) - set(rows[0]))
for r in rows:
    n = r["n_prompt"] + r["n_gen"]
    ts = [n * 1e9 / x for x in r["samples_ns"]]
    expect("figures", len(ts) == 2 and abs(r["avg_ts"] - sum(ts) / 2) < 1e-3 * r["avg_ts"] and abs(r["avg_ns"] - sum(r["samples_ns"]) / 2) <= 1, r)
    expect("nulls have reasons", all(v is not None or r.get(k + "_reason") for k, v in r.items()), r)
expect("bandwidth samples: one per decode sample, one per prompt row", all(len(r["samples_memory_bandwidth_gb_s"]) == (2 if r["n_gen"] else 1) for r in rows), rows[0])
expect("decode rows count weight bytes", all(r["weight_read_gb_s"] and r["weight_read_gb_s"] > 0 for r in rows if r["n_gen"]), [r["weight_read_gb_s"] for r in rows])
expect("depth ratio: decode rows behind one at depth 0", all((r["depth_ratio"] is not None and r["depth_ratio"] > 0) == bool(r["n_gen"] and r["n_depth"]) for r in rows), [r["depth_ratio"] for r in rows])
same = {(r["n_depth"], r["n_prompt"], r["n_gen"]): set() for r in rows}
for r in rows: same[(r["n_depth"], r["n_prompt"], r["n_gen"])].add(r["ids_hash"])
expect("same ids, same hash", all(len(v) == 1 for v in same.values()) and len(set().union(*same.values())) == 5, same)  # 8 ids after a depth of 8 are the same ids as 16
again = json.loads(run(*base, "-p", "16", "-n", "0", "-o", "json", "--seed", "2")[1])
expect("-n 0, another seed", len(again) == 1 and again[0]["ids_hash"] not in same[(0, 16, 0)], again)
short = [*base, "-p", "8", "-n", "3"]
lines = [json.loads(l) for l in run(*short, "-o", "jsonl")[1].strip().split("\n")]
expect("jsonl", [l["n_gen"] for l in lines] == [0, 3])
expect("--json is -o json", len(json.loads(run(*short, "--json")[1])) == 2)
table = list(csv.reader(io.StringIO(run(*short, "-o", "csv")[1])))
expect("csv", len(table) == 3 and len({len(r) for r in table}) == 1 and dict(zip(table[0], table[2]))["n_gen"] == "3", table)
db = sqlite3.connect(":memory:")
db.executescript(run(*short, "-o", "sql")[1])
expect("sql", db.execute("SELECT n_prompt, n_gen FROM segue_bench").fetchall() == [(8, 0), (0, 3)])
md = run(*short)[1]
expect("md", md.count("\n") == 4 and "| pp8 " in md and "| tg3 " in md, md)
many = json.loads(run(*base, "-p", "0", "-n", "4", "--sequences", "3", "-o", "json")[1])
expect("--sequences", many[0]["n_sequences"] == 3 and abs(many[0]["avg_ts"] - sum(12e9 / x for x in many[0]["samples_ns"]) / 2) < 1e-3 * many[0]["avg_ts"], many)
two = ["--prefill", "cpu:isa=generic,threads=1", "--decode", "cpu:threads=1", "-p", "100", "-n", "8"]
row, = json.loads(run(*base, "--handoff", *two, "--json")[1])
expect("--handoff", row["from"] != row["to"] and row["ids_equal"] and row["bytes"] > 0 and row["copied_bytes"] == 0
       and len(row["samples_decode_ratio"]) == 2 and row["blocking_ms"] > 0 and row["exposed_ms"] > 0, row)
row, = json.loads(run(*base, "--handoff", "--prefill", "ref", *two[2:], "--json")[1])
expect("--handoff that copies", row["copied_bytes"] == row["bytes"] > 0 and row["gb_s"] > 0 and row["ids_equal"], row)
expect("--handoff fields", all(v is not None or row.get(k + "_reason") for k, v in row.items()), row)
expect("--handoff table", run(*base, "--handoff", *two)[1].count("\n") == 3)
refused(2, [*base, "--handoff", "--prefill", "cpu", "--decode", "cpu"], "same unit")
row, = json.loads(run(*base, "--concurrent", "64", "--unit", "cpu:threads=1", "--json")[1])
expect("--concurrent", len(row["samples_decode_slowdown"]) == 2 and row["decode_alone_tok_s"] > 0 and row["prefill_concurrent_ms"] > 0 and row["n_prompt"] == 64
       and all(v is not None or row.get(k + "_reason") for k, v in row.items()), row)
code, out, err = run("bench", "--claim", "-p", "3", "-n", "3", "--json")
rows = json.loads(out)
expect("--claim: rows", code == 0 and [(r["case"], r["basis"]) for r in rows] == [(c, b) for c in ("layers", "layers and head", "layers, two tokens a step") for b in ("host",) + ("simulated",) * 5], err)
expect("--claim: says that no engine ran", "No engine ran" in err and all("software" in r["unit"] for r in rows if r["basis"] == "host"), err)
expect("--claim: nulls have reasons", all(v is not None or r.get(k + "_reason") for r in rows for k, v in r.items()), rows)
for r in rows:
    # weights of a layer: q, k, v, o and three of the feed-forward part; one row of keys and values in and out
    bytes_ = 2 * (6 * (4 * 768 * 768 + 3 * 768 * 2048) + (768 * 32000 if r["vocab"] else 0))
    expect("--claim: weights", abs(r["weight_bytes"] / bytes_ - 1) < 0.01, (r, bytes_))
    pair = r["case"].endswith("two tokens a step")
    expect("--claim: steps of two give the text of single tokens", (r["tokens_equal"], r["accepted_ratio"] is not None) == ((True, True) if pair else (None, False))
           and (not pair or abs(r["step_ms"] / r["token_ms"] - 1 - r["accepted_ratio"]) < 1e-3), r)
    if r["basis"] == "host": expect("--claim: no verdict without an engine", r["verdict"] is None and r["token_ms"] > 0 and r["n_gen"] == 3, r)
    if r["unit"].endswith(("m1", "m2", "m3", "m4")):
        us, weight, surface = {"m1": (210, 51, 24), "m2": (150, 70, 35), "m3": (120, 70, 35), "m4": (95, 100, 50)}[r["unit"][-2:]]
        ms = r["dispatches"] * us / 1e3 + (bytes_ / weight + 2 * 6 * 2 * 256 * 768 * 2 / surface) / 1e6
        expect("--claim: simulated time", abs((r["step_ms"] if pair else r["token_ms"]) / ms - 1) < 0.05 and (r["verdict"] == "holds") == (r["token_ms"] <= r["published_ms"]), (r, ms))
expect("--claim: every chip takes the programs", all(r["verdict"] in ("holds", "refuted") for r in rows if r["basis"] == "simulated"), rows)
refused(2, [*base, "-p", "8,", "-n", "0"])
refused(2, [*base, "-t", "0"], "range")
refused(3, [*base, "--unit", "cuda:0"], "cuda")
code, out, err = run(*base, "-p", "5000", "-n", "0")
expect("depth beyond the context of the model", code in (0, 5) and err.count("\n") <= 1, (code, err))
done()
