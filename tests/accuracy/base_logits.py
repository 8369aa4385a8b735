"""The base logits that several tests compare with: `ref` on the default model over this project's own documents. It takes minutes,
so `make test` computes them once, in the fixture `default_base`.

    base_logits.py SEGUE SOURCE FILE        write FILE; exit 77: the default model is not here
SPDX-License-Identifier: MIT"""
import json, os, subprocess, sys

BYTES = 17000  # of text: about 5,000 tokens, of which half count
CHUNK = "512"


def write_text(source, path):
    parts = [open(os.path.join(source, "docs", n), "rb").read() for n in ("ARCHITECTURE.md", "STATE.md", "FAMILIES.md")]
    with open(path, "wb") as f: f.write(b"".join(parts)[:BYTES])
    return path


def make(segue, source, path, model=()):
    """Writes the base logits; the text is left beside them, as PATH.txt."""
    cmd = [segue, "eval", *model, "-f", write_text(source, path + ".txt"), "-c", CHUNK, "--json", "--unit", "ref", "--kl-out", path]
    r = subprocess.run(cmd, capture_output=True, text=True)
    if r.returncode: sys.exit(f"base_logits: {' '.join(cmd)}: exit {r.returncode}: {r.stderr}")
    return path


def shared(segue, source, path):
    """The file of the fixture, which the environment names; without it, as when a test is started by hand, a new one at PATH."""
    there = os.environ.get("SEGUE_BASE_LOGITS", "")
    return there if os.path.exists(there) else make(segue, source, path)


if __name__ == "__main__":
    if subprocess.run([sys.argv[1], "inspect", "--json"], capture_output=True).returncode:
        print("SKIP default_base: the default model is not in the data folder")
        sys.exit(77)
    os.makedirs(os.path.dirname(os.path.abspath(sys.argv[3])), exist_ok=True)
    make(*sys.argv[1:])
