"""refilled bench: what is asked for together, and pages that others read."""

from pathlib import Path

import pytest

from refilled.suite import TABLES, Cell, Ledger, get_table

from .outcomes import refusal


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--render",), "--render needs the name of a table: refilled bench --list shows them"),
        (("--tune", "3"), "--tune needs the name of a table"),
        (("k-hat", "--render", "--tune", "2"), "--render and --tune are different things to do"),
        (("--figures", "overlap", "--render"), "--render and --figures are different things to do"),
        (("k-hat", "--figures", "overlap"), "leave out the table 'k-hat'"),
        (("--figures", "overlap", "--seeds", "0"), "--seeds must be at least 1, not 0"),
        (("k-hat", "--seeds", "-3"), "--seeds must be at least 1, not -3"),
        (("k-hat", "--tune-epochs", "3"), "--tune-epochs is for --tune"),
        (("k-hat", "--tune", "2", "--tune-epochs", "1"), "--tune-epochs must be at least 2, not 1"),
        (("--list", "--overlap", "55"), "--overlap does nothing with --list: leave it out"),
        (("--list", "--ledger", "file"), "--ledger does nothing with --list: leave it out"),
        (("--ledger", "file"), "--ledger of which table? refilled bench --list shows them"),
        (("--overlap", "55", "--seeds", "2"), "--overlap, --seeds of which table? refilled bench --list"),
        (
            ("k-hat", "--render", "--minutes", "3", "--keep-students"),
            "--minutes, --keep-students does nothing with --render",
        ),
        (("--figures", "all", "--method", "kd"), "--method does nothing with --figures"),
        (("k-hat", "--tune", "2", "--minutes", "9"), "--minutes does nothing with --tune"),
        (
            ("cifar100-gkd", "--method", "teacher-lr", "--student", "wrn-16-2"),
            "no cell for student wrn-16-2, method teacher-lr",
        ),
        (("cifar100-gdk", "--list"), "unknown table 'cifar100-gdk'; did you mean 'cifar100-gkd'"),
        (("k-hat", "--tiny", "--together", "-1"), "--together must be at least 1, not -1"),
        (("k-hat", "--tiny", "--together", "0"), "--together must be at least 1, not 0"),
        (("k-hat", "--minutes", "0"), "--minutes must be greater than 0"),
        (("k-hat", "--data", "nowhere"), "no such folder: nowhere; --data or REFILLED_DATA names the one"),
        (
            ("k-hat", "--tiny", "--work", "file"),
            "cannot write to file: not a directory; choose another --work",
        ),
        (
            ("k-hat", "--tiny", "--work", "file/in"),
            "cannot write to file/in: not a directory; choose another",
        ),
        (
            ("k-hat", "--tiny", "--ledger", "mine.jsonl"),
            "--ledger does nothing with --tiny, whose ledger is in",
        ),
        (
            ("k-hat", "--render", "--work", "mine"),
            "--work does nothing with --render, which reads the ledger",
        ),
        (("k-hat", "--render", "--tiny"), "tiny.jsonl to render k-hat from; run it first"),
        (
            ("miniimagenet-fewshot", "--keep-students"),
            "--keep-students is for tables of trainings; miniimage",
        ),
        (("--figures", "overlpa"), "unknown figure 'overlpa'; did you mean 'overlap'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_refused(command, tmp_path, monkeypatch, snapshot, options, said):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("mine")
    before = snapshot()
    assert said in refusal(command("bench", *options))
    assert snapshot() == before


def test_tables_are_shown_a_line_each(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = command("bench", "--list")
    assert code == 0
    *tables, hint = out.splitlines()
    assert [line.split()[0] for line in tables] == list(TABLES)
    assert "refilled bench TABLE --list" in hint


def test_one_table_is_shown_by_its_name(command, tmp_path, monkeypatch, torch_cpu):
    monkeypatch.chdir(tmp_path)
    code, out, _ = command("bench", "k-hat", "--list")
    assert code == 0
    assert "max_impostors: 1, 5, all" in out
    assert "0 of 18 cells (3 seeds) are in results/ledger.jsonl" in out
    assert "cifar100-gkd" not in out
    cell: Cell = get_table("k-hat").cell({"overlap": 0, "max_impostors": 1})
    Ledger(Path("own.jsonl")).append(
        cell, {"test_accuracy": 0.5, "ncm": 0.25, "epochs": 2, "seconds": 1.0}, torch_cpu
    )
    _, out, _ = command("bench", "k-hat", "--list", "--ledger", "own.jsonl")
    assert "1 of 18 cells (3 seeds) are in own.jsonl" in out


def test_a_run_of_one_seed_takes_no_other_seed_off_the_page(command, tmp_path, monkeypatch, torch_cpu):
    monkeypatch.chdir(tmp_path)
    table, ledger = get_table("k-hat"), Ledger(Path("results/ledger.jsonl"))
    cell: Cell = table.cell({"overlap": 0, "max_impostors": 1})
    for seed in range(3):
        measured = {"test_accuracy": 0.5, "ncm": 0.25 + seed / 100, "epochs": 2, "seconds": 1.0}
        ledger.append(cell.with_seed(seed), measured, torch_cpu)
    for options in ((), ("--seeds", "1"), ("--seeds", "3")):
        assert command("bench", "k-hat", "--render", *options)[0] == 0
        page = Path("results/k-hat.md").read_text()
        assert "26.00 ± 1.00 (paper 30.54)" in page
        assert "Made by `refilled bench k-hat --render`." in page
    for seed in (4, 5):  # seed 3 may have broken down
        measured = {"test_accuracy": 0.5, "ncm": 0.26, "epochs": 2, "seconds": 1.0}
        ledger.append(cell.with_seed(seed), measured, torch_cpu)
    for options in ((), ("--seeds", "1")):
        assert command("bench", "k-hat", "--render", *options)[0] == 0
        page = Path("results/k-hat.md").read_text()
        assert "26.00 ± 0.71 [5] (paper 30.54)" in page
        assert "Made by `refilled bench k-hat --render --seeds 6`." in page
    Path("results/ledger.jsonl").rename("other.jsonl")
    assert command("bench", "k-hat", "--render", "--ledger", "other.jsonl")[0] == 0
    assert "--render --seeds 6 --ledger other.jsonl`" in Path("k-hat.md").read_text()


def test_a_tiny_page_says_where_its_numbers_are(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ("k-hat", "--tiny", "--seeds", "1", "--overlap", "0", "--work", "mine")
    code, out, _ = command("bench", *options, "--where", "max_impostors=1")
    assert code == 0
    assert "Made by `refilled bench k-hat --render --seeds 1 --work mine --tiny`." in out
    again = command("bench", "k-hat", "--render", "--seeds", "1", "--work", "mine", "--tiny")
    assert again[0] == 0
    assert again[1].strip() in out


@pytest.fixture
def torch_cpu():
    import torch

    return torch.device("cpu")
