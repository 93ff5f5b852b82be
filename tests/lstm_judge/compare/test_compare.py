"""Comparisons: equal sides are rarely called different, differences are found, and the reasons are given."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from lstm_judge.compare.answer import Comparison, Question
from lstm_judge.compare.compare import compare_groups
from lstm_judge.compare.text import comparison_text
from lstm_judge.read.rounds import Group, Round
from lstm_judge.statistics.dependence import effective_n
from lstm_trt.cli.main import parse
from lstm_trt.config.configuration import Configuration, Options, Protocol
from lstm_trt.config.shape import LstmShape
from tests.conftest import rest_is_heavy, sampled
from tests.support.planted_latencies import autoregressive, check_rate
from tests.support.planted_misses import geometric
from tests.support.said import refusal, said

MIRROR = {
    "SAME": "SAME",
    "AMBIGUOUS": "AMBIGUOUS",
    "FASTER": "SLOWER",
    "SLOWER": "FASTER",
    "FEWER": "MORE",
    "MORE": "FEWER",
}
CALLED = ("FASTER", "SLOWER")


def compare(a: Group, b: Group, **question) -> Comparison:
    return compare_groups(a, b, Question(**question))


def side(*rounds, name="side", **more) -> Group:
    return Group(name, tuple(Round.of(latency_ns, round=number) for number, latency_ns in enumerate(rounds)), **more)


def flat(median_us: float, n: int = 1000, width: float = 0.01) -> np.ndarray:
    """Even within `width` around the median, in no order."""
    places = np.random.default_rng(n).permutation(np.linspace(1 - width, 1 + width, n))
    return median_us * 1e3 * places


def bulk(kind: str, n: int, generator: np.random.Generator) -> np.ndarray:
    if kind == "clusters":
        which = generator.random(n)
        return generator.lognormal(0, 0.01, n) * np.where(which < 0.01, 2, np.where(which < 0.03, 1.25, 1))
    if kind == "bursts":  # 2 % late, about 20 calls in a row
        late = np.isin(np.arange(n), geometric(20)(generator, n, 0.02))
        return generator.lognormal(0, 0.01, n) * np.where(late, 1.5, 1)
    if kind == "autocorrelated":
        return np.exp(0.05 * autoregressive(generator, n, 0.98))
    return 1 + 0.02 * np.abs(generator.standard_t(2, n))


def processes(kind: str, n: int, rounds: int, generator: np.random.Generator, scale=1.0, spread=0.03) -> Group:
    return side(*(1e5 * scale * generator.lognormal(0, spread) * bulk(kind, n, generator) for _ in range(rounds)))


# Error rates


@pytest.mark.random(tail=0, why="identity")
def test_over_all_ways_to_deal_ten_rounds_the_error_is_exact(rng):
    values = rng.lognormal(5, 1, 10)
    called = {"median": 0, "tail": 0}
    for chosen in itertools.combinations(range(10), 5):
        a = side(*(np.full(40, values[k]) for k in chosen))
        b = side(*(np.full(40, values[k]) for k in range(10) if k not in chosen))
        result = compare(a, b, effect=0)
        assert result.tail.percentile == 90
        called["median"] += result.median.change in CALLED
        called["tail"] += result.tail.change in CALLED
    # P(U <= 1) twice, of 252 equally likely ways: 1.6 %, at most 2.5 % each so that both hold at 95 %.
    assert called == {"median": 4, "tail": 4}


@pytest.mark.random(tail=3.2e-5, why="rates, 32 checks of 0.05")
@pytest.mark.parametrize("kind", ["clusters", "bursts", "autocorrelated", "heavy"])
@pytest.mark.parametrize(
    ("rounds", "n", "times"),
    rest_is_heavy(
        [(1, 1000, 300), (1, 10_000, 200), (3, 1000, 200), (5, 1000, 200), (10, 1000, 150), (3, 10_000, 60),
         (5, 10_000, 60), (10, 10_000, 40)],
        lambda rounds, n, times: n == 1000 and rounds != 5,
        one_in=2,
    ),
)  # fmt: skip
def test_one_configuration_is_rarely_called_faster_or_slower_than_itself(kind, rounds, n, times, rng):
    called = 0
    for _ in range(times):
        result = compare(*(processes(kind, n, rounds, rng) for _ in "ab"))
        called += result.median.change in CALLED or result.tail.change in CALLED
    check_rate(called, times, 0.05)


@pytest.mark.random(tail=2.1e-6, why="rates, 2 checks of 0.01; the ratio: measured, 8.2")
@pytest.mark.parametrize("n", [1000, 10_000])
def test_what_is_15_per_cent_faster_is_found_with_ten_rounds(n, rng):
    results = [compare(processes("heavy", n, 10, rng), processes("heavy", n, 10, rng, scale=0.85)) for _ in range(20)]
    check_rate(sum(result.median.change != "FASTER" for result in results), 20, 0.01)
    # The ratio has a spread of 1.4 %: these bounds are seven and more away.
    assert all(0.75 < result.median.ratio.estimate < 0.95 for result in results)


@pytest.mark.random(tail=1e-6, why="rates, 1 check of 0.01")
def test_what_is_the_same_within_the_effect_is_called_so_with_ten_rounds(rng):
    results = [compare(*(processes("clusters", 4000, 10, rng, spread=0.003) for _ in "ab")) for _ in range(20)]
    check_rate(sum(result.median.change != "SAME" for result in results), 20, 0.01)
    assert all(
        (result.command is None) == ("AMBIGUOUS" not in (result.median.change, result.tail.change))
        for result in results
    )


# Rules


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [(0.90, 0.979, "FASTER"), (0.97, 0.985, "AMBIGUOUS"), (0.985, 1.015, "SAME"), (0.97, 1.03, "AMBIGUOUS"),
     (1.015, 1.05, "AMBIGUOUS"), (1.021, 1.05, "SLOWER")],
)  # fmt: skip
def test_the_interval_over_rounds_decides(low, high, word):
    # All rounds of A are alike: of 5 x 5 ratios the second and the last but one belong to the first and last of B.
    a, b = side(*[flat(100)] * 5), side(*(flat(100 * ratio) for ratio in np.linspace(low, high, 5)))
    result = compare(a, b)
    assert (result.median.change, result.tail.change) == (word, word)
    assert (result.median.ratio.low, result.median.ratio.high) == pytest.approx((low, high), rel=1e-9)
    assert result.median.ratio.estimate == pytest.approx((low + high) / 2, rel=1e-9)
    assert compare(b, a).median.change == MIRROR[word]
    assert result.command is None
    said(*result.reasons)


@pytest.mark.random(tail=0, why="identity")
def test_exchanging_the_sides_mirrors_the_answer(rng):
    for rounds in ((1, 1), (3, 2), (5, 7), (6, 6)):
        for scale in (0.7, 0.95, 1, 1.2):
            a = processes("heavy", 1000, rounds[0], rng, spread=0.01)
            b = processes("heavy", 1000, rounds[1], rng, scale, spread=0.01)
            forward, backward = compare(a, b), compare(b, a)
            assert tuple(MIRROR[change] for change in forward.changes) == backward.changes
            assert forward.median.ratio.estimate == pytest.approx(1 / backward.median.ratio.estimate)
            assert (forward.a, forward.b) == (backward.b, backward.a)
            if forward.median.ratio.low is not None:
                assert forward.median.ratio.low == pytest.approx(1 / backward.median.ratio.high)


@pytest.mark.parametrize("ratio", [1.03, 1.09])
def test_one_process_a_side_proves_nothing_below_ten_per_cent(ratio):
    result = compare(side(flat(100)), side(flat(100 * ratio)))
    assert (result.median.change, result.tail.change) == ("AMBIGUOUS", "AMBIGUOUS")
    assert result.median.ratio.estimate == pytest.approx(ratio) and result.median.ratio.low is None
    said(comparison_text(result))


def test_one_process_a_side_beyond_ten_per_cent_with_disjoint_intervals():
    result = compare(side(flat(100)), side(flat(115)))
    assert (result.median.change, result.tail.change, result.command) == ("SLOWER", "SLOWER", None)
    # Medians 20 % apart that 30 trials hardly know.
    wide = compare(side(flat(100, 30, 0.9)), side(flat(120, 30, 0.9)))
    assert wide.median.change == "AMBIGUOUS"
    assert compare(side(flat(100)), side(flat(115)), effect=0.2).median.change == "AMBIGUOUS"
    said(comparison_text(result), *wide.reasons)


def test_fewer_than_five_rounds_must_agree_among_themselves():
    a, b = side(flat(100), flat(101)), side(flat(130), flat(131))
    assert compare(a, b).median.change == "SLOWER"
    result = compare(side(flat(100), flat(140)), side(flat(141), flat(190)))
    assert result.median.change == "AMBIGUOUS"
    said(*result.reasons)
    assert compare(side(*[flat(100)] * 12), side(*[flat(109)] * 4)).median.change == "AMBIGUOUS"


def test_slow_calls_in_a_burst_prove_less():
    slow = flat(100)
    slow[400:440] *= 1.5  # one burst: p99 lies in it
    result = compare(side(flat(100)), side(slow))
    assert result.tail.change == "AMBIGUOUS" and result.tail.ratio.estimate > 1.4
    apart = flat(100)
    apart[::25] *= 1.5  # as many, spread out
    assert compare(side(flat(100)), side(apart)).tail.change == "SLOWER"


def test_a_machine_that_became_slower_proves_nothing():
    def with_control(control_us, latency_us):
        return Group("one", (Round.of(flat(latency_us), control_ns=np.full(50, 1e3 * control_us)),))

    texts = []
    for control, word in ((1, "SLOWER"), (1.15, "SLOWER"), (1.25, "AMBIGUOUS"), (0.5, "SLOWER")):
        a, b = with_control(0.1, 100), with_control(0.1 * control, 130)
        assert (compare(a, b).median.change, compare(b, a).median.change) == (word, MIRROR[word])
        texts.append(comparison_text(compare(a, b)))
    assert compare(with_control(0.1, 100), side(flat(130))).median.change == "SLOWER"
    said(*texts)


@pytest.mark.random(
    tail=1e-9,
    why="exact: 42 of 1000 samples have 500 or less (measured), of 200 at least 100 would have to",
)
def test_the_effective_number_is_the_number_where_they_are_independent(rng):
    independent = [effective_n(rng.random(1000) < 0.1) for _ in range(200)]
    assert max(independent) <= 1000 and np.median(independent) > 500
    together = np.repeat(np.arange(100) % 11 == 0, 10)
    assert (
        effective_n(together) < 500 and effective_n(np.zeros(7, dtype=bool)) == effective_n(np.ones(7, dtype=bool)) == 7
    )


@pytest.mark.parametrize("n", [10, 35, 36, 367, 368, 3687, 3688, 36_887, 36_888])
def test_the_tail_is_the_highest_percentile_with_an_upper_bound(n):
    result = compare(side(flat(100, 40_000), flat(100, n)), side(flat(100, 40_000)))
    # There is one where the largest of n trials lies below the percentile with 2.5 % at most.
    expected = [p for p in (99.99, 99.9, 99, 90) if Fraction(str(p)) ** n * 40 <= 100**n]
    assert result.tail.percentile == (expected[0] if expected else None)
    short = compare(*(side(*[flat(median, n)] * 5) for median in (100, 130)))
    assert short.median.change == "SLOWER"
    said(comparison_text(result), comparison_text(short))


def test_a_high_confidence_asks_for_more_rounds():
    sides = [side(*[flat(100 * ratio)] * 5) for ratio in (1, 1.3)]
    assert compare(*sides).median.change == "SLOWER"
    result = compare(*sides, confidence=0.999)
    assert result.median.change == "AMBIGUOUS"
    more = [side(*[flat(100 * ratio)] * result.rounds_needed) for ratio in (1, 1.3)]
    assert compare(*more, confidence=0.999).median.change == "SLOWER"
    said(*result.reasons)


# Misses of a deadline


def missing(rates, n=500, generator=None) -> Group:
    """A process for each rate, in which this share of n calls misses 1 ms: at random, or the first ones."""
    places = [np.arange(n) / n if generator is None else generator.random(n) for _ in rates]
    late = [place < rate for place, rate in zip(places, rates, strict=True)]
    return side(*(np.where(missed, 2e6, 1e5 + np.arange(n)) for missed in late))


def misses(a: Group, b: Group):
    return compare(a, b, deadline_us=1000)


@pytest.mark.random(tail=4e-6, why="rates, 2 checks of 0.05, 1 of 0.01 and 1 of 0.5")
@pytest.mark.parametrize("spread", [0, 1])
def test_equal_miss_rates_are_rarely_more_or_fewer_and_a_tenfold_one_is_found(spread, rng):
    wrong = found = 0
    for _ in range(100):
        a, b, c = (missing(0.01 * times * rng.lognormal(0, spread, 6), 500, rng) for times in (1, 1, 10))
        wrong += misses(a, b).misses.change in ("FEWER", "MORE")
        found += misses(a, c).misses.change == "MORE"
    check_rate(wrong, 100, 0.05)
    check_rate(100 - found, 100, 0.01 if spread == 0 else 0.5)


@pytest.mark.parametrize(
    ("rates_a", "rates_b", "word", "ratio"),
    [([0.02] * 5, [0.04] * 5, "MORE", 2), ([0.04] * 5, [0.02] * 5, "FEWER", 0.5), ([0.1] * 5, [0.12] * 5, "SAME", 1.2),
     ([0.02] * 4, [0.2] * 9, "AMBIGUOUS", 10), ([0] * 5, [0] * 5, "AMBIGUOUS", None),
     ([0] * 5, [0.01] * 5, "MORE", None), ([1] * 5, [1] * 5, "SAME", 1),
     ([0, 0, 0, 0, 0.01], [0, 0, 0, 0, 0.02], "AMBIGUOUS", None)],
)  # fmt: skip
def test_miss_rates_of_processes_decide(rates_a, rates_b, word, ratio):
    a, b = missing(rates_a), missing(rates_b)
    result = misses(a, b)
    assert (result.misses.change, result.misses.ratio.estimate) == (word, ratio and pytest.approx(ratio))
    assert result.misses.b == pytest.approx(rates_b) and result.changes[-1] == word
    assert misses(b, a).misses.change == MIRROR[word]
    plain = json.loads(json.dumps(result.as_dict(), allow_nan=False))
    assert (plain["misses"]["change"], plain["misses"]["deadline_us"]) == (word, 1000)
    said(comparison_text(result))


def test_no_miss_on_both_sides_says_that_it_cannot_be_told():
    result = misses(missing([0] * 20), missing([0] * 20))
    assert (result.median.change, result.misses.change, result.rounds_needed) == ("SAME", "AMBIGUOUS", 0)
    said(comparison_text(result))  # it asks for no trials: more of them are not what decides it


def test_processes_of_different_lengths_are_compared_in_as_many_calls():
    """At one rate the shorter processes would have no miss, and the longer ones one each."""
    rare = np.full(20_000, 1e5)
    rare[15_000] = 2e6
    result = misses(missing([0] * 5, 1000), side(*[rare] * 5))
    assert (result.misses.change, result.misses.calls) == ("AMBIGUOUS", 1000)
    assert result.misses.b == (0,) * 5


def test_the_percentile_of_the_tail_can_be_chosen():
    sides = side(*[flat(100)] * 5), side(*[flat(130)] * 5)
    for percentile, found in (("99", 99), (75, 75), (99.9, None)):
        result = compare(*sides, percentile=percentile)
        assert (result.tail.percentile, result.tail.change) == (found, "SLOWER" if found else "AMBIGUOUS")
    said(*result.reasons)


# Differences and commands


def configured(**changes) -> Configuration:
    plain = {"runtime": "onnxruntime", "options": Options(), "protocol": Protocol()} | changes
    return Configuration(plain.pop("shape", LstmShape(2, 64, 100)), runtime_version="1.0", device_name="cpu", **plain)


def recorded(configuration: Configuration, *rounds, **more) -> Group:
    rounds = tuple(
        Round.of(
            latency_ns,
            round=number,
            **({"machine": "m", "versions": {"numpy": "2.0"}, "started_unix_ns": number} | more),
        )
        for number, latency_ns in enumerate(rounds)
    )
    return Group(f"{configuration.workload.label} on {configuration.runtime}", rounds, configuration=configuration)


def words_of(result, folder) -> list[list[str]]:
    """What the shell runs of the printed command: the words after `lstm-trt` of each line; every one succeeds."""
    (folder / "lstm-trt").write_text('#!/bin/sh\nprintf "%s\\n" "$@" END >> calls\n')
    (folder / "lstm-trt").chmod(0o755)
    path = {"PATH": f"{folder}:{os.environ['PATH']}"}
    subprocess.run(["bash", "-ec", result.command], check=True, cwd=folder, env=path)
    calls = (folder / "calls").read_text().split("END\n")[:-1]
    (folder / "calls").unlink()
    return [call.splitlines() for call in calls]


def test_the_commands_alternate_the_rounds_of_both_sides_and_compare_them(tmp_path):
    """One configuration is recorded once for each side; the commands' own parser understands them."""
    options = Options("fp16", 2, (0, 1), "cuda", True, "compute")
    protocol = Protocol(trials=5000, warmup=20, seed=3, arrival="periodic", wait="sleep", period_us=1234567.25)
    changed = configured(shape=LstmShape(2, 64, 100, 4, 7, 2), options=options, protocol=protocol)
    plain, six = recorded(configured(), flat(100)), (flat(x * 100) for x in (1, 1.1, 1, 1.1, 1, 1.1))
    undecided = recorded(configured(), *six)
    others = ((plain, recorded(changed, flat(100)), False), (plain, recorded(configured(), flat(105)), True))
    texts = []
    for a, b, one_configuration in (*others, (undecided, undecided, True)):
        result = compare(a, b, deadline_us=250.5, percentile="99")
        assert result.one_configuration == one_configuration
        words = words_of(result, tmp_path)
        *sweeps, last = map(parse, words)
        assert {sweep.out for sweep in sweeps[::2]} == {last.a} and {sweep.out for sweep in sweeps[1::2]} == {*last.b}
        texts.append("\n".join(map(" ".join, words)))
    said(*texts)


@pytest.mark.parametrize(("in_turns", "rounds"), [(False, 6), (True, 6), (False, 1)])
def test_sides_that_were_recorded_one_after_the_other_get_the_commands_to_alternate(tmp_path, in_turns, rounds):
    """The difference may be that of the machine, also where it is decided."""
    sides = []
    for place, (threads, median_us) in enumerate(((1, 100), (2, 130))):
        first, step = (place, 2) if in_turns else (100 * place, 1)
        recorded = tuple(Round.of(flat(median_us), started_unix_ns=first + step * each) for each in range(rounds))
        sides.append(Group("one", recorded, configuration=configured(options=Options(threads=threads))))
    result = compare(*sides)
    assert (result.median.change, result.rounds_needed) == ("SLOWER", 0)
    said(comparison_text(result))
    assert (result.command is None) == in_turns
    if not in_turns:
        assert len(words_of(result, tmp_path)) == 2 * max(rounds, 5) + 1
        same = [replace(group, configuration=configured()) for group in sides]
        assert compare(*same).command is None  # nothing can alternate by itself


# It records ten times, each time in a process of its own.
@pytest.mark.heavy
@sampled(2)
def test_the_printed_commands_run_as_they_are(lab, tmp_path):
    sides = [recorded(configured(shape=LstmShape(1, 8, 4), protocol=Protocol(trials=20)), flat(100)) for _ in "ab"]
    sides[1] = replace(sides[1], configuration=replace(sides[1].configuration, runtime="c"))
    *sweeps, last = words_of(compare(*sides), tmp_path)
    for words in sweeps:
        result = lab(*words, cwd=tmp_path)
        assert result.returncode == 0, result
    result = lab(*last, cwd=tmp_path)
    assert len(sweeps) == 10
    assert result.returncode in (0, 1, 3) and "5 processes of A, n = 100; 5 processes of B" in result.stdout, result


def test_the_same_recording_twice_is_called_that():
    once, group = (recorded(configured(), *[flat(100)] * rounds) for rounds in (1, 6))
    others = tuple(replace(round_, started_unix_ns=9) for round_ in group.rounds[2:])
    partly = replace(group, rounds=(*group.rounds[:2], *others))
    said(*(comparison_text(compare(a, b)) for a, b in ((once, once), (group, group), (group, partly))))


def test_different_machines_versions_and_options_are_named():
    first = recorded(configured(), flat(100), flat(101))
    threads = configured(options=Options(threads=2))
    second = recorded(threads, flat(130), flat(131), machine="n", versions={"numpy": "2.4"})
    later = recorded(configured(), flat(99), flat(100), started_unix_ns=10**18)
    pairs = [
        (first, second),
        (first, replace(first, rounds=(first.rounds[0], second.rounds[1]))),
        (side(flat(100)), side(flat(100, 900))),
        (first, recorded(configured(), flat(99), flat(100))),
        (first, later),
        (later, first),
        tuple(recorded(configured(), flat(100), started_unix_ns=start) for start in (1, 2)),
        tuple(side(flat(100), group={"model": name, "batch": 1}) for name in ("small", "large")),
    ]
    said(*("\n".join(compare(*pair).differences) for pair in pairs), comparison_text(compare(first, second)))


def test_text_and_json():
    result = compare(recorded(configured(), flat(100)), recorded(configured(), flat(105)))
    plain = json.loads(json.dumps(result.as_dict(), allow_nan=False))
    assert plain["reasons"] == [plain["median"]["reason"], plain["tail"]["reason"]]
    assert (plain["a"]["rounds"], plain["b"]["n"], plain["median"]["change"]) == (1, 1000, "AMBIGUOUS")
    assert plain["median"]["b_us"] == [pytest.approx(105, rel=1e-3)]
    foreign = compare(side(flat(100)), side(flat(105)))
    said(repr(result), comparison_text(result, "before", "after"), comparison_text(foreign))


@pytest.mark.parametrize(
    "asked",
    [
        *({"effect": effect} for effect in (-0.01, 1, float("nan"), float("inf"))),
        *({"percentile": percentile} for percentile in (0.99, "high")),
        *({"deadline_us": deadline_us} for deadline_us in (0, float("nan"))),
        {"confidence": 1},
    ],
    ids=str,
)
def test_questions_out_of_range_are_refused(asked):
    said(refusal(Question, **asked))


def test_latencies_that_are_not_positive_are_refused():
    good, bad = side(flat(100)), side(np.array([1.0, 0.0]))
    said(refusal(compare, good, bad), refusal(compare, bad, good))
