"""Processes: started in a group of their own, measured from outside by /proc, ended by pid.

Invariants
- A process is known by its pid and the moment it started, so that a pid given to another is never ended.
- What a process has started ends with it, also if it dies without ending its children.
"""

import json
import os
import selectors
import signal
import subprocess
import time
from contextlib import contextmanager

# One of these is ready, and one ends, within this.
PATIENCE_S = 30
TICKS = os.sysconf("SC_CLK_TCK")


class Broken(Exception):
    """A measurement that cannot go on; the text says why."""


def stat(pid):
    """The fields of /proc/PID/stat behind the name, from `state` on; none if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return None


def tree(root):
    """The process and all below it, with the moments they started, as (pid, started)."""
    children, started = {}, {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if fields := stat(pid):
            children.setdefault(int(fields[1]), []).append(int(pid))
            started[int(pid)] = fields[19]
    found, ahead = [], [root] if root in started else []
    while ahead:
        pid = ahead.pop()
        found.append((pid, started[pid]))
        ahead += children.get(pid, [])
    return found


def running(pid, started):
    fields = stat(pid)
    return fields is not None and fields[19] == started and fields[0] not in "ZX"


def cpu_seconds(pid):
    """Of the process, of all below it, and of those below it that have ended."""
    ticks = 0
    for one, _ in tree(pid):
        if fields := stat(one):
            # utime, stime, and those of children that were waited for
            ticks += sum(map(int, fields[11:15]))
    return ticks / TICKS


class Watch:
    """What share of the processors went to others, the host of a virtual machine among them."""

    def __init__(self):
        self.began, self.busy = time.monotonic(), self._busy()

    def others(self, ours_s):
        """Since the beginning, if `ours_s` seconds were ours."""
        busy = self._busy() - self.busy
        available = (time.monotonic() - self.began) * os.cpu_count()
        # Ticks are coarse.
        return min(max(0.0, (busy - ours_s) / available), 1.0)

    @staticmethod
    def _busy():
        with open("/proc/stat") as file:
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, file.readline().split()[1:9])
        return (user + nice + system + irq + softirq + steal) / TICKS


class Interrupts:
    """Signals that end the program, as KeyboardInterrupt with their name."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    held = False
    came = None

    @classmethod
    def catch(cls):
        for number in cls.SIGNALS:
            signal.signal(number, cls._arrived)

    @classmethod
    def ignore(cls):
        for number in cls.SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    @classmethod
    @contextmanager
    def later(cls):
        """What arrives inside is raised behind it."""
        cls.held = True
        try:
            yield
        finally:
            cls.held = False
            if cls.came:
                raise KeyboardInterrupt(cls.came)

    @classmethod
    def _arrived(cls, number, _frame):
        if cls.held:
            cls.came = signal.Signals(number).name
        else:
            raise KeyboardInterrupt(signal.Signals(number).name)


class Process:
    """A started process. Everything it says goes to a log, except what `talk` reads."""

    all = []

    def __init__(self, name, argv, logs, env=None, cwd=None, talks=False):
        self.name = name
        self.log = logs / f"{name}.log"
        # A signal between the start of a process and our knowing of it would leave it behind.
        with open(self.log, "ab") as log, Interrupts.later():
            try:
                self.popen = subprocess.Popen(
                    [str(word) for word in argv],
                    stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
                    stdout=subprocess.PIPE if talks else log,
                    stderr=log,
                    env={**os.environ, **{k: str(v) for k, v in (env or {}).items()}},
                    cwd=cwd,
                    # Ctrl-C is for us; we end it.
                    start_new_session=True,
                )
            except OSError as e:
                raise Broken(f"{argv[0]} cannot be started: {e}") from e
            self.pid = self.popen.pid
            self.said = b""
            Process.all.append(self)

    def alive(self):
        return self.popen.poll() is None

    def check(self):
        if not self.alive():
            raise Broken(f"{self.name} ended with {self.popen.returncode}: {self.last_words()}")

    def last_words(self):
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return " / ".join(lines[-3:]) or f"nothing in {self.log}"

    def cpu_seconds(self):
        return cpu_seconds(self.pid)

    def hear(self, key, patience_s, others=()):
        """The value of `key` in the next line of JSON it says; anything else, and every death, is an error."""
        deadline = time.monotonic() + patience_s
        out = self.popen.stdout
        with selectors.DefaultSelector() as selector:
            selector.register(out, selectors.EVENT_READ)
            while b"\n" not in self.said:
                for other in others:
                    other.check()
                if time.monotonic() > deadline:
                    raise Broken(f"{self.name} did not say {key!r} within {patience_s} s: {self.last_words()}")
                if selector.select(timeout=0.5):
                    piece = os.read(out.fileno(), 1 << 16)
                    if not piece:
                        self.popen.wait()
                        self.check()
                    self.said += piece
        line, _, self.said = self.said.partition(b"\n")
        try:
            return json.loads(line)[key]
        except (ValueError, KeyError, TypeError):
            raise Broken(f"{self.name} said {line.decode(errors='replace')!r} and not {key!r}") from None

    def go_on(self):
        self.popen.stdin.write(b"go\n")
        self.popen.stdin.flush()

    def wait(self, patience_s):
        """Waits for its end by itself; returns its status and its own processor seconds, without its children's."""
        deadline = time.monotonic() + patience_s
        # It stays a zombie for now, whose processor time can still be read.
        while os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            if time.monotonic() > deadline:
                raise Broken(f"{self.name} did not end within {patience_s} s: {self.last_words()}")
            time.sleep(0.02)
        fields = stat(self.pid)
        own = sum(map(int, fields[11:13])) / TICKS if fields else None
        return self.popen.wait(), own

    def stop(self, patience_s=PATIENCE_S):
        """Ends it and all that it has started: asked first, killed if it does not hear."""
        below = tree(self.pid)[1:] if self.alive() else []
        if self.alive():
            self.popen.terminate()
            try:
                self.popen.wait(patience_s)
            except subprocess.TimeoutExpired:
                self.popen.kill()
                self.popen.wait()
        for sign in (signal.SIGTERM, signal.SIGKILL):
            for pid, started in below:
                if running(pid, started):
                    os.kill(pid, sign)
            deadline = time.monotonic() + patience_s
            while any(running(*one) for one in below) and time.monotonic() < deadline:
                time.sleep(0.02)
        for pipe in (self.popen.stdin, self.popen.stdout):
            if pipe:
                pipe.close()
        if self in Process.all:
            Process.all.remove(self)


def stop_all():
    """Ends what is left, the last one first. Signals do not interrupt it."""
    Interrupts.ignore()
    for process in reversed(list(Process.all)):
        process.stop(patience_s=5)
