"""Mathematics only: tensors in, tensor out.

No state, no configuration objects, no training. Every function computes in at least float32 whatever
the precision around it, and returns float32 (float64 for float64 inputs). Use them in any loop:

    loss = comparison_matching(student_embeddings, teacher_embeddings, labels)
"""

from refilled.objectives.centres import class_centres, class_posterior, class_scores
from refilled.objectives.comparison import comparison_matching
from refilled.objectives.confidence import confidence_weights, gap_weights
from refilled.objectives.correlation import dist
from refilled.objectives.decoupled import dkd
from refilled.objectives.local_kd import local_kd, present_classes
from refilled.objectives.logits import kd, standardised_kd
from refilled.objectives.relations import rkd_angle, rkd_distance, similarity_preserving

__all__ = [
    "class_centres",
    "class_posterior",
    "class_scores",
    "comparison_matching",
    "confidence_weights",
    "dist",
    "dkd",
    "gap_weights",
    "kd",
    "local_kd",
    "present_classes",
    "rkd_angle",
    "rkd_distance",
    "similarity_preserving",
    "standardised_kd",
]
