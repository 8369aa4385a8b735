#!/usr/bin/env python3
"""Writes a wheel with the command `segue`, so that `pip install` puts it on the path. Standard library only.

  wheel.py COMMAND FOLDER [PLATFORM]        PLATFORM: a tag such as manylinux_2_36_x86_64; default: this machine

The command must not need libraries that pip cannot install; a static build has none. SPDX-License-Identifier: MIT"""
import base64, hashlib, os, re, subprocess, sys, sysconfig, zipfile

if len(sys.argv) not in (3, 4): sys.exit(__doc__)
command, folder = sys.argv[1:3]
platform = sys.argv[3] if len(sys.argv) == 4 else re.sub(r"[-.]", "_", sysconfig.get_platform())
found = re.search(r"\d+\.\d+\.\d+", subprocess.run([command, "version"], capture_output=True, text=True, check=True).stdout)
if not found: sys.exit(f"wheel: {command}: it prints no version; give the command segue")
version, tag = found[0], f"py3-none-{platform}"
info = f"segue_command-{version}.dist-info"
with open(command, "rb") as f: program = f.read()
files = {f"segue_command-{version}.data/scripts/segue": program,
         f"{info}/METADATA": (f"Metadata-Version: 2.1\nName: segue-command\nVersion: {version}\nSummary: The command segue: language models, "
                              "and checks of Neural Engine programs (segue mil check)\nLicense: MIT\nRequires-Python: >=3.8\n").encode(),
         f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: segue wheel.py\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()}
record = "".join(f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
                 for name, data in files.items())
files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
os.makedirs(folder, exist_ok=True)
path = os.path.join(folder, f"segue_command-{version}-{tag}.whl")
with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
    for name, data in files.items():
        entry = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))        # the same bytes for the same command
        entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, (0o100755 if name.endswith("/segue") else 0o100644) << 16
        z.writestr(entry, data)
print(path)
