"""Images without labels beside those that have them: where they come from, and how they are dealt out."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from image_files import save_image

from refilled.data import Batches, layouts, open_data, open_unlabelled
from refilled.data.source import Joined, Resident, common_images, join
from refilled.errors import UserError


def numbered(count: int) -> torch.Tensor:
    """Images whose pixels are their row number."""
    return torch.arange(count, dtype=torch.uint8)[:, None, None, None].expand(-1, 1, 8, 8).contiguous()


def dealt(labelled: int, others: int, batch_size: int, unlabelled: int, **more) -> Batches:
    labels = torch.arange(labelled) % 3
    return Batches(numbered(labelled + others), labels, batch_size, unlabelled=unlabelled, **more)


@settings(deadline=None)
@given(st.integers(1, 30), st.integers(1, 40), st.integers(1, 12), st.integers(1, 50), st.integers(0, 3))
def test_every_step_has_both(labelled, others, batch_size, unlabelled, number):
    batches = dealt(labelled, others, batch_size, unlabelled, seed=1)
    plain = Batches(numbered(labelled), torch.arange(labelled) % 3, batch_size, seed=1)
    assert len(batches) == len(plain)
    came = []
    for batch, without in zip(batches.epoch(number), plain.epoch(number)):
        assert torch.equal(batch.rows[: len(batch)], without.rows)  # the same images with labels as ever
        assert torch.equal(batch.labels, without.labels)
        assert len(batch.images) == len(batch.rows) == len(batch) + min(unlabelled, others)
        assert torch.equal((batch.images[:, 0, 0, 0] * 255).round().long(), batch.rows)
        came += batch.rows[len(batch) :].tolist()
    assert batches.asked == sum(len(batch.images) for batch in batches.epoch(number))
    assert set(came) <= set(range(labelled, labelled + others))
    whole = len(came) // others
    for start in range(whole):  # all come once before one comes again
        assert len(set(came[start * others : (start + 1) * others])) == others
    assert len(set(came[whole * others :])) == len(came) - whole * others


@pytest.mark.parametrize("views", [None, 3])
def test_views_are_of_each_image(views):
    images = torch.randint(0, 256, (20, 3, 8, 8), dtype=torch.uint8)
    batches = Batches(images, torch.zeros(8, dtype=torch.int64), 4, "crop-flip", 0, views, unlabelled=6)
    for batch in batches.epoch(0):
        again = batches.shown(images[batch.rows], batch.rows, batch.views)
        assert torch.equal(batch.images, again)


def test_evaluation_leaves_them_out():
    batches = dealt(7, 20, 3, 5)
    assert torch.cat([batch.rows for batch in batches.ordered(4)]).tolist() == list(range(7))


def test_others_need_to_be_asked_for_and_to_be_there():
    with pytest.raises(UserError, match="as many labels, not 9 and 4"):
        Batches(numbered(9), torch.zeros(4, dtype=torch.int64), 2)
    with pytest.raises(UserError, match="as many labels, not 4 and 4"):
        Batches(numbered(4), torch.zeros(4, dtype=torch.int64), 2, unlabelled=2)


class Fetched(Resident):
    """A source that is not on the device already."""

    def __init__(self, images):
        super().__init__(images)
        self.streams = 0

    def stream(self, parts):
        self.streams += 1
        return super().stream(parts)


class Elsewhere:
    def __init__(self, images):
        self.inner = Fetched(images)
        self.device, self.shape = self.inner.device, self.inner.shape

    def take(self, rows):
        return self.inner.take(rows)

    def stream(self, parts):
        return self.inner.stream(parts)


def test_what_is_on_the_device_stays_one_tensor():
    joined = join(Resident(numbered(3)), Resident(numbered(2)))
    assert isinstance(joined, Resident)
    assert joined.images[:, 0, 0, 0].tolist() == [0, 1, 2, 0, 1]


def test_two_sources_as_one():
    images = numbered(9)
    first, second = Elsewhere(images[:4]), Elsewhere(images[4:])
    joined = join(first, second)
    assert isinstance(joined, Joined)
    assert joined.shape == (9, 1, 8, 8)
    rows = torch.tensor([8, 0, 4, 3, 3])
    assert torch.equal(joined.take(rows), images[rows])
    ordered, mixed = torch.tensor([[0, 3, 8, 4], [1, 1, 5, 5]]), torch.tensor([[0, 3, 8, 4], [1, 7, 5, 5]])
    for parts in (ordered, mixed, torch.tensor([[0, 1]]), torch.tensor([[5, 6]])):
        assert torch.equal(torch.stack(list(joined.stream(parts))), images[parts])
    assert (first.inner.streams, second.inner.streams) == (3, 3)  # not for those that are mixed
    batches = Batches(joined, torch.zeros(4, dtype=torch.int64), 2, unlabelled=3)
    for batch in batches.epoch(0):
        assert torch.equal((batch.images[:, 0, 0, 0] * 255).round().long(), batch.rows)


def test_images_that_are_in_both_are_counted():
    images = torch.randint(0, 256, (600, 3, 8, 8), dtype=torch.uint8)
    nearly = images[:1].clone()
    nearly[0, 0, 0, 0] ^= 1
    others = Resident(torch.cat([images[5:7], images[5:6], nearly]))
    assert common_images(Resident(images), others) == 3
    assert common_images(others, Resident(images)) == 2


# --- opening ------------------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("a", "x/b", "x/y/c", ".hidden/d")):
        save_image(Path(f"more/{name}.png"), seed=seed)
    for name in ("cat", "dog"):
        for number in range(10):
            save_image(Path(f"mine/{name}/{number}.png"), seed=number)


def test_a_folder_is_taken_whole(here):
    found = open_unlabelled("more", "mine")
    assert [str(path) for path in found.pixels.paths] == ["more/a.png", "more/x/b.png", "more/x/y/c.png"]
    assert len(found) == 3
    assert not found.labels.any()


def test_of_the_data_itself_only_training_images_are_taken(here):
    for spec in ("mine", "./mine", Path("mine"), "folder:mine"):
        found = open_unlabelled(spec, "mine", val_fraction=0.2, split_seed=3)
        train = open_data("mine", val_fraction=0.2, split_seed=3).train
        assert {path.resolve() for path in found.pixels.paths} == {p.resolve() for p in train.pixels.paths}
    only = open_unlabelled("mine", "mine", classes="dog", val_fraction=0.0)
    assert {path.parent.name for path in only.pixels.paths} == {"dog"}
    assert len(only) == 8


def test_digits():
    found = open_unlabelled("digits", "digits", classes="0:4", val_fraction=0.0)
    assert len(found) == len(open_data("digits", classes="0:4", val_fraction=0.0).train)


def test_what_could_hold_test_images_is_refused(here):
    save_image(Path("mine/more/e.png"))
    with pytest.raises(UserError, match="mine/more and mine lie in one another"):
        open_unlabelled("mine/more", "mine")
    with pytest.raises(UserError, match="lie in one another"):
        open_unlabelled(".", "mine")
    for part in ("train", "test"):
        for name in ("a", "b"):
            for number in range(4):
                save_image(Path(f"parts/{part}/{name}/{number}.png"), seed=number)
    with pytest.raises(UserError, match="lie in one another"):
        open_unlabelled("parts/test", "parts", classes="0:2")


def test_a_published_set_in_the_data_is_refused_too(here, monkeypatch):
    """It would be split in another way than the folder of its images."""
    monkeypatch.setitem(
        layouts._KNOWN, "cub", ("CUB", lambda path: path if path.name == "published" else None)
    )
    for name in ("a", "b"):
        for number in range(5):
            save_image(Path(f"published/images/{name}/{number}.png"), seed=number)
    with pytest.raises(UserError, match="lie in one another"):
        open_unlabelled("published", "published/images")
    with pytest.raises(UserError, match="lie in one another"):
        open_unlabelled("cub:published", "folder:published")


def test_another_data_set_has_an_order_of_its_own(here):
    Path("order.txt").write_text("dog\ncat\n")
    assert len(open_unlabelled("digits", "mine", class_order="order.txt", classes="0:2"))
    own = open_unlabelled("mine", "mine", class_order="order.txt", classes="0:1")
    assert {path.parent.name for path in own.pixels.paths} == {"dog"}


def test_nothing_there(here):
    Path("empty/deeper").mkdir(parents=True)
    with pytest.raises(UserError, match="empty holds no images"):
        open_unlabelled("empty", "mine")
    with pytest.raises(UserError, match="no such folder: nowhere"):
        open_unlabelled("nowhere", "mine")
