#!/usr/bin/env python3
"""`segue pull` against a local test server: resumption, checksums, redirects, slow and malicious servers, unsafe names.
Takes the command from SEGUE_COMMAND. SPDX-License-Identifier: MIT"""
import hashlib, http.server, json, os, subprocess, sys, tempfile, threading

command = os.environ.get("SEGUE_COMMAND")
if not command or not os.path.exists(command):
    print("SKIP pull: the command is not built")
    sys.exit(77)
if "not in this build" in subprocess.run([command, "pull", "http://127.0.0.1:9/x"], capture_output=True, text=True).stderr:
    print("SKIP pull: built without libcurl")
    sys.exit(77)

DATA = bytes(i * 7 % 251 for i in range(300000))
SHA = hashlib.sha256(DATA).hexdigest()
log = []          # (path, Range header, Authorization header)
cuts = {}         # path -> how often to cut the transfer


class Server(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *a): pass

    def answer(self, body, code=200, **headers):
        self.send_response(code)
        for k, v in headers.items(): self.send_header(k.replace("_", "-"), v)
        if "Content_Length" not in headers: self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        try: self.wfile.write(body)
        except OSError: pass

    def do_GET(self):
        path, rng = self.path.split("?")[0], self.headers.get("Range")
        log.append((path, rng, self.headers.get("Authorization")))
        last = path.rsplit("/", 1)[-1]
        if path.startswith("/api/models/"): return self.api(path[len("/api/models/"):])
        if last == "missing.gguf": return self.answer(b"no such page " * 50, 404)
        if last == "gated.gguf" and self.headers.get("Authorization") != "Bearer letmein": return self.answer(b"", 401)
        if last == "page.gguf": return self.answer(b"\n<!DOCTYPE html><html><body>a model</body></html>")
        if last == "broken.gguf": return self.answer(b"oops", 500)
        if last == "loop.gguf": return self.answer(b"", 302, Location=path)
        if last == "moved.gguf": return self.answer(b"", 302, Location="/x/model.gguf")
        if last == "elsewhere.gguf": return self.answer(b"", 302, Location="file:///etc/passwd")
        if last == "huge.gguf":
            self.close_connection = True
            return self.answer(b"x" * 100, Content_Length=str(10 ** 17))
        if last in ("endless.gguf", "one.gguf") and "endless" in path:   # no Content-Length, far more than announced
            self.send_response(200); self.send_header("Connection", "close"); self.end_headers()
            self.close_connection = True
            try:
                for _ in range(2000): self.wfile.write(b"x" * 65536)
            except OSError: pass
            return
        if last == "trickle.gguf":
            self.send_response(200); self.send_header("Content-Length", "100000"); self.end_headers()
            try:
                while not stop.wait(0.2): self.wfile.write(b"xx"); self.wfile.flush()
            except OSError: pass
            return
        if last == "slow.gguf":
            self.send_response(200); self.send_header("Content-Length", "1000"); self.end_headers()
            self.wfile.write(b"x" * 10); self.wfile.flush()
            stop.wait(20)
            return
        body, first = DATA, 0
        if rng and last != "noresume.gguf":
            first = int(rng.split("=")[1].rstrip("-"))
            if self.headers.get("If-Range", '"v1"') != '"v1"': first = 0
            if first >= len(DATA): return self.answer(b"", 416)
        code = 206 if first else 200
        self.send_response(code)
        self.send_header("ETag", '"v1"')
        self.send_header("Content-Length", str(len(body) - first))
        if first: self.send_header("Content-Range", f"bytes {first}-{len(body) - 1}/{len(body)}")
        self.end_headers()
        cut = cuts.get(path, 0)
        if cut:
            cuts[path] -= 1
            self.wfile.write(body[first:first + 50000]); self.wfile.flush()
            self.close_connection = True
            self.connection.shutdown(2)
            return
        try: self.wfile.write(body[first:])
        except OSError: pass

    def api(self, rest):
        name = rest.split("/revision/")[0]
        lfs = {"sha256": SHA, "size": len(DATA)}
        files = {
            "org/folder": [("config.json", None), ("model.safetensors", lfs), ("original/consolidated.pth", lfs), (".gitattributes", None)],
            "org/one": [("one.gguf", lfs), ("README.md", None)],
            "org/many": [("a.gguf", lfs), ("b.gguf", lfs)],
            "org/split": [("m-00001-of-00002.gguf", lfs), ("m-00002-of-00002.gguf", lfs)],
            "org/evil": [("../../evil.safetensors", lfs), ("config.json", None), ("model.safetensors", lfs)],
            "org/liar": [("one.gguf", {"sha256": "0" * 64, "size": len(DATA)})],
            "org/endless": [("one.gguf", lfs)],
            "org/none": [("README.md", None)],
            "org/quants-GGUF": [("Quants-Q8_0.gguf", lfs), ("Quants-Q4_K_M.gguf", lfs), ("Quants-bf16-00001-of-00002.gguf", lfs),
                                ("Quants-bf16-00002-of-00002.gguf", lfs)],
        }.get(name)
        if files is None: return self.answer(b'{"error":"Repository not found"}', 404)
        out = [{"rfilename": n, "size": len(DATA), **({"lfs": l} if l else {})} for n, l in files]
        self.answer(json.dumps({"id": name, "sha": "abc123", "siblings": out}).encode())


stop = threading.Event()
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
server.daemon_threads = True
threading.Thread(target=server.serve_forever, daemon=True).start()
base = f"http://127.0.0.1:{server.server_port}"
failures = 0


def pull(home, *args, **env):
    environment = {**os.environ, "SEGUE_HOME": home, "HF_ENDPOINT": base, "HOME": home, **env}
    for k in ("HF_HOME", "HF_HUB_CACHE", "HF_TOKEN", "http_proxy", "https_proxy", "all_proxy"):
        if k not in env: environment.pop(k, None)
    environment["no_proxy"] = "127.0.0.1"
    r = subprocess.run([command, "pull", *args], capture_output=True, text=True, env=environment, timeout=500)
    return r.returncode, r.stdout, r.stderr


def expect(what, condition, detail=""):
    global failures
    if not condition:
        failures += 1
        print(f"FAIL {what}: {detail}")


def one_line(what, text, *words):
    expect(what, text.count("\n") == 1 and text.startswith("segue: ") and all(w in text for w in words), text)


def files_below(folder):
    return sorted(os.path.relpath(os.path.join(d, f), folder) for d, _, fs in os.walk(folder) for f in fs)


with tempfile.TemporaryDirectory() as top:
    def home(name):
        p = os.path.join(top, name); os.makedirs(p); return p

    h = home("url")
    code, out, err = pull(h, base + "/x/model.gguf?download=true", "--sha256", SHA.upper())
    path = os.path.join(h, "data/models/model.gguf")
    expect("url", code == 0 and out == path + "\n" and open(path, "rb").read() == DATA, (code, out, err))
    before = len(log)
    code, out, err = pull(h, base + "/x/model.gguf", "--sha256", SHA, "--json")
    expect("already present", code == 0 and len(log) == before and json.loads(out)["files"][0]["already_present"], (code, out, err))
    code, out, err = pull(h, base + "/y/other.gguf", "--sha256", "0" * 64)
    expect("wrong checksum", code == 4 and files_below(os.path.join(h, "data")) == ["models/model.gguf"], (code, files_below(h)))
    one_line("wrong checksum", err, "SHA-256")

    h = home("cut")
    cuts["/x/cut.gguf"] = 2
    code, out, err = pull(h, base + "/x/cut.gguf", "--sha256", SHA)
    ranges = [r for p, r, _ in log if p == "/x/cut.gguf"]
    expect("connection lost, resumed at once", code == 0 and ranges == [None, "bytes=50000-", "bytes=100000-"], (code, err, ranges))
    cuts["/x/cut2.gguf"] = 99
    code, out, err = pull(h, base + "/x/cut2.gguf", "--sha256", SHA)
    expect("connection lost for good", code == 1 and not os.path.exists(os.path.join(h, "data/models/cut2.gguf")), (code, err))
    one_line("connection lost for good", err)
    cuts["/x/cut2.gguf"] = 0
    log.clear()
    code, out, err = pull(h, base + "/x/cut2.gguf", "--sha256", SHA)
    expect("resumed later", code == 0 and log[0][1] == "bytes=200000-", (code, err, log))
    expect("no partial file is left", files_below(os.path.join(h, "data/models")) == ["cut.gguf", "cut2.gguf"], files_below(h))
    cuts["/x/noresume.gguf"] = 1
    code, out, err = pull(h, base + "/x/noresume.gguf", "--sha256", SHA)
    expect("server without ranges", code == 0, (code, err))

    h = home("changed")
    part = os.path.join(h, "data/models"); os.makedirs(part)
    open(os.path.join(part, ".model.gguf.part"), "wb").write(b"old version" * 100)
    open(os.path.join(part, ".model.gguf.part-etag"), "w").write('"v0"')
    code, out, err = pull(h, base + "/x/model.gguf", "--sha256", SHA)
    expect("file changed between two attempts", code == 0 and open(os.path.join(part, "model.gguf"), "rb").read() == DATA, (code, err))
    open(os.path.join(part, ".long.gguf.part"), "wb").write(DATA + b"more")
    code, out, err = pull(h, base + "/x/long.gguf", "--sha256", SHA)
    expect("part longer than the file", code == 0, (code, err))

    h = home("bad")
    for name, want, words in [("missing.gguf", 1, ["404"]), ("loop.gguf", 1, ["redirect"]), ("huge.gguf", 1, ["GB free"]),
                              ("elsewhere.gguf", 1, []), ("gated.gguf", 1, ["HF_TOKEN"]), ("page.gguf", 4, ["web page"]), ("broken.gguf", 1, ["500", "try again"])]:
        log.clear()
        code, out, err = pull(h, f"{base}/x/{name}")
        expect(name, code == want and out == "" and not os.path.exists(os.path.join(h, "data/models", name)), (code, out, err))
        one_line(name, err, *words)
        expect(name + ": requests", len(log) == {"loop.gguf": 11, "broken.gguf": 4}.get(name, 1), len(log))   # redirects, retries
    code, out, err = pull(h, f"{base}/x/slow.gguf", "--timeout", "1")
    expect("slow", code == 1, (code, err)); one_line("slow", err, "bytes per second")
    code, out, err = pull(h, f"{base}/x/trickle.gguf", "--timeout", "2")
    expect("a trickle", code == 1, (code, err)); one_line("a trickle", err, "bytes per second")
    code, out, err = pull(h, "org/endless")
    expect("a body without a length ends at the announced size", code == 4 and sum(
        os.path.getsize(os.path.join(d, f)) for d, _, fs in os.walk(os.path.join(h, "data/models/org--endless")) for f in fs)
        <= len(DATA) + 65536, (code, err, files_below(h)))
    one_line("a body without a length", err, "more than the announced")
    shared = os.path.join(h, "data/models"); victim = os.path.join(h, "victim")
    open(victim, "w").write("mine")
    for name in (".linked.gguf.part", ".linked.gguf.part-etag"):
        os.symlink(victim, os.path.join(shared, name))
        code, out, err = pull(h, base + "/x/linked.gguf", "--sha256", SHA)
        expect(name + ": a link is not followed", open(victim).read() == "mine" and (code == 1) == (name == ".linked.gguf.part"), (code, err))
        if os.path.lexists(os.path.join(shared, name)): os.unlink(os.path.join(shared, name))
    os.link(victim, os.path.join(shared, ".hard.gguf.part"))
    code, out, err = pull(h, base + "/x/hard.gguf", "--sha256", SHA)
    expect("nor a second name of a file", code == 1 and open(victim).read() == "mine", (code, err))
    if os.geteuid() == 0:
        foreign = os.path.join(shared, ".foreign.gguf.part"); open(foreign, "w").close(); os.chown(foreign, 12345, 12345); os.chmod(foreign, 0o666)
        code, out, err = pull(h, base + "/x/foreign.gguf", "--sha256", SHA)
        expect("a part of another user", code == 1 and "not a plain file of this user" in err and os.path.getsize(foreign) == 0, (code, err))
    code, out, err = pull(h, f"{base}/x/missing.gguf", "--json")
    expect("json error", code == 1 and json.loads(out)["error"]["code"] == 1, (code, out))
    code, out, err = pull(h, "ftp://127.0.0.1/x.gguf"); expect("ftp", code == 2, (code, err))
    code, out, err = pull(h, base + "/x/.."); expect("dots", code == 2, (code, err))
    code, out, err = pull(h, base + "/x/%2e%2e%2fevil"); expect("escaped dots", code == 2, (code, err))
    code, out, err = pull(h, "../../etc"); expect("id of dots", code == 2, (code, err))
    code, out, err = pull(h, "http://127.0.0.1:1/x.gguf"); expect("no server", code == 1, (code, err)); one_line("no server", err)
    code, out, err = pull(h, base + "/x/gated.gguf", HF_TOKEN="letmein"); expect("token", code == 0, (code, err))
    log.clear()
    code, out, err = pull(h, f"http://localhost:{server.server_port}/x/model.gguf", HF_TOKEN="letmein")
    expect("token is sent to its host only", code == 0 and log[0][2] is None, (code, err, log))
    log.clear()
    code, out, err = pull(h, base + "/x/other.gguf", HF_TOKEN="letmein", HF_ENDPOINT=base[:-1])
    expect("a host whose name only begins like the hub's", code == 0 and log[0][2] is None, (code, err, log))
    code, out, err = pull(h, base + "/x/moved.gguf"); expect("redirect", code == 0, (code, err))

    h = home("id")
    code, out, err = pull(h, "org/folder", "--json")
    models = os.path.join(h, "data/models")
    expect("folder", code == 0 and files_below(models) == ["org--folder/config.json", "org--folder/model.safetensors"], (code, err, files_below(models)))
    expect("pinned commit", any("/resolve/abc123/" in p for p, _, _ in log), log)
    code, out, err = pull(h, "org/one")
    expect("one gguf", code == 0 and out.endswith("org--one/one.gguf\n"), (code, out, err))
    code, out, err = pull(h, "org/many"); expect("many ggufs", code == 2 and "a.gguf, b.gguf" in err, (code, err))
    code, out, err = pull(h, "org/many", "--file", "b.*"); expect("named gguf", code == 0 and "b.gguf" in out, (code, err))
    code, out, err = pull(h, "org/split"); expect("split gguf", code == 0 and len(files_below(models + "/org--split")) == 2, (code, err))
    code, out, err = pull(h, "org/evil", "--file", "*"); expect("name that leaves the folder", code == 4 and not any("evil.safe" in f for f in files_below(top)), (code, err))
    code, out, err = pull(h, "org/liar"); expect("wrong checksum of the hub", code == 4 and "SHA-256" in err, (code, err))
    expect("a failed download leaves no folder", not os.path.exists(os.path.join(models, "org--liar")), os.listdir(models))
    code, out, err = pull(h, "org/none"); expect("repository without a model", code == 4, (code, err))
    code, out, err = pull(h, "org/absent"); expect("unknown id", code == 1 and "404" in err, (code, err))

    h = home("page")
    code, out, err = pull(h, base + "/org/folder")
    expect("the page of a model", code == 0 and files_below(os.path.join(h, "data/models/org--folder")) == ["config.json", "model.safetensors"], (code, err))
    code, out, err = pull(h, base + "/org/folder/blob/main/some.gguf")
    expect("the page of a file", code == 0 and out.endswith("models/some.gguf\n") and any(p == "/org/folder/resolve/main/some.gguf" for p, _, _ in log), (code, out, err))

    # Several quantisations of one repository.
    h = home("quants")
    code, out, err = pull(h, "org/quants-GGUF"); expect("no quantisation given", code == 2 and "Q4_K_M" in err and ":" in err, (code, err))
    code, out, err = pull(h, "org/quants-GGUF:Q5_K_M"); expect("no such quantisation", code == 2 and "Q8_0" in err, (code, err))
    for label, file in (("q8_0", "Quants-Q8_0.gguf"), ("Q4_K_M", "Quants-Q4_K_M.gguf"), ("BF16", "Quants-bf16-00001-of-00002.gguf")):
        code, out, err = pull(h, "org/quants-GGUF:" + label)
        expect(f"quantisation {label}", code == 0 and out.endswith("org--quants-GGUF/" + file + "\n"), (code, out, err))
    listed = subprocess.run([command, "models", "--json"], env={**os.environ, "SEGUE_HOME": h}, capture_output=True, text=True)
    o = json.loads(listed.stdout)["models"]
    expect("each is listed", [(m["name"], m["bytes"], m["files"]) for m in o] == [("org/quants-GGUF:Q4_K_M", 300000, 1), ("org/quants-GGUF:Q8_0", 300000, 1),
           ("org/quants-GGUF:bf16", 600000, 2)], o)
    r = subprocess.run([command, "models", "rm", "org/quants-GGUF:bf16"], env={**os.environ, "SEGUE_HOME": h})
    expect("rm of one", files_below(os.path.join(h, "data/models")) == ["org--quants-GGUF/Quants-Q4_K_M.gguf", "org--quants-GGUF/Quants-Q8_0.gguf"])
    for label in ("Q8_0", "Q4_K_M"): subprocess.run([command, "models", "rm", "org/quants-GGUF:" + label], env={**os.environ, "SEGUE_HOME": h})
    expect("rm of the last one", os.listdir(os.path.join(h, "data/models")) == [], os.listdir(os.path.join(h, "data/models")))

    h = home("hub")
    snapshot = os.path.join(h, "hub/models--org--folder/snapshots/0123abcd"); os.makedirs(snapshot)
    os.makedirs(os.path.join(h, "hub/models--org--folder/refs"))
    open(os.path.join(h, "hub/models--org--folder/refs/main"), "w").write("0123abcd")
    open(os.path.join(snapshot, "config.json"), "w").write("{}")
    log.clear()
    code, out, err = pull(h, "org/folder", HF_HOME=h)
    expect("incomplete cache: downloaded", code == 0 and log, (code, err))
    subprocess.run([command, "models", "rm", "org/folder"], env={**os.environ, "SEGUE_HOME": h})
    open(os.path.join(snapshot, "model.safetensors"), "wb").write(DATA)
    log.clear()
    code, out, err = pull(h, "org/folder", HF_HOME=h)
    expect("cache: linked", code == 0 and not log and os.path.islink(os.path.join(h, "data/models/org--folder")), (code, out, err, log))
    code = subprocess.run([command, "models", "rm", "org/folder"], env={**os.environ, "SEGUE_HOME": h}).returncode
    expect("rm of a link leaves the cache", code == 0 and os.path.exists(os.path.join(snapshot, "model.safetensors")))

stop.set()
print("pull:", "all as it should be" if not failures else f"{failures} failures")
sys.exit(1 if failures else 0)
