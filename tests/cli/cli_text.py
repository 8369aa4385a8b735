#!/usr/bin/env python3
"""`segue tokenize`, `template`, `inspect`, `units`, `models`, `cache`. SPDX-License-Identifier: MIT"""
from clitest import *

m = tiny_model()

# tokenize: the vocabulary is the bytes, so the expected ids are known.
for text in ("hello", "häß 日本 😀", " \n\t ", "a" * 5000):
    ids = list(text.encode())
    expect("ids", run("tokenize", "-m", m, "-p", text)[1] == ",".join(map(str, ids)) + "\n", text)
    expect("JSON", json.loads(run("tokenize", "-m", m, "--json", stdin=text)[1])["ids"] == ids, text)
    expect("back", run("tokenize", "-m", m, "--detokenize", "--ids", ",".join(map(str, ids)))[1] == text, text)
o = json.loads(run("tokenize", "-m", m, "-p", "<|im_start|>x", "--json", "--pieces")[1])
expect("specials and pieces", o["ids"] == [257, 120] and o["pieces"] == ["<|im_start|>", "x"], o)
o = json.loads(run("tokenize", "-m", m, "-p", "<|im_start|>x", "--json", "--no-special")[1])
expect("--no-special", len(o["ids"]) == 13, o)
lines = ["one", "zwei\n", "", "三", "nul\u0000in"]
code, out, err = run("tokenize", "-m", m, "--jsonl", stdin="".join(json.dumps(l) + "\n" for l in lines))
expect("--jsonl", [json.loads(l) for l in out.split("\n")[:-1]] == [list(l.encode()) for l in lines], (out, err))
code, back, err = run("tokenize", "-m", m, "--jsonl", "--detokenize", stdin=out)
expect("--jsonl --detokenize", [json.loads(l) for l in back.split("\n")[:-1]] == lines, (back, err))
refused(4, ["tokenize", "-m", m, "--jsonl", "-f", write(top.name, "bad.jsonl", '[1]\n"a"\n')], "line 1")
refused(2, ["tokenize", "-m", m, "--detokenize", "--ids", "1,999"], "999")
refused(4, ["tokenize", "-m", tiny_model("bare", tokenizer=False), "-p", "x"], "tokenizer")
code, out, err = run("tokenize", "-m", m, stdin=b"\xff\xfe\x00a")
expect("bytes that are not UTF-8", code == 0, (code, err))

for args in (["-p", "a", "-f", __file__], ["-p", "a", "--ids", "1"], ["-f", __file__, "--ids", "1", "--detokenize"], ["--ids", "1"], ["--jsonl", "-p", "a"]):
    refused(2, ["tokenize", "-m", m, *args], args[0])

# template
messages = [{"role": "user", "content": "Hi"}]
want = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
expect("template", run("template", "-m", m, stdin=json.dumps(messages))[1] == want)
file = write(top.name, "t.jinja", "{{ bos_token }}{{ messages | length }}{{ x }}{% if enable_thinking %}T{% endif %}")
expect("--template", run("template", "--template", file, "--bos", "<s>", "--think", "on", stdin=json.dumps({"messages": messages, "x": "é"}))[1] == "<s>1éT")
expect("--json", json.loads(run("template", "-m", m, "--json", stdin=json.dumps(messages))[1])["text"] == want)
code, out, err = run("template", "--template", file, "--jsonl", stdin=json.dumps(messages) + "\n{bad\n" + json.dumps(messages) + "\n")
replies = [json.loads(l) for l in out.strip().split("\n")]
expect("--jsonl", code == 4 and [isinstance(r, str) for r in replies] == [True, False, True], out)
for bad in ("{% for i in range(10**9) %}x{% endfor %}", "{{ messages", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{{ 'x' * 10**10 }}",
            "{{ raise_exception('no') }}"):
    refused(4, ["template", "--template", write(top.name, "bad.jinja", bad), "--messages", write(top.name, "m.json", json.dumps(messages))])
refused(4, ["template", "-m", tiny_model("plain", template=None), "--messages", os.path.join(top.name, "m.json")], "template")
refused(2, ["template", "-m", m, "--template", file], "two templates")

# Contents as lists of parts, and null or no content beside tool calls, with a template that knows texts only.
parts = [{"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "you"}]}]
call = {"type": "function", "id": "abcdef123", "function": {"name": "f", "arguments": "{}"}}
called = lambda content: [messages[0], {"role": "assistant", **content, "tool_calls": [call]}, {"role": "tool", "tool_call_id": "abcdef123", "content": "1"}]
rendered = lambda model, m: run("template", "-m", model, stdin=json.dumps(m))
expect("parts", rendered(m, parts)[1] == want.replace("Hi", "Hi\nyou"), rendered(m, parts))
expect("null and no content", rendered(m, called({"content": None})) == rendered(m, called({"content": ""})) == rendered(m, called({})), rendered(m, called({})))
write(top.name, "image.json", json.dumps([{"role": "user", "content": [{"type": "image"}]}]))
refused(4, ["template", "-m", m, "--messages", os.path.join(top.name, "image.json")], "image", "text only")
code, out, err = run("run", "-m", tiny_model("untemplated", template=None), "--greedy", "-n", 2, "-p", "Hi\nyou", "--json")
o = json.loads(run("chat", "-m", os.path.join(top.name, "untemplated"), "--greedy", "-n", 2, "--json", "--messages", write(top.name, "p.json", json.dumps(parts)),
                   stdin="!\n")[1])
expect("parts without a template", bytes(o["turns"][0]["prompt_ids"]) == b"Hi\nyou!", o["turns"][0]["prompt_ids"])
# The templates of published models: a text in parts is the text; without content there is no "None".
folder = os.path.join(os.environ.get("SEGUE_LLAMA_SOURCE", os.path.join(source, "build", "llama.cpp")), "models", "templates")
for file in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
    if not file.endswith(".jinja"): continue
    model = tiny_model("published", template=open(os.path.join(folder, file)).read())
    asked = [messages, [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], called({"content": ""}), called({"content": None}), called({})]
    lines = [json.loads(l) for l in run("template", "-m", model, "--jsonl", stdin="".join(json.dumps(a) + "\n" for a in asked))[1].splitlines()]
    plain, listed, empty, null, missing = (l if isinstance(l, str) else None for l in lines)
    if plain is not None and "Hi" in plain: expect(f"{file}: parts", listed == plain, (plain, listed))
    elif plain is not None: expect(f"{file}: parts", "Hi" in listed, listed)
    for got in (null, missing):
        expect(f"{file}: no content", empty is None or (got is not None and got.count("None") <= empty.count("None")), (empty, got))

# inspect
code, out, err = run("inspect", "-m", m, "--json")
o = json.loads(out)
expect("inspect fields", set(o) >= set("path family format shape_id weights_id numbers tensors tokenizer template_hash memory".split()), list(o))
expect("tensor fields", all(set(t) >= set("name storage shape offset bytes".split()) for t in o["tensors"]) and len(o["tensors"]) == 20, o["tensors"][:1])
expect("tokenizer fields", set(o["tokenizer"]) >= set("kind pre vocab bos eos".split()), o["tokenizer"])
expect("memory fields", set(o["memory"]) >= set("weight_bytes state_fixed_bytes state_token_bytes".split()), o["memory"])
code, text, err = run("inspect", "-m", m)
expect("inspect text", code == 0 and "family     llama" in text and o["shape_id"] in text, text)
expect("--tensors", run("inspect", "-m", m, "--tensors")[1].count("\n") > 20)
expect("--graph", "attend" in run("inspect", "-m", m, "--graph")[1])
expect("--template", run("inspect", "-m", m, "--template")[1].rstrip("\n") == TEMPLATE)
refused(1, ["inspect", "-m", "/nowhere"], "/nowhere")
refused(4, ["inspect", "-m", write(top.name, "cut.safetensors", b"\xff\xff\0\0\0\0\0\0{")])
os.makedirs(os.path.join(top.name, "empty"), exist_ok=True)
code, out, err = run("inspect", "-m", os.path.join(top.name, "empty"))
expect("an empty folder", code in (1, 4) and err.count("\n") == 1, (code, err))

# units
code, out, err = run("units", "--json")
units = json.loads(out)
expect("units fields", all(set(u) >= set("unit built available reason memory_bytes memory_bandwidth_gb_s features".split()) for u in units), units)
expect("units", {"ref", "cpu"} <= {u["unit"].split(":")[0] for u in units if u["available"]} and all(u["available"] or u["reason"] for u in units), units)
expect("units text", run("units")[1].count("\n") == len(units))

# models, cache
models = os.path.join(home, "data/models")
os.makedirs(os.path.join(models, "org--name"))
for f in os.listdir(m): write(os.path.join(models, "org--name"), f, open(os.path.join(m, f), "rb").read())
o = json.loads(run("models", "list", "--json")[1])
expect("models list", [x["name"] for x in o["models"]] == ["org/name"] and o["models"][0]["files"] == len(os.listdir(m)), o)
expect("models list: kind", (o["models"][0]["family"], o["models"][0]["storage"], o["models"][0]["file"]) == ("llama", "f32", "org--name"), o)
expect("-m NAME", run("run", "-m", "org/name", "-p", "x", "-n", 2)[0] == 0 and run("inspect", "-m", "org--name")[0] == 0)
for bad in ("..", "../x", "/etc", ".", "", "a/../b", ".hidden"):
    expect(f"models rm {bad}", run("models", "rm", bad)[0] in (1, 2))
expect("nothing was removed", os.path.isdir(models) and os.path.exists(os.path.join(models, "org--name/config.json")))
refused(1, ["models", "rm", "absent"], "absent")
refused(2, ["models", "frob"], "frob")
expect("models rm", run("models", "rm", "org/name")[0] == 0 and os.listdir(models) == [])
expect("empty models folder", run("models")[0] == 0)
os.makedirs(os.path.join(home, "cache"), exist_ok=True)
write(os.path.join(home, "cache"), "entry", "packed")
o = json.loads(run("cache", "--json")[1])
expect("cache info", o["files"] >= 1 and o["bytes"] > 0, o)
outside = write(top.name, "outside", "kept")
os.symlink(outside, os.path.join(home, "cache/link"))
code, out, err = run("cache", "clear", "--json")
expect("cache clear", code == 0 and os.listdir(os.path.join(home, "cache")) == [] and os.path.exists(outside), out)
refused(2, ["cache", "frob"], "frob")

# a template that cannot be used is named
for broken, words in ((7, "chat_template is not a text"), ("{% if %}", "tokenizer_config.json")):
    b = tiny_model("broken", template=broken)
    code, out, err = run("run", "-m", b, "-p", "x", "-n", 2)
    expect(f"template {broken!r}", code == 0 and words in err and "used without a template" in err, err)
    code, out, err = run("run", "-m", b, "-p", "x", "-n", 2, "--raw")
    expect(f"template {broken!r} with --raw", code == 0 and "template" not in err, err)

# nesting that a parser which recurses would not survive with a small stack
deep = "[" * 2000 + "]" * 2000
for args, text in ((["template", "-m", m, "--messages", "-"], deep), (["run", "-m", m, "--messages", "-"], '{"messages":' + deep + "}"),
                   (["run", "-m", m, "--requests", "-"], '{"messages":' + deep + "}"),
                   (["tokenize", "-m", m, "--jsonl", "--detokenize"], deep)):
    r = subprocess.run(["sh", "-c", 'ulimit -s 128; exec "$@"', "sh", command, *args], input=text, capture_output=True, text=True,
                       env=environment)
    expect(f"{args[0]} of 2,000 levels", r.returncode in (2, 4, 6), (r.returncode, r.stderr[:300]))
done()
