"""What is told about the measurements: medians, ratios of pairs, Markdown and JSON.

A ratio is always of one pair, Downbeat's measurement and the peer's right behind it, and above 1 where Downbeat does
better. A refused measurement counts nowhere, and neither does the other one of its pair for the ratio.
"""

import json
import os
import platform
import subprocess
from statistics import median

from .redis import Redis

# In the JSON and here; how many digits; and whether more is better.
FIGURES = {
    "tasks_per_second": (0, True),
    "runs_submitted_per_second": (0, True),
    "idle_p50_ms": (1, False),
    "idle_p99_ms": (1, False),
    "redis_bytes_per_run": (0, False),
    "cpu_us_per_task": (0, False),
    "driver_cpu_us_per_task": (0, False),
}
# More of the processors than this to others, and a figure is not worth much.
NOT_QUIET = 0.10


def medians(measured):
    """Of each figure over the measurements that count, as {median, min, max}."""
    told = {}
    for figure in FIGURES:
        values = [m[figure] for m in measured if m["audit"] == "ok" and m.get(figure) is not None]
        if values:
            told[figure] = {"median": median(values), "min": min(values), "max": max(values)}
    return told


def ratios(pairs):
    """Of each figure over (Downbeat's, the peer's)."""
    told = {}
    for figure, (_, more_is_better) in FIGURES.items():
        values = []
        for ours, theirs in pairs:
            if ours["audit"] == theirs["audit"] == "ok" and ours.get(figure) and theirs.get(figure):
                ratio = ours[figure] / theirs[figure]
                values.append(ratio if more_is_better else 1 / ratio)
        if values:
            told[figure] = {"median": median(values), "min": min(values), "max": max(values)}
    return told


def machine():
    cpu = "?"
    try:
        with open("/proc/cpuinfo") as file:
            cpu = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "?")
    except OSError:
        pass
    return {
        "cores": os.cpu_count(),
        "cpu": cpu,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "redis": Redis.version(),
        "node": said(["node", "--version"]),
        "rustc": said(["rustc", "--version"]),
        "python": platform.python_version(),
    }


def said(argv):
    try:
        return subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip() or "?"
    except OSError:
        return "none"


def document(downbeat, turns, about):
    """Everything, as it goes into the JSON. `turns` are (round, peer, Downbeat's, the peer's)."""
    peers = list(dict.fromkeys(peer for _, peer, _, _ in turns))
    systems = [system(downbeat, [(n, ours) for n, _, ours, _ in turns])]
    for peer in peers:
        mine = [(n, ours, theirs) for n, one, ours, theirs in turns if one is peer]
        entry = system(peer, [(n, theirs) for n, _, theirs in mine])
        entry["downbeat_is_better_by"] = ratios([(ours, theirs) for _, ours, theirs in mine])
        systems.append(entry)
    everything = [(s["name"], m) for s in systems for m in s["measurements"]]
    return {
        **about,
        "downbeat_debug_build": downbeat.debug_build,
        "refused": [f"{name}, round {m['round']}: {m['audit']}" for name, m in everything if m["audit"] != "ok"],
        "others_share_max": max((p.get("others_share") or 0 for _, m in everything for p in m["phases"]), default=0),
        "systems": systems,
    }


def system(one, measured):
    return {
        "name": one.name,
        "title": one.title,
        "version": one.version,
        "runs": sorted({m["runs"] for _, m in measured}),
        "settings": one.settings,
        "workers": one.workers,
        "durability": one.durability,
        "atomicity": one.atomicity,
        "kept": one.kept,
        "figures": medians([m for _, m in measured]),
        "measurements": [{"round": n, **m} for n, m in measured],
    }


def number(told, figure, spread=False):
    """A figure as text; `spread` adds the smallest and the largest."""
    if figure not in told:
        return "–"
    digits = FIGURES[figure][0]
    text = f"{told[figure]['median']:,.{digits}f}"
    if spread:
        text += f" ({told[figure]['min']:,.{digits}f}–{told[figure]['max']:,.{digits}f})"
    return text


def times(told, figure, spread=False):
    if figure not in told:
        return "–"

    def short(value):
        return f"{value:.1f}" if value < 10 else f"{value:.0f}"

    text = f"{short(told[figure]['median'])} ×"
    if spread:
        text += f" ({short(told[figure]['min'])}–{short(told[figure]['max'])})"
    return text


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def markdown(told):
    downbeat, *peers = told["systems"]
    where = told["machine"]
    parts = [
        "# Downbeat and its peers: the same work, in turns",
        f"A chain of nine no-op tasks. Rounds: {told['rounds']}; medians, the smallest and the largest in brackets."
        f" {told['began']}, commit {told['commit']}. Server, workers, Redis and driver share {where['cores']} cores"
        f" ({where['cpu']}; Linux {where['kernel']}); Redis {where['redis']}, Node {where['node']}, {where['rustc']},"
        f" Python {where['python']}.",
    ]
    if told["downbeat_debug_build"]:
        parts.append("**Downbeat is a debug build here: no figure of this is worth anything.**")
    if told["others_share_max"] > NOT_QUIET:
        parts.append(
            f"**The machine was not quiet:** in one measurement others had {told['others_share_max']:.0%} of the"
            " processors."
        )
    if told["refused"]:
        parts.append("**Refused**, and in no figure:\n\n" + "\n".join(f"- {line}" for line in told["refused"]))
    parts.append("## Figures")
    parts.append(
        table(
            [
                "system",
                "version",
                "runs",
                "tasks/s",
                "runs submitted/s",
                "idle chain p50 / p99 ms",
                "Redis bytes per run",
                "CPU µs per task",
                "… of the driver",
            ],
            [
                [
                    s["title"],
                    s["version"],
                    ", ".join(f"{n:,}" for n in s["runs"]),
                    number(s["figures"], "tasks_per_second", spread=True),
                    number(s["figures"], "runs_submitted_per_second"),
                    f"{number(s['figures'], 'idle_p50_ms')} / {number(s['figures'], 'idle_p99_ms')}",
                    number(s["figures"], "redis_bytes_per_run"),
                    number(s["figures"], "cpu_us_per_task"),
                    number(s["figures"], "driver_cpu_us_per_task"),
                ]
                for s in told["systems"]
            ],
        )
    )
    parts.append("## Ratios")
    parts.append(
        "How many times better Downbeat was than the peer measured right behind it: more tasks and runs in a second,"
        " less time, fewer bytes, less processor time. Below 1 the peer is better."
    )
    parts.append(
        table(
            ["Downbeat against", "tasks/s", "runs submitted/s", "idle p50", "idle p99", "Redis bytes", "CPU per task"],
            [
                [
                    s["title"] + (f", {s['runs'][0]:,} runs" if s["runs"] else ""),
                    times(s["downbeat_is_better_by"], "tasks_per_second", spread=True),
                    *(
                        times(s["downbeat_is_better_by"], figure)
                        for figure in (
                            "runs_submitted_per_second",
                            "idle_p50_ms",
                            "idle_p99_ms",
                            "redis_bytes_per_run",
                            "cpu_us_per_task",
                        )
                    ),
                ]
                for s in peers
            ],
        )
    )
    parts.append("## What is compared with what")
    parts.append(
        table(
            ["system", "workers", "what survives a crash", "a step is one step", "what is kept"],
            [[s["title"], s["workers"], s["durability"], s["atomicity"], s["kept"]] for s in unlike(told["systems"])],
        )
    )
    parts.append("## Settings that are not the default")
    parts.append(
        "\n".join(
            f"- **{s['title']}**: " + "; ".join(f"{what}: {how}" for what, how in s["settings"].items())
            for s in unlike(told["systems"])
        )
    )
    return "\n\n".join(parts) + "\n"


def unlike(systems):
    """One of each title: the same system at two sizes has one description."""
    return list({s["title"]: s for s in systems}.values())


def write(told, out):
    (out / "peers.json").write_text(json.dumps(told, indent=2, ensure_ascii=False) + "\n")
    (out / "peers.md").write_text(markdown(told))
