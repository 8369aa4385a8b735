#!/usr/bin/env python3
"""Names of models: several quantisations of a repository, short names, suggestions; models that are downloaded when they are
needed; folders without HOME. SPDX-License-Identifier: MIT"""
import http.server, shutil, threading
from clitest import *
from terminal import Terminal

m = tiny_model()
models = os.path.join(home, "data/models")
repository = os.path.join(models, "org--Tiny-1B-GGUF")
os.makedirs(repository)
for label in ("q8_0", "q4_0"):
    code, out, err = run("quantize", "-m", m, "-o", f"{repository}/Tiny-1B-{label.upper()}.gguf", "--type", label)
    expect("quantize", code == 0, err)
shutil.copy(f"{repository}/Tiny-1B-Q8_0.gguf", f"{models}/Plain.Q8_0.gguf")


def path_of(name):
    code, out, err = run("inspect", "--json", "-m", name)
    return os.path.basename(json.loads(out)["path"]) if code == 0 else (code, err)


listed = json.loads(run("models", "--json")[1])["models"]
expect("models", [(x["name"], x["family"], x["storage"], x["file"]) for x in listed]
       == [("Plain.Q8_0.gguf", "llama", "q8_0", "Plain.Q8_0.gguf"),
           ("org/Tiny-1B-GGUF:Q4_0", "llama", "q4_0", "org--Tiny-1B-GGUF/Tiny-1B-Q4_0.gguf"),
           ("org/Tiny-1B-GGUF:Q8_0", "llama", "q8_0", "org--Tiny-1B-GGUF/Tiny-1B-Q8_0.gguf")], listed)
expect("sizes and dates", all(x["bytes"] == os.path.getsize(x["path"]) and x["date"][:2] == "20" for x in listed), listed)
expect("--list models", run("--list", "models")[1].split("\n")[:-1] == [x["name"] for x in listed])
text = run("models")[1]
expect("models as text", all(w in text for w in ("NAME", "DATE", "org/Tiny-1B-GGUF:Q4_0", "q4_0", "Tiny-1B-Q8_0.gguf")), text)
for name in ("org/Tiny-1B-GGUF:Q4_0", "ORG/tiny-1b-gguf:q4_0", "tiny-1b:q4_0", "Tiny-1B-GGUF:Q4_0"):
    expect(f"name {name}", path_of(name) == "Tiny-1B-Q4_0.gguf", path_of(name))
for name in ("Plain.Q8_0.gguf", "plain.q8_0", "plain", "PLAIN:q8_0"):
    expect(f"name {name}", path_of(name) == "Plain.Q8_0.gguf", path_of(name))
for name in ("org/Tiny-1B-GGUF", "tiny-1b", repository): refused(2, ["inspect", "-m", name], "Q4_0", "Q8_0")
refused(1, ["inspect", "-m", "plian"], "did you mean Plain.Q8_0.gguf?")
refused(1, ["inspect", "-m", "tiny-2b"], "did you mean org/Tiny-1B-GGUF")
linked = tiny_model("linked")
os.symlink(linked, f"{models}/org--linked")
size = [x["bytes"] for x in json.loads(run("models", "--json")[1])["models"] if x["name"] == "org/linked"]
expect("the size of a linked model", size == [sum(os.path.getsize(os.path.join(linked, f)) for f in os.listdir(linked))], size)

# A hub with one repository, the default's: a model is downloaded only after consent.
DEFAULT = "HuggingFaceTB/SmolLM2-135M-Instruct"
asked = []


class Hub(http.server.BaseHTTPRequestHandler):
    def log_message(self, *a): pass

    def do_GET(self):
        path = self.path.split("?")[0]
        asked.append(path)
        body, code = b"{}", 404
        if path == "/api/models/" + DEFAULT:
            files = [{"rfilename": f, "size": os.path.getsize(os.path.join(m, f))} for f in os.listdir(m)]
            body, code = json.dumps({"sha": "abc", "siblings": files}).encode(), 200
        elif path.startswith(f"/{DEFAULT}/resolve/abc/"):
            with open(os.path.join(m, path.rsplit("/", 1)[1]), "rb") as f: body, code = f.read(), 200
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


hub = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
hub.daemon_threads = True
threading.Thread(target=hub.serve_forever, daemon=True).start()
there = {"HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "no_proxy": "127.0.0.1"}
built = "not in this build" not in run("pull", "http://127.0.0.1:9/x.gguf")[2]
refused(2, ["run", "-p", "x"], "--yes", "-m", **there)
refused(1, ["run", "-p", "x", "-m", DEFAULT + ":Q8_0"], "--yes", **there)
expect("nothing was asked of the hub", not asked, asked)
if built:
    t = Terminal("run", "-p", "x", "-n", 2, **there)
    t.wait("the question", b"[Y/n]")
    t.send("n\r")
    expect("refused on the terminal", t.end() == 2 and not asked, (t.all, asked))
    code, out, err = run("run", "-p", "x", "-n", 2, "--yes", "-m", "org/absent", **there)
    expect("a repository that does not exist", code == 1 and "404" in err, (code, err))
    t = Terminal("run", "-p", "x", "-n", 2, "--greedy", **there)
    t.wait("the question", b"[Y/n]")
    t.send("y\r")
    expect("downloaded after consent", t.end() == 0 and asked, t.all)
    asked.clear()
    code, out, err = run("run", "-p", "x", "-n", 2, "--greedy", **there)
    expect("the model of pull is the default", code == 0 and not asked, (code, err, asked))
    expect("its short name", path_of("smollm2-135m-instruct") == DEFAULT.replace("/", "--"), path_of("smollm2-135m-instruct"))
    shutil.rmtree(os.path.join(models, DEFAULT.replace("/", "--")))
    code, out, err = run("run", "-p", "x", "-n", 2, "--yes", "--quiet", **there)
    expect("--yes", code == 0 and not err and asked, (code, err))
hub.shutdown()

# Without HOME nothing is written to, or found in, the current folder.
bare = {k: v for k, v in environment.items() if k not in ("HOME", "SEGUE_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME")}
for extra in ({}, {"XDG_CACHE_HOME": "relative", "XDG_DATA_HOME": "relative"}):
    for args in (["cache", "--json"], ["models", "--json"]):
        r = subprocess.run([command, *args], capture_output=True, text=True, env={**bare, **extra}, cwd=top.name)
        folder = json.loads(r.stdout)["folder"]
        expect(f"{args} without HOME", folder.startswith("/") and "relative" not in folder, folder)
done()
