"""Downbeat and the peers.

To add a peer: a module here with a subclass of `Peer`, its programs in a folder beside `run`, a line in `PEERS`.
"""

from .apalis import Apalis
from .bullmq import BullMq
from .celery import Celery
from .restate import Restate

PEERS = [
    BullMq(),
    Celery(),
    Apalis("apalis-2k", 2_000),
    Apalis("apalis-10k", 10_000),
    Restate("restate-calls", "calls"),
    Restate("restate-steps", "steps"),
]


def named(names):
    """The peers of these names; `apalis` stands for all whose names begin so. None of one name is an error."""
    chosen = []
    for name in names:
        found = [peer for peer in PEERS if peer.name == name or peer.name.split("-")[0] == name]
        if not found:
            raise SystemExit(f"no peer is called {name!r}; there are {', '.join(peer.name for peer in PEERS)}")
        chosen += [peer for peer in found if peer not in chosen]
    return chosen
