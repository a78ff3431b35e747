"""Every method by its name, made for one world: what is known of the seen classes, and images of others."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

from torch import Tensor

from refilled.data import Progress
from refilled.errors import UserError, unknown
from refilled.fewshot import classifiers, linear
from refilled.fewshot.batched import one_student
from refilled.fewshot.classifiers import OnEmbeddings, TaskClassifier
from refilled.fewshot.episodes import Episodes
from refilled.fewshot.feat import feat, train_feat
from refilled.fewshot.fine_tune import FineTuneTasks
from refilled.fewshot.forward import Way
from refilled.fewshot.maml import MamlTasks, MamlTraining, train_maml
from refilled.fewshot.meta import MetaTraining
from refilled.fewshot.neg_cosine import NegCosineTraining, cosine_softmax, train_neg_cosine
from refilled.fewshot.protonet import protonet_tasks, train_protonet
from refilled.fewshot.refilled import RefilledTasks, TeacherView, ask_teacher
from refilled.fewshot.run import TaskMethod
from refilled.fewshot.training import TaskTraining
from refilled.fewshot.views import Pool, Views, embed_pool
from refilled.methods.refilled_settings import RefilledSettings
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
    seen: Pool | None = None
    """Images of the seen classes, for SimpleShot's mean and for methods that train on them."""
    augment: str = "crop-flip"
    view_count: int = 10
    """Views of an image beside itself."""
    seed: int = 0
    """Of views and of what is trained on the seen classes."""
    way: Way = "auto"
    """Of computing many students at once."""
    training: TaskTraining = field(default_factory=TaskTraining)
    refilled: RefilledSettings = field(default_factory=RefilledSettings)
    meta: MetaTraining = field(default_factory=MetaTraining)
    """Of ProtoNet and FEAT; shots and ways are those of the tasks."""
    neg_cosine: NegCosineTraining = field(default_factory=NegCosineTraining)
    maml: MamlTraining = field(default_factory=MamlTraining)
    """Shots are those of the tasks."""
    lr_penalty: float = 10.0
    svm_penalty: float = 1.0
    progress: Progress | None = None
    """Told of training on the seen classes."""

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

    def seen_for(self, name: str) -> Pool:
        """Images of the seen classes, or an error that says who needs them."""
        if self.seen is None:
            raise UserError(f"{name} needs images of the seen classes")
        return self.seen


def _on_embeddings(classifier: Callable[[World], TaskClassifier]) -> Callable[[World, Episodes], TaskMethod]:
    return lambda world, _: OnEmbeddings(world.embeddings, classifier(world))


def _simple_shot(world: World) -> TaskClassifier:
    seen = world.seen_for("simpleshot")
    return classifiers.simple_shot(embed_pool(world.network, seen).mean(dim=0))


def _refilled(world: World, scratch: bool) -> TaskMethod:
    return RefilledTasks(
        world.answers, world.network, world.views, world.training, world.refilled,
        scratch=scratch, way=world.way,
    )  # fmt: skip


def _fine_tune(world: World, scratch: bool) -> TaskMethod:
    return FineTuneTasks(world.network, world.views, world.training, scratch=scratch, way=world.way)


def _meta(world: World, episodes: Episodes) -> MetaTraining:
    return replace(world.meta, shots=episodes.shots, ways=episodes.ways, seed=world.seed)


def _protonet(world: World, episodes: Episodes) -> TaskMethod:
    network = copy.deepcopy(world.network)
    train_protonet(network, world.seen_for("protonet"), _meta(world, episodes), progress=world.progress)
    return protonet_tasks(network, world.pool)


def _feat(world: World, episodes: Episodes) -> TaskMethod:
    network = copy.deepcopy(world.network)
    adapt = train_feat(network, world.seen_for("feat"), _meta(world, episodes), progress=world.progress)
    return OnEmbeddings(embed_pool(network, world.pool), feat(adapt))


def _neg_cosine(world: World, _: Episodes) -> TaskMethod:
    seen, settings = world.seen_for("neg-cosine"), replace(world.neg_cosine, seed=world.seed)
    network = one_student(world.network, len(seen.classes), world.seed, scratch=True)
    train_neg_cosine(network, seen, settings, world.progress)
    return OnEmbeddings(embed_pool(network, world.pool), cosine_softmax(scale=settings.scale))


def _maml(world: World, episodes: Episodes) -> TaskMethod:
    seen = world.seen_for("maml")
    settings = replace(world.maml, shots=episodes.shots, seed=world.seed)
    network = one_student(world.network, episodes.ways, world.seed, scratch=True)
    train_maml(network, seen, settings, way=world.way, progress=world.progress)
    return MamlTasks(network, world.pool, settings, way=world.way)


_MAKERS: dict[str, Callable[[World, Episodes], TaskMethod]] = {
    "1nn": _on_embeddings(lambda _: classifiers.nearest_neighbour),
    "ncm": _on_embeddings(lambda _: classifiers.nearest_class_mean),
    "lr": _on_embeddings(lambda world: linear.logistic_regression(world.lr_penalty)),
    "svm": _on_embeddings(lambda world: linear.support_vectors(world.svm_penalty)),
    "fine-tune": lambda world, _: _fine_tune(world, scratch=False),
    "student": lambda world, _: _fine_tune(world, scratch=True),
    "simpleshot": _on_embeddings(_simple_shot),
    "maml": _maml,
    "protonet": _protonet,
    "neg-cosine": _neg_cosine,
    "feat": _feat,
    "refilled": lambda world, _: _refilled(world, scratch=False),
    "refilled-scratch": lambda world, _: _refilled(world, scratch=True),
}
METHODS = tuple(_MAKERS)
"""Names; ``student`` is fine-tuning from fresh weights, the baseline of ``refilled-scratch``."""


def make_method(name: str, world: World, episodes: Episodes) -> TaskMethod:
    """The method of that name, ready for tasks of the episodes' shape.

    Methods that train on the seen classes do so here, once for a number of shots and ways.
    """
    if name not in _MAKERS:
        raise unknown("few-shot method", name, METHODS)
    return _MAKERS[name](world, episodes)
