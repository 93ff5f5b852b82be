"""The notebook hook in real repositories, with real git and nbstripout: what is committed.

Repositories are copies of one in which `.githooks/install` ran once. PATH has git and a few
tools but no Python, HOME is empty and only the repository's configuration counts, so
each test also shows that the stored Python is enough, as for a commit from a GUI.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, ran, rest_is_heavy

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("nbstripout") is None, reason="needs nbstripout: pip install -e .[dev]"
    ),
    pytest.mark.skipif(shutil.which("git") is None, reason="needs git"),
]
HOOKS = ROOT / ".githooks"
FILES = ("pre-commit", "pre-merge-commit", "post-merge", "strip_staged.py")
TOOLS = ("git", "sh", "grep", "cut", "head", "cmp", "sed", "cat", "true", "false")


#: What kernels, papermill and nbclient write to a notebook's metadata, and to those of each cell.
RUN = {
    "language_info": {"codemirror_mode": {"name": "ipython", "version": 3}, "name": "python", "version": "3.12.1"},
    "papermill": {"duration": 1.5, "exception": None, "input_path": "a.ipynb", "parameters": {"n": 2}},
    "widgets": {"application/vnd.jupyter.widget-state+json": {"state": {}, "version_major": 2, "version_minor": 0}},
}
CELL_RUN = {
    "papermill": {"duration": 1.5, "exception": False, "status": "completed"},
    "execution": {"iopub.status.busy": "2026-01-01T00:00:00.000000Z"},
    "tags": [],
}


def notebook(text: str = "1", *, ran: bool = True, tags: tuple[str, ...] = (), **metadata) -> bytes:
    """A notebook, byte for byte as nbformat writes it, with or without what a run adds."""
    cell = {
        "cell_type": "code",
        "execution_count": 7 if ran else None,
        "id": "the-cell",
        "metadata": (CELL_RUN if ran else {}) | ({"tags": list(tags)} if tags else {}),
        "outputs": [{"name": "stdout", "output_type": "stream", "text": ["out\n"]}] if ran else [],
        "source": [text],
    }
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, **(RUN if ran else {}), **metadata}
    content = {"cells": [cell], "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return (json.dumps(content, indent=1, sort_keys=True) + "\n").encode()


def clean(text: str = "1") -> bytes:
    return notebook(text, ran=False)


class Repository:
    """A checkout, with git as a process."""

    def __init__(self, folder: Path, tools: Path):
        self.folder, self.tools = folder, tools
        self.environment = {
            "PATH": str(tools),
            "HOME": str(folder.parent),
            "LC_ALL": "C.UTF-8",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_EDITOR": "true",
            **{f"GIT_{who}_{what}": "tester" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
        }

    def run(self, *command: object, cwd: Path | None = None, **environment: object) -> subprocess.CompletedProcess:
        environment = {**self.environment, **{name: str(value) for name, value in environment.items()}}
        return subprocess.run(
            command, cwd=cwd or self.folder, env=environment, capture_output=True, stdin=subprocess.DEVNULL
        )

    def attempt(self, line: str, *words: object, **more) -> subprocess.CompletedProcess:
        """A git command, given as the words of a line and words that may have spaces."""
        return self.run("git", *line.split(), *words, **more)

    def git(self, line: str, *words: object, **more) -> bytes:
        """Standard output of a git command that must succeed."""
        done = self.attempt(line, *words, **more)
        assert done.returncode == 0, done
        return done.stdout

    def commit(self, *arguments: object, **more) -> None:
        """A commit that must succeed and leave no lock or draft behind."""
        self.git("commit -q -m", "a commit", *arguments, **more)
        assert self.leftovers() == []

    def refused(self, *arguments: object, **more) -> str:
        """The message, one line, of a commit that is refused; HEAD and the index are unchanged."""
        before = self.state()
        done = self.attempt("commit", *(arguments or ("-m", "refused")), **more)
        message = done.stderr.decode()
        assert done.returncode == 1 and message.startswith("pre-commit: ") and message.count("\n") == 1, done
        assert self.state() == before and self.leftovers() == []
        return message

    def state(self) -> tuple[bytes, bytes]:
        return self.attempt("rev-parse HEAD").stdout, self.git("ls-files -s -v -z")

    def leftovers(self) -> list[str]:
        folder = self.folder / ".git"
        if folder.is_file():  # a linked worktree or a submodule
            folder = self.folder / folder.read_text().removeprefix("gitdir: ").removesuffix("\n")
        return [file.name for file in folder.iterdir() if ".lock" in file.name or "lstmtrt" in file.name]

    def write(self, name: str, content: bytes, add: bool = True) -> Path:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        if add:
            self.git("--literal-pathspecs add -f --", name)
        return file

    def stage(self, text: str, name: str = "a.ipynb", add: bool = True) -> Path:
        """Write a notebook that was run, and stage it."""
        return self.write(name, notebook(text), add)

    def committed(self, name: str = "a.ipynb") -> bytes:
        return self.git("cat-file blob", f"HEAD:{name}")

    def staged(self, name: str = "a.ipynb") -> bytes:
        return self.git("cat-file blob", f":{name}")

    def parents(self) -> int:
        return len(self.git("rev-list --parents -1 HEAD").split()) - 1

    def follow(self, lines: str, **more) -> None:
        """Git commands that must succeed, one a line."""
        for line in lines.strip().splitlines():
            self.git(line, **more)

    def status(self) -> bytes:
        return self.git("status --porcelain --untracked-files=no")

    def strips(self, text: str, *arguments: object, name: str = "a.ipynb", **more) -> None:
        """A commit records a notebook without its outputs; the working copy keeps them.

        Not only the commit: were the index to keep the outputs, they would be staged again.
        """
        file = self.stage(text, name, add=not arguments)
        self.commit(*arguments, **more)
        assert self.committed(name) == self.staged(name) == clean(text)
        assert file.read_bytes() == notebook(text)

    def linked(self) -> Repository:
        """A linked worktree, on a branch of its own."""
        linked = Repository(self.folder.parent / "linked work", self.tools)
        self.git("worktree add -q", linked.folder, "-b", "branch")
        return linked

    def install(self, *arguments: object, status: int = 0) -> str:
        """What the installer says, on one line; it must end with this status."""
        done = self.run(sys.executable, self.folder / ".githooks/install", *arguments)
        message = (done.stderr if status else done.stdout).decode()
        assert done.returncode == status and re.fullmatch("hook: .*\n", message), done
        return message

    def install_refused(self, *arguments: object) -> str:
        return self.install(*arguments, status=2)

    def check(self, **environment: object) -> subprocess.CompletedProcess:
        return self.run(sys.executable, HOOKS / "strip_staged.py", "--check", **environment)


@pytest.fixture(scope="module")
def tools(tmp_path_factory) -> Path:
    """A folder for PATH with what git and the hook need, and no Python."""
    folder = tmp_path_factory.mktemp("tools")
    for name in TOOLS:
        (folder / name).symlink_to(shutil.which(name))
    return folder


@pytest.fixture
def plain(tmp_path, tools) -> Repository:
    """A repository without a commit and without the hook installed."""
    return new_repository(tmp_path / "plain", tools)


def new_repository(folder: Path, tools: Path, *options: str) -> Repository:
    shutil.copytree(HOOKS, folder / ".githooks", ignore=shutil.ignore_patterns("__pycache__"))
    repository = Repository(folder, tools)
    repository.git("init -q -b main --template=", *options)
    (folder / ".git/info").mkdir()
    (folder / ".git/info/exclude").write_text(".githooks/\n")
    return repository


@pytest.fixture(scope="module")
def template(tmp_path_factory, tools) -> Repository:
    repository = new_repository(tmp_path_factory.mktemp("template") / "work", tools)
    repository.install()
    repository.write("a.ipynb", clean("0"))
    repository.write("text", b"0\n")
    repository.commit("--no-verify")
    return repository


@pytest.fixture
def repository(template, tmp_path) -> Repository:
    """The hook is installed; HEAD has a clean notebook `a.ipynb` and a `text`."""
    shutil.copytree(template.folder, tmp_path / "work", symlinks=True)
    return Repository(tmp_path / "work", template.tools)


@pytest.fixture
def strip_staged(repository, monkeypatch):
    """The hook as a module in the repository, for tests that have to interfere."""
    monkeypatch.chdir(repository.folder)
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    for name in ("argv", "stdin"):  # which the module sets for nbstripout
        monkeypatch.setattr(sys, name, getattr(sys, name))
    specification = importlib.util.spec_from_file_location("strip_staged", HOOKS / "strip_staged.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


# --- What is stripped, and what is not ------------------------------------------


def test_only_what_is_staged_is_stripped_and_the_working_copy_keeps_its_outputs(repository):
    repository.stage("staged")
    file = repository.stage("unstaged", add=False)
    repository.write("text", b"unstaged\n", add=False)
    before = file.stat().st_mtime_ns
    repository.commit()
    assert repository.committed() == repository.staged() == clean("staged")
    assert (file.read_bytes(), file.stat().st_mtime_ns) == (notebook("unstaged"), before)
    assert repository.committed("text") == b"0\n"
    assert repository.status() == b" M a.ipynb\n M text\n"


def with_cells(cells: dict[str, tuple[str, ...]], *, ran: bool) -> dict:
    """A notebook with a cell for each id, with these tags."""
    whole = json.loads(notebook(ran=ran, title="my own"))
    made = {name: json.loads(notebook(name, ran=ran, tags=tags))["cells"][0] for name, tags in cells.items()}
    return whole | {"cells": [cell | {"id": name} for name, cell in made.items()]}


def test_what_belongs_to_the_notebook_stays_and_what_belongs_to_a_run_goes(repository):
    # CI has no settings of the user's own for nbstripout, and the hook must agree with CI.
    repository.git("config filter.nbstripout.extrakeys metadata.kernelspec")
    repository.git("config filter.nbstripout.keepmetadatakeys metadata.papermill")
    added = {"papermill": ("injected-parameters",), "failed": ("papermill-error-cell-tag",)}
    cells = {"given": ("parameters",), **added, "own": ("mine", "x"), "kept": ("keep_output",)}
    ran = with_cells(cells, ran=True)
    expected = with_cells({name: tags for name, tags in cells.items() if name not in added}, ran=False)
    expected["cells"][-1]["outputs"] = ran["cells"][-1]["outputs"]
    repository.write("a.ipynb", json.dumps(ran).encode())
    repository.commit()
    assert json.loads(repository.committed()) == expected


def test_format_3_is_stripped_and_where_nothing_is_to_strip_not_a_byte_changes(strip_staged):
    def format_3(**results) -> dict:
        cell = {"cell_type": "code", "input": ["1"], "language": "python", "metadata": {}, **results}
        return {"metadata": {"name": ""}, "nbformat": 3, "nbformat_minor": 0, "worksheets": [{"cells": [cell]}]}

    output = {"output_type": "stream", "stream": "stdout", "text": ["out"]}
    old = format_3(collapsed=False, outputs=[output], prompt_number=3)
    (sheet,) = json.loads(strip_staged.stripped(b"old.ipynb", json.dumps(old).encode()))["worksheets"]
    assert {"input": ["1"], "outputs": [], "prompt_number": None}.items() <= sheet["cells"][0].items()
    indented = json.dumps(json.loads(clean("1")), indent=4).encode() + b"\r\n\r\n"
    assert strip_staged.stripped(b"a.ipynb", indented) == indented


#: Service -> of what it writes to a cell what must go and what must stay, then of the notebook; `>`: inside an entry.
CELL, BOOK = "application/vnd.databricks.v1+cell", "application/vnd.databricks.v1+notebook"
SERVICES = {
    "colab": (
        ("executionInfo>user>userId", "outputId", "colab>base_uri", "colab>height", "colab>referenced_widgets"),
        ("cellView",),
        ("colab>provenance", "colab>authorship_tag", "colab>last_runtime", "colab>collapsed_sections"),
        ("colab>gpuType", "accelerator"),
    ),
    "colab, saved there once": (("colab>resources", "colab>background_save"), (), ("colab>provenance",), ()),
    "databricks": (
        (
            *(f"{CELL}>{key}" for key in ("cellMetadata>byteLimit", "startTime", "finishTime", "submitTime")),
            *(f"{CELL}>{key}" for key in ("inputWidgets", "nuid", "tableResultSettingsMap")),
        ),
        (f"{CELL}>showTitle", f"{CELL}>title"),
        (
            f"{BOOK}>notebookMetadata>mostRecentlyExecutedCommandWithImplicitDF>commandId",
            *(f"{BOOK}>{key}" for key in ("notebookOrigID", "widgets>src>currentValue", "widgets>src>nuid")),
            "notebookId",
        ),
        (f"{BOOK}>language", f"{BOOK}>notebookMetadata>pythonIndentUnit", f"{BOOK}>widgets>src>typedWidgetInfo>name"),
    ),
    "deepnote": (
        ("deepnote_to_be_reexecuted", "execution_millis", "execution_start", "source_hash", "execution_context_id"),
        ("cell_id", "deepnote_cell_type"),
        ("deepnote_notebook_id", "deepnote_persisted_session>createdAt", "deepnote_execution_queue"),
        (),
    ),
    "deepnote, tables": (("deepnote_table_loading", "deepnote_table_state>sortBy"), (), (), ()),
    "jupyter": (
        ("ExecuteTime>start_time", "collapsed", "execution>iopub", "heading_collapsed", "hidden", "scrolled"),
        ("slideshow>slide_type",),
        ("signature", "widgets>state", "papermill>duration", "language_info>version"),
        ("title",),
    ),
    "kaggle": (("_cell_guid", "_uuid", "trusted"), ("_kg_hide-input",), (), ("kaggle>accelerator",)),
    "snowflake": ((), ("name",), ("lastEditStatus>authorEmail",), ()),
    "vs code": ((), ("vscode>languageId",), ("vscode>interpreter>hash",), ()),
}


def metadata_of(*paths: str) -> dict:
    """Metadata with these entries."""
    made: dict = {}
    for path in paths:
        *outer, last = path.split(">")
        inner = made
        for key in outer:
            inner = inner.setdefault(key, {})
        inner[last] = "a value"
    return made


def test_what_services_write_goes_and_what_an_author_chose_there_stays(repository):
    for name, (goes, stays, notebook_goes, notebook_stays) in SERVICES.items():
        whole = json.loads(notebook(**metadata_of(*notebook_goes, *notebook_stays)))
        whole["cells"][0]["metadata"] |= metadata_of(*goes, *stays)
        repository.write(f"{name}.ipynb", json.dumps(whole).encode())
    repository.commit()
    kernel = json.loads(clean())["metadata"]
    for name, (_, stays, _, notebook_stays) in SERVICES.items():
        committed = json.loads(repository.committed(f"{name}.ipynb"))
        assert committed["metadata"] == kernel | metadata_of(*notebook_stays), name
        assert committed["cells"][0]["metadata"] == metadata_of(*stays), name


NAMES = [
    "with space.ipynb",
    ' "quoted".ipynb',
    "it's.ipynb",
    "dépôt.ipynb",
    "[ab]*?.ipynb",
    "new\nline.ipynb",
    "tab\t.ipynb",
    "-dash.ipynb",
    "--.ipynb",
    ":(top)magic.ipynb",
    "back\\slash.ipynb",
    "$(touch pwned) `touch pwned` %f.ipynb",
    "#.ipynb",
    ".ipynb",
    os.fsdecode(b"latin-\xe9.ipynb"),
    "fol der/sub [x]/deep.ipynb",
    "CAPITALS.IPYNB",
    "deep/Mixed.iPynb",
]


@pytest.mark.parametrize(
    "paths", [pytest.param([], id="staged", marks=pytest.mark.heavy), pytest.param(["--", *NAMES], id="paths")]
)
def test_any_name(repository, paths):
    """Under --literal-pathspecs, which git hands down to hooks, where `*.ipynb` then matches nothing."""
    for name in NAMES:
        repository.stage(ascii(name), name, add=False)
    repository.git("add -f", *(f":(top,literal){name}" for name in NAMES))
    repository.git("--literal-pathspecs commit -qm names", *paths)
    for name in NAMES:
        assert repository.committed(name) == repository.staged(name) == clean(ascii(name)), name
        assert (repository.folder / name).read_bytes() == notebook(ascii(name)), name
    assert not (repository.folder / "pwned").exists()


def test_each_kind_of_entry_stays_what_it_is(repository):
    """Modes, links, submodules, flags (a sparse checkout lives by them), and what `git add -N` announced."""
    for name in ("run", "sparse", "assumed"):
        repository.stage(name, f"{name}.ipynb")
    repository.write("new.ipynb", b"not even JSON yet", add=False)
    link = repository.folder / "link.ipynb"
    link.symlink_to("a.ipynb")
    (repository.folder / "dangling.ipynb").symlink_to("no\nwhere")
    (repository.folder / "module.ipynb").mkdir()
    repository.follow(f"""
add link.ipynb dangling.ipynb
add -N new.ipynb
update-index --chmod=+x run.ipynb
update-index --add --cacheinfo 160000,{"1" * 40},module.ipynb
update-index --skip-worktree sparse.ipynb
update-index --assume-unchanged assumed.ipynb""")
    (repository.folder / "sparse.ipynb").unlink()
    repository.commit()
    for name in ("run", "sparse", "assumed"):
        assert repository.committed(f"{name}.ipynb") == clean(name)
    modes = {line.split()[3]: line.split()[0] for line in repository.git("ls-tree HEAD").splitlines()}
    plain = dict.fromkeys((b"a.ipynb", b"assumed.ipynb", b"sparse.ipynb", b"text"), b"100644")
    links = dict.fromkeys((b"link.ipynb", b"dangling.ipynb"), b"120000")
    assert modes == {**plain, **links, b"run.ipynb": b"100755", b"module.ipynb": b"160000"}
    assert repository.committed("dangling.ipynb") == b"no\nwhere"
    flags = repository.git("ls-files -v").splitlines()
    assert {line for line in flags if line[:1] != b"H"} == {b"h assumed.ipynb", b"S sparse.ipynb"}
    assert repository.status() == b" A new.ipynb\n M run.ipynb\n"
    # A link that becomes a notebook.
    link.unlink()
    repository.strips("1", name="link.ipynb")


def test_a_rename_with_new_outputs_and_changes_that_need_no_python(repository):
    repository.git("mv a.ipynb b.ipynb")
    repository.strips("0", name="b.ipynb")
    assert repository.git("ls-tree --name-only HEAD") == b"b.ipynb\ntext\n"
    repository.git("config --unset lstmtrt.python")
    repository.git("rm -q -f b.ipynb")
    (repository.folder / "link.ipynb").symlink_to("nowhere")
    repository.git("add link.ipynb")
    repository.commit()
    assert repository.git("ls-tree --name-only HEAD") == b"link.ipynb\ntext\n"


@pytest.mark.heavy
def test_a_submodule_can_have_the_hook_itself(repository, plain):
    plain.git("add -f .githooks")
    plain.commit()
    path = {"PATH": f"{repository.tools}:/usr/bin:/bin"}  # git submodule is a shell script with needs of its own
    repository.git("-c protocol.file.allow=always submodule add -q", plain.folder, "module.ipynb", **path)
    repository.strips("1")
    inner = Repository(repository.folder / "module.ipynb", repository.tools)
    inner.install()
    inner.strips("changed", name="inner.ipynb")
    # Only the submodule moves on: no notebook, though its name says so, and outputs beside it are no empty commit,
    # even where configuration hides submodules from diffs.
    repository.git("add module.ipynb")
    repository.git("config submodule.module.ipynb.ignore all")
    repository.strips("1")
    assert repository.git("ls-tree HEAD module.ipynb").split()[2] == inner.git("rev-parse HEAD").strip()


# --- Which way of committing ----------------------------------------------------


@pytest.mark.heavy
def test_a_first_commit_a_head_without_branch_and_a_branch_without_commit(plain):
    plain.install()
    for number, before in enumerate(("status", "checkout -q --detach", "checkout -q --orphan new")):
        plain.git(before)
        plain.strips(str(number))
    assert plain.parents() == 0


STAGING = ["-a", "-i -- a.ipynb", "-o -- a.ipynb"]


@pytest.mark.parametrize(
    ("options", "in_linked"),
    rest_is_heavy(
        [*((way, False) for way in STAGING), ("-a", True), ("-- .", True)],
        lambda options, in_linked: in_linked == (options == "-a"),
    ),
)
def test_commits_that_stage_on_their_way_also_in_a_linked_worktree(repository, options, in_linked):
    linked = repository.linked()
    place, other = (linked, repository) if in_linked else (repository, linked)
    before = other.state()
    place.strips("1", *options.split())
    assert place.status() == b" M a.ipynb\n" and other.state() == before


def test_a_commit_of_one_path_leaves_what_else_is_staged(repository):
    repository.stage("1")
    repository.stage("2", "other.ipynb")
    repository.write("text", b"staged\n")
    before = repository.state()
    assert repository.attempt("commit -- a.ipynb", GIT_EDITOR="false").returncode == 1
    assert repository.state() == before and repository.leftovers() == []
    repository.strips("1", "--", "a.ipynb")
    assert repository.staged("other.ipynb") == notebook("2")
    assert repository.status() == b" M a.ipynb\nA  other.ipynb\nM  text\n"


@pytest.mark.parametrize("word", rest_is_heavy(["--amend", "--am", "alias"], lambda word: word == "alias"))
def test_an_amend_may_leave_the_files_as_they_are(repository, word):
    """Only outputs are staged; the amend is for the message."""
    repository.stage("0")
    repository.git("config alias.reword", "commit --amend")
    repository.git(*(["reword"] if word == "alias" else ["commit", word]), "-q", "-m", "better words")
    assert repository.committed() == clean("0")
    assert repository.git("log --format=%s") == b"better words\n"


@pytest.mark.heavy
def test_an_amend_mends_a_commit_that_skipped_the_hook(plain):
    plain.install()
    for text in ("first", "second"):
        plain.stage(text)
        plain.commit("--no-verify")
        assert plain.committed() == notebook(text)
        plain.git("commit -q --amend --no-edit")
        assert plain.committed() == plain.staged() == clean(text)
    assert plain.git("rev-list --count HEAD") == b"2\n"


@pytest.mark.heavy
def test_from_a_subfolder_from_elsewhere_and_with_another_index(repository, tmp_path):
    repository.stage("0", "deep/er/b.ipynb")
    repository.strips("1", cwd=repository.folder / "deep/er")
    assert repository.committed("deep/er/b.ipynb") == clean("0")
    repository.strips("2", cwd=tmp_path, GIT_DIR="work/.git", GIT_WORK_TREE="work")
    other = {"GIT_INDEX_FILE": tmp_path / "other-index"}
    repository.stage("other index", add=False)
    repository.follow("read-tree HEAD\nadd a.ipynb", **other)
    repository.commit(**other)
    assert repository.committed() == clean("other index")


@pytest.mark.parametrize(
    "kind", rest_is_heavy(["--object-format=sha256", "core.splitIndex"], lambda kind: kind == "core.splitIndex")
)
def test_other_kinds_of_repository(tmp_path, tools, kind):
    repository = new_repository(tmp_path / "other", tools, *([kind] if kind.startswith("--") else []))
    repository.install()
    repository.git("config core.splitIndex", str(kind == "core.splitIndex").lower())
    repository.strips("1")
    repository.strips("2", "--", "a.ipynb")


def side_branch(repository) -> None:
    """A branch `side` with a notebook that skipped the hook and one that is clean; `main` is checked out."""
    repository.git("checkout -q -b side")
    repository.write("clean.ipynb", clean())
    repository.commit("--no-verify")
    repository.stage("side", "ran.ipynb")
    repository.commit("--no-verify")
    repository.git("checkout -q main")


@pytest.mark.heavy
def test_a_merge_leaves_outputs_to_the_commit(repository):
    side_branch(repository)
    # What is only staged is no reason for a warning: the commit strips it.
    assert repository.attempt("merge -q --squash side").stderr == b""
    repository.git("reset -q --hard")
    repository.write("text", b"main\n")
    repository.commit()
    done = repository.attempt("merge -q --no-edit side")
    message = b"pre-merge-commit: ran.ipynb would be merged with results of a run: git commit "
    assert done.returncode == 1 and done.stderr.startswith(message), done
    repository.git("commit -q --no-edit")
    assert repository.committed("ran.ipynb") == clean("side")
    assert (repository.folder / "ran.ipynb").read_bytes() == notebook("side")
    assert repository.parents() == 2
    # Clean notebooks alone are merged at once.
    repository.git("reset -q --hard HEAD^")
    done = repository.attempt("merge -q --no-edit side^")
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_fast_forward_warns(bare):
    """Where only core.hooksPath is set."""
    bare.git("config lstmtrt.python", sys.executable)
    side_branch(bare)
    done = bare.attempt("merge -q side")
    assert done.returncode == 0 and done.stderr.count(b"\n") == 1, done
    assert done.stderr.startswith(b"post-merge: ran.ipynb was committed with results of a run: run ")


@pytest.mark.heavy
def test_a_merge_conflict_in_a_notebook(repository):
    repository.git("checkout -q -b theirs")
    repository.write("a.ipynb", clean("theirs"))
    repository.commit()
    repository.git("checkout -q main")
    repository.write("a.ipynb", clean("ours"))
    repository.commit()
    assert repository.attempt("merge theirs").returncode == 1
    lines = (repository.folder / "a.ipynb").read_bytes().splitlines()
    marked = 1 + lines.index(b"<<<<<<< HEAD")
    repository.git("add a.ipynb")
    assert f"a.ipynb has conflict markers in line {marked}: " in repository.refused("--no-edit")
    # Resolved to our side and run again: nothing but outputs, and the merge is recorded all the same.
    repository.strips("ours")
    assert repository.parents() == 2


@pytest.mark.heavy
def test_cherry_pick_rebase_and_revert(repository):
    repository.git("checkout -q -b side")
    repository.strips("side")
    repository.follow("""
reset -q --hard
checkout -q main
cherry-pick side
revert --no-edit HEAD""")
    repository.strips("main")
    repository.git("reset -q --hard")
    assert repository.attempt("cherry-pick side").returncode == 1
    repository.stage("resolved")
    repository.git("cherry-pick --continue")
    assert repository.committed() == clean("resolved")
    repository.follow("""
reset -q --hard
checkout -q -b topic main~1""")
    repository.strips("1", name="c.ipynb")
    rewording = {"GIT_SEQUENCE_EDITOR": "sed -i s/^pick/reword/"}
    repository.follow(
        """
reset -q --hard
rebase -q main
rebase -q -i HEAD~1""",
        **rewording,
    )
    assert repository.committed("c.ipynb") == clean("1") and repository.committed() == clean("resolved")
    assert repository.leftovers() == []
    # Git calls no hook for a commit that it only copies: what skipped the hook comes along, as the page says.
    repository.stage("1", "d.ipynb")
    repository.commit("--no-verify")
    repository.follow("""
checkout -q main
cherry-pick topic""")
    assert repository.committed("d.ipynb") == notebook("1")
    assert b"d.ipynb was committed with results of a run" in repository.check().stderr


def test_the_work_does_not_grow_with_the_outputs_that_go(strip_staged):
    """Counted in calls of Python functions, after one that imports nbformat."""

    def calls(outputs: int) -> int:
        cells = []
        for number in range(20):
            output = {"name": "stdout", "output_type": "stream", "text": ["a result\n"] * 5}
            cell = json.loads(notebook(str(number)))["cells"][0]
            cells.append(cell | {"id": f"cell-{number}", "outputs": [output] * outputs})
        document = json.loads(notebook()) | {"cells": cells}
        counted = 0

        def count(frame, event, argument) -> None:
            nonlocal counted
            counted += event == "call"

        sys.setprofile(count)
        try:
            without = strip_staged.stripped(b"a.ipynb", json.dumps(document).encode())
        finally:
            sys.setprofile(None)
        assert b"a result" not in without
        return counted

    calls(1)
    assert calls(100) <= 1.1 * calls(1)


# --- Refusals -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        pytest.param("a bad.ipynb", b"", "a bad.ipynb is empty", marks=pytest.mark.heavy),
        ("a bad.ipynb", b" \n", "a bad.ipynb is empty"),
        ("new\nline.ipynb", notebook()[:-20], r"'new\nline.ipynb' is not valid JSON"),
        # Half resolved: one marker is left.
        ("a bad.ipynb", b"=======\r\n" + notebook(), "a bad.ipynb has conflict markers in line 1: "),
        ("a bad.ipynb", notebook("<<<<<<< not a marker")[:-3], "a bad.ipynb is not valid JSON"),
        pytest.param("a bad.ipynb", b"\xff\xfe{}", "a bad.ipynb is not valid JSON", marks=pytest.mark.heavy),
        pytest.param("a bad.ipynb", b"[1, 2]", "a bad.ipynb is JSON but not a notebook", marks=pytest.mark.heavy),
        ("a bad.ipynb", b'{"metadata": {}}', "a bad.ipynb is JSON but not a notebook"),
        ("a bad.ipynb", b'{"cells": 1, "metadata": {}, "nbformat": 4}', "a bad.ipynb cannot be stripped"),
    ],
)
def test_what_cannot_be_stripped_refuses_the_commit(repository, name, content, reason):
    repository.stage("1", "good.ipynb")
    repository.write(name, content)
    assert reason in repository.refused()


@pytest.mark.heavy
@pytest.mark.parametrize("arguments", [(), pytest.param(("-a",), marks=pytest.mark.heavy), ("--", "a.ipynb")])
def test_a_refused_commit_stages_nothing_and_nothing_but_outputs_is_no_commit(repository, arguments):
    repository.stage("0", add=not arguments)
    message = repository.refused("-m", "only outputs", *arguments)
    assert "nothing to commit: only outputs have changed, in a.ipynb" in message
    if not arguments:  # the same where git would ask for a message
        assert message == repository.refused("--verbose", GIT_EDITOR="sed -i 1imessage")
    repository.write("a.ipynb", b"{", add=not arguments)
    assert "a.ipynb is not valid JSON" in repository.refused("-m", "x", *arguments)


def test_an_empty_commit_on_purpose_and_a_new_mode_stay_possible(repository):
    repository.stage("0", add=False)
    repository.git("commit -q --allow-empty -m", "outputs are not staged")
    assert repository.git("rev-list --count HEAD") == b"2\n"
    repository.git("add a.ipynb")
    repository.git("update-index --chmod=+x a.ipynb")
    repository.commit()
    assert repository.git("ls-tree HEAD a.ipynb").startswith(b"100755")
    assert repository.committed() == clean("0")


# --- Which Python ---------------------------------------------------------------


def stand_in(file: Path, log: Path, usable: bool = True) -> Path:
    """A Python that notes that it was asked to strip, and does nothing else."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        f'#!/bin/sh\ncase "$*" in *--usable) exit {int(not usable)};; esac\necho {file.parent.name} >>"{log}"\n'
    )
    file.chmod(0o755)
    return file


def test_which_python_strips_and_that_only_notebooks_are_refused_without_one(repository, tmp_path):
    linked = repository.linked()
    log, chosen = tmp_path / "log", tmp_path / "chosen"
    environment = {
        "PATH": f"{repository.tools}:{tmp_path / 'path3'}:{tmp_path / 'path'}",
        "VIRTUAL_ENV": tmp_path / "virtual",
        "CONDA_PREFIX": tmp_path / "conda env",
    }
    places = ["stored one/python", "virtual/bin/python", "conda env/bin/python", "path3/python3", "path/python"]
    stored, *others = (tmp_path / place for place in places)
    of_checkouts = [place.folder / ".venv/bin/python" for place in (linked, repository)]
    in_order = [stand_in(python, log) for python in (stored, *of_checkouts, *others)]
    repository.git("config lstmtrt.python", stored)
    for text in (b"1\n", b"2\n"):
        linked.write("text", text)
        log.unlink(missing_ok=True)  # HEAD has notebooks at first, and the commit might amend it
        linked.commit(**environment)
    assert not log.exists(), "a commit without notebooks starts no Python"
    for number, python in enumerate(in_order, 1):
        stand_in(python, chosen)
        linked.stage(str(number))
        linked.commit(**environment)
        assert chosen.read_text().count("\n") == 1, python
        assert not log.exists(), "another Python was asked"
        chosen.unlink()
        # The next one's turn: where this one is gone, and where it lacks nbstripout.
        if number % 2:
            python.unlink()
        else:
            stand_in(python, log, usable=False)
    linked.write("text", b"last\n")
    linked.commit(**environment)
    linked.follow("commit -q --amend -m reworded\ncommit -q --allow-empty -m empty", **environment)
    linked.stage("1", "it is.ipynb")
    message = linked.refused("-m", "x", **environment)
    assert "it is.ipynb is staged" in message and "run make hook, or activate an environment" in message


@pytest.fixture
def bare(plain, tmp_path) -> Repository:
    """A clone where only `git config core.hooksPath .githooks` was run."""
    plain.git("add -f .githooks")
    plain.commit()
    clone = Repository(tmp_path / "a clone", plain.tools)
    plain.git("clone -q", plain.folder, clone.folder)
    clone.git("config core.hooksPath .githooks")
    return clone


@pytest.mark.parametrize(
    "way", rest_is_heavy([".venv", "VIRTUAL_ENV", "PATH", "stored"], lambda way: way == "VIRTUAL_ENV")
)
def test_a_bare_hooks_path_is_enough_also_in_a_linked_worktree(bare, way, tmp_path):
    linked = bare.linked()
    bare.stage("1")
    assert "no Python (3.11 or newer) with nbstripout was found" in bare.refused()
    environment = tmp_path / "environment"
    python = (bare.folder / ".venv" if way == ".venv" else environment) / "bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    if way == "stored":
        bare.git("config lstmtrt.python", python)
    for place in (bare, linked) if way == ".venv" else (linked,):
        if way == "VIRTUAL_ENV":
            place.environment[way] = str(environment)
        elif way == "PATH":
            place.environment["PATH"] += f":{python.parent}"
        place.strips("1")
    assert not (bare.folder / ".githooks/__pycache__").exists()


def test_modules_in_the_checkout_and_a_foreign_python_setup_are_not_used(repository):
    for name in ("json.py", "nbformat.py", "nbstripout.py", "subprocess.py"):
        repository.write(name, b"raise SystemExit('imported from the checkout')\n")
    repository.strips("1", PYTHONHOME="/nowhere", PYTHONPATH=repository.folder)


# --- Nothing is lost ------------------------------------------------------------


@pytest.mark.heavy
def test_line_endings_and_another_clean_filter(repository):
    repository.git("config core.autocrlf true")
    crlf = notebook("1").replace(b"\n", b"\r\n")
    file = repository.write("a.ipynb", crlf)
    repository.commit()
    assert repository.committed() == clean("1") and file.read_bytes() == crlf
    # A filter is applied once; one that stages something else than a notebook, as Git LFS does, refuses the commit.
    repository.git("config core.autocrlf false")
    repository.write(".gitattributes", b"*.ipynb filter=other\n")
    repository.git("config filter.other.clean", "sed s/word/wordword/")
    file = repository.stage("word")
    repository.commit()
    assert repository.committed() == clean("wordword") and file.read_bytes() == notebook("word")
    repository.git("config filter.other.clean", "printf 'version https://example.org/spec/v1\\n'")
    repository.stage("2")
    assert "a.ipynb is not valid JSON as git stores it" in repository.refused()
    assert file.read_bytes() == notebook("2")


def test_an_index_that_another_git_holds_refuses_the_commit(repository, strip_staged):
    repository.stage("1")
    lock = repository.folder / ".git/index.lock"
    lock.write_bytes(b"somebody's work")
    with pytest.raises(strip_staged.Refusal, match=r"index\.lock': File exists"):
        strip_staged.strip_commit()
    assert lock.read_bytes() == b"somebody's work"
    assert repository.staged() == notebook("1")


@pytest.mark.parametrize("rests", rest_is_heavy([True, False], bool))
def test_what_is_staged_while_the_hook_strips_is_stripped_too_and_not_undone(
    repository, strip_staged, monkeypatch, rests
):
    repository.stage("1")
    stripped, count = strip_staged.stripped, iter(range(2, 3 if rests else 100))

    def meanwhile(path, content):
        for number in count:
            repository.stage(str(number))
            repository.stage("b", "b.ipynb")
            break
        return stripped(path, content)

    monkeypatch.setattr(strip_staged, "stripped", meanwhile)
    if rests:
        strip_staged.strip_commit()
        assert repository.staged() == clean("2") and repository.staged("b.ipynb") == clean("b")
    else:
        with pytest.raises(strip_staged.Refusal, match="keeps staging"):
            strip_staged.strip_commit()


# --- The installer --------------------------------------------------------------


def test_the_hook_stays_on_branches_without_it_and_says_when_it_is_older(repository):
    shutil.rmtree(repository.folder / ".githooks")
    repository.strips("1")
    repository.write(".githooks/strip_staged.py", b"# a newer one\n", add=False)
    repository.stage("2")
    done = repository.attempt("commit -qm x")
    assert done.returncode == 0
    assert done.stderr == b"pre-commit: the installed hook differs from .githooks: run make hook to update it\n"


def test_installing_again_changes_nothing_and_uninstalling_restores(plain):
    """Also if .git/hooks holds a link to the hook, which is replaced by a copy, or an older copy."""
    configuration, hooks = plain.folder / ".git/config", plain.folder / ".git/hooks"
    before = configuration.read_bytes()
    hooks.mkdir()
    (hooks / "pre-commit").symlink_to("../../.githooks/pre-commit")
    source = plain.folder / ".githooks/strip_staged.py"
    new = source.read_bytes()
    source.write_bytes(b"# an older version\n" + new)
    plain.install()
    source.write_bytes(new)
    plain.install()
    once = configuration.read_bytes()
    assert b"python = " + os.fsencode(sys.executable) in once
    plain.install()
    assert configuration.read_bytes() == once
    for name in FILES:
        assert not (hooks / name).is_symlink()
        assert (hooks / name).read_bytes() == (HOOKS / name).read_bytes()
        assert (plain.folder / ".githooks" / name).read_bytes() == (HOOKS / name).read_bytes()
    # An edited copy is not touched.
    (hooks / "strip_staged.py").write_bytes(new + b"# mine\n")
    assert "was not installed by this script" in plain.install_refused()
    assert (hooks / "strip_staged.py").read_bytes() == new + b"# mine\n"
    (hooks / "strip_staged.py").write_bytes(new)
    for _ in range(2):
        plain.install("--uninstall")
        assert configuration.read_bytes() == before and os.listdir(hooks) == []


def test_another_hook_stays_and_can_call_ours(plain):
    other = plain.folder / ".git/hooks/pre-commit"
    other.parent.mkdir()
    alone = b"#!/bin/sh\necho lstm_trt >>other-ran\n# .githooks/pre-commit\n"
    other.write_bytes(alone)
    other.chmod(0o755)
    configuration = (plain.folder / ".git/config").read_bytes()
    message = plain.install_refused()
    assert str(other) in message and ".githooks/pre-commit || exit 1" in message
    assert (other.read_bytes(), (plain.folder / ".git/config").read_bytes()) == (alone, configuration)

    chained = alone + b".githooks/pre-commit || exit 1\n"
    other.write_bytes(chained)
    plain.install()
    plain.strips("1")
    plain.write("a.ipynb", b"")
    assert "a.ipynb is empty" in plain.refused()
    # The amend is two processes up.
    plain.stage("1")
    plain.git("commit -q --amend -m", "better words")
    assert (plain.folder / "other-ran").read_text().count("\n") == 3
    assert "still calls" in plain.install("--uninstall")
    assert other.read_bytes() == chained
    other.unlink()
    merging = other.with_name("pre-merge-commit")
    merging.write_bytes(alone)
    assert "`.githooks/pre-merge-commit || exit 1`" in plain.install_refused()
    assert not other.exists()
    merging.write_bytes(alone + b".githooks/pre-merge-commit || exit 1\n")
    plain.install()
    assert set(os.listdir(merging.parent)) == set(FILES) and merging.read_bytes().startswith(alone)
    plain.install("--uninstall")
    assert set(os.listdir(merging.parent)) == {"pre-merge-commit"}


def test_a_hooks_path_stays(plain):
    plain.git("config core.hooksPath", "my hooks")
    message = plain.install_refused()
    assert "core.hooksPath is 'my hooks'" in message and ".githooks/pre-commit || exit 1" in message
    plain.git("config core.hooksPath .githooks")
    plain.install()
    plain.strips("1")
    assert "core.hooksPath is still" in plain.install("--uninstall")
    assert plain.git("config core.hooksPath") == b".githooks\n"
    assert (plain.folder / ".githooks/pre-commit").exists()
    assert not (plain.folder / ".git/hooks").exists() and not (plain.folder / "my hooks").exists()


@pytest.mark.heavy
def test_installing_from_a_linked_worktree_serves_all(plain):
    plain.git("add -f .githooks")
    plain.commit()
    linked = plain.linked()
    linked.install()
    linked.strips("1")
    plain.strips("1")


def test_an_installer_that_cannot_install_says_why(plain, tmp_path):
    lacking = stand_in(tmp_path / "python", tmp_path / "log", usable=False)
    assert f"{lacking} is not Python 3.11 or newer with nbstripout" in plain.install_refused("--python", lacking)
    assert "No such file" in plain.install_refused("--python", tmp_path / "none")
    (plain.folder / ".git").rename(plain.folder / "git")
    assert "is not the root of a git checkout" in plain.install_refused()


# --- The filter -----------------------------------------------------------------


@pytest.mark.heavy
def test_the_filter_strips_as_the_hook_does_with_the_drawbacks_that_the_page_lists(plain):
    plain.install()
    plain.install("--filter")
    assert not (plain.folder / ".git/hooks/pre-commit").exists()
    plain.write("json.py", b"raise SystemExit('imported from the checkout')\n", add=False)
    file = plain.stage("1", "a b.ipynb")
    plain.commit()
    assert plain.committed("a b.ipynb") == clean("1") and file.read_bytes() == notebook("1")
    plain.write("CAPITALS.IPYNB", notebook("1"))
    assert plain.staged("CAPITALS.IPYNB") == clean("1")
    plain.git("checkout -q -b other")
    plain.write("a b.ipynb", clean("2"))
    plain.commit()
    plain.git("checkout -q main")
    # After another run: `git diff` is empty, but `git status` compares sizes before it calls a filter.
    file.write_bytes(notebook("1"))
    assert plain.git("diff") == b"" and plain.status() == b' M "a b.ipynb"\n'
    assert plain.attempt("checkout -q other").returncode == 1
    plain.git("add", "a b.ipynb")
    assert plain.status() == b"" and file.read_bytes() == notebook("1")
    # Now the branches can be switched, which loses the outputs.
    plain.git("checkout -q other")
    plain.git("checkout -q main")
    assert file.read_bytes() == clean("1")
    file.write_bytes(b"{")
    assert plain.attempt("add", "a b.ipynb").returncode == 128


def test_removing_the_filter_restores_everything(plain):
    configuration, attributes = plain.folder / ".git/config", plain.folder / ".git/info/attributes"
    attributes.write_bytes(b"*.csv text\r\n*.txt text")
    before = configuration.read_bytes()
    plain.install("--filter")
    assert attributes.read_bytes().startswith(b"*.csv text\r\n*.txt text\n# lstm_trt")
    once = configuration.read_bytes(), attributes.read_bytes()
    plain.install("--filter")
    assert (configuration.read_bytes(), attributes.read_bytes()) == once
    # Installing the hook removes the filter.
    plain.install()
    assert attributes.read_bytes() == b"*.csv text\r\n*.txt text\n"
    assert b"nbstripout" not in configuration.read_bytes()
    attributes.unlink()
    plain.install("--filter")
    plain.install("--uninstall")
    assert configuration.read_bytes() == before and not attributes.exists()


def test_another_filter_stays(plain):
    configuration = plain.folder / ".git/config"
    for name in ("clean", "extrakeys"):
        plain.git(f"config filter.nbstripout.{name}", "my-own nbstripout")
        before = configuration.read_bytes()
        assert f"filter.nbstripout.{name} is set to 'my-own nbstripout'" in plain.install_refused("--filter")
        plain.install("--uninstall")
        assert configuration.read_bytes() == before
        plain.git("config --remove-section filter.nbstripout")
    for pattern in ("notebooks/*.ipynb", "*.IPYNB"):
        (plain.folder / ".gitattributes").write_text(f"{pattern} filter=lfs\n")
        assert "filter lfs" in plain.install_refused("--filter")
    assert not (plain.folder / ".git/info/attributes").exists()


# --- The check ------------------------------------------------------------------


@pytest.mark.heavy
def test_the_check_looks_at_what_is_committed_and_not_at_the_working_copy(plain):
    assert plain.check().returncode == 0
    plain.install()
    plain.stage("1")
    plain.stage("2", "deep/é\n.ipynb")
    (plain.folder / "link.ipynb").symlink_to("nowhere")
    plain.git("add link.ipynb")
    plain.commit()
    # In a container, the checkout often belongs to another user.
    done = plain.check(GIT_TEST_ASSUME_DIFFERENT_OWNER="1")
    assert done.returncode == 0 and done.stdout == b"check-notebooks: 2 committed, none has outputs\n", done
    # Git before 2.38 takes no safe.directory from variables: this one takes nothing from them.
    old = plain.folder.parent / "old"
    old.mkdir()
    (old / "git").write_text(f'#!/bin/sh\nunset GIT_CONFIG_COUNT\nexec {shlex.quote(shutil.which("git"))} "$@"\n')
    (old / "git").chmod(0o755)
    path = f"{old}{os.pathsep}{plain.environment['PATH']}"
    for folder, count in ((plain.folder, 2), (plain.folder / "deep", 1)):
        command = (sys.executable, HOOKS / "strip_staged.py", "--check")
        done = plain.run(*command, cwd=folder, PATH=path, GIT_TEST_ASSUME_DIFFERENT_OWNER="1")
        assert done.stdout == b"check-notebooks: %d committed, none has outputs\n" % count, done
    shutil.rmtree(plain.folder / ".git")
    done = plain.check()
    assert done.returncode == 0 and b"no git repository here" in done.stdout, done
    (plain.folder / ".git").mkdir()
    assert plain.check().returncode == 1, "a broken repository is not one without notebooks"


def test_the_check_names_what_skipped_the_hook(repository):
    ran = {key: notebook(ran=False, **{key: value}) for key, value in RUN.items()}
    ran["injected"] = notebook(ran=False, tags=("injected-parameters",))
    ran["tags"] = clean().replace(b'"metadata": {},', b'"metadata": {"tags": []},')
    ran["with out"] = notebook()
    for name, content in (ran | {"empty": b""}).items():
        repository.write(f"{name}.ipynb", content)
    repository.commit("--no-verify")
    done = repository.check()
    empty, *lines = done.stderr.decode().splitlines()
    assert done.returncode == 1 and empty.startswith("check-notebooks: empty.ipynb is empty")
    found = [line.removesuffix(" on it, then commit it").split(": run ") for line in lines]
    assert [start for start, _ in found] == [
        f"check-notebooks: {name}.ipynb was committed with results of a run" for name in sorted(ran)
    ]
    # The command that the last line names.
    done = repository.run(*shlex.split(found[-1][1]), "with out.ipynb")
    assert done.returncode == 0 and (repository.folder / "with out.ipynb").read_bytes() == clean()
    repository.follow("rm -q --cached empty.ipynb\ncommit -q --amend --no-edit")
    assert repository.check().returncode == 0


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout")
def test_this_projects_own_notebooks_are_clean():
    ran(sys.executable, ".githooks/strip_staged.py", "--check")


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize("arguments", [(), ("FILTER=1",)])
def test_make_starts_the_installer_and_the_check(arguments):
    printed = ran("make", "-n", "hook", "lint", *arguments).stdout
    (line,) = (line for line in printed.splitlines() if ".githooks/install" in line)
    assert ("--filter" in line) == bool(arguments)
    assert ".githooks/strip_staged.py --check" in printed
