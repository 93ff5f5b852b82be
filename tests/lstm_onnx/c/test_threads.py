"""Generated C code of several threads: its answers with and without helpers, and what it counts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading

import numpy as np
import pytest

import lstm_trt
from lstm_onnx.c import runtime as c
from lstm_onnx.c.compile import LoadedNetwork, find_compiler
from lstm_onnx.c.file import c_file
from lstm_onnx.c.targets import TARGETS
from lstm_trt.config.errors import BuildFailed
from lstm_trt.config.shape import LstmShape
from lstm_trt.export.network import make_inputs
from lstm_trt.export.to_onnx import INPUT, OUTPUT
from lstm_trt.recorder.parity import PARITY_BOUNDS, relative_error
from tests.conftest import ROOT, rest_is_heavy, wait_for
from tests.lstm_onnx.c.test_file import ALL, BOUNDS
from tests.support import c_networks
from tests.support.c_networks import Plan, models_of, right_of
from tests.support.planted_graphs import relu
from tests.support.prepared_steps import prepare, reference

RUNNABLE = c_networks.runnable()

needs_compiler = pytest.mark.skipif(not c.availability().ready, reason="needs a C compiler")
needs_gcc = pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc")

PLANS = {
    "kinds": Plan((*ALL, "RNN"), (65, 40, 130, 200), 50, 12),
    "one unit": Plan(("GRU", "LSTM"), (1, 31), 5, 2, around=True),
    "directions": Plan(("LSTM", "GRU"), (48, 33), 26, 3, directions=("bidirectional", "reverse")),
}

#: Cores of as many threads, some of them twice on a small machine.
CORES = (sorted(os.sched_getaffinity(0)) * 4)[:4]


@pytest.mark.random(
    tail=1e-9,
    why="measured under 60 seeds for each network, 8 and more of the logarithm of the error; int8 up to 2e-4, "
    "a fifth of the bound",
)
@pytest.mark.heavy
@needs_compiler
@pytest.mark.parametrize(
    ("case", "precision", "threads"),
    rest_is_heavy(
        [(case, precision, threads) for case in PLANS for precision in BOUNDS for threads in (2, 3)],
        lambda case, precision, threads: (case, precision, threads) == ("kinds", "int8", 2),
        one_in=3,
    ),
)
def test_all_parts_together_are_the_network(case, precision, threads, rng):
    """With helpers, which may be late at any time on a small machine, and without any: the same bits."""
    plan = c_networks.replace(PLANS[case], precision=precision)
    how = {"include_weights": False, "precision": precision, "threads": threads}
    file = c_file(models_of(plan), TARGETS[RUNNABLE[0]], "network", **how)
    x = rng.standard_normal((plan.sequence, 1, plan.features)).astype(np.float32)
    expected, found = right_of(plan, x), []
    for cores in ((), CORES):
        loaded = LoadedNetwork(file, find_compiler(), cores)
        y, last = (np.full(expected[name].shape, np.nan, np.float32) for name in ("y", "last"))
        for _ in range(3):
            loaded.bound("run", x, y, last)()
        found.append(y.copy())
        if plan.carries:
            loaded.bound("reset")()
            for row, into in zip(x, y, strict=True):
                loaded.bound("step", row, into, last)()
            found.append(y.copy())
    scale = c_networks.scale_of(expected["y"])
    assert all(np.array_equal(each, found[0]) for each in (found[0], found[len(found) // 2]))
    assert all(np.abs(each - expected["y"]).max() < BOUNDS[precision] * scale for each in found)


#: Calls without a helper; with one, until it is in time, which takes a second core; and after it.
PROGRAM = r"""
#include "net.h"
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static struct net net;
static float x[net_WINDOW * net_INPUTS], y[net_WINDOW * net_OUTPUTS], first[net_WINDOW * net_OUTPUTS];

_Static_assert(sizeof net == MEMORY, "the head of the file states another size");

static void *help(void *number) { return net_help(&net, (int)(size_t)number), (void *)0; }

static unsigned long late_of_a_call(void)
{
    const unsigned long before = net.team.late;
    net_run(&net, x, y);
    if (memcmp(y, first, sizeof y)) printf("other bits\n");
    return net.team.late - before;
}

int main(int cores, char **words)
{
    (void)words;
    pthread_t thread;
    for (int i = 0; i < net_WINDOW * net_INPUTS; i++) x[i] = (float)(i % 7) - 3;
    if (net_init(&net, net_weights)) return 3;
    net_run(&net, x, first);
    printf("%lu\n", late_of_a_call());
    pthread_create(&thread, 0, help, (void *)1);
    while (late_of_a_call() && cores > 1) {}
    net_stop(&net);
    pthread_join(thread, 0);
    printf("%lu\n", late_of_a_call());
    return 0;
}
"""


@pytest.mark.heavy
@needs_gcc
def test_a_helper_that_is_missing_costs_no_answer(tmp_path, monkeypatch):
    """It is counted for each exchange: one for each layer and time step."""
    with monkeypatch.context() as patch:
        patch.setenv("CC", "no-such-compiler")  # the error is measured by the self-test
        written = lstm_trt.export_c(LstmShape(2, 40, 5), tmp_path, target=RUNNABLE[0], threads=2, name="net")
    assert written.as_dict()["threads"] == 2 and "#define net_THREADS 2" in (tmp_path / "net.h").read_text()
    (tmp_path / "main.c").write_text(PROGRAM)
    flags = [*written.file.compile_flags, "-Wall", "-Wextra", "-Wconversion", "-Werror", "-pthread"]
    (memory,) = re.findall(r"Memory +(\d+) bytes", written.file.head)
    subprocess.run(["gcc", *flags, f"-DMEMORY={memory}", "main.c", "net.c", "-o", "main"], cwd=tmp_path, check=True)
    done = subprocess.run(
        ["./main", *["more"] * (len(set(CORES)) > 1)], cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert done.stdout.split() == ["10", "10"]
    command = (tmp_path / "net_test.c").read_text().splitlines()[0].removeprefix("/* ")
    assert subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True).returncode == 0


#: Two threads on one core: the helper is late again and again, and then reads what the caller has changed since.
RACE = r"""
#define _GNU_SOURCE
#include "net.h"
#include <pthread.h>
#include <sched.h>

static struct net net;
static float x[net_WINDOW * net_INPUTS], y[net_WINDOW * net_OUTPUTS];

static void *help(void *number) { return net_help(&net, (int)(size_t)number), (void *)0; }

int main(void)
{
    pthread_t thread;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    sched_setaffinity(0, sizeof one, &one);
    if (net_init(&net, net_weights)) return 3;
    pthread_create(&thread, 0, help, (void *)1);
    for (int i = 0; i < 3000; i++) {
        for (int j = 0; j < net_WINDOW * net_INPUTS; j++) x[j] = (float)((i + j) % 7) - 3;
        net_run(&net, x, y);
        if (i % 10 == 0) sched_yield();
    }
    net_stop(&net);
    pthread_join(thread, 0);
    return net.team.late == 0;
}
"""


@needs_gcc
@pytest.mark.parametrize("precision", rest_is_heavy(["fp32", "int8"], lambda precision: precision == "fp32"))
def test_a_late_helper_reads_nothing_that_changes(precision, tmp_path, monkeypatch):
    """By ThreadSanitizer, where the compiler has it."""
    monkeypatch.setenv("CC", "no-such-compiler")
    shape = LstmShape(2, 20, 3)
    lstm_trt.export_c(shape, tmp_path, target="x86-64", threads=2, precision=precision, name="net")
    (tmp_path / "main.c").write_text(RACE)
    command = ["gcc", "-std=gnu99", "-O1", "-g1", "-fsanitize=thread", "-pthread", "main.c", "net.c", "-o", "main"]
    built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    if built.returncode:
        pytest.skip(f"gcc has no thread sanitizer here: {built.stderr.strip().splitlines()[-1]}")
    done = subprocess.run(["./main"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")


def test_code_of_one_thread_has_no_team(tmp_path, monkeypatch, refused):
    monkeypatch.setenv("CC", "no-such-compiler")
    one = lstm_trt.export_c(LstmShape(1, 8, 2), tmp_path).file
    assert "team" not in one.header and "help" not in one.header
    with pytest.raises(BuildFailed, match="only recurrent layers"):
        c_file({"run": relu()}, TARGETS["x86-64"], "network", threads=2)
    for threads in (0, 65):
        message = refused(
            "export", "--layers", 1, "--hidden", 8, "--sequence", 2, "--c", "--threads", threads, "--out", tmp_path
        )
        assert "threads must be from 1 to 64" in message


@needs_compiler
def test_the_runtime_starts_and_stops_its_helpers():
    shape, before = LstmShape(2, 20, 7), threading.active_count()
    step = prepare("c", shape, threads=2, cores=CORES[:2])
    assert threading.active_count() == before + 1
    inputs, _, _ = make_inputs(shape, 1)
    step.load_inputs({INPUT: inputs})
    step.step()
    assert relative_error(step.outputs()[OUTPUT], reference(shape, inputs)) < PARITY_BOUNDS["fp32"] / 5
    step.close()
    wait_for(lambda: threading.active_count() == before)


@pytest.mark.heavy
@needs_gcc
def test_the_control_loop_has_helpers(tmp_path, lab):
    shape = ("--layers", 2, "--hidden", 33, "--sequence", 1, "--c", "--target", RUNNABLE[0])
    answers = []
    for threads in (1, 2):
        folder = tmp_path / str(threads)
        # Without a compiler the error is not measured, which would compile the network once more.
        done = lab("export", *shape, "--threads", threads, "--name", "net", "--out", folder, CC="no-such-compiler")
        assert done.returncode == 0, done.stderr
        command = ["gcc", "-std=gnu99", "-O2", *TARGETS[RUNNABLE[0]].flags, "-pthread", "-DNETWORK=net", f"-I{folder}"]
        command += [ROOT / "docs/examples/control_loop.c", folder / "net.c", "-o", folder / "loop"]
        subprocess.run(command, check=True, cwd=folder)
        arguments = ["-p", "0", "-n", "300", "-a", "answers.f32", "-c", str(CORES[0])]
        done = subprocess.run(["./loop", *arguments], cwd=folder, capture_output=True, text=True, check=True)
        assert ("parts were not computed in time by a helper" in done.stdout) == (threads == 2)
        answers.append(np.fromfile(folder / "answers.f32", np.float32))
    assert np.array_equal(*answers)
