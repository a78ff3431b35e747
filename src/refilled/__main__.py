"""``python -m refilled``."""

from refilled.cli import main

main()
