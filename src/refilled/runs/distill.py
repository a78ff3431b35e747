"""Distil: one run, or one for each of several seeds at the same time."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from refilled.data import Splits
from refilled.models import Network
from refilled.runs.choice import choose_method
from refilled.runs.result import Result
from refilled.runs.run import Run
from refilled.runs.shared import Shared
from refilled.training import Reporter, make_reporter, take_turns


def distill(
    teacher: str | Path | Network | None,
    student: str | Path | Network,
    data: str | Path | Splits,
    method: str = "refilled",
    out: str | Path | None = None,
    *,
    resume: bool = False,
    progress: bool = True,
    **settings: Any,
) -> Result:
    """Train a student with the help of a teacher, whatever classes each of them knows.

    Args:
        teacher: a run folder, ``timm:NAME``, ``hf:FOLDER``, or a network; None for method ``student``.
        student: ``wrn-16-2``, ``mobilenet-0.5``, ``timm:NAME``, …, or a network that knows the data's
            classes; a network is trained in place.
        data: ``digits``, a folder of images, CIFAR-100's folder, or what
            :func:`refilled.data.open_data` returned.
        method: see :data:`refilled.methods.METHODS`; ``auto``: refilled, or refilled-few where there are few
            images of a class.
        out: run folder to write; None: nothing is written.
        resume: go on with an interrupted run in ``out``.
        progress: show progress on standard error.
        settings: any field of :class:`refilled.training.TrainSettings`,
            :class:`refilled.runs.DataSettings`, or of the method's own settings.

    Returns:
        Accuracies on the test images, read once at the last epoch, and the student itself.
    """
    shared, reporter = Shared(), make_reporter(progress)
    method = choose_method(method, data, out, settings, shared)
    run = Run(
        teacher, student, data, method, out,
        resume=resume, reporter=reporter, shared=shared, **settings,
    )  # fmt: skip
    return run.finished or run.finish(take_turns([run.training()], at_once=1)[0])


def distill_seeds(
    teacher: str | Path | Network | None,
    student: str | Path,
    data: str | Path | Splits,
    method: str,
    outs: Sequence[Path | None],
    seeds: Sequence[int],
    *,
    resume: bool = False,
    reporter: Reporter | None = None,
    shared: Shared | None = None,
    **settings: Any,
) -> list[Result]:
    """The same run for each of several seeds, all trained at the same time.

    On a GPU three small students take about twice as long as one. Each ends as it would by itself.

    Args:
        teacher, student, data, method, resume, settings: see :func:`distill`.
        outs: a run folder for each seed, or None.
        seeds: of the runs.
        reporter: shows the progress of the first one; they keep step.
        shared: what they have in common with other runs; None: only each other.
    """
    reporter = reporter or Reporter()
    shared = shared or Shared(len(seeds))

    def runs(these: Sequence[int], resume: bool) -> list[Run]:
        return [
            Run(
                teacher, student, data, method, outs[number],
                resume=resume, reporter=reporter if number == these[0] else Reporter(), shared=shared,
                seed=seeds[number], **settings,
            )
            for number in these
        ]  # fmt: skip

    def trained(these: Sequence[int], resume: bool) -> list[Result]:
        opened = runs(these, resume)
        left = [run for run in opened if run.finished is None]
        taken = take_turns([run.training() for run in left], at_once=max(1, len(left)))
        seconds = iter([second / len(left) for second in taken])  # each its share of the time
        return [run.finished or run.finish(next(seconds)) for run in opened]

    everyone = range(len(seeds))
    try:
        return trained(everyone, resume)
    except torch.cuda.OutOfMemoryError:
        if len(seeds) == 1:
            raise
        reporter.line(f"{len(seeds)} trainings at once do not fit in the GPU's memory: one after the other")
    torch.cuda.empty_cache()
    return [trained([number], True)[0] for number in everyone]
