import pytest
import torch
from tiny import tiny_batches, tiny_network

from refilled.data import Batches
from refilled.methods.at import Attentions
from refilled.training import Teachers


def frozen(seed: int = 5):
    return tiny_network(seed).eval().requires_grad_(False)


def asked(answers, batches: Batches, network) -> None:
    """Answers are the network's own for what the batch shows."""
    for batch in batches.epoch(1):
        assert torch.allclose(answers(batch), network.embed(batch.images), atol=1e-5)


@pytest.mark.parametrize("augment", ["none", "crop", "crop-flip", "resized-crop-flip"])
@pytest.mark.parametrize("epochs", [1, 1000])
@pytest.mark.parametrize("views", [None, 3])
def test_answers_are_the_teachers_own(augment, epochs, views):
    network = frozen()
    batches = tiny_batches(augment=augment)
    batches = Batches(batches.source, batches.labels, 8, augment, seed=2, views=views)
    asked(Teachers().answers(network, batches, epochs), batches, network)


def calls_of(monkeypatch) -> list[int]:
    from refilled.models.folded import Folded

    calls, answer = [], Folded.answer
    monkeypatch.setattr(
        Folded, "answer", lambda self, images: calls.append(len(images)) or answer(self, images)
    )
    return calls


def test_it_is_looked_up_where_that_is_less_work(monkeypatch):
    calls, network = calls_of(monkeypatch), frozen()
    batches = tiny_batches(augment="crop")  # 9 views of 8 pixels
    Teachers().answers(network, batches, epochs=8)
    assert sum(calls) == 0
    seen = []
    answers = Teachers().answers(network, batches, 9, lambda done, total: seen.append((done, total)))
    assert sum(calls) == 9 * 24
    assert seen[-1] == (24, 24)
    list(map(answers, batches.epoch(0)))
    assert sum(calls) == 9 * 24
    Teachers(trainings=3).answers(network, batches, epochs=3)
    assert sum(calls) == 2 * 9 * 24


def test_trainings_that_see_the_same_pictures_share_a_table(monkeypatch):
    calls, network = calls_of(monkeypatch), frozen()
    first = tiny_batches(augment="crop", seed=0)
    second = Batches(first.source, first.labels, 8, "crop", seed=1)
    teachers = Teachers(trainings=2)
    for batches in (first, second):
        asked(teachers.answers(network, batches, 9), batches, network)
    assert sum(calls) == 9 * 24
    other_pictures = tiny_batches(images=18, augment="crop")
    asked(teachers.answers(network, other_pictures, 9), other_pictures, network)
    assert sum(calls) == 9 * 24 + 9 * 18
    few = [Batches(first.source, first.labels, 8, "crop", seed=seed, views=2) for seed in (0, 1)]
    for batches in few:  # the views are drawn by the seed: not the same pictures
        asked(teachers.answers(network, batches, 9), batches, network)
    another = frozen(6)
    asked(teachers.answers(another, first, 9), first, another)


def test_fixed_views_of_one_seed_are_asked_about_once(monkeypatch):
    """Each training draws them for itself; of seeds that are done no table is kept."""
    calls, network, first = calls_of(monkeypatch), frozen(), tiny_batches()
    teachers = Teachers(trainings=2)

    def asked_by(seed):
        before = sum(calls)
        batches = Batches(first.source, first.labels, 8, "crop-flip", seed=seed, views=3)
        asked(teachers.answers(network, batches, 9), batches, network)
        return sum(calls) - before

    assert [asked_by(seed) for seed in (0, 1, 0, 1, 1, 2, 1, 2, 0)] == [72, 72, 0, 0, 0, 72, 0, 0, 72]
    assert len(teachers._tables) == 2
    every = Batches(first.source, first.labels, 8, "crop-flip", seed=0)
    assert not every.shows_the_same(Batches(first.source, first.labels, 8, "crop-flip", seed=0, views=3))


def test_of_images_of_seeds_that_are_done_no_table_is_kept(monkeypatch):
    """Nor the images themselves; with few images of a class each seed has its own."""
    calls, network = calls_of(monkeypatch), frozen()
    teachers, wanted = Teachers(trainings=2, same_images=False), Attentions(((2, 2),))
    seeds = [tiny_batches(seed=seed, augment="crop") for seed in range(4)]

    def views_asked_about(seed, **kind):
        before = sum(calls)
        teachers.answers(network, seeds[seed], 9, **kind)
        return sum(calls) - before

    for seed in (0, 1, 0, 1):  # two at once, in two stages, each with two kinds of answers
        is_first = not any(about is seeds[seed] for _, about, _ in teachers._tables)
        assert views_asked_about(seed) == views_asked_about(seed, wanted=wanted) == (216 if is_first else 0)
    assert len(teachers._tables) == 4
    assert views_asked_about(2) == 216
    assert views_asked_about(1) == views_asked_about(2) == 0
    assert {id(about) for _, about, _ in teachers._tables} == {id(seeds[1]), id(seeds[2])}
    calls.clear()
    Teachers(trainings=2, same_images=False).answers(network, seeds[3], 5)
    assert not calls  # it would pay for itself if both saw these images
    Teachers(trainings=2).answers(network, seeds[3], 5)
    assert sum(calls) == 216


def test_views_that_are_drawn_for_each_seed_pay_for_themselves_alone(monkeypatch):
    calls, network, first = calls_of(monkeypatch), frozen(), tiny_batches()
    batches = Batches(first.source, first.labels, 8, "crop-flip", seed=0, views=3)
    Teachers(trainings=2).answers(network, batches, 2)
    Teachers(trainings=2).answers(network, tiny_batches(augment="crop"), 5, shared=False)
    assert not calls


def test_of_a_network_that_one_training_asks_nothing_is_remembered(monkeypatch):
    calls, batches = calls_of(monkeypatch), tiny_batches(augment="crop")
    teachers = Teachers(trainings=3)
    for seed in (5, 6):
        network = frozen(seed)
        assert not calls
        asked(teachers.answers(network, batches, 3, shared=False), batches, network)
        calls.clear()
        asked(teachers.answers(network, batches, 9, shared=False), batches, network)
        assert sum(calls) == 9 * 24
        calls.clear()
    assert teachers._tables == teachers._folded == []


def test_a_table_that_does_not_fit_is_not_made(monkeypatch):
    calls, network = calls_of(monkeypatch), frozen()
    batches = tiny_batches(augment="crop")
    monkeypatch.setattr("refilled.training.answers.available_bytes", lambda: 24 * 9 * network.dim * 4)
    asked(Teachers().answers(network, batches, 1000), batches, network)
    assert sum(calls) == 24


@pytest.mark.parametrize("epochs", [1, 1000])
def test_images_without_labels_are_asked_about_too(epochs, monkeypatch):
    calls, network, own = calls_of(monkeypatch), frozen(), tiny_batches()
    images = torch.cat([own.source.images, own.source.images.flip(3)])
    batches = Batches(images, own.labels, 8, "crop-flip", seed=2, unlabelled=3)
    answers = Teachers().answers(network, batches, epochs)
    assert sum(calls) == (0 if epochs == 1 else batches.views * len(images))
    asked(answers, batches, network)


def test_few_of_many_images_without_labels_are_not_worth_a_table(monkeypatch):
    """All views of all images are more than will ever be seen."""
    calls, network, own = calls_of(monkeypatch), frozen(), tiny_batches()
    batches = Batches(own.source.images.repeat(50, 1, 1, 1), own.labels, 8, "none", unlabelled=1)
    Teachers().answers(network, batches, 2)
    assert not calls
    Teachers().answers(network, Batches(own.source.images, own.labels, 8, "none"), 2)
    assert calls


@pytest.mark.parametrize("epochs", [1, 1000])
def test_attentions_are_looked_up_beside_embeddings(epochs, monkeypatch):
    """One teacher, two kinds of answers: neither stands for the other."""
    calls, network, batches = calls_of(monkeypatch), frozen(), tiny_batches(augment="crop")
    teachers, wanted = Teachers(), Attentions(((2, 2), (1, 2)))
    asked(teachers.answers(network, batches, epochs), batches, network)
    alone = sum(calls)
    answers = teachers.answers(network, batches, epochs, wanted=wanted)
    for batch in batches.epoch(1):
        own = wanted(network, network.prepare(batch.images))
        assert own.shape[1] == wanted.width(network) == 6
        assert torch.allclose(answers(batch), own, atol=1e-5)
    assert sum(calls) == 2 * alone
    teachers.answers(network, batches, epochs, wanted=Attentions(((2, 2), (1, 2))))
    assert sum(calls) == 2 * alone


def test_a_table_is_measured_by_its_answers(monkeypatch):
    calls, network, batches = calls_of(monkeypatch), frozen(), tiny_batches(augment="crop")
    monkeypatch.setattr("refilled.training.answers.available_bytes", lambda: 2 * 24 * 9 * 4 * 4)
    Teachers().answers(network, batches, 1000)
    assert not calls
    Teachers().answers(network, batches, 1000, wanted=Attentions(((2, 2),)))
    assert calls


def test_what_is_compiled_is_asked_about_images_of_one_size(monkeypatch):
    """Other sizes would make it compile again."""
    calls, network, batches = calls_of(monkeypatch), frozen(), tiny_batches(augment="crop")
    monkeypatch.setattr("refilled.training.answers._IMAGES_AT_ONCE", {"cpu": 10})
    monkeypatch.setattr("refilled.training.answers._COMPILING_PAYS_FROM", 24 * 9)
    compiled_for = []
    monkeypatch.setattr(
        "refilled.models.folded.Folded.compile_for", lambda self, images: compiled_for.append(images.shape)
    )
    asked(Teachers(compile=True).answers(network, batches, 9), batches, network)
    assert calls == [10] * 3 * 9  # the last ten of 24 images begin before the second ten end
    assert compiled_for == [(10, *batches.source.shape[1:])]
    Teachers(compile=True).answers(network, tiny_batches(images=20, augment="crop"), 9)
    Teachers().answers(network, batches, 9)
    assert len(compiled_for) == 1  # too few of them, or not wanted
