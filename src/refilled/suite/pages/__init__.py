"""Pages of tables in Markdown: what was measured, beside what was published."""

from refilled.suite.pages.render import render

__all__ = ["render"]
