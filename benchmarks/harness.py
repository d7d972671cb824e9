"""Shared parts of the benchmarks: runs in turn, so that a slow moment hits all sides alike;
medians; and a description of the machine.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path


def machine() -> dict[str, object]:
    """Return the processor, cores and versions."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    processor = names[0] if names else platform.processor() or platform.machine()
    return {
        "cpu": processor,
        "device": processor,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": version("torch").partition("+")[0],
    }


def in_turn(calls: Mapping[str, Callable[[], object]], runs: int) -> dict[str, float]:
    """Return the median seconds of each call; the first round warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for run in range(runs + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if run:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


def processes(*commands: list[str], runs: int, cwd: Path) -> list[tuple[float, float]]:
    """Return the median processor seconds and peak megabytes of each command, each run in a process
    of its own.
    """
    times: list[list[float]] = [[] for _ in commands]
    peaks: list[list[float]] = [[] for _ in commands]
    for run in range(runs + 1):
        for i, command in enumerate(commands):
            process = subprocess.Popen(
                command, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
            )
            _, status, usage = os.wait4(process.pid, 0)
            if status:
                raise SystemExit(
                    f"{command}: {process.stderr.read().decode() if process.stderr else ''}"
                )
            if run:  # the first fills the caches
                times[i].append(usage.ru_utime + usage.ru_stime)
                peaks[i].append(usage.ru_maxrss / 1024)
    return [(statistics.median(t), max(p)) for t, p in zip(times, peaks, strict=True)]


def hydrasurgeon(*arguments: str) -> list[str]:
    """Return the command line of this Python's hydrasurgeon."""
    return [sys.executable, "-m", "hydrasurgeon", *arguments]
