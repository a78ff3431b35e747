"""Trainings that make their steps together; on a CPU without a graph, each student by itself."""

from functools import partial

import pytest
import torch
from tiny import cross_entropy, same_weights, tiny_batches, tiny_network
from torch.nn import functional as F

from refilled.data import Batches
from refilled.methods import Stage, get_method
from refilled.training import LossIsNotFinite, TrainSettings, take_turns, teams, training
from refilled.training.compiled import TOGETHER
from refilled.training.teams import Teams
from told import Told


@pytest.fixture(autouse=True)
def quickly_compiled(monkeypatch):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    torch.compiler.reset()


@pytest.fixture
def made(monkeypatch):
    """How many members each team had, in the order in which they were made."""
    sizes, usual = [], teams.Team

    def make(members, forward):
        sizes.append(len(members))
        return usual(members, forward)

    monkeypatch.setattr(teams, "Team", make)
    return sizes


def any_teams(**settings):
    """For all networks, with nothing compiled."""
    return Teams(takes=lambda network, dtype: True, forward=lambda asked: TOGETHER[asked], **settings)


def a_training(method, seed, company, epochs=4, spec="wrn-10-1", told=None, batches=None, side=8, **settings):
    """Of a student that is returned, too."""
    teacher = tiny_network(7, "wrn-10-2").eval().requires_grad_(False)
    student, chosen = tiny_network(seed, spec, side), get_method(method)
    batches = batches or tiny_batches(seed=seed)
    stages = chosen.stages(teacher, student, batches, chosen.settings(), epochs)
    how = TrainSettings(epochs=epochs, lr=0.05, compile=company is not None, seed=seed, **settings)
    return student, training(stages, student, batches, how, teams=company, reporter=told)


def alone(*asked, **settings):
    """The student of a training without others."""
    student, steps = a_training(*asked, None, **settings)
    take_turns([steps], 1)
    return student


@pytest.mark.parametrize(
    "methods",
    [
        ["student"] * 3,
        ["kd", "dkd", "student"],
        ["refilled", "kd"],
        ["crd", "refilled-few"],
        ["at", "at", "kd"],
    ],
    ids="-".join,
)
def test_each_ends_as_it_would_alone(methods, made):
    company = any_teams()
    both = [a_training(method, seed, company) for seed, method in enumerate(methods)]
    take_turns([steps for _, steps in both], len(both))
    for seed, (method, (student, _)) in enumerate(zip(methods, both)):
        assert same_weights(student, alone(method, seed))
    assert company.problem is None
    assert max(made) == (2 if "at" in methods else len(methods))


def test_one_team_for_all_epochs(made):
    company = any_teams()
    take_turns([a_training("student", seed, company)[1] for seed in range(3)], 3)
    assert made == [3]


def test_many_are_divided(made):
    """Five, of whom three may go together."""
    company = any_teams(largest=3)
    students, steps = zip(*(a_training("student", seed, company) for seed in range(5)))
    take_turns(steps, 5)
    assert made == [2, 3]
    assert all(same_weights(student, alone("student", seed)) for seed, student in enumerate(students))


def test_who_comes_later_joins_at_the_next_epoch(made):
    company = any_teams()
    students, steps = zip(*(a_training("student", seed, company, epochs=8) for seed in range(3)))

    def late():
        for _ in range(10):
            yield
        yield from steps[2]

    take_turns([steps[0], steps[1], late()], 3)
    assert made == [2, 3, 1]  # the last epochs of the third are its own
    assert all(
        same_weights(student, alone("student", seed, epochs=8)) for seed, student in enumerate(students)
    )


def test_a_stage_that_ends_makes_a_new_team(made):
    company = any_teams()
    (first, one), (second, two) = a_training("refilled", 0, company), a_training("kd", 1, company)
    take_turns([one, two], 2)
    assert made == [2, 2]
    assert same_weights(first, alone("refilled", 0))
    assert same_weights(second, alone("kd", 1))


def test_one_that_breaks_down_leaves_the_others_as_they_were(made):
    company = any_teams()
    batches, network = tiny_batches(), tiny_network(5)

    def loss(batch):
        logits = network(batch.images)[1]
        spoilt = torch.where(batch.progress > 0.4, torch.nan, 0.0)
        return {"cross_entropy": F.cross_entropy(logits, batch.labels) + spoilt}

    stage = Stage("classifier", 4, list(network.parameters()), loss)
    bad = training([stage], network, batches, TrainSettings(epochs=4, compile=True), teams=company)

    def caught():
        with pytest.raises(LossIsNotFinite):
            yield from bad

    good, steps = a_training("student", 1, company)
    take_turns([caught(), steps], 2)
    assert made == [2, 1]
    assert same_weights(good, alone("student", 1))


@pytest.mark.parametrize("others", [1, 3])
def test_one_that_is_closed_in_the_midst_of_an_epoch_holds_nobody_up(others, made):
    """Nor does it let another team go before its time."""
    company = any_teams(largest=2)
    given_up = a_training("student", 0, company)[1]

    def closed():
        for _ in range(12):
            next(given_up)
            yield
        given_up.close()

    students, steps = zip(*(a_training("student", 1 + seed, company) for seed in range(others)))
    take_turns([closed(), *steps], 1 + others)
    assert made == ([2, 1] if others == 1 else [2, 2, 1])
    assert all(same_weights(one, alone("student", 1 + seed)) for seed, one in enumerate(students))


@pytest.mark.parametrize(
    "other",
    [
        {"spec": "wrn-16-1"},
        {"batches": tiny_batches(batch_size=6)},
        {"batches": tiny_batches(images=40)},
        {"batches": tiny_batches(side=12)},
        {"side": 12},
        {"precision": "bfloat16"},
        {"method": "at"},
    ],
    ids=["network", "batch size", "steps", "images' side", "student's side", "precision", "what is asked"],
)
def test_only_those_of_one_kind_go_together(other, made):
    company = any_teams()
    given = {"method": "student"} | other
    method = given.pop("method")
    students = [a_training("student", 0, company), a_training(method, 1, company, **given)]
    take_turns([steps for _, steps in students], 2)
    assert made == [1, 1]
    assert same_weights(students[0][0], alone("student", 0))
    assert same_weights(students[1][0], alone(method, 1, **given))


@pytest.mark.parametrize("method", ["sskd", "jacobian"])
def test_who_asks_the_student_more_than_once_goes_alone(method, made):
    company = any_teams()
    student, steps = a_training(method, 0, company)
    take_turns([steps], 1)
    assert made == []
    assert same_weights(student, alone(method, 0))


def test_who_draws_random_numbers_goes_alone(made):
    company, student = any_teams(), tiny_network()

    def loss(batch):
        return {"cross_entropy": F.cross_entropy(F.dropout(student(batch.images)[1]), batch.labels)}

    stage = Stage("classifier", 2, list(student.parameters()), loss)
    take_turns(
        [training([stage], student, tiny_batches(), TrainSettings(epochs=2, compile=True), teams=company)], 1
    )
    assert made == []


def test_a_student_that_is_not_taken_goes_alone(made):
    company = Teams(takes=lambda network, dtype: False, forward=lambda asked: TOGETHER[asked])
    take_turns([a_training("student", 0, company)[1]], 1)
    assert made == []


def test_where_no_team_can_be_made_each_goes_alone_and_says_so():
    def broken(networks, images):
        raise RuntimeError("no such kernel\nand more")

    company, told = Teams(takes=lambda network, dtype: True, forward=lambda asked: broken), Told()
    students = [a_training("student", seed, company, told=told) for seed in range(2)]
    take_turns([steps for _, steps in students], 2)
    assert [line for line in told.lines if "together" in line] == [
        "stage classifier: steps cannot be made together with others (RuntimeError: no such kernel); this "
        "training goes on by itself, which is slower"
    ] * 2
    for seed, (student, _) in enumerate(students):
        assert same_weights(student, alone("student", seed))
    later = a_training("student", 2, company)
    take_turns([later[1]], 1)
    assert same_weights(later[0], alone("student", 2))


def test_without_compiling_nobody_is_waited_for(made):
    student = tiny_network()
    steps = training(
        [cross_entropy(student)], student, tiny_batches(), TrainSettings(epochs=3), teams=any_teams()
    )
    take_turns([steps], 1)
    assert made == []


def test_images_that_are_not_on_the_device_go_alone(made):
    class Elsewhere:
        """A source that is no tensor."""

        def __init__(self, images):
            self._images = tiny_batches().source
            self.shape, self.device = self._images.shape, self._images.device

        def __getattr__(self, name):
            return getattr(self._images, name)

    own = tiny_batches()
    batches = Batches(Elsewhere(own.source), own.labels, own.batch_size, own.augment, own.seed)
    student, steps = a_training("student", 0, any_teams(), batches=batches)
    take_turns([steps], 1)
    assert made == []
    assert same_weights(student, alone("student", 0))


def test_one_whose_progress_cannot_be_shown_holds_nobody_up():
    class Broken(Told):
        def start(self, *what):
            raise OSError("no terminal any more")

    company = any_teams()
    bad = a_training("student", 0, company, told=Broken())[1]

    def caught():
        with pytest.raises(OSError, match="no terminal"):
            yield from bad

    good, steps = a_training("student", 1, company)
    take_turns([caught(), steps], 2)
    assert same_weights(good, alone("student", 1))


def test_a_step_is_tried_as_it_will_be_made():
    """In training mode, though a validation before it left the student in the other one."""
    student, modes = tiny_network().eval(), []

    def loss(batch):
        modes.append(student.training)
        return {"cross_entropy": F.cross_entropy(student(batch.images)[1], batch.labels)}

    def validate(stage):
        student.eval()
        return {"accuracy": 0.5}

    stages = [Stage(name, 2, list(student.parameters()), loss) for name in ("first", "second")]
    how = TrainSettings(epochs=4, compile=True, validate_every=1)
    steps = training(stages, student, tiny_batches(), how, teams=any_teams(), validate=validate)
    take_turns([steps], 1)
    assert all(modes)
