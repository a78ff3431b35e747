"""The parts of the suite's tables that are measured before all others, in blocks; what is missing is run.

    python benchmarks/blocks.py                      # how much of each block the ledger has
    python benchmarks/blocks.py D+D-ncm figures --draw tsne --compile --keep-students --data DIR

Blocks joined by + are run side by side, as far as they share images and teacher; then those behind them, in
the same process, which compiles a network once; then figures are drawn that train what they look at.
"""

import argparse
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from command import run
from refilled import suite
from refilled.checks import check_number
from refilled.errors import unknown
from timing import say

_QUARTER = "quarter stage 1 + imitation 5"
_WRN = {"student": ("wrn-16-2",)}
BLOCKS: dict[str, tuple[str, Mapping[str, tuple[Any, ...]]]] = {
    "A": (
        "cifar100-gkd",
        _WRN
        | {
            "overlap": (60, 0, 100),
            "method": (
                "student-half", "student", "rkd", "aml", "refilled-emb", "refilled-minus", "refilled",
            ),
        },
    ),
    "A-paper": (
        "cifar100-gkd",
        _WRN | {"overlap": (60, 0, 100), "method": ("refilled-two-stages", "refilled-paper")},
    ),
    "B-alone": ("shots", _WRN | {"overlap": (60, 0), "method": ("student",)}),
    "B-rkd": ("shots", _WRN | {"overlap": (60, 0), "method": ("rkd",)}),
    "B": ("shots", _WRN | {"overlap": (60, 0), "method": ("refilled", "refilled-few")}),
    "B-grouped": (
        "shots", _WRN | {"overlap": (60, 0), "method": ("refilled-grouped",), "shots": (10, 25, 50)},
    ),
    "B-teacher": (
        "shots",
        {"student": ("wrn-40-2",), "overlap": (60, 0), "method": ("teacher-ncm", "fine-tune")},
    ),
    "C": (
        "recipes",
        {
            "shots": (None,),
            "epochs": (200,),
            "overlap": (0, 60),
            "recipe": (
                "student alone", "two stages", f"{_QUARTER} + fading", f"{_QUARTER} + KD 2 by head + fading",
            ),
        },
    ),
    "C-same": (
        "recipes",
        {
            "shots": (None,),
            "epochs": (200,),
            "overlap": (100,),
            "recipe": (
                "student alone", "two stages + head 4", f"{_QUARTER} + head 4",
                f"{_QUARTER} + fading + head 4", f"{_QUARTER} + KD 2 by head + fading + head 4",
                f"{_QUARTER} + fading", f"{_QUARTER} + fading + head share 0.9",
                "quarter stage 1 + imitation 1 + fading + head share 0.8",
            ),
        },
    ),
    "C-plain": (
        "recipes",
        {
            "shots": (None,),
            "epochs": (200,),
            "overlap": (100,),
            "recipe": (
                "plain distillation", "decoupled distillation", "quarter stage 1 + head share 0.9",
                f"{_QUARTER} + head share 0.9", "imitation 5 + head share 0.9",
                f"{_QUARTER} + fading + head share 0.9 that stays",
                "imitation 5 + fading + head share 0.9 that stays",
            ),
        },
    ),
    "C-few": (
        "recipes",
        {
            "shots": (50,),
            "epochs": (200,),
            "overlap": (0, 60),
            "recipe": ("student alone", "few", "few + imitation 15"),
        },
    ),
    "D": (
        "cifar100-standard",
        _WRN | {"method": ("student", "kd", "at", "rkd", "crd", "dkd", "refilled")},
    ),
    "D-grouped": ("cifar100-standard", _WRN | {"method": ("refilled-grouped",)}),
    "D-ncm": ("ncm-after-stage-1", _WRN),
    "figures": ("lambda", _WRN | {"data": ("cifar100",)}),
}  # fmt: skip
"""Table and part of it by name; the names' first letters are the blocks."""


def cells_of(block: str, seeds: int) -> list[Any]:
    """The cells of a block."""
    name, where = BLOCKS[block]
    table = suite.get_table(name)
    return suite.cells_of(table, where, table.judge(seeds))


def asked_for(text: str) -> list[str]:
    """Names of the blocks in ``D+D-ncm``."""
    names = text.split("+")
    for name in names:
        if name not in BLOCKS:
            raise unknown("block", name, BLOCKS)
    return names


def main() -> None:
    """Count, or run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("blocks", nargs="*", metavar="BLOCK[+BLOCK]", help=", ".join(BLOCKS))
    parser.add_argument("--draw", nargs="+", default=[], metavar="FIGURE", help="figures, beside the ledger")
    parser.add_argument("--ledger", type=Path, default=Path("results/ledger.jsonl"))
    parser.add_argument("--data", type=Path, help="folder of the data sets; default: that of REFILLED_DATA")
    parser.add_argument("--work", type=Path, default=suite.WORK, help="folder of teachers")
    parser.add_argument("--seeds", type=int, default=suite.SEEDS)
    parser.add_argument("--together", type=int, help="trainings at the same time")
    parser.add_argument("--minutes", type=float, help="begin nothing that would end later")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--keep-students", action="store_true", help="keep what is trained, for figures")
    asked = parser.parse_args()
    groups = [asked_for(text) for text in asked.blocks]
    for name in asked.draw:
        if name not in suite.FIGURES:
            raise unknown("figure", name, suite.FIGURES)
    check_number("--minutes", asked.minutes, above=0)
    ledger, places = suite.Ledger(asked.ledger), suite.Places(asked.data, asked.work)
    cells = {name: cells_of(name, asked.seeds) for name in (list(chain(*groups)) or BLOCKS)}
    for name, own in cells.items():
        say(f"{name}: {sum(map(ledger.has, own))} of {len(own)} cells of {BLOCKS[name][0]} are there")
    bench = suite.Bench(
        ledger, places, say=say, together=asked.together, seconds=asked.minutes and 60 * asked.minutes,
        keep_students=asked.keep_students, compile=asked.compile,
    )  # fmt: skip
    for group in groups:
        bench.run([cell for name in group for cell in cells[name]])
    if asked.draw:
        studio = suite.Studio(ledger, places, seeds=asked.seeds, say=say, compile=asked.compile)
        suite.make_figures(asked.draw, studio, ledger.path.parent / "figures")


if __name__ == "__main__":
    run(main)
