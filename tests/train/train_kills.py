#!/usr/bin/env python3
"""train_kills.py SEGUE TINY [TIMES]: kill -9 at random moments of a training run; the command is repeated until it ends, and the
result has the bits of a run that was not interrupted. TIMES: runs that are killed, 4 by default; 50 is what is asked for.

A moment is a part of the time that the rest of the run takes without a kill, so most kills fall into the run itself, some into the
start and into the writing of a checkpoint, which follows every update.
"""
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time

SEGUE, TINY = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
TIMES = int(sys.argv[3]) if len(sys.argv) > 3 else 4
work = tempfile.mkdtemp()
os.chdir(work)
with open("lines.jsonl", "w") as f:
    for i in range(16):
        f.write(json.dumps({"tokens": [(5 * i + k * k) % 60 for k in range(16 + i)]}) + "\n")
COMMAND = [SEGUE, "train", "-m", TINY, "--data", "lines.jsonl", "-c", "32", "--steps", "40", "--checkpoint", "1", "--rank", "4",
           "--lr", "0.01", "--unit", "cpu", "-t", "1", "-o"]
FILES = ("checkpoint.state", "adapter_model.safetensors", "adapter_config.json")


def contents(folder):
    return [open(os.path.join(folder, name), "rb").read() for name in FILES]


start = time.monotonic()
subprocess.run([*COMMAND, "whole"], check=True, capture_output=True)
whole, seconds, r = contents("whole"), time.monotonic() - start, random.Random(7)
os.unlink("whole/adapter_model.safetensors")  # as if it was killed between the last checkpoint and its adapter
subprocess.run([*COMMAND, "whole"], check=True, capture_output=True)
if contents("whole") != whole:
    sys.exit("FAIL the adapter of a complete run is not written again")
kills = failed = 0
while kills < TIMES and not failed:
    p = subprocess.Popen([*COMMAND, "killed"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        code, errors = p.wait(r.uniform(0.02, 0.9) * seconds), p.stderr.read()
    except subprocess.TimeoutExpired:
        p.kill()
        p.wait()
        kills += 1
        continue
    if code:
        failed = 1
        print("FAIL a run after", kills, "kills:", errors)
    elif contents("killed") != whole:
        failed = 1
        print("FAIL other bits after", kills, "kills")
    shutil.rmtree("killed")
if not failed:
    if os.path.exists("killed"):
        done = subprocess.run([*COMMAND, "killed"], capture_output=True, text=True)
        failed = done.returncode != 0 or contents("killed") != whole
    print("FAIL the last run" if failed else f"PASS {kills} kills, every result has the bits of the whole run")
os.chdir("/")
shutil.rmtree(work)
sys.exit(failed != 0)
