"""What runs in the processes that `process.py` starts.

Jobs come as JSON lines on standard input, answers go as JSON lines to the file
descriptor FD; what libraries print goes to standard output and error, which the
parent keeps in a file. Kinds of job: "reference" asks the workload's preparer for what the
parity gate expects (the preparing process); "record" records one configuration (a worker).
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path


def die_with_parent() -> None:
    """Ask Linux to kill this process when the one that started it dies."""
    with_prctl = getattr(ctypes.CDLL(None, use_errno=True), "prctl", None)
    if with_prctl is not None:
        with_prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def volunteer_for_oom() -> None:
    """Make the OOM killer prefer this process to its parent."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


class Answers:
    """The way back to the parent; nothing but JSON lines goes there."""

    def __init__(self, descriptor: int) -> None:
        self._file = os.fdopen(descriptor, "w", buffering=1)

    def send(self, event: str, **values: object) -> None:
        self._file.write(json.dumps({"event": event, **values}) + "\n")


def answer_reference(job: dict, answers: Answers) -> None:
    """What the workload's kind needs before it can be prepared and gated, made outside the pinned worker."""
    from lstm_trt.config.configuration import Configuration
    from lstm_trt.runtimes.base import preparer_of

    configuration = Configuration.from_dict(job["configuration"])
    reference = preparer_of(configuration.workload).reference(
        configuration, job["gate_seed"], Path(job["answers_path"]), answers.send
    )
    same = {name: job[name] for name in ("gate_seed", "answers_path")}
    answers.send("done", reference={**reference, **same})


def answer_record(job: dict, answers: Answers) -> None:
    """Record one configuration and write its file, or its parts."""
    from lstm_trt.config.configuration import Configuration
    from lstm_trt.recorder.session import record_here
    from lstm_trt.recorder.soak import soak_here

    configuration = Configuration.from_dict(job["configuration"])
    common = {
        "round": job["round"],
        "control": job["control"],
        "stage": lambda name: answers.send("stage", stage=name),
    }
    if configuration.protocol.for_s is not None:
        done = soak_here(
            configuration,
            job["reference"],
            folder=Path(job["folder"]),
            asked_s=job["asked_s"],
            progress=lambda **values: answers.send("soak", **values),
            **common,
        )
        answers.send("done", **done)
        return
    recording = record_here(
        configuration,
        job["reference"],
        progress=lambda done, total: answers.send("progress", done=done, total=total),
        **common,
    )
    _put(recording, job, answers)


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

    kinds = {"reference": answer_reference, "record": answer_record}
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
