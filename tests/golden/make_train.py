#!/usr/bin/env python3
"""make_train.py [FAMILY...]: goldens of training from torch autograd, for the tiny checkpoints in tests/golden/tiny.

Two sequences of unequal length; fp32. Writes tests/golden/train/FAMILY.txt: `loss SUM LABELLED`; for every parameter
`grad NAME NORM V0 V1 V2` with three values at 0, n/3, 2n/3 of the flat gradient of the summed loss; then ten steps of AdamW
(lr 1e-3, weight decay 0.1 on matrices, norm clipped to 1): `step I LOSS NORM`. tests/golden/train/lora_FAMILY.txt has the same for
a LoRA adapter of peft (rank 4, alpha 8, all linear layers but the head) over frozen weights, with A and B set by `start_values`;
names end in .lora_A or .lora_B. tests/golden/train/policy_FAMILY.txt: `loss` and `grad` of the loss of GRPO (`policy_loss`) instead,
of all weights. Needs torch, transformers and peft.
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
    import peft  # pylint: disable=import-outside-toplevel  # the other goldens need none
    config = peft.LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")
    model = peft.get_peft_model(model, config)
    params = {}
    for name, p in model.named_parameters():
        if p.requires_grad:
            module, part = name.removeprefix("base_model.model.").removesuffix(".default.weight").rsplit(".", 1)
            params[f"{module}.weight.{part}"] = p
            start_values(f"{module}.weight.{part}", p)
    return model, params


def policy_loss(model, batch):
    """Clipped policy gradient (0.2) with a KL term (0.3). Advantages, weights, and the distances of the old and the reference
    log-probabilities from those of the model are functions of the position; as tests/train/goldens.c. Ratios are 1, 1.16, 0.86
    (inside) and 1.35, 0.74 (beyond the bounds)."""
    total, first = 0, 0
    for tokens in batch:
        ids = torch.tensor([tokens])
        logp = model(input_ids=ids, use_cache=False).logits[0, :-1].float().log_softmax(-1)
        logp = logp.gather(1, ids[0, 1:, None])[:, 0]
        i = torch.arange(first, first + len(tokens) - 1)
        advantage, weight = ((i * 7) % 11 - 5) / 5, (1 + i % 3) / 64
        old, reference = logp.detach() + (i % 5 - 2) * 0.15, logp.detach() + (i % 7 - 3) * 0.2
        ratio, q = (logp - old).exp(), reference - logp
        objective = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        total = total + (weight * (-objective + 0.3 * (q.exp() - q - 1))).sum()
        first += len(tokens)
    return total


def grad_lines(params):
    for name, p in params.items():
        g = p.grad.flatten()
        yield f"grad {name} {g.norm().item():.7g} " + " ".join(f"{g[len(g) * i // 3].item():.7g}" for i in range(3))


def write(name, lines):
    with open(os.path.join(HERE, "train", name + ".txt"), "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    print(name, lines[0], lines[-1])


def make_policy(family):
    model = load(family)
    loss = policy_loss(model, sequences(model.get_output_embeddings().weight.shape[0]))
    loss.backward()
    params = {name: p for name, p in model.named_parameters() if p.grad is not None}
    write("policy_" + family, [f"loss {loss.item():.8g} {sum(LENGTHS) - len(LENGTHS)}", *grad_lines(params)])


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
    lines += grad_lines(params)
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
    write(("lora_" if adapter else "") + family, lines)


for name in sys.argv[1:] or FAMILIES:
    for what in ("all", "lora", "policy"):
        try:
            if what == "policy":
                make_policy(name)
            else:
                make(name, what == "lora")
        except Exception as error:  # one family must not hide the others
            print(name, "failed:", repr(error)[:300])
