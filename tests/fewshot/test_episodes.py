"""Tasks are the same for everyone, and impossible ones are refused."""

import pytest
import torch

from refilled.errors import UserError
from refilled.fewshot import Episodes
from refilled.labels import LabelSpace

LABELS = torch.arange(8).repeat(50)


@pytest.mark.parametrize("shots", [1, 5, 10, 30])
def test_shape_and_classes(shots):
    tasks = Episodes(LABELS, shots).draw(3, 20)
    assert tasks.rows.shape == (20, 5, shots + 15)
    assert tasks.support.shape == (20, 5 * shots)
    assert tasks.queries.shape == (20, 75)
    for rows in tasks.rows:
        of = LABELS[rows]
        assert (of == of[:, :1]).all(), "one class in each row"
        assert of[:, 0].unique().numel() == 5
        assert rows.unique().numel() == rows.numel(), "no image twice"
    assert tasks.support_labels.tolist() == [way for way in range(5) for _ in range(shots)]
    assert (LABELS[tasks.support].view(20, 5, shots) == LABELS[tasks.rows[:, :, :1]]).all()


def test_a_task_depends_on_seed_and_number_alone():
    episodes = Episodes(LABELS, 5, seed=3)
    torch.manual_seed(1)
    whole = episodes.draw(0, 10).rows
    torch.manual_seed(2)
    parts = torch.cat([group.rows for group in Episodes(LABELS, 5, seed=3).groups(10, 4)])
    assert torch.equal(whole, parts)
    assert torch.equal(whole[7], episodes.draw(7, 1).rows[0])
    assert not torch.equal(whole, Episodes(LABELS, 5, seed=4).draw(0, 10).rows)
    assert len({tuple(rows.flatten().tolist()) for rows in whole}) == 10


def test_queries_are_the_same_for_any_shots():
    few, more = Episodes(LABELS, 1).draw(0, 6), Episodes(LABELS, 30).draw(0, 6)
    assert torch.equal(few.queries, more.queries)
    assert torch.equal(few.rows[:, :, :1], more.rows[:, :, :1])


def test_every_class_and_image_has_its_turn():
    drawn = Episodes(LABELS, 5, ways=2, queries=5).draw(0, 400)
    counts = torch.bincount(LABELS[drawn.rows[:, :, 0]].flatten(), minlength=8)
    assert counts.min() > 60
    assert counts.max() < 140
    assert torch.bincount(drawn.rows.flatten(), minlength=len(LABELS)).min() > 0


def test_too_few_images_are_refused():
    labels = torch.cat([LABELS, torch.full((19,), 8)])
    names = LabelSpace([*"abcdefgh", "rare"])
    with pytest.raises(UserError, match="'rare' has 19 images; 5 shots and 15 queries need 20"):
        Episodes(labels, 5, classes=names)
    Episodes(labels, 4, classes=names)


def test_a_class_without_images_is_refused():
    with pytest.raises(UserError, match="'none' has 0 images"):
        Episodes(LABELS, 1, classes=LabelSpace([*"abcdefgh", "none"]))


def test_too_few_classes_are_refused():
    with pytest.raises(UserError, match="8 classes, too few for tasks of 9 ways"):
        Episodes(LABELS, 1, ways=9)


@pytest.mark.parametrize("name", ["shots", "ways", "queries"])
def test_nonsense_is_refused(name):
    with pytest.raises(UserError, match=f"{name} must be at least 1"):
        Episodes(LABELS, **({"shots": 1} | {name: 0}))
