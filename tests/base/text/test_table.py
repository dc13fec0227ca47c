"""Tables of text: the order of names, and tables that fit the terminal.

Tests cnnbench/base/tables.py and cnnbench/base/terminal.py.
"""

from pathlib import Path

import pytest
from golden import golden

from cnnbench.base.tables import align_table, csv_text, fit_table, natural_key
from cnnbench.base.terminal import wrap_text

HEAD = ("layer", "kind", "of step", "moved bytes", "to win ms")
ROWS = (
    HEAD,
    ("conv4_block23/bottleneck_12/conv_2", "convolution 3x3", "12.3 %", "123.4 MiB", "1,234"),
    ("fc", "dense", "1.2 %", "1.2 MiB", "2"),
)


def lines_of(*rows, **layout):
    return [line for lines in fit_table(*rows, **layout) for line in lines]


@pytest.fixture
def columns(monkeypatch):
    return lambda number: monkeypatch.setenv("COLUMNS", str(number))


@pytest.mark.parametrize(
    "ordered",
    [
        ["alexnet", "resnet20", "resnet20_v2", "resnet110"],
        ["9.00", "10.00", "100.00"],
        ["lenet, batch 8, xla", "lenet, batch 16", "lenet, batch 128"],
        ["resnet50_v1", "resnet50_v1.5", "resnet50_v2"],
        ["", "1", "a", "a1", "a1b", "b"],
        ["a/2/x.json", "a/10/x.json"],
    ],
)
def test_numbers_within_names_sort_by_value(ordered):
    shuffled = list(reversed(ordered))
    assert sorted(shuffled, key=natural_key) == ordered


def test_a_table_that_fits_stays_as_it_is(columns):
    columns(120)
    assert lines_of(ROWS, (0, 1), spare=(3,)) == align_table(ROWS, (0, 1))


def test_heads_are_broken_first(columns):
    columns(79)
    assert lines_of(ROWS, (0, 1), spare=(3,)) == [
        "                                                                            to",
        "                                                                  moved    win",
        "layer                               kind             of step      bytes     ms",
        "conv4_block23/bottleneck_12/conv_2  convolution 3x3   12.3 %  123.4 MiB  1,234",
        "fc                                  dense              1.2 %    1.2 MiB      2",
    ]


def test_then_columns_are_left_out_and_named(columns):
    columns(70)
    lines = lines_of(ROWS, (0, 1), spare=(3,))
    assert max(map(len, lines)) <= 70
    assert "bytes" not in lines[0] + lines[1]
    assert lines[-1] == "omitted for lack of width: moved bytes"
    assert any(line.startswith(ROWS[1][0]) for line in lines)


OPERATIONS = [
    ("layer", "kind", "ms", "of the step", "to win, ms"),
    ("logits/affine", "SparseSoftmaxCrossEntropyWithLogits", "1,234.5", "12.3 %", "1,000.5"),
    ("conv4_block23/conv", "convolution 3x3, batch norm and ReLU", "123.4", "1.2 %", "-"),
]


@pytest.mark.parametrize("width", [52, 56, 60, 72, 76, 120])
def test_words_are_not_broken_where_columns_can_be_left_out(columns, width):
    columns(width)
    lines = lines_of(OPERATIONS, (0, 1))
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    for word in ("logits/", "SparseSoftmaxCrossEntropyWithLogits", "convolution", "norm", "ReLU"):
        assert word in text
    missing = [OPERATIONS[0][at] for at in range(5) if OPERATIONS[1][at] not in text]
    assert missing == list(OPERATIONS[0][5 - len(missing) :])
    assert " ".join(text.split()).partition("omitted for lack of width: ")[2] == ", ".join(missing)
    assert (len(missing) == 3, len(missing) == 0) == (width <= 56, width >= 76)


def test_texts_get_the_width_of_columns_that_are_left_out(columns):
    columns(60)
    rows = [("a", "b", "c", "d"), ("x", "some words " * 4, "word" * 6, "word" * 6)]
    assert lines_of(rows, (0, 1, 2, 3)) == [
        "a  b                                c",
        "x  some words some words some       wordwordwordwordwordword",
        "     words some words",
        "omitted for lack of width: d",
    ]


def test_tables_at_many_widths(columns):
    """To the character, in golden/tables.txt."""
    wide = [
        ("name", "日本 語の 名前", "x"),
        ("a/b/c", "日本 語", "1"),
        ("long_name_of_it", "y", "22"),
    ]
    layouts = [
        (ROWS, {"left": (0, 1), "spare": (3, 4)}),
        (OPERATIONS, {"left": (0, 1), "indent": 2}),
        (OPERATIONS, {"left": (0, -1), "spare": (2,), "has_head": False}),
        (wide, {"left": (0, 1)}),
        ([("a", "a much longer head", "another long head"), ("some words", "1", "2")], {}),
    ]
    text = ""
    for width in range(40, 97, 8):
        columns(width)
        for rows, layout in layouts:
            text += "\n".join((f"== {width}", *lines_of(rows, **layout), ""))
    golden(Path(__file__).parent / "golden" / "tables.txt", text)


def test_lines_belong_to_rows(columns):
    columns(60)
    head, first, second = fit_table(ROWS, (0, 1))
    assert [line[:24].rstrip() for line in first] == [
        "conv4_block23/     convo",
        "  bottleneck_12/",
        "  conv_2",
    ]
    assert [line[:2] for line in second] == ["fc"]
    assert head[-1].startswith("layer")


def test_cells_of_csv_files_are_as_in_json():
    row = (True, None, float("nan"), float("-inf"), 1e-07, 3, (1, "a"), "=x")
    assert csv_text("abcdefgh", [row]).splitlines()[1] == "true,,NaN,-Infinity,1e-07,3,1;a,'=x"


def columns_taken(line):
    """Columns that a terminal uses for a line: characters of these tests above U+2E80 take two."""
    return sum(1 + (character > "\u2e80") for character in line)


@pytest.mark.parametrize("width", [100, 45])
def test_columns_are_straight_below_wide_characters(columns, width):
    columns(width)
    rows = [
        ("layer", "kind", "of step"),
        ("モデル/ブロック_一/畳み込み_三", "convolution 3x3", "12.3 %"),
        ("全結合", "dense", "1.2 %"),
        ("fc", "dense", "1.2 %"),
    ]
    lines = lines_of(rows, (0, 1))
    ends = [columns_taken(line) for line in lines if line.endswith(("%", "step"))]
    assert len(ends) == 4
    assert len(set(ends)) == 1
    assert max(map(columns_taken, lines)) <= width
    whole = "".join("".join(lines).split())
    assert all(part in whole for part in ("ブロック_", "畳み込み_", "全結合"))
    words = wrap_text("失敗: " + "モデル " * 20, subsequent_indent="  ")
    assert width - 8 < columns_taken(words[0]) <= width
    assert max(map(columns_taken, words)) <= width
