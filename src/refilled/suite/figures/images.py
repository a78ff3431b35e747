"""Images that figures look at."""

from refilled.methods import get_method
from refilled.models import Network
from refilled.runs.prepare import Prepared, wanted_size
from refilled.runs.settings import sort_settings
from refilled.runs.shared import Shared
from refilled.suite.cell import Cell
from refilled.suite.figures.figure import Studio
from refilled.training import Reporter


def images_of(studio: Studio, cell: Cell, *networks: Network) -> Prepared:
    """The cell's images on the device, at the size that the networks want."""
    settings, data_settings, _ = sort_settings(get_method(cell.method), cell.arguments())
    shared = Shared()
    splits = shared.splits(studio.places.data_spec(cell.data), data_settings, settings.seed)
    size = wanted_size(splits, data_settings, *networks)
    return shared.images(splits, size, data_settings, settings, studio.torch_device, Reporter(), None)
