"""The verdict: did the teacher help?"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from refilled import UserError, compare
from refilled.models import load
from refilled.runs import Result, Verdict

TINY = {"epochs": 2, "batch_size": 8, "progress": False, "device": "cpu"}


def result(accuracy, seed=0, method="refilled", images=100, seconds=2.0):
    return Result(
        method=method,
        seed=seed,
        epochs=5,
        accuracy=accuracy,
        top5=None,
        ncm=accuracy,
        one_nn=accuracy,
        per_class={},
        val_accuracy=None,
        test_images=images,
        seconds=seconds,
        overlap=0.5,
        teacher_ncm=0.7,
        out=None,
    )


def verdict(with_teacher, alone, images=100, method="refilled"):
    return Verdict(
        tuple(result(share, seed, method, images) for seed, share in enumerate(with_teacher)),
        tuple(result(share, seed, "student", images) for seed, share in enumerate(alone)),
    )


@pytest.mark.parametrize(
    ("with_teacher", "alone", "answer", "gain", "doubt"),
    [
        ([0.80, 0.82, 0.84], [0.70, 0.71, 0.75], "helped", 0.10, 1.96 * (12 / 104 * 92 / 104 / 104) ** 0.5),
        ([0.70, 0.71, 0.75], [0.80, 0.82, 0.84], "hurt", -0.10, 1.96 * (12 / 104 * 92 / 104 / 104) ** 0.5),
        ([0.80, 0.70], [0.70, 0.75], "unclear", 0.025, 12.706 * 0.15 / 2**0.5 / 2**0.5),
        ([0.8, 0.8], [0.8, 0.8], "unclear", 0.0, 1.96 * (2 / 104 * 102 / 104 / 104) ** 0.5),
        ([0.9], [0.5], "helped", 0.4, 1.96 * (0.09 / 100 + 0.25 / 100) ** 0.5),
        ([0.5], [0.9], "hurt", -0.4, 1.96 * (0.09 / 100 + 0.25 / 100) ** 0.5),
        ([0.52], [0.5], "unclear", 0.02, 1.96 * (0.2496 / 100 + 0.25 / 100) ** 0.5),
    ],
)
def test_answer_gain_and_doubt(with_teacher, alone, answer, gain, doubt):
    found = verdict(with_teacher, alone)
    assert found.answer == answer
    assert found.gain == pytest.approx(gain)
    assert found.doubt == pytest.approx(doubt, abs=1e-9)
    assert found.differences == pytest.approx([a - b for a, b in zip(with_teacher, alone)])


def test_many_images_leave_the_doubt_to_the_seeds():
    found = verdict([0.80, 0.82, 0.84], [0.70, 0.71, 0.75], images=5000)
    assert found.doubt == pytest.approx(4.303 * 0.01 / 3**0.5)


def test_a_handful_of_images_proves_nothing():
    """The same difference on 4 images is unclear that on 4,000 is clear."""
    assert verdict([0.75], [0.5], images=4).answer == "unclear"
    assert verdict([0.75], [0.5], images=4000).answer == "helped"


def test_two_lucky_seeds_on_three_images_prove_nothing():
    """Equal differences have no spread, but one image each is no proof that the teacher helps."""
    assert verdict([2 / 3, 2 / 3], [1 / 3, 1 / 3], images=3).answer == "unclear"
    assert verdict([1.0], [2 / 3], images=3).answer == "unclear"
    assert verdict([1.0], [0.0], images=1).answer == "unclear"


def test_sentences():
    clear = verdict([0.80, 0.82, 0.84], [0.70, 0.71, 0.75], images=5000)
    assert clear.sentence() == ("The teacher helped: +10.00 points (95 % interval +7.52 to +12.48, 3 seeds).")
    assert verdict([0.5], [0.9]).sentence().startswith("The teacher did harm: -40.00 points")
    once = verdict([0.5], [0.9]).sentence()
    assert once.endswith("one seed: of the draw of test images alone). Repeat with --seeds 3 to be surer.")
    narrow = verdict([0.5, 0.51, 0.5], [0.5, 0.5, 0.51], images=5000)
    assert narrow.sentence().startswith("No clear difference: +0.00 points")
    wide = verdict([0.4, 0.7], [0.6, 0.6], images=5000)
    assert wide.sentence().startswith("Too early to say: -5.00 points")
    assert wide.sentence().endswith("--seeds 5.")


def test_a_teacher_that_knows_these_classes_worse_than_the_student_is_named():
    assert "70.0 %) than the student alone (90.0 %)" in verdict([0.8, 0.8], [0.9, 0.9]).hint()
    assert verdict([0.7, 0.7], [0.6, 0.6]).hint() == ""
    assert verdict([0.95, 0.95], [0.8, 0.8], images=5000).hint() == ""  # it helped all the same


@pytest.mark.parametrize("taught", [0.5, 0.3])  # whether it helped or did harm
def test_a_teacher_that_is_better_than_its_student_is_named(taught):
    hint = verdict([taught, taught], [0.4, 0.4], images=5000).hint()
    assert "better (70.0 %) than the student" in hint
    assert "--unlabelled" in hint
    other = verdict([taught, taught], [0.4, 0.4], images=5000, method="rkd").hint()
    assert "student does: where its size is no problem" in other  # it has no use for such images
    assert verdict([0.69, 0.69], [0.4, 0.4], images=5000).hint() == ""  # hardly better


def test_rows_and_json():
    found = verdict([0.8, 0.9], [0.7, 0.7])
    assert found.rows() == [
        ("refilled", "85.00 ± 7.07 %", "2.0 s", "5"),
        ("student alone", "70.00 ± 0.00 %", "2.0 s", "5"),
    ]
    assert verdict([0.8], [0.7]).rows()[0][1] == "80.00 %"
    data = json.loads(json.dumps(found.to_json()))
    assert (data["answer"], data["overlap"], len(data["alone"])) == (found.answer, 0.5, 2)
    assert data["gain"] == found.gain


def test_layout_of_a_comparison(teacher, image_folder):
    known, photos = teacher(["a", "b"]), image_folder(["c", "d"])
    found = compare(known, "convnet-1", photos, out="mine", seeds=2, seed=4, strength=3.0, **TINY)
    runs = {str(path.parent) for path in Path("mine").rglob("result.json")}
    others = ["mine/seeds/refilled-seed5", "mine/seeds/student-seed4", "mine/seeds/student-seed5"]
    assert runs == {"mine", *others}
    assert [r.seed for r in found.with_teacher] == [r.seed for r in found.alone] == [4, 5]
    assert {r.method for r in found.alone} == {"student"}
    assert {r.epochs for r in (*found.with_teacher, *found.alone)} == {2}
    assert json.loads(Path("mine/verdict.json").read_text()) == found.to_json()
    for run in runs:
        assert len(Path(run, "metrics.jsonl").read_text().splitlines()) == 2
    assert all(
        path.suffix in (".json", ".jsonl", ".safetensors")
        for path in Path("mine").rglob("*")
        if path.is_file()
    )
    settings = json.loads(Path("mine/config.json").read_text())["run"]["settings"]
    assert settings["method"]["strength"] == 3.0


@pytest.mark.parametrize("mixtures", [False, True])
def test_the_student_alone_sees_mixtures_where_the_method_does(teacher, image_folder, mixtures):
    known, photos = teacher(["a", "b"]), image_folder(["c", "d"])
    compare(known, "convnet-1", photos, out="mine", mixtures=mixtures, **TINY)
    for run in ("mine", "mine/seeds/student-seed0"):
        settings = json.loads(Path(run, "config.json").read_text())["run"]["settings"]
        assert settings["method"]["mixtures"] is mixtures


def test_a_comparison_is_resumed_and_extended(teacher, image_folder):
    known, photos = teacher(["a", "b"]), image_folder(["c", "d"])
    first = compare(known, "convnet-1", photos, out="mine", alone=False, **TINY)
    assert first.alone == ()
    assert not Path("mine/verdict.json").exists()
    more = compare(known, "convnet-1", photos, out="mine", seeds=2, resume=True, **TINY)
    assert more.with_teacher[0] == first.with_teacher[0]
    assert len(more.with_teacher) == len(more.alone) == 2


def test_a_verdict_is_not_given_up_for_one_over_fewer_seeds(teacher, image_folder):
    known, photos = teacher(["a", "b"]), image_folder(["c", "d"])
    compare(known, "convnet-1", photos, out="mine", seeds=2, **TINY)
    before = Path("mine/verdict.json").read_bytes()
    with pytest.raises(UserError, match=r"mine/verdict.json is over 2 seeds already; .*: --seeds 2"):
        compare(known, "convnet-1", photos, out="mine", resume=True, **TINY)
    assert Path("mine/verdict.json").read_bytes() == before
    for damaged in ('{"alone": null}', '{"alone": 3}', "{}"):
        Path("mine/verdict.json").write_text(damaged)
        assert compare(known, "convnet-1", photos, out="mine", resume=True, **TINY).alone


def test_nothing_is_written_without_out(teacher, image_folder, snapshot):
    known, photos = teacher(["a", "b"]), image_folder(["c", "d"])
    before = snapshot()
    compare(known, "convnet-1", photos, **TINY)
    assert snapshot() == before


def test_what_a_comparison_refuses(teacher, image_folder):
    known, photos = teacher(["a", "b"]), image_folder(["c", "d"])
    for seeds in (0, -1):
        with pytest.raises(UserError, match=f"seeds must be at least 1, not {seeds}"):
            compare(known, "convnet-1", photos, seeds=seeds, **TINY)
    with pytest.raises(UserError, match="give the student by name"):
        compare(known, load("convnet-1", ["c", "d"], image_size=8), photos, **TINY)
    with pytest.raises(UserError, match=r"unknown setting .*'strenght'; did you mean 'strength'"):
        compare(known, "convnet-1", photos, out="mine", strenght=3, **TINY)
    assert not Path("mine").exists()


def test_the_student_alone_is_not_compared_with_itself(image_folder):
    with pytest.raises(UserError, match="nothing to compare"):
        compare(None, "convnet-1", image_folder(["c", "d"]), "student", "mine", seeds=2, **TINY)
    assert not Path("mine").exists()


def test_an_interval_ends_where_accuracies_do():
    assert "95 % interval -100.00 to +100.00" in verdict([0.1, 0.9], [0.9, 0.1]).sentence()


def test_a_verdict_on_students_that_keep_says_what_it_is_about():
    found = verdict([0.9, 0.91, 0.92], [0.5, 0.51, 0.52])
    keeping = replace(found, keeping=True)
    assert "own classes" not in found.sentence()
    assert keeping.sentence() == f"{found.sentence()} This is about images of the student's own classes."
    assert [row[0] for row in keeping.rows()] == ["refilled", "student that only keeps"]
    assert found.hint() == keeping.hint() == ""
    worse = verdict([0.5, 0.5], [0.4, 0.4], images=5000)
    assert worse.hint()
    assert replace(worse, keeping=True).hint() == ""  # the teacher's number is among fewer classes
