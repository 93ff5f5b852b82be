import pytest

from lstm_judge.read import numbers
from lstm_trt.config import format


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (numbers.percent_at_most(0.00123456), "0.124 %"),
        (numbers.percent_at_least(0.00123456), "0.123 %"),
        (numbers.percent_certified(99.7009), "99.7"),
        (numbers.percent_certified(99.9), "99.9"),
        (numbers.multiple(2.011), "2.01x"),
        (numbers.multiple(1), "1x"),
        (numbers.percent_at_most(0), "0 %"),
        (numbers.percent_at_least(None), "-"),
        (numbers.signed_percent(0.03), "+3.0 %"),
        (numbers.scientific(0.0025), "2.5e-03"),
    ],
)
def test_bounds_are_rounded_to_the_safe_side(text, expected):
    assert text == expected


def at_width(width, function, *arguments, **more):
    before = format.WIDTH.set(width)
    try:
        return function(*arguments, **more)
    finally:
        format.WIDTH.reset(before)


def test_a_table_leaves_columns_out_in_a_narrow_terminal_in_the_given_order_and_names_them():
    rows = [("a", "12.3", "4.5", "none"), ("b", "failed at memory: too large for everything")]
    arguments = (("name", "max", "mean", "clusters"), rows)
    whole = numbers.table(*arguments).splitlines()
    assert whole[0] == "name   max  mean  clusters"
    assert at_width(26, numbers.table, *arguments, drop=("mean", "max")).splitlines() == whole
    lines = at_width(25, numbers.table, *arguments, drop=("mean", "max")).splitlines()
    assert lines[:2] == ["name   max  clusters", "a     12.3  none"] and lines[2].endswith(rows[1][1])
    assert lines[3].startswith("columns not shown: mean;")
    lines = at_width(1, numbers.table, *arguments, drop=("mean", "max")).splitlines()
    assert lines[0] == "name  clusters" and lines[3].startswith("columns not shown: mean, max;")
