#!/usr/bin/env python3
"""make_train.py [FAMILY...]: goldens of training from torch autograd, for the tiny checkpoints in tests/golden/tiny.

Two sequences of unequal length; fp32. Writes tests/golden/train/FAMILY.txt: `loss SUM LABELLED`; for every parameter
`grad NAME NORM V0 V1 V2` with three values at 0, n/3, 2n/3 of the flat gradient of the summed loss; then ten steps of AdamW
(lr 1e-3, weight decay 0.1 on matrices, norm clipped to 1): `step I LOSS NORM`. Needs torch and transformers.
"""
import os
import sys
import torch
from transformers import AutoModelForCausalLM

HERE = os.path.dirname(os.path.abspath(__file__))
FAMILIES = ["gpt2", "llama", "llama3", "llama_bias", "mistral", "qwen2", "qwen3", "gemma3", "qwen3_5", "qwen3_5_asym"]
LENGTHS = (23, 14)


def sequences(vocab):
    state, out = 7, []
    for length in LENGTHS:
        tokens = []
        for _ in range(length):
            state = (state * 1103515245 + 12345) % (1 << 31)
            tokens.append((state >> 8) % vocab)
        out.append(tokens)
    return out


def summed_loss(model, batch):
    total = 0
    for tokens in batch:
        ids = torch.tensor([tokens])
        logits = model(input_ids=ids, use_cache=False).logits[0, :-1].float()
        total = total + torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum")
    return total


def make(family):
    model = AutoModelForCausalLM.from_pretrained(os.path.join(HERE, "tiny", family), dtype=torch.float32,
                                                 attn_implementation="eager")
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    batch = sequences(model.get_output_embeddings().weight.shape[0])
    labelled = sum(len(tokens) - 1 for tokens in batch)
    loss = summed_loss(model, batch)
    loss.backward()
    lines = [f"loss {loss.item():.8g} {labelled}"]
    params = {name: p for name, p in model.named_parameters() if p.grad is not None}
    for name, p in params.items():
        g = p.grad.flatten()
        lines.append(f"grad {name} {g.norm().item():.7g} " + " ".join(f"{g[len(g) * i // 3].item():.7g}" for i in range(3)))
    taps = [n for n in params if "conv1d" in n]
    decay = [p for n, p in params.items() if p.dim() > 1 and n not in taps]
    rest = [p for n, p in params.items() if not (p.dim() > 1 and n not in taps)]
    adam = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=1e-3)
    for step in range(10):
        adam.zero_grad()
        loss = summed_loss(model, batch) / labelled
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(list(params.values()), 1.0)
        adam.step()
        lines.append(f"step {step} {loss.item():.8g} {norm.item():.7g}")
    with open(os.path.join(HERE, "train", family + ".txt"), "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    print(family, lines[0], lines[-1])


for name in sys.argv[1:] or FAMILIES:
    try:
        make(name)
    except Exception as error:  # one family must not hide the others
        print(name, "failed:", repr(error)[:300])
