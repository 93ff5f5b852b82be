"""The site that `make docs` builds: every public name has its page, no link is broken, nothing comes from elsewhere."""

from __future__ import annotations

import inspect
import re
import shutil
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

import lstm_trt as lab
from lstm_trt import registry
from tests.conftest import ROOT, ran

pytestmark = pytest.mark.heavy  # only `make docs`, which CI runs before these, installs Sphinx

PICTURES = [f"plots.{name}" for name in registry.table("PICTURES")]
#: What a browser fetches by itself. A link, which a reader follows, may lead elsewhere.
FETCHED = re.compile(
    r"""<(?:link|script|img|iframe|source|object)\b[^>]*\b(?:src|srcset|href|data)=["']?((?:https?:)?//[^"'> ]*)"""
    r"""|@import\s+["']((?:https?:)?//[^"']*)"""
    r"""|url\(\s*["']?((?:https?:)?//[^"')]*)"""
)


def build(source: Path, out: Path, status: int = 0) -> str:
    """Build the site of `source`; returns what is said of broken links."""
    pytest.importorskip("furo")
    options = ["-c", source / "docs", "-d", out / "doctrees", "-b", "html", "-q", "-W", "--keep-going"]
    return ran(sys.executable, "-m", "sphinx", *options, source, out / "site", status=status).stderr


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("site")
    build(ROOT, out)
    return out / "site"


@pytest.mark.parametrize("name", [*registry.table("API"), *PICTURES])
def test_a_public_name_has_its_page(site, name):
    page = (site / f"docs/api/{name}.html").read_text()
    assert f"<h1>lab.{name}<" in page
    found = getattr(lab.plots, name.removeprefix("plots.")) if name in PICTURES else getattr(lab, name)
    if inspect.ismodule(found):
        assert [figure for figure in PICTURES if f'href="{figure}.html"' not in page] == []
    else:
        assert f'id="lstm_trt.{name}"' in page


def test_a_docstring_links_the_names_that_it_mentions(site):
    page = (site / "docs/api/plots.heat_map.html").read_text()
    for name in ("load", "verdict", "UsageError"):
        assert f'href="{name}.html#lstm_trt.{name}"' in page


def test_the_first_page_lists_every_page(site):
    first = (site / "index.html").read_text()
    assert first == (site / "README.html").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert f'href="docs/{page.stem}.html">' in first
    assert 'href="docs/api/index.html">' in first


def test_a_link_leads_to_what_is_in_the_site(site):
    followed = set()
    for page in site.rglob("*.html"):
        for link in re.findall(r'<(?:a|img)\b[^>]*\b(?:href|src)="([^"#?:]+)[^":]*"', page.read_text()):
            followed.add((page.parent / unquote(link)).resolve())
    assert [path for path in followed if not path.is_file()] == []
    notebooks = {path.name for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert notebooks <= {path.name for path in followed}


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ('<link rel="stylesheet" href="https://fonts.example/a.css">', "https://fonts.example/a.css"),
        ("<script src=//cdn.example/a.js></script>", "//cdn.example/a.js"),
        ('@import "https://a.example/b.css";', "https://a.example/b.css"),
        ("src: url(https://a.example/b.woff2)", "https://a.example/b.woff2"),
        ('<a href="https://a.example">there</a><img src="_images/a.png">', None),
    ],
)
def test_what_a_browser_fetches_from_elsewhere_is_found(text, address):
    found = FETCHED.search(text)
    assert address == (found and next(filter(None, found.groups())))


def test_the_site_asks_for_nothing_from_elsewhere(site):
    read = [path for path in site.rglob("*") if path.suffix in (".html", ".css", ".js", ".svg")]
    assert {".html", ".css", ".js"} <= {path.suffix for path in read}
    assert {path: found[0] for path in read if (found := FETCHED.search(path.read_text()))} == {}


GOOD = ["docs/page.md", "docs/page.md#a-heading", "data/README.md", "LICENSE", "#another"]
BROKEN = ["docs/gone.md", "docs/page.md#no-heading", "data/gone.csv", "#nowhere"]


def test_a_broken_link_fails(tmp_path):
    source = tmp_path / "source"
    pages = {"docs/page.md": "# Page\n\n## A heading\n", "docs/public_api.py": "def write(folder): ...\n"}
    pages |= {f"{name}.md": "# Text\n" for name in ("data/README", "data/published/README", "figures/README")}
    pages |= {"docs/api/index.rst": "API\n===\n", "LICENSE": "MIT"}
    links = "".join(f"[here]({link})\n" for link in GOOD)
    pages["README.md"] = f"# Title\n\n## Another\n\n{links}"
    for name, text in pages.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text)
    shutil.copy(ROOT / "docs/conf.py", source / "docs")
    assert build(source, tmp_path / "good") == ""
    broken = "".join(f"[here]({link})\n" for link in BROKEN)
    (source / "README.md").write_text(f"{pages['README.md']}{broken}![figure](figures/gone.png)\n")
    said = build(source, tmp_path / "broken", status=1)
    for link in ("docs/gone.md", "no-heading", "data/gone.csv", "nowhere", "figures/gone.png"):
        assert sum(link in line for line in said.splitlines()) == 1, said
