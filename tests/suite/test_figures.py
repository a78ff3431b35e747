import base64
import dataclasses
import io
import json
import shutil
import sys
import threading
from pathlib import Path

import pytest
import torch
from PIL import Image

from refilled.cli import BenchCommand
from refilled.errors import UserError
from refilled.suite import (
    FIGURES,
    Bench,
    Ledger,
    OverSeeds,
    Places,
    Studio,
    cells_of,
    get_table,
    make_figures,
)
from refilled.suite.figures import NothingToShow, convergence, gradients, lines, weights
from refilled.suite.tables.cifar100 import gkd
from refilled.suite.tables.rows import TWO_STAGES
from refilled.suite.tiny import tiny_cell
from refilled.suite.validation import blind

WANTED = {"overlap", "weights", "trusted", "tsne", "convergence", "strength", "shots", "gradients"}
EXPERIMENTS = (
    ("cifar100-gkd", {"overlap": ("0", "60"), "student": ("wrn-16-2",), "method": ("student", "refilled")}),
    ("lambda", {"data": ("cifar100",), "student": ("wrn-16-2",), "strength": ("2.0",)}),
    ("shots", {"student": ("wrn-16-2",), "overlap": ("60",), "method": ("student",), "shots": ("10",)}),
    ("cifar100-standard", {"method": ("kd",), "student": ("wrn-16-2",)}),
)


@pytest.fixture(scope="module")
def studio(tmp_path_factory):
    """A ledger with a few tiny cells, and the teachers they needed."""
    work = tmp_path_factory.mktemp("bench")
    bench = Bench(Ledger(work / "tiny.jsonl"), Places(None, work), "cpu", [].append)
    for name, where in EXPERIMENTS:
        judge = OverSeeds(2 if name == "lambda" else 1)
        bench.run(cells_of(get_table(name), where, judge, tiny=True))
    return Studio(bench.ledger, bench.desk.places, "cpu", 2, True, [].append)


@pytest.fixture(scope="module")
def made(studio):
    """All figures, and their numbers by name."""
    folder = studio.places.work / "figures"
    paths = make_figures(sorted(WANTED), studio, folder)
    return {path.stem: json.loads(path.with_suffix(".json").read_text()) for path in paths}


def test_every_figure_of_the_paper_is_made(studio, made):
    assert set(FIGURES) == set(made) == WANTED
    for name, numbers in made.items():
        with Image.open(studio.places.work / "figures" / f"{name}.png") as image:
            assert min(image.size) > 300
            assert len(image.convert("L").getcolors()) > 10  # something is drawn
        work = studio.places.work
        assert numbers["made_by"] == f"refilled bench --figures {name} --seeds 2 --work {work} --tiny"
        assert numbers["commit"]


def test_lines_are_the_ledgers_numbers(studio, made):
    panel = next(p for p in made["overlap"]["panels"] if p["title"] == "CIFAR-100, student wrn-16-2")
    assert [point["x"] for point in panel["lines"]["refilled"]] == [0, 60]
    table = get_table("cifar100-gkd")
    (cell,) = cells_of(
        table, {"overlap": (0,), "student": ("wrn-16-2",), "method": ("refilled",)}, OverSeeds(1), tiny=True
    )
    (record,) = studio.ledger.find([cell])
    assert panel["lines"]["refilled"][0]["mean"] == pytest.approx(100 * record["test_accuracy"], abs=1e-3)


def test_the_student_alone_stands_beside_the_strengths(made):
    (panel,) = made["strength"]["panels"]
    assert set(panel["lines"]) == {"with a teacher", lines.ALONE}
    assert [(point["x"], point["runs"]) for point in panel["lines"]["with a teacher"]] == [(2.0, 2)]
    # The tiny student alone at an overlap of 60 % has been run with the other table, for one seed.
    assert {point["runs"] for point in panel["lines"][lines.ALONE]} == {1}


def test_weights_are_counted_once_each(made):
    numbers = made["weights"]
    assert numbers["images"] == {"seen": 24, "unseen": 16}  # 3 and 2 classes of 8 images
    assert set(numbers["weights"]) == {"pl", "head"}
    for found in numbers["weights"].values():
        assert sum(found["seen"]) == 24
        assert sum(found["unseen"]) == 16
        assert len(found["seen"]) == weights.BINS == len(numbers["edges"]) - 1
        assert 0 <= found["auc"] <= 1


def test_most_trusted_are_trusted_more(made):
    groups = {group["name"]: group["images"] for group in made["trusted"]["groups"]}
    for kind, classes in (("seen", {"2", "3", "4"}), ("unseen", {"5", "6"})):
        most, least = groups[f"{kind}, most trusted"], groups[f"{kind}, least trusted"]
        assert min(i["weight"] for i in most) >= max(i["weight"] for i in least)
        assert {i["class"] for i in [*most, *least]} <= classes
        assert Image.open(io.BytesIO(base64.b64decode(most[0]["png"]))).size == (8, 8)


def test_tsne_shows_the_same_images_twice(made):
    alone, after = made["tsne"]["panels"]
    assert alone["labels"] == after["labels"]
    assert len(alone["points"]) == len(alone["labels"]) == 80
    assert len(alone["classes"]) == 10


def test_tsne_takes_the_seed_whose_students_are_kept(tmp_path):
    """What `refilled bench --keep-students` left: of seed 0 one student, of seed 1 both."""
    bench = Bench(
        Ledger(tmp_path / "ledger.jsonl"), Places(None, tmp_path), "cpu", [].append, keep_students=True
    )
    cells = cells_of(get_table("ncm-after-stage-1"), {"student": ("wrn-16-2",)}, OverSeeds(2), tiny=True)
    bench.run([cell for cell in cells if cell.seed == 1 or cell.method == "student"])
    studio = Studio(bench.ledger, bench.desk.places, "cpu", 2, True, [].append, trains=False)
    panels = FIGURES["tsne"].numbers(studio)["panels"]
    assert [panel["cell"].rpartition(", ")[2] for panel in panels] == ["seed 1", "seed 1"]


def test_convergence_has_every_epoch_of_both_stages(made):
    embedding, classifier = made["convergence"]["stages"]
    assert (embedding["stage"], classifier["stage"]) == ("embedding", "classifier")
    assert embedding["epochs"] == [1]
    assert set(embedding["loss"]) == {"comparison"}
    assert set(embedding["validation"]) == {"ncm"}
    assert set(classifier["loss"]) == {"cross_entropy", "local_kd"}
    assert set(classifier["validation"]) == {"accuracy"}


def test_students_of_figures_are_trained_once(studio, made):
    said = []
    again = dataclasses.replace(studio, say=said.append)
    numbers = FIGURES["convergence"].numbers(again)
    assert said == []
    assert numbers["stages"] == made["convergence"]["stages"]


def convergence_cell(studio):
    cell = studio.cell(gkd({}, TWO_STAGES, convergence.STUDENT, convergence.OVERLAP))
    return blind(cell.with_settings(val_fraction=convergence.VAL_FRACTION, validate_every=1))


def test_a_student_is_found_however_the_folder_is_written(studio, made, monkeypatch):
    said, cell = [], convergence_cell(studio)
    (studio.places.student_folder(cell) / "result.json").rename(studio.places.work / "kept.json")
    monkeypatch.chdir(studio.places.work.parent)
    places = Places(None, Path(studio.places.work.name))
    other = dataclasses.replace(studio, places=places, say=said.append)
    assert other.student(cell).epochs == 2  # its checkpoint is there: it is only measured again
    assert said == [f"training for a figure: {cell.describe()}"]


def test_a_student_that_another_process_trains_is_waited_for(studio, made):
    said, cell = [], convergence_cell(studio)
    other = dataclasses.replace(studio, say=said.append)
    holding, going = threading.Event(), threading.Event()
    result = studio.places.student_folder(cell) / "result.json"
    finished = result.read_bytes()
    result.unlink()

    def hold():
        with studio.places.student_to_train(cell, lambda: None):
            holding.set()
            going.wait(20)
            result.write_bytes(finished)

    thread = threading.Thread(target=hold)
    thread.start()
    holding.wait(20)
    timer = threading.Timer(0.5, going.set)
    timer.start()
    assert other.student(cell).epochs == 2
    assert said == [f"{cell.describe()}: another process trains it, and is waited for"]
    thread.join()


def test_what_is_only_looked_for_is_not_waited_for(studio, tmp_path):
    """Nor is anything written."""
    cell, said = convergence_cell(studio), []
    none = dataclasses.replace(studio, places=Places(None, tmp_path / "w"), trains=False, say=said.append)
    with pytest.raises(NothingToShow):
        none.student(cell)
    assert not (tmp_path / "w").exists()
    with none.places.student_to_train(cell, lambda: None), pytest.raises(NothingToShow):
        none.student(cell)
    assert said == []
    (tmp_path / "file").write_text("mine")
    other = dataclasses.replace(none, places=Places(None, tmp_path / "file"), trains=True)
    with pytest.raises(UserError, match="not a directory; choose another --work"):
        other.student(cell)


def test_convergence_is_of_a_teacher_that_has_not_seen_the_validation_images(studio, made):
    cell = convergence_cell(studio)
    assert made["convergence"]["cell"] == cell.describe()
    config = json.loads((studio.places.student_folder(cell) / "config.json").read_text())
    described = json.loads((Path(config["run"]["teacher"]) / "cell.json").read_text())
    assert described["settings"]["data"]["val_fraction"] == convergence.VAL_FRACTION


def test_students_of_figures_are_compiled_where_that_is_asked_for(studio, monkeypatch, tmp_path):
    from refilled.suite.figures import figure

    asked = {}
    monkeypatch.setattr(figure, "distill", lambda *given, **how: asked.update(how))
    cell = tiny_cell(gkd({}, "student", "wrn-16-2", 60))
    dataclasses.replace(studio, places=Places(None, tmp_path), compile=True).student(cell)
    assert asked["compile"]


def test_gradients_are_those_of_the_last_layer():
    """Against autograd through a real last layer, instance by instance."""
    torch.manual_seed(0)
    embeddings, scores = torch.rand(5, 3, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)
    layer = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    norms = []
    for z, s in zip(embeddings, scores):
        term = gradients._divergence((layer @ z)[None], s[None])
        norms += torch.autograd.grad(term, layer)[0].norm(dim=1).tolist()
    found = gradients._norm(
        lambda given: gradients._divergence(given, scores), (embeddings @ layer.T).detach(), embeddings
    )
    assert found == pytest.approx(sum(norms) / len(norms))


def test_gradients_for_each_number_of_classes(made):
    numbers = made["gradients"]
    assert numbers["classes"] == [2, 5, 10]
    assert set(numbers["terms"]) == {"kd", "kd-centres", "lkd", "lkd-weighted"}
    for term in numbers["terms"].values():
        assert all(mean > 0 for mean in term["mean"])
    lkd, weighted = (numbers["terms"][name]["mean"] for name in ("lkd", "lkd-weighted"))
    assert all(less < more for less, more in zip(weighted, lkd))


@pytest.mark.parametrize("name", ["weights", "trusted", "tsne", "convergence", "gradients"])
def test_what_is_missing_is_trained_where_the_figure_is_named_and_else_left_out(tmp_path, name):
    """Also where the ledger has a number of what is not there any more."""
    said = []
    empty = Studio(Ledger(tmp_path / "ledger.jsonl"), Places(None, tmp_path), "cpu", 1, True, said.append)
    with pytest.raises(UserError, match="no figure could be made"):
        make_figures(["all"], empty, tmp_path)
    left_out = [line for line in said if line.startswith(f"{name} is left out: ")]
    assert "is not there; it is trained where the figure is named" in left_out[0]
    assert empty.ledger.records == []
    first = FIGURES[name].numbers(empty)
    shutil.rmtree(tmp_path / "teachers")
    assert FIGURES[name].numbers(empty).keys() == first.keys()
    # A student that is there is enough.
    assert (tmp_path / "teachers").exists() == (name not in ("tsne", "convergence"))


def test_missing_numbers_are_named(tmp_path):
    said = []
    empty = Studio(Ledger(tmp_path / "none.jsonl"), Places(None, tmp_path), "cpu", 1, True, said.append)
    with pytest.raises(UserError, match="no numbers for this; run `refilled bench lambda"):
        make_figures(["strength"], empty, tmp_path / "figures")
    with pytest.raises(UserError, match="no figure could be made"):
        make_figures(["all"], empty, tmp_path / "figures")
    assert sum("is left out" in line for line in said) == len(WANTED)
    assert not (tmp_path / "figures").exists()


def test_unknown_figures_are_refused(studio, tmp_path):
    with pytest.raises(UserError, match="unknown figure 'overlp'; did you mean 'overlap'"):
        make_figures(["overlp"], studio, tmp_path)


def test_without_matplotlib_the_extra_is_named(studio, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(
        UserError, match=r"drawing a figure needs matplotlib: pip install 'refilled\[figures\]'"
    ):
        make_figures(["overlap"], studio, tmp_path)


def test_on_the_command_line(studio, capsys):
    BenchCommand(figures=("weights",), tiny=True, work=studio.places.work, device="cpu").run()
    assert "figures/weights.png is written" in capsys.readouterr().out.replace("\n", "")
    with pytest.raises(UserError, match="leave out the table 'cifar100-gkd'"):
        BenchCommand("cifar100-gkd", figures=("overlap",)).run()


def test_panels_of_single_points_are_left_out_where_others_have_lines():
    dot, line = ({"lines": {"student": [{"x": x} for x in range(count)]}} for count in (1, 2))
    assert lines.some(None, [dot, line]) == {"panels": [line]}
    assert lines.some(None, [dot]) == {"panels": [dot]}
