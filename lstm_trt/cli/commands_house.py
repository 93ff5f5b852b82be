"""The commands `doctor`, `cache` and `consolidate`: arguments, calls and printing."""

from __future__ import annotations

import argparse
from pathlib import Path

from lstm_trt.cli.common import print_json
from lstm_trt.config.errors import UsageError

DOCTOR_SUMMARY = "what runs here, what is missing, and how the host stands"

DOCTOR_EXAMPLE = "lstm-trt doctor"

CACHE_SUMMARY = "show or clear the cache of exported networks"

CACHE_EXAMPLE = "lstm-trt cache --clear"

CONSOLIDATE_SUMMARY = "make trials.parquet and configs.parquet of many recordings"

CONSOLIDATE_EXAMPLE = "lstm-trt consolidate recordings --out data/campaign"


def doctor(arguments: argparse.Namespace) -> int:
    """Run `doctor`; returns the exit status."""
    from lstm_trt.recorder import doctor

    report = doctor.examine()
    if arguments.format == "json":
        print_json(report.as_dict())
    else:
        print(doctor.render(report))
    return 0


def cache_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `cache`."""
    parser.add_argument("--clear", action="store_true", help="remove everything in it")


def cache(arguments: argparse.Namespace) -> int:
    """Run `cache`; returns the exit status."""
    from lstm_trt.recorder import environments as recorder_environments
    from lstm_trt.store import cache

    if arguments.clear:
        count, size = cache.clear()
        answer, words = {"removed": count, "bytes": size}, f"removed {count} files, {size / 1e6:.1f} MB"
        environments, size = recorder_environments.clear()
        if environments:
            answer["environments"] = {"removed": environments, "bytes": size}
            words += f", and {environments} environments of versions, {size / 1e6:.1f} MB"
    else:
        present = cache.entries()
        total = sum(entry.size_bytes for entry in present)
        kinds: dict[str, list[int]] = {}
        for entry in present:
            kinds.setdefault(entry.kind, []).append(entry.size_bytes)
        answer = {
            "folder": str(cache.folder()),
            "bytes": total,
            "limit_bytes": cache.limit_bytes(),
            "kinds": {kind: {"files": len(sizes), "bytes": sum(sizes)} for kind, sizes in sorted(kinds.items())},
        }
        lines = [f"{cache.folder()}: {total / 1e6:.1f} MB of at most {cache.limit_bytes() / 1e6:.0f} MB"]
        lines += [f"  {kind}: {len(sizes)} files, {sum(sizes) / 1e6:.1f} MB" for kind, sizes in sorted(kinds.items())]
        if environments := recorder_environments.present():
            sizes = [size for _, size in environments]
            answer["environments"] = {"count": len(sizes), "bytes": sum(sizes)}
            lines.append(f"  versions: {len(sizes)} environments, {sum(sizes) / 1e6:.1f} MB, beside that limit")
        words = "\n".join(lines)
    print_json(answer) if arguments.format == "json" else print(words)
    return 0


def consolidate_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `consolidate`."""
    parser.add_argument("path", type=Path, help="folder of recordings")
    parser.add_argument(
        "--out", type=Path, default=None, metavar="DIR", help="where the two files go (default: the folder)"
    )


def consolidate(arguments: argparse.Namespace) -> int:
    """Run `consolidate`; returns the exit status."""
    from lstm_trt.store import consolidated, files, folders

    if not arguments.path.exists():
        raise UsageError(f"there is no folder {arguments.path}")
    folder = files.make_folder(arguments.out or (arguments.path if arguments.path.is_dir() else arguments.path.parent))
    recordings, failures = consolidated.consolidate(folders.read_many(arguments.path), folder)
    answer = {"folder": str(folder), "recordings": recordings, "failures": failures}
    if arguments.format == "json":
        print_json(answer)
    else:
        print(
            f"{folder}: {consolidated.TRIALS_FILE} and {consolidated.CONFIGS_FILE} hold {recordings} recordings, {failures} failures"  # noqa: E501
        )
    return 0
