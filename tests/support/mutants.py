"""Run the command line on mutated files in this process.

`python -m tests.support.mutants KIND SEED FIRST LAST FOLDER`. A mutant depends only on the kind, the seed and its
number. Before it is read, its number is written to FOLDER/at and the mutant itself to FOLDER/mutant, so that the
parent can identify a file that crashes or hangs the process. A mutant may be accepted (status 0, or 1 and 3 of a
verdict) or rejected with one line and status 2; anything else ends with status 9 and a description.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import json
import os
import random
import shutil
import sys
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lstm_trt.store.schema import METADATA_KEY
from tests.conftest import ROOT

#: A consolidated pair; one file of it is mutated, the other stays.
RECORDINGS = ROOT / "data" / "epyc" / "confirm"
#: Bytes with a meaning in CSV and JSON, and invalid ones.
PIECES = (b",", b";", b"\t", b"\n", b"\r\n", b'"', b"{", b"}", b"[", b"]", b":", b"-", b"e308", b"NaN", b"inf", b"0")
PIECES += (
    b"null",
    b"true",
    b"1e999",
    b"-1",
    b"",
    b"\0",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    "µ".encode(),
    b"9" * 400,
    b"_us",
    b"0x64",
    b"1_100",
    "\u0661\u0662".encode(),
    b"\\ud800",
    b'[{"a":{}}]',
)


def mutate(content: bytes, draw: random.Random) -> bytes:
    """One to eight changes: bits, bytes, pieces inserted, parts deleted, doubled or moved, or the end cut off."""
    mutant = bytearray(content)
    for _ in range(draw.randint(1, 8)):
        at, span = draw.randrange(len(mutant) + 1), draw.randint(1, max(1, len(mutant) // 8))
        part = bytes(mutant[at : at + span])
        match draw.randrange(7):
            case 0 if at < len(mutant):
                mutant[at] ^= 1 << draw.randrange(8)
            case 1 if at < len(mutant):
                mutant[at] = draw.randrange(256)
            case 2:
                mutant[at:at] = draw.choice(PIECES)
            case 3:
                del mutant[at : at + span]
            case 4:
                mutant[at:at] = part
            case 5:
                del mutant[at : at + span]
                back = draw.randrange(len(mutant) + 1)
                mutant[back:back] = part
            case 6 if draw.random() < 0.3:
                del mutant[at:]
    return bytes(mutant)


#: Values of a field of an ONNX file, by its kind in Python.
VALUES = {
    int: (0, 1, 2, 7, -1, -5, 2**31 - 1, -(2**31), 2**40, 2**62, -(2**63)),
    float: (0.0, -1.0, 1e30, float("nan"), float("inf")),
    str: ("", "x", "W", "y", "\0", "a\nb", "../x", "-5", "1_0", "\u0663", "Loop", "Scan", "LSTM", "If", "Range", "loc"),
    bytes: (b"", b"\0", b"\xff", b"forward", b"reverse"),
}


def mutate_fields(content: bytes, draw: random.Random) -> bytes:
    """One to three fields of an ONNX file with another value, without it, or with one of its elements less or twice."""
    import onnx

    model = onnx.load_from_string(content)
    for _ in range(draw.randint(1, 3)):
        message, name = draw.choice(list(fields(model)))
        value = getattr(message, name)
        with contextlib.suppress(ValueError, TypeError, IndexError):  # another value that the field cannot have
            if draw.random() < 0.2:
                message.ClearField(name)
            elif hasattr(value, "extend"):
                place = draw.randrange(len(value))
                kind = type(value[place])
                match draw.randrange(3):
                    case 0:
                        del value[place]
                    case 1:
                        value.extend([value[place]])
                    case 2 if kind in VALUES:
                        value[place] = draw.choice(VALUES[kind])
            elif type(value) in VALUES:
                setattr(message, name, draw.choice(VALUES[type(value)]))
    return model.SerializeToString()


def fields(message) -> Iterator[tuple]:
    """Each field that a message, or one inside of it, has, with the message."""
    for field, value in message.ListFields():
        yield message, field.name
        if field.message_type is not None:
            for each in value if hasattr(value, "extend") else [value]:
                yield from fields(each)


def networks(folder: Path) -> list[tuple[str, bytes, list[list[str]]]]:
    """As `originals`: ONNX files of many forms, of which C code is written, after they were read and computed."""
    from onnx import helper

    from tests.support import own_networks as own
    from tests.support.planted_graphs import inside_a_function, lstm

    graph = helper.make_graph([helper.make_node("Relu", ["v"], ["w"])], "body", [], [])
    graph.input.extend([own.value("i", [], 7), own.value("c", [], 9), own.value("v", None)])
    graph.output.extend([own.value("c", [], 9), own.value("w", None)])
    trips = [helper.make_tensor("n", 7, [], [3]), helper.make_tensor("on", 9, [], [True])]
    sizes = ([own.value("x", [2, 3])], [own.value("y", [2, 3])])
    loop = own.model_of([helper.make_node("Loop", ["n", "on", "x"], ["y"], body=graph)], *sizes, trips)
    (folder / "mutant").mkdir(parents=True, exist_ok=True)
    chosen = {
        "lstm": (lstm(), []),
        "function": (inside_a_function(), []),
        "loop": (loop, []),
        "stream": (own.stream(), ["time=4", "batch=1"]),
        "convolution": (own.smoothing_then_gru(), ["time=8"]),
        "pytorch": (own.as_pytorch_exports(), ["time=4", "batch=1"]),
        "words": (own.words(), ["time=4", "batch=1"]),
        "rates": (own.rates(), []),
        "selected": (own.selected(), []),
        "quantized": (own.quantized(), ["time=4"]),
    }
    command = ["export", "--onnx", "{}", "--c", "--target", "aarch64", "--out", str(folder / "out")]
    return [
        (f"{name}.onnx", model.SerializeToString(), [[*command, *(["--size", *sizes] if sizes else [])], command])
        for name, (model, sizes) in chosen.items()
    ]


#: Values of other types than expected, out of range, or no text at all.
OTHERS = (None, True, 0, -1, 2**70, 1e300, float("inf"), "x", "\ud800", [], [None], {}, {"x": None}, ["x", 1])


def restated(values: Any, draw: random.Random) -> Any:
    """JSON values in which one to three entries, at any depth, are replaced, removed, or have another name."""
    for _ in range(draw.randint(1, 3)):
        holders = [each for each in every_value(values) if isinstance(each, dict | list) and each]
        holder = draw.choice(holders)
        key = draw.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        match draw.randrange(6):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, dict):
                holder[draw.choice(("x", "\ud800"))] = holder.pop(key)
            case _:
                holder[key] = deepcopy(draw.choice(OTHERS))
        if not values:
            break
    return values


def every_value(values: Any) -> Iterator[Any]:
    """JSON values and all that is in them."""
    yield values
    if isinstance(values, dict | list):
        for each in values.values() if isinstance(values, dict) else values:
            yield from every_value(each)


def restate(content: bytes, draw: random.Random) -> bytes:
    """A failure, a recording or `configs.parquet`, whole but for what it states as JSON."""
    if not content.startswith(b"PAR1"):
        return json.dumps(restated(json.loads(content), draw)).encode()
    table = pq.read_table(io.BytesIO(content))
    if "provenance" in table.column_names:
        name, place = draw.choice(("provenance", "configuration")), draw.randrange(len(table))
        texts = table.column(name).to_pylist()
        texts[place] = json.dumps(restated(json.loads(texts[place]), draw))
        table = table.set_column(table.column_names.index(name), name, pa.array(texts))
    elif "config_id" not in table.column_names:
        stated = restated(json.loads(table.schema.metadata[METADATA_KEY]), draw)
        table = table.replace_schema_metadata({METADATA_KEY: json.dumps(stated)})
    file = io.BytesIO()
    pq.write_table(table, file)
    return file.getvalue()


#: Kind -> how its originals are changed; others are changed as bytes.
MUTATORS = {"networks": mutate_fields, "stated": restate}


def originals(kind: str, folder: Path) -> list[tuple[str, bytes, list[list[str]]]]:
    """(file name, content, command lines with `{}` for the file) of a kind."""
    judge = ["verdict", "{}", "--deadline-us", "1000", "--percentile", "99"]
    table = ["--column", "latency", "--unit", "us"]
    if kind == "recordings":
        paths = [path for path in sorted(RECORDINGS.iterdir()) if path.suffix == ".parquet"]
        commands = [judge, ["summarize", "{}"], ["scaling", "{}"], ["outliers", "{}"]]
        return [(path.name, path.read_bytes(), commands) for path in [*paths, *make_recordings(folder)]]
    if kind == "stated":
        failure = next((ROOT / "tests" / "data").glob("*.failure.json"))
        paths = [RECORDINGS / "configs.parquet", failure, *make_stated(folder / PARTS)]
        report = ["report", "{}", "--deadline-us", "1000", "--out", str(folder / "report.html")]
        commands = [judge, ["summarize", "{}"], ["outliers", "{}"], ["compare", "{}", "{}"], report]
        commands += [["consolidate", "{}", "--out", str(folder / "out")]]
        return [(path.name, path.read_bytes(), commands) for path in paths]
    if kind == "csv":
        draw = random.Random(0)
        rows = "".join(f"{64 * (1 + n % 2)},{draw.gauss(300, 20):.3f},{n % 7 == 0}\n" for n in range(120))
        averages = "layers,hidden,sequence,batch,latency_us\n" + "".join(f"1,{h},32,1,{h / 2}\n" for h in (32, 64, 128))
        commands = [[*judge, *table], ["outliers", "{}", *table, "--group-by", "hidden"], ["summarize", "{}"]]
        bins = "".join(f"{n:06} {max(0, 50 - abs(n - 30)):06}\n" for n in range(60))
        histogram = [["verdict", "{}", "--deadline-us", "40", "--unit", "us", "--counts", "2"], ["summarize", "{}"]]
        return [
            ("bins.csv", f"latency_us,count\n{bins.replace(' ', ',')}inf,3\n".encode(), histogram),
            ("cyclictest.txt", f"# Histogram\n{bins}# Histogram Overflows: 00003\n".encode(), histogram),
            ("headless.csv", rows.encode(), [[*judge, "--column", "2", "--unit", "us", "--one-group"]]),
            ("coarse.csv", ("latency_ms\n" + "0.00\n1.00\n0.00\n2.00\n" * 30).encode(), [judge, ["outliers", "{}"]]),
            ("times.csv", f"hidden,latency,warmup\n{rows}".encode(), commands),
            ("averages.csv", averages.encode(), [["scaling", "{}"]]),
            ("times.csv.gz", gzip.compress(f"hidden,latency\n{rows}".encode(), mtime=0), commands),
            ("times.npy", array_bytes(np.linspace(300, 320, 100)), [[*judge, "--unit", "us"]]),
            ("columns.npy", array_bytes(np.ones(50, [("trial", "i4"), ("latency_us", "f8")])), [judge]),
            (
                "numbers.txt",
                "".join(f"{draw.gauss(300, 20):.3f}\n" for _ in range(100)).encode(),
                [[*judge, "--unit", "us"]],
            ),
        ]
    if kind == "json":
        row = '{"startEnqMs": 0.1, "endEnqMs": 0.2, "h2dMs": 0.01, "computeMs": 0.5, "d2hMs": 0.01, "latencyMs": 0.52}'
        failure = next((ROOT / "tests" / "data").glob("*.failure.json"))
        tool = '{"results": [{"command": "a", "times": [0.1, 0.2, 0.3], "exit_codes": [0, 0, 0]}]}'
        test = '{"benchmarks": [{"fullname": "a", "stats": {"iterations": 1, "data": [0.1, 0.2, 0.3]}}]}'
        return [
            ("hyperfine.json", tool.encode(), [judge, ["summarize", "{}"]]),
            ("benchmark.json", test.encode(), [judge, ["summarize", "{}"]]),
            ("trtexec.json", f"[{', '.join([row] * 40)}]".encode(), [judge, ["summarize", "{}"], ["outliers", "{}"]]),
            (failure.name, failure.read_bytes(), [["summarize", "{}"], judge]),
        ]
    if kind == "networks":
        return networks(folder)
    from lstm_trt.config.shape import LstmShape
    from lstm_trt.export.sizes import static_model
    from lstm_trt.export.to_onnx import export_network

    shape = LstmShape(1, 8, 4)
    path = export_network(shape, 0).path
    build = ["build", "--onnx", "{}", "--compute-capability", "sm89", "--layers-table"]
    return [("symbolic.onnx", path.read_bytes(), [build]), ("static.onnx", static_model(path, shape), [build])]


#: Folder of recordings that state all that recordings can state: two, and a long one in two parts.
PARTS = "parts"


def make_stated(folder: Path) -> list[Path]:
    """These recordings as files, from a recorded one."""
    from lstm_trt.store import files, folders

    first = next(folders.read_many(RECORDINGS))
    folder.mkdir(parents=True, exist_ok=True)
    check = {"between_calls": {"recorder_ns": 1, "runnable_ns": 1, "waiting_ns": 1}}
    more = {"self_check": first.provenance["self_check"] | check, "telemetry": {"onnxruntime": "off"}}
    soak = {"soak": {"part": 1, "last": True, "asked_s": 2.0, "elapsed_s": 2.0}}
    paths = []
    for round, part, stated in ((0, None, {}), (1, None, {}), (2, 0, soak), (2, 1, soak)):
        provenance = first.provenance | more | stated
        paths.append(files.write(replace(first, round=round, part=part, provenance=provenance), folder))
    return paths


def array_bytes(array: np.ndarray) -> bytes:
    """The content of its .npy file."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def make_recordings(folder: Path) -> list[Path]:
    """Small recordings as files, one with a control run."""
    from lstm_trt.store import files
    from tests.lstm_trt.store.test_store import planted

    paths = []
    for hidden in (8, 16):
        made = planted(hidden, rows=60)
        provenance = {"blocks": [], "machine_fingerprint": "1" * 64, "control": None, "warnings": []}
        control = {"start_ns": made.columns["start_ns"], "latency_ns": made.columns["latency_ns"] // 100}
        made = replace(made, provenance=provenance, control=control if hidden == 16 else None)
        paths.append(files.write(made, files.make_folder(folder / "made")))
    return paths


def judge_answer(status: int, errors: str) -> str | None:
    """What is wrong with a command's exit status or messages; None if nothing is."""
    if status not in (0, 1, 2, 3):
        return f"exit status {status}"
    lines = [line for line in errors.splitlines() if not line.startswith("warning: ")]
    if status == 1 and "not enough memory" in errors:
        return "memory"
    if status == 2 and (len(lines) != 1 or not lines[0].startswith("lstm-trt: ")):
        return f"{len(lines)} lines of error message"
    if any(line.startswith(("Traceback", "[ERROR]", "Exception")) for line in lines):
        return "a traceback, or a library's message"
    return None


def keep_parsers() -> None:
    """Each command's parser is built once: that takes as long as a small file, which does not change it."""
    from lstm_trt.cli import main

    parsers, build = {}, main.build_parser

    def kept(command: str, program: main.Program) -> argparse.ArgumentParser:
        if command not in parsers:
            parsers[command] = build(command, program)
        return parsers[command]

    main.build_parser = kept


def main(kind: str, seed: str, first: str, last: str, folder: str) -> int:
    """Run the command line on the mutants from `first` to `last`; returns 0, or 9 if one is handled wrongly."""
    from lstm_trt.cli.main import main as command_line

    keep_parsers()
    folder = Path(folder)
    sources = originals(kind, folder)
    for number in range(int(first), int(last)):
        draw = random.Random(f"{kind}/{seed}/{number}")
        name, content, commands = draw.choice(sources)
        shutil.rmtree(folder / "mutant", ignore_errors=True)
        (folder / "mutant").mkdir(parents=True)
        path = folder / "mutant" / name
        path.write_bytes(MUTATORS.get(kind, mutate)(content, draw))
        beside = next((each for each in (RECORDINGS, folder / PARTS) if (each / name).exists()), None)
        for other in beside.iterdir() if beside else ():
            if other.name != name:
                shutil.copy(other, path.parent)
        target = path.parent if draw.random() < 0.2 and "onnx" not in name else path
        arguments = [part.format(target) for part in draw.choice(commands)]
        (folder / "at").write_text(f"{number} {arguments}")
        errors = io.StringIO()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
            status = command_line(arguments)
        wrong = judge_answer(status, errors.getvalue())
        if wrong:
            print(f"{wrong} for mutant {number} of {kind}, seed {seed}: {arguments}\n{errors.getvalue()}", flush=True)
            return 9
    (folder / "at").write_text(f"{last} done")
    return 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONFAULTHANDLER", "1")
    sys.exit(main(*sys.argv[1:]))
