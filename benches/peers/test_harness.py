"""Tests of what decides about figures: `python3 -m unittest discover benches/peers`."""

import os
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness import report  # noqa: E402
from harness.processes import Broken, Process, running, tree  # noqa: E402
from harness.session import CELLS, Session, audit, percentile  # noqa: E402
from harness.systems import PEERS, named  # noqa: E402


class Audit(unittest.TestCase):
    def test_each_task_and_end_once_is_ok_whichever_worker_it_was(self):
        self.assertEqual(audit([bytes([1] * CELLS + [0] * CELLS), bytes([0] * CELLS + [1] * CELLS)], 2), "ok")

    def test_a_task_that_did_not_run_or_ran_twice_is_told(self):
        ledger = bytearray([1] * CELLS * 3)
        ledger[4], ledger[CELLS + 9] = 0, 2
        verdict = audit([bytes(ledger)], 3)
        self.assertIn("task 5 of chain 0: 0 times", verdict)
        self.assertIn("the end of chain 1: 2 times", verdict)

    def test_a_ledger_that_is_missing_or_too_short_is_told(self):
        self.assertIn("has not written", audit([None], 1))
        self.assertIn("wrong length", audit([bytes(CELLS)], 2))


def measured(rate, verdict="ok", p50=1.0):
    return {"audit": verdict, "runs": 5, "tasks_per_second": rate, "idle_p50_ms": p50, "phases": []}


class Ratios(unittest.TestCase):
    def test_are_of_pairs_and_above_one_where_downbeat_is_better(self):
        told = report.ratios([(measured(100, p50=2), measured(50, p50=8)), (measured(30), measured(10))])
        self.assertEqual(told["tasks_per_second"], {"median": 2.5, "min": 2, "max": 3})
        self.assertEqual(told["idle_p50_ms"]["max"], 4)

    def test_what_is_refused_counts_nowhere(self):
        self.assertEqual(report.ratios([(measured(100), measured(50, "lost"))]), {})
        self.assertEqual(report.medians([measured(50, "lost"), measured(9)])["tasks_per_second"]["median"], 9)

    def test_what_is_refused_is_told_in_the_table(self):
        class System:
            name = title = "x"
            version = workers = durability = atomicity = kept = ""
            settings = {}
            debug_build = False

        about = {"rounds": 1, "began": "", "commit": "", "machine": report.machine()}
        turns = [(1, System(), measured(100), measured(50, "lost"))]
        text = report.markdown(report.document(System(), turns, about))
        self.assertIn("x, round 1: lost", text)
        self.assertIn("| x |  | 5 | – |", text)

    def test_percentile_is_that_of_the_benchmark(self):
        self.assertEqual(percentile([3, 1, 2, 4], 0.5), 3)
        self.assertEqual(percentile([1], 0.99), 1)
        self.assertIsNone(percentile([], 0.5))


class Names(unittest.TestCase):
    def test_a_name_stands_for_all_that_begin_so_once(self):
        self.assertEqual([p.name for p in named(["apalis", "apalis-2k"])], ["apalis-2k", "apalis-10k"])
        self.assertEqual(len({p.name for p in PEERS}), len(PEERS))
        with self.assertRaises(SystemExit):
            named(["nobody"])


class Processes(unittest.TestCase):
    def setUp(self):
        self.logs = tempfile.TemporaryDirectory()
        self.addCleanup(self.logs.cleanup)

    def start(self, script, **options):
        process = Process("it", ["sh", "-c", script], Path(self.logs.name), **options)
        self.addCleanup(process.stop)
        return process

    def test_ends_with_all_that_it_has_started_even_if_it_dies_of_it(self):
        process = self.start("sleep 60 & sleep 60 & echo '{\"up\": 1}'; wait", talks=True)
        process.hear("up", 10)
        members = tree(process.pid)
        self.assertEqual(len(members), 3)
        process.stop()
        self.assertFalse([one for one in members if running(*one)])

    def test_a_pid_of_another_moment_is_not_running(self):
        self.assertFalse(running(os.getpid(), "0"))

    def test_a_death_is_told_with_the_last_words_and_that_of_another_too(self):
        process = self.start("echo oh dear >&2; exit 3", talks=True)
        with self.assertRaisesRegex(Broken, "it ended with 3: oh dear"):
            process.hear("ready", 10)
        lasting = self.start("sleep 60", talks=True)
        with self.assertRaisesRegex(Broken, "ended with 3"):
            lasting.hear("ready", 10, others=[process])

    def test_a_wrong_line_is_told(self):
        with self.assertRaisesRegex(Broken, "said 'what'"):
            self.start("echo what; sleep 60", talks=True).hear("ready", 10)

    def test_its_own_time_is_known_after_its_end(self):
        status, own = self.start("i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; exit 4").wait(60)
        self.assertEqual(status, 4)
        self.assertGreater(own, 0)


class Interrupted(unittest.TestCase):
    def test_a_signal_ends_what_was_started(self):
        script = (
            "import sys, pathlib; sys.path.insert(0, sys.argv[1])\n"
            "from harness.processes import *\n"
            "Interrupts.catch()\n"
            "try:\n"
            "    p = Process('it', ['sleep', '60'], pathlib.Path(sys.argv[2]))\n"
            "    print(p.pid, flush=True)\n"
            "    p.popen.wait()\n"
            "except KeyboardInterrupt as e:\n"
            "    print(e)\n"
            "finally:\n"
            "    stop_all()\n"
        )
        with (
            tempfile.TemporaryDirectory() as logs,
            subprocess.Popen(
                [sys.executable, "-c", script, str(Path(__file__).resolve().parent), logs],
                stdout=subprocess.PIPE,
                text=True,
            ) as program,
        ):
            [started] = tree(int(program.stdout.readline()))
            program.send_signal(signal.SIGTERM)
            self.assertEqual(program.stdout.read().strip(), "SIGTERM")
            self.assertFalse(running(*started))


class Rates(unittest.TestCase):
    def test_are_per_run_and_per_task(self):
        class Phase:
            runs = 10

        figures = {"elapsed_s": 2, "submitted_s": 0.5, "cpu_s": {"a": 0.9}, "driver_cpu_s": 0.09, "redis_bytes": 50}
        rates = Session._rates(Phase, figures)
        self.assertEqual((rates["tasks_per_second"], rates["runs_submitted_per_second"]), (45, 20))
        self.assertAlmostEqual(rates["cpu_us_per_task"], 10_000)
        self.assertEqual(rates["redis_bytes_per_run"], 5)


if __name__ == "__main__":
    unittest.main()
