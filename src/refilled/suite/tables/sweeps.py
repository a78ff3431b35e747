"""One setting changed at a time, at half-overlapping classes: trust per image, and the strength lambda."""

from typing import Any

from refilled.suite.cell import Cell
from refilled.suite.table import Point, Table
from refilled.suite.tables import cifar100, cub, published
from refilled.suite.tables.published import MOBILENETS, WRN, lookup
from refilled.suite.tables.rows import TWO_STAGES

_COLUMNS = {"cifar100": WRN, "cub": MOBILENETS}


def _half(point: Point, row: str, **own: Any) -> Cell | None:
    """At an overlap of 60 % on CIFAR-100 and 50 % on CUB."""
    student = point["student"]
    if student not in _COLUMNS[point["data"]]:
        return None
    if point["data"] == "cub":
        return cub.gkd(row, student, 50, **own)
    return cifar100.gkd({}, row, student, 60, **own)


REWEIGHTING = Table(
    name="reweighting",
    title="Trust in the teacher per image: none, gap, pl (the paper's) or head; overlap 60 % (CUB: 50 %)",
    source="Tables of the gap and PL weights",
    axes={"data": ("cifar100", "cub"), "weight": ("none", "gap", "pl", "head"), "student": WRN + MOBILENETS},
    cell=lambda p: _half(p, TWO_STAGES, weight=p["weight"]),
    published=lambda p: lookup(
        published.REWEIGHTING[p["data"]], p["weight"], _COLUMNS[p["data"]], p["student"]
    ),
    alone=lambda p: _half(p, "student"),
)
LAMBDA = Table(
    name="lambda",
    title="The strength of the teacher's term; overlap 60 % (CUB: 50 %)",
    source="Figure of accuracy against lambda, which gives no numbers",
    axes={
        "data": ("cifar100", "cub"),
        "student": ("wrn-16-2", "mobilenet-0.5"),
        "strength": (0.1, 0.5, 1.0, 2.0, 5.0, 10.0),
    },
    cell=lambda p: _half(p, TWO_STAGES, strength=p["strength"]),
    published=lambda p: None,
    alone=lambda p: _half(p, "student"),
)
TABLES = (REWEIGHTING, LAMBDA)
