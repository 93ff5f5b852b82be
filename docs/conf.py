"""How Sphinx makes a site of README.md, the pages in docs/ and the public API: `make docs`."""

import shutil
import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))

import public_api  # noqa: E402

#: The pages in the order of the table of contents; others follow by name.
ORDER = ["measuring", "networks", "verdict", "compare", "deploy", "commands", "python", "glossary"]
ORDER += ["gpu", "cluster", "hook", "file-format", "literature", "evidence", "contributing"]
OUTSIDE = ["data/README", "data/published/README", "figures/README"]

project = html_title = "lstm_trt"
copyright = "the lstm_trt authors"
root_doc = "README"
include_patterns = ["README.md", "docs/*.md", "docs/api/*.rst", *(f"{page}.md" for page in OUTSIDE)]
exclude_patterns = [".*", "build"]  # folders that are not even searched
extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_heading_anchors = 4
html_theme = "furo"
html_copy_source = False
default_role = "py:obj"  # `name` in docstrings is code, and a link where it is a public name
add_module_names = False
python_maximum_signature_line_length = 80
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_preserve_defaults = True
autodoc_inherit_docstrings = False  # else members without one have that of their type


def add_contents(app, page: str, text: list[str]) -> None:
    """The table of contents stands at the end of README.md."""
    if page == root_doc:
        names = {path.stem for path in DOCS.glob("*.md")}
        pages = [name for name in ORDER if name in names] + sorted(names - {*ORDER})
        entries = [*(f"docs/{name}" for name in pages), "docs/api/index", *OUTSIDE]
        text[0] += "\n".join(["\n```{toctree}", ":hidden:", *entries, "```\n"])


def sign(app, kind, name, found, options, signature: str | None, returned: str | None) -> tuple:
    """Sphinx cannot parse `<factory>`, which dataclasses write for a default that is made anew each time."""
    return (signature and signature.replace("<factory>", "...")), returned


def find_public(app, env, node, text):
    """A docstring of any module names `load`, or `lab.load`."""
    target = f"lstm_trt.{node['reftarget'].removeprefix('lab.')}"
    return env.domains["py"].resolve_xref(env, node["refdoc"], app.builder, "obj", target, node, text)


def finish(app, error) -> None:
    """Linked files open in the browser, and the first page has the name that servers look for."""
    if error:
        return
    site = Path(app.outdir)
    for page in site.rglob("*.html"):
        page.write_text(page.read_text().replace(' download=""', ""))
    shutil.copy(site / f"{root_doc}.html", site / "index.html")


def setup(app) -> None:
    public_api.write(DOCS / "api")
    app.connect("source-read", add_contents)
    app.connect("autodoc-process-signature", sign)
    app.connect("missing-reference", find_public)
    app.connect("build-finished", finish)
