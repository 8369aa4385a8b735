#!/usr/bin/env python3
"""What the command does on a terminal: characters, pasted text, several lines. SPDX-License-Identifier: MIT"""
import shutil
from clitest import *
from terminal import Terminal, has_editing

if not has_editing:
    print("SKIP cli_terminal: built without libedit")
    sys.exit(77)
m = tiny_model()
saved = os.path.join(top.name, "saved.json")


def messages(path): return [x["content"] for x in json.load(open(path)) if x["role"] == "user"]


# Characters beyond ASCII, in a locale that has them and in one that does not say so; pasted lines are one message.
for locale in ({"LC_ALL": "C.UTF-8"}, {"LC_ALL": "C", "LANG": ""}):
    t = Terminal("chat", "-m", m, "--greedy", "-n", 4, **locale)
    t.prompt()
    inputs = ["h\u00e9llo \u2603 \u65e5\u672c\r", "\x1b[200~one\rtwo\tx\rthr\x01ee\x1b[201~ f\u00f6ur\r", "a\nb\r", "x\\\ry\r", '"""p\rq\r r"""\r']
    for keys in inputs:
        t.send(keys)
        t.wait("an answer", b"tok/s")
        t.prompt()
    t.send(f"/save {saved}\r/exit\r")
    expect("exit code", t.end() == 0, t.seen)
    expect(f"messages with {locale}", messages(saved) == ["h\u00e9llo \u2603 \u65e5\u672c", "one\ntwo\tx\nthree f\u00f6ur", "a\nb", "x\ny", "p\nq\n r"],
           messages(saved))
    expect("bracketed paste is on, and off at the end", t.all.count(b"\x1b[?2004h") == 1 and t.all.rstrip().endswith(b"\x1b[?2004l"), t.all[-200:])

# The history has the messages, also those of several lines.
t = Terminal("chat", "-m", m, "--greedy", "-n", 4, LC_ALL="C.UTF-8")
t.prompt()
t.send("\x10\x10\x10\r")   # ^P: the entry before; the last two are commands
t.wait("an answer", b"tok/s")
t.prompt()
t.send(f"/save {saved}\r/exit\r")
expect("exit code", t.end() == 0, t.seen)
expect("a message of several lines from the history", messages(saved) == ["p\nq\n r"], messages(saved))

# Lines typed during an answer are read afterwards.
t = Terminal("chat", "-m", m, "--greedy", "-n", 4, LC_ALL="C.UTF-8")
t.send("\u00e4\r\u00f6\r" + f"/save {saved}\r\x04")
expect("exit code", t.end() == 0, t.seen)
expect("lines typed ahead", messages(saved) == ["\u00e4", "\u00f6"], messages(saved))

# On a terminal whose reads do not wait the prompt waits all the same.
t = Terminal("chat", "-m", m, "--greedy", "-n", 4, blocking=False)
t.prompt()
t.send("first\r")
t.wait("an answer", b"tok/s")
t.prompt()
t.send(f"/save {saved}\r/exit\r")
expect("exit code on a nonblocking terminal", t.end() == 0, t.seen)
expect("messages on a nonblocking terminal", messages(saved) == ["first"], messages(saved))

# A failed command does not end the conversation.
t = Terminal("chat", "-m", m, "--greedy", "-n", 4)
t.prompt()
t.send("first\r")
t.wait("an answer", b"tok/s")
for command_line in ("/load /nowhere/x.json", "/load /nowhere/x.state", "/save /nowhere/x.json", "/lora /nowhere"):
    t.prompt(command_line)
    t.send(command_line + "\r")
    t.wait(command_line + ": an error", b"segue: ")
t.prompt()
t.send(f"/save {saved}\r/exit\r")
expect("exit code", t.end() == 0, t.seen)
expect("the conversation is there after failed commands", messages(saved) == ["first"], messages(saved))

# Tab completes commands and paths; several candidates are listed.
folder = os.path.join(top.name, "with space")
os.makedirs(folder)
for name in ("alpha1.json", "alpha2.json"): shutil.copy(saved, os.path.join(folder, name))
t = Terminal("chat", "-m", m, "--greedy", "-n", 4, "--session", "tabs")
t.prompt()
t.send("/loa\t" + folder[:-3] + "\tal\t\t")
t.wait("candidates", lambda s: b"alpha1.json" in s and b"alpha2.json" in s)
t.send("1.j\t\r")
t.prompt()
t.send("/undo\rhi\t!\r")
t.wait("an answer", b"tok/s")
expect("context left", b"; context " in t.seen and b" left" in t.seen and b"cut at -n 4" in t.seen, t.seen)
t.prompt()
t.send("/bye\r")
expect("/bye", t.end() == 0, t.seen)
stored = json.load(open(os.path.join(home, "data/sessions/tabs.json")))
expect("/load by Tab, /undo, and no Tab in a message", [x["content"] for x in stored if x["role"] == "user"] == ["hi!"], stored)

# Words are read ahead while they are typed, on one unit and on two; words that were changed are read again. The answers are
# those to the same lines from a pipe. 60 words: the thread gets time for some of them.
lines = ["one", " ".join(f"w{i}" for i in range(60)) + " end", "other words than these"]
for units in ((), ("--prefill", "cpu:threads=1", "--decode", "ref")):
    base = ["chat", "-m", m, "--seed", 3, "--temp", 1, "--ignore-eos", "-n", 8, "--store", "off", "--json", *units]
    piped = json.loads(run(*base, stdin="".join(x + "\n" for x in lines))[1])
    t = Terminal(*base)
    for i, words in enumerate(lines):
        t.prompt()
        for word in words.split(" ")[:-1]:
            t.send(word + " ")
            t.wait("the word", word.encode())
        if i == 2: t.send("\x15" + words.rsplit(" ", 1)[0] + " ")   # ^U: again from the start
        t.send(words.rsplit(" ", 1)[-1] + "\r")
        t.wait("an answer", b"tok/s")
    t.prompt()
    t.send("/exit\r")
    expect("exit code", t.end() == 0, t.seen)
    typed = json.JSONDecoder().raw_decode(t.all.decode(errors="replace"), t.all.decode(errors="replace").index('{"messages"'))[0]
    expect(f"messages typed on {units}", typed["messages"] == piped["messages"], (typed["messages"], piped["messages"]))
    ahead = [x["reused_tokens"] - y["reused_tokens"] for x, y in zip(typed["turns"], piped["turns"])]
    expect(f"the template before the first message, and words, are read ahead on {units}", ahead[0] > 0 and ahead[1] > 20, (ahead, [x["read_ahead"] for x in typed["turns"]]))

# A resumed session shows its history; colours only where they are wanted.
think = tiny_model("think", template=TEMPLATE.replace("assistant\\n' }}{% endif", "assistant\\n<think>' }}{% endif"))
for env, coloured in (({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)):
    t = Terminal("chat", "-m", think, "--greedy", "-n", 4, "--session", "tabs", **env)
    t.prompt()
    expect("history", b"> hi!" in t.seen, t.seen)
    t.send("x\r")
    t.wait("an answer", b"tok/s")
    t.prompt()
    t.send("/quit\r")
    expect("/quit", t.end() == 0, t.seen)
    expect(f"colours with {env}", (b"\x1b[1;32m" in t.all) == coloured and (b"\x1b[2m" in t.all) == coloured and
           (not coloured or b"\x1b[0m" in t.all.split(b"\x1b[2m")[-1]), t.all)
    expect(f"the colour of the prompt ends with {env}", all(s.startswith(b">\x1b[0m ") for s in t.all.split(b"\x1b[1;32m")[1:]), t.all)
t = Terminal("run", "-m", m, "-p", "<think>", "-n", 4)
t.end()
expect("no colour without a tag in the answer", b"\x1b" not in t.all, t.all)
done()
