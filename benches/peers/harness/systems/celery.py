"""Celery: `chain` of nine tasks."""

import sys

from ..session import CELLS
from .peer import HERE, Peer, do, once, pinned

POOL = 4


class Celery(Peer):
    name = "celery"
    title = "Celery, chain"
    version = pinned("celery", "celery", "redis", "hiredis")
    runs = 1_000
    idle_runs = 100
    warm_up = 30
    settings = {
        "worker": f"one node, prefork, {POOL} processes, prefetch 64, without gossip, mingle and heartbeat, no events,"
        " no rate limits",
        "results": "of the last task only (ignore_result on the others, which pass theirs on in the message)",
        "submission": "one process, chain(…).apply_async",
        "acknowledgement": "when a task is taken up, the default",
    }
    workers = "processes of their own, which are clients of Redis; there is no server"
    durability = "Redis, AOF every second; a task in a worker that dies is lost (late acknowledgement would keep it)"
    atomicity = "no: the next task is sent, then the result stored; nothing knows the chain as a whole"
    kept = "the result of the last task, for a day"

    def install(self, cache):
        requirements = HERE / "celery/requirements.txt"

        def make(folder):
            do([sys.executable, "-m", "venv", folder / "venv"])
            pip = [folder / "venv/bin/pip", "install", "--quiet", "--disable-pip-version-check"]
            do([*pip, "--no-deps", "-r", requirements])

        once(cache / "celery", [requirements], make)
        self.bin = cache / "celery/venv/bin"

    def start(self, session):
        ledger = session.ledger("worker")
        ledger.write_bytes(bytes(session.chains * CELLS))
        env = {"PEER_REDIS": session.start_redis(), "PEER_LEDGER": ledger, "PYTHONDONTWRITEBYTECODE": 1}
        session.start(
            "worker",
            [
                self.bin / "celery",
                "-A",
                "app",
                "worker",
                "--pool",
                "prefork",
                "--concurrency",
                POOL,
                "-O",
                "fair",
                "--without-gossip",
                "--without-mingle",
                "--without-heartbeat",
                "--loglevel",
                "ERROR",
                "--hostname",
                "worker@localhost",
            ],
            env=env,
            cwd=HERE / "celery",
        )
        # The first chain of the driver waits for it.
        return env

    def driver(self, started):
        return [self.bin / "python", HERE / "celery/driver.py"], {"env": started}
