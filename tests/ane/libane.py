#!/usr/bin/env python3
"""ane:linux against a double of libane: where the library is missing or short, programs that are not compiled yet, what a
compiled file may get wrong, failing calls, and the tokens of a model, which are those of the software NPU.

    libane.py SEGUE DOUBLE SHORT [report]    the folders of two shared objects libane.so; report: `ane-report` as a whole, which
                                             takes minutes. Exit 77: the Python packages are missing
"""
import json, os, re, shutil, struct, subprocess, sys, tempfile

try:
    import tiny_llama
except ImportError as e:
    print(f"SKIP libane: {e}")
    sys.exit(77)

segue, double, short = (os.path.abspath(a) for a in sys.argv[1:4])
LAYERS, TILE, CHANNELS = 2, 16384, 32
top = tempfile.TemporaryDirectory(prefix="segue-libane-")
os.chdir(top.name)
env = dict(os.environ, SEGUE_HOME=top.name)
env.pop("LD_LIBRARY_PATH", None)


def ports(text):
    """Inputs and outputs of the function: name -> shape, in alphabetical order."""
    inputs = text[text.index("func main"):text.index(") {")]
    shapes = {name: [int(d) for d in dims.split(",")] for dims, name in re.findall(r"tensor<\w+, \[([\d, ]+)\]> (\w+)", text)}
    names = [re.findall(r"\]> (\w+)", inputs), re.findall(r"\w+", text[text.rindex("->") + 2:].split(")")[0])]
    return [{n: shapes[n] for n in sorted(side)} for side in names]


def anec(folder, path, change=lambda head: None):
    """What a compiler would write: the head of the format, and for the double the folder of the source."""
    inputs, outputs = ports(open(os.path.join(folder, "model.mil")).read())
    tiles, shapes = [0] * CHANNELS, [[0] * 6 for _ in range(CHANNELS)]
    tiles[0] = 1
    for at, shape in enumerate(list(outputs.values()) + list(inputs.values()), 4):
        row = -(-2 * shape[3] // 64) * 64
        shapes[at] = shape + [row * shape[2], row]
        tiles[at] = -(-shape[0] * shape[1] * shape[2] * row // TILE)
    body = os.path.abspath(folder).encode() + b"\0"
    head = dict(size=len(body), inputs=len(inputs), outputs=len(outputs), tiles=tiles, shapes=shapes)
    change(head)
    packed = struct.pack("<QIIQQII", head["size"], 628, 1, 628, 0, head["inputs"], head["outputs"])
    packed += struct.pack(f"<{CHANNELS}I", *head["tiles"]) + struct.pack(f"<{6 * CHANNELS}Q", *sum(head["shapes"], []))
    with open(path, "wb") as f: f.write(packed.ljust(2048, b"\0") + body)


def compile_all(programs, **options):
    new = 0
    for name in os.listdir(programs):
        path = os.path.join(programs, name + ".anec")
        if os.path.isdir(os.path.join(programs, name)) and not os.path.exists(path):
            anec(os.path.join(programs, name), path, **options)
            new += 1
    return new


def run(*args, library=None, fault=None):
    e = dict(env)
    if library: e["LD_LIBRARY_PATH"] = library
    if fault: e["SEGUE_LIBANE"] = fault
    r = subprocess.run([segue, *args], capture_output=True, text=True, env=e, timeout=500)
    return r.returncode, r.stdout, r.stderr


def answer(unit, **options):
    return run("run", "-m", "m.gguf", "--unit", unit, "--ids", "1,2,3", "-n", "12", "--greedy", "--ignore-eos", "--json", "-q",
               **options)


def fails(code, *texts, unit="ane:linux,programs=p", **options):
    got, out, err = answer(unit, **options)
    assert got == code and all(t in err for t in texts) and len(err.splitlines()) <= 2, (got, err)


def until_compiled(*args):
    """Runs, compiles what was asked for, and runs again, until nothing is missing."""
    for turn in range(40):
        result = run(*args, library=double)
        if not compile_all("p"): return turn, result
    raise AssertionError("programs are asked for without end")


def check_report():
    """The report of the engine, whole, after its programs were compiled."""
    args = ("ane-report", "--unit", "ane:linux,programs=p", "-o", "report.json")
    turns, (code, out, err) = until_compiled(*args)
    report = json.load(open("report.json"))
    assert code == 0 and report["device"]["software"] is False and "no engine ran" not in err, (code, err)
    answers = {a["name"]: a for a in report["answers"]}
    assert answers["runs"]["settled"] and answers["concat"]["settled"], answers
    assert report["check"]["tokens_equal"] == report["check"]["n_gen"], report["check"]
    print(f"libane: ok, {len(os.listdir('p'))} entries, {turns} turns of the report")


if sys.argv[4:] == ["report"]:
    check_report()
    sys.exit(0)

tiny_llama.write("m.gguf", LAYERS, 5)
fails(3, "libane.so", "not on this machine", "ane:soft")
fails(3, "libane.so", "__ane_read", library=short)
fails(2, "programs=", unit="ane:linux", library=double)
fails(2, "programs=", unit="ane:soft,programs=p")
fails(2, "soft, linux", unit="ane:windows")
fails(2, "on_violation", unit="ane:linux,programs=p,on_violation=faithful", library=double)

# The first run asks for the first program, whose text and weights it has written.
fails(3, ".anec does not exist", "model.mil", library=double)
(asked,) = os.listdir("p")
assert sorted(os.listdir(os.path.join("p", asked))) == ["model.mil", "weights"], os.listdir(os.path.join("p", asked))

# A compiled file that does not fit.
path = os.path.join("p", asked + ".anec")
def wrong(texts, change, **options):
    anec(os.path.join("p", asked), path, change)
    fails(3, *texts, library=double, **options)
wrong(["2 outputs, the text has"], lambda h: h.update(inputs=h["inputs"] + 1))
wrong(["rows of"], lambda h: h["shapes"][4].__setitem__(5, 128 + h["shapes"][4][5]))
wrong(["compile this text again"], lambda h: h.update(tiles=[min(t, 1) for t in h["tiles"]]))
for change, text in ((lambda h: h.update(size=1 << 40), "cut off"), (lambda h: h.update(outputs=99), "impossible"),
                     (lambda h: h.update(size=0), "not an ANEC file")):
    anec(os.path.join("p", asked), path, change)
    fails(4, text, library=double)
with open(path, "wb") as f: f.write(b"short")
fails(4, "not an ANEC file", library=double)
os.remove(path)

turns, (code, out, err) = until_compiled("run", "-m", "m.gguf", "--unit", "ane:linux,programs=p", "--ids", "1,2,3", "-n", "12",
                                         "--greedy", "--ignore-eos", "--json", "-q")
assert code == 0 and turns == 2, (code, turns, err)            # a program of 32 rows and one of one row
got, soft = json.loads(out), json.loads(answer("ane:soft,profile=ieee")[1])
assert got["ids"] == soft["ids"], (got["ids"], soft["ids"])
linux = got["units"][-1]
assert linux["dispatches"] == soft["units"][-1]["dispatches"] and got["compiles"] == 0, linux
assert linux["unit"].startswith("ane:linux") and "software" not in json.dumps(linux), linux

# Other weights are another program, although the text is the same.
anec_of = {n for n in os.listdir("p") if n.endswith(".anec")}
shapes_zero = lambda h: h.update(shapes=[[0] * 6 for _ in range(CHANNELS)])     # a file that does not tell its rows
for n in anec_of: anec(os.path.join("p", n[:-5]), os.path.join("p", n), shapes_zero)
assert json.loads(answer("ane:linux,programs=p", library=double)[1])["ids"] == soft["ids"]

fails(3, "cannot load", "/dev/accel", library=double, fault="init")
code, out, err = answer("ane:linux,programs=p", library=double, fault="exec")
assert code == 3 and "ane_exec failed (-1): No such device" in err, (code, err)
code, out, err = answer("ane:linux,programs=p", library=double, fault="hang")
assert code == 7 and "did not answer within 2 s" in err, (code, err)
print(f"libane: ok, {turns} turns")
