"""A Celery application of two no-op tasks, which note in the ledger that they ran.

The ledger is a file of ten bytes per chain (see README.md), mapped by all processes of the pool.
"""

import mmap
import os

from celery import Celery
from celery.signals import worker_process_init

TASKS = 9
# Of the ledger, per chain: its tasks and its end.
CELLS = TASKS + 1

redis = f"redis://127.0.0.1:{os.environ['PEER_REDIS']}"
app = Celery("bench", broker=f"{redis}/0", backend=f"{redis}/1")
app.conf.update(
    # Short tasks: fetch many at once, as the documentation advises.
    worker_prefetch_multiplier=64,
    worker_disable_rate_limits=True,
    # Events are for monitors, and there are none.
    worker_send_task_events=False,
    task_send_sent_event=False,
    broker_connection_retry_on_startup=True,
)

cells = None


@worker_process_init.connect
def open_ledger(**_):
    global cells
    with open(os.environ["PEER_LEDGER"], "r+b") as file:
        cells = mmap.mmap(file.fileno(), 0)


def note(x):
    at = x // 16 * CELLS + x % 16
    cells[at] = min(cells[at] + 1, 255)


# The next task is given the result in its message, so that only the last one is worth keeping.
@app.task(ignore_result=True)
def noop(x):
    note(x)
    return x + 1


@app.task
def last(x):
    note(x)
    note(x + 1)
    return x + 1
