"""The control loop of docs/deploy.md is compiled and run: its answers, its deadline counter, its table of latencies."""

from __future__ import annotations

import ctypes
import platform
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import lstm_trt as lab_package
from lstm_trt.machine.checks import CAP_IPC_LOCK, CAP_SYS_NICE
from tests.conftest import ROOT, ran, wait_for
from tests.test_readme import run_page

EXAMPLE = ROOT / "docs/examples/control_loop.c"

PR_CAPBSET_DROP = 24  # linux/prctl.h

WARNINGS = ("-std=gnu99", "-Wall", "-Wextra", "-Werror")

#: Without warnings: GCC's are false where it instruments the code (its manual, -fsanitize), and other builds have them.
SANITIZERS = ("-w", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")

FEATURES, OUTPUTS = 3, 2

#: Two instances in two threads, each with its own samples and state; the answers are written to standard output.
TWO_INSTANCES = """
#include <pthread.h>
#include <stdio.h>
#include "controller.h"
enum { TICKS = 2000 };
static struct work { struct controller net; float x[TICKS][controller_INPUTS], y[TICKS][controller_OUTPUTS]; } works[2];
static void *run(void *given)
{
    struct work *work = given;
    for (int t = 0; t < TICKS; t++) controller_step(&work->net, work->x[t], work->y[t]);
    return NULL;
}
int main(void)
{
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        if (controller_init(&works[i].net, controller_weights)) return 1;
        if (fread(works[i].x, sizeof works[i].x, 1, stdin) != 1) return 2;
    }
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, run, &works[i]);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < 2; i++) fwrite(works[i].y, sizeof works[i].y, 1, stdout);
    return 0;
}
"""

#: Calls after a burst, of silence or of denormal inputs, by a caller that rounds upward and has an exception unmasked:
#: its control register must stay as it is. The answers are written to standard output; at the end, to standard error,
#: how many numbers of the instance and the answers were denormal, and whether a NaN is passed on.
SILENCE = """
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "controller.h"
#if defined(__SSE__)
static uint64_t control(void) { return __builtin_ia32_stmxcsr(); }
static void set(uint64_t to) { __builtin_ia32_ldmxcsr((unsigned)to); }
static const uint64_t odd = (0x1f80 & ~0x0800) | 0x4000 | 0x0001; /* underflow unmasked, upward, a flag is set */
#elif defined(__aarch64__)
static uint64_t control(void) { uint64_t a; __asm__ volatile("mrs %0, fpcr" : "=r"(a)); return a; }
static void set(uint64_t to) { __asm__ volatile("msr fpcr, %0" : : "r"(to) : "memory"); }
static const uint64_t odd = 1 << 22; /* upward */
#endif
static struct controller net;
static float x[controller_INPUTS], y[controller_OUTPUTS];
static long denormals(const void *from, size_t bytes)
{
    long found = 0;
    for (size_t at = 0; at < bytes; at += 4) {
        uint32_t bits;
        memcpy(&bits, (const char *)from + at, 4);
        found += !(bits & 0x7f800000) && bits & 0x007fffff;
    }
    return found;
}
int main(int argc, char **argv)
{
    const int is_odd = atoi(argv[1]), burst = 5, calls = 4000;
    const float rest = strtof(argv[2], NULL);
    const uint64_t before = control();
    long found = 0;
    if (argc != 3 || controller_init(&net, controller_weights)) return 1;
    for (int t = 0; t <= calls; t++) {
        uint32_t missing = 0x7fc00000;
        for (int i = 0; i < controller_INPUTS; i++) x[i] = t < burst ? 1.f + (float)(t * i % 3) : rest;
        if (t == calls) memcpy(x, &missing, 4);
        if (is_odd == 1) set(odd);
        controller_step(&net, x, y);
        if (t % 2) controller_prepare_next(&net);
        const uint64_t after = control();
        set(before);
        if (is_odd < 2 && after != (is_odd ? odd : before)) return 2;
        if (t < calls) fwrite(y, sizeof y, 1, stdout);
        if (t < calls) found += denormals((char *)&net + 64, sizeof net - 64) + denormals(y, sizeof y);
    }
    fprintf(stderr, "%ld %d", found, y[0] != y[0]);
    return 0;
}
"""


class Controller(torch.nn.Module):
    def __init__(self, hidden: int, bias: bool = True):
        super().__init__()
        self.lstm = torch.nn.LSTM(FEATURES, hidden, 2, bias=bias)
        self.dense = torch.nn.Linear(hidden, OUTPUTS, bias=bias)

    def forward(self, samples):
        return self.dense(self.lstm(samples)[0])

    def answers(self, samples: np.ndarray) -> np.ndarray:
        """Those of PyTorch to all samples in one call, from a state of zero."""
        with torch.inference_mode():
            return self(torch.from_numpy(samples)[:, None])[:, 0].numpy()


def exported(folder: Path, hidden: int = 9, bias: bool = True) -> Controller:
    """A module with random weights, written as C to `folder`."""
    torch.manual_seed(hidden)
    module, time = Controller(hidden, bias), {0: "time"}
    example, axes = torch.zeros(4, 1, FEATURES), {"samples": time, "output": time}
    network = lab_package.TorchNetwork(module, example, name="controller", dynamic_axes=axes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CC", "no-such-compiler")  # else the network is compiled once more, to measure its error
        lab_package.export_c(network, folder)
    return module


def compiled(folder: Path, name: str, *flags: str, source: Path = EXAMPLE, cc: tuple[str, ...] = ("cc",)) -> Path:
    """`source` with the network in `folder`, as the program `name` there."""
    program = folder / name
    command = (*cc, *WARNINGS, "-O1", "-march=native", *flags)
    sources = ("-DNETWORK=controller", f"-I{folder}", source, compiled_network(folder, command), "-pthread")
    run_silently(*command, *sources, "-o", program)
    return program


@cache
def compiled_network(folder: Path, command: tuple[str, ...]) -> Path:
    """The network in `folder`, which is compiled once for all programs with the same flags."""
    path = Path(tempfile.mkdtemp(dir=folder)) / "controller.o"
    run_silently(*command, "-c", folder / "controller.c", "-o", path)
    return path


def run_silently(*command: str | Path) -> None:
    assert ran(*command).stderr == ""


@pytest.fixture(scope="module")
def controller(tmp_path_factory) -> tuple[Controller, Path]:
    """A module, and the folder with its C file."""
    folder = tmp_path_factory.mktemp("deploy")
    return exported(folder), folder


@pytest.fixture(scope="module")
def loop(controller) -> Path:
    return compiled(controller[1], "loop")


def run(loop: Path, *options: object, **how: object) -> subprocess.CompletedProcess:
    """In its folder."""
    return ran(loop, *options, cwd=loop.parent, **how)


def table(loop: Path) -> pd.DataFrame:
    return pd.read_csv(loop.parent / "latencies.csv")


def close(found: np.ndarray, expected: np.ndarray) -> bool:
    return np.linalg.norm(found - expected) <= 1e-5 * np.linalg.norm(expected)


def same_answers(module: Controller, loop: Path, rng, *options: object) -> None:
    """70 ticks over 50 samples: the samples are used again, and the state is carried on."""
    samples = rng.standard_normal((50, FEATURES), dtype=np.float32)
    samples.tofile(loop.parent / "samples.f32")
    run(loop, "-p", 0, "-n", 70, "-i", "samples.f32", "-a", "answers.f32", *options)
    found = np.fromfile(loop.parent / "answers.f32", np.float32).reshape(-1, OUTPUTS)
    assert close(found, module.answers(np.concatenate([samples, samples[:20]])))


@pytest.mark.random(tail=1e-9, why="measured under 30 seeds, more than 30: errors are a hundredth of the bound")
@pytest.mark.parametrize("options", [(), ("-e",)], ids=["step", "step and prepare_next"])
def test_the_answers_are_those_of_pytorch(options, controller, loop, rng):
    same_answers(controller[0], loop, rng, *options)


@pytest.mark.random(tail=0, why="counted at test_the_answers_are_those_of_pytorch")
def test_two_instances_in_two_threads_do_not_disturb_each_other(controller, rng):
    module, folder = controller
    (folder / "two.c").write_text(TWO_INSTANCES)
    program = compiled(folder, "two", source=folder / "two.c")
    samples = rng.standard_normal((2, 2000, FEATURES), dtype=np.float32)
    done = ran(program, input=samples.tobytes(), text=False)
    found = np.frombuffer(done.stdout, np.float32).reshape(2, -1, OUTPUTS)
    for i in range(2):
        assert close(found[i], module.answers(samples[i]))


@pytest.mark.random(tail=1e-9, why="measured: no sample seemed dependent; more than 485 of 490 trials would have to")
@pytest.mark.parametrize(("deadline_us", "status"), [(1e9, 0), (0.001, 1)])
def test_verdict_reads_the_table(deadline_us, status, loop, lab, rng):
    """With independent latencies in it: those of a busy machine come in bursts, which prove nothing."""
    run(loop, "-p", 0, "-n", 500)
    independent_ns = rng.integers(100_000, 200_000, 500)
    table(loop).assign(latency_ns=independent_ns, step_ns=independent_ns).to_csv(
        loop.parent / "latencies.csv", index=False
    )
    answer = lab("verdict", loop.parent / "latencies.csv", "--deadline-us", deadline_us, "--percentile", 50)
    assert (answer.returncode, answer.stdout.count("n = 490")) == (status, 1), answer


def test_the_table_of_a_periodic_loop(loop):
    run(loop, "-p", 500, "-n", 200, "-w", 20, "-e")
    ticks = table(loop)
    assert len(ticks) == 200 and ticks.warmup.sum() == 20
    assert (np.diff(ticks.intended_ns) == 500_000).all()
    assert (ticks.start_ns >= ticks.intended_ns).all() and (ticks.step_ns > 0).all() and (ticks.prepare_ns > 0).all()
    assert (ticks.latency_ns == ticks.start_ns - ticks.intended_ns + ticks.step_ns).all()
    assert (ticks[["involuntary_switches", "minor_faults", "major_faults"]] >= 0).all(axis=None)


@pytest.mark.parametrize("warmup", [0, 20])
def test_the_deadline_counter_counts_the_latencies_above_it_after_the_warm_up(warmup, loop):
    run(loop, "-p", 0, "-n", 2000)
    median_us = table(loop).latency_ns.median() / 1e3
    printed = run(loop, "-p", 0, "-n", 2000, "-w", warmup, "-d", median_us).stdout
    late = table(loop).latency_ns[warmup:] > 1e3 * median_us
    assert int(re.search(r"(\d+) longer than", printed)[1]) == late.sum()


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_loop_and_what_was_measured_is_written(ending, loop):
    started = subprocess.Popen(
        [loop, "-n", "100000"], cwd=loop.parent, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    status = Path(f"/proc/{started.pid}/status")

    def heeds_signals() -> bool:
        return int(re.search(r"SigCgt:\s*(\w+)", status.read_text())[1], 16) >> (ending - 1) & 1 == 1

    assert wait_for(heeds_signals)
    time.sleep(0.02)
    started.send_signal(ending)
    printed = started.communicate(timeout=600)[0]
    assert started.returncode == 0 and "stopped" in printed
    assert len(table(loop)) == int(printed.split()[0]) < 100000


def test_what_is_not_allowed_is_reported_and_the_loop_runs(loop):
    libc = ctypes.CDLL(None)

    def without_privileges() -> None:
        for capability in (CAP_SYS_NICE, CAP_IPC_LOCK):
            libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
        for limit in (resource.RLIMIT_RTPRIO, resource.RLIMIT_MEMLOCK):
            resource.setrlimit(limit, (0, 0))

    done = run(loop, "-p", 100, "-n", 50, preexec_fn=without_privileges)
    assert len(done.stderr.splitlines()) == 2 and "SCHED_FIFO" in done.stderr and "not locked" in done.stderr
    assert len(table(loop)) == 50


BAD = ("-p -1", "-d 0", "-n none", "-f 100", "extra", "-x")
BAD_FILES = ("-i missing.f32", "-i odd.f32", "-o no/file.csv", "-b odd.f32")


@pytest.mark.parametrize("options", [*BAD, *BAD_FILES])
def test_bad_input_is_refused_in_a_line(options, loop):
    np.zeros(FEATURES + 1, np.float32).tofile(loop.parent / "odd.f32")
    done = run(loop, *options.split(), status=2)
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)


@pytest.mark.random(tail=0, why="counted at test_the_answers_are_those_of_pytorch")
@pytest.mark.heavy
def test_large_weights_are_read_from_a_file(tmp_path, rng):
    module = exported(tmp_path, hidden=160)  # more than a MiB
    loop = compiled(tmp_path, "large")
    same_answers(module, loop, rng, "-b", "controller.bin")
    np.zeros((tmp_path / "controller.bin").stat().st_size // 4, np.float32).tofile(tmp_path / "zeros.bin")
    refused = {"-b samples.f32": "the weights have", "-b zeros.bin": "of another network", "": "with -b"}
    for options, reason in refused.items():
        assert reason in run(loop, *options.split(), status=2).stderr


@pytest.mark.random(tail=0, why="counted at test_the_answers_are_those_of_pytorch")
@pytest.mark.heavy
def test_the_sanitizers_find_nothing(controller, rng):
    module, folder = controller
    loop = compiled(folder, "checked", *SANITIZERS)
    same_answers(module, loop, rng, "-e")
    run(loop, "-p", 100, "-n", 50)


@pytest.fixture(scope="module")
def silence(tmp_path_factory) -> dict[str, Path]:
    """The program `SILENCE` with a network without biases, as the network is by default, and with KEEP_FPU."""
    folder = tmp_path_factory.mktemp("silence")
    exported(folder, 20, bias=False)
    source = folder / "silence.c"
    source.write_text(SILENCE)
    flags = {"default": (), "keep": ("-Dcontroller_KEEP_FPU",)}
    return {name: compiled(folder, name, "-fno-fast-math", *each, source=source) for name, each in flags.items()}


@pytest.mark.heavy
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64", "aarch64"), reason="other control registers")
@pytest.mark.parametrize("rest", ["0", "1e-39"])
def test_denormal_numbers_and_the_callers_control_register(silence, rest):
    """Without biases, silence after a burst decays through denormal numbers; with KEEP_FPU they are computed."""
    answers = {}
    for name, program in silence.items():
        for odd in "01" if name == "default" else "2":  # 2: the flags of the caller may change
            done = ran(program, odd, rest, text=False)
            found, passed_on = map(int, done.stderr.split())
            assert passed_on == 1 and (found == 0) == (name == "default"), (name, odd, found)
            answers[name, odd] = np.frombuffer(done.stdout, np.float32)
    assert answers["default", "0"].tobytes() == answers["default", "1"].tobytes()
    assert np.abs(answers["default", "0"] - answers["keep", "2"]).max() < 1e-36


@pytest.mark.random(tail=0, why="counted at test_the_answers_are_those_of_pytorch")
@pytest.mark.heavy
@pytest.mark.parametrize("cc", [("clang",), (sys.executable, "-m", "ziglang", "cc")], ids=["clang", "zig"])
def test_other_compilers(cc, controller, rng):
    if shutil.which(cc[0]) is None or ran(*cc, "--version", status=None).returncode:
        pytest.skip("not installed")
    # clang warns of functions in the kernel that this network does not use
    same_answers(controller[0], compiled(controller[1], "other", "-Wno-unused-function", cc=cc), rng)


@pytest.mark.heavy
def test_the_blocks_of_the_page_run(tmp_path, lab):
    counts = run_page((ROOT / "docs/deploy.md").read_text(), tmp_path, lab, shell=True)
    assert counts["programs"] == 2 and counts["commands"] >= 3
