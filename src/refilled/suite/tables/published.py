"""Numbers of the paper: Ye, Lu, Zhan, Generalized Knowledge Distillation via Relationship Matching.

Accuracies in percent. Each row has one number per student, in the order of ``WRN`` or ``MOBILENETS``, or per
number of ``SHOTS``. Left out: LKD (Li et al., 2020; 75.44 for WRN-16-2 and 67.72 for WRN-16-1), cited there
with a stronger teacher.
"""

from typing import Any

WRN = ("wrn-40-2", "wrn-16-2", "wrn-40-1", "wrn-16-1")
SHOTS = (1, 5, 10, 30)
WIDER_STUDENTS = ("wrn-16-4", "wrn-28-2", "wrn-16-2")
MOBILENETS = ("mobilenet-1", "mobilenet-0.75", "mobilenet-0.5", "mobilenet-0.25")

Rows = dict[str, tuple[float | None, ...]]


def lookup(rows: Rows, row: str, columns: tuple[Any, ...], column: Any) -> float | None:
    """The number in that row and column, or None."""
    return rows[row][columns.index(column)] if row in rows and column in columns else None


# Supplementary tables of GKD; at 50 and 60 % also Tables 1 and 2, which alone have refilled-lkd.
CUB_GKD: dict[int, Rows] = {
    0: {
        "student": (71.25, 67.56, 66.85, 64.48),
        "rkd": (72.24, 68.42, 66.85, 65.74),
        "aml": (72.86, 68.79, 68.59, 66.83),
        "refilled-emb": (71.88, 68.02, 67.4, 65.12),
        "refilled-minus": (74.07, 70.93, 70.62, 67.58),
        "refilled": (75.13, 71.67, 71.06, 68.22),
    },
    25: {
        "student": (71.3, 71.08, 68.56, 65.71),
        "rkd": (72.07, 71.7, 68.56, 66.43),
        "aml": (72.35, 72.05, 70.37, 67.2),
        "refilled-emb": (72.04, 71.36, 68.9, 66.29),
        "refilled-minus": (74.14, 73.09, 72.33, 68.96),
        "refilled": (75.09, 73.92, 72.99, 70.04),
    },
    50: {
        "student": (68.2, 66.11, 65.23, 62.26),
        "rkd": (68.72, 66.82, 65.58, 62.79),
        "aml": (67.94, 67.34, 66.29, 63.64),
        "refilled-emb": (68.79, 66.56, 65.68, 62.94),
        "refilled-minus": (69.14, 67.43, 67.18, 64.62),
        "refilled": (70.25, 68.39, 68.5, 65.33),
    },
    75: {
        "student": (65.53, 66.73, 64.1, 60.81),
        "rkd": (65.89, 67.28, 64.66, 61.35),
        "aml": (66.32, 66.92, 65.03, 62.09),
        "refilled-emb": (66.47, 67.2, 64.56, 61.37),
        "refilled-minus": (67.01, 67.93, 66.1, 62.35),
        "refilled": (67.28, 68.35, 66.72, 63.03),
    },
    100: {
        "student": (67.76, 67.98, 64.91, 62.17),
        "rkd": (67.23, 68.25, 65.73, 62.04),
        "aml": (67.06, 68.35, 66.27, 62.69),
        "refilled-emb": (68.13, 68.34, 65.72, 63.05),
        "refilled-minus": (68.96, 69.07, 68.53, 63.1),
        "refilled": (68.77, 69.1, 68.44, 63.33),
    },
}
CIFAR100_GKD: dict[int, Rows] = {
    0: {
        "student": (81.02, 78.94, 78.98, 73.7),
        "rkd": (81.46, 79.23, 78.8, 73.45),
        "aml": (79.99, 79.11, 78.99, 73.68),
        "refilled-emb": (81.35, 79.43, 79.34, 74.02),
        "refilled-minus": (81.79, 79.74, 79.6, 74.02),
        "refilled": (82.6, 80.7, 80.18, 74.42),
    },
    20: {
        "student": (80.34, 76.12, 75.43, 70.84),
        "rkd": (80.56, 76.77, 75.82, 71.05),
        "aml": (80.05, 76.95, 75.37, 70.79),
        "refilled-emb": (79.89, 76.45, 75.99, 71.35),
        "refilled-minus": (80.9, 77.32, 76.95, 71.53),
        "refilled": (81.4, 77.82, 77.24, 72.28),
    },
    40: {
        "student": (78.86, 75.67, 74.98, 69.36),
        "rkd": (79.33, 75.58, 74.69, 69.07),
        "aml": (79.98, 75.84, 74.28, 68.87),
        "refilled-emb": (79.27, 76.03, 75.38, 69.78),
        "refilled-minus": (79.84, 76.16, 75.3, 69.58),
        "refilled": (80.4, 76.26, 75.62, 70.08),
    },
    60: {
        "student": (78.9, 76.37, 75.14, 68.48),
        "rkd": (78.69, 76.2, 75.5, 68.23),
        "aml": (79.32, 76.45, 75.23, 68.64),
        "refilled-emb": (79.33, 76.9, 75.67, 69.78),
        "refilled-minus": (80.02, 76.66, 75.79, 68.72),
        "refilled": (80.66, 76.66, 76.52, 69.5),
    },
    80: {
        "student": (80.5, 77.43, 76.96, 72.16),
        "rkd": (81.21, 77.65, 77.34, 72.05),
        "aml": (81.06, 77.2, 77.06, 72.35),
        "refilled-emb": (80.7, 77.79, 77.54, 72.46),
        "refilled-minus": (81.92, 78.24, 78.33, 73.54),
        "refilled": (82.56, 78.76, 79.28, 73.92),
    },
    100: {
        "student": (80.66, 77.94, 76.35, 71.56),
        "rkd": (80.52, 78.03, 76.82, 72.04),
        "aml": (80.73, 78.24, 77.15, 71.79),
        "refilled-emb": (81.02, 78.32, 76.67, 72.08),
        "refilled-minus": (81.74, 78.74, 77.77, 73.06),
        "refilled": (81.58, 78.6, 78.04, 73.52),
    },
}
CUB_GKD[50] |= {"refilled-lkd": (68.64, 66.91, 66.03, 63.55)}
CIFAR100_GKD[60] |= {"refilled-lkd": (79.47, 76.29, 75.30, 68.14)}
# Of the teacher's embedding, whatever the student.
CUB_TEACHER = {"teacher-1nn": 43.29, "teacher-lr": 51.66, "fine-tune": 61.78}
CIFAR100_TEACHER = {"teacher-1nn": 64.27, "teacher-lr": 67.94, "fine-tune": 71.13}

REWEIGHTING: dict[str, Rows] = {
    "cub": {
        "none": (69.14, 67.43, 67.18, 64.62),
        "gap": (70.13, 68.05, 68.13, 65.47),
        "pl": (70.25, 68.39, 68.50, 65.53),
    },
    "cifar100": {
        "none": (80.02, 76.66, 75.79, 68.72),
        "gap": (80.53, 76.71, 76.38, 69.61),
        "pl": (80.66, 76.66, 76.52, 69.50),
    },
}
# The paper prints the same numbers for both overlaps.
ONE_STAGE: Rows = {
    "refilled": (75.13, 71.67, 71.06, 68.22),
    "refilled-gamma": (74.25, 70.38, 69.94, 67.52),
}
WEAKER_TEACHER: Rows = {
    "student": (71.25, 67.56, 66.85, 64.48),
    "rkd": (70.94, 67.95, 67.32, 65.03),
    "aml": (71.32, 68.29, 67.85, 65.55),
    "refilled-emb": (69.41, 68.82, 67.11, 64.89),
    "refilled-minus": (72.58, 68.35, 68.72, 65.46),
    "refilled": (73.29, 69.32, 69.04, 66.04),
}
RESNETS = ("resnet-50", "resnet-32", "resnet-14")
OTHER_FAMILY: Rows = {
    "student": (75.46, 76.72, 73.54),
    "rkd": (76.95, 76.91, 73.88),
    "aml": (76.42, 76.21, 73.89),
    "refilled-emb": (76.82, 77.15, 73.90),
    "refilled-minus": (77.05, 77.41, 74.11),
    "refilled": (77.43, 77.92, 74.35),
}
DOGS: Rows = {
    "student": (72.35, 70.69, 70.11, 68.57),
    "seed": (72.78, 70.90, 70.55, 68.32),
    "refilled": (72.27, 70.81, 70.35, 68.64),
}
CIFAR100_STANDARD: Rows = {
    "student": (74.44, 70.15, 68.97, 65.44),
    "kd": (75.47, 71.87, 70.46, 66.54),
    "fitnet": (74.29, 70.89, 68.66, 65.38),
    "at": (74.76, 71.06, 69.85, 65.31),
    "nst": (74.81, 71.19, 68.00, 64.95),
    "vid": (75.25, 73.31, 71.51, 66.32),
    "kd-vid": (76.11, 73.69, 72.16, 67.19),
    "seed-supervised": (76.28, 73.40, 71.83, 67.75),
    "rkd": (76.62, 72.56, 72.18, 65.22),
    "sskd": (75.42, 74.03, 72.71, 67.30),
    "ban": (75.41, None, None, None),
    "refilled": (77.90, 75.71, 72.54, 68.13),
}
CIFAR100_WIDER: Rows = {
    "student": (77.28, 75.12, 72.68),
    "kd": (78.31, 76.57, 73.53),
    "fitnet": (78.15, 76.06, 73.70),
    "at": (77.93, 76.20, 73.44),
    "jacobian": (77.82, 76.30, 73.29),
    "overhaul": (79.11, 78.02, 75.92),
    "refilled": (79.95, 79.04, 76.33),
}
CUB_STANDARD: Rows = {
    "student": (75.36, 74.87, 72.41, 69.72),
    "kd": (77.61, 76.02, 74.24, 72.03),
    "fitnet": (75.10, 75.03, 72.17, 69.09),
    "at": (76.22, 76.10, 73.70, 70.74),
    "nst": (76.91, 77.05, 74.03, 71.54),
    "kd-vid": (77.03, 76.91, 75.62, 72.23),
    "rkd": (77.72, 76.80, 74.99, 72.55),
    "ban": (76.87, None, None, None),
    "refilled": (79.33, 78.52, 76.90, 74.04),
}
CROSS_FAMILY: dict[str, Rows] = {
    "cifar100": {
        "student": (68.57, 67.92, 65.66, 60.87),
        "kd": (70.34, 68.21, 66.06, 61.38),
        "fitnet": (67.99, 67.85, 65.12, 61.01),
        "at": (68.97, 67.88, 66.44, 62.15),
        "nst": (70.62, 70.49, 69.15, 61.32),
        "kd-vid": (71.94, 70.13, 68.51, 62.50),
        "rkd": (70.41, 68.93, 66.24, 61.44),
        "refilled": (73.75, 72.65, 70.32, 62.90),
    },
    "cub": {
        "student": (None, 74.87, 72.41, 69.72),
        "kd": (None, 76.02, 74.17, 71.97),
        "fitnet": (None, 75.03, 72.17, 70.03),
        "at": (None, 76.11, 72.94, 70.99),
        "nst": (None, 75.89, 73.82, 71.92),
        "kd-vid": (None, 76.41, 74.04, 72.20),
        "rkd": (None, 76.11, 75.24, 72.84),
        "refilled": (None, 78.40, 76.52, 73.44),
    },
}
KD_AGAINST_LKD: Rows = {
    "refilled-kd": (77.08, 73.57, 72.24, 67.14),
    "refilled": (77.90, 74.82, 72.54, 68.13),
}
NCM_AFTER_STAGE_1: Rows = {
    "student": (55.47, 50.14, 45.04, 38.06),
    "seed-supervised": (61.32, 52.57, 51.24, 43.50),
    "sskd": (61.25, 54.77, 52.22, 43.90),
    "refilled-stage1": (62.12, 53.86, 52.71, 44.33),
}
K_HAT = {(0, 1): 30.54, (0, 5): 31.42, (0, None): 32.69, (50, 1): 29.61, (50, 5): 29.23, (50, None): 30.27}
# Old, new and all classes, and the harmonic mean of old and new. The teacher's two rows have one student.
INCREMENTAL_TEACHER = {"teacher-lr": (63.73, 31.97, 47.85, 42.58), "fine-tune": (49.85, 45.70, 47.77, 47.68)}
INCREMENTAL: dict[str, Rows] = {
    "old": {
        "ewc": (35.66, None, None, None),
        "student": (33.79, 33.55, 29.39, 21.47),
        "rkd": (34.30, 34.02, 30.21, 21.98),
        "refilled": (35.50, 35.13, 31.05, 24.51),
    },
    "new": {
        "ewc": (55.65, None, None, None),
        "student": (56.84, 56.62, 55.76, 53.46),
        "rkd": (57.27, 57.63, 55.90, 53.81),
        "refilled": (58.57, 58.70, 58.00, 53.98),
    },
    "all": {
        "ewc": (45.66, None, None, None),
        "student": (45.32, 45.09, 42.58, 37.47),
        "rkd": (45.79, 45.83, 43.06, 37.90),
        "refilled-emb": (45.87, None, None, None),
        "refilled-minus": (46.39, None, None, None),
        "refilled": (47.04, 46.92, 44.53, 39.25),
    },
    "harmonic": {
        "ewc": (43.47, None, None, None),
        "student": (42.39, 42.14, 38.50, 30.64),
        "rkd": (42.91, 42.79, 39.23, 31.22),
        "refilled-emb": (42.90, None, None, None),
        "refilled-minus": (43.45, None, None, None),
        "refilled": (44.21, 43.96, 40.45, 33.72),
    },
}
FEW_SHOT: Rows = {
    "1nn": (49.73, 63.11, 66.56, 69.80),
    "svm": (51.61, 69.17, 74.24, 77.87),
    "fine-tune": (45.89, 68.61, 74.95, 78.62),
    "simpleshot": (49.95, 69.62, 74.48, 78.43),
    "maml": (48.70, 63.11, None, None),
    "protonet": (51.79, 70.38, 74.42, 78.10),
    "neg-cosine": (52.84, 70.41, None, None),
    "feat": (55.15, 71.61, 74.86, 78.84),
    "refilled resnet-12": (55.13, 72.05, 76.93, 80.75),
    "refilled convnet-4": (53.81, 71.86, 75.56, 78.98),
}
