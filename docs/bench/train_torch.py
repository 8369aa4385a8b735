#!/usr/bin/env python3
"""Training speed of PyTorch, to set beside `segue train` on the same card.

    train_torch.py gpt2 [--batch 32] [--steps 3] [--no-compile]     124M, 1,024 tokens, updates of 524,288 tokens
    train_torch.py lora [--batch 4] [--steps 6] [--dtype bf16]      Qwen3.5-0.8B with a rank-8 pair on every linear layer, peft

Random weights and tokens. gpt2: bf16 autocast over fp32 weights, flash attention, torch.compile, fused AdamW, vocabulary padded to
50,304. Prints tokens per second of the last steps, without the first one.
"""
import argparse, time
import torch
from torch import nn
from torch.nn import functional as F

T = 1024


class Block(nn.Module):
    def __init__(self, d=768, heads=12):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.o, self.up, self.down = nn.Linear(d, 3 * d), nn.Linear(d, d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(self.n1(x)).split(d, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.n2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self, vocab=50304, d=768, layers=12):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, d), nn.Embedding(T, d)
        self.blocks, self.n = nn.ModuleList(Block(d) for _ in range(layers)), nn.LayerNorm(d)
        for p in self.parameters():
            if p.dim() == 2: nn.init.normal_(p, std=0.02)

    def forward(self, ids, labels):
        x = self.wte(ids) + self.wpe.weight[: ids.shape[1]]
        for b in self.blocks: x = b(x)
        return F.cross_entropy(F.linear(self.n(x), self.wte.weight).flatten(0, 1).float(), labels.flatten())


def gpt2(a):
    torch.set_float32_matmul_precision("high")
    model = GPT2().cuda()
    step = model if a.no_compile else torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    micro = 524288 // (a.batch * T)
    data = torch.randint(0, 50257, (micro, a.batch, T + 1), device="cuda")
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        for i in range(a.steps + 1):
            torch.cuda.synchronize()
            start = time.time()
            for m in range(micro):
                with torch.autocast("cuda", torch.bfloat16): loss = step(data[m, :, :-1], data[m, :, 1:]) / micro
                loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            torch.cuda.synchronize()
            took = time.time() - start
            print(f"gpt2 step {i}: {took:.3f} s, {micro * a.batch * T / took:.0f} tok/s, loss {loss.item() * micro:.4f}", flush=True)
    print(f"gpt2 memory {torch.cuda.max_memory_allocated() >> 20} MB")


def lora(a):
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM
    from transformers.models.qwen3_5 import Qwen3_5TextConfig
    c = Qwen3_5TextConfig(vocab_size=248320, hidden_size=1024, intermediate_size=3584, num_hidden_layers=24, num_attention_heads=8,
                          num_key_value_heads=2, head_dim=256, linear_num_key_heads=16, linear_num_value_heads=16,
                          linear_key_head_dim=128, linear_value_head_dim=128, tie_word_embeddings=True)
    dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[a.dtype]
    torch.set_float32_matmul_precision("high")
    model = AutoModelForCausalLM.from_config(c, dtype=dtype).cuda()
    targets = sorted({n.split(".")[-1] for n, m in model.named_modules() if isinstance(m, nn.Linear)} - {"lm_head"})
    model = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules=targets))
    if a.compile: model = torch.compile(model)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4, fused=True)
    ids = torch.randint(0, 248320, (a.batch, T), device="cuda")
    for i in range(a.steps + 1):
        torch.cuda.synchronize()
        start = time.time()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        took = time.time() - start
        print(f"lora {a.dtype} step {i}: {took:.3f} s, {a.batch * T / took:.0f} tok/s", flush=True)
    print(f"lora memory {torch.cuda.max_memory_allocated() >> 20} MB")


ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
ap.add_argument("what", choices=["gpt2", "lora"]); ap.add_argument("--batch", type=int, default=32)
ap.add_argument("--steps", type=int, default=3); ap.add_argument("--dtype", default="bf16")
ap.add_argument("--no-compile", action="store_true"); ap.add_argument("--compile", action="store_true")
a = ap.parse_args()
{"gpt2": gpt2, "lora": lora}[a.what](a)
