"""Exit statuses are those of the table in `cli/main.py`."""

from __future__ import annotations

import pytest

#: Medians in us of the five rounds of B, those of A are 100.
SAME, FASTER, SLOWER, AMBIGUOUS = ([100] * 5, [80] * 5, [125] * 5, [100, 101, 102, 103, 104])


def put(path, models: list[list[float]]):
    """A table of the rounds of models; the trials of a round differ by 0.1 % at most."""
    rows = [
        f"{model},{number},{median_us * (1 + 0.001 * trial / 100)}"
        for model, medians_us in enumerate(models)
        for number, median_us in enumerate(medians_us)
        for trial in range(100)
    ]
    path.write_text("\n".join(["model,round,latency_us", *rows]))
    return path


@pytest.mark.parametrize(
    ("models", "status"),
    [
        ([SAME], 0),
        ([FASTER], 0),
        ([SLOWER], 1),
        ([AMBIGUOUS], 3),
        ([SAME, FASTER], 0),
        ([FASTER, AMBIGUOUS], 3),
        ([AMBIGUOUS, SLOWER, SAME], 1),
    ],
)
def test_compare_gives_the_worst_result(run, tmp_path, models, status):
    sides = [put(tmp_path / "a.csv", [[100] * 5] * len(models)), put(tmp_path / "b.csv", models)]
    exited, out, _ = run("compare", *sides, "--group-by", "model")
    assert exited == status, out


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("cache",), 0),
        (("--version",), 0),
        (("export", "--layers", 2, "--hidden", 10**6, "--sequence", 4, "--out", "x"), 1),  # 29 TiB of weights
    ],
    ids=str,
)
def test_a_failure_is_not_a_mistake_in_the_input(run, tmp_path, arguments, status):
    exited, _, errors = run(*(tmp_path / "x" if argument == "x" else argument for argument in arguments))
    assert exited == status
    assert errors.count("\n") == (status != 0) and errors.startswith("lstm-trt: " * (status != 0))
