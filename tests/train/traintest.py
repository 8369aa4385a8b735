"""Shared by the tests of `segue train`: SEGUE and a folder of tiny checkpoints as arguments, a work folder, checks that are counted.
SPDX-License-Identifier: MIT"""
import os, shutil, subprocess, sys, tempfile

SEGUE, FILES = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
failed = 0
work = tempfile.mkdtemp()
os.chdir(work)


def check(name, good, detail=""):
    global failed
    print(("PASS " if good else "FAIL ") + name, "" if good else detail)
    failed += not good


def segue(*args):
    return subprocess.run([SEGUE, *args], capture_output=True, text=True)


def finish():
    os.chdir("/")
    shutil.rmtree(work)
    sys.exit(failed != 0)
