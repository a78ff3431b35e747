"""Names of models and of classes, and what is imported for them."""

import subprocess
import sys

import pytest

from refilled.errors import UserError
from refilled.labels import LabelSpace
from refilled.models import load
from refilled.models.extras import import_extra
from refilled.models.names import made_unique


def test_classes_may_be_a_label_space_names_or_a_number():
    space = LabelSpace(["cat", "dog"])
    assert load("convnet-1", space).classes == space
    assert load("convnet-1", ["cat", "dog"]).classes == space
    assert load("convnet-1", 3).classes == LabelSpace(["class 0", "class 1", "class 2"])


@pytest.mark.parametrize(
    ("classes", "word"),
    [
        (None, "classes"),
        (0, "at least one"),
        ([], "at least one"),
        ("cats", "list of names"),
        (["a", "A"], "one name"),
    ],
)
def test_fresh_weights_need_proper_classes(classes, word):
    with pytest.raises(UserError, match=word):
        load("convnet-1", classes)


@pytest.mark.parametrize(
    ("spec", "guess"),
    [("resmet-32", "resnet-32"), ("WRN-16-2", "wrn-16-2"), ("mobilnet-0.5", "mobilenet-0.5")],
)
def test_an_unknown_name_is_answered_with_the_nearest(spec, guess):
    with pytest.raises(UserError, match=f"unknown model '{spec}'; did you mean '{guess}'"):
        load(spec, 2)


def test_an_unknown_name_lists_the_kinds():
    with pytest.raises(UserError) as refused:
        load("zzz", 2)
    assert all(kind in str(refused.value) for kind in ("wrn-16-2", "timm:NAME", "hf:", "run:FOLDER"))


@pytest.mark.parametrize(
    ("names", "unique"),
    [
        (["crane", "owl", "crane"], ["crane", "owl", "crane (2)"]),
        (["maillot", "Maillot", "maillot"], ["maillot", "Maillot (2)", "maillot (3)"]),
        (["a", "a (2)", "a"], ["a", "a (2)", "a (3)"]),
        (["tench", "owl"], ["tench", "owl"]),
    ],
)
def test_repeated_names_of_a_checkpoint_are_numbered(names, unique):
    assert list(made_unique(names)) == unique


def test_importing_the_room_imports_no_optional_library():
    code = (
        "import refilled.models, sys; optional = {'timm', 'transformers', 'torchvision', 'sklearn'}; "
        "print(sorted(optional & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("spec", "module", "extra"), [("timm:resnet18", "timm", "timm"), ("hf:some/model", "transformers", "hf")]
)
def test_a_missing_library_is_named_with_its_extra(monkeypatch, spec, module, extra):
    monkeypatch.setattr("refilled.models.extras.find_spec", lambda name: None)
    with pytest.raises(UserError) as refused:
        load(spec)
    assert str(refused.value) == f"{extra}: models need the {extra} extra: pip install 'refilled[{extra}]'"


def test_a_torchvision_for_another_torch_is_named_with_both_versions(monkeypatch):
    def fail(name):
        raise RuntimeError("operator torchvision::other does not exist")

    versions = {"torch": "2.13.0", "torchvision": "0.1.2"}
    monkeypatch.setattr("refilled.models.extras.find_spec", lambda name: object())
    monkeypatch.setattr("refilled.models.extras.version", versions.__getitem__)
    monkeypatch.setattr("refilled.models.extras.importlib.import_module", fail)
    with pytest.raises(
        UserError, match=r"torchvision 0\.1\.2 does not work with torch 2\.13\.0.*Install the two together"
    ):
        import_extra("timm", "timm")


def test_a_torchvision_whose_operators_are_not_there_is_imported_all_the_same():
    """As a person has it who installs torch for CPUs, and timm."""
    code = """
import sys
from refilled.models.extras import import_extra, _SCHEMAS
import_extra("timm", "timm")
assert "torchvision" in sys.modules and len(_SCHEMAS) <= 1
from torchvision.transforms import v2
import_extra("transformers", "hf")
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_other_failures_of_an_import_are_not_hidden(monkeypatch):
    def fail(name):
        raise RuntimeError("something else")

    monkeypatch.setattr("refilled.models.extras.find_spec", lambda name: object())
    monkeypatch.setattr("refilled.models.extras.importlib.import_module", fail)
    with pytest.raises(RuntimeError, match="something else"):
        import_extra("timm", "timm")
