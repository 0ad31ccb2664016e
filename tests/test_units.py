import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openloop.errors import SpecError
from openloop.units import (
    format_money,
    format_rate,
    format_seconds,
    format_share,
    parse_count,
    parse_rates,
    parse_seconds,
    parse_share,
    parse_token_rate,
    to_ns,
    write_seconds,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("1.5 s", 1.5), ("2m", 120.0), ("2min", 120.0), ("3h", 10800.0), ("80us", 8e-5), ("1d", 86400.0)],
)
def test_durations_are_read_in_their_units(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["500", "500 parsecs", "-1s", "ms", "", "1e999s"])
def test_a_duration_without_sense_is_refused_by_name(text: str) -> None:
    with pytest.raises(SpecError, match="is not a number" if not text or text == "ms" else text.split()[0]):
        parse_seconds(text)


@pytest.mark.parametrize("value", ["2", ["2"]])
def test_text_is_no_number_of_seconds(value: object) -> None:
    with pytest.raises(SpecError, match="'2'.* stands where a number of seconds belongs"):
        to_ns(value)  # type: ignore[arg-type]


def test_a_bare_number_is_no_duration_and_the_message_shows_how_to_write_it() -> None:
    with pytest.raises(SpecError, match="needs a unit; write it as 500ms"):
        parse_seconds("500")


@given(st.integers(min_value=0, max_value=10**15))
def test_a_request_at_exactly_the_bound_meets_it(ns: int) -> None:
    assert ns / 1e9 <= parse_seconds(f"{ns}ns") <= ns / 1e9


@given(st.floats(min_value=0, max_value=1e9))
def test_durations_read_back_as_they_were_written(seconds: float) -> None:
    assert parse_seconds(write_seconds(seconds)) == seconds


def test_token_rates_need_tokens_and_time() -> None:
    assert parse_token_rate("20tok/s") == 20
    assert parse_token_rate("1200tokens/min") == 20
    with pytest.raises(SpecError, match="20tok/s"):
        parse_token_rate("20")


def test_shares_are_percentages_or_fractions_and_nothing_beyond() -> None:
    assert parse_share("99%") == 0.99
    assert parse_share("0.5") == 0.5
    with pytest.raises(SpecError, match="101%"):
        parse_share("101%")


def test_counts_are_whole() -> None:
    assert parse_count("2") == 2
    with pytest.raises(SpecError, match=r"1\.5"):
        parse_count("1.5")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 s"), (1e-6, "1.00 µs"), (0.0123, "12.3 ms"), (0.9999, "1.00 s"), (61.0, "61.0 s"), (1e4, "2.78 h")],
)
def test_durations_are_shown_with_three_figures(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_what_never_came_and_what_is_not_known_look_different() -> None:
    assert format_seconds(math.inf) == "never"
    assert format_seconds(math.nan) == "-"
    assert format_share(math.nan) == "-"
    assert format_rate(math.nan) == "-"


def test_shares_near_the_ends_show_two_decimals() -> None:
    assert format_share(0.9997) == "99.97%"
    assert format_share(0.58) == "58.0%"
    assert (format_share(0.99996), format_share(0.00001)) == ("99.996%", "0.001%")
    assert (format_share(1.0), format_share(0.0), format_share(1 - 1e-13)) == ("100.0%", "0.0%", "100.00%")


@pytest.mark.parametrize(
    ("amount", "text"),
    [(4.444e-5, "0.0000444"), (1.851, "1.85"), (12_345.0, "12,345"), (0.0, "0.00"), (math.inf, "infinite")],
)
def test_money_is_shown_with_three_figures_and_no_exponent(amount: float, text: str) -> None:
    assert format_money(amount) == text


@pytest.mark.parametrize(
    ("text", "rates"),
    [
        ("5:20:5", [5.0, 10.0, 15.0, 20.0]),
        ("0.1:0.5:0.1", [0.1, 0.2, 0.3, 0.4, 0.5]),
        ("5:12:5", [5.0, 10.0]),
        ("20,5, 60/min,5", [1.0, 5.0, 20.0]),
        ("1,10:12:1", [1.0, 10.0, 11.0, 12.0]),
    ],
)
def test_rates_are_a_range_a_list_or_both(text: str, rates: list[float]) -> None:
    assert parse_rates(text) == rates


@pytest.mark.parametrize("text", ["5:50", "50:5:5", "5:50:0", "1:2:3:4", "0:10:5", "1:1000000:0.001", "", "5:x:1"])
def test_rates_without_sense_are_refused_by_name(text: str) -> None:
    with pytest.raises(SpecError, match="write it as|leave it out|is not a number"):
        parse_rates(text)
