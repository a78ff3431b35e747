"""Few and middle shot: thousands of small trainings at once, and what they are compared with.

episodes = Episodes(pool.labels, shots=5, classes=pool.classes)
views = Views(pool)
method = RefilledTasks(ask_teacher(teacher, views), student, views)
print(run_tasks(method, episodes, 10_000))
"""

from refilled.fewshot.batched import Students, start_students
from refilled.fewshot.classifiers import (
    OnEmbeddings,
    nearest_class_mean,
    nearest_neighbour,
    prototypes,
    simple_shot,
)
from refilled.fewshot.episodes import Episodes, Tasks
from refilled.fewshot.feat import SetToSet, feat, train_feat
from refilled.fewshot.fine_tune import FineTuneTasks
from refilled.fewshot.linear import logistic_regression, support_vectors
from refilled.fewshot.maml import MamlTasks, MamlTraining, train_maml
from refilled.fewshot.meta import MetaTraining
from refilled.fewshot.named import METHODS, FewShotMethod, World, get_method, make_method, settings_of
from refilled.fewshot.neg_cosine import NegCosineTraining, cosine_softmax, train_neg_cosine
from refilled.fewshot.protonet import protonet_tasks, train_protonet
from refilled.fewshot.refilled import RefilledTasks, TeacherView, ask_teacher
from refilled.fewshot.run import Accuracy, TaskMethod, right_answers, run_tasks
from refilled.fewshot.settings import plain_settings
from refilled.fewshot.training import FineTuning, TaskTraining
from refilled.fewshot.views import Pool, Views, embed_pool, load_pool

__all__ = [
    "METHODS",
    "Accuracy",
    "Episodes",
    "FewShotMethod",
    "FineTuneTasks",
    "FineTuning",
    "MamlTasks",
    "MamlTraining",
    "MetaTraining",
    "NegCosineTraining",
    "OnEmbeddings",
    "Pool",
    "RefilledTasks",
    "SetToSet",
    "Students",
    "TaskMethod",
    "TaskTraining",
    "Tasks",
    "TeacherView",
    "Views",
    "World",
    "ask_teacher",
    "cosine_softmax",
    "embed_pool",
    "feat",
    "get_method",
    "load_pool",
    "logistic_regression",
    "make_method",
    "nearest_class_mean",
    "nearest_neighbour",
    "plain_settings",
    "protonet_tasks",
    "prototypes",
    "right_answers",
    "run_tasks",
    "settings_of",
    "simple_shot",
    "start_students",
    "support_vectors",
    "train_feat",
    "train_maml",
    "train_neg_cosine",
    "train_protonet",
]
