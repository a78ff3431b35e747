"""Evaluation: outputs of a network, accuracies, classifiers without training, statistics over seeds."""

from refilled.evaluation.accuracy import per_class, top_k
from refilled.evaluation.joint import Joint, joint_accuracy
from refilled.evaluation.neighbours import nearest_class_mean, nearest_neighbour
from refilled.evaluation.predict import Outputs, predict
from refilled.evaluation.probe import Probe, fit_probe, logistic_regression
from refilled.evaluation.silent import silent_dimensions
from refilled.evaluation.statistics import Spread, counting_error, half_interval, paired_error, spread

__all__ = [
    "Joint",
    "Outputs",
    "Probe",
    "Spread",
    "counting_error",
    "fit_probe",
    "half_interval",
    "joint_accuracy",
    "logistic_regression",
    "nearest_class_mean",
    "nearest_neighbour",
    "paired_error",
    "per_class",
    "predict",
    "silent_dimensions",
    "spread",
    "top_k",
]
