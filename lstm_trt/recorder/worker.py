"""What runs in the processes that `processes.py` starts.

Jobs come as JSON lines on standard input, answers go as JSON lines to the file
descriptor FD; what libraries print goes to standard output and error, which the
parent keeps in a file. Kinds of job: "reference" exports a network and asks
PyTorch for the parity gate's answers, "literature-reference" asks it for those of a
workload of the literature (the preparer); "record" records one configuration (a worker).
"""

from __future__ import annotations

import base64
import ctypes
import gc
import json
import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from functools import lru_cache
from pathlib import Path


def die_with_parent() -> None:
    """Ask Linux to kill this process when the one that started it dies."""
    with_prctl = getattr(ctypes.CDLL(None, use_errno=True), "prctl", None)
    if with_prctl is not None:
        with_prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def volunteer_for_oom() -> None:
    """Where memory runs out, the kernel shall take this process and not its parent."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def encode(array) -> dict:
    """A float32 array as JSON values."""
    return {"shape": list(array.shape), "data": base64.b64encode(array.tobytes()).decode()}


def decode(plain: dict):
    import numpy as np

    return np.frombuffer(base64.b64decode(plain["data"]), dtype=np.float32).reshape(plain["shape"])


class Answers:
    """The way back to the parent; nothing but JSON lines goes there."""

    def __init__(self, descriptor: int) -> None:
        self._file = os.fdopen(descriptor, "w", buffering=1)

    def send(self, event: str, **values: object) -> None:
        self._file.write(json.dumps({"event": event, **values}) + "\n")


@lru_cache(maxsize=4)
def _module(network: tuple, seed: int):
    from lstm_trt.config.shape import LstmShape
    from lstm_trt.export.network import build_module
    from lstm_trt.recorder.session import cached_weights

    layers, hidden, features, directions = network
    return build_module(LstmShape(layers, hidden, 1, 1, features, directions), cached_weights(network, seed))


@lru_cache(maxsize=256)
def _exported(network: tuple, seed: int):
    from lstm_trt.config.shape import LstmShape
    from lstm_trt.export.to_onnx import export_network
    from lstm_trt.recorder.session import cached_weights

    layers, hidden, features, directions = network
    shape = LstmShape(layers, hidden, 1, 1, features, directions)
    return export_network(shape, seed, cached_weights(network, seed))


def answer_reference(job: dict, answers: Answers) -> None:
    """Export where asked for, and PyTorch's answers to `make_inputs(shape, gate_seed)`."""
    import torch

    from lstm_trt.config.shape import LstmShape
    from lstm_trt.export.network import make_inputs, reference_outputs

    torch.set_num_threads(1)
    shape, seed = LstmShape(**job["shape"]), job["seed"]
    floor = _floor(shape, job["threads"]) if job["floor"] else None
    if floor:
        answers.send("floor", **floor)
    answers.send("stage", stage="export")
    exported = _exported(shape.network, seed) if job["onnx"] else None
    _, distinct, _ = make_inputs(shape, job["gate_seed"])
    outputs = reference_outputs(_module(shape.network, seed), distinct)
    answers.send(
        "done",
        answers=encode(outputs),
        onnx_path=str(exported.path) if exported else None,
        onnx_sha256=exported.sha256 if exported else None,
        floor=floor,
    )


def answer_literature_reference(job: dict, answers: Answers) -> None:
    """PyTorch's answer to the gate's batch of a workload of the literature, as a file."""
    from lstm_trt.config.workload import Workload
    from lstm_trt.literature.session import write_reference

    answers.send("stage", stage="build")
    workload = Workload.from_dict(job["workload"])
    write_reference(workload, job["mode"], job["seed"], job["gate_seed"], Path(job["answers_path"]))
    answers.send("done")


def _floor(shape, threads: int) -> dict | None:
    """The speed of light of a shape on this machine's cores; None where it cannot be measured."""
    from lstm_trt.config.errors import LabError
    from lstm_trt.machine import floor as machine_floor

    try:
        floor = machine_floor.roofline_bound(shape, machine_floor.load_rates(threads))
    except (LabError, OSError):
        return None  # a cache that cannot be written: the export will say so
    return {"floor_ns": floor.total_ns, "limited_by": floor.limited_by}


def answer_record(job: dict, answers: Answers) -> None:
    """Record one configuration and write its file, or its parts."""
    from lstm_trt.config.configuration import Configuration
    from lstm_trt.recorder.parity import Reference
    from lstm_trt.recorder.session import record_here
    from lstm_trt.recorder.soak import soak_here

    configuration = Configuration.from_dict(job["configuration"])
    if configuration.of_literature:
        recording = _record_literature(configuration, job, answers)
        _put(recording, job, answers)
        return
    common = {
        "reference": Reference(job["gate_seed"], decode(job["answers"])),
        "round": job["round"],
        "control": job["control"],
        "onnx_path": Path(job["onnx_path"]) if job["onnx_path"] else None,
        "onnx_sha256": job["onnx_sha256"],
        "floor": job["floor"],
        "stage": lambda name: answers.send("stage", stage=name),
    }
    if configuration.protocol.for_s is not None:
        told = soak_here(
            configuration,
            folder=Path(job["folder"]),
            asked_s=job["asked_s"],
            progress=lambda **values: answers.send("soak", **values),
            **common,
        )
        answers.send("done", **told)
        return
    recording = record_here(
        configuration, progress=lambda done, total: answers.send("progress", done=done, total=total), **common
    )
    _put(recording, job, answers)


def _record_literature(configuration, job: dict, answers: Answers):
    from lstm_trt.literature.session import record_here

    return record_here(
        configuration,
        gate_seed=job["gate_seed"],
        answers_path=Path(job["answers_path"]),
        round=job["round"],
        control=job["control"],
        stage=lambda name: answers.send("stage", stage=name),
        progress=lambda done, total: answers.send("progress", done=done, total=total),
    )


def _put(recording, job: dict, answers: Answers) -> None:
    from lstm_trt.store import files

    began = time.perf_counter()
    path = files.write(recording, Path(job["folder"]))
    seconds = {**recording.provenance["seconds"], "store": time.perf_counter() - began}
    answers.send("done", path=str(path), seconds=seconds, warnings=recording.provenance["warnings"])


def main() -> int:
    """Answer jobs until standard input ends; arguments: the descriptor FD, and a worker's options as JSON."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    volunteer_for_oom()
    answers = Answers(int(sys.argv[1]))
    if len(sys.argv) > 2:
        from lstm_trt.config.configuration import Options
        from lstm_trt.config.errors import ConfigurationFailed, LabError, StoreError
        from lstm_trt.recorder.session import pin

        pin(Options(**json.loads(sys.argv[2])))

    kinds = {
        "reference": answer_reference,
        "literature-reference": answer_literature_reference,
        "record": answer_record,
    }
    answers.send("ready")
    for number, line in enumerate(sys.stdin):
        job = json.loads(line)
        if number == 1:  # what is alive between two jobs are modules, and stays
            gc.collect()
            gc.freeze()
        try:
            kinds[job["kind"]](job, answers)
        except MemoryError as error:
            answers.send(
                "failed", stage="memory", reason=f"host memory did not suffice: {error}".rstrip(": "), spent=True
            )
            return 1  # what is left of the heap is not to be trusted
        except ConfigurationFailed as error:
            # A device may be left in any state; and a refused capture leaves an allocator in it.
            on_device = job.get("configuration", {}).get("options", {}).get("device", "cpu") != "cpu"
            spent = error.stage in ("memory", "run", "time") or (on_device and error.stage == "build")
            answers.send("failed", stage=error.stage, reason=str(error), spent=spent)
            if spent:
                return 1
        except StoreError as error:
            answers.send("refused", reason=str(error))
        except LabError as error:
            answers.send("failed", stage=None, reason=str(error), spent=False)
        except Exception as error:
            text = str(error).strip().splitlines()
            reason = f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
            answers.send("failed", stage=None, reason=reason, detail=traceback.format_exc(), spent=True)
            return 1
    return 0
