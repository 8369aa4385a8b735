#!/usr/bin/env python3
"""grammar_schema.py TOOL: JSON schemas in both directions against the package jsonschema: every valid document that json.dumps
writes is accepted, and every text that the automaton writes is valid JSON and satisfies the schema. SPDX-License-Identifier: MIT"""
import json, random, string, subprocess, sys

try: import jsonschema
except ImportError:
    print("SKIP grammar_schema: Python has no jsonschema")
    sys.exit(77)

tool = subprocess.Popen([sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
failures = 0


def ask(source, texts=(), samples=0, kind=1, seed=1):
    tool.stdin.write(json.dumps({"kind": kind, "source": source, "texts": list(texts), "samples": samples, "seed": seed}) + "\n")
    tool.stdin.flush()
    return json.loads(tool.stdout.readline())


def expect(what, ok, detail=""):
    global failures
    if not ok:
        failures += 1
        print(f"FAIL {what}: {str(detail)[:1500]}")


rnd = random.Random(20261125)
LETTERS = string.ascii_letters + string.digits + ' _-"\\/\n\té日😀'


def text(n=8): return "".join(rnd.choice(LETTERS) for _ in range(rnd.randint(0, n)))


def value(depth=2):
    kind = rnd.randint(0, 7 if depth else 5)
    if kind == 0: return None
    if kind == 1: return rnd.random() < 0.5
    if kind == 2: return rnd.randint(-1000, 1000)
    if kind == 3: return round(rnd.uniform(-100, 100), rnd.randint(1, 4))
    if kind in (4, 5): return text()
    if kind == 6: return [value(depth - 1) for _ in range(rnd.randint(0, 3))]
    return {text(5): value(depth - 1) for _ in range(rnd.randint(0, 3))}


def schema(depth=3):
    """A random schema and a function that makes valid values of it."""
    kind = rnd.choice(["null", "boolean", "integer", "number", "string", "enum", "const", "any"] +
                      (["object", "array", "tuple", "anyOf", "types", "allOf"] * 2 if depth else []))
    if kind == "null": return {"type": "null"}, lambda: None
    if kind == "boolean": return {"type": "boolean"}, lambda: rnd.random() < 0.5
    if kind in ("integer", "number"):
        low, high = sorted((round(rnd.uniform(-300, 300), rnd.randint(0, 3)), round(rnd.uniform(-300, 300), rnd.randint(0, 3))))
        low, high = (int(low), int(high) + 1) if kind == "integer" or rnd.random() < 0.3 else (low, high + 1)
        s = {"type": kind}
        bounds = rnd.randint(0, 3)
        if bounds & 1: s[rnd.choice(["minimum", "exclusiveMinimum"])] = low
        if bounds & 2: s[rnd.choice(["maximum", "exclusiveMaximum"])] = high + 2

        def number():
            while True:
                v = rnd.randint(-700, 700) if kind == "integer" or rnd.random() < 0.3 else round(rnd.uniform(-700, 700), rnd.randint(1, 6))
                if bounds == 3: v = rnd.randint(low, high + 2) if kind == "integer" else round(rnd.uniform(low, high + 2), rnd.randint(1, 5))
                if jsonschema.Draft202012Validator(s).is_valid(v): return v
        return s, number
    if kind == "string":
        low = rnd.randint(0, 4)
        s = {"type": "string"}
        if rnd.random() < 0.5: s["minLength"] = low
        if rnd.random() < 0.5: s["maxLength"] = low + rnd.randint(0, 20)
        return s, lambda: "".join(rnd.choice(LETTERS) for _ in range(rnd.randint(s.get("minLength", 0), s.get("maxLength", s.get("minLength", 0) + 6))))
    if kind == "enum":
        values = [value(1) for _ in range(rnd.randint(1, 4))]
        return {"enum": values}, lambda: rnd.choice(values)
    if kind == "const":
        v = value(1)
        return {"const": v}, lambda: v
    if kind == "any": return rnd.choice([True, {}, {"title": "x", "description": "y"}]), lambda: value()
    if kind == "types":
        return {"type": ["string", "integer", "null"]}, lambda: rnd.choice([text(), rnd.randint(-5, 5), None])
    if kind == "anyOf":
        parts = [schema(depth - 1) for _ in range(rnd.randint(1, 3))]
        return {"anyOf": [p[0] for p in parts]}, lambda: rnd.choice(parts)[1]()
    if kind == "array":
        item, make = schema(depth - 1)
        low = rnd.randint(0, 2)
        s = {"type": "array", "items": item}
        if rnd.random() < 0.5: s["minItems"] = low
        if rnd.random() < 0.5: s["maxItems"] = low + rnd.randint(0, 3)
        return s, lambda: [make() for _ in range(rnd.randint(s.get("minItems", 0), s.get("maxItems", s.get("minItems", 0) + 2)))]
    if kind == "tuple":
        parts = [schema(depth - 1) for _ in range(rnd.randint(1, 3))]
        s = {"type": "array", "prefixItems": [p[0] for p in parts], "items": False}
        if rnd.random() < 0.5: s["minItems"] = len(parts)
        return s, lambda: [p[1]() for p in parts][:None if "minItems" in s else rnd.randint(0, len(parts))]
    names = list({text(6) for _ in range(rnd.randint(0, 5))})
    parts = {n: schema(depth - 1) for n in names}
    required = [n for n in names if rnd.random() < 0.5]
    s = {"type": "object", "properties": {n: p[0] for n, p in parts.items()}}
    if required: s["required"] = required
    more = None
    if rnd.random() < 0.6: s["additionalProperties"] = False
    else: more = value

    def make_object():
        chosen = [n for n in names if n in required or rnd.random() < 0.5]
        rnd.shuffle(chosen)
        o = {n: parts[n][1]() for n in chosen}
        if more and rnd.random() < 0.5:
            key = text(5) + "#"
            if key not in parts: o[key] = value(1)
        return o
    if kind == "allOf":
        half = len(names) // 2
        first = {"type": "object", "properties": {n: parts[n][0] for n in names[:half]}}
        second = {"properties": {n: parts[n][0] for n in names[half:]}, "required": required}
        s, more = {"allOf": [first, second]}, None
    return s, make_object


def spellings(v):
    yield json.dumps(v)
    yield json.dumps(v, ensure_ascii=False)
    yield json.dumps(v, separators=(",", ":"))
    yield json.dumps(v, indent=2)


def both_directions(s, values, seed, wrong=()):
    check = jsonschema.Draft202012Validator(s)
    texts = [t for v in values for t in spellings(v)]
    bad = [json.dumps(v) for v in wrong if not check.is_valid(v)]
    reply = ask(s, texts + bad, samples=12, seed=seed)
    if "error" in reply: return expect("compiles", False, (s, reply))
    for t, got in zip(texts, reply["accepts"]): expect("a valid document is accepted", got == -1, (s, t, got))
    for t, got in zip(bad, reply["accepts"][len(texts):]): expect("an invalid document is refused", got != -1, (s, t))
    for t in reply["samples"]:
        try: v = json.loads(t)
        except (ValueError, TypeError) as e: expect("a written text is JSON", False, (s, t, e))
        else: expect("a written text satisfies the schema", check.is_valid(v), (s, t))
    return len(reply["samples"])


written = 0
for i in range(int(sys.argv[2]) if len(sys.argv) > 2 else 250):
    s, make = schema()
    if not isinstance(s, dict): s = {}
    written += both_directions(s, [make() for _ in range(4)], i + 1, [value() for _ in range(6)]) or 0
expect("samples were written", written > 300, written)

# References, recursion, merging, discriminators.
tree = {"$defs": {"node": {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
        "required": ["v", "next"], "additionalProperties": False}}, "$ref": "#/$defs/node"}
both_directions(tree, [{"v": 1, "next": None}, {"next": {"v": 2, "next": {"v": 3, "next": None}}, "v": 1}], 1, [{"v": 1}, {"v": 1, "next": 3}])
both_directions({"type": "array", "items": {"$ref": "#"}}, [[], [[], [[]]]], 2, [1, [1]])
both_directions({"oneOf": [{"type": "object", "properties": {"k": {"const": "a"}, "x": {"type": "integer"}}, "required": ["k", "x"]},
                           {"type": "object", "properties": {"k": {"const": "b"}, "y": {"type": "string"}}, "required": ["k"]}]},
                [{"k": "a", "x": 1}, {"k": "b"}, {"y": "s", "k": "b"}], 3, [{"k": "a"}, {"k": "c"}, {"x": 1}])
both_directions({"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 9}]}, [3, 9, 5], 4, [2, 10, 3.5])
one, two = {"type": "integer", "minimum": 3}, {"type": "integer", "minimum": 5}
both_directions({"type": "array", "allOf": [{"prefixItems": [one]}], "items": two}, [[5, 5], [6], []], 4, [[3, 5], [5, 3], [3]])
both_directions({"type": "array", "allOf": [{"prefixItems": [one, two]}, {"prefixItems": [two], "items": one}]}, [[5, 5, 3], [5]], 4, [[3], [5, 3], [5, 5, 2]])
both_directions({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "anyOf": [{"properties": {"b": {"type": "string"}},
                 "required": ["b"]}, {"properties": {"c": {"type": "null"}}, "required": ["c"]}]}, [{"a": 1, "b": ""}, {"c": None, "a": 2}], 5, [{"a": 1}, {"b": ""}])
for pattern, good, bad in (("^[a-z]+$", ["abc"], ["", "A", "a1"]), ("b", ["abc", "b"], ["ac"]), ("^(\\d{3}-)?\\d{4}$", ["123-4567", "1234"], ["12"]),
                           ("^[^\"\\\\]{2}$", ["ab", "é日"], ["a\"", "a"]), ("^a|b$", ["ax", "xb"], ["xa"]), ("^\\S+@\\S+$", ["a@b"], ["a b@"])):
    both_directions({"type": "string", "pattern": pattern}, good, 6, bad)
for name, good, bad in (("date", ["2024-02-28"], ["2024-02-30", "x"]), ("date-time", ["2024-01-31T10:00:00Z"], ["2024-01-31"]),
                        ("uuid", ["123e4567-e89b-12d3-a456-426614174000"], ["123"]), ("ipv4", ["1.2.3.255"], ["256.1.1.1"])):
    reply = ask({"type": "string", "format": name}, [json.dumps(t) for t in good + bad])
    expect(f"format {name}", [a == -1 for a in reply["accepts"]] == [True] * len(good) + [False] * len(bad), reply)

# What cannot be demanded is refused by name.
for s, word in (({"not": {}}, "not"), ({"type": "array", "uniqueItems": True}, "uniqueItems"), ({"uniqueItems": True}, "uniqueItems"),
                ({"minProperties": 1}, "minProperties"), ({"maxProperties": 1}, "maxProperties"), ({"multipleOf": 2}, "multipleOf"), ({"patternProperties": {"a": {}}}, "patternProperties"),
                ({"if": {}, "then": {}}, "if"), ({"type": "string", "format": "color"}, "color"), ({"$ref": "http://a/b"}, "http://a/b"),
                ({"$ref": "#/nothing"}, "#/nothing"), ({"type": "number", "multipleOf": 3}, "multipleOf"), ({"type": "unknown"}, "unknown"),
                ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"), ({"type": "string", "pattern": "(?=a)"}, "look-around"),
                ({"type": "string", "pattern": "(a)\\1"}, "back references"), ({"type": "object", "maxProperties": 3}, "maxProperties"),
                ({"type": "integer", "minimum": 5, "maximum": 3}, "no text"), ({"type": "object", "properties": {"a": False}, "required": ["a"]}, "no text"),
                ({"properties": []}, "properties"), ({"type": "string", "pattern": "("}, "(")):
    reply = ask(s)
    expect(f"refused by name: {word}", word in reply.get("error", ""), (s, reply))

# GBNF and expressions.
arithmetic = 'root ::= (expr "=" ws term "\\n")+\nexpr ::= term ([-+*/] term)*\nterm ::= ident | num | "(" ws expr ")" ws\n' \
             'ident ::= [a-z] [a-z0-9_]* ws\nnum ::= [0-9]+ ws # comment\nws ::= [ \\t\\n]*\n'
reply = ask(arithmetic, ["x=1\n", "(a+b)*2 = 3\n", "x=\n", "=1", "x=1"], kind=0, samples=5)
expect("GBNF", [a == -1 for a in reply["accepts"]] == [True, True, False, False, False], reply)
reply = ask('root ::= "é" [α-ω]{2,3} | "\\u65e5"\n  | [^a]\n', ["éαβ", "éα", "日", "b", "a", "éαβγ", "éαβγδ"], kind=0)
expect("GBNF characters", [a == -1 for a in reply["accepts"]] == [True, False, True, True, False, True, False], reply)
for bad, word in (("root ::= x", "x"), ("a ::= \"b\"", "root"), ("root ::= root \"a\" | \"b\"", "left recursion"), ("root ::= \"a", "quote"),
                  ("root ::= (\"a\"", "("), ("root ::= [z-a]", "down"), ("root ::= \"a\" root", "no text"), ("root ::= *", "nothing"),
                  ("root ::= (\"a\"?)* root \"b\" | \"c\"", "left recursion"), ("root = \"a\"", "::=")):
    reply = ask(bad, kind=0)
    expect(f"GBNF refused: {word}", word in reply.get("error", ""), (bad, reply))
for pattern, good, bad in (("a+b?", ["a", "aab"], ["b", ""]), ("(ab|c){2}", ["abc", "cc"], ["ab", "ccc"]), ("^x$", ["x"], ["xx"]), ("[^\\n]*", ["", "é!"], ["\n"]),
                           ("(?:a|)b", ["b", "ab"], ["a"]), ("\\d{2,}", ["12", "12345"], ["1"]), ("\\u00e9\\.", ["é."], ["éx"]), (".", ["日"], ["", "ab"])):
    reply = ask(pattern, good + bad, kind=2, samples=3)
    expect(f"expression {pattern}", [a == -1 for a in reply.get("accepts", [])] == [True] * len(good) + [False] * len(bad), reply)

# Hostile sources: an answer at once.
for kind, bad in ((0, "root ::= " + "(" * 100000), (1, {"type": "string", "pattern": "(" * 100000}), (0, "root ::= " + "a" * 500000), (0, "a" * 2000000),
                  (0, "root ::= (((((\"a\"{0,1000}){0,1000}){0,1000}){0,1000}){0,1000}){0,1000}"), (2, "(a?){0,100000}"),
                  (1, {"$defs": {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 8} for i in range(40)} | {"d40": {"type": "string"}}} | {"$ref": "#/$defs/d0"}),
                  (1, {"anyOf": [{"allOf": [{"$ref": "#"}, {"$ref": "#"}]}]}), (1, {"allOf": [{"$ref": "#"}]})):
    expect("a hostile source is answered", isinstance(ask(bad, ["a" * 3000], kind=kind), dict))
    if "-v" in sys.argv: print(kind, str(bad)[:60], ask(bad, ["a" * 3000], kind=kind))
ambiguous = ask("root ::= a* a* a* a* a* a*\na ::= \"x\"* \"x\"*\n", ["x" * 500], kind=0)
expect("an ambiguous grammar is answered", "accepts" in ambiguous or "error" in ambiguous, ambiguous)

tool.stdin.close()
expect("the tool ends well", tool.wait() == 0)
print(f"grammar_schema: {failures} failures" if failures else f"grammar_schema: all as it should be; {written} texts written")
sys.exit(1 if failures else 0)
