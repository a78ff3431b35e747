"""A reporter that remembers what it was told."""

from refilled.training import Reporter


class Told(Reporter):
    """Its lines, in their order."""

    def __init__(self):
        self.lines = []

    def line(self, text):
        self.lines.append(text)
