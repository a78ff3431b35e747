"""Fine-tuning for few-shot tasks: a network with a head of its own learns the support by cross-entropy."""

from torch import Tensor

from refilled.fewshot.batched import Students
from refilled.fewshot.episodes import Tasks
from refilled.fewshot.forward import Way
from refilled.fewshot.training import (
    FineTuning,
    TaskStage,
    TaskStep,
    TaskTraining,
    cross_entropies,
    start_tasks,
    train_tasks,
)
from refilled.fewshot.views import Views
from refilled.models import Network


def _loss(z: Tensor, logits: Tensor, step: TaskStep) -> Tensor:
    return cross_entropies(logits, step.labels)


class FineTuneTasks:
    """All of the network learns each task; with ``scratch``, it is the student alone.

    The head alone is logistic regression, of which :mod:`refilled.fewshot.linear` finds the optimum.

    Args:
        network: what is tuned, usually the teacher.
        views: of the pool's images.
        training: of the networks; None: :class:`TaskTraining` from scratch, else :class:`FineTuning`.
        scratch: start from fresh weights instead of the network's.
        way: of computing many networks at once.
    """

    def __init__(
        self,
        network: Network,
        views: Views,
        training: TaskTraining | None = None,
        *,
        scratch: bool = False,
        way: Way = "auto",
    ):
        self.network, self.views, self.scratch, self.way = network, views, scratch, way
        self.training = training or (TaskTraining() if scratch else FineTuning())

    def train(self, tasks: Tasks) -> Students:
        """The trained networks of the tasks."""
        students = start_tasks(
            self.network, tasks, self.views, self.training, scratch=self.scratch, way=self.way
        )
        stages = [TaskStage(self.training.steps, _loss)]
        train_tasks(students, tasks, self.views, stages, self.training)
        return students

    def __call__(self, tasks: Tasks) -> Tensor:
        """Predicted classes int64 [T, ways * queries]."""
        return self.train(tasks).predict(self.views.plain(tasks.queries), self.training.precision)
