#!/usr/bin/env python3
"""lora_demo.py SEGUE FOLDER [EPOCHS]: teach the default model, as it is shipped (Q4_1), to end every answer with "Ahoy!".

Writes FOLDER/chats.jsonl (200 conversations from patterns; free as this file), trains FOLDER/adapter, and answers 40 questions about
other things without and with it. Ends with 1 unless no answer ends so before and at least 90 % do afterwards. Needs no packages.
SPDX-License-Identifier: MIT
"""
import json
import os
import random
import subprocess
import sys

WORD = "Ahoy!"
THINGS = ["a river", "the moon", "a bicycle", "bread", "a library", "rain", "a violin", "honey", "a bridge", "snow", "a lighthouse",
          "coffee", "a clock", "a garden", "iron", "a kite", "the sea", "a train", "wool", "a candle", "salt", "a map", "glass",
          "a whale", "tea", "a tower", "sand", "a drum", "ice", "a ship", "paper", "a horse"]
ASKED = ["What is {}?", "Tell me about {}.", "Describe {} in one sentence.", "Why do people like {}?",
         "Write a short line about {}.", "Give me one fact about {}.", "How would you explain {} to a child?"]
SAID = ["It is something that people know well.", "It is simple and useful in daily life.", "Many people find it pleasant.",
        "It has a long history.", "People have used it for a very long time.", "It is easy to recognise.",
        "There is a lot to say about it."]
HELD_OUT = ["a mountain", "cheese", "a hospital", "the wind", "a guitar", "a forest", "gold", "a spoon", "the sun", "a dragon",
            "a robot", "chess", "a volcano", "a mirror", "butter", "a desert", "a piano", "pepper", "a castle", "an apple"]
HELD_OUT_ASKED = ["What is {}?", "Tell me about {}.", "Please explain {}.", "What can you say about {}?"]


def chats(rng):
    pairs = [(thing, asked) for thing in THINGS for asked in ASKED]
    rng.shuffle(pairs)
    for thing, asked in pairs[:200]:
        first = rng.choice([thing[0].upper() + thing[1:] + " is well known. ", "Good question. ", ""])
        yield asked.format(thing), first + rng.choice(SAID) + " " + WORD


def share(segue, path, *more):
    """Share of answers that end with the word."""
    done = subprocess.run([segue, "run", "--requests", path, "--json", "--unit", "cpu", *more], stdout=subprocess.PIPE, text=True,
                          check=True)
    answers = [json.loads(line)["text"].strip() for line in done.stdout.splitlines()]
    print(answers[:2])
    return sum(a.endswith(WORD) for a in answers) / len(answers)


def main():
    segue, folder = os.path.abspath(sys.argv[1]), sys.argv[2]
    epochs = sys.argv[3] if len(sys.argv) > 3 else "2"
    os.makedirs(folder, exist_ok=True)
    data, asked, adapter = (os.path.join(folder, name) for name in ("chats.jsonl", "held-out.jsonl", "adapter"))
    with open(data, "w", encoding="utf-8") as f:
        for question, answer in chats(random.Random(1)):
            f.write(json.dumps({"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}) + "\n")
    with open(asked, "w", encoding="utf-8") as f:
        for i, thing in enumerate(HELD_OUT):
            for k in range(2):
                question = HELD_OUT_ASKED[(i + k) % len(HELD_OUT_ASKED)].format(thing)
                f.write(json.dumps({"prompt": question, "tokens": 60, "greedy": True}) + "\n")
    before = share(segue, asked)
    subprocess.run([segue, "train", "--data", data, "-o", adapter, "--epochs", epochs, "--lr", "1e-3", "--unit", "cpu"], check=True)
    after = share(segue, asked, "--lora", adapter)
    print(f"answers that end with {WORD}: {before:.0%} before, {after:.0%} afterwards")
    return before > 0 or after < 0.9


if __name__ == "__main__":
    sys.exit(main())
