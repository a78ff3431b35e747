"""Losses and validation accuracy of both stages, epoch by epoch."""

from itertools import cycle
from typing import Any

from refilled.suite.figures.figure import Figure, Studio
from refilled.suite.tables.cifar100 import gkd
from refilled.suite.tables.recipes import VAL_FRACTION
from refilled.suite.tables.rows import TWO_STAGES
from refilled.suite.validation import blind
from refilled.training.metrics import METRICS, MetricsLog

OVERLAP, STUDENT = 60, "wrn-40-2"


def numbers(studio: Studio) -> dict[str, Any]:
    """For each stage its epochs, the means of its losses, and what validation measured.

    A fifth of the training images is held out for it, from the teacher too: neither is the one in the tables.
    """
    cell = studio.cell(gkd({}, TWO_STAGES, STUDENT, OVERLAP)).with_settings(
        val_fraction=VAL_FRACTION, validate_every=1
    )
    cell = blind(cell)
    studio.student(cell)
    records = MetricsLog(studio.places.student_folder(cell) / METRICS).read()
    stages = []
    for name in dict.fromkeys(record["stage"] for record in records):
        own = [record for record in records if record["stage"] == name]
        curves = {
            kind: {
                key.removeprefix(kind): [record.get(key) for record in own]
                for key in dict.fromkeys(key for record in own for key in record if key.startswith(kind))
            }
            for kind in ("loss/", "val/")
        }
        epochs = [record["epoch"] for record in own]
        stages.append(
            {"stage": name, "epochs": epochs, "loss": curves["loss/"], "validation": curves["val/"]}
        )
    return {"cell": cell.describe(), "stages": stages}


def draw(numbers: dict[str, Any], canvas: Any) -> None:
    """A panel for each stage: losses to the left, validation to the right."""
    stages = numbers["stages"]
    canvas.set_size_inches(5.2 * len(stages), 4.2)
    handles: dict[str, Any] = {}  # one for each name, whatever the panel
    colours = {name: f"C{number}" for number, name in enumerate(_names(stages, "loss"))}
    lines = dict(zip(_names(stages, "validation"), cycle(("--", ":", "-."))))
    for axis, stage in zip(canvas.subplots(1, len(stages), squeeze=False)[0], stages):
        right = axis.twinx()
        for name, values in stage["loss"].items():
            (handles[f"loss: {name}"],) = axis.plot(stage["epochs"], values, marker=".", color=colours[name])
        for name, values in stage["validation"].items():
            known = [
                (epoch, 100 * value) for epoch, value in zip(stage["epochs"], values) if value is not None
            ]
            (handles[f"validation: {name}"],) = right.plot(
                *zip(*known), color="black", marker=".", linestyle=lines[name]
            )
        axis.set(title=f"stage {stage['stage']!r}", xlabel="epoch", ylabel="loss")
        right.set_ylabel("validation, %")
    canvas.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, fontsize="small")


def _names(stages: list[dict[str, Any]], kind: str) -> list[str]:
    """Of all stages, each once."""
    return list(dict.fromkeys(name for stage in stages for name in stage[kind]))


FIGURE = Figure("convergence", "Convergence of both stages", numbers, draw)
