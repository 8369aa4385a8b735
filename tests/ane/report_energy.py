#!/usr/bin/env python3
"""The energy of `segue ane-report` with a double of powermetrics: a log of constant power, written as the tool does, until it is
interrupted. Needs root, as the tool does. SPDX-License-Identifier: MIT"""
import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli"))
from clitest import *

if os.geteuid():
    print("SKIP report_energy: powermetrics is started as root only")
    sys.exit(77)

DOUBLE = """#!/usr/bin/env python3
import sys, time, datetime
interval, log = int(sys.argv[sys.argv.index("-i") + 1]) / 1e3, open(sys.argv[sys.argv.index("-o") + 1], "w", buffering=1)
last = time.monotonic()
while True:
    time.sleep(interval)
    now = time.monotonic()
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%a %b %d %H:%M:%S %Y %z")
    log.write(f"*** Sampled system activity ({date}) ({(now - last) * 1000:.2f}ms elapsed) ***\\n\\nCPU Power: 1000 mW\\n"
              "GPU Power: 500 mW\\nANE Power: 1500 mW\\nCombined Power (CPU + GPU + ANE): 3000 mW\\n\\n")
    last = now
"""
folder = os.path.join(top.name, "bin")
os.mkdir(folder)
path = write(folder, "powermetrics", DOUBLE)
os.chmod(path, 0o755)
report = os.path.join(top.name, "report.json")
r = subprocess.run([command, "ane-report", "--unit", "ane:soft,profile=m4", "-o", report], capture_output=True, text=True,
                   env={**environment, "PATH": folder + os.pathsep + os.environ["PATH"]})
expect("the report is written", r.returncode == 0, r.stderr)
e = json.load(open(report))["energy"]
expect("there is energy", e is not None, json.load(open(report)).get("energy_reason"))
near = lambda x, y: x is not None and abs(x - y) < 0.05 * y
expect("the idle power is that of the log", near(e["idle_w"], 3), e)
expect("samples of both phases", e["prefill_samples"] >= 5 and e["decode_samples"] >= 5, e)
expect("the parts of the log", {r["name"] for r in e["rails"]} == {"CPU", "GPU", "ANE"}, e)
expect("nothing is left above the idle machine, whose power is constant", abs(e["prefill_j"]) < 1 and abs(e["decode_j"]) < 2, e)
done()
