"""What git tracks: its size, the gallery of figures, and that links of pages lead to tracked files."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from PIL import Image

import lstm_trt as lab
from tests.conftest import ROOT, ran, sampled

GALLERY = ROOT / "figures/README.md"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *(ROOT / "data").glob("**/README.md"), GALLERY]
PAGES += sorted((ROOT / "notebooks").glob("*.ipynb"))
PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)]+)\)")

pytestmark = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout")


def git(*arguments: str, status: int = 0) -> list[str]:
    """The lines or, with -z, the names that git prints, also in a checkout of another user."""
    trusted = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
    done = ran("git", *arguments, status=status, env=os.environ | trusted)
    return re.split("[\0\n]", done.stdout.rstrip("\0\n"))


@pytest.fixture(scope="module")
def tracked() -> list[Path]:
    found = [ROOT / name for name in git("ls-files", "-z")]
    assert len(found) > 300 and ROOT / "README.md" in found
    return found


def mib(paths: list[Path]) -> float:
    return sum(path.stat().st_size for path in paths if path.is_file()) / 2**20


def test_the_tracked_files_stay_small(tracked):
    """History keeps each version of each of them; figures are drawn from data, and are not tracked."""
    assert 5 < mib(tracked) < 46


def test_the_gallery_shows_all_tracked_figures(tracked):
    figures = {path for path in tracked if path.is_relative_to(GALLERY.parent)} - {GALLERY}
    shown = PICTURE.findall(GALLERY.read_text())
    assert {GALLERY.parent / path for _, path in shown} == figures and len(shown) == len(figures)
    assert 10 <= len(figures) <= 24 and mib(list(figures)) < 4
    kinds = [re.sub(r"[-\d.]*(-by-.*|-\d|-000|-2x.*)?$", "", path.stem) for path in figures]
    assert len(set(kinds)) == len(kinds)
    assert all(len(text) > 40 for text, _ in shown)


CALLS = re.findall(r"`(lab\.plots\.[^`]+)`\n\n!\[[^\]]*\]\(([^)]+)\)", GALLERY.read_text())


@pytest.mark.heavy
@sampled(2)
@pytest.mark.parametrize(("call", "picture"), CALLS, ids=[call.split("(")[0] for call, _ in CALLS])
def test_the_gallery_has_the_call_that_draws_each(call, picture):
    folder = (Path("data") / picture).parent
    drawn = eval(call, {"lab": lab, "runs": lab.load(ROOT / folder)})
    with Image.open(GALLERY.parent / picture) as tracked:
        assert drawn.alt == tracked.text["Description"]


def test_all_pictures_of_the_lab_have_a_call():
    pictures = [path for _, path in PICTURE.findall(GALLERY.read_text()) if "/literature/" not in path and "/" in path]
    assert [path for _, path in CALLS] == pictures


def test_git_ignores_all_other_figures(tracked):
    others = [f"figures/{name}" for name in ("sweep-tails.png", "epyc/grid/sweep-tails.png", "xeon/new/a.svg", "a.pdf")]
    assert git("check-ignore", "--no-index", *others) == others
    kept = [str(path.relative_to(ROOT)) for path in tracked if path.is_relative_to(GALLERY.parent)]
    git("check-ignore", "--no-index", *kept, status=1)  # none of them


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_tracked_files(page, tracked):
    folders = {folder for path in tracked for folder in path.parents}
    for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
        place = Path(os.path.normpath(page.parent / link))
        assert link.startswith("https://") or place in tracked or place in folders, link
