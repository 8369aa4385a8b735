"""Templates made by seed: random expressions over all operators, filters, tests and methods, and random statements
with every kind of whitespace control. Same seed, same cases.
SPDX-License-Identifier: MIT
"""
import random

VARS = {
    "s": "Hello, World", "t": "  pad\t\n", "e": "", "u": "ÀÉîß ǆ ΣΑΣ ﬁ ñ 😀", "n": 7, "z": 0, "m": -13, "f": 2.5, "g": -0.001,
    "big": 1e22, "yes": True, "no": False, "nil": None, "l": [3, 1, 2], "w": ["b", "A", "c", "a"], "le": [],
    "d": {"b": 1, "a": "x", "items": [1], "C": None}, "de": {}, "nest": {"a": {"b": [1, {"c": "deep"}]}},
    "rows": [{"k": "x", "v": 2, "on": True}, {"k": "Y", "v": 1}, {"k": "x", "v": 3, "on": False}],
    "lines": "one\ntwo\r\n\nthree", "html": "<a href='x'>&\"</a>", "num": "42", "fl": "3.75", "csv": "a,b,,c",
    "mixed": [1, "a", None, 2.0, True, [1], {"q": 1}], "x1": "'", "x2": "\"'\\", "pairs": [["a", 1], ["b", 2]],
}
NAMES = sorted(VARS)
STRINGS = ["''", "'a'", "\"b c\"", "'Hello'", "'\\n'", "'é'", "', '", "'%s'", "'l'", "'\\\\'", "\"it's\"", "' '", "'x' 'y'"]
NUMBERS = ["0", "1", "2", "-1", "3", "10", "1.5", "-2.5", "1e3", "0x1F", "1_000", "7", "2.0", "100000", "0.1"]
FILTERS = ["abs", "capitalize", "center(9)", "count", "default('D')", "default('D', true)", "d(1)", "dictsort",
           "dictsort(reverse=true)", "dictsort(false, 'value')", "e", "escape", "first", "float", "float(1.5)", "indent",
           "indent(2)", "indent(2, true)", "indent('> ', blank=true)", "int", "int(9)", "int(0, 16)", "items|list",
           "join", "join(', ')", "join('-', attribute='k')", "join(d='+')", "last", "length", "list", "lower",
           "map('upper')|list", "map(attribute='k')|list", "map(attribute='q', default='z')|join(',')",
           "map('int')|sum", "max", "min", "reject('none')|list", "rejectattr('on')|list", "replace('l', 'L')",
           "replace('', '.')", "replace('l', 'LL', 1)", "reverse|list", "reverse|join", "round", "round(1)",
           "round(1, 'floor')", "round(2, 'ceil')", "round(-1)", "safe", "select|list", "select('string')|list",
           "select('gt', 1)|list", "selectattr('v', 'ge', 2)|list", "selectattr('on', 'defined')|list", "sort",
           "sort(reverse=true)", "sort(attribute='v')", "sort(case_sensitive=true)", "sort(attribute='k,v')", "string",
           "sum", "sum(attribute='v')", "sum(start=10)", "title", "tojson", "tojson(indent=2)", "tojson(true)",
           "tojson(sort_keys=true)", "tojson(separators=(',', ':'))", "trim", "trim('H')", "truncate(5)",
           "truncate(4, true)", "truncate(5, false, '..', 0)", "unique|list", "unique|join", "upper", "urlencode",
           "wordcount", "batch(2)|list", "batch(2, 'f')|list", "slice(2)|list", "groupby('k')|list", "format(1)",
           "format('a', 2)", "attr('k')", "forceescape"]
TESTS = ["defined", "undefined", "none", "string", "mapping", "sequence", "iterable", "number", "boolean", "true", "false",
         "integer", "float", "odd", "even", "divisibleby(2)", "divisibleby 3", "eq(1)", "equalto('a')", "ne(2)", "lt(2)",
         "gt 1", "ge(0)", "le(3)", "in([1, 2, 'a'])", "sameas(none)", "lower", "upper", "callable", "escaped",
         "filter", "test", "== 3", "in 'abc'"]
TESTS = [x for x in TESTS if not x.startswith("==")]
METHODS = ["upper()", "lower()", "title()", "capitalize()", "swapcase()", "strip()", "lstrip()", "rstrip()", "strip('H d')",
           "split()", "split(',')", "split(',', 1)", "split('l')[0]", "split(none, 1)", "rsplit(',', 1)", "rsplit(none, 1)",
           "splitlines()", "splitlines(true)", "startswith('H')", "startswith(('a', 'H'))", "endswith('d')",
           "endswith('', 3)", "find('l')", "find('o', 5)", "rfind('l')", "rfind('l', 0, 4)", "index('H')", "count('l')",
           "count('')", "replace('l', 'r')", "replace('l', 'r', 1)", "join(['a', 'b'])", "join('xyz')", "isdigit()",
           "isalpha()", "isalnum()", "isspace()", "isupper()", "islower()", "istitle()", "isnumeric()", "isdecimal()",
           "isascii()", "isprintable()", "zfill(8)", "center(10, '*')", "ljust(14, '.')", "rjust(14)", "partition(',')",
           "rpartition('o')", "removeprefix('He')", "removesuffix('ld')", "expandtabs(4)", "format(1, a=2)",
           "get('a')", "get('zz', 5)", "get('zz')", "items()", "keys()|list", "values()|list", "items()|list", "keys()",
           "values()", "copy()", "append(1)", "pop()", "update({})", "index(1)", "count(1)", "a", "b", "k", "v", "C",
           "items", "missing", "missing.more", "0", "1", "real"]
METHODS = [m for m in METHODS if m not in ("items", "real")]
FORMATS = ["'%s|%r' % (s, l)", "'%5d|%-5d|%05d' % (n, n, n)", "'%.2f %e %g' % (f, f, f)", "'%x %X %o' % (n, 255, 8)",
           "'%(a)s-%(b)s' % d", "'%%' % ()", "'%s' % d", "'%5.1f|%+d' % (f, n)", "'%c%c' % ('x', 65)",
           "'{} {}'.format(s, n)", "'{0}{1}{0}'.format(n, s)", "'{a}:{b}'.format(a=1, b=s)", "'{:>8}|{:<8}|{:^8}'.format(n, 'a', 'b')",
           "'{:05d} {:+}'.format(n, n)", "'{:.2f} {:,}'.format(f, 1234567)", "'{!r}'.format(s)", "'{:x} {:b} {:#x}'.format(n, n, n)",
           "'{:%}'.format(0.25)", "'{{}}'.format()", "'{0[k]}'.format(rows[0])", "'{:*^9}'.format('m')", "'{:{w}}|'.format(n, w=4)",
           "'%s' % n", "'%s %s' % (1,)", "'%d' % 'a'", "'{}'.format()", "'%10s|%-10s|' % (s, 'é')", "'%s' % (u,)", "'{:.3}'.format(s)",
           "'{:e}'.format(f)", "'{:g}'.format(big)", "'{}'.format(big)", "'{:08.3f}'.format(g)", "'{:,.2f}'.format(1234567.891)"]


class Maker:
    def __init__(self, rng):
        self.rng = rng
        self.locals = []

    def pick(self, seq):
        return seq[self.rng.randrange(len(seq))]

    def atom(self):
        k = self.rng.randrange(12)
        if k < 6:
            return self.pick(NAMES + self.locals)
        if k < 8:
            return self.pick(STRINGS)
        if k < 10:
            return self.pick(NUMBERS)
        return self.pick(["true", "false", "none", "missing", "[]", "{}", "()", "[1, 'a', none]", "{'a': 1, 2: [3]}",
                          "(1,)", "(1, 2)", "range(4)", "range(5, 0, -2)", "True", "None", "dict(a=1)", "[[1, 2], [3]]"])

    def expr(self, depth):
        if depth <= 0:
            return self.atom()
        k, sub = self.rng.randrange(22), depth - 1
        if k < 5:
            return "%s|%s" % (self.paren(sub), self.pick(FILTERS))
        if k < 8:
            return "%s.%s" % (self.paren(sub), self.pick(METHODS))
        if k < 10:
            return "%s is %s%s" % (self.paren(sub), self.pick(["", "", "not "]), self.pick(TESTS))
        if k < 12:
            return "%s %s %s" % (self.paren(sub), self.pick(["+", "-", "*", "/", "//", "%", "**", "~", "~", "+"]), self.paren(sub))
        if k < 14:
            ops = ["==", "!=", "<", ">", "<=", ">=", "in", "not in"]
            chain = " %s %s" % (self.pick(ops), self.paren(sub)) if self.rng.random() < 0.2 else ""
            return "%s %s %s%s" % (self.paren(sub), self.pick(ops), self.paren(sub), chain)
        if k < 15:
            return "%s %s %s" % (self.expr(sub), self.pick(["and", "or"]), self.expr(sub))
        if k < 16:
            return "not " + self.expr(sub)
        if k < 17:
            return "%s if %s%s" % (self.expr(sub), self.expr(sub), self.pick(["", " else " + self.expr(sub)]))
        if k < 18:
            i = lambda: self.pick(["", "", "1", "-1", "2", "-2", "0", "5", "100"])
            return "%s[%s:%s%s]" % (self.paren(sub), i(), i(), self.pick(["", "", ":-1", ":2", ":"]))
        if k < 19:
            return "%s[%s]" % (self.paren(sub), self.pick(["0", "1", "-1", "'a'", "'k'", "99", "n", "'upper'", "nil", "s"]))
        if k < 20:
            return self.pick(FORMATS)
        if k < 21:
            return "[%s, %s]" % (self.expr(sub), self.expr(sub))
        return self.pick(["-%s", "+%s", "{'k': %s}", "(%s,)", "namespace(a=%s).a", "dict(z=%s)", "[%s]|tojson"]) % self.paren(sub)

    def paren(self, depth):
        e = self.expr(depth)
        return e if e.isidentifier() or self.rng.random() < 0.25 else "(%s)" % e

    def tag(self, inner):
        return "{%%%s %s %s%%}" % (self.pick(["", "", "", "-", "+"]), inner, self.pick(["", "", "", "-", "+"]))

    def text(self):
        return self.pick(["", " ", "\n", "a", "  \n  ", "\n\n", "\t", "x\n", " y ", "{ ", "%}", "\n    ", "{# c #}", "{#- c -#}\n",
                          "  {# c +#}\n", "{% raw %}{{ r }}{% endraw %}", "\n  {%- raw -%} \n{% if %} {%- endraw %}\n", "é", "\r\n", "}}"])

    def output(self):
        return "{{%s %s %s}}" % (self.pick(["", "", "-", "+"]), self.expr(self.rng.randrange(3)), self.pick(["", "", "-"]))

    def body(self, depth):
        return "".join(self.text() + self.statement(depth) for _ in range(self.rng.randrange(1, 4))) + self.text()

    def statement(self, depth):
        if depth <= 0:
            return self.output()
        k, sub = self.rng.randrange(13), depth - 1
        e = lambda: self.expr(self.rng.randrange(2))
        if k < 2:
            return self.output()
        if k < 4:
            mid = self.tag("elif " + e()) + self.body(sub) if self.rng.random() < 0.3 else ""
            end = self.tag("else") + self.body(sub) if self.rng.random() < 0.5 else ""
            return self.tag("if " + e()) + self.body(sub) + mid + end + self.tag("endif")
        if k < 7:
            return self.loop(sub)
        if k < 9:
            name = self.pick(["s", "n", "v1", "v2", "ns.a", "ns.b", "v1, v2"])
            return self.tag("set %s = %s" % (name, e() if "," not in name else self.pick(["pairs[0]", "(1, 2)", "'ab'", e()])))
        if k < 10:
            return self.tag("set v3%s" % self.pick(["", " | upper", " | trim | length"])) + self.body(sub) + self.tag("endset")
        if k < 11:
            return self.macro(sub)
        if k < 12:
            return self.pick([self.tag("filter upper") + self.body(sub) + self.tag("endfilter"),
                              self.tag("with v1 = %s, v2 = 3" % e()) + self.body(sub) + self.tag("endwith"),
                              self.tag("generation") + self.body(sub) + self.tag("endgeneration")])
        return self.tag("if loop is defined") + "{{ loop.index }}" + self.tag("endif")

    def loop(self, sub):
        target, items = self.pick([("x", "l"), ("x", "rows"), ("k, v", "d.items()"), ("k, v", "d|items"), ("a, b", "pairs"),
                                   ("x", "range(3)"), ("x", "s[:3]"), ("x", "d"), ("x", "le"), ("x", "missing"), ("k, v", "d|dictsort"),
                                   ("x", "rows|selectattr('on')"), ("x", "mixed"), ("x", "w|sort"), ("x", "l|reverse")])
        cond = self.pick(["", "", "", " if x", " if loop is defined", " if ns.a", " if x is defined and x != 2"])
        names = [n.strip() for n in target.split(",")]
        self.locals += names
        inner = self.body(sub)
        inner += self.pick(["", "{{ loop.index }}", "{{ loop.last }},{{ loop.first }}", "{{ loop.length }}/{{ loop.revindex0 }}",
                            "{{ loop.previtem }}<{{ loop.nextitem }}", "{{ loop.cycle('o', 'e') }}", "{{ loop.changed(x) }}", "",
                            "{% set ns.a = loop.index0 %}", "{% set v1 = (v1 or 0) + 1 %}{{ v1 }}"])
        if self.rng.random() < 0.25:
            inner = self.tag("if loop.index0 == 1") + self.tag(self.pick(["break", "continue"])) + self.tag("endif") + inner
        for _ in names:
            self.locals.pop()
        end = self.tag("else") + self.body(0) if self.rng.random() < 0.3 else ""
        return self.tag("for %s in %s%s" % (target, items, cond)) + inner + end + self.tag("endfor")

    def macro(self, sub):
        name = self.pick(["m1", "m2"])
        params = self.pick(["", "a", "a, b=2", "a, b=a", "a=1, b='x'", "a, b=none, c=[]"])
        call = self.pick(["", "1", "1, 2", "s, b=n", "b=3", "1, 2, 3, 4", "a=5", "*l", "**{'a': 1}"])
        self.locals += ["a", "b"]
        inner = self.body(sub) + self.pick(["", "{{ varargs }}", "{{ kwargs }}", "{{ caller() if caller }}", "{{ a }}{{ b }}"])
        self.locals = self.locals[:-2]
        out = self.tag("macro %s(%s)" % (name, params)) + inner + self.tag("endmacro")
        if self.rng.random() < 0.3:
            return out + self.tag("call %s(%s)" % (name, call)) + "C" + self.tag("endcall")
        return out + "{{ %s(%s) }}" % (name, call)


def cases(seed, count):
    rng = random.Random(seed)
    for i in range(count):
        m = Maker(rng)
        if i % 3:
            source = "{{ %s }}" % m.expr(rng.randrange(1, 4))
        else:
            source = "{% set ns = namespace(a=1, b='') %}" + m.body(rng.randrange(1, 4)) + "{{ ns.a }}" + m.pick(["", "\n", "\n\n"])
        yield "#%d" % i, source, VARS
