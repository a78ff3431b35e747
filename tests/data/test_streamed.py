import threading
import time
from pathlib import Path

import pytest
import torch
from image_files import bad_files, save_image

from refilled.data import Batches, channel_statistics
from refilled.data.cache import CachedImages, cache_images
from refilled.data.pixels import FilePixels
from refilled.data.source import Resident, in_order
from refilled.data.streamed import Streamed
from refilled.errors import UserError

CPU = torch.device("cpu")
SIZE, COUNT = 16, 30
LABELS = torch.arange(COUNT) % 3


@pytest.fixture(scope="module")
def both(tmp_path_factory) -> tuple[Resident, Streamed]:
    """The same images in memory and on disk; in between there are bad ones."""
    folder = tmp_path_factory.mktemp("photos")
    paths = [save_image(folder / f"{n}.png", side=SIZE + 3, seed=n) for n in range(COUNT)]
    for place, bad in zip((4, 11), bad_files(folder / "bad").values()):
        paths.insert(place, bad)
    files = FilePixels(paths, skip_bad_images=True)
    return Resident(files.load(SIZE)[0]), Streamed(cache_images(files, SIZE, folder)[0], CPU)


def readers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("read-images")]


def test_takes_what_memory_would_give(both):
    resident, stream = both
    assert stream.shape == resident.shape == (COUNT, 3, SIZE, SIZE)
    for rows in ([3], [29, 0, 0, 17], [], list(range(COUNT))):
        index = torch.tensor(rows, dtype=torch.int64)
        assert torch.equal(stream.take(index), resident.take(index))


@pytest.mark.parametrize("augment", ["none", "crop-flip", "resized-crop-flip"])
@pytest.mark.parametrize("views", [None, 3])
def test_batches_are_the_same_bit_for_bit(both, augment, views):
    kinds = [Batches(source, LABELS, 8, augment, seed=5, views=views) for source in both]
    for number in range(2):
        epochs = [list(batches.epoch(number)) for batches in kinds]
        assert len(epochs[0]) == len(epochs[1]) == 4
        for one, other in zip(*epochs):
            assert torch.equal(one.images, other.images)
            assert torch.equal(one.labels, other.labels)
            assert torch.equal(one.rows, other.rows)
    for one, other in zip(*(batches.ordered(7) for batches in kinds), strict=True):
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.labels, other.labels)


def test_statistics_without_the_whole_set(both):
    resident, stream = both
    whole = channel_statistics(resident.images)
    assert channel_statistics(in_order(stream, 7)) == whole
    assert channel_statistics(in_order(resident, 64)) == whole
    assert channel_statistics(resident.images.split([1, 20, 9])) == whole
    with pytest.raises(UserError, match="at least 1 image"):
        channel_statistics([])


def test_reads_a_few_batches_ahead_and_no_more(both, monkeypatch):
    _, stream = both
    begun = []
    real = CachedImages.read
    monkeypatch.setattr(CachedImages, "read", lambda self, *a: begun.append(len(a[0])) or real(self, *a))
    batches = stream.stream(torch.arange(COUNT).view(-1, 2))
    assert not begun
    for used in range(1, 4):
        next(batches)
        wait_until(lambda count=used + 4: len(begun) >= count)
        time.sleep(0.02)
        assert len(begun) == used + 4
    assert len(list(batches)) == 12
    assert len(begun) == 15


def wait_until(condition) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.mark.parametrize("end", ["close", "forget", "error"])
def test_no_thread_is_left_when_batches_are_abandoned(both, end):
    _, stream = both
    batches = stream.stream(torch.arange(COUNT).view(-1, 1))
    next(batches)
    assert readers()
    if end == "close":
        batches.close()
    elif end == "error":
        with pytest.raises(ZeroDivisionError):
            batches.throw(ZeroDivisionError())
    del batches
    assert not readers()


def test_no_thread_is_left_after_an_epoch(both):
    list(Batches(both[1], LABELS, 8).epoch(0))
    assert not readers()


def test_an_error_while_reading_reaches_who_uses_the_batches(both, monkeypatch):
    _, stream = both
    real = CachedImages.read

    def failing(self, rows, out):
        if 8 in rows.tolist():
            raise OSError("the disk is gone")
        real(self, rows, out)

    monkeypatch.setattr(CachedImages, "read", failing)
    batches = stream.stream(torch.arange(COUNT).view(-1, 2))
    for _ in range(4):
        next(batches)
    with pytest.raises(OSError, match="the disk is gone"):
        next(batches)
    assert not readers()


def test_a_batch_is_not_overwritten_by_later_ones(both):
    resident, stream = both
    parts = torch.arange(COUNT).view(-1, 2)
    for part, images in zip(parts, list(stream.stream(parts)), strict=True):
        assert torch.equal(images, resident.take(part))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux tells how much memory is used")
def test_memory_does_not_grow_with_the_number_of_images(tmp_path):
    path = save_image(tmp_path / "one.png", side=8)
    paths = []
    for number in range(400):
        paths.append(tmp_path / f"{number}.png")
        paths[-1].hardlink_to(path)
    images, _ = cache_images(FilePixels(paths), 256, tmp_path)  # 75 MB
    source = Streamed(images, CPU)
    parts = torch.arange(400).view(-1, 4)
    sum(batch.numel() for batch in source.stream(parts[:10]))  # what the threads need is there then
    before = resident_bytes()
    for batch in source.stream(parts):
        assert resident_bytes() - before < 24 * 2**20
        assert len(batch) == 4


def resident_bytes() -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
class TestOnAGpu:
    @pytest.fixture
    def there(self, both) -> tuple[Resident, Streamed]:
        device = torch.device("cuda")
        return Resident(both[0].images.to(device)), Streamed(both[1].images, device)

    def test_batches_are_the_same(self, there):
        assert there[0].device == there[1].device
        kinds = [Batches(source, LABELS.to("cuda"), 8, "crop-flip", seed=5) for source in there]
        for number in range(3):
            for one, other in zip(*(batches.epoch(number) for batches in kinds), strict=True):
                assert torch.equal(one.images, other.images)
        rows = torch.tensor([3, 1], device="cuda")
        assert torch.equal(there[1].take(rows), there[0].take(rows))

    @pytest.mark.parametrize("late", ["copies", "steps"])
    def test_no_memory_is_used_again_too_early(self, there, late):
        resident, stream = there
        parts = torch.randint(0, COUNT, (60, 8), generator=torch.Generator().manual_seed(0))
        slow = stream._copying if late == "copies" else torch.cuda.current_stream()
        sums = []
        for images in stream.stream(parts.to("cuda")):
            with torch.cuda.stream(slow):
                torch.cuda._sleep(10**7)  # some milliseconds, in which a hundred batches could be read
            sums.append(images.long().sum())
        expected = [resident.take(part).long().sum() for part in parts]
        assert torch.equal(torch.stack(sums), torch.stack(expected))
