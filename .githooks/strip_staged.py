"""Strip from notebooks what a run writes: in commits, merges, a clean filter, or files.

The file `pre-commit` starts this one with a Python that has nbstripout and the name of a hook:

* pre-commit: each staged .ipynb is read from the index and stripped, and its index entry is
  changed to the stripped blob; mode, flags, working copy and unstaged changes stay as they
  are. If a notebook cannot be stripped, the commit is refused with one line that names it.
* pre-merge-commit: a merge that brings in the results of a run is left to `git commit`, which strips them.
* post-merge: after a fast-forward, which records no commit, prints a warning.

--check verifies the committed notebooks (`make lint`, CI), because a hook can be skipped.
--filter strips from standard input to standard output, and names of notebooks strip these
files. Only the standard library is imported until a notebook is found.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

# What a run or a service writes, besides outputs and execution counts: times, names and ids of users and sessions.
# Cell ids, tags and the kernelspec stay: they belong to the notebook, not to a run of it.
NOTEBOOK_KEYS = (
    *("language_info", "papermill", "signature", "widgets"),
    *("colab.authorship_tag", "colab.collapsed_sections", "colab.last_runtime", "colab.provenance"),  # Colab
    "notebookId",  # Databricks
    *("deepnote_execution_queue", "deepnote_notebook_id", "deepnote_persisted_session"),  # Deepnote
    "lastEditStatus",  # Snowflake: name and address of the author, times
    "vscode.interpreter",  # VS Code: a hash of the path of Python
)
CELL_KEYS = (
    *("ExecuteTime", "collapsed", "execution", "heading_collapsed", "hidden", "papermill", "scrolled", "trusted"),
    *("executionInfo", "outputId"),  # Colab: times, name and id of the user
    *(f"colab.{key}" for key in ("background_save", "base_uri", "height", "referenced_widgets", "resources")),
    *("_cell_guid", "_uuid"),  # Kaggle
    *("execution_context_id", "execution_millis", "execution_start", "source_hash"),  # Deepnote
    *("deepnote_table_loading", "deepnote_table_state", "deepnote_to_be_reexecuted"),
)
EXTRA_KEYS = [*(f"metadata.{key}" for key in NOTEBOOK_KEYS), *(f"cell.metadata.{key}" for key in CELL_KEYS)]
EMPTIED = ("tags", "colab", "vscode")  # left out if nothing remains in them
# Databricks keeps the titles of cells beside its ids and times, under a name with dots, which nbstripout cannot enter.
DATABRICKS = "application/vnd.databricks.v1+"
DATABRICKS_KEYS = {
    *("cellMetadata", "finishTime", "inputWidgets", "nuid", "startTime", "submitTime", "tableResultSettingsMap"),
    *("currentValue", "mostRecentlyExecutedCommandWithImplicitDF", "notebookOrigID"),
}
KEEPING = re.compile("keep_output|init_cell")  # how the metadata of a notebook or cell keep outputs
ADDED_CELLS = {"injected-parameters", "papermill-error-cell-tag"}  # tags of the cells that papermill adds
# With rfc3987_syntax (installed by JupyterLab), importing nbformat takes two seconds longer: jsonschema then
# compiles a grammar of web addresses, which notebooks do not need. None in sys.modules makes that import fail.
UNNEEDED = "rfc3987_syntax"
CONFLICT = re.compile(rb"[<|=>]{7,}( |\r?$)")  # how git begins a line of a conflict that it leaves in a file
SUFFIX = b".ipynb"  # JupyterLab opens A.IPYNB as well
REGULAR_FILES = (b"100644", b"100755")  # not links (120000) or submodules (160000), whatever their names
ATTEMPTS = 3


class Refusal(Exception):
    """One line that states what is wrong and what to do."""


def git(*arguments: str | Path, check: bool = True, stdin: bytes = b"", **environment: str) -> bytes:
    """Standard output of a git command; if it fails, raises Refusal, or returns empty output without `check`."""
    done = subprocess.run(["git", *arguments], input=stdin, capture_output=True, env=os.environ | environment)
    if done.returncode and check:
        message = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit status {done.returncode}"]
        raise Refusal(f"git {arguments[0]} failed: {message[0]}")
    return b"" if done.returncode else done.stdout


def commit_or_empty_tree(revision: str) -> str:
    """The id of a commit; of the empty tree if there is no such commit, as before the first one."""
    commit = git("rev-parse", "--verify", "--quiet", revision, check=False)
    return (commit or git("hash-object", "-t", "tree", "--stdin")).decode().strip()


def printable(path: bytes) -> str:
    """A file's name on one line, whatever characters it has."""
    name = os.fsdecode(path)
    return name if name.isprintable() else ascii(name)


def is_notebook(mode: bytes, path: bytes) -> bool:
    return mode in REGULAR_FILES and path.lower().endswith(SUFFIX)


def read(blob: bytes) -> bytes:
    return git("cat-file", "blob", blob.decode())


def tags(cell: dict) -> list[str]:
    return cell.get("metadata", {}).get("tags", [])


def tidy(metadata: dict) -> None:
    """Leave out what nbstripout cannot: the ids and times of Databricks, and entries in which nothing is left."""
    for key, value in list(metadata.items()):
        if key.startswith(DATABRICKS):
            metadata[key] = without(value, DATABRICKS_KEYS)
        elif key in EMPTIED and not value:
            del metadata[key]


def without(value: object, keys: set[str]) -> object:
    """JSON values without these keys, at any depth of objects."""
    if not isinstance(value, dict):
        return value
    return {key: without(each, keys) for key, each in value.items() if key not in keys}


def emptied(notebook: dict) -> dict:
    """A copy without the outputs that nobody asks to keep: a million of them take nbformat and nbstripout a minute."""
    if "cells" not in notebook or keeps_outputs(notebook):
        return notebook
    cells = []
    for cell in notebook["cells"]:
        lost = "outputs" in cell and not keeps_outputs(cell)
        cells.append(cell | {"outputs": []} if lost else cell)
    return notebook | {"cells": cells}


def keeps_outputs(part: dict) -> bool:
    """Whether a notebook or cell may ask nbstripout, which decides, to keep outputs."""
    return KEEPING.search(json.dumps(part.get("metadata"))) is not None


def stripped(path: bytes, content: bytes) -> bytes:
    """A notebook without outputs; the same bytes if nbstripout has nothing to strip."""
    name, remedy = printable(path), "repair it and stage it again, or leave it out of the commit"
    if not content.strip():
        raise Refusal(f"{name} is empty: {remedy}")
    try:
        notebook = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        for number, line in enumerate(content.split(b"\n"), 1):
            if CONFLICT.match(line):
                raise Refusal(f"{name} has conflict markers in line {number}: {remedy}") from None
        # A filter such as Git LFS stages a pointer instead of the notebook.
        raise Refusal(f"{name} is not valid JSON as git stores it ({error}): {remedy}") from None
    if not isinstance(notebook, dict) or not notebook.keys() & {"cells", "worksheets"}:
        raise Refusal(f"{name} is JSON but not a notebook: {remedy}")
    sys.modules.setdefault(UNNEEDED, None)
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # nbformat reports deviations from the schema
            import nbformat
            from nbstripout import strip_output

            bare = nbformat.from_dict(emptied(notebook))
            for sheet in bare.get("worksheets", [bare]):
                sheet.cells = [cell for cell in sheet.cells if not ADDED_CELLS.intersection(tags(cell))]
            strip_output(bare, keep_output=None, keep_count=False, keep_id=True, extra_keys=EXTRA_KEYS)
            for sheet in bare.get("worksheets", [bare]):
                for part in (bare, *sheet.cells):
                    tidy(part.get("metadata", {}))
            # Only what is left is validated, and in written form.
            valid = nbformat.reads(json.dumps(bare), as_version=nbformat.NO_CONVERT)
            return content if bare == notebook else (nbformat.writes(valid) + "\n").encode()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise Refusal(f"{name} cannot be stripped ({reason}): {remedy}") from None


# --- The commit ---------------------------------------------------------------


Changes = dict[bytes, tuple[tuple[bytes, bytes], tuple[bytes, bytes]]]


def changes(commit: str) -> Changes:
    """Differences between a commit and the index: path -> (mode, blob) before and after; without `git add -N`."""
    output = git(
        *("diff-index", "--cached", "--raw", "-z", "--no-renames", "--no-abbrev"),
        *("--ita-invisible-in-index", "--ignore-submodules=none", commit, "--"),
    )
    items, found = output.split(b"\0")[:-1], {}
    for fields, path in zip(items[::2], items[1::2], strict=True):
        old_mode, mode, old_blob, blob, _ = fields.removeprefix(b":").split(b" ")
        found[path] = (old_mode, old_blob), (mode, blob)
    return found


def notebooks(changed: Changes) -> dict[bytes, bytes]:
    """The new blob of each notebook among these changes."""
    return {path: blob for path, (_, (mode, blob)) in changed.items() if is_notebook(mode, path)}


def replace(blobs: dict[bytes, tuple[bytes, bytes]], **environment: str) -> None:
    """Replace old blobs by new ones, {path: (old, new)}; an entry with another blob is left unchanged."""
    entries, flags = [], {"--skip-worktree": [], "--assume-unchanged": []}
    for line in git("ls-files", "-v", "-s", "-z", **environment).split(b"\0")[:-1]:
        fields, _, path = line.partition(b"\t")
        tag, mode, blob, _ = fields.split(b" ")
        old, new = blobs.get(path, (None, None))
        if blob == old:
            entries.append(b"%s %s 0\t%s\0" % (mode, new, path))
            # A new entry starts without these flags, and in a sparse checkout the file would appear deleted.
            if tag in b"Ss":
                flags["--skip-worktree"].append(path + b"\0")
            if tag.islower():
                flags["--assume-unchanged"].append(path + b"\0")
    git("update-index", "-z", "--index-info", stdin=b"".join(entries), **environment)
    for flag, paths in flags.items():
        if paths:
            git("update-index", flag, "-z", "--stdin", stdin=b"".join(paths), **environment)


def amending() -> bool:
    """Whether the parent process is `git commit --amend`; git gives its hooks no other sign.

    Reads /proc; without it an amend counts as a plain commit.
    """
    process = os.getppid()
    for _ in range(16):  # hooks that call hooks, hook managers
        try:
            command = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
            process = int(Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return False
        program = os.path.basename(command[0])
        if program == b"git-commit" or (program == b"git" and b"commit" in command):
            options = command[: command.index(b"--")] if b"--" in command else command
            return any(re.fullmatch(rb"--am(e(n(d)?)?)?", option) for option in options)
    return False


def strip_commit() -> None:
    """The hook: strip the staged notebooks, or raise Refusal and leave the index as it was."""
    head, amend = commit_or_empty_tree("HEAD"), amending()
    clean: dict[bytes, bytes] = {}
    for _ in range(ATTEMPTS):  # notebooks that another process stages meanwhile are stripped as well
        staged = changes(head)
        # An amend records HEAD's notebooks again, including those that skipped the hook.
        recorded = changes(commit_or_empty_tree("HEAD^")) | staged if amend else staged
        found = notebooks(recorded)
        for path, blob in found.items():
            if blob not in clean:
                # Without --path: no filter and no conversion of line endings may change the content.
                without = stripped(path, read(blob))
                clean[blob] = git("hash-object", "-w", "--stdin", stdin=without).strip()
                clean[clean[blob]] = clean[blob]
        blobs = {path: (blob, clean[blob]) for path, blob in found.items() if clean[blob] != blob}
        if not blobs:
            return
        # Git checks whether there is something to commit before it calls the hook, but not afterwards.
        left = [path for path, (old, (mode, blob)) in staged.items() if old != (mode, blobs.get(path, (0, blob))[1])]
        if not left and not amend and not git("rev-parse", "--verify", "--quiet", "MERGE_HEAD", check=False):
            first, *others = sorted(blobs)
            more = f" and {len(others)} more" if others else ""
            raise Refusal(f"nothing to commit: only outputs have changed, in {printable(first)}{more}")
        replace(blobs)
        # `git commit -- PATH` commits from a temporary index; afterwards index.lock, a second copy with the same
        # files added, becomes the index: without the stripped blobs there, the outputs would be staged again.
        index = Path(os.environ.get("GIT_INDEX_FILE", ""))
        lock = index.with_name("index.lock") if re.fullmatch(r"next-index-\d+\.lock", index.name) else None
        if lock and lock.exists():
            replace(blobs, GIT_INDEX_FILE=str(lock))
    raise Refusal("another process keeps staging notebooks: commit again when it has finished")


# --- Checks -------------------------------------------------------------------


COMMITTED = f"was committed with results of a run: run {shlex.join([sys.executable, __file__])} on it, then commit it"


def complaints(blobs: dict[bytes, bytes], problem: str) -> list[str]:
    """One line for each of these notebooks that would be stripped, which is this problem, or that cannot be."""
    lines = []
    for path, blob in blobs.items():
        try:
            content = read(blob)
            if stripped(path, content) != content:
                lines.append(f"{printable(path)} {problem}")
        except Refusal as refusal:
            lines.append(str(refusal))
    return lines


def check_merge() -> None:
    """Leave a merge that brings in outputs to `git commit`: git would not record what this hook strips in the index."""
    problem = "would be merged with results of a run: git commit strips it and ends the merge"
    if found := complaints(notebooks(changes("HEAD")), problem):
        raise Refusal("\n".join(found))


def warn_after_merge() -> None:
    for line in complaints(notebooks(changes("ORIG_HEAD")), COMMITTED):
        print(f"post-merge: {line}", file=sys.stderr)


def check_head() -> None:
    """Check the notebooks of HEAD below the current folder: one line for each that would be stripped."""
    here = Path.cwd()
    if "GIT_DIR" not in os.environ:
        top = next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), None)
        if top is None:
            print("check-notebooks: no git repository here, so no committed notebooks")
            return
        # In a container the checkout often belongs to another user. Git refuses what it finds there, but not what it
        # is told; before 2.38 it takes safe.directory from files only. Reading objects runs no code of theirs.
        os.environ |= {"GIT_DIR": str(top / ".git"), "GIT_WORK_TREE": str(top)}
    lines = git("ls-tree", "-r", "-z", commit_or_empty_tree("HEAD")).split(b"\0")[:-1]
    entries = [(fields.split(b" "), path) for fields, _, path in (line.partition(b"\t") for line in lines)]
    blobs = {path: blob for (mode, _, blob), path in entries if is_notebook(mode, path)}
    if found := complaints(blobs, COMMITTED):
        raise Refusal("\n".join(found))
    print(f"check-notebooks: {len(blobs)} committed, none has outputs")


# --- The command --------------------------------------------------------------


def strip_stream() -> None:
    sys.stdout.buffer.write(stripped(b"the notebook", sys.stdin.buffer.read()))


def strip_files(names: list[str]) -> None:
    for name in names:
        content = Path(name).read_bytes()
        without = stripped(os.fsencode(name), content)
        if without != content:
            Path(name).write_bytes(without)


MODES = {
    "pre-commit": strip_commit,
    "pre-merge-commit": check_merge,
    "post-merge": warn_after_merge,
    "--check": check_head,
    "--filter": strip_stream,
}


def main(arguments: list[str]) -> int:
    usable = sys.version_info >= (3, 11) and importlib.util.find_spec("nbstripout") is not None
    if arguments == ["--usable"]:
        return int(not usable)
    mode = arguments[0] if len(arguments) == 1 and arguments[0] in MODES else ""
    caller = "check-notebooks" if mode == "--check" else mode.strip("-") or "strip"
    try:
        if not usable:
            raise Refusal(f"{sys.executable} is not Python 3.11 or newer with nbstripout: run make hook")
        if mode:
            MODES[mode]()
        elif arguments and all(is_notebook(REGULAR_FILES[0], os.fsencode(name)) for name in arguments):
            strip_files(arguments)
        else:
            raise Refusal(f"give names of notebooks, or one of {', '.join(MODES)}; not {shlex.join(arguments)!r}")
        return 0
    except (Refusal, OSError) as error:
        for line in str(error).splitlines():
            print(f"{caller}: {line}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
