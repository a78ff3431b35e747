"""Every method by its name, made for one world: what is known of the seen classes, and images of others."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from refilled.data import Progress
from refilled.errors import UserError, unknown
from refilled.fewshot import classifiers, linear
from refilled.fewshot import settings as kinds
from refilled.fewshot.batched import one_student
from refilled.fewshot.classifiers import OnEmbeddings, TaskClassifier
from refilled.fewshot.episodes import Episodes
from refilled.fewshot.feat import feat, train_feat
from refilled.fewshot.fine_tune import FineTuneTasks
from refilled.fewshot.forward import Way
from refilled.fewshot.maml import MamlTasks, MamlTraining, train_maml
from refilled.fewshot.neg_cosine import cosine_softmax, train_neg_cosine
from refilled.fewshot.protonet import protonet_tasks, train_protonet
from refilled.fewshot.refilled import RefilledTasks, TeacherView, ask_teacher
from refilled.fewshot.run import TaskMethod
from refilled.fewshot.training import FineTuning, TaskTraining
from refilled.fewshot.views import Pool, Views, embed_pool
from refilled.models import Network


@dataclass(frozen=True)
class World:
    """What methods may use; the weights of its networks are never changed."""

    pool: Pool
    """Images of the classes that tasks are made of."""
    network: Network
    """Trained on the seen classes: the baselines' embedding; students and meta-training start from it."""
    teacher: Network
    """Whom ReFilled asks; may be the network itself."""
    seen: Pool | Callable[[], Pool] | None = None
    """Images of the seen classes, or how to get them, for SimpleShot's mean and for methods that train on
    them."""
    augment: str = "crop-flip"
    view_count: int = 10
    """Views of an image beside itself."""
    seed: int = 0
    """Of views and of what is trained on the seen classes."""
    way: Way = "auto"
    """Of computing many students at once."""
    progress: Progress | None = None
    """Told of training on the seen classes."""
    trained: dict[Any, Network] = field(default_factory=dict, repr=False, compare=False)
    """Networks that were trained on the seen classes for tasks of any shape: once is enough."""

    @cached_property
    def views(self) -> Views:
        """Fixed views of the pool."""
        return Views(self.pool, self.augment, self.view_count, self.seed)

    @cached_property
    def answers(self) -> TeacherView:
        """What the teacher says of them."""
        return ask_teacher(self.teacher, self.views)

    @cached_property
    def embeddings(self) -> Tensor:
        """[N, dim] of the pool's images by the network."""
        return embed_pool(self.network, self.pool)

    @cached_property
    def seen_mean(self) -> Tensor:
        """[dim], the network's mean embedding of the seen classes, for SimpleShot."""
        return embed_pool(self.network, self.seen_for("simpleshot")).mean(dim=0)

    def seen_for(self, name: str) -> Pool:
        """Images of the seen classes, or an error that says who needs them."""
        if self.seen is None:
            raise UserError(f"{name} needs images of the seen classes")
        return self._seen

    @cached_property
    def _seen(self) -> Pool:
        assert self.seen is not None, "asked only where there are any"
        return self.seen if isinstance(self.seen, Pool) else self.seen()


@dataclass(frozen=True)
class FewShotMethod:
    """What a name stands for."""

    make: Callable[[World, Episodes, Any], TaskMethod]
    """From a world, the shape of tasks and settings to a method that is ready for tasks."""
    settings: type = kinds.NoSettings
    """Dataclass of its settings."""
    asks_teacher: bool = False
    """Whether the world's teacher plays a part, beside the network."""
    learns_to_learn: bool = False
    """Whether it first trains on tasks of the seen classes, of the same shape."""


def _on_embeddings(
    classifier: Callable[[World, Any], TaskClassifier], settings: type = kinds.NoSettings
) -> FewShotMethod:
    return FewShotMethod(
        lambda world, _, own: OnEmbeddings(world.embeddings, classifier(world, own)), settings
    )


def _refilled(scratch: bool) -> FewShotMethod:
    def make(
        world: World, _: Episodes, own: kinds.RefilledTaskSettings | kinds.RefilledScratchSettings
    ) -> TaskMethod:
        return RefilledTasks(
            world.answers, world.network, world.views, own, own, scratch=scratch, way=world.way
        )

    settings = kinds.RefilledScratchSettings if scratch else kinds.RefilledTaskSettings
    return FewShotMethod(make, settings, asks_teacher=True)


def _fine_tune(scratch: bool) -> FewShotMethod:
    def make(world: World, _: Episodes, own: TaskTraining) -> TaskMethod:
        return FineTuneTasks(world.network, world.views, own, scratch=scratch, way=world.way)

    return FewShotMethod(make, TaskTraining if scratch else FineTuning)


def _protonet(world: World, episodes: Episodes, own: kinds.ProtoNetSettings) -> TaskMethod:
    network = copy.deepcopy(world.network)
    settings = replace(own, shots=episodes.shots, ways=episodes.ways, seed=world.seed)
    seen = world.seen_for("protonet")
    train_protonet(network, seen, settings, temperature=own.temperature, progress=world.progress)
    return protonet_tasks(network, world.pool)


def _feat(world: World, episodes: Episodes, own: kinds.FeatSettings) -> TaskMethod:
    network = copy.deepcopy(world.network)
    settings = replace(own, shots=episodes.shots, ways=episodes.ways, seed=world.seed)
    adapt = train_feat(
        network, world.seen_for("feat"), settings,
        temperature=own.temperature, balance=own.balance, progress=world.progress,
    )  # fmt: skip
    return OnEmbeddings(embed_pool(network, world.pool), feat(adapt))


def _neg_cosine(world: World, _: Episodes, own: kinds.NegCosineSettings) -> TaskMethod:
    seen = world.seen_for("neg-cosine")
    settings = replace(own, seed=world.seed)
    lasting = replace(settings, task_steps=0, task_lr=1.0)  # what is of a task alone trains no network
    if lasting not in world.trained:
        network = one_student(world.network, len(seen.classes), world.seed, scratch=True)
        train_neg_cosine(network, seen, settings, world.progress)
        world.trained[lasting] = network
    embeddings = embed_pool(world.trained[lasting], world.pool)
    return OnEmbeddings(embeddings, cosine_softmax(own.task_steps, own.task_lr, own.scale))


def _maml(world: World, episodes: Episodes, own: MamlTraining) -> TaskMethod:
    seen = world.seen_for("maml")
    settings = replace(own, shots=episodes.shots, seed=world.seed)
    network = one_student(world.network, episodes.ways, world.seed)
    for weights in network.head.parameters():
        nn.init.zeros_(weights)
    train_maml(network, seen, settings, way=world.way, progress=world.progress)
    return MamlTasks(network, world.pool, settings, way=world.way)


_METHODS: dict[str, FewShotMethod] = {
    "1nn": _on_embeddings(lambda world, _: classifiers.nearest_neighbour),
    "ncm": _on_embeddings(lambda world, _: classifiers.nearest_class_mean),
    "lr": _on_embeddings(
        lambda world, own: linear.logistic_regression(own.penalty), kinds.RegressionSettings
    ),
    "svm": _on_embeddings(
        lambda world, own: linear.support_vectors(own.penalty), kinds.SupportVectorSettings
    ),
    "fine-tune": _fine_tune(scratch=False),
    "student": _fine_tune(scratch=True),
    "simpleshot": _on_embeddings(lambda world, _: classifiers.simple_shot(world.seen_mean)),
    "maml": FewShotMethod(_maml, MamlTraining, learns_to_learn=True),
    "protonet": FewShotMethod(_protonet, kinds.ProtoNetSettings, learns_to_learn=True),
    "neg-cosine": FewShotMethod(_neg_cosine, kinds.NegCosineSettings),
    "feat": FewShotMethod(_feat, kinds.FeatSettings, learns_to_learn=True),
    "refilled": _refilled(scratch=False),
    "refilled-scratch": _refilled(scratch=True),
}
METHODS = tuple(_METHODS)
"""Names; ``student`` is fine-tuning from fresh weights, the baseline of ``refilled-scratch``."""


def get_method(name: str) -> FewShotMethod:
    """The method of that name; an unknown name is refused with the nearest known one."""
    if name not in _METHODS:
        raise unknown("few-shot method", name, METHODS)
    return _METHODS[name]


def settings_of(name: str, /, **given: Any) -> Any:
    """The settings of a method, an instance of its dataclass; an unknown name is refused."""
    return kinds.make_settings(get_method(name).settings, name, given)


def make_method(name: str, world: World, episodes: Episodes, /, **settings: Any) -> TaskMethod:
    """The method of that name, ready for tasks of the episodes' shape.

    Methods that train on the seen classes do so here, once for a number of shots and ways.

    Args:
        name: one of ``METHODS``.
        world: networks and images.
        episodes: shape of the tasks; the method sees none of them here.
        settings: of the method, by name; others have their default.
    """
    return get_method(name).make(world, episodes, settings_of(name, **settings))
