"""Files of other benchmark tools, as these tools wrote them: single times are read, aggregates refused."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from lstm_judge.read.runs import load
from lstm_judge.verdict.verdict import verdict
from lstm_trt.config.errors import UsageError
from tests.lstm_judge.read.test_rounds import refusal

HYPERFINE = {
    "results": [
        {
            "command": command,
            "mean": 0.0013,
            "stddev": 0.0014,
            "median": 0.0007,
            "user": 0.0005,
            "system": 0.0001,
            "min": 0.0006,
            "max": 0.0039,
            "times": [0.003865375, 0.00072618, 0.000632991, 0.000599831, 0.000701212],
            "exit_codes": [0, 0, 0, 0, 0],
        }
        for command in ("./infer", "./infer --batch 2")
    ]
}

HYPERFINE_CSV = """command,mean,stddev,median,user,system,min,max
true,0.00130511,0.00143212,0.000701212,0.0005618,0.000125199,0.000599831,0.003865375
"""


def benchmark(iterations: int, **more) -> dict:
    """The JSON of pytest-benchmark."""
    stats = {"min": 1.7e-4, "max": 8.2e-3, "mean": 5.8e-4, "rounds": 3, "iterations": iterations, **more}
    test = {"group": None, "name": "test_slow", "fullname": "test_x.py::test_slow", "params": None, "stats": stats}
    return {"machine_info": {}, "commit_info": {}, "benchmarks": [test], "datetime": "", "version": "5.3.1"}


GOOGLE = {
    "context": {"date": "2026-11-01", "num_cpus": 2},
    "benchmarks": [
        {"name": "BM_Lstm/64", "run_type": "iteration", "iterations": 1000, "real_time": 311.2, "time_unit": "us"}
        for _ in range(50)
    ],
}

PYPERF = {"benchmarks": [{"runs": [{"values": [5.8e-07, 4.5e-07], "warmups": [[2, 1.1e-06]]}]}], "metadata": {}}


def put(path, content):
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_times_of_hyperfine(tmp_path):
    path = put(tmp_path / "a.json", HYPERFINE)
    assert "--group-by name" in refusal(path)
    runs = load(path, group_by=["name"])
    assert [group.group["name"] for group in runs] == ["./infer", "./infer --batch 2"]
    assert runs[1].rounds[0].latency_ns.tolist() == [3865375, 726180, 632991, 599831, 701212]
    one = load(put(path, {"results": HYPERFINE["results"][:1]}))
    assert one[0].n == 5 and one.how == {"column": "latency_s", "unit": "s"} and one.warnings == ()


def test_data_of_pytest_benchmark_only_where_a_round_is_one_call(tmp_path):
    path = put(tmp_path / "a.json", benchmark(1, data=[1.7e-4, 1.8e-4, 8.2e-3]))
    assert load(path)[0].rounds[0].latency_ns.tolist() == [170_000, 180_000, 8_200_000]
    for content in (benchmark(10, data=[3.6e-07, 3.3e-07]), benchmark(1)):
        assert "aggregates" in refusal(put(path, content)) and "test_x.py::test_slow" in refusal(path)


TRTEXEC = """&&&& RUNNING TensorRT.trtexec [TensorRT v101300] # trtexec --onnx=m.onnx
[04/07/2025-23:59:50] [I] Average on 10 runs - GPU latency: 1.39878 ms - Host latency: 1.43972 ms
[04/07/2025-23:59:50] [I] === Performance summary ===
[04/07/2025-23:59:50] [I] Throughput: 691.435 qps
[04/07/2025-23:59:50] [I] Latency: min = 1.4209 ms, max = 3.047 ms, mean = 1.48372 ms, percentile(99%) = 2.61597 ms
"""

PERF_ANALYZER = """Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,p50 latency,p99 latency
1,69.2,225,2148,13891,21018
3,84.2,237,1768,35398,51701
"""

HDR_TEXT = """       Value     Percentile TotalCount 1/(1-Percentile)

      172.00 0.000000000000          1           1.00
      269.00 0.100000000000        106           1.11
     1215.00 1.000000000000       1000
#[Mean    =       415.43, StdDeviation   =       129.02]
"""

HDR_CSV = """"Value","Percentile","TotalCount","1/(1-Percentile)"
181.190,0.000000000,1,1.00
205.395,0.004522613,14,1.00
1219.817,0.999900000,3000,10000.00
"""

GOOGLE_CSV = """name,iterations,real_time,cpu_time,time_unit
"f",42249,1079.7,319.083,ns
"f",42249,1080.2,319.283,ns
"f",42249,1081.9,319.183,ns
"""

AGGREGATED = {
    "google.json": (GOOGLE, {}),
    "pyperf.json": (PYPERF, {}),
    "trtexec.log": (TRTEXEC, {}),
    "perf.csv": (PERF_ANALYZER, {}),
    "perf_99.csv": (PERF_ANALYZER, {"column": "p99 latency"}),
    "hyperfine.csv": (HYPERFINE_CSV, {}),
    "table.hgrm": (HDR_TEXT, {}),
    "hdr.csv": (HDR_CSV, {"column": "Value"}),
    "google.csv": (GOOGLE_CSV, {"column": "real_time"}),
}


@pytest.mark.parametrize("name", AGGREGATED)
def test_aggregates_are_refused_as_what_they_are(tmp_path, name):
    content, options = AGGREGATED[name]
    message = refusal(put(tmp_path / name, content), unit="us", **options)
    assert "aggregates" in message and ("--exportTimes" in message) == name.startswith("trtexec")


#: Words of an aggregate, others in the name of its column, and units as people and tools write them.
SUMMARIES = ("average", "avg", "mean", "median", "min", "max", "maximum", "std", "stddev", "p50", "p99.9", "percentile")
OTHERS = ("latency", "time", "gpu", "host", "request")
UNITS = ("", "_us", " (ms)", " [s]", " in ns")
STYLES = {
    "snake": "_".join,
    "upper": lambda words: "_".join(words).upper(),
    "spaced": " ".join,
    "kebab": "-".join,
    "camel": lambda words: words[0] + "".join(word.capitalize() for word in words[1:]),
}


def name_of_aggregate(rng) -> str:
    words = rng.permutation([rng.choice(SUMMARIES), *rng.choice(OTHERS, rng.integers(0, 3), replace=False)])
    return STYLES[rng.choice([*STYLES])](words.tolist()) + rng.choice(UNITS)


@pytest.mark.random(tail=0, why="fuzzing, 60 tables")
def test_no_table_of_aggregates_is_read_as_trials(rng):
    """Random tables with names made up of words: refused whatever the options; a table of trials is read."""
    for _ in range(60):
        rows = int(rng.integers(2, 9))
        names = {name_of_aggregate(rng) for _ in range(rng.integers(1, 4))}
        columns = {name: rng.lognormal(5, 1, rows) for name in rng.permutation([*names, "load"])}
        frame = pd.DataFrame({"name": [f"model {place}" for place in range(rows)], **columns})
        for options in ({}, {"unit": "us"}, *({"column": name, "unit": "us"} for name in names)):
            with pytest.raises(UsageError):
                load(frame, **options)
        trials = frame[["name", "load"]].rename(columns={"load": "latency_us"})
        assert load(trials)[0].n == rows


@pytest.mark.parametrize("word", ["stdev", "sd", "variance", "geomean", "99th", "99%", "tp99", "q99", "worst", "means"])
def test_a_column_of_aggregates_by_another_word_is_no_column_of_trials(word):
    with pytest.raises(UsageError):
        load(pd.DataFrame({f"{word}_us": [5.0, 6.0, 7.0]}))


@pytest.mark.parametrize("beside", [["std_us"], ["p99_us"], ["min", "max"]], ids=" ".join)
def test_a_mean_by_a_plain_name_beside_other_aggregates_is_no_column_of_trials(beside):
    rows = {"name": ["a", "b", "c"], "latency_us": [5.0, 6.0, 7.0], **{name: [1.0, 2.0, 3.0] for name in beside}}
    with pytest.raises(UsageError):
        load(pd.DataFrame(rows))


CYCLICTEST = """# /dev/cpu_dma_latency set to 0us
Thread 0 Interval: 1500
Thread 1 Interval: 2000
       0:       0:     179
       0:       1:     115
       1:       0:    2370
       0:       2:     108
       1:       1:    7349
       1:       2:    3883
"""

TIMERLAT = """# tracer: timerlat
#                                _-----=> irqs-off
         <idle>-0       [000] d.h1    54.029328: #1     context    irq timer_latency       932 ns
          <...>-867     [000] ....    54.029339: #1     context thread timer_latency     11700 ns
         <idle>-0       [000] dNh1    54.029346: irq_noise: timer:206 start 54.029340 duration 932 ns
         <idle>-0       [001] d.h1    54.029346: #1     context    irq timer_latency      2833 ns
          <...>-868     [001] ....    54.029353: #1     context thread timer_latency      9820 ns
         <idle>-0       [000] d.h1    54.030328: #2     context    irq timer_latency       769 ns
          <...>-867     [000] ....    54.030330: #2     context thread timer_latency      3070 ns
         <idle>-0       [001] d.h1    54.030346: #2     context    irq timer_latency       891 ns
          <...>-868     [001] ....    54.030347: #2     context thread timer_latency      4351 ns
"""


def test_single_values_of_cyclictest_and_rtla(tmp_path):
    path = put(tmp_path / "out.txt", CYCLICTEST)
    assert "--unit" in refusal(path) and "--group-by thread" in refusal(path, unit="us")
    runs = load(path, unit="us", group_by=["thread"])
    assert [group.rounds[0].latency_ns.tolist() for group in runs] == [[179e3, 115e3, 108e3], [2370e3, 7349e3, 3883e3]]
    path = put(tmp_path / "timerlat_trace.txt", TIMERLAT)
    assert "context" in refusal(path) and "cpu" in refusal(path)
    runs = load(path, group_by=["context", "cpu"])
    assert len(runs) == 4 and runs.where(context="thread", cpu="000")[0].rounds[0].latency_ns.tolist() == [11700, 3070]


def cyclictest_histogram(counts: dict[int, tuple[int, ...]], overflows: str | None, longest: int = 1000) -> str:
    lines = [
        f"{value:06} " + "\t".join(f"{each:06}" for each in counts.get(value, (0,) * len(next(iter(counts.values())))))
        for value in range(longest)
    ]
    last = [] if overflows is None else [f"# Histogram Overflows: {overflows}", "# Histogram Overflow at cycle number:"]
    return "\n".join(["# /dev/cpu_dma_latency set to 0us", "# Histogram", *lines, "# Total: 000002994", *last]) + "\n"


def test_a_histogram_of_cyclictest_with_and_without_its_overflow(tmp_path):
    counts = {280: (2000, 100), 400: (994, 50)}
    path = put(tmp_path / "h.txt", cyclictest_histogram(counts, "00006 00000"))
    assert "--counts" in refusal(path, unit="us")
    (answer,) = verdict(load(path, unit="us", counts="thread 0"), 900, "99")
    assert (answer.n, answer.misses, answer.certain_misses, answer.outcome) == (3000, 6, 6, "MET")
    assert load(path, unit="us", counts="thread 1")[0].n == 150
    for options in ({}, {"counts": "thread 0"}):
        message = refusal(put(path, cyclictest_histogram(counts, None)), unit="us", **options)
        assert "Histogram Overflows" in message


RTLA = """# RTLA timerlat histogram
# Time unit is microseconds (us)
# Duration:   0 00:00:02
Index   IRQ-001   Thr-001   Usr-001
0          1000       944       134
10            0        55       863
20            0         1         3
over:         0         0         2
count:     1000      1000      1000
min:          0         3         4
avg:          1         7        10
max:          7        21        84
ALL:        IRQ       Thr       Usr
count:     1000      1000      1000
"""


def test_a_histogram_of_rtla(tmp_path):
    runs = load(put(tmp_path / "h.txt", RTLA), unit="us", counts="Usr-001")
    (answer,) = verdict(runs, 35, "90")
    assert (answer.n, answer.misses, answer.certain_misses) == (1002, 5, 0)  # its bins are 10 us wide
    assert "over" in refusal(put(tmp_path / "h.txt", RTLA.replace("over:", "more:")), unit="us", counts="Usr-001")


def test_a_number_of_calls_beyond_64_bits_is_one_line(tmp_path):
    text = "# Histogram\n000001 99999999999999999999999 000003\n000002 5 1\n# Histogram Overflows: 00000 00000\n"
    path = put(tmp_path / "cyclictest.txt", text)
    assert "thread 0 is not a column of whole numbers" in refusal(path, unit="us", counts="thread 0")
    assert load(path, unit="us", counts="thread 1")[0].n == 4
