"""Starts chains of nine tasks. The lines between it and `run` are in ../kit/src/driver.rs.

    python driver.py --mode chain|idle --before N --warm-up N --runs N

PEER_REDIS is the port of Redis.
"""

import argparse
import json
import os
import sys
import time

from celery import chain
from redis import Redis

from app import TASKS, app, last, noop

parser = argparse.ArgumentParser()
parser.add_argument("--mode", choices=["chain", "idle"], required=True)
for name in ("before", "warm-up", "runs"):
    parser.add_argument(f"--{name}", type=int, required=True)
args = parser.parse_args()

results = Redis(port=int(os.environ["PEER_REDIS"]), db=1)


def start(n):
    # Made anew for each: a chain that was sent keeps the ids of its tasks.
    return chain(noop.s(n * 16), *[noop.s() for _ in range(TASKS - 2)], last.s()).apply_async()


def say(message):
    print(json.dumps(message), flush=True)
    if not sys.stdin.readline():
        sys.exit("the other end is gone")


def ended(chains):
    # Nothing but the results of last tasks is in that database.
    while results.dbsize() < chains:
        time.sleep(0.01)


for n in range(args.warm_up):
    start(args.before + n).get(timeout=60)
first = args.before + args.warm_up
say({"ready": True})
began = time.perf_counter()
ids = []
if args.mode == "idle":
    latencies = []
    for n in range(args.runs):
        sent = time.perf_counter()
        result = start(first + n)
        result.get(timeout=30, interval=0.001)
        latencies.append((time.perf_counter() - sent) * 1e3)
        ids.append(result.id)
    say({"done": {"elapsed_s": time.perf_counter() - began, "latencies_ms": latencies}})
else:
    for n in range(args.runs):
        ids.append(start(first + n).id)
    submitted = time.perf_counter() - began
    ended(first + args.runs)
    say({"done": {"elapsed_s": time.perf_counter() - began, "submitted_s": submitted}})

wrong = []
for n, id in enumerate(ids):
    kept = results.get(app.backend.get_key_for_task(id))
    result = json.loads(kept) if kept else {}
    if (result.get("status"), result.get("result")) != ("SUCCESS", (first + n) * 16 + TASKS):
        wrong.append(f"chain {first + n} ended with {result.get('status')} {result.get('result')}")
queued = Redis(port=int(os.environ["PEER_REDIS"]), db=0).llen("celery")
if queued:
    wrong.append(f"{queued} tasks are still queued")
print(json.dumps({"audit": wrong[:10]}), flush=True)
