"""The rounds: in each, every peer has its turn, and Downbeat has one right before it."""

import sys
import time


def say(text):
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def take(downbeat, peers, rounds, runs, idle_runs, out):
    """Measures all of them. `runs` and `idle_runs` give the number of a system. Yields (round, peer, Downbeat's
    measurement, the peer's) as they are done."""
    for number in range(1, rounds + 1):
        # Who comes first is another one in each round.
        shift = (number - 1) % len(peers)
        for peer in peers[shift:] + peers[:shift]:
            pair = []
            for system in (downbeat, peer):
                logs = out / "logs" / f"round-{number}" / peer.name / system.name
                measured = system.measure(runs(system), idle_runs(system), logs)
                say(f"round {number} of {rounds}: {told(system, measured)}")
                pair.append(measured)
            yield number, peer, *pair


def told(system, measured):
    if measured["audit"] != "ok":
        return f"{system.name}: REFUSED: {measured['audit']}"
    return (
        f"{system.name}: {measured['tasks_per_second']:,.0f} tasks/s, idle {measured['idle_p50_ms']:.1f} ms"
        f" ({measured['runs']:,} runs, audit ok)"
    )
