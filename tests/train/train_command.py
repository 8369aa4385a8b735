#!/usr/bin/env python3
"""train_command.py SEGUE TINY [UNIT]: the command `segue train` on a tiny checkpoint, TINY/llama and its neighbours.

The loss falls; a run that was killed continues with the bits of one that was not; the adapter is read by `run --lora` and has
PEFT's names and shapes; all weights are written as a model that gives the loss they had; a pack of sequences gives their losses;
bad data is refused with file and line, and nothing is lost.
"""
import json
import resource
import struct
from traintest import *

TINY = FILES
UNIT = sys.argv[3] if len(sys.argv) > 3 else "cpu"


def read_safetensors(path):
    """Names, shapes and bytes of a file; the format is a length, a JSON header and the data."""
    data = open(path, "rb").read()
    n = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + n])
    return {k: (v["shape"], data[8 + n + v["data_offsets"][0] : 8 + n + v["data_offsets"][1]])
            for k, v in header.items() if k != "__metadata__"}


def result(r):
    """The last object of --json: one per update comes before it."""
    return json.loads((r.stdout.splitlines() or ["{}"])[-1])


def losses(path):
    return [float(line.split(",")[1]) for line in open(path).read().splitlines()[1:]]


with open("lines.jsonl", "w") as f:
    for i in range(12):
        f.write(json.dumps({"tokens": [3, 1, 4, 1, 5, 9, 2, 6] * (2 + i % 3)}) + "\n")
BASE = ["train", "-m", TINY, "--data", "lines.jsonl", "--batch", "2", "-c", "24", "--rank", "4", "--lr", "0.02", "--held-out", "20",
        "--unit", UNIT]

r = segue(*BASE, "-o", "whole", "--steps", "12", "--checkpoint", "4", "--metrics", "whole.csv", "--json",
          "--html", "whole.html")
check("a run ends well", r.returncode == 0, r.stderr)
o = result(r)
lines = [json.loads(line) for line in r.stdout.splitlines()]
check("an object per update", [x.get("step") for x in lines[:-1]] == list(range(1, 13)) and
      all(x["tok_s"] > 0 and x["grad_norm"] > 0 and x["ms"] > 0 for x in lines[:-1]), r.stdout)
check("held-out losses at the checkpoints", [i for i, x in enumerate(lines[:-1], 1) if "val_loss" in x] == [4, 8, 12], r.stdout)
check("it counts", o["steps"] == 12 and o["sequences"] == 12 and o["held_out"] == 2 and o["cut"] > 0, r.stdout)
check("the share of the roof", UNIT.startswith("cuda") or (o["roof_gflops"] > 0 and all(
      abs(x["roof_share"] - x["gflops"] / o["roof_gflops"]) < 1e-3 * x["roof_share"] for x in lines[:-1])), r.stdout)
check("the held-out loss falls", o["held_out_loss"] < 0.9 * o["held_out_loss_before"], r.stdout)
curve = losses("whole.csv")
page = open("whole.html").read()
check("a page that loads nothing", page.count("<svg") == 4 and "<script" not in page and "http" not in page.replace(
    "http://www.w3.org", ""), page[:300])
check("one line per update", len(curve) == 12 and curve[-1] < 0.9 * curve[0], str(curve))

adapter = read_safetensors("whole/adapter_model.safetensors")
config = json.load(open("whole/adapter_config.json"))
pairs = {k[: -len(".lora_A.weight")] for k in adapter if k.endswith(".lora_A.weight")}
check("names of PEFT", pairs and all(p.startswith("base_model.model.model.layers.") and p + ".lora_B.weight" in adapter for p in pairs))
check("A is [rank, columns], B [rows, rank]",
      all(adapter[p + ".lora_A.weight"][0][0] == 4 and adapter[p + ".lora_B.weight"][0][1] == 4 for p in pairs))
check("its configuration", config["r"] == 4 and config["lora_alpha"] == 8 and "q_proj" in config["target_modules"], str(config))

RUN = ["run", "-m", TINY, "--ids", "1,2,3,4,5", "-n", "1", "--greedy", "--logprobs", "1", "--json", "--unit", "ref"]
plain, tuned = segue(*RUN), segue(*RUN, "--lora", "whole")
check("run reads the adapter", tuned.returncode == 0, tuned.stderr)
check("it changes the answer's log-probability", tuned.returncode == 0 and plain.stdout != tuned.stdout)

# The same run in the forms of MLX and GGUF: another base file, so PEFT once more for GGUF.
FORMS = {"mlx": ("llama", "mlx"), "peft-gguf": ("llama/model.gguf", "peft"), "gguf": ("llama/model.gguf", "gguf")}
for out, (model, form) in FORMS.items():
    base = os.path.join(os.path.dirname(TINY), model)
    r = segue(*BASE, "-m", base, "-o", out, "--steps", "12", "--checkpoint", "4", "--adapter-form", form)
    check(out + " is written", r.returncode == 0, r.stderr)
    FORMS[out] = segue(*RUN[:2], base, *RUN[3:], "--lora", out + ("/adapter.gguf" if form == "gguf" else ""))
    check(out + " is read", FORMS[out].returncode == 0, FORMS[out].stderr)


def choice(r):
    o = json.loads(r.stdout or "{}")
    return o.get("ids"), o.get("logprobs")


check("MLX gives the answer of PEFT", choice(FORMS["mlx"]) == choice(tuned), FORMS["mlx"].stdout + tuned.stdout)
check("GGUF gives the answer of PEFT", choice(FORMS["gguf"]) == choice(FORMS["peft-gguf"]), FORMS["gguf"].stdout)
mlx, config = read_safetensors("mlx/adapters.safetensors"), json.load(open("mlx/adapter_config.json"))
check("names and shapes of mlx-lm: x A B", mlx["model.layers.0.self_attn.q_proj.lora_a"][0][1] == 4 and
      mlx["model.layers.0.self_attn.q_proj.lora_b"][0][0] == 4 and len(mlx) == len(adapter), str(sorted(mlx)[:4]))
check("its configuration", config["fine_tune_type"] == "lora" and config["lora_parameters"]["scale"] == 2 and
      config["lora_parameters"]["rank"] == 4 and "self_attn.q_proj" in config["lora_parameters"]["keys"] and
      config["num_layers"] == len({k.split(".")[2] for k in mlx}), str(config))
# Over quantised weights: the adapter learns, and `run` gives what was trained for a higher probability with it than without.
STORED = {"q8_0": os.path.dirname(TINY) + "/llama/model-q8_0.gguf", "mlx4": os.path.dirname(TINY) + "/llama_mlx4"}
for kind in ("Q4_0", "Q4_1", "Q5_1"):
    STORED[kind] = kind + ".gguf"
    r = segue("quantize", os.path.dirname(TINY) + "/llama/model.gguf", STORED[kind], kind)
    check("quantize " + kind, r.returncode == 0, r.stderr)
for kind, base in STORED.items():
    o = result(segue(*BASE, "-m", base, "-o", "over-" + kind, "--steps", "12", "--json"))
    know = [choice(segue("run", "-m", base, "--ids", "3,1,4,1,5,9,2", "-n", "1", "--greedy", "--logprobs", "1", "--json", "--unit", "ref", *lora))
            for lora in ((), ("--lora", "over-" + kind))]
    check(f"LoRA over {kind}", o["held_out_loss"] < 0.9 * o["held_out_loss_before"] and know[1][0] == [6] and know[0] != know[1], f"{o} {know}")
r = segue(*BASE, "-o", "bad", "--adapter-form", "gguf")
check("a GGUF adapter of another model file is refused", r.returncode == 3 and not os.path.exists("bad"), r.stderr)

# Killed after a checkpoint, whatever it was doing. A line of an update that is not in the checkpoint is written again.
run_killed("killed/adapter_config.json", *BASE, "-o", "killed", "--steps", "12", "--checkpoint", "4", "--metrics", "killed.csv")
shutil.copytree("killed", "piped")
r = segue(*BASE, "-o", "killed", "--steps", "12", "--checkpoint", "4", "--metrics", "killed.csv")
check("a killed run continues", r.returncode == 0, r.stderr)
rows, killed = ([line.split(",") for line in open(n + ".csv").read().splitlines()] for n in ("whole", "killed"))
same = [0, 1, 2, 3, 4, 6, 7, 8]  # all but times and what depends on them
check("its metrics are those of the whole run, each update once", [[x[k] for k in same] for x in rows] ==
      [[x[k] for k in same] for x in killed] and all(float(a[5]) <= float(b[5]) for a, b in zip(killed[1:], killed[2:])), str(killed))
# A pipe has no earlier lines; to look for them would wait for ever.
done = json.loads(segue("state", "info", "piped/checkpoint.state", "--json").stdout)["updates"]
os.mkfifo("pipe")
reader = subprocess.Popen(["cat", "pipe"], stdout=subprocess.PIPE, text=True)
r = segue(*BASE, "-o", "piped", "--steps", "12", "--checkpoint", "4", "--metrics", "pipe")
piped = [line.split(",") for line in reader.communicate()[0].splitlines()]
check("metrics of a continued run go to a pipe", r.returncode == 0 and [x[:4] for x in piped if x[0].isdigit()] ==
      [x[:4] for x in rows[1 + done:]], f"{piped} {rows} {r.stderr}")
with open("killed.csv", "a") as f:
    f.write("13,1,1,1,9999,1,,0,0,,\n14,1")
r = segue(*BASE, "-o", "killed", "--steps", "12", "--checkpoint", "4", "--metrics", "killed.csv", "--html", "killed.html")
check("lines of updates that are not in the checkpoint are removed", r.returncode == 0 and
      open("killed.csv").read().splitlines()[-1].split(",") == killed[-1] and "before the last start" in open("killed.html").read(), r.stderr)
r = segue(*BASE, "-o", "killed", "--steps", "12", "--checkpoint", "4", "--metrics", "lines.jsonl")
check("a file of something else is no metrics", r.returncode == 4 and "first line" in r.stderr and
      open("lines.jsonl").read().startswith('{"tokens"'), r.stderr)
for name in ("checkpoint.state", "adapter_model.safetensors"):
    same = open("whole/" + name, "rb").read() == open("killed/" + name, "rb").read()
    check(name + " has the bits of the whole run", same)
info = json.loads(segue("state", "info", "whole/checkpoint.state", "--json").stdout)
slots = {s["kind"]: s for s in info["slots"]}
check("the checkpoint is a state file: values and moments are slots", info["updates"] == 12 and set(slots) == {
    "value", "moment1", "moment2"} and len(info["slots"]) == 3 * len(adapter) and slots["value"]["storage"] == "f32", str(info)[:300])
r = segue("run", "-m", TINY, "--ids", "1,2", "-n", "1", "--load", "whole/checkpoint.state")
check("it is not taken for a conversation", r.returncode != 0 and "training run" in r.stderr, r.stderr)
with open("whole/checkpoint.state", "rb") as f:
    data = bytearray(f.read())
data[info["slots"][5]["offset"] + 3] ^= 1
os.mkdir("flipped")
with open("flipped/checkpoint.state", "wb") as f:
    f.write(data)
r = segue(*BASE, "-o", "flipped", "--steps", "12", "--checkpoint", "4")
check("one flipped bit is found", r.returncode == 4 and "checksum" in r.stderr and "remove the file" in r.stderr, r.stderr)

# Another unit continues: half of the run on each, in both directions; the losses are those of one unit up to rounding.
for first, second in (("cpu", "ref"), ("ref", "cpu")):
    out = f"{first}-{second}"
    run_killed(out + "/adapter_config.json", *BASE, "--unit", first, "-o", out, "--steps", "12", "--checkpoint", "4", "--metrics", out + ".csv")
    done = json.loads(segue("state", "info", out + "/checkpoint.state", "--json").stdout)["updates"]
    r = segue(*BASE, "--unit", second, "-o", out, "--steps", "12", "--checkpoint", "4", "--metrics", out + ".csv")
    moved = losses(out + ".csv")[-(12 - done):] if done < 12 else []
    check(f"{second} continues after {done} updates of {first}", r.returncode == 0 and all(
        abs(a - b) < 1e-3 * b for a, b in zip(moved[::-1], curve[::-1])), f"{moved} {curve} {r.stderr}")

r = segue(*BASE, "-o", "one", "--steps", "12", "--checkpoint", "12", "-t", "1")
check("one thread gives the same bits", open("one/adapter_model.safetensors", "rb").read() ==
      open("whole/adapter_model.safetensors", "rb").read(), r.stderr)
r = segue(*BASE, "-o", "killed", "--steps", "13")
check("another run's checkpoint is refused", r.returncode == 4 and "other data, model or settings" in r.stderr, r.stderr)
with open("killed/checkpoint.state", "r+b") as f:
    f.truncate(1000)
r = segue(*BASE, "-o", "killed", "--steps", "12", "--checkpoint", "4")
check("a damaged checkpoint is refused", r.returncode in (1, 4), f"{r.returncode} {r.stderr}")

# All weights. What was written is opened again, and a step with rate 0 first evaluates it.
FULL = ["train", "--full", "--data", "lines.jsonl", "--batch", "4", "-c", "24", "--held-out", "20", "--unit", UNIT, "--json"]
FILES = os.path.dirname(TINY)
for form in ("llama", "llama/model.gguf", "llama/model-q8_0.gguf", "gpt2", "gemma3", "qwen3_5", "qwen3_5_asym"):
    out = "full-" + form.replace("/", "-")
    r = segue(*FULL, "-m", os.path.join(FILES, form), "-o", out, "--steps", "6", "--lr", "0.003")
    check(f"full training of {form} ends well", r.returncode == 0, r.stderr)
    o = result(r)
    check("its held-out loss falls", o["held_out_loss"] < 0.9 * o["held_out_loss_before"], r.stdout)
    r = segue(*FULL, "-m", o["path"], "-o", "again-" + out, "--steps", "1", "--lr", "0")
    again = result(r)
    check("the model has the loss of the run", again.get("held_out_loss_before") == o["held_out_loss"], f"{o} {again} {r.stderr}")
    r = segue("run", "-m", o["path"], "--ids", "3,1,4,1", "-n", "4", "--greedy", "--json", "--unit", UNIT)
    check("run opens it", r.returncode == 0 and len(json.loads(r.stdout)["ids"]) == 4, r.stderr)
model = read_safetensors("full-gpt2/model.safetensors")
check("tensors have the names and shapes of the base",
      {k: v[0] for k, v in model.items()} == {k: v[0] for k, v in read_safetensors(FILES + "/gpt2/model.safetensors").items()})

# A named shape instead of a model's: its tokenizer and vocabulary are those of -m.
SHAPE = ["train", "--full", "--random", "-m", FILES + "/llama/model.gguf", "--data", "lines.jsonl", "-c", "24", "--lr", "0.01", "--unit", UNIT,
         "--steps", "6", "--held-out", "20", "--json", "-o", "shape", "--shape"]
r = segue(*SHAPE, "3x64x4x2x96")
o = result(r)
vocab = json.load(open(TINY + "/config.json"))["vocab_size"]
check("a shape by its sizes", r.returncode == 0 and o["numbers"] == vocab * 64 + 64 + 3 * (2 * 64 + 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96) and
      o["held_out_loss"] < o["held_out_loss_before"], f"{r.stderr} {o}")
r = segue("inspect", "-m", o.get("path", ""), "--json")
check("... is what is written", r.returncode == 0 and json.loads(r.stdout)["numbers"]["layers"] == 3, r.stdout[:300] + r.stderr)
for shape, code, words in (("stories", 2, "stories15M"), ("3x60x4x2x96", 2, "multiples of 32"), ("0x64x4x2x96", 2, "give"),
                           ("3x64x4x3x96", 2, "give"), ("3x64x4x2x96x", 2, "give"), ("4294967299x64x4x2x96", 2, "give")):
    r = segue(*SHAPE, shape)
    check(f"the shape {shape} is refused", r.returncode == code and words in r.stderr, f"{r.returncode} {r.stderr}")
r = segue(*SHAPE, "stories15M", "-m", TINY)
check("the tokenizer of a folder is refused", r.returncode == 3 and "GGUF" in r.stderr, f"{r.returncode} {r.stderr}")

SLOW = [*FULL[:-1], "-m", TINY, "--lr", "0.003", "--random", "--steps", "12", "--checkpoint", "4", "-o"]
run_killed("killed-full/checkpoint.state", *SLOW, "killed-full")
first, second = segue(*SLOW, "killed-full"), segue(*SLOW, "whole-full")
check("a killed full run has the bits of the whole one", first.returncode == second.returncode == 0 and
      open("killed-full/model.safetensors", "rb").read() == open("whole-full/model.safetensors", "rb").read(), first.stderr)

# Sequences of 8, 16 and 24 tokens, up to 24 of them at once, or one by one.
SHORT = ["train", "-m", TINY, "--data", "lines.jsonl", "--batch", "6", "-c", "24", "--lr", "0.02", "--steps", "6", "--held-out",
         "0", "--unit", "ref"]
with open("lines.jsonl", "w") as f:
    for i in range(12):
        f.write(json.dumps({"tokens": [(7 * i + k * k) % 60 for k in range(8 * (1 + i % 3))]}) + "\n")
segue(*SHORT, "-o", "packed", "--metrics", "packed.csv")
r = segue(*SHORT, "-o", "single", "--metrics", "single.csv", "--no-pack")
pairs = list(zip(losses("packed.csv"), losses("single.csv")))
check("a pack gives the losses of its sequences", len(pairs) == 6 and abs(pairs[0][0] - pairs[0][1]) < 1e-6 and
      all(abs(a - b) < 1e-4 for a, b in pairs), f"{pairs} {r.stderr}")
r = segue(*SHORT, "-o", "packed", "--no-pack")
check("a packed run does not continue as a single one", r.returncode == 4, r.stderr)

# Files of tokens: numbers of 2 or 4 bytes, alone or after llm.c's header. The same row in all forms gives the same losses.
row = [(7 * i + i * i) % 60 for i in range(100)]


def header(magic, version, n):
    return struct.pack("<256i", magic, version, n, *[0] * 253)


short, long = struct.pack("<100H", *row), struct.pack("<100I", *row)
forms = {"nano.bin": short, "row.u16": short, "row.u32": long, "gpt2.bin": header(20240520, 1, 100) + short,
         "llama.bin": header(20240801, 7, 100) + long}
curves = {}
for name, data in forms.items():
    with open(name, "wb") as f:
        f.write(data)
    r = segue("train", "-m", TINY, "--data", name, "-o", "row-" + name, "-c", "24", "--steps", "3", "--held-out", "0", "--unit", UNIT,
              "--metrics", name + ".csv", "--json")
    curves[name] = losses(name + ".csv") if r.returncode == 0 else r.stderr
    check(name + ": 100 tokens are 4 sequences of 24 and one of 4", r.returncode == 0 and result(r)["sequences"] == 5, r.stderr)
check("all forms give the same losses", all(x == curves["row.u16"] and len(x) == 3 for x in curves.values()), str(curves))
hostile = {"cut.bin": (forms["gpt2.bin"][:1000], 4, "header"), "odd.u16": (short[:-1], 4, "whole number"),
           "odd.u32": (long[:-2], 4, "whole number"), "long.bin": (forms["gpt2.bin"] + b"xx", 4, "says 100 tokens"),
           "count.bin": (header(20240520, 1, -1) + short, 4, "says 4294967295 tokens"),
           "version.bin": (header(20240520, 2, 100) + short, 3, "version 2"), "none.bin": (header(20240801, 7, 0), 4, "nothing to train"),
           "vocab.u32": (long + b"\xff\xff\xff\xff", 4, "token 101 is 4294967295"), "empty.bin": (b"", 4, "nothing to train"),
           "vocab.bin": (header(20240520, 1, 101) + short + b"\xff\xff", 4, "token 101 is 65535")}
for name, (data, code, words) in hostile.items():
    with open(name, "wb") as f:
        f.write(data)
    r = segue("train", "-m", TINY, "--data", name, "-o", "bad", "--unit", UNIT)
    check(name + " is refused", r.returncode == code and words in r.stderr and not os.path.exists("bad"), f"{r.returncode} {r.stderr}")

bad = {
    "broken.jsonl": ('{"tokens":[1,2]}\n{"tokens":\n', 4, "line 2"),
    "token.jsonl": ('{"tokens":[1,99999999]}\n', 4, "line 1"),
    "negative.jsonl": ('{"tokens":[1,-1]}\n', 4, "line 1"),
    "text.jsonl": ('{"text":"one two"}\n', 3, "no tokenizer"),
    "object.jsonl": ('{"title":"x"}\n', 3, "line 1"),
    "empty.jsonl": ("", 4, "nothing to train on"),
    "text.txt": ("one two", 3, "no tokenizer"),
    "short.jsonl": ('{"tokens":[1]}\n', 4, "nothing to train on"),
}
for name, (text, code, words) in bad.items():
    open(name, "w").write(text)
    r = segue("train", "-m", TINY, "--data", name, "-o", "bad", "--unit", UNIT)
    check(name + " is refused", r.returncode == code and words in r.stderr and not os.path.exists("bad"),
          f"{r.returncode} {r.stderr}")
with open("long.jsonl", "w") as f:
    f.write('{"tokens":[1,2]}\n{"tokens":[1' + ",1" * (50 << 20) + "]}\n")
for more in ((), ("--grpo", "--reward", "length:4", "-c", "128")):
    r = segue("train", "-m", TINY, "--data", "long.jsonl", "-o", "bad", "--unit", UNIT, *more)
    check("a line of 100 MB is refused", r.returncode == 5 and "line 2: 100 MB" in r.stderr and not os.path.exists("bad"), r.stderr)
os.remove("long.jsonl")


def small_disk():
    """Files of at most 20 kB: the write of a larger one fails, as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))


r = segue(*BASE, "-o", "no-metrics", "--steps", "12", "--checkpoint", "4", "--metrics", "/dev/full")
check("metrics that cannot be written end the run", r.returncode == 1 and "step 1" in r.stderr and "metrics" in r.stderr, r.stderr)
before = segue(*BASE, "-o", "full-disk", "--steps", "12", "--checkpoint", "4")
kept = open("full-disk/checkpoint.state", "rb").read()
with open("full-disk/adapter_model.safetensors", "rb") as f:
    adapter_kept = f.read()
r = segue(*BASE, "-o", "full-disk-new", "--steps", "12", "--checkpoint", "4", preexec_fn=small_disk)
check("a full disk ends the run by name", r.returncode == 1 and "step 4" in r.stderr and "checkpoint.state" in r.stderr and
      "no checkpoint was written yet" in r.stderr and "segue:" in r.stderr, f"{r.returncode} {r.stderr}")
check("... and leaves no half of a file", os.listdir("full-disk-new") == [], str(os.listdir("full-disk-new")))
r = segue(*BASE, "-o", "full-disk-new", "--steps", "12", "--checkpoint", "4")
check("the same command then does it all", r.returncode == 0 and
      open("full-disk-new/checkpoint.state", "rb").read() == kept and
      open("full-disk-new/adapter_model.safetensors", "rb").read() == adapter_kept, r.stderr)

# Weight decay that multiplies all matrices by up to -99 per update.
HIGH = [x for i, x in enumerate(BASE) if x != "--rank" and (i == 0 or BASE[i - 1] != "--rank")]
HIGH += ["--full", "--clip", "0", "--lr", "10", "--weight-decay", "10"]
r = segue(*HIGH, "-o", "nan", "--steps", "100", "--checkpoint", "1", "--warmup", "10")
good = r.returncode == 0 or (r.returncode == 4 and "not finite" in r.stderr and "train: step " in r.stderr and "is kept" in r.stderr)
check("a loss that is not finite names step and layer", r.returncode == 4 and good and "layer" in r.stderr, f"{r.returncode} {r.stderr}")
check("... and keeps the last good checkpoint", "nan" not in str(os.listdir("nan")) and
      os.path.exists("nan/checkpoint.state") and segue("state", "info", "nan/checkpoint.state").returncode == 0, r.stderr)
for args, code in ((["--data", "lines.jsonl"], 2), (["-o", "bad"], 2), (["--data", "none.jsonl", "-o", "bad"], 1),
                   (["--data", "lines.jsonl", "-o", "bad", "--targets", "no_such_module"], 3),
                   (["--data", "lines.jsonl", "-o", "bad", "--full", "--rank", "4"], 2),
                   (["--data", "lines.jsonl", "-o", "bad", "--random"], 2),
                   (["--data", "lines.jsonl", "-o", "bad", "--full", "-m", FILES + "/llama_mlx4"], 3)):
    r = segue("train", *(() if "-m" in args else ("-m", TINY)), *args, "--unit", UNIT)
    check("train " + " ".join(args) + f" ends with {code}", r.returncode == code, f"{r.returncode} {r.stderr}")
r = segue(*BASE, "-o", "high", "--steps", "30", "--lr", "10", "--clip", "0", "--checkpoint", "1")
check("a loss that is not finite stops the run by name, or it ends", r.returncode == 0 or "step" in r.stderr, r.stderr)
finish()
