"""Restate: a handler that calls a task service nine times, or that takes nine durable steps itself.

Each is measured in two ways, of which the faster one counts: all chains are sent and then waited for, as with the
other systems; and 256 callers wait for one chain after the other.
"""

import json
import time
import urllib.request

from ..processes import PATIENCE_S, Broken
from ..redis import free_port
from ..session import Phase
from .peer import Peer, cargo_build, node_modules, pinned

PARTITIONS = 2
# The default is 1,000. A handler that waits for a call counts; with more of them than that, all wait for the inactivity
# timeout of a minute.
INVOCATIONS = 20_000


class Restate(Peer):
    version = pinned("restate", "@restatedev/restate-server", "restate-sdk")
    needs = ("node", "npm", "cargo")
    warm_up = 300
    settings = {
        "server": f"one node, {PARTITIONS} partitions for two cores, {INVOCATIONS:,} concurrent invocations (the"
        " default of 1,000 stalls nested calls for a minute), otherwise as it comes",
        "services": "Rust, release, thin LTO; the flow and the tasks in processes of their own",
        "submission": "HTTP/1.1 to the ingress: 128 senders, or 256 callers that wait",
    }
    durability = "its own replicated log on one node, synced to disk per batch: stronger than the others here"
    kept = "each invocation with its journal, for a day"

    def __init__(self, name, handler):
        self.name = name
        self.handler = handler
        self.runs = {"calls": 2_500, "steps": 8_000}[handler]
        self.idle_runs = {"calls": 150, "steps": 300}[handler]
        if handler == "calls":
            self.title = "Restate, nine calls to a service"
            self.workers = "two processes, which the server calls by HTTP/2"
            self.atomicity = "yes: a journal per invocation, and ten of them a chain"
        else:
            self.title = "Restate, nine steps in a handler"
            self.workers = "steps run inside the one handler: no task is given to another worker"
            self.atomicity = "yes: one journal a chain"

    def install(self, cache):
        self.program = cargo_build("restate", cache)
        modules = node_modules("restate", cache)
        found = list(modules.glob("@restatedev/restate-server-*/bin/restate-server"))
        if not found:
            raise SystemExit("no restate-server in the npm package for this machine")
        self.server = found[0]

    def phases(self, runs, idle_runs):
        warm_up = min(self.warm_up, runs)
        return [
            Phase("idle", self.idle_warm_up, idle_runs),
            Phase("closed", warm_up, runs),
            Phase("chain", 0, runs),
        ]

    def figures(self, phases):
        idle, closed, chain = phases
        fastest = max(closed, chain, key=lambda phase: phase["tasks_per_second"])
        return {
            **fastest,
            "runs_submitted_per_second": chain["runs_submitted_per_second"],
            "idle_p50_ms": idle["p50_ms"],
            "idle_p99_ms": idle["p99_ms"],
        }

    def start(self, session):
        ports = {name: free_port() for name in ("node", "ingress", "admin", "flow", "task")}
        env = {
            "RESTATE_DEFAULT_NUM_PARTITIONS": PARTITIONS,
            "RESTATE_WORKER__INVOKER__CONCURRENT_INVOCATIONS_LIMIT": INVOCATIONS,
            "RESTATE_INGRESS__BIND_PORT": ports["ingress"],
            "RESTATE_ADMIN__BIND_PORT": ports["admin"],
            "RESTATE_BIND_PORT": ports["node"],
            "RESTATE_LISTEN_MODE": "tcp",
            "RESTATE_BIND_IP": "127.0.0.1",
            "RESTATE_LOG_FILTER": "warn",
            "RESTATE_DISABLE_TELEMETRY": "true",
            "DO_NOT_TRACK": 1,
        }
        server = session.start(
            "server", [self.server, "--base-dir", session.directory / "restate", "--no-logo"], env=env
        )
        for role in ("flow", "task"):
            argv = [
                self.program,
                role,
                "--port",
                ports[role],
                "--chains",
                session.chains,
                "--ledger",
                session.ledger(role),
            ]
            worker = session.start(role, argv, talks=True)
            listening = session.listening(worker)
            if role == "flow":
                flow = listening
        admin = f"http://127.0.0.1:{ports['admin']}"
        self.until_it_answers(server, f"{admin}/health")
        for role in ("flow", "task"):
            self.until_it_answers(server, f"{admin}/deployments", {"uri": f"http://127.0.0.1:{ports[role]}"})
        ingress = f"http://127.0.0.1:{ports['ingress']}"
        self.until_it_answers(server, f"{ingress}/restate/health")
        return ingress, flow

    def driver(self, started):
        ingress, flow = started
        return [self.program, "driver", "--ingress", ingress, "--handler", self.handler, "--worker", flow], {}

    @staticmethod
    def until_it_answers(server, url, body=None):
        deadline = time.monotonic() + PATIENCE_S
        data = json.dumps(body).encode() if body else None
        while True:
            server.check()
            try:
                request = urllib.request.Request(url, data, {"content-type": "application/json"} if data else {})
                with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10):
                    return
            except OSError as e:
                if time.monotonic() > deadline:
                    raise Broken(f"{url}: {e}") from None
                time.sleep(0.1)
