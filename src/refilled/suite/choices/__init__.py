"""Choices on validation: searches of the settings of a table's cells."""

from refilled.suite.choices.tune import tune_table

__all__ = ["tune_table"]
