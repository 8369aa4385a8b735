#!/usr/bin/env python3
"""Help texts fit on a screen and equal the goldens, man pages and completions are well formed, usage errors print one
line. UPDATE_GOLDEN=1 rewrites the goldens. SPDX-License-Identifier: MIT"""
import os, shutil, subprocess, sys
from clitest import *

golden = os.path.join(source, "tests", "golden", "help")
code, out, err = run("--list")
commands = out.split()
expect("--list", code == 0 and "run" in commands and "pull" in commands, out)
for c in ["", *commands]:
    code, text, err = run(*([c] if c else []), "--help")
    expect(f"{c} --help", code == 0 and err == "", (code, err))
    lines = text.rstrip("\n").split("\n")
    expect(f"{c} --help fits a screen", len(lines) <= 40 and max(map(len, lines)) <= 100, (len(lines), max(map(len, lines))))
    expect(f"{c} --help has an example", lines[-1].startswith("example: "), lines[-1])
    path = os.path.join(golden, (c or "segue") + ".txt")
    if os.environ.get("UPDATE_GOLDEN"): write(golden, (c or "segue") + ".txt", text)
    expect(f"{c} --help equals the golden", os.path.exists(path) and open(path).read() == text,
           f"differs from {path}; UPDATE_GOLDEN=1 rewrites it")
    code, page, err = run("--man", c or "segue")
    expect(f"--man {c}", code == 0 and page.startswith(".TH SEGUE") and ".SH NAME" in page, page[:80])
    for tool in (["mandoc", "-Tlint", "-Wwarning"], ["groff", "-man", "-ww", "-z", "-Tutf8"]):
        if not shutil.which(tool[0]): continue
        r = subprocess.run(tool, input=page.encode(), capture_output=True)
        expect(f"{tool[0]} on the page of {c}", not r.stderr and (tool[0] == "groff" or not r.stdout), (r.stdout[:300], r.stderr[:300]))
# Every example runs, except for those that need the network, write files or do not end.
folder = tiny_model(context=8192)
for c in commands:
    example = run(c, "--help")[1].rstrip("\n").split("\n")[-1][len("example: "):]
    if c in ("pull", "quantize", "imatrix", "ane-probe", "ane-report", "serve", "energy", "replay", "train"): continue  # tests of their own folders
    r = subprocess.run(["sh", "-c", example], capture_output=True, cwd=source, stdin=subprocess.DEVNULL,
                       env={**environment, "SEGUE_MODEL": folder, "PATH": os.path.dirname(os.path.abspath(command)) + ":" + os.environ["PATH"]})
    expect(f"example: {example}", r.returncode == 0 and r.stdout or c == "models", (r.returncode, r.stderr))
for shell in ("bash", "zsh", "fish"):
    code, script, err = run("--completion", shell)
    expect(f"completion {shell}", code == 0 and all(c in script for c in commands), err)
    if shutil.which(shell):
        r = subprocess.run([shell, "-n"] + (["/dev/stdin"] if shell == "fish" else []), input=script.encode(), capture_output=True)
        expect(f"{shell} -n", r.returncode == 0 and not r.stderr, r.stderr)
if shutil.which("bash"):
    script = run("--completion", "bash")[1] + """
ask() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _segue; echo "${COMPREPLY[*]}"; }
ask segue tok; ask segue run --top; ask segue run --kv b; ask segue run -"""
    out = subprocess.run(["bash", "-c", script], capture_output=True, text=True).stdout.split("\n")
    expect("bash completes", out[:3] == ["tokenize", "--top-k --top-p", "bf16"] and "--greedy" in out[3], out)

# Completion of sub-verbs, units and names with spaces.
if shutil.which("bash"):
    spaced = os.path.join(top.name, "spaced")
    os.makedirs(os.path.join(spaced, "my models"))
    script = run("--completion", "bash")[1] + """
ask() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _segue; printf '%s|' "${COMPREPLY[@]}"; echo; }
ask segue models ""; ask segue cache c; ask segue state ""; ask segue run --unit cp; ask segue run -m my; ask segue run --ke; ask segue mil e"""
    out = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=spaced).stdout.split("\n")
    expect("bash completes verbs, units and spaces",
           out[:-1] == ["list|rm|", "clear|", "list|rm|info|verify|convert|", "cpu|", "my models|", "--keep|", "emit|explain|"], out)
# Names of models, which the command itself lists; bash divides words at their colons.
if shutil.which("bash"):
    script = run("--completion", "bash")[1] + """
segue() { [ "$*" = "--list models" ] && printf 'org/Tiny:Q4_0\\norg/Tiny:Q8_0\\nplain\\n'; }
ask() { COMP_LINE=$1; COMP_POINT=${#COMP_LINE}; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _segue; printf '%s|' "${COMPREPLY[@]}"; echo; }
ask "segue run -m o" segue run -m o; ask "segue chat -m org/Tiny:" segue chat -m org/Tiny :; ask "segue run -m org/Tiny:Q8" segue run -m org/Tiny : Q8
ask "segue models rm p" segue models rm p; ask "segue run --model pl" segue run --model pl"""
    out = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=spaced).stdout.split("\n")
    expect("bash completes names of models", out[:-1] == ["org/Tiny:Q4_0|org/Tiny:Q8_0|", "Q4_0|Q8_0|", "Q8_0|", "plain|", "plain|"], out)
for shell in ("zsh", "fish"): expect(f"{shell} completes names of models", "segue --list models" in run("--completion", shell)[1])
expect("environment of the man page", all(v in run("--man", "pull")[1] for v in ("HF_HUB_CACHE", "HF_TOKEN", "XDG_CONFIG_HOME")))

code, out, err = run()
expect("no command", code == 2 and out == "" and "usage" in err, (code, err))
refused(2, ["frobnicate"], "frobnicate")
refused(2, ["tokenise"], "segue tokenize")
refused(2, ["run", "--tmep", "1"], "--temp")
for theirs, ours in (("--temperature", "--temp"), ("--max-tokens", "--tokens"), ("--n-predict", "--tokens"), ("--n_predict", "--tokens"),
                     ("--ctx-size", "--context"), ("--num_ctx", "--context"), ("--system-prompt", "--system"), ("-ngl", "--unit"), ("-hf", "--model"),
                     ("--adapter-path", "--lora"), ("--max-kv-size", "--context"), ("--repetition-penalty", "--repeat-penalty")):
    refused(2, ["run", theirs, "1"], f"did you mean {ours}?")
for theirs, ours in (("list", "models"), ("show", "inspect"), ("rm", "models rm"), ("perplexity", "eval"), ("generate", "run")):
    refused(2, [theirs], f"did you mean segue {ours}?")
# Typing errors near a spelling of another program; a flag of ours that is as close wins.
for typed, ours in (("--max-token", "--tokens"), ("--max-tokns", "--tokens"), ("--n-predic", "--tokens"), ("--n_pedict", "--tokens"),
                    ("--temperatur", "--temp"), ("--tempreature", "--temp"), ("--ctx-siz", "--context"), ("--num_cxt", "--context"),
                    ("--system-promt", "--system"), ("--n-gpu-layer", "--unit"), ("--repetition-penalti", "--repeat-penalty"),
                    ("--toknes", "--tokens"), ("--contxt", "--context"), ("--top-kk", "--top-k"), ("--min-pp", "--min-p")):
    refused(2, ["run", typed, "1"], f"did you mean {ours}?")
for typed, ours in (("lst", "models"), ("lits", "models"), ("shwo", "inspect"), ("perplexty", "eval"), ("genrate", "run"), ("chta", "chat"),
                    ("rnu", "run"), ("modles", "models"), ("pul", "pull"), ("downlod", "pull"), ("benchmrk", "bench")):
    refused(2, [typed], f"did you mean segue {ours}?")
refused(2, ["inspect", "--max-token", "1"], "no such flag")   # a spelling of a flag that this command has not
refused(2, ["run", "--xyzzyx", "1"], "no such flag")
refused(2, ["bench", "--n-gen", "1"], "--tokens")
refused(2, ["run", "--temp"], "value missing")
refused(2, ["run", "--temp", "hot"], "hot")
refused(2, ["run", "--temp", "nan"], "nan")
refused(2, ["run", "--temp=-1"], "out of range")
refused(2, ["run", "-n", "1.5"], "whole")
refused(2, ["run", "-n", "1" * 400], "number")
refused(2, ["run", "--kv", "f64"], "f32|f16|bf16|q8")
refused(2, ["run", "--greedy=1"], "takes no value")
refused(2, ["run", "prompt", "stray"], "stray")
refused(2, ["bench", "-p", "1,x"], "x")
refused(2, ["pull"], "missing")
for later in ("state", "replay", "mil", "ane-probe", "train"):
    if later not in commands: refused(3, [later], "not in this build")
code, out, err = run("version", "--json")
version = json.loads(out)
expect("version", set(version) >= {"version", "commit", "units", "cuda_targets"} and "cpu" in version["units"], out)
with open("/dev/full", "w") as full:
    for args in (["--help"], ["version"], ["units"], ["version", "--json"]):
        r = subprocess.run([command, *args], stdout=full, stderr=subprocess.PIPE, env=environment)
        expect(f"{args} on a full disk", r.returncode == 1 and r.stderr.startswith(b"segue: ") and r.stderr.count(b"\n") == 1, r)

# The configuration file.
path = json.loads(run("config", "--json")[1])["path"]
expect("path of the configuration", path == os.path.join(home, "config", "config") and run("config")[0] == 0, path)
xdg = subprocess.run([command, "config", "--json"], capture_output=True, env={**{k: v for k, v in environment.items() if k != "SEGUE_HOME"}, "XDG_CONFIG_HOME": "/x/y"})
expect("XDG_CONFIG_HOME", json.loads(xdg.stdout)["path"] == "/x/y/segue/config", xdg)
os.makedirs(os.path.dirname(path))


def configure(text, *args, **more):
    write(os.path.dirname(path), "config", text)
    code, out, err = run(*args, **more)
    return json.loads(out) if code == 0 else (code, err)


general = f"# mine\n\nmodel = {folder}\nseed = 7\ntokens: 9\n".replace(": ", " = ")
asked = ["run", "--json", "-p", "x", "--ignore-eos"]
o = configure(general, *asked)
expect("values of the file", (o["seed"], o["output_tokens"], o["model"]["path"]) == (7, 9, folder), o)
o = configure(general, *asked, "-n", 3, "--seed", 8)
expect("the command line first", (o["seed"], o["output_tokens"]) == (8, 3), o)
o = configure(general + "[run]\nn-predict = 3\n", *asked)
expect("a foreign key", o[0] == 2 and "line 7" in o[1] and "did you mean tokens" in o[1], o)
for typed in ("temprature", "temperatur", "tmep"):
    o = configure(f"{typed} = 1\n", *asked)
    expect(f"a key close to a flag: {typed}", o[0] == 2 and "line 1" in o[1] and "did you mean temp" in o[1], o)
o = configure(general + "[chat]\ntokens = 2\n[run]\ntokens = 4\ngreedy = off\nstop = \"never\"\nstop = 'ever'\n", *asked)
expect("sections", o["output_tokens"] == 4, o)
o = configure(general + "greedy = on\n", *asked), configure(general + "greedy\n", *asked)
expect("switches", o[0]["ids"] == o[1]["ids"] == configure(general, *asked, "--greedy")["ids"], o)
o = configure(general + "greedy = on\n", *asked, "--temp", 2)
expect("--temp and greedy of the file", o["ids"] == configure(general, *asked, "--temp", 2)["ids"], o)
o = configure(general, "bench", "-p", 4, "-n", 2, "-r", 1, "-o", "json")
expect("bench takes the model, but not the tokens of run", [r["n_gen"] for r in o] == [0, 2] and o[0]["model_filename"] == folder, o)
o = configure(general + "model = /nowhere\n", *asked, SEGUE_MODEL=folder)
expect("SEGUE_MODEL before the file", o["model"]["path"] == folder, o)
o = configure(general + "[chat]\ntemp = 0.5\n", "config", "--json")
expect("segue config", [(v["key"], v["value"], v["command"], v["line"]) for v in o["values"]]
       == [("model", folder, None, 3), ("seed", "7", None, 4), ("tokens", "9", None, 5), ("temp", "0.5", "chat", 7)], o)
expect("segue config as text", run("config")[1].split("\n")[1:] == [f"model = {folder}", "seed = 7", "tokens = 9", "[chat]", "temp = 0.5", ""], run("config")[1])
for bad, words in (("temp = hot\n", ["line 1", "hot"]), ("\ngredy = on\n", ["line 2", "greedy"]), ("[frob]\n", ["frob"]), ("greedy = maybe\n", ["on or off"])):
    write(os.path.dirname(path), "config", bad)
    for args in (asked, ["config"]): refused(2, args, "configuration", *words)
expect("version does not need it", run("version")[0] == 0)
write(os.path.dirname(path), "config", b"\0" * 10)
refused(4, ["config"], "text file")
os.remove(path)
done()
