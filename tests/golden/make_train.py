#!/usr/bin/env python3
"""make_train.py [FAMILY...]: goldens of training from torch autograd, for the tiny checkpoints in tests/golden/tiny.

Two sequences of unequal length; fp32. Writes tests/golden/train/FAMILY.txt: `loss SUM LABELLED`; for every parameter
`grad NAME NORM V0 V1 V2` with three values at 0, n/3, 2n/3 of the flat gradient of the summed loss; then ten steps of AdamW
(lr 1e-3, weight decay 0.1 on matrices, norm clipped to 1): `step I LOSS NORM`. tests/golden/train/lora_FAMILY.txt has the same for
a LoRA adapter of peft (rank 4, alpha 8, all linear layers but the head) over frozen weights, with A and B set by `start_values`;
names end in .lora_A or .lora_B. Needs torch, transformers and peft.
"""
import os
import sys
import peft
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


def load(family):
    model = AutoModelForCausalLM.from_pretrained(os.path.join(HERE, "tiny", family), dtype=torch.float32,
                                                 attn_implementation="eager")
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


def start_values(name, p):
    """Multiples of 1/4096, which are exact, from the name behind the prefix of the model; as tests/train/goldens.c."""
    state = 1
    for byte in name[name.find("layers." if "layers." in name else "h."):].encode():
        state = (state * 31 + byte) % (1 << 31)
    values = []
    for _ in range(p.numel()):
        state = (state * 1103515245 + 12345) % (1 << 31)
        values.append(((state >> 8) % 1024 - 512) / 4096)
    p.data.copy_(torch.tensor(values, dtype=torch.float32).reshape(p.shape))


def with_adapter(model):
    """The model with an adapter, and its parameters by the name of the weight."""
    config = peft.LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")
    model = peft.get_peft_model(model, config)
    params = {}
    for name, p in model.named_parameters():
        if p.requires_grad:
            module, part = name.removeprefix("base_model.model.").removesuffix(".default.weight").rsplit(".", 1)
            params[f"{module}.weight.{part}"] = p
            start_values(f"{module}.weight.{part}", p)
    return model, params


def make(family, adapter):
    model, params = load(family), None
    batch = sequences(model.get_output_embeddings().weight.shape[0])
    if adapter:
        model, params = with_adapter(model)
    labelled = sum(len(tokens) - 1 for tokens in batch)
    loss = summed_loss(model, batch)
    loss.backward()
    lines = [f"loss {loss.item():.8g} {labelled}"]
    params = params or {name: p for name, p in model.named_parameters() if p.grad is not None}
    for name, p in params.items():
        g = p.grad.flatten()
        lines.append(f"grad {name} {g.norm().item():.7g} " + " ".join(f"{g[len(g) * i // 3].item():.7g}" for i in range(3)))
    taps = [n for n in params if "conv1d" in n]
    decay = [p for n, p in params.items() if p.dim() > 1 and n not in taps]
    rest = [p for n, p in params.items() if not (p.dim() > 1 and n not in taps)]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    adam = torch.optim.AdamW([g for g in groups if g["params"]], lr=1e-3)
    for step in range(10):
        adam.zero_grad()
        loss = summed_loss(model, batch) / labelled
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(list(params.values()), 1.0)
        adam.step()
        lines.append(f"step {step} {loss.item():.8g} {norm.item():.7g}")
    with open(os.path.join(HERE, "train", ("lora_" if adapter else "") + family + ".txt"), "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    print(family, "adapter" if adapter else "weights", lines[0], lines[-1])


for name in sys.argv[1:] or FAMILIES:
    for lora in (False, True):
        try:
            make(name, lora)
        except Exception as error:  # one family must not hide the others
            print(name, "failed:", repr(error)[:300])
