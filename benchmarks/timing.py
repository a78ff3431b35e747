"""Clocks for benchmarks: works that take turns, and what to do with one that fails."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch


def say(text: str) -> None:
    """Print at once, so that a run that is cut short leaves what it had."""
    print(text, flush=True)


def clock(device: torch.device, work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of some work until the device is done with it, and what it returns."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    start = time.perf_counter()
    result = work()
    wait()
    return time.perf_counter() - start, result


def allocated(device: torch.device) -> int:
    """Bytes in use on a GPU; 0 elsewhere."""
    return torch.cuda.memory_allocated() if device.type == "cuda" else 0


def attempt(what: str, work: Callable[..., Any], *arguments: Any) -> Any:
    """What ``work`` returns, or None and a line with the reason: one way that fails does not stop others."""
    try:
        return work(*arguments)
    except Exception as problem:
        first = next((line for line in str(problem).splitlines() if line.strip()), "")
        say(f"{what}: LEFT OUT, {type(problem).__name__}: {first[:200]}")
        return None


def alternate(
    device: torch.device, works: dict[str, Callable[[], Any]], repeats: int, label: str = ""
) -> dict[str, list[float]]:
    """Seconds of each repeat of each work, one after the other, again and again; without those that fail."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats):
        for name in list(seconds):
            found = attempt(f"{label}{name}", clock, device, works[name])
            if found is None:
                del seconds[name]
            else:
                seconds[name].append(found[0])
    return seconds


def spread(values: list[float]) -> float:
    """Half the range between the quartiles."""
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4)
    return (high - low) / 2
