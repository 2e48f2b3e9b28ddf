"""apalis: a stepped workflow of nine tasks on its Redis storage. At two sizes, because its speed depends on how much
waits."""

from .peer import Peer, cargo_build, pinned


# How often an idle worker asks for tasks.
POLL_MS = 1


class Apalis(Peer):
    title = "apalis, stepped workflow"
    version = pinned("apalis", "apalis", "apalis-redis", "apalis-workflow")
    needs = ("cargo",)
    idle_runs = 300
    warm_up = 100
    settings = {
        "worker": "one process, two threads, batches of 1,000, polling every millisecond when idle, by a poll"
        " strategy of ours (README.md says why)",
        "off": "locks (as its documentation advises for short tasks) and events (nobody listens)",
        "submission": "push_start, 16 in flight on one connection",
        "build": "release, thin LTO",
    }
    workers = "a process of its own, which is a client of Redis; there is no server"
    durability = "Redis, AOF every second"
    atomicity = "no: the next step is pushed by one script, the result of this one stored by a later one"
    kept = "all nine tasks with their results; nothing joins them to a run"

    def __init__(self, name, runs):
        self.name = name
        self.runs = runs

    def install(self, cache):
        self.program = cargo_build("apalis", cache)

    def start(self, session):
        url = f"redis://127.0.0.1:{session.start_redis()}"
        argv = [
            self.program,
            "worker",
            "--redis",
            url,
            "--chains",
            session.chains,
            "--ledger",
            session.ledger("worker"),
            "--poll-ms",
            POLL_MS,
        ]
        return url, session.listening(session.start("worker", argv, talks=True))

    def driver(self, started):
        url, worker = started
        return [self.program, "driver", "--redis", url, "--worker", worker], {}
