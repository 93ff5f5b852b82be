import pytest

from lstm_judge.read import numbers


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
