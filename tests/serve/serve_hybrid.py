#!/usr/bin/env python3
"""A chat of 20 turns on a hybrid model (DeltaNet, whose states cannot be cut): each turn reads its new tokens only, an edit reads at most one
chunk more, also after a restart with the store on disk. SPDX-License-Identifier: MIT"""
import shutil
from servetest import *

# The tiny Qwen3.5 of the goldens, with an embedding for the bytes and special tokens of the tiny tokenizer.
golden, folder = os.path.join(source, "tests/golden/tiny/qwen3_5"), os.path.join(top.name, "hybrid")
shutil.copytree(tiny_model(), folder)
data = open(os.path.join(golden, "model.safetensors"), "rb").read()
n = struct.unpack("<Q", data[:8])[0]
head, body = json.loads(data[8:8 + n]), data[8 + n:]
offset, parts, out = 0, [], {}
for name, t in head.items():
    if name == "__metadata__": continue
    part = body[slice(*t["data_offsets"])]
    if name.endswith("embed_tokens.weight"): part, t["shape"] = (part * 5)[:259 * 64], [259, 32] # columns of two bytes
    out[name] = {**t, "data_offsets": [offset, offset + len(part)]}
    parts.append(part)
    offset += len(part)
text = json.dumps(out).encode()
text += b" " * (-len(text) % 8)
write(folder, "model.safetensors", struct.pack("<Q", len(text)) + text + b"".join(parts))
config = json.load(open(os.path.join(golden, "config.json")))
config["text_config"].update(vocab_size=259, max_position_embeddings=2048, bos_token_id=257, eos_token_id=258, pad_token_id=256)
write(folder, "config.json", json.dumps(config))

turns, unread, sizes = [{"role": "user", "content": "Let us count. " * 20}], [], []
start = ("-m", folder, "--unit", "cpu", "-t", "1", "--store", "on", "--chunk", "64")


def ask(turns):
    r = s.post("/v1/chat/completions", {"messages": turns, "max_tokens": 8, "temperature": 0, "ignore_eos": True})
    expect("an answer", r[0] == 200, r)
    return r[1]["choices"][0]["message"]["content"], r[1]["usage"], r[1]["segue"]


s = Server(*start)
for i in range(20):
    if i == 10: # a restart in between
        s.stop()
        s = Server(*start)
    answer, usage, report = ask(turns)
    unread.append(usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"])
    sizes.append(usage["prompt_tokens"])
    turns += [{"role": "assistant", "content": answer}, {"role": "user", "content": f"And {i}?"}]
grown = [b - a for a, b in zip(sizes, sizes[1:])]
expect("each turn reads at most its new tokens", all(u <= g for u, g in zip(unread[1:], grown)), list(zip(unread[1:], grown)))
edited = turns[:-1] + [{"role": "user", "content": "And so on?"}]
_, usage, report = ask(edited)
edit_unread = usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
expect("an edit of the last turn reads one chunk more at most", edit_unread <= max(grown) + 64, (edit_unread, report))
s.stop()
done()
