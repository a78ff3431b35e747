"""The pages in results/ are what the ledger says, and nothing else."""

import re
import shlex
from pathlib import Path

import pytest

RESULTS = Path(__file__).parents[2] / "results"
_MADE_BY = re.compile(r"^Made by `refilled (bench .* --render.*)`\.$", re.MULTILINE)
PAGES = {
    path.name: made[1] for path in sorted(RESULTS.glob("*.md")) if (made := _MADE_BY.search(path.read_text()))
}


def test_there_are_pages():
    assert {"cifar100-gkd.md", "shots.md", "miniimagenet-fewshot.md"} <= PAGES.keys()


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_what_its_command_makes(command, tmp_path, monkeypatch, page):
    """After a change to a table or the ledger: run the command at the page's foot."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "ledger.jsonl").symlink_to(RESULTS / "ledger.jsonl")
    code, _, told = command(*shlex.split(PAGES[page]))
    assert code == 0, told
    assert (tmp_path / "results" / page).read_text() == (RESULTS / page).read_text()
