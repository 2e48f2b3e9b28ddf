"""BullMQ: a flow of nine jobs, each the parent of the one before it."""

from .peer import HERE, Peer, node_modules, pinned

CONCURRENCY = 100
BULK = 50
IN_FLIGHT = 8


class BullMq(Peer):
    name = "bullmq"
    title = "BullMQ, flows"
    version = pinned("bullmq", "bullmq", "ioredis")
    needs = ("node", "npm")
    runs = 5_000
    idle_runs = 300
    warm_up = 300
    settings = {
        "NODE_ENV": "production",
        "worker": f"one process, concurrency {CONCURRENCY} (two cores, of which Redis needs one)",
        "submission": f"FlowProducer.addBulk, {BULK} flows a call, {IN_FLIGHT} calls in flight",
    }
    workers = "a process of its own, which is a client of Redis; there is no server"
    durability = "Redis, AOF every second"
    atomicity = "yes: one script completes a job, releases its parent and fetches the next one"
    kept = "all nine jobs. A job is not given its child's output: that would cost a call more"

    def install(self, cache):
        self.modules = node_modules("bullmq", cache)

    def start(self, session):
        port = session.start_redis()
        env = {"NODE_ENV": "production", "NODE_PATH": self.modules}
        worker = session.start(
            "worker",
            [
                "node",
                HERE / "bullmq/worker.js",
                "--redis",
                port,
                "--chains",
                session.chains,
                "--ledger",
                session.ledger("worker"),
                "--concurrency",
                CONCURRENCY,
            ],
            env=env,
            talks=True,
        )
        session.listening(worker)
        return port, env

    def driver(self, started):
        port, env = started
        argv = ["node", HERE / "bullmq/driver.js", "--redis", port, "--bulk", BULK, "--in-flight", IN_FLIGHT]
        return argv, {"env": env}
