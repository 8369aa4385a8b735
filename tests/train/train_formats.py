#!/usr/bin/env python3
"""train_formats.py SEGUE TINY: what `segue train` writes is loaded by peft, transformers and gguf, and gives their
log-probabilities. Says skipped without those packages.
"""
import importlib.util, json
from traintest import *

TINY = FILES
missing = [name for name in ("torch", "transformers", "peft", "gguf") if not importlib.util.find_spec(name)]


with open("lines.jsonl", "w") as f:
    for _ in range(12):
        f.write(json.dumps({"tokens": [3, 1, 4, 1, 5, 9, 2, 6] * 3}) + "\n")
TRAIN = ["train", "--data", "lines.jsonl", "--steps", "6", "--unit", "cpu", "-c", "24", "-m"]
check("an adapter", segue(*TRAIN, TINY, "-o", "peft", "--rank", "4", "--lr", "0.02").returncode == 0)
check("a model", segue(*TRAIN, TINY, "-o", "full", "--full", "--lr", "0.003").returncode == 0)
check("a GGUF model", segue(*TRAIN, TINY + "/model.gguf", "-o", "gguf", "--full", "--lr", "0.003").returncode == 0)


def top(*args):
    r = segue("run", "--ids", "3,1,4,1,5", "-n", "1", "--greedy", "--logprobs", "5", "--json", "--unit", "ref", *args)
    return {t["id"]: t["logprob"] for t in json.loads(r.stdout)["logprobs"][0]["top"]}


if "gguf" not in missing:
    import gguf

    mine, base = (gguf.GGUFReader(p) for p in ("gguf/model.gguf", TINY + "/model.gguf"))
    check("gguf reads the model: names and shapes of the base", {t.name: list(t.shape) for t in mine.tensors} ==
          {t.name: list(t.shape) for t in base.tensors})
    changed = [t.name for t, b in zip(mine.tensors, base.tensors) if t.data.tobytes() != b.data.tobytes()]
    check("... with other weights, all finite", len(changed) > 10 and all((t.data == t.data).all() for t in mine.tensors))
if not {"torch", "transformers"} & set(missing):
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)

    def distance(model, want):
        with torch.no_grad():
            mine = model(input_ids=torch.tensor([[3, 1, 4, 1, 5]])).logits[0, -1].float().log_softmax(-1)
        return max(abs(mine[i].item() - x) for i, x in want.items())

    def load(path):
        return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)

    check("transformers gives the log-probabilities of the model", distance(load("full"), top("-m", "full")) < 1e-5)
    if "peft" not in missing:
        from peft import PeftModel

        tuned = PeftModel.from_pretrained(load(TINY), "peft")
        check("peft gives those of the adapter", distance(tuned, top("-m", TINY, "--lora", "peft")) < 1e-5)
        check("... which are not those of the base", distance(tuned, top("-m", TINY)) > 1e-2)
for name in missing:
    print(f"SKIP train_formats: the checks with {name}, which is not installed")
finish()
