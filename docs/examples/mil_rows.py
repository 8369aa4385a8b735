#!/usr/bin/env python3
"""The embedded rows of a prompt, which engines cannot look up, for mil_ports.py; and the best next token of what came back.

    python3 docs/examples/mil_rows.py MODEL.gguf 504,3575,282 rows.safetensors          ids as `segue tokenize` gives them
    python3 docs/examples/mil_rows.py MODEL.gguf out.safetensors                        prints the token

Needs the packages gguf and safetensors. A model with an RMS norm last whose head is its table of rows. SPDX-License-Identifier: MIT"""
import sys
import gguf, numpy as np
from safetensors.numpy import load_file, save_file

reader = gguf.GGUFReader(sys.argv[1])
tensors = {t.name: t for t in reader.tensors}
table = gguf.dequantize(tensors["token_embd.weight"].data, tensors["token_embd.weight"].tensor_type)
if len(sys.argv) == 4:
    save_file({"x": np.ascontiguousarray(table[[int(i) for i in sys.argv[2].split(",")]], np.float32)}, sys.argv[3])
else:
    last = load_file(sys.argv[2])["y"][-1]
    last = last / np.sqrt((last * last).mean() + 1e-5) * np.array(tensors["output_norm.weight"].data)
    print(int((table @ last).argmax()))
