#!/usr/bin/env python3
"""`bench --html`: the page is well formed, loads nothing and shows the rows; read with Python's parsers.
SPDX-License-Identifier: MIT"""
import re, xml.etree.ElementTree as tree
from html.parser import HTMLParser
from clitest import *

VOID = {"meta", "line", "rect", "circle", "path"}


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.open, self.cells, self.tags, self.bad = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        for name, value in attributes:
            if name in ("src", "href", "onload", "onclick"): self.bad.append((tag, name, value))
        if tag not in VOID: self.open.append(tag)
        if tag == "td": self.cells.append("")

    def handle_endtag(self, tag):
        if tag in VOID: return
        if not self.open or self.open.pop() != tag: self.bad.append(("end", tag))

    def handle_data(self, data):
        if self.open and self.open[-1] == "td": self.cells[-1] += data


def page(path):
    with open(path, encoding="utf-8") as f: text = f.read()
    p = Page(text)
    expect("closed tags, nothing loaded", not p.bad and not p.open, (p.bad, p.open))
    expect("no script", "script" not in p.tags and "http" not in text.replace("http://www.w3.org", ""), p.tags)
    drawings = [tree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", text, re.S)]  # strict XML
    return text, p, drawings


m = tiny_model("a<b>&'x")
out = os.path.join(top.name, "page.html")
code, printed, err = run("bench", "-m", m, "--unit", "cpu:threads=1", "-p", "8,16", "-n", "4", "-r", "2", "--json", "--html", out)
rows = json.loads(printed)
text, p, drawings = page(out)
def shown(value):  # the rows have nine digits: the second decimal may be rounded another way
    return any(f"{value + d:.2f}" in p.cells for d in (-0.005, 0, 0.005))


expect("the page says what the rows say", all(shown(r["avg_ts"]) for r in rows), p.cells)
expect("the model's path is escaped", "a&lt;b&gt;&amp;&#39;x" in text and "b" not in p.tags, p.tags)
bars = [e for e in drawings[0] if e.tag == "rect"]
expect("one bar per row, as long as its value", len(bars) == 3 and all(
    abs(float(a.get("width")) * b["avg_ts"] - float(c.get("width")) * d["avg_ts"]) < 0.01 * float(c.get("width")) * d["avg_ts"] + 20000
    for a, b, c, d in [(bars[0], rows[1], bars[1], rows[0])]), [b.attrib for b in bars])
blocks = [e for e in drawings[-1] if e.tag == "rect"]
expect("time line: one prefill and the decode runs", len(blocks) >= 4 and "cpu:" in text, len(blocks))
code, printed, err = run("bench", "-m", m, "--pipelines", "--pipeline", "single:cpu", "--pipeline", "single:ref", "--pipeline", "gpu",
                         "-p", "4,8", "-n", "2", "-r", "2", "--json", "--html", out)
text, p, drawings = page(out)
expect("pipelines: lines, and one time line each", code == 0 and len(drawings) == 3 and "single:ref" in text, (code, err, len(drawings)))
expect("a crossover, or none", "crossover: none" in text or "from single:" in text)
code, printed, err = run("bench", "--grid", m, tiny_model("second"), "--pipeline", "single:cpu", "-p", "4,8", "-n", "2", "-r", "2", "--json", "--html", out)
rows = json.loads(printed) if code == 0 else []
expect("grid: models x prompts", [(r["case"], r["n_prompt"]) for r in rows]
       == [(f"{n} single:cpu", p) for n in ("a<b>&'x", "second") for p in (4, 8)], (err, rows))
expect("grid: memory and disk", all(r["peak_bytes"] > 0 and r["disk_bytes"] > 0 and r["device_bytes"] is None and r["device_bytes_reason"] for r in rows), rows)
page(out)
refused(2, ["bench", "--pipelines", m], "--grid")
code, printed, err = run("bench", "-m", m, "--unit", "cpu", "-p", "8", "-n", "0", "-r", "1", "--html", os.path.join(top.name, "no/x.html"))
expect("a page that cannot be written", code == 1 and "no/x.html" in err, (code, err))
done()
