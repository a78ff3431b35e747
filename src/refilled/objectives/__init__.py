"""Mathematics only: tensors in, tensor out.

No state, no configuration objects, no training. Every function computes in at least float32 whatever
the precision around it, and returns float32 (float64 for float64 inputs). Use them in any loop:

    loss = comparison_matching(student_embeddings, teacher_embeddings, labels)
"""

from refilled.objectives.asymmetric import asymmetric_contrastive, asymmetric_triplet
from refilled.objectives.attention import attention_transfer
from refilled.objectives.centres import class_centres, class_posterior, class_scores
from refilled.objectives.comparison import comparison_matching
from refilled.objectives.confidence import confidence_weights, gap_weights
from refilled.objectives.consolidation import weight_consolidation
from refilled.objectives.contrastive import (
    draw_others,
    log_partition,
    memory_scores,
    noise_contrast,
    rows_by_class,
)
from refilled.objectives.correlation import dist
from refilled.objectives.decoupled import dkd
from refilled.objectives.direction import direction_matching
from refilled.objectives.hints import hint
from refilled.objectives.information import variational_information
from refilled.objectives.jacobian import input_gradients, jacobian_matching, most_attended
from refilled.objectives.local_kd import local_kd, present_classes
from refilled.objectives.logits import kd, standardised_kd
from refilled.objectives.maps import averaged_down, same_size
from refilled.objectives.overhaul import negative_sums, partial_distance
from refilled.objectives.relations import rkd_angle, rkd_distance, similarity_preserving
from refilled.objectives.selectivity import neuron_selectivity
from refilled.objectives.self_supervision import (
    contrastive_prediction,
    contrastive_scores,
    error_levels,
    selective_kd,
)
from refilled.objectives.shared import shared_kd
from refilled.objectives.similarity import similarity_distillation
from refilled.objectives.unit import unit_rows

__all__ = [
    "asymmetric_contrastive",
    "asymmetric_triplet",
    "attention_transfer",
    "averaged_down",
    "class_centres",
    "class_posterior",
    "class_scores",
    "comparison_matching",
    "confidence_weights",
    "contrastive_prediction",
    "contrastive_scores",
    "direction_matching",
    "dist",
    "dkd",
    "draw_others",
    "error_levels",
    "gap_weights",
    "hint",
    "input_gradients",
    "jacobian_matching",
    "kd",
    "local_kd",
    "log_partition",
    "memory_scores",
    "most_attended",
    "negative_sums",
    "neuron_selectivity",
    "noise_contrast",
    "partial_distance",
    "present_classes",
    "rkd_angle",
    "rkd_distance",
    "rows_by_class",
    "same_size",
    "selective_kd",
    "shared_kd",
    "similarity_distillation",
    "similarity_preserving",
    "standardised_kd",
    "unit_rows",
    "variational_information",
    "weight_consolidation",
]
