"""One system, up for one measurement: its processes, phases of work on it, and the audit of all that ran.

Invariants
- Each measurement has fresh processes and a fresh directory.
- A figure counts only if the audit finds nothing: every task of every chain ran once, in its order, and every chain
  ended once with the right number. Warm-up chains are audited like the others.
"""

import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .processes import PATIENCE_S, Broken, Process, Watch
from .redis import Redis

TASKS = 9
# Of a ledger, per chain: its tasks and its end.
CELLS = TASKS + 1
# No phase takes longer; it is stuck.
PHASE_S = 300


@dataclass
class Phase:
    """Chains that are run in one way: `idle` is one at a time; what else there is, the driver knows."""

    mode: str
    warm_up: int
    runs: int

    @property
    def chains(self):
        return self.warm_up + self.runs


def percentile(values, q):
    """The value below which the share `q` lies, as `downbeat bench` counts it."""
    values = sorted(values)
    return values[min(int(len(values) * q), len(values) - 1)] if values else None


class Session:
    """What a peer starts its processes in."""

    def __init__(self, directory, logs, chains):
        self.directory = directory
        self.logs = logs
        # How many chains will be run in all.
        self.chains = chains
        # Everything but the driver: what the processors' time is counted of.
        self.processes = []
        self.redis = None
        self.ledgers = []
        self._before = 0

    def start_redis(self):
        self.redis = Redis(self.directory, self.logs)
        self.processes.append(self.redis.process)
        return self.redis.port

    def start(self, name, argv, **options):
        process = Process(name, argv, self.logs, **options)
        self.processes.append(process)
        return process

    def ledger(self, name):
        """Where a worker writes what it ran."""
        path = self.directory / f"{name}.ledger"
        self.ledgers.append(path)
        return path

    def listening(self, worker):
        """The port on which a worker answers, once it is ready."""
        return worker.hear("listening", PATIENCE_S, self.processes)

    def run(self, phase, argv, **options):
        """Lets a driver do its work, and returns its figures and what they cost."""
        argv = [*argv, "--mode", phase.mode, "--before", self._before, "--warm-up", phase.warm_up, "--runs", phase.runs]
        driver = Process(f"driver-{phase.mode}", argv, self.logs, talks=True, **options)
        self._before += phase.chains
        try:
            figures = self._watch(driver)
        finally:
            driver.stop()
        figures.update(mode=phase.mode, runs=phase.runs, **self._rates(phase, figures))
        return figures

    def _watch(self, driver):
        """From the first word of a driver to its last."""
        driver.hear("ready", PHASE_S, self.processes)
        # Which are there is known now: a worker may have started some of its own while it warmed up.
        memory = self.redis.memory() if self.redis else None
        before, own, watch = self._cpu(), driver.cpu_seconds(), Watch()
        driver.go_on()
        figures = driver.hear("done", PHASE_S, self.processes)
        figures["cpu_s"] = {name: round(s - before[name], 2) for name, s in self._cpu().items()}
        figures["driver_cpu_s"] = round(driver.cpu_seconds() - own, 2)
        figures["others_share"] = watch.others(sum(figures["cpu_s"].values()) + figures["driver_cpu_s"])
        if self.redis:
            figures["redis_bytes"] = self.redis.memory() - memory
        driver.go_on()
        wrong = driver.hear("audit", PHASE_S, self.processes)
        driver.wait(PATIENCE_S)
        if wrong:
            raise Broken("; ".join(wrong[:3]))
        return figures

    def _cpu(self):
        return {p.name: p.cpu_seconds() for p in self.processes}

    @staticmethod
    def _rates(phase, figures):
        tasks = phase.runs * TASKS
        rates = {
            "cpu_us_per_task": sum(figures["cpu_s"].values()) * 1e6 / tasks,
            "driver_cpu_us_per_task": figures["driver_cpu_s"] * 1e6 / tasks,
        }
        if latencies := figures.pop("latencies_ms", None):
            rates["p50_ms"], rates["p99_ms"] = percentile(latencies, 0.5), percentile(latencies, 0.99)
            # Too little for what else moves the memory.
            figures.pop("redis_bytes", None)
        else:
            rates["tasks_per_second"] = tasks / figures["elapsed_s"]
        if "submitted_s" in figures:
            rates["runs_submitted_per_second"] = phase.runs / figures["submitted_s"]
        if "redis_bytes" in figures:
            rates["redis_bytes_per_run"] = figures["redis_bytes"] / phase.runs
        return rates

    def stop(self):
        """Ends the processes, those that started last first; the workers write their ledgers."""
        for process in reversed(self.processes):
            process.stop()

    def audit(self):
        """Every cell of all ledgers together is one."""
        return audit([path.read_bytes() if path.exists() else None for path in self.ledgers], self.chains)


def audit(ledgers, chains):
    """`ok`, or what is wrong with what the workers noted."""
    if any(ledger is None for ledger in ledgers):
        return "a worker has not written what it ran"
    if any(len(ledger) != chains * CELLS for ledger in ledgers):
        return "a ledger has the wrong length"
    wrong = []
    for cell, counts in enumerate(zip(*ledgers, strict=True)):
        if sum(counts) != 1:
            chain, task = divmod(cell, CELLS)
            what = f"task {task + 1}" if task < TASKS else "the end"
            wrong.append(f"{what} of chain {chain}: {sum(counts)} times (255: also out of order)")
    return "ok" if not wrong else f"{len(wrong)} cells are not 1: {'; '.join(wrong[:3])}"


@contextmanager
def session(logs, chains):
    """Up, and down again whatever happens. The directory is where programs put what they need for a while, as that of
    `downbeat bench` is."""
    logs.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="downbeat-peers-"))
    it = Session(directory, logs, chains)
    try:
        yield it
    finally:
        it.stop()
        shutil.rmtree(directory, ignore_errors=True)
