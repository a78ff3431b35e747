"""The run folder: never overwritten, resumed exactly, finished runs returned at once."""

import json
from pathlib import Path

import pytest
import torch

from refilled import UserError
from refilled.models import read_network
from refilled.training import loop


def epochs_logged(folder):
    lines = Path(folder, "metrics.jsonl").read_text().splitlines()
    return [(record["stage"], record["epoch"]) for record in map(json.loads, lines)]


@pytest.fixture
def interrupt_in(monkeypatch):
    """``interrupt_in(3)``: Ctrl-C arrives in the third epoch of training from now on."""
    real = loop._one_epoch

    def arm(number):
        left = [number]

        def one_epoch(*args, **kwargs):
            left[0] -= 1
            if left[0] == 0:
                monkeypatch.setattr(loop, "_one_epoch", real)
                raise KeyboardInterrupt
            return real(*args, **kwargs)

        monkeypatch.setattr(loop, "_one_epoch", one_epoch)

    return arm


def test_a_folder_that_holds_anything_is_refused_and_left_alone(tiny, image_folder, snapshot):
    photos = image_folder(["a", "b"])
    tiny(None, "convnet-1", photos, "student", "mine")
    Path("notes").mkdir()
    Path("notes/todo.txt").write_text("mine")
    Path("file").write_text("mine")
    before = snapshot()
    with pytest.raises(UserError, match="mine exists already; choose another folder"):
        tiny(None, "convnet-1", photos, "student", "mine")
    with pytest.raises(UserError, match="notes exists already"):
        tiny(None, "convnet-1", photos, "student", "notes")
    with pytest.raises(UserError, match="notes is no run folder"):
        tiny(None, "convnet-1", photos, "student", "notes", resume=True)
    with pytest.raises(UserError, match="file is a file"):
        tiny(None, "convnet-1", photos, "student", "file")
    assert snapshot() == before


def test_an_empty_folder_is_taken(tiny, image_folder):
    photos = image_folder(["a", "b"])
    Path("mine").mkdir()
    assert tiny(None, "convnet-1", photos, "student", "mine").out == "mine"


@pytest.mark.parametrize("out", ["file/run", "file/deep/run"])
def test_a_place_that_cannot_be_written_is_refused_before_training(tiny, image_folder, out, monkeypatch):
    photos = image_folder(["a", "b"])
    Path("file").write_text("x")
    monkeypatch.setattr(loop, "_one_epoch", lambda *_: pytest.fail("training began"))
    with pytest.raises(UserError, match="file"):
        tiny(None, "convnet-1", photos, "student", out)


def test_a_finished_run_is_returned_at_once(tiny, image_folder, snapshot, monkeypatch):
    photos = image_folder(["a", "b", "c"])
    first = tiny(None, "convnet-1", photos, "student", "mine", milestones=(0.5,))
    before = snapshot()
    monkeypatch.setattr(loop, "_one_epoch", lambda *_: pytest.fail("it is trained again"))
    again = tiny(None, "convnet-1", photos, "student", "mine", milestones=(0.5,), resume=True)
    assert again == first
    assert again.to_json() == first.to_json()
    pixels = torch.rand(2, 3, 8, 8)
    with torch.no_grad():
        assert torch.equal(again.student(pixels)[1], first.student(pixels)[1])
    assert snapshot() == before


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"lr": 0.2}, r"settings\.train\.lr was 0\.1, is now 0\.2"),
        ({"epochs": 3}, r"epochs was 2, is now 3"),
        ({"shots": 3}, r"shots was None, is now 3"),
        ({"milestones": (0.5,)}, "milestones was"),
        ({"seed": 1}, "seed was 0, is now 1"),
    ],
)
def test_resume_with_other_settings_names_them(tiny, image_folder, snapshot, change, named):
    photos = image_folder(["a", "b"])
    tiny(None, "convnet-1", photos, "student", "mine")
    before = snapshot()
    with pytest.raises(UserError, match=named):
        tiny(None, "convnet-1", photos, "student", "mine", resume=True, **change)
    assert snapshot() == before


def test_resume_with_another_student_teacher_method_or_data(tiny, teacher, image_folder):
    known, other, photos = teacher(["a", "b"]), teacher(["a", "b"], "other"), image_folder(["a", "b"])
    more = image_folder(["a", "b"], name="more")
    tiny(known, "convnet-1", photos, "refilled", "mine")
    for named, run in (
        ("student was convnet-1, is now wrn-10-1", (known, "wrn-10-1", photos, "refilled")),
        ("teacher was teacher, is now other", (other, "convnet-1", photos, "refilled")),
        ("method was refilled, is now kd", (known, "convnet-1", photos, "kd")),
        ("data was photos, is now more", (known, "convnet-1", more, "refilled")),
    ):
        with pytest.raises(UserError, match=named):
            tiny(*run, "mine", resume=True)


def test_a_run_that_is_not_there_yet_may_be_resumed(tiny, image_folder):
    assert tiny(None, "convnet-1", image_folder(["a", "b"]), "student", "mine", resume=True).out == "mine"


@pytest.mark.parametrize("between", [0.0, 1000.0])
@pytest.mark.parametrize("stop", [1, 3, 4, 6])
def test_an_interrupted_run_ends_as_if_it_had_not_been(
    tiny, teacher, image_folder, interrupt_in, between, stop
):
    known, photos = teacher(["a", "b"]), image_folder(["c", "d"])
    settings = {"epochs": 6, "checkpoint_seconds": between}
    whole = tiny(known, "convnet-1", photos, out="whole", **settings)
    interrupt_in(stop)
    with pytest.raises(KeyboardInterrupt):
        tiny(known, "convnet-1", photos, out="mine", **settings)
    assert not Path("mine/result.json").exists()
    resumed = tiny(known, "convnet-1", photos, out="mine", resume=True, **settings)
    assert resumed.accuracy == whole.accuracy
    mine, theirs = read_network("mine").state_dict(), read_network("whole").state_dict()
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    assert epochs_logged("mine") == epochs_logged("whole")


def test_an_interrupted_run_is_no_teacher_yet(tiny, image_folder, interrupt_in):
    photos = image_folder(["a", "b"])
    interrupt_in(2)
    with pytest.raises(KeyboardInterrupt):
        tiny(None, "convnet-1", photos, "student", "half")
    with pytest.raises(UserError, match="half has no finished student yet"):
        tiny("half", "convnet-1", photos)


def test_a_damaged_checkpoint_is_named_and_deleting_it_starts_anew(tiny, image_folder, interrupt_in):
    photos = image_folder(["a", "b"])
    interrupt_in(3)
    settings = {"epochs": 4, "checkpoint_seconds": 0.0}
    with pytest.raises(KeyboardInterrupt):
        tiny(None, "convnet-1", photos, "student", "mine", **settings)
    path = Path("mine/checkpoint/last.safetensors")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UserError, match=r"last\.safetensors is damaged.*delete it"):
        tiny(None, "convnet-1", photos, "student", "mine", resume=True, **settings)
    path.unlink()
    tiny(None, "convnet-1", photos, "student", "mine", resume=True, **settings)
    assert epochs_logged("mine") == [("classifier", epoch) for epoch in (1, 2, 3, 4)]


@pytest.mark.parametrize("name", ["config.json", "result.json"])
@pytest.mark.parametrize("content", ["{", "[]", '{"run": 3}', "{}", "\udce9"])
def test_a_damaged_file_of_a_finished_run_is_named(tiny, image_folder, name, content):
    photos = image_folder(["a", "b"])
    tiny(None, "convnet-1", photos, "student", "mine")
    Path("mine", name).write_text(content, errors="surrogateescape")
    with pytest.raises(UserError, match=f"mine.*{name}|other settings|damaged"):
        tiny(None, "convnet-1", photos, "student", "mine", resume=True)


@pytest.mark.parametrize(
    "wrong",
    [
        {"augment": "nonsense"},
        {"epochs": 1},
        {"classes": "c,x"},
        {"shots": 99},
        {"momentum": -1.0},
        {"weight_decay": -1.0},
        {"lr": 1e60},
        {"image_size": 0},
        {"tau_teacher": 0.0},
        {"comparison_tau_student": -1.0},
        {"max_impostors": 0},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_refused_run_leaves_no_folder(tiny, teacher, image_folder, wrong):
    known, photos = teacher(["a", "b"]), image_folder(["c", "d"])
    with pytest.raises(UserError):
        tiny(known, "convnet-1", photos, out="mine", **wrong)
    assert not Path("mine").exists()
