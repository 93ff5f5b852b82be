"""Document 003's times: its sentences follow from the rows, and other rows would give others."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import lstm_literature as literature
from lstm_literature import published
from tests.support import inference_times
from tests.support.inference_times import ALL, DESCRIBED


@pytest.fixture(scope="module")
def points() -> pd.DataFrame:
    return published.points("003-times")


def changed(points: pd.DataFrame, factor: float, **where) -> pd.DataFrame:
    """With the times of these rows multiplied; without these rows if the factor is 0."""
    rows = np.logical_and.reduce([points[name] == value for name, value in where.items()])
    assert rows.any()
    kept = points.assign(latency_us=points.latency_us.where(~rows, points.latency_us * factor))
    return kept[kept.latency_us > 0]


ONE = {"layers": 2, "sequence": 128, "batch": 1}
#: Sentence -> what would change it: the factor and the rows.
PLANTED = {
    "batch_1_takes_longer": [
        (3.0, {**ONE, "hidden": 64, "table": ALL}),  # a small network is slower at batch 1
        (0.3, {**ONE, "hidden": 300, "table": ALL}),  # a large one is not
        (3.0, {**ONE, "hidden": 300, "table": ALL}),  # the largest difference
        (0.0, {**ONE, "hidden": 300, "table": ALL}),
    ],
    "batch_1_of_the_other_run": [(0.3, {**ONE, "hidden": 300, "table": DESCRIBED})],
    "runs_differ": [(2.0, {**ONE, "hidden": 32, "table": DESCRIBED}), (2.0, {**ONE, "hidden": 32, "table": ALL})],
    "wider_is_faster_in_one_run": [
        (1.3, {"layers": 3, "sequence": 256, "hidden": 256, "table": DESCRIBED}),
        (0.5, {"layers": 1, "sequence": 256, "hidden": 256, "table": DESCRIBED}),
    ],
    "wider_is_slower_in_the_other": [(0.5, {"layers": 4, "sequence": 256, "hidden": 256, "table": ALL})],
    "the_size_that_changed": [(1.3, {"layers": 4, "sequence": 256, "hidden": 200, "table": ALL})],
    "other_pairs": [
        (0.0, {"layers": 2, "sequence": 200, "hidden": 256, "table": ALL}),
        (0.99, {"layers": 1, "sequence": 32, "hidden": 256, "table": DESCRIBED}),
    ],
    "networks_there": [(0.0, {"layers": 2, "sequence": 200, "hidden": 256}), (0.0, {**ONE, "table": DESCRIBED})],
    "networks_absent": [
        (0.0, {"layers": 3, "sequence": 64, "hidden": 256}),
        (0.0, {"layers": 4, "sequence": 200, "hidden": 32}),
    ],
    "empty_cells": [(0.0, {"layers": 2, "sequence": 200, "batch": 64, "hidden": 32, "table": ALL})],
}


def of(sentence: str, points: pd.DataFrame) -> list[float] | None:
    """The numbers of a sentence; None if nothing of its form is true of these points."""
    (compute,) = (compute for compute in inference_times.SENTENCES if compute.__name__ == sentence)
    try:
        return [float(number) for number in compute(points)]
    except (AssertionError, KeyError, ValueError):
        return None


@pytest.mark.parametrize("sentence", PLANTED)
def test_other_rows_would_give_another_sentence(points, sentence):
    here = of(sentence, points)
    assert here and not np.isnan(here).any()
    assert of(sentence, points[::-1]) == here  # whatever the order of the rows
    for factor, where in PLANTED[sentence]:
        found = of(sentence, changed(points, factor, **where))
        assert found is None or found != here, (factor, where)


def test_every_sentence_is_planted():
    assert [compute.__name__ for compute in inference_times.SENTENCES] == list(PLANTED)


def test_points_have_one_number_per_label_and_network(points):
    assert list(points.columns) == [*published.SIZES, "table", "label", "latency_us"]
    assert not points.duplicated(["label", *published.SIZES]).any()
    assert points.groupby("table").label.unique().map(list).to_dict() == {
        ALL: ["TensorRT on A100 (mean, results.csv)"],
        DESCRIBED: ["TensorRT on A100 (mean, results-bs1.csv)"],
    }
    row = points[(points.table == DESCRIBED) & (points.layers == 4) & (points.sequence == 128) & (points.hidden == 256)]
    assert row.latency_us.tolist() == pytest.approx([5770.95])


def test_the_projection_says_that_it_is_one(points):
    projected = literature.points("003-projection")
    (label,) = projected.label.unique()
    assert "projection" in label and not points.label.str.contains("projection").any()
    networks = [*inference_times.NETWORK]
    described = points[points.table == DESCRIBED]
    assert {*projected[networks].itertuples(index=False)} == {*described[networks].itertuples(index=False)}
    rows = published.of("003")
    assert not rows[rows.statistic == "projection"].statistic.isin(published.TYPICAL).any()
