"""Numbers as reports write them."""

from __future__ import annotations

from pytest_agentbench.reports.phrases import brackets, count, general, number, percent, seconds_text, significant


def test_shares() -> None:
    """A share below 1 is never 100 %, and one above 0 is never 0 %."""
    assert ("100.0 %", "99.9 %", "12.3 %", "below 0.1 %", "0.0 %") == tuple(map(percent, (1.0, 0.99999, 0.1234, 0.0001, 0.0)))
    assert "-" == percent(None)


def test_numbers() -> None:
    """Numbers have one decimal place by default, and separated thousands. None is a dash, zero is not."""
    assert ("1,234.6", "1,235", "0.500", "0.0", "-") == (number(1234.56), number(1234.56, 0), number(0.5, 3), number(0), number(None))


def test_significant() -> None:
    """Numbers of any size have four significant digits, and at least one decimal place."""
    assert ("0.0001235", "0.2500", "12.35", "12,345.7", "-12.35", "0.0", "-") == tuple(
        map(significant, (0.00012345678, 0.25, 12.3456, 12345.67, -12.3456, 0, None))
    )


def test_any_number() -> None:
    """A number of any kind has four significant digits and no exponent. An error of rounding is zero."""
    values = (0.582, -0.05, 0.00012345678, 57880.2, 1234567.8, 12.3456, -2.78e-18, 0, 100.0)

    assert ("0.582", "-0.05", "0.0001235", "57,880", "1,234,568", "12.35", "0", "0", "100") == tuple(map(general, values))


def test_intervals() -> None:
    """An interval is in brackets. Without one, the text is empty."""
    assert ("[1.0, 2.5]", "") == (brackets((1.0, 2.5)), brackets(None))


def test_seconds() -> None:
    """Less than a tenth of a second is written as milliseconds."""
    assert ("3.6 s", "0.1 s", "20.0 ms") == tuple(map(seconds_text, (3.56, 0.1, 0.02)))


def test_counts() -> None:
    """The noun is singular for 1. Thousands are separated."""
    assert ("1 test", "0 tests", "1,234 tests") == tuple(count(amount, "test") for amount in (1, 0, 1234))
