"""Shared by the tests of `segue train`: SEGUE and a folder of tiny checkpoints as arguments, a work folder, checks that are counted.
SPDX-License-Identifier: MIT"""
import os, shutil, signal, subprocess, sys, tempfile, time

SEGUE, FILES = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
failed = 0
work = tempfile.mkdtemp()
os.chdir(work)


def check(name, good, detail=""):
    global failed
    print(("PASS " if good else "FAIL ") + name, "" if good else detail)
    failed += not good


def segue(*args, **more):
    return subprocess.run([SEGUE, *args], capture_output=True, text=True, **more)


def run_killed(path, *args):
    """A run that is killed when it has written `path`, whatever it does then; it may have ended before."""
    p = subprocess.Popen([SEGUE, *args], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while p.poll() is None and not os.path.exists(path): time.sleep(0.001)   # leaves it the processor
    p.send_signal(signal.SIGKILL)
    p.wait()


def finish():
    os.chdir("/")
    shutil.rmtree(work)
    sys.exit(failed != 0)
