# cli_escapes.py: no byte of a file's content or name reaches a terminal as a control sequence; pipes and --json keep the bytes.
# SPDX-License-Identifier: MIT
import os, pty, subprocess
from clitest import command, done, environment, expect, home, run, tiny_model

EVIL = "\x1b]0;owned\x07\x1b[31m\x9b2Jend"   # ESC, BEL, and CSI as the C1 control U+009B
BAD = (b"\x1b", b"\x07", b"\xc2\x9b", b"\x9b", b"\r\x1b")
m = tiny_model("evil", template="{{ '" + EVIL + "' }}{% for m in messages %}{{ m.content }}{% endfor %}")


def on_terminal(*args, stdin=b""):
    """Everything that the command writes to a terminal that is its stdout and stderr."""
    master, slave = pty.openpty()
    p = subprocess.Popen([command, *map(str, args)], stdin=subprocess.PIPE, stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    try:
        p.stdin.write(stdin); p.stdin.close()
    except OSError: pass
    out = b""
    while True:
        try: part = os.read(master, 65536)
        except OSError: break
        if not part: break
        out += part
    os.close(master)
    p.wait()
    return out


def clean(what, *args, stdin=b"", shown=b"end"):
    out = on_terminal(*args, stdin=stdin)
    expect(f"{what}: shown", shown in out, out)
    expect(f"{what}: no control sequence", not any(b in out for b in BAD), out)


clean("inspect --template", "inspect", "-m", m, "--template")
code, out, err = run("inspect", "-m", m, "--template")
expect("inspect --template keeps bytes in a pipe", code == 0 and EVIL in out, out)
clean("template", "template", "-m", m, "--messages", "-", stdin=b'[{"role":"user","content":"x"}]')
code, out, err = run("template", "-m", m, "--messages", "-", stdin='[{"role":"user","content":"x"}]')
expect("template keeps bytes in a pipe", code == 0 and EVIL in out, (out, err))
ids = run("tokenize", "-m", m, "-p", EVIL)[1].strip()
clean("tokenize --detokenize", "tokenize", "-m", m, "--detokenize", "--ids", ids)
code, out, err = run("tokenize", "-m", m, "--detokenize", "--ids", ids)
expect("tokenize --detokenize keeps bytes in a pipe", code == 0 and EVIL in out, (out, err))
os.makedirs(os.path.join(home, "data/models"), exist_ok=True)
os.makedirs(os.path.join(home, "data/sessions"), exist_ok=True)
open(os.path.join(home, "data/models", EVIL + ".gguf"), "w").write("GGUF")
open(os.path.join(home, "data/sessions", EVIL + ".state"), "w").write("no state")
clean("models", "models")
clean("state list", "state", "list")
clean("the error line", "inspect", "-m", "/nonexistent/" + EVIL)
done()
