"""Downbeat, by its own `downbeat bench`, which starts and audits everything itself."""

import json
import resource
import tempfile

from ..processes import Broken, Process, Watch
from ..session import PHASE_S, TASKS


class Downbeat:
    name = "downbeat"
    title = "Downbeat"
    runs = 10_000
    idle_runs = 300
    settings = {
        "server": "one process, settings as they come",
        "worker": "one process, one gRPC stream, concurrency 1,000",
        "submission": "StartMany, one gRPC stream",
    }
    workers = "a process of its own, remote by gRPC, without access to Redis; a server between"
    durability = "Redis, AOF every second"
    atomicity = "yes: one script stores a result, leases the next task and writes the events"
    kept = "each run with all its tasks, tries, results and events"

    def __init__(self, program):
        self.program = program
        # Known after the first measurement.
        self.version = "?"
        self.debug_build = False

    def measure(self, runs, idle_runs, logs):
        try:
            chain = self._bench("chain", runs, logs)
            idle = self._bench("idle", idle_runs, logs)
        except Broken as e:
            return {"runs": runs, "audit": str(e), "phases": []}
        wrong = [f"{phase['scenario']}: {phase['audit']}" for phase in (chain, idle) if phase["audit"] != "ok"]
        return {
            "runs": runs,
            "tasks_per_second": chain.get("tasks_per_second"),
            "runs_submitted_per_second": chain.get("runs_submitted_per_second"),
            "idle_p50_ms": idle.get("run_latency_p50_ms"),
            "idle_p99_ms": idle.get("run_latency_p99_ms"),
            "redis_bytes_per_run": chain.get("redis_bytes_per_finished_run"),
            "cpu_us_per_task": chain.get("cpu_us_per_task"),
            # Of the whole life of the driver, its own audit included.
            "driver_cpu_us_per_task": chain["driver_cpu_s"] * 1e6 / (runs * TASKS),
            "audit": "; ".join(wrong) or "ok",
            "phases": [chain, idle],
        }

    def _bench(self, scenario, runs, logs):
        out = logs / scenario
        out.mkdir(parents=True)
        argv = [self.program, "bench", scenario, "--runs", runs, "--tasks", TASKS, "--store", "redis", "--out", out]
        spent, watch = self._children_s(), Watch()
        # Its data go where those of the peers go, and away with it if it is interrupted.
        with tempfile.TemporaryDirectory(prefix="downbeat-peers-", ignore_cleanup_errors=True) as data:
            process = Process(f"downbeat-{scenario}", argv, logs, env={"TMPDIR": data})
            try:
                status, own = process.wait(PHASE_S)
            finally:
                process.stop()
        try:
            summary = json.loads((out / "summary.json").read_text())
        except (OSError, ValueError):
            raise Broken(f"downbeat bench {scenario} ended with {status}: {process.last_words()}") from None
        summary["driver_cpu_s"] = own
        summary["others_share"] = watch.others(self._children_s() - spent)
        self.version = summary["settings"]["version"]
        self.debug_build |= summary["settings"]["debug_build"]
        return summary

    @staticmethod
    def _children_s():
        """Processor seconds of all children that have ended, and of theirs."""
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime
