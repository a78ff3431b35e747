import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from refilled.data import Batches, channel_statistics
from refilled.errors import UserError


def numbered(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images whose pixels are their row number."""
    images = torch.arange(count, dtype=torch.uint8)[:, None, None, None].expand(-1, 1, 8, 8).contiguous()
    return images, torch.arange(count) % 3


@settings(deadline=None)
@given(st.integers(1, 60), st.integers(1, 70), st.integers(0, 5))
def test_every_epoch_has_full_batches_and_every_image(count, batch_size, number):
    images, labels = numbered(count)
    batches = Batches(images, labels, batch_size, seed=1)
    epoch = list(batches.epoch(number))
    assert len(epoch) == len(batches) == -(-count // min(batch_size, count))
    assert {len(batch) for batch in epoch} == {min(batch_size, count)}
    rows = torch.cat([batch.rows for batch in epoch])
    assert sorted(rows[:count].tolist()) == list(range(count))
    assert torch.equal(rows[count:], rows[: len(rows) - count])  # filled up from the start
    for batch in epoch:
        assert torch.equal(batch.labels, labels[batch.rows])
        assert torch.equal((batch.images * 255).round().to(torch.uint8), images[batch.rows])
        assert (batch.images.dtype, batch.labels.dtype) == (torch.float32, torch.int64)


def epoch_of(number: int, salt: int = 0, seed: int = 0) -> list[torch.Tensor]:
    images = torch.randint(
        0, 256, (30, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(5)
    )
    batches = Batches(images, torch.zeros(30, dtype=torch.int64), 8, augment="crop-flip", seed=seed)
    return [tensor for batch in batches.epoch(number, salt) for tensor in (batch.rows, batch.images)]


def test_an_epoch_is_a_function_of_seed_salt_and_number():
    first = epoch_of(3, salt=1, seed=2)
    torch.manual_seed(77)
    assert all(torch.equal(a, b) for a, b in zip(first, epoch_of(3, salt=1, seed=2)))
    for other in (epoch_of(4, salt=1, seed=2), epoch_of(3, salt=2, seed=2), epoch_of(3, salt=1, seed=3)):
        assert not torch.equal(first[0], other[0])


@settings(deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.integers(2, 5), st.integers(0, 3))
def test_a_grouped_epoch_has_every_image_once_and_groups_of_one_class(labels, group, number):
    labels = torch.tensor(labels)
    batches = Batches(numbered(len(labels))[0], labels, len(labels), seed=number)
    rows = batches.plan(number, group=group).rows[0]
    assert sorted(rows.tolist()) == list(range(len(labels)))
    runs = 1 + int((labels[rows].diff() != 0).sum())
    assert runs <= sum(-(-int(count) // group) for count in torch.bincount(labels))


def test_a_group_of_one_changes_nothing_and_groups_change_from_epoch_to_epoch():
    images, labels = numbered(60)
    batches = Batches(images, labels, 12, augment="crop", seed=3)
    plain, other = batches.plan(2, salt=1), batches.plan(2, salt=1, group=1)
    assert torch.equal(plain.rows, other.rows)
    assert torch.equal(plain.views, other.views)
    first, second = (batches.plan(number, group=4).rows for number in (0, 1))
    assert (labels[first.view(-1, 4)] == labels[first.view(-1, 4)[:, :1]]).all()
    members = [{frozenset(four.tolist()) for four in rows.view(-1, 4)} for rows in (first, second)]
    assert not members[0] & members[1]  # who stands beside whom is drawn anew
    assert torch.equal(first, batches.plan(0, group=4).rows)
    order = labels[first.flatten()[::4]].tolist()
    assert order != sorted(order)


def test_a_resumed_run_sees_the_same_batches():
    images, labels = numbered(20)
    through = Batches(images, labels, 8, augment="crop", seed=4)
    list(through.epoch(0))
    resumed = Batches(images, labels, 8, augment="crop", seed=4)
    for ours, theirs in zip(through.epoch(1), resumed.epoch(1)):
        assert torch.equal(ours.images, theirs.images)


def test_ordered_batches_are_all_images_once():
    images, labels = numbered(10)
    batches = list(Batches(images, labels, 4, augment="crop-flip").ordered())
    assert [len(batch) for batch in batches] == [4, 4, 2]
    assert torch.cat([batch.rows for batch in batches]).tolist() == list(range(10))
    assert torch.equal(torch.cat([batch.images for batch in batches]), images.float() / 255)
    assert torch.equal(torch.cat([batch.labels for batch in batches]), labels)
    assert [len(batch) for batch in Batches(images, labels, 4).ordered(100)] == [10]


@pytest.mark.parametrize(("images", "labels", "size"), [(0, 0, 1), (4, 3, 2), (4, 4, 0)])
def test_what_makes_no_batches_is_refused(images, labels, size):
    with pytest.raises(UserError):
        Batches(numbered(images)[0], numbered(labels)[1], size)


def test_labels_elsewhere_are_refused():
    images, labels = numbered(4)
    with pytest.raises(UserError, match="images are on meta and labels on cpu"):
        Batches(images.to("meta"), labels, 2)


def test_channel_statistics_are_those_of_the_whole_set():
    images = torch.randint(0, 256, (700, 3, 5, 4), dtype=torch.uint8)
    images[:, 1] //= 3
    mean, std = channel_statistics(images)
    whole = images.double().transpose(0, 1).flatten(1) / 255
    assert mean == pytest.approx(whole.mean(1).tolist())
    assert std == pytest.approx(whole.std(1, correction=0).tolist())


def test_statistics_can_be_divided_by_and_need_bytes():
    mean, std = channel_statistics(torch.full((3, 1, 2, 2), 51, dtype=torch.uint8))
    assert mean == pytest.approx((0.2,))
    assert std == pytest.approx((1 / 255,))
    for wrong in (torch.zeros(2, 3, 4, 4), torch.zeros(0, 3, 4, 4, dtype=torch.uint8)):
        with pytest.raises(UserError, match="statistics need uint8"):
            channel_statistics(wrong)
