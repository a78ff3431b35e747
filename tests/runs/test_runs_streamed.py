"""Runs whose images stay on disk see the same batches as runs whose images are in memory."""

import tempfile
from pathlib import Path

import pytest
import torch

from refilled.data import cache, memory, open_data
from refilled.data.source import Resident
from refilled.data.streamed import Streamed
from refilled.errors import UserError
from refilled.runs import DataSettings, holding
from refilled.runs.prepare import load_images
from refilled.training import TrainSettings


@pytest.fixture
def load(image_folder):
    """``load(pixels="stream")``: photos of cats and dogs, prepared."""
    image_folder(["cat", "dog"], counts=20, sides=12)

    def prepare(cache_folder=None, spec="photos", skip_bad_images=False, **settings):
        splits = open_data(spec, skip_bad_images=skip_bad_images)
        return load_images(
            splits,
            8,
            DataSettings(**settings),
            TrainSettings(batch_size=8, seed=3),
            torch.device("cpu"),
            cache_folder=cache_folder,
        )

    return prepare


def alike(one, other) -> bool:
    assert (one.mean, one.std, one.size) == (other.mean, other.std, other.size)
    for name in ("train", "val", "test"):
        a, b = getattr(one, name), getattr(other, name)
        for x, y in zip([*a.epoch(1), *a.ordered()], [*b.epoch(1), *b.ordered()], strict=True):
            if not (torch.equal(x.images, y.images) and torch.equal(x.labels, y.labels)):
                return False
    return True


def test_batches_are_the_same_as_in_memory(load):
    in_memory, streamed = load(pixels="memory"), load(Path("run/cache"), pixels="stream")
    assert isinstance(in_memory.train.source, Resident)
    assert all(isinstance(part.source, Streamed) for part in (streamed.train, streamed.val, streamed.test))
    assert alike(in_memory, streamed)
    assert Path("run/cache/3x8x8.pixels").is_file()
    said = "40 images of 8 pixels are 0 MiB: they are streamed from the cache in run/cache"
    assert streamed.notes[-1] == said
    assert in_memory.notes == streamed.notes[:-1]


def test_with_images_that_are_skipped(load):
    Path("photos/cat/3.png").write_bytes(b"no image")
    Path("photos/dog/7.png").write_bytes(b"no image")
    in_memory, streamed = (load(pixels=pixels, skip_bad_images=True) for pixels in ("memory", "stream"))
    assert alike(in_memory, streamed)
    assert [note for note in streamed.notes if "streamed" not in note] == list(in_memory.notes)
    assert "left out" in "".join(streamed.notes)


def test_auto_streams_what_would_fill_half_of_the_memory(load, monkeypatch):
    needed = 40 * 3 * 8 * 8
    monkeypatch.setattr(holding, "available_bytes", lambda: 2 * needed)
    assert isinstance(load(Path("run/cache")).train.source, Resident)
    assert not Path("run").exists()
    monkeypatch.setattr(holding, "available_bytes", lambda: 2 * needed - 2)
    streamed = load(Path("run/cache"))
    assert isinstance(streamed.train.source, Streamed)
    assert "more than half of the 0 MiB that are free: they are streamed from" in streamed.notes[-1]
    assert isinstance(load(Path("run/cache"), pixels="memory").train.source, Resident)
    monkeypatch.setattr(holding, "available_bytes", lambda: None)  # nothing is known: memory, as ever
    assert isinstance(load().train.source, Resident)


def test_a_folder_of_the_persons_own_serves_memory_too(load, monkeypatch):
    in_memory = load(pixels="memory")
    first = load(Path("run/cache"), cache="kept", pixels="memory")
    assert isinstance(first.train.source, Resident)
    assert not Path("run").exists()
    monkeypatch.setattr(cache, "decode_files", None)  # whoever decodes now, fails
    again, streamed = load(cache="kept"), load(cache="kept", pixels="stream")
    assert alike(in_memory, first)
    assert alike(in_memory, again)
    assert alike(in_memory, streamed)
    assert streamed.notes[-1].endswith("from the cache in kept")


def test_without_a_run_folder_nothing_is_left(load, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    streamed = load(pixels="stream")
    assert not list((tmp_path / "temporary").iterdir())
    assert f"from a temporary file in {tmp_path / 'temporary'}" in streamed.notes[-1]
    assert alike(load(pixels="memory"), streamed)


def test_what_is_in_memory_already_is_not_streamed(load):
    with pytest.raises(UserError, match=r"digits is in memory already; --pixels stream is for folders"):
        load(spec="digits", pixels="stream")
    assert isinstance(load(spec="digits", cache="kept").train.source, Resident)
    assert not Path("kept").exists()


def test_unknown_places_are_refused():
    with pytest.raises(UserError, match="unknown value of pixels 'disk'"):
        DataSettings(pixels="disk")


def test_a_set_that_does_not_fit_is_told_of_the_other_way(load, monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda: 1000)
    with pytest.raises(UserError, match="use --pixels stream, a smaller --image-size or fewer images"):
        load(pixels="memory")


def test_a_whole_run(tiny, image_folder):
    photos = image_folder(["cat", "dog"], counts=12)
    results = [tiny(None, "wrn-10-1", photos, "student", pixels=pixels) for pixels in ("memory", "stream")]
    weights = [result.student.state_dict() for result in results]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert results[0].accuracy == results[1].accuracy
