#!/usr/bin/env python3
"""Load on HTTP servers of the OpenAI form (`segue serve`, llama-server). Needs Python's standard library only.

    serve_load.py load --server 'NAME=COMMAND with {port}' ... [--clients 8,16] [--prompt 256] [--shared 128] [--answer 64]
                       [--requests 3] [--pairs 3] [--vocab 49152] [--json FILE] [--body '{"grammar": ...}'] [--stagger 0.5]
                       [--processes 1] [--beside-plain]
    serve_load.py soak --server ...  [--total 10000] [--clients 16]
    serve_load.py idle --server ...  [--connections 500]

load  starts the servers and lets N clients send --requests requests each, one after the other, streamed, as lists of token ids;
      the first --shared of --prompt tokens are the same for all. Clients begin together, or one after the other within --stagger
      seconds, and are spread over --processes processes. Servers take turns, --pairs times, in alternating order. Printed:
      generated tokens per second, all tokens per second, time to the first token and time between tokens (p50, p95), generated
      tokens per second of the server's processor time, and the median of the per-pair ratios to the last server. --beside-plain:
      each server also takes a turn without --body, as "plain", last: what the fields of --body cost.
soak  sends a mix of requests (streamed or not, chats, constraints, bad ones; every fifth is left before its end) and reports errors,
      the resident memory after a tenth and at the end, and requests that still run.
idle  opens connections that send nothing, others that were used once, and reports the memory per connection.
SPDX-License-Identifier: MIT"""
import argparse, asyncio, json, multiprocessing, os, random, re, shlex, signal, socket, statistics, subprocess, sys, time, urllib.request


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """A server process that answers /health."""

    def __init__(self, text):
        self.name, command = text.split("=", 1)
        self.port = free_port()
        self.log = open(f"{self.name}.serve.log", "w")
        begin = time.monotonic()
        self.process = subprocess.Popen(shlex.split(command.format(port=self.port)), stdout=self.log, stderr=self.log)
        while True:
            if self.process.poll() is not None: sys.exit(f"{self.name}: ended with {self.process.returncode}; see {self.log.name}")
            try:
                if urllib.request.urlopen(self.url("/health"), timeout=5).status == 200: break
            except OSError: pass
            if time.monotonic() - begin > 300: sys.exit(f"{self.name}: not ready after 300 s; see {self.log.name}")
            time.sleep(0.05)
        self.ready_s = time.monotonic() - begin

    def url(self, path): return f"http://127.0.0.1:{self.port}{path}"

    def rss(self):
        """Resident bytes that are not pages of files."""
        with open(f"/proc/{self.process.pid}/status") as f: text = f.read()
        return int(re.search(r"RssAnon:\s+(\d+)", text)[1]) * 1024

    def cpu_s(self):
        """Processor time of all threads so far, which other load on the machine disturbs less than the clock."""
        with open(f"/proc/{self.process.pid}/stat") as f: fields = f.read().rsplit(") ", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def get(self, path):
        with urllib.request.urlopen(self.url(path), timeout=30) as r: return r.read().decode()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try: self.process.wait(60)
        except subprocess.TimeoutExpired: self.process.kill()


def request_bytes(port, path, body):
    data = json.dumps(body).encode()
    return (f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n").encode() + data


async def send(port, path, body, leave_after=None):
    """One request on a connection of its own. -> status, times of the text events, bytes of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    begin, times, out, status = time.monotonic(), [], b"", 0
    try:
        writer.write(request_bytes(port, path, body))
        await writer.drain()
        while True:
            try:
                part = await asyncio.wait_for(reader.read(65536), leave_after)
            except asyncio.TimeoutError: return 0, times, out, begin
            if not part: break
            now = time.monotonic()
            if not status: status = int(part[9:12] or 0)
            times += [now] * (part.count(b'"text":"') + part.count(b'"text": "'))
            out += part
            if leave_after is not None and len(times) > 3: return 0, times, out, begin
    finally:
        writer.close()
    return status, times, out, begin


def share(values, q):
    values = sorted(values)
    return values[min(len(values) - 1, int(q * len(values)))] if values else float("nan")


class Stream(asyncio.Protocol):
    """One streamed request: the time of each event of text, cheaply."""

    def __init__(self, data):
        self.data, self.times, self.tail, self.status, self.done = data, [], b"", 0, asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        self.begin = time.monotonic()
        transport.write(self.data)

    def data_received(self, part):
        now = time.monotonic()
        if not self.status: self.status = int(part[9:12] or 0)
        self.times += [now] * (part.count(b'"text":"') + part.count(b'"text": "'))
        self.tail = (self.tail + part)[-4000:]

    def connection_lost(self, why):
        if not self.done.done(): self.done.set_result(None)


async def run_clients(port, a, prompts, delays):
    """[(begin, times, completion tokens)], and failures."""
    more, results, failed, loop = json.loads(a.body), [], [], asyncio.get_running_loop()

    async def client(list_, delay):
        await asyncio.sleep(delay)
        for prompt in list_:
            body = {"prompt": prompt, "max_tokens": a.answer, "n_predict": a.answer, "stream": True, "temperature": 0, "ignore_eos": True,
                    "stream_options": {"include_usage": True}, **more}
            if more: body.pop("ignore_eos")
            _, stream = await loop.create_connection(lambda: Stream(request_bytes(port, "/v1/completions", body)), "127.0.0.1", port)
            await stream.done
            usage = re.findall(rb'"completion_tokens":\s*(\d+)', stream.tail)
            if stream.status != 200 or not usage: failed.append((stream.status, stream.tail[-300:]))
            else: results.append((stream.begin, stream.times, int(usage[-1])))

    await asyncio.gather(*(client(p, d) for p, d in zip(prompts, delays)))
    return results, failed


def part_main(queue, port, a, prompts, delays): queue.put(asyncio.run(run_clients(port, a, prompts, delays)))


def run_load(port, a, clients, rng):
    """One turn: all clients to their ends. -> a row."""
    common = [rng.randrange(a.low, a.vocab) for _ in range(a.shared)]
    prompts = [[common + [rng.randrange(a.low, a.vocab) for _ in range(a.prompt - a.shared)] for _ in range(a.requests)] for _ in range(clients)]
    delays, n, queue = [i * a.stagger / clients for i in range(clients)], min(a.processes, clients), multiprocessing.Queue()
    if n == 1: parts = [asyncio.run(run_clients(port, a, prompts, delays))]
    else:
        workers = [multiprocessing.Process(target=part_main, args=(queue, port, a, prompts[i::n], delays[i::n])) for i in range(n)]
        for w in workers: w.start()
        parts = [queue.get() for _ in workers]
        for w in workers: w.join()
    results, failed = [r for p in parts for r in p[0]], [f for p in parts for f in p[1]]
    if failed: sys.exit(f"{len(failed)} requests failed: {failed[0]}")
    wall = max(t[-1] for _, t, _ in results) - min(b for b, _, _ in results)
    answer = sum(n for _, _, n in results)
    first = [t[0] - b for b, t, _ in results if t]
    gaps = [y - x for _, t, _ in results for x, y in zip(t, t[1:])]
    return {"clients": clients, "wall_s": wall, "answer_tok_s": answer / wall, "all_tok_s": (answer + len(results) * a.prompt) / wall,
            "first_p50_ms": share(first, 0.5) * 1e3, "first_p95_ms": share(first, 0.95) * 1e3, "between_p50_ms": share(gaps, 0.5) * 1e3,
            "between_p95_ms": share(gaps, 0.95) * 1e3, "between_p99_ms": share(gaps, 0.99) * 1e3, "between_max_ms": max(gaps or [0]) * 1e3}


class Turn:
    """A server with the further fields of its requests. Prompts differ between the turns of a server, since it keeps prefixes."""

    def __init__(self, server, name, body, seed): self.server, self.name, self.body, self.seed = server, name, body, seed


def with_fields(a, **more): return argparse.Namespace(**{**vars(a), **more})


def load(a, servers):
    rows = []
    turns = [Turn(s, s.name, a.body, 0) for s in servers]
    if a.beside_plain: turns += [Turn(s, "plain" if len(servers) == 1 else f"{s.name}, plain", "{}", 5000) for s in servers]
    for clients in (int(x) for x in a.clients.split(",")):
        for s in turns: run_load(s.server.port, with_fields(a, requests=1, body=s.body), min(clients, 4), random.Random(0))
        pairs = []
        for i in range(a.pairs):
            got = {}
            for s in turns if i % 2 == 0 else turns[::-1]:
                before = s.server.cpu_s()
                got[s.name] = row = {"server": s.name, "pair": i, **run_load(s.server.port, with_fields(a, body=s.body), clients, random.Random(1000 + i + s.seed))}
                row["answer_tok_cpu_s"] = row["answer_tok_s"] * row["wall_s"] / max(s.server.cpu_s() - before, 1e-9)
                rows.append(row)
                print(f"{s.name:12} {clients:4} clients: {row['answer_tok_s']:9.1f} generated, {row['all_tok_s']:9.1f} all tok/s; first token "
                      f"{row['first_p50_ms']:7.1f} p50 {row['first_p95_ms']:7.1f} p95 ms; between {row['between_p50_ms']:6.2f} p50 "
                      f"{row['between_p95_ms']:6.2f} p95 {row['between_p99_ms']:6.2f} p99 {row['between_max_ms']:6.1f} max ms; "
                      f"{row['answer_tok_cpu_s']:8.1f} generated per second of processor time", flush=True)
            pairs.append(got)
        last = turns[-1].name
        for s in turns[:-1]:
            for key in ("answer_tok_s", "answer_tok_cpu_s", "first_p95_ms", "between_p95_ms"):
                r = [p[s.name][key] / p[last][key] for p in pairs]
                print(f"{s.name} / {last}, {clients} clients, {key}: {statistics.median(r):.2f} (from {min(r):.2f} to {max(r):.2f}, {len(r)} pairs)", flush=True)
    if a.json:
        with open(a.json, "a") as f:
            for row in rows: f.write(json.dumps(row) + "\n")


SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "n": {"type": "integer", "minimum": 0, "maximum": 99}},
          "required": ["name", "n"], "additionalProperties": False}


def mixed(rng):
    """-> path, body, expected status, seconds until the client leaves or None."""
    kind, leave = rng.randrange(10), rng.uniform(0, 0.2) if rng.randrange(5) == 0 else None
    chat = {"messages": [{"role": "user", "content": f"Say {rng.randrange(50)} words."}], "max_tokens": rng.randrange(1, 12), "stream": rng.randrange(2) == 0,
            "seed": rng.randrange(100)}
    ids = {"prompt": [rng.randrange(100, 250) for _ in range(rng.randrange(1, 60))], "max_tokens": rng.randrange(1, 12)}
    if kind == 0: return "/v1/chat/completions", {**chat, "max_tokens": -1}, 400, None
    if kind == 1: return "/v1/chat/completions", {**chat, "max_tokens": 60, "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}, 200, leave
    if kind == 2: return "/v1/completions", {**ids, "n": rng.randrange(1, 4), "logprobs": 2}, 200, leave
    if kind == 3: return "/v1/embeddings", {"input": "some words"}, 200, None
    if kind == 4: return "/v1/messages", {**chat, "max_tokens": 8}, 200, leave
    if kind == 5: return "/v1/responses", {"input": f"word {rng.randrange(20)}", "max_output_tokens": 6}, 200, leave
    if kind == 6: return "/v1/completions", {**ids, "stream": True, "max_tokens": 40, "ignore_eos": True}, 200, leave
    return "/v1/chat/completions", chat, 200, leave


async def run_soak(s, a):
    rng, todo, wrong, first, early = random.Random(7), iter(range(a.total)), [], [0], max(a.total // 10, 1)

    async def client():
        for i in todo:
            path, body, expected, leave = mixed(rng)
            try: status, _, out, _ = await send(s.port, path, body, leave)
            except OSError as e: status, out = -1, str(e).encode()
            if status not in (expected, 0): wrong.append((path, expected, status, out[:200]))
            if i == early: first[0] = s.rss()
            if i % early == 0: print(f"{i} requests, {s.rss() / 1e6:.1f} MB, {len(wrong)} wrong", flush=True)

    await asyncio.gather(*(client() for _ in range(int(a.clients.split(",")[0]))))
    await asyncio.sleep(1)
    busy = [x for x in json.loads(s.get("/slots")) if x["is_processing"]]
    last = s.rss()
    print(f"{s.name}: {a.total} requests, {len(wrong)} unexpected answers, memory {first[0] / 1e6:.1f} MB after {early}, {last / 1e6:.1f} MB at the end "
          f"({(last / first[0] - 1) * 100:+.1f} %), {len(busy)} slots busy")
    for w in wrong[:5]: print("  ", w)
    return not wrong and not busy and last <= first[0] * 1.05


async def run_idle(s, a):
    before, kept = s.rss(), []
    for used in (False, True):
        for _ in range(a.connections // 2):
            reader, writer = await asyncio.open_connection("127.0.0.1", s.port)
            kept.append(writer)
            if not used: continue
            writer.write(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            await writer.drain()
            await reader.read(65536)
    await asyncio.sleep(1)
    each = (s.rss() - before) / max(len(kept), 1)
    alive = s.get("/health")
    print(f"{s.name}: {len(kept)} idle connections, {each / 1e3:.1f} kB each, then /health: {alive}")
    for w in kept: w.close()
    return each <= 50e3


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("what", choices=("load", "soak", "idle"))
    ap.add_argument("--server", action="append", required=True)
    ap.add_argument("--clients", default="8")
    for name, value in (("prompt", 256), ("shared", 128), ("answer", 64), ("requests", 3), ("pairs", 3), ("vocab", 49152), ("low", 1000), ("total", 10000),
                        ("connections", 500), ("processes", 1)):
        ap.add_argument("--" + name, type=int, default=value)
    ap.add_argument("--stagger", type=float, default=0)
    ap.add_argument("--body", default="{}", help="further fields of each request")
    ap.add_argument("--beside-plain", action="store_true")
    ap.add_argument("--json")
    a = ap.parse_args()
    servers, ok = [], True
    try:
        for text in a.server: servers.append(Server(text))
        for s in servers: print(f"{s.name}: ready after {s.ready_s:.2f} s", flush=True)
        if a.what == "load": load(a, servers)
        for s in servers:
            if a.what != "load": ok = asyncio.run((run_soak if a.what == "soak" else run_idle)(s, a)) and ok
    finally:
        for s in servers: s.stop()
    sys.exit(0 if ok else 1)


main()
