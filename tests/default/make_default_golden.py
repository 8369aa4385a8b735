#!/usr/bin/env python3
"""Goldens of the default model, made by transformers from the very GGUF (dequantised to F32), never by segue.

    make_default_golden.py MODEL.gguf OUT.json        (needs torch, transformers, gguf)

OUT holds, for a few prompts: token ids, the log-probability of each next token, the five best ids and log-probabilities
after the last one, and 24 greedy tokens with the gap between the best two logits at each step.
"""
import json, os, sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

PROMPTS = [
    "The capital of France is",
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n",
    "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n",
    "1 2 3 4 5 6 7 8 9 10 11 12",
    "Überraschung: naïve café, 東京, и мир 🙂",
]


def main():
    folder, name = os.path.split(os.path.abspath(sys.argv[1]))
    tok = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32).eval()
    cases = []
    for text in PROMPTS:
        ids = tok(text, add_special_tokens=False).input_ids
        with torch.no_grad():
            logp = torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1)
            best = torch.topk(logp[-1], 5)
            greedy, gaps, seq = [], [], list(ids)
            for _ in range(24):
                logits = model(torch.tensor([seq])).logits[0, -1]
                two = torch.topk(logits, 2).values
                seq.append(int(logits.argmax()))
                greedy.append(seq[-1])
                gaps.append(round(float(two[0] - two[1]), 5))
        cases.append(dict(text=text, ids=ids, logprobs=[round(float(logp[i, ids[i + 1]]), 6) for i in range(len(ids) - 1)],
                          best=[[int(i), round(float(v), 6)] for i, v in zip(best.indices, best.values)],
                          greedy=greedy, gaps=gaps))
    with open(sys.argv[2], "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n")


main()
