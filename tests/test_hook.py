"""The notebook hook in real repositories: real git, real nbstripout, judged by what is committed.

Every repository is a copy of one in which `.githooks/install` ran once. PATH has git and
the system's tools but no environment, HOME is empty and no configuration but the
repository's counts, so that each test also shows that the stored Python is enough.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("nbstripout") is None, reason="needs nbstripout: pip install -e .[dev]"
    ),
    pytest.mark.skipif(shutil.which("git") is None, reason="needs git"),
]
HOOKS = ROOT / ".githooks"


def notebook(text: str = "1", *, ran: bool = True, tags: tuple[str, ...] = (), **metadata) -> bytes:
    """A notebook in the very bytes that nbformat writes, with outputs or without."""
    cell = {
        "cell_type": "code",
        "execution_count": 7 if ran else None,
        "id": "the-cell",
        "metadata": {"tags": list(tags)} if tags else {},
        "outputs": [{"name": "stdout", "output_type": "stream", "text": ["out\n"]}] if ran else [],
        "source": [text],
    }
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    content = {"cells": [cell], "metadata": {"kernelspec": kernel, **metadata}, "nbformat": 4, "nbformat_minor": 5}
    return (json.dumps(content, indent=1, sort_keys=True) + "\n").encode()


def clean(text: str = "1") -> bytes:
    return notebook(text, ran=False)


class Repository:
    """A checkout, with git as a process."""

    def __init__(self, folder: Path, **environment: str):
        self.folder = folder
        self.environment = {
            "PATH": f"{os.path.dirname(shutil.which('git'))}:/usr/bin:/bin",
            "HOME": str(folder.parent),
            "LC_ALL": "C.UTF-8",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_EDITOR": "true",
            **environment,
        }

    def run(self, *command: object, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess:
        words = [os.fsencode(word) if isinstance(word, str | Path) else word for word in command]
        environment = {**self.environment, **environment}
        return subprocess.run(
            words, cwd=cwd or self.folder, env=environment, capture_output=True, stdin=subprocess.DEVNULL, timeout=60
        )

    def git(self, *arguments: object, **more) -> bytes:
        """Standard output of a git command that must succeed."""
        done = self.run("git", *arguments, **more)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout

    def refused(self, *arguments: object, **more) -> str:
        """The one line of a commit that must not be made; HEAD and what is staged are as before."""
        before = self.state()
        done = self.run("git", *(arguments or ("commit", "-m", "refused")), **more)
        assert done.returncode == 1, done
        said = done.stderr.decode()
        assert said.startswith("pre-commit: ") and said.count("\n") == 1, said
        assert self.state() == before
        return said

    def state(self) -> tuple[bytes, bytes]:
        return self.run("git", "rev-parse", "HEAD").stdout, self.git("ls-files", "-s", "-v", "-z")

    def write(self, name: str, content: bytes, add: bool = True) -> Path:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        if add:
            self.git("--literal-pathspecs", "add", "-f", "--", name)
        return file

    def commit(self, *arguments: object, **more) -> None:
        self.git("commit", "-q", "-m", "a commit", *arguments, **more)

    def start(self) -> None:
        """A first commit with one clean notebook and one text."""
        self.write("a.ipynb", clean("0"))
        self.write("text", b"0\n")
        self.commit("--no-verify")

    def committed(self, name: str, revision: str = "HEAD") -> bytes:
        return self.git("cat-file", "blob", f"{revision}:{name}")

    def staged(self, name: str) -> bytes:
        return self.git("cat-file", "blob", f":{name}")

    def status(self) -> bytes:
        return self.git("status", "--porcelain", "--untracked-files=no")

    def nothing_staged(self) -> bool:
        return self.run("git", "diff", "--cached", "--quiet").returncode == 0

    def leftovers(self) -> list[str]:
        """Locks and drafts that a hook must not leave in the git folder."""
        folder = self.folder / os.fsdecode(self.git("rev-parse", "--git-dir").strip())
        return sorted(file.name for file in folder.iterdir() if ".lock" in file.name or "lstmtrt" in file.name)

    def install(self, *arguments: object, python: str = sys.executable) -> subprocess.CompletedProcess:
        return self.run(python, self.folder / ".githooks/install", *arguments)

    def install_refused(self, *arguments: object, **more) -> str:
        done = self.install(*arguments, **more)
        assert done.returncode == 2 and done.stdout == b"", done
        said = done.stderr.decode()
        assert said.startswith("hook: ") and said.count("\n") == 1, said
        return said


def new_repository(folder: Path, *options: str) -> Repository:
    folder.mkdir(parents=True)
    repository = Repository(folder)
    repository.git("init", "-q", "-b", "main", *options)
    repository.git("config", "user.name", "A Tester")
    repository.git("config", "user.email", "tester@example.org")
    shutil.copytree(HOOKS, folder / ".githooks", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / ".git/info").mkdir(exist_ok=True)
    (folder / ".git/info/exclude").write_text(".githooks/\n")
    return repository


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    repository = new_repository(tmp_path_factory.mktemp("installed") / "repository")
    done = repository.install()
    assert done.returncode == 0, done
    return repository.folder


@pytest.fixture
def fresh(installed, tmp_path) -> Repository:
    """The hook is installed; nothing is committed."""
    shutil.copytree(installed, tmp_path / "work", symlinks=True)
    return Repository(tmp_path / "work")


@pytest.fixture
def repository(fresh) -> Repository:
    """The hook is installed; HEAD has a clean notebook `a.ipynb` and a `text`."""
    fresh.start()
    return fresh


@pytest.fixture
def plain(tmp_path) -> Repository:
    """A repository without the hook."""
    return new_repository(tmp_path / "plain")


@pytest.fixture
def strip_staged(repository, monkeypatch):
    """The hook as a module, at work in the repository, where a test has to interfere."""
    monkeypatch.chdir(repository.folder)
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    for name, value in repository.environment.items():
        if name.startswith("GIT_"):
            monkeypatch.setenv(name, value)
    specification = importlib.util.spec_from_file_location("strip_staged", HOOKS / "strip_staged.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


# --- What is stripped, and what is not ------------------------------------------


def test_the_commit_has_no_outputs_and_the_working_copy_keeps_them(repository):
    file = repository.write("a.ipynb", notebook("1"))
    before = file.read_bytes(), file.stat().st_mtime_ns
    repository.commit()
    assert repository.committed("a.ipynb") == clean("1")
    assert (file.read_bytes(), file.stat().st_mtime_ns) == before
    assert repository.status() == b" M a.ipynb\n"
    assert repository.leftovers() == []


def test_what_belongs_to_the_notebook_stays_and_what_belongs_to_a_run_goes(repository):
    parameters, injected, plain = (
        json.loads(notebook(text, tags=tags))["cells"][0]
        for text, tags in (("n = 1", ("parameters",)), ("n = 2", ("injected-parameters",)), ("n", ("mine", "x")))
    )
    for number, cell in enumerate((parameters, injected, plain)):
        cell["id"] = f"id-{number}"
        cell["metadata"] |= {"papermill": {"duration": 1.5, "status": "completed"}, "execution": {"x": 1}}
    whole = json.loads(notebook(papermill={"input_path": "in.ipynb", "parameters": {"n": 2}}))
    whole["cells"] = [parameters, injected, plain]
    repository.write("a.ipynb", json.dumps(whole).encode())
    repository.commit()
    result = json.loads(repository.committed("a.ipynb"))
    assert result["metadata"] == {"kernelspec": whole["metadata"]["kernelspec"]}
    assert [cell["id"] for cell in result["cells"]] == ["id-0", "id-2"]
    assert [cell["metadata"] for cell in result["cells"]] == [{"tags": ["parameters"]}, {"tags": ["mine", "x"]}]
    assert [cell["source"] for cell in result["cells"]] == [["n = 1"], ["n"]]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in result["cells"])


def test_a_notebook_with_nothing_to_strip_is_committed_byte_for_byte(repository):
    indented = json.dumps(json.loads(clean("1")), indent=4).encode() + b"\r\n\r\n"
    repository.write("a.ipynb", indented)
    repository.commit()
    assert repository.committed("a.ipynb") == indented


def test_a_notebook_of_format_3(repository):
    cell = {"cell_type": "code", "collapsed": False, "input": ["1"], "language": "python", "metadata": {}}
    cell |= {"outputs": [{"output_type": "stream", "stream": "stdout", "text": ["out"]}], "prompt_number": 3}
    sheet = {"cells": [cell], "metadata": {}}
    content = {"metadata": {"name": ""}, "nbformat": 3, "nbformat_minor": 0, "worksheets": [sheet]}
    repository.write("old.ipynb", json.dumps(content).encode())
    repository.commit()
    (cell,) = json.loads(repository.committed("old.ipynb"))["worksheets"][0]["cells"]
    assert cell["outputs"] == [] and cell["prompt_number"] is None and cell["input"] == ["1"]


def test_the_users_own_nbstripout_settings_change_nothing(repository):
    """CI has none of them, and the hook must agree with CI."""
    repository.git("config", "filter.nbstripout.extrakeys", "metadata.kernelspec")
    repository.git("config", "filter.nbstripout.keepmetadatakeys", "metadata.papermill")
    repository.write("a.ipynb", notebook("1", papermill={"x": 1}))
    repository.commit()
    assert repository.committed("a.ipynb") == clean("1")


def test_what_is_unstaged_stays_unstaged(repository):
    repository.write("a.ipynb", notebook("staged"))
    repository.write("a.ipynb", notebook("unstaged"), add=False)
    repository.write("text", b"unstaged\n", add=False)
    repository.commit()
    assert repository.committed("a.ipynb") == repository.staged("a.ipynb") == clean("staged")
    assert (repository.folder / "a.ipynb").read_bytes() == notebook("unstaged")
    assert repository.committed("text") == b"0\n"
    assert repository.status() == b" M a.ipynb\n M text\n"


# --- Which files --------------------------------------------------------------

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
]


@pytest.mark.parametrize("way", ["staged", "paths"])
def test_any_name(repository, way):
    for name in NAMES:
        repository.write(name, notebook(ascii(name)))
    assert not repository.nothing_staged()
    if way == "staged":
        repository.commit()
    else:
        repository.git("--literal-pathspecs", "commit", "-qm", "paths", "--", *NAMES)
    for name in NAMES:
        assert repository.committed(name) == clean(ascii(name)), name
        assert (repository.folder / name).read_bytes() == notebook(ascii(name)), name
    assert repository.nothing_staged()
    assert not (repository.folder / "pwned").exists()


def test_a_commit_under_literal_pathspecs_is_stripped_too(repository):
    """git hands --literal-pathspecs down to hooks, where `*.ipynb` then matches nothing."""
    repository.write("a.ipynb", notebook("1"))
    repository.git("--literal-pathspecs", "commit", "-qm", "literal")
    assert repository.committed("a.ipynb") == clean("1")


def test_a_rename_with_new_outputs(repository):
    repository.git("mv", "a.ipynb", "b.ipynb")
    repository.write("b.ipynb", notebook("0"))
    repository.commit()
    assert repository.committed("b.ipynb") == clean("0")
    assert b"a.ipynb" not in repository.git("ls-tree", "--name-only", "HEAD")


def test_deleting_a_notebook_needs_no_nbstripout(repository):
    repository.git("config", "lstmtrt.python", "/nowhere/python")
    repository.git("rm", "-q", "a.ipynb")
    repository.commit()
    assert repository.git("ls-tree", "--name-only", "HEAD") == b"text\n"


def test_the_mode_is_kept(repository):
    file = repository.write("run.ipynb", notebook("1"), add=False)
    file.chmod(0o755)
    repository.git("add", "run.ipynb")
    repository.git("update-index", "--chmod=+x", "run.ipynb")
    repository.commit()
    assert repository.git("ls-tree", "HEAD", "run.ipynb").startswith(b"100755 blob")
    assert repository.committed("run.ipynb") == clean("1")


def test_a_link_is_no_notebook_whatever_its_name(repository):
    (repository.folder / "link.ipynb").symlink_to("a.ipynb")
    (repository.folder / "dangling.ipynb").symlink_to("no\nwhere")
    repository.git("add", "link.ipynb", "dangling.ipynb")
    repository.write("a.ipynb", notebook("1"))
    repository.commit()
    listing = repository.git("ls-tree", "HEAD")
    assert listing.count(b"120000 blob") == 2
    assert repository.committed("dangling.ipynb") == b"no\nwhere"
    assert repository.committed("a.ipynb") == clean("1")


def test_a_link_that_becomes_a_notebook(repository):
    link = repository.folder / "link.ipynb"
    link.symlink_to("a.ipynb")
    repository.git("add", "link.ipynb")
    repository.commit()
    link.unlink()
    repository.write("link.ipynb", notebook("1"))
    repository.commit()
    assert repository.committed("link.ipynb") == clean("1")


def test_a_submodule_is_no_notebook_and_can_have_the_hook_itself(repository, plain):
    plain.write("inner.ipynb", notebook("inner"))
    plain.git("add", "-f", ".githooks")
    plain.commit()
    repository.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", str(plain.folder), "module.ipynb")
    repository.write("a.ipynb", notebook("1"))
    repository.commit()
    assert b"160000 commit" in repository.git("ls-tree", "HEAD", "module.ipynb")
    assert repository.committed("a.ipynb") == clean("1")

    inner = Repository(repository.folder / "module.ipynb")
    inner.git("config", "user.name", "A Tester")
    inner.git("config", "user.email", "tester@example.org")
    assert inner.install().returncode == 0
    inner.write("inner.ipynb", notebook("changed"))
    inner.commit()
    assert inner.committed("inner.ipynb") == clean("changed")
    # Only the submodule moves on: no notebook of ours, though its name says so.
    repository.git("add", "module.ipynb")
    repository.git("config", "lstmtrt.python", "/nowhere/python")
    repository.commit()
    assert repository.git("ls-tree", "HEAD", "module.ipynb").split()[2] == inner.git("rev-parse", "HEAD").strip()


def test_outputs_with_a_submodules_step_are_a_commit(repository):
    """Even where configuration hides submodules from diffs."""
    repository.git("update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},module")
    repository.write(".gitmodules", b'[submodule "module"]\n\tpath = module\n\turl = ./module\n\tignore = all\n')
    repository.commit()
    repository.git("update-index", "--cacheinfo", f"160000,{'2' * 40},module")
    repository.write("a.ipynb", notebook("0"))
    repository.commit()
    assert b"2" * 40 in repository.git("ls-tree", "HEAD", "module")
    assert repository.committed("a.ipynb") == clean("0")


# --- Which way of committing ----------------------------------------------------


def test_the_first_commit(fresh):
    fresh.write("a.ipynb", notebook("1"))
    fresh.commit()
    assert fresh.committed("a.ipynb") == clean("1")
    assert fresh.git("rev-list", "--count", "HEAD") == b"1\n"


@pytest.mark.parametrize("where", ["detached", "orphan"])
def test_a_head_without_branch_and_a_branch_without_commit(repository, where):
    repository.git("checkout", "-q", *(["--detach"] if where == "detached" else ["--orphan", "new"]))
    repository.write("b.ipynb", notebook("1"))
    repository.commit()
    assert repository.committed("b.ipynb") == clean("1")


@pytest.mark.parametrize("arguments", [("-a",), ("-i", "--", "a.ipynb"), ("-o", "--", "a.ipynb"), ("--", ".")])
def test_commits_that_stage_on_their_way(repository, arguments):
    repository.write("a.ipynb", notebook("1"), add=False)
    repository.commit(*arguments)
    assert repository.committed("a.ipynb") == clean("1")
    assert (repository.folder / "a.ipynb").read_bytes() == notebook("1")
    # Not only the commit: were the index to keep the outputs, they would be staged again.
    assert repository.staged("a.ipynb") == clean("1")
    assert repository.nothing_staged() and repository.leftovers() == []


def test_a_commit_of_one_path_leaves_what_else_is_staged(repository):
    repository.write("a.ipynb", notebook("1"), add=False)
    repository.write("other.ipynb", notebook("2"))
    repository.write("text", b"staged\n")
    repository.commit("--", "a.ipynb")
    assert repository.committed("a.ipynb") == repository.staged("a.ipynb") == clean("1")
    assert repository.staged("other.ipynb") == notebook("2")
    assert repository.status() == b" M a.ipynb\nA  other.ipynb\nM  text\n"
    repository.commit()
    assert repository.committed("other.ipynb") == clean("2")


def test_a_commit_of_one_path_that_is_given_up_changes_nothing(repository):
    repository.write("a.ipynb", notebook("1"))
    before = repository.state()
    done = repository.run("git", "commit", "--", "a.ipynb", GIT_EDITOR="false")
    assert done.returncode == 1
    assert repository.state() == before and repository.leftovers() == []


def test_amending(repository):
    repository.write("a.ipynb", notebook("1"))
    repository.commit()
    repository.write("a.ipynb", notebook("2"))
    repository.git("commit", "-q", "--amend", "-m", "amended")
    assert repository.committed("a.ipynb") == clean("2")
    assert repository.git("rev-list", "--count", "HEAD") == b"2\n"


@pytest.mark.parametrize("word", ["--amend", "--am", "alias"])
def test_an_amend_may_leave_the_files_as_they_are(repository, word):
    """Only outputs are staged; the amend is for the message."""
    repository.write("a.ipynb", notebook("0"))
    if word == "alias":
        repository.git("config", "alias.reword", "commit --amend")
        repository.git("reword", "-q", "-m", "better words")
    else:
        repository.git("commit", "-q", word, "-m", "better words")
    assert repository.committed("a.ipynb") == clean("0")
    assert repository.git("log", "--format=%s") == b"better words\n"


def test_an_amend_mends_a_commit_that_skipped_the_hook(repository):
    repository.write("a.ipynb", notebook("1"))
    repository.commit("--no-verify")
    assert repository.committed("a.ipynb") == notebook("1")
    repository.git("commit", "-q", "--amend", "--no-edit")
    assert repository.committed("a.ipynb") == repository.staged("a.ipynb") == clean("1")


def test_an_amend_mends_the_first_commit(fresh):
    fresh.write("a.ipynb", notebook("1"))
    fresh.commit("--no-verify")
    fresh.git("commit", "-q", "--amend", "--no-edit")
    assert fresh.committed("a.ipynb") == clean("1")


@pytest.mark.parametrize("arguments", [(), ("-a",), ("--", "a.ipynb")])
def test_a_linked_worktree(repository, arguments):
    linked = Repository(repository.folder.parent / "linked work")
    repository.git("worktree", "add", "-q", str(linked.folder), "-b", "branch")
    before = repository.state()
    linked.write("a.ipynb", notebook("1"))
    linked.commit(*arguments)
    assert linked.committed("a.ipynb") == linked.staged("a.ipynb") == clean("1")
    assert (linked.folder / "a.ipynb").read_bytes() == notebook("1")
    assert repository.state() == before and linked.leftovers() == []


@pytest.mark.parametrize("way", ["inside", "-C", "GIT_DIR", "--git-dir"])
def test_from_a_subfolder_or_from_elsewhere(repository, way, tmp_path):
    repository.write("deep/er/b.ipynb", notebook("1"))
    repository.write("a.ipynb", notebook("2"))
    deep, git_dir = repository.folder / "deep/er", repository.folder / ".git"
    if way == "inside":
        repository.commit(cwd=deep)
    elif way == "-C":
        repository.git("-C", deep, "commit", "-qm", "elsewhere", cwd=tmp_path)
    elif way == "GIT_DIR":
        repository.commit(cwd=tmp_path, GIT_DIR="work/.git", GIT_WORK_TREE="work")
    else:
        repository.git("--git-dir", git_dir, "--work-tree", repository.folder, "commit", "-qm", "x", cwd=tmp_path)
    assert repository.committed("deep/er/b.ipynb") == clean("1")
    assert repository.committed("a.ipynb") == clean("2")


def test_another_index(repository):
    repository.write("a.ipynb", notebook("1"), add=False)
    other = {"GIT_INDEX_FILE": str(repository.folder.parent / "other-index")}
    repository.git("read-tree", "HEAD", **other)
    repository.git("add", "a.ipynb", **other)
    repository.commit(**other)
    assert repository.committed("a.ipynb") == clean("1")


@pytest.mark.parametrize("kind", ["sha256", "split"])
def test_other_kinds_of_repository(tmp_path, installed, kind):
    repository = new_repository(tmp_path / "other", *(["--object-format=sha256"] if kind == "sha256" else []))
    shutil.copytree(installed / ".git/hooks", repository.folder / ".git/hooks", dirs_exist_ok=True)
    repository.git("config", "lstmtrt.python", sys.executable)
    if kind == "split":
        repository.git("config", "core.splitIndex", "true")
    repository.start()
    for text in "12":
        repository.write("a.ipynb", notebook(text))
        repository.commit(*(["--", "a.ipynb"] if text == "2" else []))
        assert repository.committed("a.ipynb") == repository.staged("a.ipynb") == clean(text)


def test_a_merge_conflict_in_a_notebook(repository):
    repository.git("checkout", "-q", "-b", "theirs")
    repository.write("a.ipynb", clean("theirs"))
    repository.commit()
    repository.git("checkout", "-q", "main")
    repository.write("a.ipynb", clean("ours"))
    repository.commit()
    assert repository.run("git", "merge", "theirs").returncode == 1
    assert b"<<<<<<<" in (repository.folder / "a.ipynb").read_bytes()
    repository.git("add", "a.ipynb")
    assert "a.ipynb is not valid JSON" in repository.refused("commit", "--no-edit")
    repository.write("a.ipynb", notebook("both"))
    repository.git("commit", "-q", "--no-edit")
    assert repository.committed("a.ipynb") == clean("both")
    assert len(repository.git("rev-list", "--parents", "-1", "HEAD").split()) == 3


def test_a_merge_may_leave_nothing_of_its_own(repository):
    """Resolved to our side and run again: the merge is to be recorded all the same."""
    repository.git("checkout", "-q", "-b", "theirs")
    repository.write("text", b"theirs\n")
    repository.commit()
    repository.git("checkout", "-q", "main")
    repository.write("text", b"ours\n")
    repository.commit()
    assert repository.run("git", "merge", "theirs").returncode == 1
    repository.git("checkout", "-q", "--ours", "text")
    repository.git("add", "text")
    repository.write("a.ipynb", notebook("0"))
    repository.git("commit", "-q", "--no-edit")
    assert repository.committed("a.ipynb") == clean("0")
    assert len(repository.git("rev-list", "--parents", "-1", "HEAD").split()) == 3


def test_cherry_pick_rebase_and_revert(repository):
    repository.git("checkout", "-q", "-b", "side")
    repository.write("a.ipynb", notebook("side"))
    repository.commit()
    repository.write("text", b"side\n")
    repository.commit()
    repository.git("reset", "-q", "--hard")
    repository.git("checkout", "-q", "main")
    repository.git("cherry-pick", "side")
    repository.git("revert", "--no-edit", "HEAD")
    repository.write("a.ipynb", notebook("main"))
    repository.commit()
    repository.git("reset", "-q", "--hard")
    assert repository.run("git", "cherry-pick", "side~1").returncode == 1
    repository.write("a.ipynb", notebook("resolved"))
    repository.git("cherry-pick", "--continue")
    assert repository.committed("a.ipynb") == clean("resolved")
    repository.git("reset", "-q", "--hard")
    repository.git("checkout", "-q", "-b", "topic", "main~1")
    repository.write("c.ipynb", notebook("1"))
    repository.commit()
    repository.git("reset", "-q", "--hard")
    repository.git("rebase", "-q", "main")
    repository.git("rebase", "-q", "-i", "HEAD~2", GIT_SEQUENCE_EDITOR="sed -i s/^pick/reword/")
    assert repository.committed("c.ipynb") == clean("1")
    assert repository.committed("a.ipynb") == clean("resolved")
    assert repository.leftovers() == []


def test_a_file_that_is_only_announced_is_no_part_of_the_commit(repository):
    """`git add -N`: an empty notebook in the index, but not in the commit."""
    repository.write("new.ipynb", b"not even JSON yet", add=False)
    repository.git("add", "-N", "new.ipynb")
    repository.write("a.ipynb", notebook("1"))
    repository.commit()
    assert repository.committed("a.ipynb") == clean("1")
    assert repository.status() == b" M a.ipynb\n A new.ipynb\n"
    assert b"new.ipynb" not in repository.git("ls-tree", "--name-only", "HEAD")


# --- Refusals -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (notebook()[:-20], "is not valid JSON"),
        (b"\xff\xfe{}", "is not UTF-8"),
        (b"[1, 2]", "is JSON but no notebook"),
        (b'{"metadata": {}}', "is JSON but no notebook"),
        (b'{"cells": 1, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}', "cannot be stripped"),
    ],
)
def test_what_cannot_be_stripped_refuses_the_commit(repository, content, why):
    repository.write("good.ipynb", notebook("1"))
    repository.write("a bad.ipynb", content)
    assert f"a bad.ipynb {why}" in repository.refused()
    assert repository.leftovers() == []


@pytest.mark.parametrize("arguments", [("-a",), ("--", "a.ipynb")])
def test_a_refused_commit_stages_nothing(repository, arguments):
    repository.write("a.ipynb", b"{", add=False)
    assert "a.ipynb is not valid JSON" in repository.refused("commit", "-m", "x", *arguments)
    assert repository.leftovers() == []


def test_a_name_of_two_lines_is_told_in_one(repository):
    repository.write("new\nline.ipynb", b"{")
    assert r"'new\nline.ipynb' is not valid JSON" in repository.refused()


@pytest.mark.parametrize("missing", ["nbstripout", "python", "setting"])
def test_without_nbstripout_only_notebooks_are_refused(repository, missing, tmp_path):
    if missing == "nbstripout":
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "empty"], check=True)
        repository.git("config", "lstmtrt.python", tmp_path / "empty/bin/python")
    elif missing == "python":
        repository.git("config", "lstmtrt.python", tmp_path / "gone/bin/python")
    else:
        repository.git("config", "--unset", "lstmtrt.python")
    repository.write("text", b"1\n")
    repository.commit()
    repository.git("commit", "-q", "--amend", "-m", "other words")
    repository.git("commit", "-q", "--allow-empty", "-m", "empty")
    repository.write("it is.ipynb", notebook("1"))
    said = repository.refused()
    assert "it is.ipynb" in said and "run make hook" in said
    assert {"nbstripout": "lacks", "python": "is gone", "setting": "no Python is stored"}[missing] in said


def test_a_commit_without_notebooks_starts_no_python(repository, tmp_path):
    repository.write("text", b"1\n")
    repository.commit()
    trace = tmp_path / "started"
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\ntouch {shlex.quote(str(trace))}\n")
    python.chmod(0o755)
    repository.git("config", "lstmtrt.python", python)
    repository.write("text", b"2\n")
    repository.commit()
    assert not trace.exists()
    repository.write("a.ipynb", notebook("1"))
    repository.commit()
    assert trace.exists()


@pytest.mark.parametrize("arguments", [(), ("-a",), ("--", "a.ipynb")])
def test_nothing_but_outputs_is_no_commit(repository, arguments):
    repository.write("a.ipynb", notebook("0"), add=not arguments)
    said = repository.refused("commit", "-m", "only outputs", *arguments)
    assert "nothing to commit: only outputs have changed, in a.ipynb" in said
    assert repository.leftovers() == []


def test_with_an_editor_too_nothing_but_outputs_is_no_commit(repository):
    repository.write("a.ipynb", notebook("0"))
    assert "nothing to commit" in repository.refused("commit", GIT_EDITOR="sed -i 1imessage")


def test_an_empty_commit_on_purpose_stays_possible(repository):
    repository.git("commit", "-q", "--allow-empty", "-m", "on purpose")
    assert repository.git("rev-list", "--count", "HEAD") == b"2\n"
    repository.write("a.ipynb", notebook("0"), add=False)
    repository.git("commit", "-q", "--allow-empty", "-m", "with outputs unstaged")
    assert repository.git("rev-list", "--count", "HEAD") == b"3\n"


def test_a_new_mode_is_a_change(repository):
    repository.write("a.ipynb", notebook("0"))
    repository.git("update-index", "--chmod=+x", "a.ipynb")
    repository.commit()
    assert repository.git("ls-tree", "HEAD", "a.ipynb").startswith(b"100755")
    assert repository.committed("a.ipynb") == clean("0")


# --- Nothing is lost ------------------------------------------------------------


def test_line_endings_of_the_working_copy_stay(repository):
    repository.git("config", "core.autocrlf", "true")
    crlf = notebook("1").replace(b"\n", b"\r\n")
    file = repository.write("a.ipynb", crlf)
    repository.commit()
    assert repository.committed("a.ipynb") == clean("1")
    assert file.read_bytes() == crlf


def test_another_clean_filter_is_applied_once(repository):
    repository.write(".gitattributes", b"*.ipynb filter=twice\n")
    repository.git("config", "filter.twice.clean", "sed s/word/wordword/")
    repository.git("config", "filter.twice.smudge", "sed s/wordword/word/")
    file = repository.write("a.ipynb", notebook("word"))
    repository.commit()
    assert repository.committed("a.ipynb") == clean("wordword")
    assert file.read_bytes() == notebook("word")


def test_a_notebook_that_a_filter_keeps_elsewhere_is_refused_and_kept(repository):
    repository.write(".gitattributes", b"*.ipynb filter=pointer\n")
    repository.git("config", "filter.pointer.clean", "printf 'version https://example.org/spec/v1\\n'")
    file = repository.write("a.ipynb", notebook("1"))
    said = repository.refused()
    assert "a.ipynb passes through the filter pointer" in said
    assert file.read_bytes() == notebook("1")


def test_flags_of_an_entry_are_kept(repository):
    """A sparse checkout lives by them: without skip-worktree the file would count as deleted."""
    repository.write("sparse.ipynb", notebook("1"))
    repository.write("assumed.ipynb", notebook("2"))
    repository.git("update-index", "--skip-worktree", "sparse.ipynb")
    repository.git("update-index", "--assume-unchanged", "assumed.ipynb")
    (repository.folder / "sparse.ipynb").unlink()
    repository.commit()
    assert repository.committed("sparse.ipynb") == clean("1")
    assert repository.committed("assumed.ipynb") == clean("2")
    assert repository.git("ls-files", "-v") == b"H a.ipynb\nh assumed.ipynb\nS sparse.ipynb\nH text\n"
    assert repository.status() == b""


def test_a_file_changed_in_the_very_tick_of_the_index_still_counts_as_changed(repository, strip_staged):
    """Git tells such a file by the index's own time, which therefore has to survive."""
    repository.git("config", "core.trustctime", "false")
    repository.git("config", "core.checkStat", "minimal")
    moment = 1_700_000_000
    text = repository.write("text", b"old\n", add=False)
    os.utime(text, (moment, moment))
    repository.write("a.ipynb", notebook("1"))
    repository.git("add", "text")
    text.write_bytes(b"new\n")
    os.utime(text, (moment, moment))
    os.utime(repository.folder / ".git/index", (moment, moment))
    strip_staged.strip_commit()
    assert repository.staged("a.ipynb") == clean("1")
    assert repository.status() == b"MM a.ipynb\nMM text\n"


def test_a_held_index_lock_is_waited_for_then_respected(repository, strip_staged, monkeypatch):
    repository.write("a.ipynb", notebook("1"))
    lock = repository.folder / ".git/index.lock"
    lock.write_bytes(b"somebody's work")
    monkeypatch.setattr(strip_staged, "LOCK_PATIENCE_S", 0.2)
    with pytest.raises(strip_staged.Refusal, match=r"index\.lock is held by another git command"):
        strip_staged.strip_commit()
    assert lock.read_bytes() == b"somebody's work"
    assert repository.staged("a.ipynb") == notebook("1")
    monkeypatch.setattr(strip_staged, "LOCK_PATIENCE_S", 20)
    release = threading.Timer(0.3, lock.unlink)
    release.start()
    strip_staged.strip_commit()
    release.join()
    assert repository.staged("a.ipynb") == clean("1")
    assert repository.leftovers() == []


def test_what_is_staged_while_the_hook_strips_is_stripped_too_and_not_undone(repository, strip_staged, monkeypatch):
    repository.write("a.ipynb", notebook("1"))
    stripped, newer = strip_staged.stripped, [notebook("2")]

    def meanwhile(path, content):
        if newer:
            repository.write("a.ipynb", newer.pop())
            repository.write("b.ipynb", notebook("3"))
        return stripped(path, content)

    monkeypatch.setattr(strip_staged, "stripped", meanwhile)
    strip_staged.strip_commit()
    assert repository.staged("a.ipynb") == clean("2")
    assert repository.staged("b.ipynb") == clean("3")


def test_an_index_that_never_rests_refuses_the_commit(repository, strip_staged, monkeypatch):
    repository.write("a.ipynb", notebook("1"))
    count = iter(range(100))
    monkeypatch.setattr(
        strip_staged,
        "stripped",
        lambda path, content: repository.write("a.ipynb", notebook(f"new {next(count)}")) and clean("1"),
    )
    with pytest.raises(strip_staged.Refusal, match="keeps staging"):
        strip_staged.strip_commit()
    assert repository.staged("a.ipynb") == notebook("new 2")
    assert repository.leftovers() == []


def test_modules_in_the_checkout_and_a_foreign_python_setup_are_not_used(repository):
    for name in ("json.py", "nbformat.py", "nbstripout.py", "subprocess.py"):
        repository.write(name, b"raise SystemExit('imported from the checkout')\n")
    repository.write("a.ipynb", notebook("1"))
    repository.commit(PYTHONHOME="/nowhere", PYTHONPATH=str(repository.folder))
    assert repository.committed("a.ipynb") == clean("1")


# --- The installer --------------------------------------------------------------


def test_the_hook_stays_on_branches_without_it_and_says_when_it_is_older(repository):
    shutil.rmtree(repository.folder / ".githooks")
    repository.write("a.ipynb", notebook("1"))
    repository.commit()
    assert repository.committed("a.ipynb") == clean("1")
    repository.write(".githooks/strip_staged.py", b"# a newer one\n", add=False)
    repository.write("a.ipynb", notebook("2"))
    done = repository.run("git", "commit", "-qm", "x")
    assert done.returncode == 0
    assert done.stderr == b"pre-commit: the installed hook differs from .githooks: make hook installs that one\n"


def test_installing_again_changes_nothing_and_uninstalling_restores(plain):
    configuration = plain.folder / ".git/config"
    before = configuration.read_bytes(), sorted(os.listdir(plain.folder / ".git/hooks"))
    assert plain.install().returncode == 0
    once = configuration.read_bytes()
    assert b"python = " + os.fsencode(sys.executable) in once
    assert plain.install().returncode == 0
    assert configuration.read_bytes() == once
    assert os.access(plain.folder / ".git/hooks/pre-commit", os.X_OK)
    assert plain.install("--uninstall").returncode == 0
    assert (configuration.read_bytes(), sorted(os.listdir(plain.folder / ".git/hooks"))) == before
    assert plain.install("--uninstall").returncode == 0


def test_an_older_copy_is_brought_up_to_date_and_an_edited_one_is_not(plain):
    source, copy = plain.folder / ".githooks/strip_staged.py", plain.folder / ".git/hooks/strip_staged.py"
    new = source.read_bytes()
    source.write_bytes(b"# an older version\n" + new)
    assert plain.install().returncode == 0
    source.write_bytes(new)
    assert plain.install().returncode == 0
    assert copy.read_bytes() == new
    copy.write_bytes(new + b"# mine\n")
    assert "not ours as we made it" in plain.install_refused()
    assert copy.read_bytes() == new + b"# mine\n"


def test_the_founding_documents_link_is_replaced_by_a_copy(plain):
    link = plain.folder / ".git/hooks/pre-commit"
    link.parent.mkdir(exist_ok=True)
    link.symlink_to("../../.githooks/pre-commit")
    source = (plain.folder / ".githooks/pre-commit").read_bytes()
    assert plain.install().returncode == 0
    assert not link.is_symlink() and link.read_bytes() == source
    assert (plain.folder / ".githooks/pre-commit").read_bytes() == source


def test_another_hook_stays_and_can_call_ours(plain):
    other = plain.folder / ".git/hooks/pre-commit"
    other.parent.mkdir(exist_ok=True)
    other.write_text("#!/bin/sh\necho lstm_trt >>other-ran\n# .githooks/pre-commit\n")
    other.chmod(0o755)
    before = other.read_bytes(), (plain.folder / ".git/config").read_bytes()
    said = plain.install_refused()
    assert str(other) in said and ".githooks/pre-commit || exit 1" in said
    assert (other.read_bytes(), (plain.folder / ".git/config").read_bytes()) == before

    chained = before[0] + b".githooks/pre-commit || exit 1\n"
    other.write_bytes(chained)
    assert plain.install().returncode == 0
    assert other.read_bytes() == chained
    plain.write("a.ipynb", notebook("1"))
    plain.commit()
    assert plain.committed("a.ipynb") == clean("1")
    plain.write("a.ipynb", b"")
    assert "a.ipynb is empty" in plain.refused()
    # The amend is two processes up.
    plain.write("a.ipynb", notebook("1"))
    plain.git("commit", "-q", "--amend", "-m", "better words")
    assert (plain.folder / "other-ran").read_text().count("\n") == 3
    assert b"still calls" in plain.install("--uninstall").stdout
    assert other.read_bytes() == chained


@pytest.mark.parametrize("path", ["my hooks", ".githooks"])
def test_a_hooks_path_stays(plain, path):
    plain.git("config", "core.hooksPath", path)
    if path == ".githooks":
        assert plain.install().returncode == 0
        plain.write("a.ipynb", notebook("1"))
        plain.commit()
        assert plain.committed("a.ipynb") == clean("1")
        assert b"core.hooksPath still" in plain.install("--uninstall").stdout
    else:
        said = plain.install_refused()
        assert "core.hooksPath sends git to 'my hooks'" in said and ".githooks/pre-commit || exit 1" in said
        assert not (plain.folder / path).exists()
    assert plain.git("config", "core.hooksPath") == path.encode() + b"\n"
    assert not (plain.folder / ".git/hooks/strip_staged.py").exists()


def test_installing_from_a_linked_worktree_serves_all(plain):
    plain.git("add", "-f", ".githooks")
    plain.commit()
    linked = Repository(plain.folder.parent / "linked")
    plain.git("worktree", "add", "-q", str(linked.folder), "-b", "branch")
    assert linked.install().returncode == 0
    for place in (linked, plain):
        place.write("a.ipynb", notebook("1"))
        place.commit()
        assert place.committed("a.ipynb") == clean("1")


def test_an_installer_that_cannot_install_says_why(plain, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "empty"], check=True)
    said = plain.install_refused("--python", tmp_path / "empty/bin/python")
    assert "cannot run nbstripout (" in said and "No module named 'nbstripout'" in said
    assert "No such file" in plain.install_refused("--python", tmp_path / "none")
    (plain.folder / ".git").rename(plain.folder / "git")
    assert "is not the root of a git checkout" in plain.install_refused()


# --- The filter -----------------------------------------------------------------


def test_the_filter_strips_as_the_hook_does(plain):
    assert plain.install().returncode == 0
    assert plain.install("--filter").returncode == 0
    assert not (plain.folder / ".git/hooks/pre-commit").exists()
    content = notebook("1", papermill={"x": 1})
    file = plain.write("a b.ipynb", content)
    plain.commit()
    assert plain.committed("a b.ipynb") == clean("1")
    assert file.read_bytes() == content
    file.write_bytes(b"{")
    assert plain.run("git", "add", "a b.ipynb").returncode == 128


def test_the_filters_trade_is_as_the_readme_says(plain):
    assert plain.install("--filter").returncode == 0
    file = plain.write("a.ipynb", clean("1"))
    plain.commit()
    plain.git("checkout", "-q", "-b", "other")
    plain.write("a.ipynb", clean("2"))
    plain.commit()
    plain.git("checkout", "-q", "main")
    # Run again: diff is quiet, but git believes the new size before it asks a filter.
    file.write_bytes(notebook("1"))
    assert plain.git("diff") == b""
    assert plain.status() == b" M a.ipynb\n"
    assert plain.run("git", "checkout", "-q", "other").returncode == 1
    plain.git("add", "a.ipynb")
    assert plain.status() == b"" and file.read_bytes() == notebook("1")
    # And now the branches switch, which is where the outputs go.
    plain.git("checkout", "-q", "other")
    plain.git("checkout", "-q", "main")
    assert file.read_bytes() == clean("1")


def test_the_filter_comes_and_goes_without_a_trace(plain):
    configuration, attributes = plain.folder / ".git/config", plain.folder / ".git/info/attributes"
    attributes.write_bytes(b"*.csv text\r\n*.txt text")
    before = configuration.read_bytes()
    assert plain.install("--filter").returncode == 0
    assert attributes.read_bytes().startswith(b"*.csv text\r\n*.txt text\n# lstm_trt")
    once = configuration.read_bytes(), attributes.read_bytes()
    assert plain.install("--filter").returncode == 0
    assert (configuration.read_bytes(), attributes.read_bytes()) == once
    # To the hook: the filter goes.
    assert plain.install().returncode == 0
    assert attributes.read_bytes() == b"*.csv text\r\n*.txt text\n"
    assert b"nbstripout" not in configuration.read_bytes()
    assert plain.install("--uninstall").returncode == 0
    assert configuration.read_bytes() == before


def test_another_filter_stays(plain):
    configuration = plain.folder / ".git/config"
    plain.git("config", "filter.nbstripout.clean", "my-own nbstripout")
    before = configuration.read_bytes()
    assert "filter.nbstripout.clean is set to 'my-own nbstripout'" in plain.install_refused("--filter")
    assert configuration.read_bytes() == before
    plain.git("config", "--remove-section", "filter.nbstripout")
    (plain.folder / ".gitattributes").write_text("notebooks/*.ipynb filter=lfs\n")
    assert "passes through the filter lfs" in plain.install_refused("--filter")
    assert not (plain.folder / ".git/info/attributes").exists()
    plain.git("config", "filter.nbstripout.clean", "my-own nbstripout")
    assert plain.install("--uninstall").returncode == 0
    assert plain.git("config", "filter.nbstripout.clean") == b"my-own nbstripout\n"


# --- The check ------------------------------------------------------------------


def check(repository: Repository, **environment: str) -> subprocess.CompletedProcess:
    return repository.run(sys.executable, ".githooks/strip_staged.py", "--check", **environment)


def test_the_check_looks_at_what_is_committed_and_not_at_the_working_copy(fresh):
    assert check(fresh).returncode == 0
    fresh.write("text", b"0\n")
    fresh.commit()
    assert check(fresh).returncode == 0
    fresh.write("a.ipynb", notebook("1"))
    fresh.write("deep/é\n.ipynb", notebook("2"))
    (fresh.folder / "link.ipynb").symlink_to("nowhere")
    fresh.git("add", "link.ipynb")
    fresh.commit()
    done = check(fresh)
    assert done.returncode == 0 and done.stdout == b"check-notebooks: 2 committed, none holds outputs\n", done


def test_the_check_names_what_skipped_the_hook(repository):
    repository.write("with out.ipynb", notebook("1"))
    repository.write("papered.ipynb", notebook("1", ran=False, papermill={"x": 1}))
    repository.write("injected.ipynb", notebook("1", ran=False, tags=("injected-parameters",)))
    repository.write("empty.ipynb", b"")
    repository.commit("--no-verify")
    done = check(repository)
    lines = done.stderr.decode().splitlines()
    assert done.returncode == 1 and len(lines) == 4, done
    assert "check-notebooks: empty.ipynb is empty" in lines
    for name in ("with out", "papered", "injected"):
        assert any(line.startswith(f"check-notebooks: {name}.ipynb was committed unstripped") for line in lines)
    repository.git("rm", "-q", "--cached", "empty.ipynb")
    repository.git("commit", "-q", "--amend", "--no-edit")
    assert check(repository).returncode == 0


def test_the_check_passes_where_there_is_no_repository(tmp_path):
    (tmp_path / "archive").mkdir()
    done = Repository(tmp_path / "archive").run(sys.executable, HOOKS / "strip_staged.py", "--check")
    assert done.returncode == 0, done


def test_the_check_reads_a_checkout_of_another_owner(repository):
    done = check(repository, GIT_TEST_ASSUME_DIFFERENT_OWNER="1")
    assert done.returncode == 0 and b"1 committed" in done.stdout, done


def test_this_projects_own_notebooks_are_clean():
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    done = subprocess.run(
        [sys.executable, ".githooks/strip_staged.py", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_hands_the_wish_for_a_filter_on():
    for arguments, expected in (((), False), (("FILTER=1",), True)):
        done = subprocess.run(["make", "-n", "hook", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
        (line,) = (line for line in done.stdout.splitlines() if ".githooks/install" in line)
        assert ("--filter" in line) == expected
    done = subprocess.run(["make", "-n", "lint"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ".githooks/strip_staged.py --check" in done.stdout
