#!/usr/bin/env python3
"""Time to the first token of later turns of `segue chat`: median and 95th percentile of turns 2 to N, for one unit and for two, with
messages typed on a terminal and from a pipe. Repetitions alternate between the cases, so that a change of load meets all of them.

  chat_turns.py SEGUE MODEL [--turns 6] [--repeat 3] [--key 0.1] [--json]

A message is typed with --key seconds a key, and Enter after --enter seconds (default: as a key). The time is `ttft_ms` of the report:
from the complete message to the first token, with rendering and tokenizing.
SPDX-License-Identifier: MIT"""
import argparse, json, os, pty, select, statistics, subprocess, time

MESSAGES = ["Why is the sky blue?", "And at sunset?", "Name three rivers in Europe.", "Which of them is the longest one?",
            "What is the capital of France?", "How many people live there today?", "Write one line about the sea.", "Thank you, that was helpful."]
UNITS = {"one unit": ["--unit", "cpu:threads=2"],
         "two units": ["--prefill", "cpu:threads=2", "--decode", "cpu:isa=avx512,threads=2"],
         "two units of one thread": ["--prefill", "cpu:threads=1", "--decode", "cpu:isa=avx512,threads=1"]}


def read_until(fd, found):
    """Output up to and with what `found` accepts; b"" at the end of it."""
    seen = b""
    while not found(seen):
        select.select([fd], [], [])
        try: more = os.read(fd, 65536)
        except OSError: return seen
        if not more: return seen
        seen += more
    return seen


def prompt(s): return s.replace(b"\x1b[0m", b"").rstrip().endswith(b">")


def typed(command, messages, key, enter):
    master, slave = pty.openpty()
    p = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True, env={**os.environ, "TERM": "xterm"})
    os.close(slave)
    read_until(master, prompt)
    for m in messages:
        for c in m:
            os.write(master, c.encode())
            time.sleep(key)
        time.sleep(max(0, enter - key))
        os.write(master, b"\r")
        read_until(master, lambda s: b"tok/s" in s and prompt(s))
    os.write(master, b"/exit\r")
    text = read_until(master, lambda s: False).decode(errors="replace")
    p.wait()
    os.close(master)
    return json.JSONDecoder().raw_decode(text, text.index('{"messages"'))[0]


def piped(command, messages):
    return json.loads(subprocess.run(command, input="".join(m + "\n" for m in messages), capture_output=True, text=True, check=True).stdout)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("segue", "model"): a.add_argument(name)
    for name, value in (("turns", 6), ("repeat", 3), ("key", 0.1), ("enter", 0.0), ("tokens", 48)):
        a.add_argument("--" + name, type=type(value), default=value)
    a.add_argument("--json", action="store_true")
    o = a.parse_args()
    found = {}
    for _ in range(o.repeat):
        for name, flags in UNITS.items():
            command = [o.segue, "chat", "-m", o.model, "--greedy", "-n", str(o.tokens), "-c", "2048", "--store", "off", "--ignore-eos", "--json", *flags]
            messages = [MESSAGES[i % len(MESSAGES)] for i in range(o.turns)]
            for how in ("typed", "pipe"):
                turns = (typed(command, messages, o.key, o.enter) if how == "typed" else piped(command, messages))["turns"]
                found.setdefault((name, how), []).extend((t["ttft_ms"], t["prompt_tokens"] - t["reused_tokens"]) for t in turns[1:])
    rows = []
    for (name, how), values in found.items():
        ms, left = sorted(v for v, _ in values), [n for _, n in values]
        rows.append({"units": name, "words": how, "turns": len(ms), "median_ms": statistics.median(ms), "p95_ms": ms[min(len(ms) - 1, int(0.95 * len(ms)))],
                     "smallest_ms": ms[0], "tokens_left": statistics.median(left)})
    if o.json: print(json.dumps(rows))
    else:
        print(f"{'units':26}{'words':8}{'turns':>6}{'median':>9}{'p95':>9}{'least':>9}{'left':>6}")
        for r in rows:
            print(f"{r['units']:26}{r['words']:8}{r['turns']:6}{r['median_ms']:9.2f}{r['p95_ms']:9.2f}{r['smallest_ms']:9.2f}{r['tokens_left']:6.0f}")


main()
