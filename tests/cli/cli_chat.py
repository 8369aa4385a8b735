#!/usr/bin/env python3
"""`segue chat`: turns and commands on a pipe, line editing and ^C on a terminal. SPDX-License-Identifier: MIT"""
import signal
from clitest import *
from terminal import Terminal, has_editing

m = tiny_model()
base = ["chat", "-m", m, "--greedy", "-n", "8"]


def chat(lines, *args, **more): return run(*base, *args, stdin="".join(l + "\n" for l in lines), **more)


def answer(messages, n=8):
    path = write(top.name, "q.json", json.dumps(messages))
    return json.loads(run("run", "-m", m, "--greedy", "-n", n, "--messages", path, "--json")[1])["text"]


user = lambda t: {"role": "user", "content": t}
said = lambda t: {"role": "assistant", "content": t}

# Two turns: the second answer equals that to the whole conversation as one prompt, and reuses the computed tokens.
code, out, err = chat(["hello", "", "and?"], "--json")
o = json.loads(out)
first = answer([user("hello")])
expect("turns", code == 0 and [x["role"] for x in o["messages"]] == ["user", "assistant"] * 2, out[:300])
expect("first turn", o["messages"][1]["content"] == first, (o["messages"], first))
expect("second turn", o["messages"][3]["content"] == answer([user("hello"), said(first), user("and?")]), o["messages"])
expect("reuse", o["turns"][0]["reuse_reason"] == "first-use" and o["turns"][1]["reused_tokens"] > 0, o["turns"][1]["reused_tokens"])
code, out, err = chat(["hello"])
expect("text", code == 0 and out == first + "\n", (out, first))
code, out, err = chat([], "-p", "hello")
expect("-p is the first turn", code == 0 and out == first + "\n", (out, first))

# Nothing is read before the model is open: an error there does not wait for a first line.
waiting = subprocess.Popen([command, "chat", "-m", os.path.join(top.name, "none.gguf")], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, text=True, env=environment)
try: code = waiting.wait(timeout=LIMIT)
except subprocess.TimeoutExpired: waiting.kill(); code = None
expect("an error of the model does not wait for input", code == 1 and "none.gguf" in waiting.stderr.read(), code)

# Commands.
o = json.loads(chat(["hello", "/undo", "bye"], "--json")[1])
expect("/undo", [x["content"] for x in o["messages"]] == ["bye", answer([user("bye")])], o["messages"])
o = json.loads(chat(["hello", "/retry"], "--json")[1])
expect("/retry", o["messages"] == [user("hello"), said(first)] and len(o["turns"]) == 2, o["messages"])
o = json.loads(chat(["hello", "/clear", "bye"], "--json", "--system", "be")[1])
expect("/clear keeps the system message", [x["role"] for x in o["messages"]] == ["system", "user", "assistant"], o["messages"])
expect("/clear", o["messages"][2]["content"] == answer([{"role": "system", "content": "be"}, user("bye")]), o["messages"])
o = json.loads(chat(["hello", "/system be brief", "x", "/system", "y"], "--json")[1])
expect("/system", o["messages"][0] == user("hello") and len(o["messages"]) == 6, o["messages"])
o = json.loads(chat(["/set tokens 3", "/set temp 0.7", "/set seed 5", "hello"], "--json")[1])
expect("/set", o["turns"][0]["output_tokens"] <= 3 and o["turns"][0]["seed"] == 5, o["turns"][0]["seed"])
code, out, err = chat(["hello", "/stats", "/help", "/set", "/exit", "never"])
expect("/stats /help /exit", code == 0 and "prompt_tokens" in err and "/retry" in err and out == first + "\n", (out, err))
o = json.loads(chat(["hello", "  /undo", " ", "bye"], "--json")[1])
expect("spaces before a command", [x["content"] for x in o["messages"]][:1] == ["bye"] and len(o["messages"]) == 2, o["messages"])
# chat runs with --greedy: a temperature ends that; a repeated answer is announced.
o = json.loads(chat(["/set temp 2", "/set seed 5", "hello", "/set seed 6", "/retry"], "--json")[1])
expect("/set temp ends greedy decoding", o["turns"][0]["text"] != o["turns"][1]["text"] and first not in (o["turns"][0]["text"], o["turns"][1]["text"]), o["turns"][0]["text"])
expect("/retry with greedy decoding", "greedy" in chat(["hello", "/retry"])[2])
code, out, err = chat(["/set temp 2", "/set seed 5", "hello", "/retry"])
expect("/retry with a fixed seed", "seed is fixed" in err, err)
code, out, err = chat(["/set temp 2", "hello", "/retry"], "--seed", "5")
expect("/retry with --seed", "seed is fixed" in err, err)
code, out, err = chat(["/set temp 2", "/set top-k 1", "hello", "/retry"])
expect("/retry with one candidate", "same answer again" in err, err)
code, out, err = chat(["/set temp 2", "hello", "/retry"])
expect("/retry with a new seed has no note", "same answer" not in err, err)
for bad in ("/frob", "/", "  /frob", "/undo", "/retry", "/save", "/load", "/lora", "/set frob 1", "/set temp hot", "/set model x", "/stats",
            "/load /nowhere/x.json", "/save /nowhere/x.json", "/lora /nowhere"):
    code, out, err = chat([bad, "hello"])
    lines = [l for l in err.split("\n") if l]
    expect(f"{bad}: one error line, and the chat continues", len(lines) == 1 and lines[0].startswith("segue: "), err)
    expect(f"{bad}: exit code", code != 0, code)
    expect(f"{bad}: the next message is answered", out == first + "\n", out)
saved = os.path.join(top.name, "c.json")
chat(["hello", "/save " + saved])
expect("/save", json.load(open(saved)) == [user("hello"), said(first)] and os.stat(saved).st_mode & 0o77 == 0)
o = json.loads(chat(["/load " + saved, "and?"], "--json")[1])
expect("/load", o["messages"][3]["content"] == answer([user("hello"), said(first), user("and?")]), o["messages"])
state = os.path.join(top.name, "c.state")
chat(["hello", "/save " + state])
o = json.loads(chat(["/load " + state, "and?"], "--json")[1])
expect("/load of a state", o["turns"][0]["reused_tokens"] > 0 and o["messages"][3]["content"] == answer([user("hello"), said(first), user("and?")]), o["messages"])
write(top.name, "broken.state", b"no state")
write(top.name, "broken.state.json", "[]")
code, out, err = chat(["hello", f"/load {top.name}/broken.state", "and?"], "--json")
expect("a state that cannot be loaded leaves the conversation", [x["content"] for x in json.loads(out)["messages"]]
       == ["hello", first, "and?", answer([user("hello"), said(first), user("and?")])], out[:300])
# An adapter of `segue train` swaps in and out of the conversation.
write(top.name, "train.jsonl", "".join(json.dumps({"messages": [user(w), said("zzzz")]}) + "\n" for w in ("hello", "bye", "and?")))
adapter = os.path.join(top.name, "adapter")
code, out, err = run("train", "-m", m, "--data", os.path.join(top.name, "train.jsonl"), "-o", adapter, "--steps", 20, "--lr", 0.05,
                     "--held-out", 0, "--batch", 3, "--unit", "cpu", "--sample", "hello", "--sample-every", 10, "--json")
expect("an adapter is trained", code == 0, err)
shown = {o["step"]: o["sample"] for o in map(json.loads, out.splitlines()) if "sample" in o}
expect("samples while training", list(shown) == [10, 20] and shown[20].startswith("z"), shown)
code, out, err = run("train", "--full", "-m", m, "--data", os.path.join(top.name, "train.jsonl"), "-o", os.path.join(top.name, "full"),
                     "--steps", 20, "--lr", 0.01, "--held-out", 0, "--batch", 3, "--unit", "cpu", "--sample", "hello", "--sample-every", 10,
                     "--json")
shown = {o["step"]: o["sample"] for o in map(json.loads, out.splitlines()) if "sample" in o}
expect("samples while all weights are trained", code == 0 and list(shown) == [10, 20] and shown[20].startswith("z"), (shown, err))
code, out, err = chat(["hello", f"/lora {adapter}", "/retry", "/lora none", "/retry", f"/lora {adapter}=0", "/retry"], "--json")
texts = [t["text"] for t in json.loads(out)["turns"]]
expect("/lora in, out, and in with a scale of 0", len(texts) == 4 and texts[1] != first and texts[0] == texts[2] == texts[3] == first, texts)
json.loads(chat(["hello"], "--session", "s", "--json")[1])
o = json.loads(chat(["and?"], "--session", "s", "--json")[1])
expect("--session", len(o["messages"]) == 4 and o["turns"][0]["reused_tokens"] > 0, o["messages"])
expect("--session files", {f: os.stat(os.path.join(home, "data/sessions", f)).st_mode & 0o777 for f in os.listdir(os.path.join(home, "data/sessions"))}
       == {"s.state": 0o600, "s.json": 0o600})
code, out, err = chat(["hello " * 1000, "x"], "-c", 64)
expect("a turn beyond the context", code == 5 and err.count("\n") == 1, (code, err))
# A full context: without --keep it ends with the remedy; with it the oldest turns are dropped, and the file keeps them.
words = ["word " * 12 + str(i) for i in range(8)]
code, out, err = chat(words, "-c", 256)
expect("a full context", code == 5 and "--keep" in err and "/clear" in err, (code, err))
code, out, err = chat(words, "-c", 256, "--keep", 0, "--system", "be", "--json", "--session", "slide")
o = json.loads(out)
expect("--keep: all turns are answered", code == 0 and len(o["turns"]) == 8 and len(o["messages"]) == 17, (code, err, len(o["turns"])))
last = o["turns"][-1]
text = bytes(i for i in last["prompt_ids"] if i < 256).decode()
expect("--keep: whole turns are dropped", last["dropped_turns"] > 0 and last["prompt_tokens"] + 8 <= 256 and text.startswith("system\nbe") and
       words[7] in text and words[0] not in text and text.split("user\n")[1].startswith(words[last["dropped_turns"]]), (last["dropped_turns"], text))
expect("--keep: says so", "turns are not read any more" in err, err)
expect("--keep: the state is reused between drops", o["turns"][-1]["reused_tokens"] > 20 + len(words[0]), [t["reused_tokens"] for t in o["turns"]])
expect("--keep: the file has all", len(json.load(open(os.path.join(home, "data/sessions/slide.json")))) == 17)
o = json.loads(chat(words, "-c", 256, "--keep", 80, "--json")[1])
text = bytes(i for i in o["turns"][-1]["prompt_ids"] if i < 256).decode()
expect("--keep N: the first tokens stay", words[0] in text and words[2] not in text and o["turns"][-1]["dropped_turns"], text)
o = json.loads(chat(["x"], "-c", 40, "-n", 1000, "--ignore-eos", "--json")[1])
expect("an answer that fills the context", o["turns"][0]["finish"] == "length" and len(o["messages"]) == 2, o["turns"][0]["finish"])
code, out, err = chat(["/retri"])
expect("similar commands", "did you mean /retry?" in err, err)
expect("/quit and /?", chat(["/?", "/quit", "hello"])[1] == "" and "/retry" in chat(["/?"])[2])
plain = tiny_model("plain", template=None)
o = json.loads(run("chat", "-m", plain, "--greedy", "-n", 4, "--json", stdin="ab\ncd\n")[1])
expect("without a template", bytes(o["turns"][0]["prompt_ids"]) == b"ab" and bytes(o["turns"][1]["prompt_ids"][:2]) == b"ab", o["turns"][1]["prompt_ids"])

# On a terminal: ^C stops the answer but not the program, ^C at the prompt clears the line, the history is saved.
if has_editing:
    long = tiny_model("long", layers=4, width=128, context=200000)
    t = Terminal("chat", "-m", long, "-n", "-1", "-c", "100000", "--ignore-eos", "--greedy")
    t.wait("the greeting", b"/help")
    t.prompt()
    t.send("hello\r")
    t.wait("the answer starts", lambda s: len(s) > 100)
    t.process.send_signal(signal.SIGINT)
    t.wait("the answer stops", b"tok/s")
    t.prompt("the prompt is shown again")
    t.process.send_signal(signal.SIGINT)
    t.send("/set\r")
    t.wait("a signal at the prompt does not end the program", lambda s: b"greedy" in s.split(b"/set")[-1])
    t.prompt()
    t.send("some words\x03/stats\r")
    t.wait("^C clears the line", b"output_tokens")
    t.send("/exit\r")
    expect("exit code 0 at the end", t.end() == 0, t.seen[-3000:])
    history = os.path.join(home, "data/chat_history")
    expect("history", "hello" in open(history).read() and os.stat(history).st_mode & 0o77 == 0)
else:
    print("SKIP cli_chat terminal: built without libedit")
done()
