"""Goldens of how a token is chosen: a restatement in numpy (float64), written from the definitions of the field and
sharing nothing with src/unit/sample.c. Prints JSON: python3 make_samples.py > samples.json

Every case is drawn at many positions, so that the set of survivors and its order show in the tokens. Cases in which a
border (of a set or of the draw) is nearer than 1e-6 are made anew with another seed: a golden must not hang on rounding.
SPDX-License-Identifier: MIT """
import json

import numpy as np

POSITIONS = 96


def philox(counter, key):
    c, k = [int(x) for x in counter], [int(x) for x in key]
    for r in range(10):
        if r:
            k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
        p0, p1 = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & 0xFFFFFFFF, (p0 >> 32) ^ c[3] ^ k[1], p0 & 0xFFFFFFFF]
    return c


def uniform(seed, position):
    word = philox([position & 0xFFFFFFFF, position >> 32, 0, 0], [seed & 0xFFFFFFFF, seed >> 32])[0]
    return (word >> 8) / 2.0 ** 24


class Border(Exception):
    pass


def clear(gap):
    if abs(gap) < 1e-6:
        raise Border


def edited(logits, p, history, stops, breakers):
    l = np.array(logits, dtype=np.float32).astype(np.float64)
    for token, bias in p.get("bias", []):
        l[token] += bias
    if p.get("ignore_stops"):
        l[stops] = -np.inf
    n = p.get("repeat_last_n", 0) or 64
    window = history if n < 0 else history[-n:]
    r = p.get("repeat_penalty", 0) or 1.0
    for token in set(window):
        count = window.count(token)
        l[token] = l[token] * r if l[token] <= 0 else l[token] / r
        l[token] -= count * p.get("frequency_penalty", 0) + p.get("presence_penalty", 0)
    if p.get("dry_multiplier"):
        base, allowed = p.get("dry_base") or 1.75, p.get("dry_allowed_length") or 2
        for token in sorted(set(history)):
            if token in breakers:
                continue
            longest = 0
            for i in range(1, len(history)):      # history[i] == token was preceded by a copy of our end?
                if history[i] != token:
                    continue
                k = 0
                while k < i and history[i - 1 - k] == history[-1 - k] and history[-1 - k] not in breakers:
                    k += 1
                longest = max(longest, k)
            if longest >= allowed:
                l[token] -= p["dry_multiplier"] * base ** (longest - allowed)
    return l


def survivors(l, p):
    ids = sorted((i for i in range(len(l)) if l[i] > -np.inf), key=lambda i: (-l[i], i))
    k = p.get("top_k", 0)
    if 0 < k < len(ids):
        ids = ids[:k]
    soft = lambda ids: np.exp(l[ids] - l[ids].max()) / np.exp(l[ids] - l[ids].max()).sum()
    t = p.get("typical_p", 0)
    if 0 < t < 1:
        q = soft(ids)
        surprise = -np.log(q)
        far = np.abs(surprise - (q * surprise).sum())
        order = sorted(range(len(ids)), key=lambda i: (round(far[i], 9), i))
        mass, keep = 0.0, []
        for i in order:
            keep.append(i)
            mass += q[i]
            clear(mass - t)
            if mass >= t:
                break
        rest = [far[i] for i in order[len(keep):]]
        if rest:
            clear(rest[0] - far[keep[-1]])
        ids = [ids[i] for i in sorted(keep)]
    t = p.get("top_p", 0)
    if 0 < t < 1:
        mass, keep = 0.0, 0
        for q in soft(ids):
            keep += 1
            mass += q
            clear(mass - t)
            if mass >= t:
                break
        ids = ids[:keep]
    t = p.get("min_p", 0)
    if t > 0:
        q = soft(ids)
        for x in q[1:]:
            clear(x / q[0] - t)
        ids = [i for i, x in zip(ids, q) if x >= t * q[0]]
    return ids


def tokens(l, p, positions):
    if not p.get("temperature"):
        best = max(range(len(l)), key=lambda i: (l[i], -i))
        return [best] * positions
    ids = survivors(l, p)
    z = (l[ids] - l[ids].max()) / np.float64(np.float32(p["temperature"]))
    q = np.exp(z) / np.exp(z).sum()
    edges = np.cumsum(q)
    out = []
    for position in range(positions):
        u = uniform(p.get("seed", 0), position)
        for e in edges[:-1]:
            if abs(e - u) < 1e-7:
                raise Border
        out.append(ids[min(int(np.searchsorted(edges, u, side="right")), len(ids) - 1)])
    return out


def case(name, vocab, rng, p, history=(), stops=(), breakers=(), ties=False):
    p = {k: (float(np.float32(v)) if isinstance(v, float) else v) for k, v in p.items()}
    while True:
        logits = np.round(rng.normal(0, 2.5, vocab), 3).astype(np.float32)
        if ties:
            logits = np.round(logits).astype(np.float32)
        h = [int(x) for x in history] if len(history) else []
        try:
            l = edited(logits, p, h, list(stops), set(breakers))
            out = tokens(l, p, POSITIONS)
        except Border:
            continue
        raw = logits.astype(np.float64)
        logp = raw - raw.max() - np.log(np.exp(raw - raw.max()).sum())
        return {"name": name, "logits": [float(str(x)) for x in logits], "sampling": p, "history": h, "stops": list(stops),
                "breakers": list(breakers), "tokens": out, "logprobs": [round(float(x), 6) for x in logp[:40]]}


def main():
    rng = np.random.default_rng(20260101)
    loop = [1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3]
    text = [int(x) for x in rng.integers(0, 24, 150)]
    cases = [
        case("greedy", 40, rng, {}),
        case("greedy-ties", 40, rng, {}, ties=True),
        case("draw", 40, rng, {"temperature": 1.0, "seed": 1}),
        case("draw-ties", 40, rng, {"temperature": 1.0, "seed": 2}, ties=True),
        case("cold", 40, rng, {"temperature": 0.2, "seed": 3}),
        case("hot", 40, rng, {"temperature": 3.0, "seed": 1 << 40}),
        case("top-k", 40, rng, {"temperature": 1.0, "top_k": 5, "seed": 4}),
        case("top-k-ties", 40, rng, {"temperature": 1.5, "top_k": 6, "seed": 5}, ties=True),
        case("top-k-1", 40, rng, {"temperature": 1.0, "top_k": 1, "seed": 6}),
        case("top-k-beyond", 40, rng, {"temperature": 1.0, "top_k": 400, "seed": 6}),
        case("top-p", 40, rng, {"temperature": 1.0, "top_p": 0.8, "seed": 7}),
        case("top-p-small", 40, rng, {"temperature": 1.0, "top_p": 0.01, "seed": 7}),
        case("min-p", 40, rng, {"temperature": 1.3, "min_p": 0.1, "seed": 8}),
        case("typical", 40, rng, {"temperature": 1.0, "typical_p": 0.5, "seed": 9}),
        case("typical-wide", 300, rng, {"temperature": 1.0, "typical_p": 0.9, "seed": 10}),
        case("all-cuts", 300, rng, {"temperature": 0.8, "top_k": 60, "typical_p": 0.97, "top_p": 0.95, "min_p": 0.02,
                                    "seed": 11}),
        case("wide", 3000, rng, {"temperature": 1.0, "top_p": 0.9, "seed": 12}),
        case("wide-top-k", 3000, rng, {"temperature": 1.0, "top_k": 1500, "seed": 13}),
        case("bias", 40, rng, {"temperature": 1.0, "bias": [[3, 4.0], [5, -100.0], [3, 1.5]], "seed": 14}),
        case("bias-greedy", 40, rng, {"bias": [[17, 50.0]]}),
        case("stops", 40, rng, {"temperature": 1.0, "ignore_stops": 1, "bias": [[2, 100.0], [7, 100.0]], "seed": 15},
             stops=(2, 7)),
        case("repeat", 24, rng, {"temperature": 1.0, "repeat_penalty": 1.7, "seed": 16}, text),
        case("repeat-short", 24, rng, {"temperature": 1.0, "repeat_penalty": 1.7, "repeat_last_n": 7, "seed": 17}, text),
        case("repeat-all", 24, rng, {"repeat_penalty": 1.7, "repeat_last_n": -1}, text[:30]),
        case("presence", 24, rng, {"temperature": 1.0, "presence_penalty": 1.1, "repeat_last_n": 9, "seed": 18}, text),
        case("frequency", 24, rng, {"temperature": 1.0, "frequency_penalty": 0.6, "repeat_last_n": 40, "seed": 19}, text),
        case("three-penalties", 24, rng, {"temperature": 0.9, "repeat_penalty": 0.8, "frequency_penalty": 0.3,
                                          "presence_penalty": -0.5, "seed": 20}, text),
        case("dry", 12, rng, {"temperature": 1.0, "dry_multiplier": 0.8, "seed": 21}, loop),
        case("dry-bias", 12, rng, {"dry_multiplier": 3.0, "bias": [[4, 20.0]]}, loop),
        case("dry-breaker", 12, rng, {"dry_multiplier": 3.0, "bias": [[4, 20.0]]}, loop, breakers=(2,)),
        case("dry-breaker-next", 12, rng, {"dry_multiplier": 30.0, "bias": [[4, 20.0]]}, loop, breakers=(4,)),
        case("dry-allowed", 12, rng, {"temperature": 1.0, "dry_multiplier": 0.5, "dry_base": 1.2,
                                      "dry_allowed_length": 7, "seed": 22}, loop),
        case("dry-same", 12, rng, {"temperature": 1.0, "dry_multiplier": 0.1, "dry_base": 1.1, "seed": 23}, [5] * 40),
        case("dry-text", 4, rng, {"temperature": 1.0, "dry_multiplier": 0.3, "dry_base": 1.3, "seed": 24},
             [int(x) for x in rng.integers(0, 4, 400)]),
        case("dry-nothing", 12, rng, {"temperature": 1.0, "dry_multiplier": 1.0, "seed": 25}, [1, 2]),
    ]
    uniforms = [[seed, position, uniform(seed, position)] for seed in (0, 1, 123456789, (1 << 53) - 1)
                for position in (0, 1, 2, 1000, 1 << 33)]
    print(json.dumps({"uniforms": uniforms, "cases": cases}, separators=(",", ":")).replace('{"name"', '\n{"name"'))


if __name__ == "__main__":
    main()
