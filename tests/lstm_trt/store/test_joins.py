"""How facts of several recordings become one, where one of them does not know it."""

import pytest

from lstm_trt.store import joins


@pytest.mark.parametrize(
    ("join", "of_known", "of_some"),
    [
        (joins.first, 3, None),
        (joins.first_known, 3, 0),
        (joins.last, 0, 0),
        (joins.total, 8, None),
        (joins.largest, 5, None),
    ],
)
def test_a_fact_that_one_recording_lacks(join, of_known, of_some):
    assert join([3, 5, 0]) == of_known and join([None, 0]) == of_some


def test_rounds_that_were_not_alone_are_counted_where_it_is_known():
    assert joins.number_of_false([True, False, None, False]) == 2 and joins.number_of_false([None]) is None
