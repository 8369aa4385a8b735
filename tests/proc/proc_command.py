#!/usr/bin/env python3
"""Units in a process of their own, from the command line: equal answers, pids, nobody left behind.
SPDX-License-Identifier: MIT"""
import os, signal, sys, time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli"))
from clitest import *

m = tiny_model()


def answer(*units):
    code, out, err = run("run", "-m", m, "-p", "the same words", "-n", 12, "--greedy", "--ignore-eos", "--json", *units)
    expect(f"{units}: done", code == 0, err)
    return json.loads(out or "{}")


# --- equal, and told apart ---
for unit in ("ref", "cpu:threads=1", "cpu:isa=generic,threads=2"):
    alone, apart = answer("--unit", unit), answer("--unit", "proc:" + unit)
    expect(f"proc:{unit}: equal tokens", alone.get("ids") == apart.get("ids") != None, (alone.get("ids"), apart.get("ids")))
    parts = apart.get("units", [])
    expect(f"proc:{unit}: named", [p["unit"] for p in parts] == ["proc:" + unit] * 2, parts)
    pids = {p["pid"] for p in parts}
    expect(f"proc:{unit}: one process, not that of the command", len(pids) == 1 and pids != {alone["units"][0]["pid"]}, pids)
    for pid in pids: expect(f"proc:{unit}: process {pid} is gone", not os.path.exists(f"/proc/{pid}"))
both = answer("--prefill", "cpu:threads=1", "--decode", "proc:cpu:threads=1")
expect("cpu to proc:cpu: equal tokens", both.get("ids") == answer("--unit", "cpu:threads=1").get("ids"))
expect("cpu to proc:cpu: bytes were handed over", both.get("handoff_bytes", 0) > 0, both.get("handoff_bytes"))

# --- refusals ---
refused(2, ["run", "-m", m, "-p", "x", "--unit", "proc"], "proc:cpu")
refused(2, ["run", "-m", m, "-p", "x", "--unit", "proc:proc:ref"], "proc:cpu")
refused(3, ["run", "-m", m, "-p", "x", "--unit", "proc:nothing"], "nothing")
refused(2, ["run", "-m", m, "-p", "x", "--unit", "proc:cpu:threads=none"], "threads")
refused(3, ["run", "-m", m, "-p", "x", "--unit", "proc:ref"], "SEGUE_COMMAND", SEGUE_COMMAND="/nowhere/segue")
refused(3, ["run", "-m", m, "-p", "x", "--unit", "proc:ref"], "proc:ref", SEGUE_COMMAND="/bin/true")
refused(2, ["--serve-unit"], "proc:U")


# --- the parent is killed: the child ends, too ---
def children_of(pid):
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit(): continue
        try: fields = open(f"/proc/{entry}/stat").read().rsplit(")", 1)[1].split()
        except OSError: continue
        if int(fields[1]) == pid: found.append(int(entry))
    return found


def alive(pid):
    try: return open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError: return False


if os.path.exists("/proc/self/stat"):
    parent = subprocess.Popen([command, "run", "-m", m, "-p", "x", "-n", "-1", "-c", "100000", "--ignore-eos", "--unit", "proc:ref"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    until = time.monotonic() + LIMIT
    children = []
    while not children and time.monotonic() < until: children = children_of(parent.pid)
    expect("a child is there", len(children) == 1, children)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    while any(map(alive, children)) and time.monotonic() < until: pass
    expect("the child ended with its parent", not any(map(alive, children)), children)
done()
