#!/usr/bin/env python3
"""Run the programs of `segue mil emit` one after the other: what goes into their ports, in NumPy.

    segue mil emit -m MODEL --tokens-per-dispatch 32 -o programs
    python3 docs/examples/mil_ports.py programs rows.safetensors out.safetensors

rows.safetensors holds `x` [n, width]: the embedded rows of a prompt, n at most the rows of a dispatch; out.safetensors gets `y`, the
rows behind the last layer. A text starts at position 0, with empty memories. SPDX-License-Identifier: MIT"""
import json, os, subprocess, sys, tempfile
import numpy as np
from safetensors.numpy import load_file, save_file

HIDDEN = -10000  # what a mask adds to a key that is not seen


def info_port(manifest, channels, n):
    """What the port `info` says of n rows from position 0 (docs/ANE.md, Ports)."""
    where, columns = manifest["info"], manifest["columns"]
    info, row = np.zeros((channels, columns)), np.arange(n)
    if "valid" in where: info[where["valid"], :n] = 1                      # rows that are no padding
    last = np.minimum(np.arange(columns), n - 1)                           # padding sees what the last row sees
    def mask(at, rows, window):                                            # which of these rows, one a channel, are seen
        seen = (rows[:, None] <= last) & ((rows[:, None] + window > last) | (window == 0))
        info[at:at + len(rows)] = np.where(seen, 0, HIDDEN)
    for m in where["masks"]:                                               # K and V lie in a ring, row r in column r % ring
        ring = m["ring"]
        put = row[-ring:]
        info[m["place"] + put % ring, put] = 1                             # where the new ones go
        # A ring is seen as it is then; where it turns, as it was, here empty, and the dispatch's own rows beside it.
        mask(m["at"], np.arange(ring) if "fresh" not in m else np.full(ring, columns), m["window"])
        if "fresh" in m: mask(m["fresh"], np.arange(columns), m["window"])
    for c in where["convolutions"]:
        past = c["taps"] - 1                                               # of `past` old rows and n new ones the last stay
        for i in range(past):
            if n + i < past: info[c["old"] + i, n + i] = 1
            else: info[c["recent"] + i, n + i - past] = 1
    for rope in where["ropes"]:
        angle = np.outer(np.array(rope["inverse"]), row)
        info[rope["at"]:rope["at"] + rope["pairs"], :n] = np.cos(angle) * rope["scale"]
        info[rope["at"] + rope["pairs"]:rope["at"] + 2 * rope["pairs"], :n] = np.sin(angle) * rope["scale"]
    return info.astype(np.float16).reshape(1, channels, 1, columns)


def divisors(values):
    """[channels, 1]: what the numbers of a port are divided by, to stay within fp16."""
    return np.concatenate([np.full((v["channels"], 1), v["divided_by"], np.float32) for v in values])


def run_programs(folder, x, command="segue", profile="strict"):
    """Rows [n, width] through all programs of a folder; [n, channels of the last port]."""
    manifest = json.load(open(os.path.join(folder, "manifest.json")))
    now = x.T
    with tempfile.TemporaryDirectory() as work:
        one, two = os.path.join(work, "in.safetensors"), os.path.join(work, "out.safetensors")
        for program in manifest["programs"]:
            ports = {i["name"]: np.zeros(i["shape"], np.float16) for i in program["inputs"]}
            for name, port in ports.items():
                if name.endswith("_x"): port[0, :len(now), 0, :len(x)] = now / divisors(program["x"])
                if name.endswith("_info"): port[:] = info_port(manifest, port.shape[1], len(x))
            save_file(ports, one)
            subprocess.run([command, "mil", "run", os.path.join(folder, program["file"]), "--in", one, "--out", two, "--profile", profile],
                           check=True, capture_output=True)
            now = next(v for k, v in load_file(two).items() if k.endswith("_out"))[0, :, 0, :len(x)] * divisors(program["out"])
    return now.T


if __name__ == "__main__":
    y = run_programs(sys.argv[1], load_file(sys.argv[2])["x"], os.environ.get("SEGUE_COMMAND", "segue"))
    save_file({"y": np.ascontiguousarray(y)}, sys.argv[3])
