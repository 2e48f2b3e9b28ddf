"""A private Redis on a free port of the loopback, set up as `downbeat bench` sets up its own."""

import socket
import time

from .processes import PATIENCE_S, Broken, Process


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Redis:
    def __init__(self, directory, logs):
        self.port = free_port()
        data = directory / "redis"
        data.mkdir()
        # The log of commands is not rewritten while it is measured.
        argv = [
            "redis-server",
            "--bind",
            "127.0.0.1",
            "--port",
            self.port,
            "--save",
            "",
            "--appendonly",
            "yes",
            "--appendfsync",
            "everysec",
            "--auto-aof-rewrite-min-size",
            "4gb",
            "--dir",
            data,
        ]
        self.process = Process("redis", argv, logs)
        deadline = time.monotonic() + PATIENCE_S
        while not self.info():
            self.process.check()
            if time.monotonic() > deadline:
                raise Broken(f"redis-server was not ready within {PATIENCE_S} s")
            time.sleep(0.02)

    def info(self):
        """What it says of itself, as text; nothing if it is not there."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as s, s.makefile("rb") as answer:
                s.sendall(b"INFO\r\n")
                head = answer.readline().strip()
                if not head.startswith(b"$"):
                    return {}
                lines = answer.read(int(head[1:])).decode().splitlines()
                return dict(line.split(":", 1) for line in lines if ":" in line)
        except OSError:
            return {}

    def memory(self):
        """Bytes in use."""
        if not (info := self.info()):
            raise Broken("redis-server does not answer")
        return int(info["used_memory"])

    @staticmethod
    def version():
        import subprocess

        said = subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=False).stdout
        return next((word[2:] for word in said.split() if word.startswith("v=")), "?")
