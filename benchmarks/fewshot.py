"""Few-shot trainings of ReFilled per second: many students at once beside one after the other.

    python benchmarks/fewshot.py --device auto --tasks 512 --at-once 256

A training is one task from its start to the predicted classes of its queries: 5 ways, 5 shots, 15 queries,
a ConvNet-4 of 64-pixel images, ``--steps`` steps over both stages. The teacher's answers are known before,
for both. *one by one* is ``task_loop.py``: plain networks, one after the other. The others are the ways of
``refilled.fewshot.forward``. Rounds alternate in one process; rates are medians ± half the range between
the quartiles, *agree* is the share of queries for which the two predict the same class. A way whose first
group takes longer than ``--patience`` seconds is left out of the rounds.
"""

import argparse
import statistics
import time

import torch
from torch import Tensor

from refilled.fewshot import Episodes, Pool, RefilledTasks, Tasks, TaskTraining, Views, ask_teacher
from refilled.labels import LabelSpace
from refilled.methods.refilled_settings import TwoStageSettings
from refilled.models import load
from task_loop import only, predict_one, train_one

WAYS = ("fused", "matrices", "loop", "grouped", "vmap")


def make_pool(options: argparse.Namespace) -> Pool:
    """Noise in the colours of 20 classes."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(20).repeat(options.shots + options.queries + 5)
    colours = torch.randint(40, 216, (20, 3, 1, 1), generator=generator)
    noise = torch.randint(-40, 40, (len(labels), 3, options.side, options.side), generator=generator)
    names = LabelSpace(f"class-{label}" for label in range(20))
    return Pool((colours[labels] + noise).byte().to(options.device), labels.to(options.device), names)


def one_by_one(method: RefilledTasks, tasks: Tasks) -> Tensor:
    """Predicted classes [T, ways * queries], each task by itself."""
    predicted = []
    for place in range(len(tasks)):
        task = only(tasks, place)
        predicted.append(predict_one(method, train_one(method, task), task))
    return torch.stack(predicted)


def timed(run, episodes: Episodes, count: int, at_once: int) -> tuple[float, Tensor]:
    """Tasks per second, and what was predicted [T, ways * queries]."""
    wait = torch.cuda.synchronize if episodes.device.type == "cuda" else lambda: None
    groups = list(episodes.groups(count, at_once))
    wait()
    start = time.perf_counter()
    predicted = torch.cat([run(group) for group in groups])
    wait()
    return count / (time.perf_counter() - start), predicted


def main() -> None:
    """Print the rate of each way."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--tasks", type=int, default=64, help="trained by each way in a round")
    parser.add_argument("--at-once", type=int, default=64)
    parser.add_argument("--loop-tasks", type=int, help="trained one by one in a round; default: an eighth")
    parser.add_argument("--ways", nargs="+", choices=WAYS, help="of computing; default: all that can")
    parser.add_argument("--shots", type=int, default=5)
    parser.add_argument("--queries", type=int, default=15)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--per-class", type=int, default=5)
    parser.add_argument("--student", default="convnet-4")
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--precision", choices=["auto", "float32", "bfloat16"], default="auto")
    parser.add_argument("--tf32", action="store_true", help="let matrices of float32 be multiplied in TF32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--patience", type=float, default=60.0, help="seconds for a way's first group")
    parser.add_argument("--tiny", action="store_true", help="only to see that it runs")
    options = parser.parse_args()
    if options.device == "auto":
        options.device = "cuda" if torch.cuda.is_available() else "cpu"
    if options.ways is None:
        options.ways = [way for way in WAYS if way != "fused" or options.device == "cuda"]
    if options.tiny:
        options.tasks, options.at_once, options.steps, options.rounds = 4, 2, 2, 1
        options.student, options.side, options.per_class, options.loop_tasks = "convnet-2", 16, 5, 2
    loop_tasks = min(options.tasks, options.loop_tasks or max(1, options.tasks // 8))
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = options.tf32

    torch.manual_seed(0)
    pool = make_pool(options)
    network = load(options.student, 64, image_size=options.side).to(options.device)
    views = Views(pool)
    answers = ask_teacher(network, views)
    episodes = Episodes(pool.labels, options.shots, queries=options.queries)
    training = TaskTraining(options.steps, options.per_class, precision=options.precision)
    own = TwoStageSettings()
    methods = {way: RefilledTasks(answers, network, views, training, own, way=way) for way in options.ways}
    plain = RefilledTasks(answers, network, views, training, own)
    runs = {"one by one": (lambda tasks: one_by_one(plain, tasks), loop_tasks)}
    runs |= {way: (method, options.tasks) for way, method in methods.items()}

    name = torch.cuda.get_device_name() if options.device == "cuda" else f"{torch.get_num_threads()} threads"
    print(f"torch {torch.__version__}, {options.device}: {name}; {vars(options)}", flush=True)
    rates: dict[str, list[float]] = {way: [] for way in runs}
    predicted: dict[str, Tensor] = {}
    peaks: dict[str, float] = {}
    for number in range(options.rounds + 1):
        for way, (run, count) in runs.items():
            if number == 0:  # libraries load and choose their kernels here
                count = min(count, options.at_once)
                if options.device == "cuda":
                    torch.cuda.reset_peak_memory_stats()
            rate, predicted[way] = timed(run, episodes, count, options.at_once)
            print(f"  round {number}, {way}: {rate:.3g} tasks/s", flush=True)
            if number:
                rates[way].append(rate)
            elif options.device == "cuda":
                peaks[way] = torch.cuda.max_memory_allocated() / 2**30
            if number == 0 and way != "one by one" and count / rate > options.patience:
                print(f"  {way} is left out: {count / rate:.0f} s for its first {count} tasks")
                del rates[way]
        runs = {way: run for way, run in runs.items() if way in rates}
    base = statistics.median(rates["one by one"])
    for way, found in rates.items():
        low, _, high = statistics.quantiles(found, n=4) if len(found) > 1 else (0.0, 0.0, 0.0)
        median = statistics.median(found)
        agree = (predicted[way][:loop_tasks] == predicted["one by one"]).double().mean().item()
        peak = f", peak {peaks[way]:.1f} GiB" if way in peaks else ""
        print(
            f"{way}: {median:.3g} ± {(high - low) / 2:.2g} tasks/s, {median / base:.2f}x, "
            f"agree {100 * agree:.1f} %{peak}"
        )


if __name__ == "__main__":
    main()
