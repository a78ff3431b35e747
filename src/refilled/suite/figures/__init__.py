"""The paper's figures: each computes its numbers, which are kept as JSON, and draws them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from refilled.errors import UserError, unknown
from refilled.files import write_atomically, write_json
from refilled.suite.extras import library
from refilled.suite.figures import convergence, gradients, overlap, shots, strength, trusted, tsne, weights
from refilled.suite.figures.figure import Figure, NothingToShow, Studio
from refilled.suite.ledger import commit

FIGURES: dict[str, Figure] = {
    figure.name: figure
    for figure in (
        overlap.FIGURE,
        weights.FIGURE,
        trusted.FIGURE,
        tsne.FIGURE,
        convergence.FIGURE,
        strength.FIGURE,
        shots.FIGURE,
        gradients.FIGURE,
    )
}
ALL = "all"


def make_figures(names: Sequence[str], studio: Studio, folder: Path) -> list[Path]:
    """Write ``NAME.json`` and ``NAME.png`` for each figure.

    Args:
        names: of figures. With ``all``, those for which something is missing are named and left out, and
            nothing is trained.
        studio: where numbers come from.
        folder: where to write.

    Returns:
        The images written.
    """
    for name in names:
        if name not in (*FIGURES, ALL):
            raise unknown("figure", name, (*FIGURES, ALL))
    plotting = library("matplotlib.figure", "figures", "drawing a figure")
    chosen = [figure for name, figure in FIGURES.items() if name in names or ALL in names]
    studio = replace(studio, trains=studio.trains and ALL not in names)
    written = []
    for figure in chosen:
        try:
            numbers = figure.numbers(studio)
        except NothingToShow as missing:
            if ALL not in names:
                raise
            studio.say(f"{figure.name} is left out: {missing}")
            continue
        made = {"figure": figure.name, "title": figure.title, "made_by": studio.command(figure.name)}
        write_json(folder / f"{figure.name}.json", made | {"commit": commit()} | numbers)
        canvas = plotting.Figure(layout="constrained")
        figure.draw(numbers, canvas)
        canvas.suptitle(figure.title)
        path = folder / f"{figure.name}.png"
        write_atomically(path, lambda temporary: canvas.savefig(temporary, format="png", dpi=150))  # noqa: B023
        studio.say(f"{path} is written")
        written.append(path)
    if not written:
        raise UserError("no figure could be made; run the experiments they are drawn from first")
    return written


__all__ = ["ALL", "FIGURES", "Figure", "NothingToShow", "Studio", "make_figures"]
