"""Speed of training and evaluation beside the loop that one would write first.

    python benchmarks/training.py --device auto --compile --write results.json
    python benchmarks/training.py --device cpu --teacher wrn-16-2 --students wrn-16-1 --images 1024 \\
        --batch-size 128 --steps 4

Each student goes through each stage (alone, and stages 1 and 2 of ``refilled-two-stages``) in several ways:

- *user*: ``user_loop.py``: PIL images, DataLoader, float32, all tuples masked. TF32 as PyTorch has it.
- *plain*: our step with ``step="plain"``: forward, backward, update, one kernel after the other.
- *fast*: our default: on a GPU one captured graph; the teacher is looked up, as a run of 200 epochs would.
- *fast, teacher in the step*: the same where the teacher is asked every time, as in a short run.
- *compiled*: *fast* with a compiled loss (``--compile``).

Images are random, 32 pixels wide, of 50 classes. All ways take turns in one process; a repeat is an epoch cut
to ``--steps`` steps, with the shuffling and the start of the loader's workers in it. Numbers are medians ±
half the range between the quartiles. *peak* is the memory of PyTorch's allocator beyond images, teacher and
table, without what was needed to choose kernels; it is only measured on a GPU. *floor* is the share of the
least possible time, see ``roofline.py``. What is paid once (capturing, compiling, asking the teacher about
every view) has a table of its own and is in no other number. On a CPU images are seen in 4 views each, not in
all 162: a step takes the same time, and to ask about all would take many minutes (``--views 0`` does).

Further tables: several seeds in turns beside one alone, and evaluation beside a plain loop.
"""

import argparse
import dataclasses
import platform
import statistics
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch

import roofline
import user_loop
from our_loop import STAGES
from refilled.data import Batches
from refilled.evaluation import predict
from refilled.files import write_json
from refilled.models import load
from refilled.runs.prepare import place
from refilled.suite.ledger import commit
from refilled.training import (
    pick_device,
    take_turns,
)
from tables import Row, print_costs, print_rest, print_training
from timing import allocated, alternate, attempt, clock, say, spread
from world import CLASSES, EPOCHS, IN_STEP, SIDE, World

WARM_UP = 3  # steps in which libraries choose their kernels
WAYS = ("user", "plain", "fast", "compiled")
ON_CPU = {
    "students": ["wrn-16-2", "wrn-16-1", "resnet-20"], "batch_size": 128, "images": 512, "views": 4,
    "steps": 4, "repeats": 3, "seeds": 1,
}  # fmt: skip
TINY = {
    "teacher": "wrn-10-1", "students": ["wrn-10-1"], "seeds_student": "wrn-10-1", "batch_size": 32,
    "images": 128, "views": 4, "steps": 2, "repeats": 1, "seeds": 2, "workers": 0,
}  # fmt: skip


# --- training -----------------------------------------------------------------------------------------


def ask_about_every_view(world: World) -> Row:
    """Fill the table of the teacher's answers, if a long run would."""
    seen: list[int] = []
    views, images = world.batches.views, len(world.labels)
    say(f"asking the teacher about {views} views of {images} images")
    seconds, _ = clock(
        world.device,
        lambda: world.teachers.answers(
            world.teacher, world.batches, EPOCHS, lambda done, total: seen.append(done)
        ),
    )
    world.looked_up = bool(seen)
    if not seen:
        say("the table is not made: too many views, or too little memory")
        return {"seconds": seconds, "views": 0, "bytes": 0}
    width = torch.finfo(world.autocast_dtype or torch.float32).bits // 8
    size = images * (views or 0) * world.teacher.dim * width
    say(f"asked about {views} views in {seconds:.1f} s; the table has {size / 2**20:,.1f} MB")
    return {"seconds": seconds, "views": views, "bytes": size}


def ways_of(stage: str, world: World) -> list[str]:
    """The ways that differ in a stage."""
    ways = list(world.options.ways)
    if "fast" in ways and stage != "alone" and world.looked_up:
        ways.insert(ways.index("fast") + 1, IN_STEP)
    return ways


def set_up(world: World, spec: str, stage: str, way: str) -> tuple[Any, Row]:
    """A loop that has run once, with what that cost.

    Ours is built twice: the first time libraries choose their kernels and the compiler works, so that the
    second is the time and the memory of the capture alone.
    """
    before, costs = allocated(world.device), {"first_build": 0.0, "build": 0.0, "captured": False}
    if way == "user":
        loop: Any = world.user_loop(spec, stage)
    else:
        loop = world.our_loop(spec, stage, way)
        costs["first_build"] = loop.build()
    if world.device.type == "cuda":
        loop.run(WARM_UP)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    if way != "user":
        costs["build"], costs["captured"] = loop.build(), loop.captured
    costs["loss"] = float(loop.run())
    if world.device.type == "cuda":
        costs["peak_bytes"] = torch.cuda.max_memory_allocated() - before
    return loop, costs


def measure_stage(world: World, spec: str, stage: str) -> list[Row]:
    """All ways through one stage of one student."""
    label = f"{spec}, {stage_name(stage)}, "
    loops: dict[str, Any] = {}
    costs: dict[str, Row] = {}
    for way in ways_of(stage, world):
        made = attempt(f"{label}{way}", set_up, world, spec, stage, way)
        if made is not None:
            loops[way], costs[way] = made
            say(f"{label}{way}: ready, built in {costs[way]['first_build']:.1f} s")
    works = {way: loop.run for way, loop in loops.items()}
    seconds = alternate(world.device, works, world.options.repeats, label)
    rows = [describe(world, spec, stage, way, seconds[way], costs[way]) for way in seconds]
    of_user = next((row["step_seconds"] for row in rows if row["way"] == "user"), None)
    for row in rows:
        row["ratio"] = of_user / row["step_seconds"] if of_user else None
        say(in_words(row))
    return rows


def describe(world: World, spec: str, stage: str, way: str, seconds: list[float], costs: Row) -> Row:
    """A measurement with all that follows from it."""
    rates = [world.steps * world.batch_size / each for each in seconds]
    step = statistics.median(seconds) / world.steps
    looked_up = way in ("fast", "compiled") and world.looked_up
    asked = stage != "alone" and not looked_up
    operations, moved = step_demands(world, spec, asked)
    return {
        "student": spec,
        "stage": stage,
        "way": way,
        "seconds": seconds,
        "images_per_second": statistics.median(rates),
        "spread": spread(rates),
        "step_seconds": step,
        "teacher_in_step": asked,
        "operations": operations,
        "bytes": moved,
        **costs,
    }


def add_floors(rows: list[Row], rates: roofline.Rates) -> None:
    """How much of the time was necessary, and for what."""
    for row in rows:
        floor, row["bound"] = roofline.floor(row["operations"], row["bytes"], rates)
        row["floor"] = floor / row["step_seconds"]


def step_demands(world: World, spec: str, asked: bool) -> tuple[float, float]:
    """Operations and bytes of a step, at the precision that we train with."""
    width = torch.finfo(world.autocast_dtype or torch.float32).bits // 8
    teacher = counts(world.options.teacher) if asked else None
    return roofline.demands(counts(spec), teacher, world.batch_size, width)


@cache
def counts(spec: str) -> roofline.Counts:
    """What a network's forward pass is made of."""
    return roofline.count(load(spec, CLASSES, image_size=SIDE), SIDE)


def stage_name(stage: str) -> str:
    """``alone``, or ``stage 1``."""
    return stage if stage == "alone" else f"stage {stage}"


def in_words(row: Row) -> str:
    """A measurement in one line."""
    ratio = f", {row['ratio']:.2f}x the user's loop" if row["ratio"] else ""
    return (
        f"{row['student']}, {stage_name(row['stage'])}, {row['way']}: {row['images_per_second']:,.0f} "
        f"± {row['spread']:,.0f} images/s, {row['step_seconds'] * 1e3:.2f} ms a step{ratio}"
    )


# --- seeds in turns, evaluation -----------------------------------------------------------------------


def measure_together(world: World, stage: str) -> Row:
    """One student alone beside several of them in turns, each with a seed of its own."""
    options, loops = world.options, []
    for seed in range(options.seeds):
        loop = world.our_loop(options.seeds_student, stage, "fast", seed)
        loop.build()
        loop.run()
        loops.append(loop)
    works = {
        "one": lambda: take_turns([loops[0].turns()], 1),
        "all": lambda: take_turns([loop.turns() for loop in loops], len(loops)),
    }
    seconds = alternate(world.device, works, options.repeats, f"seeds together, {stage_name(stage)}, ")
    one, together = (statistics.median(seconds[name]) / world.steps for name in ("one", "all"))
    row = {"student": options.seeds_student, "stage": stage, "seeds": options.seeds, "seconds": seconds}
    row |= {"one_step": one, "all_step": together, "ratio": together / one}
    say(
        f"{options.seeds} seeds together, {options.seeds_student}, {stage_name(stage)}: "
        f"{together * 1e3:.2f} ms for a step of each, {row['ratio']:.2f}x that of one"
    )
    return row


def measure_evaluation(world: World, spec: str) -> list[Row]:
    """Our prediction beside a plain loop."""
    images = min(10_000, len(world.labels))
    held = Batches(world.images[:images], world.labels[:images], 512)
    ours, plain = place(world.network(spec, 0), world.device), world.network(spec, 0).to(world.device)
    loader = world.loader(False, 512, images)
    works = {
        "user": lambda: user_loop.accuracy(plain, loader),
        "ours": lambda: predict(ours, held, autocast_dtype=world.autocast_dtype),
    }
    alternate(world.device, works, 1, "evaluation, ")
    rows = []
    for way, seconds in alternate(world.device, works, world.options.repeats, "evaluation, ").items():
        rates = [images / each for each in seconds]
        rows.append({"student": spec, "way": way, "images": images, "seconds": seconds})
        rows[-1] |= {"images_per_second": statistics.median(rates), "spread": spread(rates)}
        say(
            f"evaluation, {spec}, {way}: {statistics.median(rates):,.0f} ± {spread(rates):,.0f} images/s "
            f"({images} images)"
        )
    return rows


def heading(world: World) -> Row:
    """Where and what: device, versions, settings."""
    on_gpu = world.device.type == "cuda"
    threads = f"{platform.processor() or platform.machine()} cpu, {torch.get_num_threads()} threads"
    return {
        "device": torch.cuda.get_device_name() if on_gpu else threads,
        "torch": torch.__version__,
        "commit": commit(),
        "options": {name: value for name, value in vars(world.options).items() if name != "write"},
        "steps": world.steps,
        "rates": dataclasses.asdict(world.rates),
    }


def print_heading(found: Row, world: World) -> None:
    """The same in a few lines."""
    options = world.options
    say(f"{found['device']}, torch {found['torch']}, commit {found['commit']}")
    say(
        f"teacher {options.teacher}, {options.images} images, batches of {world.batch_size}, "
        f"{options.repeats} repeats of {world.steps} steps, {options.workers} workers for the user's loop"
    )


# --- all of it ----------------------------------------------------------------------------------------


def measure_all(world: World, found: Row, save: Callable[[], None]) -> None:
    """Everything that was asked for, saved after each part."""
    options = world.options
    if {"fast", "compiled"} & {*options.ways} and {"1", "2"} & {*options.stages}:
        found["asking"] = attempt("asking", ask_about_every_view, world)
    for spec in options.students:
        for stage in options.stages:
            world.measure_rates()
            rows = attempt(f"{spec}, {stage_name(stage)}", measure_stage, world, spec, stage)
            found["training"] += rows or []
            found["rates"] = dataclasses.asdict(world.rates)
            add_floors(found["training"], world.rates)
            world.free()
            save()
    for stage in options.stages if options.seeds > 1 else []:
        row = attempt(f"seeds together, {stage_name(stage)}", measure_together, world, stage)
        found["together"] += [row] if row else []
        world.free()
        save()
    found["evaluation"] = attempt("evaluation", measure_evaluation, world, options.students[0]) or []
    save()


def parse() -> argparse.Namespace:
    """Options; a CPU and ``--tiny`` have other defaults."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--teacher", default="wrn-40-2")
    parser.add_argument("--students", nargs="+", default=["wrn-40-2", "wrn-16-2", "wrn-16-1"])
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=[*STAGES])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=["user", "plain", "fast"])
    parser.add_argument("--compile", action="store_true", help="also the way compiled")
    parser.add_argument(
        "--precision", choices=["auto", "float32", "bfloat16"], default="auto", help="of our ways"
    )
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--images", type=int, default=25_000)
    parser.add_argument("--views", type=int, default=0, help="see each image in this many only; 0: all 162")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60, help="of a repeat, an epoch at most")
    parser.add_argument("--seeds", type=int, default=3, help="trained together; 1: leave that out")
    parser.add_argument("--seeds-student", default="wrn-16-2")
    parser.add_argument("--workers", type=int, default=user_loop.usual_workers(), help="of the user's loader")
    parser.add_argument("--write", type=Path, help="JSON file for all repeats")
    parser.add_argument("--tiny", action="store_true", help="a few seconds, to see that it runs")
    first = parser.parse_args()
    if pick_device(first.device).type == "cpu":
        parser.set_defaults(**ON_CPU)
    if first.tiny:
        parser.set_defaults(**TINY)
    options = parser.parse_args()
    if options.compile and "compiled" not in options.ways:
        options.ways.append("compiled")
    return options


def main() -> None:
    """Measure, then print the tables."""
    options = parse()
    world = World(options)
    found: Row = {**heading(world), "asking": None, "training": [], "together": [], "evaluation": []}
    print_heading(found, world)

    def save() -> None:
        if options.write is not None:
            write_json(options.write, found)

    measure_all(world, found, save)
    say("")
    print_heading(found, world)
    print_training(found["training"], world.rates)
    print_costs(found["training"])
    if found["asking"]:
        asked = found["asking"]
        say(
            f"\nasking the teacher about {asked['views']} views of each image: {asked['seconds']:.1f} s, "
            f"a table of {asked['bytes'] / 2**20:,.1f} MB"
        )
    print_rest(found["together"], found["evaluation"])


if __name__ == "__main__":
    main()
