import csv
import io
import math
import shlex

import pandas as pd
import pytest

from lstm_trt.config import format


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (format.number(9.996), "10.0"),
        (format.number(12345.6), "12346"),
        (format.number(float("nan")), "?"),
        (format.short_number(99.9), "99.9"),
        (format.short_number(1000.0), "1000"),
        (format.microseconds(61.44), "61.4"),
        (format.microseconds(12345.6), "12346"),
        (format.microseconds(9.994), "9.99"),
        (format.microseconds(9.996), "10.0"),
        (format.microseconds(0.0), "0.00"),
        (format.microseconds(None), "-"),
        (format.latency(1234.5), "1.234 ms"),
        (format.latency(50, 3), "50 us"),
        (format.duration(75), "1 min 15 s"),
        (format.percent(0.1234), "12.3 %"),
        (format.percent(0.003), "0.30 %"),
        (format.percent(0), "0 %"),
        (format.percent(1), "100 %"),
        (format.count(0, "trial"), "no trials"),
        (format.count(2, "miss"), "2 misses"),
        (format.bytes_text(1_234_567), "1.23 MB"),
        (format.listed(range(22), most=2), "0, 1 and 20 more"),
        (format.listed([]), "none"),
    ],
)
def test_one_rounding_per_unit(text, expected):
    assert text == expected


def test_a_table_aligns_numbers_to_the_right_and_ends_failed_rows_in_free_text():
    rows = [("runtime a", "12.3*", "1.25x"), ("b", "9.0", "none"), ("c", "failed at memory: too large")]
    assert format.table_lines(("name", "max", "clusters"), rows) == [
        "name        max   clusters",
        "runtime a  12.3*  1.25x",
        "b           9.0   none",
        "c          failed at memory: too large",
    ]


@pytest.mark.parametrize("width", [20, 33, 60])
def test_lines_are_wrapped_at_words_and_commands_stay_commands(width):
    text = "a line of some words that is longer than the width of the terminal, and ends here\n  short"
    lines = format.wrapped(text, width).splitlines()
    assert all(len(line) <= width for line in lines) and lines[-1] == "  short"
    assert " ".join(" ".join(lines[:-1]).split()) == text.splitlines()[0]
    command = "  lstm-trt sweep --hidden 32 64 --rename 'Average time (s) --x=latency_s' b=c --out rounds/a && next"
    assert shlex.split(format.wrapped(command, width).replace("\\\n", "")) == shlex.split(command)


def test_a_table_wraps_its_last_column():
    lines = format.table_lines(("check", "found"), [("OK", "a text of several words")], width=20, wrap=True, indent=2)
    assert lines[1].splitlines() == ["  OK     a text of", "         several", "         words"]


def test_warnings_of_one_kind_are_one_line_with_their_number():
    slow = ["1x8-s4-b1: 41 % of the loop was outside", "2x64-s64-b1: 52.5 % of the loop was outside"]
    assert format.warning_lines([*slow, "rows were sorted", slow[0]]) == [
        "warning: 1x8-s4-b1: 41 % of the loop was outside (2 more of this kind)",
        "warning: rows were sorted",
    ]
    assert format.warning_lines([]) == []


def test_markdown_shows_texts_as_they_are():
    lines = format.markdown(["a|b", "c"], [["<b>`x`</b>\n*y*", "1_000 ~~z~~"], ["[l](u)", "\x1b"]]).splitlines()
    assert lines[:2] == ["| a\\|b | c |", "| --- | --- |"]
    assert lines[2] == r"| \<b\>\`x\`\</b\>\\n\*y\* | 1\_000 \~\~z\~\~ |"
    assert lines[3] == r"| \[l\](u) | \\x1b |"


def test_values_of_a_table_have_four_digits_unless_they_are_whole():
    values = {None: "-", math.nan: "-", 32.0: "32", 0.12345: "0.1235", 12345.6: "12346", 7: "7", "text": "text"}
    assert {value: format.value_text(value) for value in values} == values


@pytest.mark.parametrize("text", ["0", "-3.2", "+.5", "5.", "1e-3", " 7 ", "inf", "-Infinity", "NaN", "9" * 5000])
def test_a_decimal_number_is_one_for_python_too(text):
    assert format.decimal(text) == text
    float(text)


@pytest.mark.parametrize(
    "text", ["", "-", ".", "e5", "0x64", "1_100", "\u0661\u0662", "1,5", "1 5", "5us", "--5", "\xa05"]
)
def test_what_is_no_decimal_number_is_refused(text):
    with pytest.raises(ValueError, match="not a decimal number"):
        format.decimal(text)


def test_csv_computes_nothing_and_keeps_its_numbers():
    texts = ["=cmd()", "@x", "+1+1", "-a", "\tx", "\r=x", "-a\r=x"]
    numbers = ["-3.2", "+5", "-inf", "-", "", "2x64", None, -3.2, 5, True]
    frame = pd.DataFrame({"=name": [*texts, *numbers]}, dtype=object)
    rows = list(csv.reader(io.StringIO(format.csv_text(frame), newline="")))
    assert rows[0] == ["'=name"] and [row[0] for row in rows[1:8]] == [f"'{text}".replace("\r", "\n") for text in texts]
    assert rows[8:] == [["" if number is None else str(number)] for number in numbers]
