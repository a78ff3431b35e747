"""Time and memory of comparison matching beside the brute force over all tuples.

    python benchmarks/comparison.py --sizes 256 512 1024 2048 4096 --classes 10 --device auto

For each batch size B: one forward and backward pass of :func:`refilled.objectives.comparison_matching`,
and of the code that one would write first: a [pairs, B] mask of impostors for all (anchor, positive)
pairs, and a masked softmax over it. The brute force needs about B³ / classes numbers at a time and is
skipped ("-") where that would exceed ``--memory-limit-gb``. A second table bounds impostors by ``--margin``.

*growth* is the time relative to the size before (4 for each doubling is B², 8 is B³), *peak* the memory
beyond that of the inputs, *agree* whether the losses are equal to 1e-5. Times are medians ± half the range
between the quartiles of runs that alternate in one process; each peak has a process of its own (on a CPU
it is the growth of resident memory). glibc hands matrices above 32 MB (B = 2048) back at each use, which
can double the time: MALLOC_MMAP_THRESHOLD_ and MALLOC_TRIM_THRESHOLD_ of several GB prevent it.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from brute_force import brute_force
from refilled.objectives import comparison_matching

BRUTE_FORCE_COPIES = 6  # float32 [pairs, B] matrices alive at the peak, as measured

METHODS: dict[str, Callable[..., Tensor]] = {"ours": comparison_matching, "brute": brute_force}


def make_batch(size: int, options: argparse.Namespace, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Embeddings of student and teacher that know a little of the classes, and labels."""
    generator = torch.Generator().manual_seed(size)
    labels = torch.arange(size) % options.classes
    centres = torch.randn(options.classes, options.dim, generator=generator)
    student = centres[labels] * 0.3 + torch.randn(size, options.dim, generator=generator)
    teacher = centres[labels] * 0.6 + torch.randn(size, options.dim, generator=generator)
    return student.to(device).requires_grad_(), teacher.to(device), labels.to(device)


def step(method: str, batch: tuple[Tensor, Tensor, Tensor], margin: float | None) -> tuple[float, float]:
    """Seconds of one forward and backward pass, and the loss."""
    batch[0].grad = None
    wait = torch.cuda.synchronize if batch[0].device.type == "cuda" else lambda: None
    wait()
    start = time.perf_counter()
    loss = METHODS[method](*batch, margin=margin)
    loss.backward()
    wait()
    return time.perf_counter() - start, loss.item()


def measure_peak(methods: list[str], size: int, options: argparse.Namespace, margin: float | None) -> float:
    """Megabytes at the peak of one step of the first method, beyond what this process held before."""
    method = methods[0]
    warm_up = make_batch(2 * options.classes, options, options.device)
    step(method, warm_up, margin)  # libraries load and allocate here, not in the measured step
    batch = make_batch(size, options, options.device)
    if options.device == "cuda":
        torch.cuda.reset_peak_memory_stats()

    def peak() -> float:
        if options.device == "cuda":
            return torch.cuda.max_memory_allocated() / 2**20
        unit = 1 if sys.platform == "darwin" else 1024  # bytes there, kilobytes elsewhere
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20

    before = peak()
    step(method, batch, margin)
    return peak() - before


def measure_times(methods: list[str], size: int, options: argparse.Namespace, margin: float | None) -> dict:
    """Milliseconds of each repeat, and the loss, for each method."""
    batch = make_batch(size, options, options.device)
    found: dict = {method: {"ms": [], "loss": step(method, batch, margin)[1]} for method in methods}
    for _ in range(options.repeats):
        for method in methods:
            found[method]["ms"].append(step(method, batch, margin)[0] * 1e3)
    return found


def in_child(task: str, methods: list[str], size: int, options: argparse.Namespace, margin: float | None):
    """Result of a measurement in a new process; on Linux that inherits our peak memory, so stay small."""
    command = [sys.executable, __file__, "--task", task, "--methods", *methods, "--sizes", str(size)]
    for name in ("classes", "dim", "device", "repeats"):
        command += [f"--{name}", str(getattr(options, name))]
    output = subprocess.run([*command, "--margin", str(margin or 0.0)], check=True, stdout=subprocess.PIPE)
    return json.loads(output.stdout)


def brute_force_gigabytes(size: int, classes: int) -> float:
    """Estimate of what the brute force needs."""
    pairs = size * max(size / classes - 1, 0)
    return BRUTE_FORCE_COPIES * pairs * (size + 1) * 4 / 2**30


def print_table(options: argparse.Namespace, margin: float | None) -> None:
    """One line for each size."""
    print(
        f"\nmargin {margin}, {options.classes} classes, {options.dim} dimensions, {options.repeats} repeats"
    )
    print(
        f"{'B':>6} {'ours ms':>16} {'growth':>7} {'peak MB':>8}   "
        f"{'brute force ms':>18} {'growth':>7} {'peak MB':>8}   {'faster':>7} {'smaller':>8}  agree"
    )
    previous: dict[str, float] = {}
    for size in options.sizes:
        methods = ["ours"]
        if brute_force_gigabytes(size, options.classes) <= options.memory_limit_gb:
            methods.append("brute")
        found = in_child("times", methods, size, options, margin)
        median = {method: statistics.median(found[method]["ms"]) for method in methods}
        peak = {method: in_child("peak", [method], size, options, margin) for method in methods}
        cells = {"ours": "", "brute": f"{'-':>18} {'-':>7} {'-':>8}"}
        for method, width in (("ours", 16), ("brute", 18)):
            if method in methods:
                low, _, high = (
                    statistics.quantiles(found[method]["ms"], n=4) if options.repeats > 1 else [0.0] * 3
                )
                growth = f"{median[method] / previous[method]:.1f}x" if method in previous else "-"
                timing = f"{median[method]:.1f} ± {(high - low) / 2:.1f}"
                cells[method] = f"{timing:>{width}} {growth:>7} {peak[method]:>8.0f}"
        ratios = f"{'-':>7} {'-':>8}  -"
        if "brute" in methods:
            loss, brute_loss = found["ours"]["loss"], found["brute"]["loss"]
            agree = abs(loss - brute_loss) <= 1e-5 * max(1.0, abs(brute_loss))
            faster, smaller = median["brute"] / median["ours"], peak["brute"] / max(peak["ours"], 1e-9)
            ratios = f"{faster:>6.1f}x {smaller:>7.1f}x  {'yes' if agree else f'NO: {loss}, {brute_loss}'}"
        print(f"{size:>6} {cells['ours']}   {cells['brute']}   {ratios}", flush=True)
        previous = median


def main() -> None:
    """Print the table without a bound and the one with ``--margin``."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[256, 512, 1024, 2048, 4096])
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--memory-limit-gb", type=float, default=4.0)
    parser.add_argument("--margin", type=float, default=0.2, help="of the second table; 0: no second table")
    parser.add_argument("--task", choices=["times", "peak"], help=argparse.SUPPRESS)
    parser.add_argument("--methods", nargs="+", choices=METHODS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.device == "auto":
        options.device = "cuda" if torch.cuda.is_available() else "cpu"
    margin = options.margin if options.margin > 0 else None
    if options.task:
        measure = measure_times if options.task == "times" else measure_peak
        print(json.dumps(measure(options.methods, options.sizes[0], options, margin)))
        return
    name = (
        torch.cuda.get_device_name()
        if options.device == "cuda"
        else f"cpu, {torch.get_num_threads()} threads"
    )
    print(f"torch {torch.__version__}, {name}; forward + backward")
    print_table(options, None)
    if margin is not None:
        print_table(options, margin)


if __name__ == "__main__":
    main()
