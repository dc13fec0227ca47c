"""Numbers, sizes, durations and lists as text, and back.

Tests cnnbench/base/text.py, cnnbench/base/log_lines.py and cnnbench/base/values.py.
"""

from __future__ import annotations

import math

import pytest

from cnnbench.base import log_lines, text, values
from cnnbench.base.values import Duration


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (0, "0"),
        (math.nan, "nan"),
        (1234.5, "1,234"),
        (123.45, "123.5"),
        (0.12345, "0.1235"),
        (0.99999, "1.000"),
        (-0.5, "-0.5000"),
        (0.001, "0.001000"),
        (0.00099, "9.900e-04"),
        (9_999_999.0, "9,999,999"),
        (1e7, "1.000e+07"),
    ],
)
def test_numbers_have_four_digits(value, shown):
    assert text.number(value) == shown


@pytest.mark.parametrize(
    ("share", "plain", "signed"),
    [
        (None, "-", "-"),
        (0.1235, "12.3 %", "+12.3 %"),
        (-0.1, "-10.0 %", "-10.0 %"),
        (-0.0004, "0.0 %", "+0.0 %"),
    ],
)
def test_shares_are_percentages(share, plain, signed):
    assert (text.percent(share), text.percent(share, signed=True)) == (plain, signed)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0"), (0.5, "0.5"), (1024.0, "1,024"), (2.9499999999, "2.95"), (2.5e7, "2.5e+07")],
)
def test_compact_numbers_have_no_zeros_at_their_end(value, shown):
    assert text.compact_number(value) == shown
    assert text.compact_number(-value) == (f"-{shown}" if value else "-0")


def test_digits_of_shares_and_other_numbers():
    assert text.percent(0.12345, 2) == "12.35 %"
    assert text.percent_range(0.01, 0.025) == "1.0 to 2.5 %"
    assert (text.exact_number(0.5), text.exact_number(86400.0)) == ("0.5", "86400")
    assert (text.integer(1234.6), text.boolean_text(True), text.boolean_text(False)) == (
        *("1,235", "true", "false"),
    )


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (None, "-"),
        (0, "0 B"),
        (999, "999 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (1023.5 * 1024, "1 MiB"),
        (-2048, "-2 KiB"),
        (5 * 1024**4, "5 TiB"),
        (5000 * 1024**4, "5000 TiB"),
    ],
)
def test_bytes_have_a_unit(size, shown):
    assert text.format_bytes(size) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.4, "0 s"),
        (99.4, "99 s"),
        (99.5, "2 min"),
        (5940, "99 min"),
        (5970, "1 h 40 min"),
        (7800, "2 h 10 min"),
    ],
)
def test_durations_have_whole_units(seconds, shown):
    assert text.format_duration(seconds) == shown


def test_intervals_and_p_values():
    assert text.format_interval(1.25, 2500.4) == "1.250 to 2,500"
    assert text.format_interval(0.5, 0.75, text.percent) == "50.0 % to 75.0 %"
    assert [text.p_value(p) for p in (0.01234, 1e-5, 1.0, None)] == ["0.012", "1e-05", "1", "-"]
    assert [text.milliseconds(seconds) for seconds in (0.0125, None)] == ["12.50", "-"]
    assert [text.billions(rate) for rate in (2.5e12, None)] == ["2,500", "-"]


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (1.5 * 2**20, "bytes", "1.500 MiB"),
        (0.759, "top-1", "75.90 %"),
        (0.5, "share of the peak", "50.00 %"),
        (1234.5678, "images/sec", "1,235 images/sec"),
        (None, "bytes", "-"),
    ],
)
def test_values_have_the_unit_in_which_they_are_shown(value, unit, shown):
    assert text.quantity(value, unit) == shown
    number, _, named = shown.partition(" ")
    assert text.quantity(value, unit, with_unit=False) == number
    assert named in ("", text.shown_unit(unit)[0])


def test_things_are_counted():
    assert text.count_text(1, "run", "runs") == "1 run"
    assert text.count_text(["a", "b"], "run", "runs") == "2 runs"
    assert text.selection_text(2, "fastest", 3, "run", "runs") == "the 2 fastest of 3 runs"
    assert text.selection_text(3, "fastest", 3, "run", "runs") == "3 runs"
    assert text.counted_names(["a", "b", "a"]) == "2 x a, b"


def test_texts_are_enumerated():
    assert text.enumeration(["a"]) == "a"
    assert text.enumeration(["a", "b"]) == "a or b"
    assert text.enumeration(iter("abc"), "and") == "a, b and c"


def test_lists_are_shortened():
    assert text.alternatives(["a"]) == "a"
    assert text.alternatives(["a", "b"]) == "a or b"
    assert text.alternatives(list("abcd")) == "a or b or c or d"
    assert text.alternatives(list("abcde")) == "a, b, c or 2 others"
    assert text.alternatives(["x"] * 1051) == "x, x, x or 1,048 others"
    assert text.first_few(list("ab"), 2) == "a; b"
    assert text.first_few(list("abcde"), 2, ", ") == "a, b and 3 more"
    assert text.shortened("x" * 200) == "x" * 200
    assert text.shortened("x" * 201) == "x" * 197 + "..."


@pytest.mark.parametrize(
    ("word", "known", "nearest"),
    [
        ("tensorflw", ["tensorflow", "torch"], "tensorflow"),
        ("tensor", ["tensorflow", "torch"], "tensorflow"),
        ("te", ["tensorflow"], ""),
        ("cpv", ["cpu"], "cpu"),
        ("cxv", ["cpu"], ""),
        ("abcd", ["abxy"], ""),
        ("abcd", ["abcx"], "abcx"),
        ("nhwc", ["NCHW", "NHWC"], "NHWC"),
        ("RESNET5", ["resnet50", "vgg16"], "resnet50"),
    ],
)
def test_the_most_similar_word(word, known, nearest):
    assert text.nearest_word(word, known) == nearest


def test_an_unknown_name_has_a_suggestion_and_the_list():
    assert text.suggestion("modle", ["model"]) == "did you mean model?"
    assert text.suggestion("zzz", ["model"], "--help lists them") == "--help lists them"
    known = ["sgd", "momentum"]
    assert text.unknown_name_reason("ftrl", known) == "must be one of sgd, momentum"
    wanted = "did you mean momentum? takes sgd, momentum"
    assert text.unknown_name_reason("Momentun", known, "takes") == wanted
    assert text.unknown_name_reason("x", ["", "ps"]) == "must be one of '', ps"
    assert text.unknown_name_reason("x", []) == "must be one of none"


def test_unknown_keys_have_a_suggestion_or_the_list_of_few():
    assert text.unknown_key_message("modle", ["model", "data"]).endswith('"model"?')
    assert text.unknown_key_message("x", ["model", "data"]).endswith("model, data")
    many = [f"key{number}" for number in range(21)]
    assert "key1," in text.unknown_key_message("x", many[:20])
    assert "key" not in text.unknown_key_message("x", many).partition('"x"')[2]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("12", 12),
        ("0x1F", 31),
        ("0XfF", 255),
        ("-3", -3),
        ("1_0", None),
        ("١", None),
        ("1.5", None),
    ],
)
def test_integers(written, value):
    if value is None:
        with pytest.raises(ValueError):
            values.parse_integer(written)
    else:
        assert values.parse_integer(written) == value


@pytest.mark.parametrize("written", ["nan", "inf", "1_0", "٣", "x", ""])
def test_what_is_no_number(written):
    assert values.parse_number("1.5e3") == 1500.0
    with pytest.raises(ValueError):
        values.parse_number(written)


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("4096", 4096),
        ("64K", 65536),
        ("2m", 2 * 1024**2),
        ("1G", 1024**3),
        ("3T", 3 * 1024**4),
        ("", None),
        ("1.5K", None),
        ("1KB", None),
        ("1" * 16, None),
    ],
)
def test_sizes(written, size):
    assert values.parse_bytes(written) == size


@pytest.mark.parametrize(
    ("written", "seconds"), [("500ms", 0.5), ("10s", 10.0), (" 2m ", 120.0), ("1.5h", 5400.0)]
)
def test_units_of_durations(written, seconds):
    assert Duration.parse(written) == Duration(seconds)
    assert Duration.parse(written).source == written


@pytest.mark.parametrize("written", ["0s", "10", "s", "-1s", "1 s", "1.2.3s", "1d"])
def test_what_is_no_duration(written):
    with pytest.raises(ValueError):
        Duration.parse(written)


def test_messages_of_libraries():
    aborted = (
        "E0000 00:00:1796122712.8   13582 ring_alg.cc:291] Aborting RingReduce with UNAVAILABLE\n"
        "Additional GRPC error information from remote target /job:worker/replica:0/task:1\n"
        ':UNKNOWN:Error received from peer  {grpc_message:"Socket closed", grpc_status:14}\n'
        "The error could be from a previous operation. Restart your program to reset. [t='']\n"
    )
    option = (
        "W0000 00:00:1796142927.2    7951 session_manager.cc:50] delay_ms expects an i value.\n"
    )
    log = f"a\n\n  b\n{aborted}{option}cnnbench: c\n"
    assert log_lines.library_output_notices(log).splitlines() == [
        *("cnnbench: a", "cnnbench: b", "cnnbench: c")
    ]
    assert log_lines.fatal_message("nothing") == ""
    log = "2026-01-01 00:00:00.000000: F tensorflow/core/x.cc:12] Check failed: a\n"
    assert "Check failed: a" in log_lines.fatal_message(log)


@pytest.mark.parametrize(
    ("shown", "width"),
    [("", 0), ("abc", 3), ("µs → x", 6), ("日本", 4), ("ｌｅ", 4), ("한글 a", 6), ("e\u0301", 1)],
)
def test_wide_characters_take_two_columns_and_combining_ones_none(shown, width):
    assert text.text_width(shown) == width
    assert text.cut_to_width(shown, width) == shown


def test_a_text_is_cut_before_the_character_that_does_not_fit():
    assert [text.cut_to_width("日本x", width) for width in (-1, 0, 1, 2, 3, 4, 5)] == [
        *("", "", "", "日", "日", "日本", "日本x")
    ]
    assert [text.cut_to_width("abc", width) for width in (-1, 2)] == ["", "ab"]
    assert text.cut_to_width("e\u0301e", 1) == "e\u0301"


def test_lines_are_broken_by_their_columns():
    assert text.wrap_words("aa bb cc", 5) == ["aa bb", "cc"]
    assert text.wrap_words("日本 日本 a", 9) == ["日本 日本", "a"]
    assert text.wrap_words("日本 日本 a", 8) == ["日本", "日本 a"]
    assert text.wrap_words("日本語", 4) == ["日本", "語"]


def test_the_first_of_many_lines_and_how_many_there_are():
    assert text.first_lines(["a", "b"], 2) == ("a", "b")
    assert text.first_lines(["a", "b", "c"], 1) == ("a", "and 2 more")
    assert text.first_lines("abc", 2, "{} other") == ("a", "b", "1 other")
    assert text.first_lines([], 2) == ()


def test_only_the_first_letter_is_capitalized():
    assert [text.capitalized(shown) for shown in ("", "a MiB", "émile")] == ["", "A MiB", "Émile"]
