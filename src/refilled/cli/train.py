"""``refilled train``"""

from dataclasses import asdict, dataclass, field
from pathlib import Path

from refilled.cli.options import Data, Images, SettingsAlone, Student, TrainingAlone, chosen_folder
from refilled.cli.printing import print_accuracy
from refilled.runs import ImageSettings, distill


@dataclass
class TrainCommand:
    """Train a network alone, for instance a teacher.

    Example: refilled train photos --student wrn-40-2 --out runs/teacher
    """

    data: Data
    student: Student = "wrn-16-2"
    out: Path | None = None
    """Run folder to write; none: a new one under runs/."""
    resume: bool = False
    """Go on with the interrupted run in --out."""
    training: TrainingAlone = field(default_factory=SettingsAlone)
    images: Images = field(default_factory=ImageSettings)

    def run(self) -> None:
        """Train and print the accuracy."""
        self.out = chosen_folder(self.out, self.resume, f"{Path(self.data).name}-{self.student}")
        settings = asdict(self.training) | asdict(self.images)
        result = distill(None, self.student, self.data, "student", self.out, resume=self.resume, **settings)
        print_accuracy((result,), self.out)
