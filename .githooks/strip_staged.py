"""Strips the notebooks that a commit is about to record, in the index and nowhere else.

The hook `pre-commit` starts this file with the Python that `make hook` stored. Each
staged .ipynb is read from the index, stripped by nbstripout, written as a new blob and
put in the place of the old one, its mode kept; working copy and unstaged changes stay
as they are. What cannot be stripped refuses the commit with one line that names the
file. With --check it verifies the notebooks of HEAD instead, which is what `make lint`
and CI do, since a hook can be skipped. OPTIONS are the only place that says what is
stripped; the hook, the check and the clean filter of `make hook FILTER=1` use them.
Standard library only, and nbstripout only where there is a notebook.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

# Cell ids, tags and the kernelspec stay: they belong to the notebook, not to a run of it.
# One dropped tag only: given several, nbstripout 0.9.1 drops the cells of the last one.
OPTIONS = (
    "--keep-id",
    "--extra-keys",
    "metadata.papermill cell.metadata.papermill",
    "--drop-tagged-cells",
    "injected-parameters",
)
# How nbstripout is started. jsonschema, which it brings, compiles a grammar of web addresses on
# import where rfc3987_syntax is installed, most of a second; it does without, and notebooks need none.
START = 'import sys; sys.modules.setdefault("rfc3987_syntax", None); from nbstripout import main; main()'
REGULAR_FILES = (b"100644", b"100755")  # not links (120000) and not submodules (160000), whatever their names
LOCK_PATIENCE_S = 5.0
ATTEMPTS = 3


class Refusal(Exception):
    """Why there is no commit, in one line."""


class Change(NamedTuple):
    """One path that differs between a commit and the index."""

    path: bytes
    mode: bytes
    blob: bytes
    old_mode: bytes
    old_blob: bytes


def git(*arguments: str, index: Path | None = None, stdin: bytes = b"") -> bytes:
    """Standard output of a git command, on another index if one is given."""
    environment = {**os.environ, "LC_ALL": "C"}
    if index:
        environment["GIT_INDEX_FILE"] = str(index)
    done = subprocess.run(["git", *arguments], input=stdin, capture_output=True, env=environment)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit status {done.returncode}"]
        raise Refusal(f"git {arguments[0]} failed: {said[0]}")
    return done.stdout


def exists(revision: str) -> bool:
    return subprocess.run(["git", "rev-parse", "--verify", "--quiet", revision], capture_output=True).returncode == 0


def base(revision: str) -> str:
    """A commit to compare with; the empty tree where there is none, as before the first commit."""
    return revision if exists(revision) else git("hash-object", "-t", "tree", "--stdin").decode().strip()


def shown(path: bytes) -> str:
    """A file's name on one line, whatever is in it."""
    name = os.fsdecode(path)
    return name if name.isprintable() else ascii(name)


def is_notebook(mode: bytes, path: bytes) -> bool:
    return mode in REGULAR_FILES and path.endswith(b".ipynb")


def several(paths: Iterable[bytes]) -> str:
    first, *others = sorted(paths)
    return shown(first) + (f" and {len(others)} more" if others else "")


# --- nbstripout ---------------------------------------------------------------


def run_nbstripout(file: Path, *more: str) -> tuple[int, str]:
    """nbstripout's command line on a file: its exit status, and the last line of what went wrong."""
    before = sys.argv, sys.stdin
    # nbstripout wraps the streams' buffers and closes them with its wrappers.
    sys.argv, sys.stdin = ["nbstripout", *OPTIONS, *more, str(file)], None
    said = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    errors = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(errors):
            sys.modules.setdefault("rfc3987_syntax", None)  # as in START
            from nbstripout import main as nbstripout

            nbstripout()
        return 0, ""
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        return status, (errors.getvalue().strip().splitlines() or [""])[-1]
    except Exception as error:
        return 70, f"{type(error).__name__}: {error}".splitlines()[0]
    finally:
        sys.argv, sys.stdin = before


def need_nbstripout(name: str) -> None:
    if importlib.util.find_spec("nbstripout") is None:
        raise Refusal(f"{name} needs nbstripout, which {sys.executable} lacks: run make hook, then try again")


def set_configuration(settings: dict[str, str]) -> None:
    """Settings for every git below this process, above those in files."""
    count = int(os.environ.get("GIT_CONFIG_COUNT") or 0)
    for number, (name, value) in enumerate(settings.items(), count):
        os.environ |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    os.environ["GIT_CONFIG_COUNT"] = str(count + len(settings))


def why_no_notebook(content: bytes) -> str | None:
    """What is wrong with a file that no stripping can mend."""
    if not content.strip():
        return "is empty"
    try:
        notebook = json.loads(content.decode("utf-8"))
    except UnicodeDecodeError:
        return "is not UTF-8"
    except (ValueError, RecursionError) as error:
        return f"is not valid JSON ({error})"
    if not isinstance(notebook, dict) or not ("cells" in notebook or "worksheets" in notebook):
        return "is JSON but no notebook"
    return None


def filter_of(path: bytes) -> str | None:
    """The filter that .gitattributes sends a path through, such as lfs."""
    value = git("check-attr", "-z", "--stdin", "filter", stdin=path + b"\0").split(b"\0")[2].decode(errors="replace")
    return None if value in ("unspecified", "unset", "set") else value


def stripped(path: bytes, content: bytes) -> bytes:
    """What nbstripout makes of a staged notebook; the very same bytes where it has nothing to strip."""
    name = shown(path)
    wrong = why_no_notebook(content)
    if wrong:
        through = filter_of(path)
        if through:
            wrong = f"passes through the filter {through}, so that what is staged {wrong}"
        raise Refusal(f"{name} {wrong}: mend it and stage it again, or take it off the stage")
    with tempfile.TemporaryDirectory(prefix="lstmtrt-") as folder:
        file = Path(folder, "notebook.ipynb")
        file.write_bytes(content)
        status, said = run_nbstripout(file)
        if status:
            raise Refusal(f"{name} cannot be stripped: {said or f'nbstripout ended with {status}'}")
        return file.read_bytes()


# --- The index ----------------------------------------------------------------


def changes(revision: str, index: Path) -> list[Change]:
    """How an index differs from a commit. What `git add -N` announced is not part of it yet."""
    output = git(
        *("diff-index", "--cached", "--raw", "-z", "--no-renames", "--no-abbrev"),
        *("--ita-invisible-in-index", "--ignore-submodules=none", revision, "--"),
        index=index,
    )
    words = output.split(b"\0")[:-1]
    found = []
    for fields, path in zip(words[::2], words[1::2], strict=True):
        old_mode, mode, old_blob, blob, _ = fields.removeprefix(b":").split(b" ")
        found.append(Change(path, mode, blob, old_mode, old_blob))
    return found


def staged_notebooks(revisions: Iterable[str], index: Path) -> dict[bytes, tuple[bytes, bytes]]:
    """Mode and blob of each notebook that the commit would bring."""
    return {
        change.path: (change.mode, change.blob)
        for revision in revisions
        for change in changes(revision, index)
        if is_notebook(change.mode, change.path)
    }


def write_entries(index: Path, blobs: dict[bytes, tuple[bytes, bytes]]) -> None:
    """Put new blobs in the place of old ones, {path: (old, new)}; an entry that holds another blob is left alone."""
    lines, flags = [], {"--skip-worktree": [], "--assume-unchanged": []}
    for entry in git("ls-files", "-v", "-s", "-z", "--full-name", "--", ":/", index=index).split(b"\0")[:-1]:
        fields, _, path = entry.partition(b"\t")
        tag, mode, blob, stage = fields.split(b" ")
        old, new = blobs.get(path, (None, None))
        if stage == b"0" and blob == old:
            lines.append(b"%s %s 0\t%s\0" % (mode, new, path))
            # A new entry starts without these, and in a sparse checkout the file would seem deleted.
            if tag in b"Ss":
                flags["--skip-worktree"].append(path)
            if tag.islower():
                flags["--assume-unchanged"].append(path)
    if lines:
        git("update-index", "-z", "--index-info", index=index, stdin=b"".join(lines))
    for flag, paths in flags.items():
        if paths:
            git("update-index", flag, "-z", "--stdin", index=index, stdin=b"\0".join(paths) + b"\0")


def replace(
    index: Path, blobs: dict[bytes, tuple[bytes, bytes]], unchanged: Callable[[Path], bool] = lambda index: True
) -> bool:
    """Write the blobs into an index under git's own lock, whole or not at all.

    False if `unchanged` denies, which is asked about a copy that nobody else can change.
    """
    index = Path(os.path.realpath(index))
    lock, draft = Path(f"{index}.lock"), Path(f"{index}.lstmtrt-{os.getpid()}")
    patience = time.monotonic() + LOCK_PATIENCE_S
    while True:
        try:
            os.close(os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
            break
        except FileExistsError:
            if time.monotonic() > patience:
                raise Refusal(
                    f"{lock} is held by another git command: commit again when it is done, or remove it if none runs"
                ) from None
            time.sleep(0.05)
    ours = True
    try:
        # With its time: git takes a file for unchanged by comparing times with the index's own.
        shutil.copy2(index, draft)
        if not unchanged(draft):
            return False
        write_entries(draft, blobs)
        os.replace(draft, lock)
        os.replace(lock, index)
        ours = False
        return True
    finally:
        draft.unlink(missing_ok=True)
        if ours:
            lock.unlink(missing_ok=True)


# --- The commit ---------------------------------------------------------------


def amending() -> bool:
    """Whether the git above us is `git commit --amend`, which git tells its hooks in no other way.

    Reads /proc; without it an amend counts as a plain commit.
    """
    process = os.getppid()
    for _ in range(16):  # hooks that call hooks, hook managers
        try:
            words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
            process = int(Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return False
        program = os.path.basename(words[0])
        if program == b"git-commit" or (program == b"git" and b"commit" in words):
            options = words[: words.index(b"--")] if b"--" in words else words
            return any(re.fullmatch(rb"--am(e(n(d)?)?)?", word) for word in options)
    return False


def strip_commit() -> None:
    """What the hook does: strip what is staged, or raise Refusal and leave everything as it was."""
    index = Path.cwd() / (os.environ.get("GIT_INDEX_FILE") or os.fsdecode(git("rev-parse", "--git-path", "index")[:-1]))
    amend = amending()
    # An amend records HEAD's notebooks again, those too that came in without the hook.
    revisions = [base("HEAD"), base("HEAD^")] if amend else [base("HEAD")]
    for _ in range(ATTEMPTS):
        notebooks = staged_notebooks(revisions, index)
        if not notebooks:
            return
        need_nbstripout(several(notebooks))
        new = {}
        for path, (_, blob) in notebooks.items():
            content = git("cat-file", "blob", blob.decode())
            clean = stripped(path, content)
            # Without --path: the blob is as it must be, no filter and no line ending may touch it.
            new[path] = blob if clean == content else git("hash-object", "-w", "--stdin", stdin=clean).strip()
        blobs = {path: (blob, new[path]) for path, (_, blob) in notebooks.items() if new[path] != blob}
        # Git looks whether there is something to commit before it asks us, and not again.
        if blobs and not amend and not exists("MERGE_HEAD"):
            left = [
                change
                for change in changes(revisions[0], index)
                if (change.old_mode, change.old_blob) != (change.mode, new.get(change.path, change.blob))
            ]
            if not left:
                raise Refusal(f"nothing to commit: only outputs have changed, in {several(notebooks)}")
        if not blobs or replace(index, blobs, lambda draft, seen=notebooks: staged_notebooks(revisions, draft) == seen):
            break
    else:
        raise Refusal("something else keeps staging notebooks: commit again when it is done")
    # `git commit -- PATH` commits from a temporary index and will then move index.lock, which is
    # its second copy with the same files added, to index: unless that holds the stripped blobs too,
    # the outputs are staged again as soon as the commit is made.
    if blobs and re.fullmatch(r"next-index-\d+\.lock", index.name):
        real = index.with_name("index.lock")
        if real.exists():
            replace(real, blobs)


def note_an_older_copy() -> None:
    """Say so where the hook that ran is not the one of this checkout."""
    here = Path(__file__).resolve().parent
    for name in ("pre-commit", Path(__file__).name):
        other = Path(".githooks", name)
        if other.is_file() and other.read_bytes() != (here / name).read_bytes():
            print("pre-commit: the installed hook differs from .githooks: make hook installs that one", file=sys.stderr)
            return


# --- The check ----------------------------------------------------------------


def check_commit() -> int:
    """Verify the notebooks of HEAD below the current folder; a line for each that would be stripped."""
    try:
        git("rev-parse", "--git-dir")
    except Refusal as refusal:
        if "not a git repository" not in str(refusal):
            raise
        print("check-notebooks: no git repository here, so no committed notebooks")
        return 0
    listing = git("ls-tree", "-r", "-z", "HEAD").split(b"\0")[:-1] if exists("HEAD") else []
    notebooks = {}
    for line in listing:
        fields, _, path = line.partition(b"\t")
        mode, _, blob = fields.split(b" ")
        if is_notebook(mode, path):
            notebooks[path] = blob
    if notebooks:
        need_nbstripout(several(notebooks))
    wrong = 0
    for path, blob in notebooks.items():
        content = git("cat-file", "blob", blob.decode())
        reason = why_no_notebook(content)
        if not reason:
            with tempfile.TemporaryDirectory(prefix="lstmtrt-") as folder:
                file = Path(folder, "notebook.ipynb")
                file.write_bytes(content)
                status, said = run_nbstripout(file, "--verify")
            command = shlex.join(["nbstripout", *OPTIONS, "--", shown(path)])
            if status == 1 and not said:
                reason = f"was committed unstripped: make hook, {command}, and commit it"
            elif status:
                reason = f"cannot be verified: {said or f'nbstripout ended with {status}'}"
        if reason:
            wrong += 1
            print(f"check-notebooks: {shown(path)} {reason}", file=sys.stderr)
    if not wrong:
        print(f"check-notebooks: {len(notebooks)} committed, none holds outputs")
    return 1 if wrong else 0


def main(arguments: list[str]) -> int:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))  # an exit gives locks back
    # nbstripout would add what the user configured for its filter; the hook and CI must agree.
    set_configuration({"filter.nbstripout.extrakeys": "", "filter.nbstripout.keepmetadatakeys": ""})
    checking = arguments == ["--check"]
    who = "check-notebooks" if checking else "pre-commit"
    if checking:
        # A container's checkout often belongs to another user, which git minds; reading objects runs nothing of it.
        set_configuration({"safe.directory": "*"})
    try:
        if checking:
            return check_commit()
        if arguments:
            raise Refusal(f"unknown arguments {shlex.join(arguments)}: --check, or nothing when git calls")
        strip_commit()
        note_an_older_copy()
        return 0
    except Refusal as refusal:
        print(f"{who}: {refusal}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{who}: {error}: mend that and try again", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
