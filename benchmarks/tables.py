"""What ``training.py`` measured, as tables in Markdown."""

from typing import Any

import roofline
from timing import say

Row = dict[str, Any]


def print_table(heads: list[str], rows: list[list[str]]) -> None:
    """Markdown; nothing where there is nothing to show."""
    if rows:
        lines = [heads, ["---"] * len(heads), *rows]
        say("\n" + "\n".join(f"| {' | '.join(cells)} |" for cells in lines))


def print_training(rows: list[Row], rates: roofline.Rates) -> None:
    """Speed, memory, and share of the floor."""
    say(f"\nproduct of matrices {rates.operations / 1e12:.2f} Tflop/s, copy {rates.bytes / 1e9:,.0f} GB/s")
    heads = ["student", "stage", "way", "images/s", "ms a step", "faster", "peak MB", "floor"]
    cells = [
        [
            row["student"],
            row["stage"],
            row["way"],
            f"{row['images_per_second']:,.0f} ± {row['spread']:,.0f}",
            f"{row['step_seconds'] * 1e3:.2f}",
            f"{row['ratio']:.2f}x" if row["ratio"] else "-",
            f"{row['peak_bytes'] / 2**20:,.0f}" if "peak_bytes" in row else "-",
            f"{row['floor']:.1%} ({row['bound']})",
        ]
        for row in rows
    ]
    print_table(heads, cells)


def print_costs(rows: list[Row]) -> None:
    """What is paid once."""
    heads = ["student", "stage", "way", "s to compile and to choose kernels", "s to build", "graph"]
    cells = [
        [
            row["student"],
            row["stage"],
            row["way"],
            f"{max(0.0, row['first_build'] - row['build']):.1f}",
            f"{row['build']:.2f}",
            "yes" if row["captured"] else "no",
        ]
        for row in rows
        if row["way"] not in ("user", "plain")
    ]
    print_table(heads, cells)


def print_rest(together: list[Row], evaluation: list[Row]) -> None:
    """Seeds in turns, and evaluation."""
    print_table(
        ["student", "stage", "ms a step, one", "ms a step of each, together", "seeds", "times one", "gain"],
        [
            [
                row["student"],
                row["stage"],
                f"{row['one_step'] * 1e3:.2f}",
                f"{row['all_step'] * 1e3:.2f}",
                str(row["seeds"]),
                f"{row['ratio']:.2f}",
                f"{row['seeds'] / row['ratio']:.2f}x",
            ]
            for row in together
        ],
    )
    print_table(
        ["student", "evaluation", "images", "images/s"],
        [
            [
                row["student"],
                row["way"],
                str(row["images"]),
                f"{row['images_per_second']:,.0f} ± {row['spread']:,.0f}",
            ]
            for row in evaluation
        ],
    )
