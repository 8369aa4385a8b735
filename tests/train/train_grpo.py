#!/usr/bin/env python3
"""train_grpo.py SEGUE TINY: `segue train --grpo` on the tiny checkpoint TINY, whose answers are ids with spaces, as it has no
tokenizer.

The mean reward of a program rises; patterns, lengths and expected answers are scored; a killed run has the bits of a whole one,
with one unit and with two; with two units sampling does not wait for updates; a reward program that ends, hangs or writes
what is no number stops the run with a clear error, and the last checkpoint stays.
"""
import json
from traintest import *

TINY = FILES


def grpo(*args): return segue("train", "-m", TINY, "--grpo", *args)


def objects(r):
    return [json.loads(line) for line in r.stdout.splitlines()]


def contents(folder):
    return [open(os.path.join(folder, n), "rb").read() for n in ("checkpoint.state", "adapter_model.safetensors")]


with open("prompts.jsonl", "w") as f:
    for i in range(8):
        f.write(json.dumps({"tokens": [3, 1, 4, 1, 5][: 2 + i % 4], "answer": " 7 7\n"}) + "\n")
# Share of even ids. It writes a reward before it reads the next answer, and stays for all steps.
with open("even.py", "w") as f:
    f.write("import json, sys\nfor line in sys.stdin:\n    ids = [int(x) for x in json.loads(line)['answer'].split()]\n"
            "    print(sum(x % 2 == 0 for x in ids) / max(1, len(ids)), flush=True)\n")
EVEN = ["--reward", "program:exec " + sys.executable + " even.py"]
BASE = ["--data", "prompts.jsonl", "--group", "8", "--batch", "4", "--answer-tokens", "8", "-c", "32", "--lr", "0.02", "--unit",
        "cpu", "--checkpoint", "5"]

r = grpo(*BASE, *EVEN, "-o", "whole", "--steps", "20", "--json", "--metrics", "m.csv", "--html", "m.html")
check("a run ends well", r.returncode == 0, r.stderr)
steps = objects(r)[:-1]
check("an object per step", [x["step"] for x in steps] == list(range(1, 21)) and "kl" in steps[0], r.stdout)
check("the mean reward rises", sum(x["reward"] for x in steps[-4:]) / 4 > sum(x["reward"] for x in steps[:4]) / 4 + 0.1, r.stdout)
check("the distance from the model without the adapter is 0 before the first update", abs(steps[0]["kl"]) < 1e-6 < steps[-1]["kl"])
check("ratios of answers of the same weights are not clipped", steps[0]["clip_ratio"] == 0)
head = open("m.csv").readline()
check("CSV and page have rewards", head.rstrip().endswith("reward,reward_deviation,kl,clipped,answer_tokens") and
      "Mean reward" in open("m.html").read(), head)
run = segue("run", "-m", TINY, "--ids", "3,1", "-n", "4", "--lora", "whole", "--json")
check("run reads the adapter", run.returncode == 0, run.stderr)
r = grpo(*BASE, *EVEN, "-o", "passes", "--steps", "6", "--passes", "3", "--json", "--kl", "0")
check("later passes change the ratio", r.returncode == 0 and any(x["clip_ratio"] > 0 for x in objects(r)[:-1]), r.stdout + r.stderr)

for two in ((), ("--rollout-unit", "ref")):
    name = "two units" if two else "one unit"
    args = [*BASE, *EVEN, *two, "--steps", "12"]
    r = grpo(*args, "-o", "all", "--trace", "trace.json", "--json")
    check(name + ": a run ends well", r.returncode == 0, r.stderr)
    run_killed("killed/adapter_config.json", "train", "-m", TINY, "--grpo", *args, "-o", "killed")
    again = grpo(*args, "-o", "killed")
    check(name + ": a killed run has the bits of the whole one", again.returncode == 0 and contents("all") == contents("killed"),
          again.stderr)
    events = json.load(open("trace.json"))["traceEvents"]
    spans = {k: [(e["ts"], e["ts"] + e["dur"]) for e in events if e["name"] == k] for k in ("update", "rollouts")}
    # How long both run at once depends on the cores that are free, so the order is checked: sampling for the next step begins before
    # the update ends, with two units and not across the checkpoints after steps 5 and 10.
    ahead = [b[0] < a[1] for a, b in zip(spans["update"], spans["rollouts"][1:])]
    check(name + (": sampling does not wait for updates" if two else ": one follows the other"), any(ahead) == bool(two) and
          not ahead[4] and not ahead[9] and (two or objects(r)[-1]["overlap_ms"] == 0) and len(spans["update"]) ==
          len(spans["rollouts"]) == 12, f"{ahead} {r.stdout[-300:]}")
    shutil.rmtree("all")
    shutil.rmtree("killed")

QUICK = [*BASE, "--steps", "1", "--json", "-o"]
r = grpo(*QUICK, "pattern", "--reward", "pattern:^[0-9]")
check("a pattern that always matches", r.returncode == 0 and objects(r)[0]["reward"] == 1, r.stdout + r.stderr)
r = grpo(*QUICK, "length", "--reward", "length:4")
check("a length", r.returncode == 0 and abs(objects(r)[0]["reward"] - 0.25) < 0.3, r.stdout + r.stderr)
r = grpo(*QUICK, "exact", "--reward", "exact")
check("expected answers", r.returncode == 0 and objects(r)[0]["reward"] < 0.1, r.stdout + r.stderr)

# The program answers 64 lines well, which is two steps with a checkpoint each, and then fails.
BAD = {"ends": ("sys.exit(3)", 1, "ended with 3 after 0 of 32"), "is killed": ("os.kill(os.getpid(), 9)", 1, "ended by signal 9"),
       "hangs": ("time.sleep(60)", 1, "no number for answer 1 within 2 s"), "writes words": ("print('good', flush=True)", 4, "good"),
       "writes nan": ("print('nan', flush=True)", 4, "nan"), "writes 1e9": ("print(1e9, flush=True)", 4, "1000000000.0"),
       "writes an empty line": ("print(flush=True)", 4, "is no number"),
       "writes no lines": ("print('1' * 10000, end='', flush=True)", 4, "is no number"),
       "writes too much": ("print('1\\n' * 40, flush=True)", 4, "is no number")}
for name, (statement, code, words) in BAD.items():
    with open("bad.py", "w") as f:
        f.write("import os, sys, time\nfor i, line in enumerate(sys.stdin):\n    if i < 64:\n        print(i % 3, flush=True)\n"
                f"    else:\n        {statement}\n")
    r = grpo(*BASE, "--checkpoint", "1", "--steps", "5", "-o", "bad", "--reward", "program:exec " + sys.executable + " -SE bad.py",
              *(["--reward-timeout", "2"] if name == "hangs" else []))
    check("a program that " + name, r.returncode == code and words in r.stderr and "step 3: " in r.stderr and
          "the checkpoint of step 2 is kept" in r.stderr and len(r.stderr.strip().splitlines()) == 1, f"{r.returncode} {r.stderr}")
    check("... its checkpoint is there", os.path.exists("bad/checkpoint.state") and
          os.path.exists("bad/adapter_model.safetensors"))
    shutil.rmtree("bad", ignore_errors=True)
with open("bad.py", "w") as f:
    f.write("import os, sys, time\nfor i, line in enumerate(sys.stdin):\n    if i < 64:\n        print(i % 3, flush=True)\n"
            "    else:\n        os.kill(os.getppid(), 2)\n        time.sleep(600)\n")
r = grpo(*BASE, "--steps", "5", "-o", "bad", "--reward", "program:exec " + sys.executable + " bad.py", "--reward-timeout", "600")
check("^C does not wait for a program, and keeps the steps before", r.returncode == 130 and "step 2 is kept" in r.stderr and
      os.path.exists("bad/checkpoint.state"), f"{r.returncode} {r.stderr}")
shutil.rmtree("bad", ignore_errors=True)
for args, code, words in ((["--reward", "program:no_such_program_here"], 1, "ended with 127"), (["--reward", "pattern:("], 2, "pattern"),
                          (["--reward", "length:0"], 2, "length"), (["--reward", "beauty"], 2, "use pattern"),
                          ([], 2, "--reward missing"), (["--reward", "exact", "--full"], 2, "--full"),
                          (["--reward", "exact", "--answer-tokens", "32"], 2, "no place"),
                          (["--reward", "exact", "--answer-tokens", "29"], 5, "line 3"),
                          (["--reward", "exact", "--rollout-unit", "nothing"], 3, "nothing")):
    r = grpo(*BASE, "--steps", "1", *args, "-o", "bad")
    check(" ".join(args) + f" ends with {code}", r.returncode == code and words in r.stderr, f"{r.returncode} {r.stderr}")
BROKEN = {"not JSON": ("{", 4), "no prompt": ('{"text":"x"}', 4), "an answer that is no text": ('{"tokens":[1],"answer":2}', 4),
          "no tokens": ('{"tokens":[]}', 4), "a text without a tokenizer": ('{"prompt":"x"}', 3),
          "messages without a template": ('{"messages":[]}', 3), "nothing": ("", 4)}
for name, (line, code) in BROKEN.items():
    open("broken.jsonl", "w").write(line)
    r = grpo(*BASE, "--data", "broken.jsonl", "--steps", "1", "--reward", "length:4", "-o", "bad")
    check(name + " is refused", r.returncode == code and ("line 1" in r.stderr or not line), f"{r.returncode} {r.stderr}")
finish()
