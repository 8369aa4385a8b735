"""A pseudo-terminal for the tests of the command: start it, wait for output, send keys. SPDX-License-Identifier: MIT"""
import os, pty, select, subprocess, time
from clitest import LIMIT, command, environment, expect

has_editing = "libedit" in subprocess.run(["ldd", command], capture_output=True, text=True).stdout


class Terminal:
    """The command on a terminal of its own. `seen` holds the bytes since the last send. blocking: how another program left it."""

    def __init__(self, *args, blocking=True, **env):
        master, slave = pty.openpty()
        os.set_blocking(slave, blocking)
        quiet = os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"   # libedit never frees the names of added functions
        self.master, self.seen, self.all = master, b"", b""
        self.process = subprocess.Popen([command, *map(str, args)], stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
                                        env={**environment, "TERM": "xterm", "ASAN_OPTIONS": quiet, **env})
        os.close(slave)

    def read(self, seconds):
        """False at the end of output."""
        if not select.select([self.master], [], [], seconds)[0]: return True
        try: more = os.read(self.master, 65536)
        except OSError: more = b""
        self.seen += more
        self.all += more
        return bool(more)

    def wait(self, what, words):
        """Read until words (bytes, or a function of the bytes) are there."""
        found = words if callable(words) else lambda s: words in s
        end = time.monotonic() + LIMIT
        while not found(self.seen) and time.monotonic() < end and self.read(0.2): pass
        expect(what, found(self.seen), self.seen[-500:])

    def prompt(self, what="the prompt"):
        self.wait(what, lambda s: s.replace(b"\x1b[0m", b"").rstrip().endswith(b">"))

    def send(self, keys):
        self.seen = b""
        os.write(self.master, keys if isinstance(keys, bytes) else keys.encode())

    def end(self):
        """Wait for the end of the program; returns its exit code."""
        end = time.monotonic() + LIMIT
        while time.monotonic() < end and self.read(0.2): pass
        try: code = self.process.wait(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = "still running"
        os.close(self.master)
        return code
