#!/usr/bin/env python3
"""The examples of the documents work: the commands of README.md, docs/TRAINING.md and docs/ANE.md and those of the help pages
that cli_pages.py leaves out run with a tiny model, in the order of the text; a remark "exit N" is the expected exit code. The C
code of README.md, docs/API.md and docs/SCHEDULER.md is compiled, linked with the library of argument 2 by the compiler of
argument 1, and run. Left out: `make` and `segue pull`, which need the network, `segue serve` (tests/serve), and `segue energy`
(tests/meter). SPDX-License-Identifier: MIT"""
import os, platform, re, shutil, struct, subprocess, sys
from clitest import *

LEFT_OUT = ("make ", "segue pull", "segue serve")
ON_A_MAC = ("segue ane-probe", "segue ane-report")       # exit 3 elsewhere
here = os.path.join(top.name, "here")
binary = os.path.join(top.name, "bin")
folder = tiny_model(context=8192, vocab=5000)            # docs/ANE.md names token ids below 5000
os.makedirs(os.path.join(here, "docs"))
os.makedirs(binary)
os.symlink(os.path.abspath(command), os.path.join(binary, "segue"))
python = write(binary, "python3", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
os.chmod(python, 0o755)
has_packages = not subprocess.run([sys.executable, "-c", "import numpy, gguf"], capture_output=True).returncode


def works(document, line, code=0):
    r = subprocess.run(["sh", "-c", line], cwd=here, input=b"Hi!\n", capture_output=True, timeout=LIMIT,
                       env={**environment, "SEGUE_MODEL": folder, "SEGUE_COMMAND": "segue", "PATH": binary + ":" + os.environ["PATH"]})
    expect(f"{document}: {line}: exit {code}", r.returncode == code, (r.returncode, r.stderr.decode(errors="replace")))


def blocks(document, *languages):
    text = open(os.path.join(source, document), encoding="utf-8").read()
    return [body for language, body in re.findall(r"^```(\w*)\n(.*?)^```", text, re.S | re.M) if language in languages]


def commands_of(document):
    """(command, exit code) of the blocks of a document; a remark begins with # after a blank."""
    for line in "\n".join(blocks(document, "sh", "")).split("\n"):
        text, _, remark = line.partition(" #")
        if not text.startswith(("segue ", "python3 ", "make ")) or text.startswith(LEFT_OUT): continue
        if text.startswith("python3 ") and not has_packages:
            print(f"SKIP {text}: the Python packages numpy and gguf are missing")
            continue
        code = re.search(r"exit (\d)", remark)
        yield text.strip(), int(code[1]) if code else 0


# --- the files that the examples name ---

for name in ("README.md", "docs/examples"): os.symlink(os.path.join(source, name), os.path.join(here, name))
works("files", f"segue quantize -m {folder} -o model.gguf --type f16")
for name in ("IN.gguf", "MODEL.gguf", "MODEL"): shutil.copy(os.path.join(here, "model.gguf"), os.path.join(here, name))
write(here, "TEXT", "The sky is blue. " * 20)
write(here, "chats.jsonl", "".join(json.dumps({"messages": [{"role": "user", "content": "Say " + w}, {"role": "assistant", "content": w}]})
                                   + "\n" for w in ("one", "two", "three", "four")))
header = json.dumps({"a_in": {"dtype": "F16", "shape": [1, 64, 1, 32], "data_offsets": [0, 4096]}}).encode()
write(here, "in.safetensors", struct.pack("<Q", len(header)) + header + bytes(4096))

# --- documents and help pages ---

for document in ("README.md", "docs/TRAINING.md", "docs/ANE.md"):
    found = list(commands_of(document))
    expect(f"{document} has commands", found)
    for line, code in found: works(document, line, code)
works("files", "segue run -p Hi -n 4 --record answer.record --unit ref")
shutil.rmtree(os.path.join(here, "adapter"))              # of docs/TRAINING.md, from other data
for name in ("quantize", "imatrix", "train", "replay", "ane-probe", "ane-report"):
    example = run(name, "--help")[1].rstrip("\n").split("\n")[-1][len("example: "):]
    works(f"{name} --help", example, 3 if example.startswith(ON_A_MAC) and platform.system() != "Darwin" else 0)

# --- C code ---

INCLUDES = "#include <segue.h>\n#include <stdio.h>\n#include <string.h>\n"
OPEN = """    segue_error err; segue_unit *unit; segue_model *model; segue_engine *engine;
    if (segue_unit_open(&unit, NULL, &err) || segue_model_open(&model, path, NULL, &err) ||
        segue_engine_open(&engine, model, &unit, 1, NULL, &err)) return 1;\n"""
PROMPT = "    int32_t prompt[] = {1, 2, 3}; size_t prompt_n = 3, n = 3; (void)prompt; (void)prompt_n; (void)n;\n"
AROUND = {
    "README.md": ("    segue_error err; segue_unit *unit; segue_model *model; segue_engine *engine; segue_session *session;\n"
                  "    segue_text stream = SEGUE_INIT(segue_text); const char *prompt = \"Hi\";\n"
                  "    int32_t tokens[512], token; char text[512]; size_t n, len;\n", ""),
    "docs/API.md": (PROMPT, ""),
    "docs/SCHEDULER.md": (OPEN + PROMPT + "    int32_t tokens[64]; size_t got;\n", ""),
}
compiler, library = sys.argv[1], sys.argv[2]
for document, (before, after) in AROUND.items():
    code = blocks(document, "c")[0].replace('"model.gguf"', "path")
    program = (INCLUDES + "static void use(const int32_t *t, size_t n) { if (n) printf(\"%d\\n\", t[0]); }\n"
               "int main(int argc, char **argv)\n{\n    const char *path = argv[argc - 1];\n    (void)use;\n" + before + code + after +
               "    return 0;\n}\n")
    file = write(here, "example.c", program)
    built = subprocess.run([compiler, "-std=c11", "-I" + os.path.join(source, "include"), file, library, "-o", file[:-2],
                            "-Wl,-rpath," + os.path.dirname(library)], capture_output=True, text=True)
    expect(f"{document}: the example compiles", built.returncode == 0, built.stderr + program)
    if built.returncode == 0: works(document, f"./example {folder} > answer")
    expect(f"{document}: the example prints tokens", built.returncode or os.path.getsize(os.path.join(here, "answer")))
done()
