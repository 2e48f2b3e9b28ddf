"""What a peer is: how it is installed, started, driven, and what about it can be compared."""

import hashlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

from ..processes import Broken
from ..session import Phase, session

HERE = Path(__file__).resolve().parents[2]


class Peer:
    """A subclass sets the words and gives `install`, `start` and `driver`; often nothing else."""

    # On the command line.
    name = ""
    # In tables, with its versions (`pinned` reads them from a lock file).
    title = ""
    version = ""
    runs = 1_000
    idle_runs = 100
    # Chains before those that count: of a phase under load, and of the idle one.
    warm_up = 100
    idle_warm_up = 50
    # Programs that have to be there.
    needs = ()
    # Which settings are not the default ones, and why.
    settings = {}
    # Where the work is done, what survives a crash, what is one step, what is kept.
    workers = durability = atomicity = kept = ""

    def install(self, cache):
        """Everything at the pinned versions, below `cache`; quick if it is there."""

    def start(self, session):
        """Starts its processes; returns what `driver` needs to know."""
        raise NotImplementedError

    def driver(self, started):
        """The command of the driver, and options of `Process` for it."""
        raise NotImplementedError

    def phases(self, runs, idle_runs):
        return [Phase("idle", self.idle_warm_up, idle_runs), Phase("chain", min(self.warm_up, runs), runs)]

    def figures(self, phases):
        """The figures of a measurement, from those of its phases."""
        idle, chain = phases
        return {**chain, "idle_p50_ms": idle["p50_ms"], "idle_p99_ms": idle["p99_ms"]}

    def measure(self, runs, idle_runs, logs):
        """One measurement. Its `audit` is `ok`, or says why its figures do not count."""
        phases = self.phases(runs, idle_runs)
        done = []
        try:
            with session(logs, sum(phase.chains for phase in phases)) as up:
                argv, options = self.driver(self.start(up))
                for phase in phases:
                    done.append(up.run(phase, argv, **options))
                up.stop()
                verdict = up.audit()
        except Broken as e:
            return {"runs": runs, "audit": str(e), "phases": done}
        return {**self.figures(done), "runs": runs, "audit": verdict, "phases": done}


def once(folder, sources, make):
    """Calls `make` with an empty folder, unless it was done from these sources already."""
    stamp = hashlib.sha256(b"\0".join(Path(s).read_bytes() for s in sources)).hexdigest()
    said = folder / ".made-from"
    if said.is_file() and said.read_text() == stamp:
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    make(folder)
    said.write_text(stamp)


def pinned(folder, *names):
    """The versions of packages that the lock file in the folder has, as `NAME VERSION, …`."""

    def version(name):
        if (lock := HERE / folder / "Cargo.lock").is_file():
            if found := re.search(rf'name = "{re.escape(name)}"\nversion = "(.+)"', lock.read_text()):
                return found[1]
        if (lock := HERE / folder / "package-lock.json").is_file():
            if found := json.loads(lock.read_text())["packages"].get(f"node_modules/{name}"):
                return found["version"]
        if (lock := HERE / folder / "requirements.txt").is_file():
            if found := re.search(rf"^{re.escape(name)}==(.+)$", lock.read_text(), re.MULTILINE):
                return found[1]
        raise KeyError(f"{name} is in no lock file of {HERE / folder}")

    return ", ".join(f"{name} {version(name)}" for name in names)


def do(argv, **options):
    """Runs a command of an installation; its output is shown if it fails."""
    env = {**os.environ, **options.pop("env", {})}
    try:
        done = subprocess.run(
            [str(word) for word in argv],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            **options,
        )
    except OSError as e:
        raise SystemExit(f"{argv[0]} cannot be started: {e}\n{NEEDS}") from None
    if done.returncode:
        raise SystemExit(f"{done.stdout[-4_000:]}\n{' '.join(map(str, argv))} failed ({done.returncode})\n{NEEDS}")


NEEDS = "What has to be there, and how to get it: benches/peers/README.md"


def node_modules(name, cache):
    """The packages of the folder `name`, as its package-lock.json has them; no package's scripts are run."""
    sources = [HERE / name / "package.json", HERE / name / "package-lock.json"]

    def make(folder):
        for source in sources:
            shutil.copy(source, folder)
        do(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=folder)

    once(cache / name, sources, make)
    return cache / name / "node_modules"


def cargo_build(name, cache):
    """The release program of the crate in the folder `name`."""
    target = cache / "target"
    # Not from elsewhere: settings of cargo that stand in the folders above, such as flags, hold for Downbeat as well.
    do(["cargo", "build", "--release", "--locked"], cwd=HERE / name, env={"CARGO_TARGET_DIR": str(target)})
    return target / "release" / f"{name}-peer"
