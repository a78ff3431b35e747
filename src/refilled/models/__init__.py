"""Models: one contract for all of them, some architectures of ours, and ways to load others'."""

from refilled.models.network import Network, Preprocess
from refilled.models.saved import read_network, save_network
from refilled.models.sources import load

__all__ = ["Network", "Preprocess", "load", "read_network", "save_network"]
