#!/usr/bin/env python3
"""train_formats.py SEGUE TINY: what `segue train` writes is loaded by peft, transformers, mlx-lm and gguf, and gives their
log-probabilities. Says skipped without those packages.
"""
import importlib.util, json
from traintest import *

TINY = FILES
missing = [name for name in ("torch", "transformers", "peft", "gguf", "mlx_lm") if not importlib.util.find_spec(name)]


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
if "mlx_lm" not in missing:
    import mlx.core as mx
    from pathlib import Path
    from mlx_lm.tuner.utils import load_adapters
    from mlx_lm.utils import load_model

    def mlx_distance(model, want):
        logits = model(mx.array([[3, 1, 4, 1, 5]]))[0, -1].astype(mx.float32)
        mine = (logits - mx.logsumexp(logits)).tolist()
        return max(abs(mine[i] - x) for i, x in want.items())

    mx.set_default_device(mx.cpu)
    check("an adapter for MLX", segue(*TRAIN, TINY, "-o", "mlx", "--rank", "4", "--lr", "0.02", "--adapter-form", "mlx").returncode == 0)
    os.mkdir("alone")  # beside the model there are files of goldens, which mlx-lm would read
    shutil.copy(os.path.join(TINY, "model.safetensors"), "alone")
    config = json.load(open(os.path.join(TINY, "config.json")))
    with open("alone/config.json", "w") as f:  # mlx-lm does not look into rope_parameters
        json.dump({**config, "rope_theta": config["rope_parameters"]["rope_theta"]}, f)
    plain = load_model(Path("alone"))[0]
    plain.set_dtype(mx.float32)
    far = mlx_distance(plain, top("-m", TINY, "--lora", "mlx"))
    near = mlx_distance(load_adapters(plain, "mlx"), top("-m", TINY, "--lora", "mlx"))
    check("mlx-lm gives the log-probabilities of the adapter", near < 1e-4 and far > 1e-2, f"{near} {far}")
for name in missing:
    print(f"SKIP train_formats: the checks with {name}, which is not installed")
finish()
