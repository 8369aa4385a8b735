#!/usr/bin/env python3
"""The wheel of the command: pip installs it, and the installed command checks programs. SPDX-License-Identifier: MIT"""
import glob, os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli"))
from clitest import *

to, made = os.path.join(top.name, "to"), os.path.join(top.name, "wheels")
r = subprocess.run([sys.executable, os.path.join(source, "cmake", "wheel.py"), command, made], capture_output=True, text=True)
expect("a wheel is written", r.returncode == 0 and glob.glob(os.path.join(made, "*.whl")), r.stderr)
wheel = r.stdout.strip()
r = subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", to, wheel], capture_output=True, text=True)
if "No module named pip" in r.stderr:
    print("SKIP wheel: pip is not here")
    sys.exit(77)
expect("pip installs it", r.returncode == 0, r.stderr)
r = subprocess.run([os.path.join(to, "bin", "segue"), "mil", "check", os.path.join(source, "docs", "examples", "ffn.mil"), "--json"], capture_output=True, text=True)
expect("the installed command checks a program", r.returncode == 0 and json.loads(r.stdout)["programs"] == 1, (r.returncode, r.stderr))
done()
