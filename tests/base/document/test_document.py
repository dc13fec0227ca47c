"""Tables and sections, and what a terminal and Markdown show of them.

Tests cnnbench/base/document/__init__.py, cnnbench/base/document/console.py and
cnnbench/base/document/markdown.py.
"""

from __future__ import annotations

import pytest

from cnnbench.base.document import (
    Answer,
    ChartGroup,
    CommandLine,
    Items,
    Paragraph,
    Report,
    Section,
    Table,
    TableCell,
    counted_remarks,
    interval_cell,
    make_table,
    numeric_cell,
    prepend_docstring,
    quantity_cell,
)
from cnnbench.base.document import markdown as markdown_module
from cnnbench.base.document.console import sections_to_lines, sections_to_text
from cnnbench.base.document.html import report_to_html
from cnnbench.base.document.markdown import (
    COMMENT_LIMIT,
    markdown_table,
    replace_marked_table,
    report_to_markdown,
    sections_to_comment,
    table_to_markdown_lines,
)
from cnnbench.base.escapes import markdown_code
from cnnbench.base.text import percent
from cnnbench.errors import UsageError

ROWS = [
    {
        "layer": "conv1",
        "A, ms": numeric_cell(0.0125, scale=1e3),
        "share": numeric_cell(0.5, percent),
    },
    {"layer": "a|b", "A, ms": numeric_cell(None), "share": numeric_cell(0.25, percent)},
]


def test_a_table_loses_empty_columns_and_keeps_sort_keys():
    found = make_table({**row, "error": ""} for row in ROWS)
    assert [title for title, _, _ in found.columns] == ["layer", "A, ms", "share"]
    assert [[cell.text for cell in row] for row in found.rows] == [
        ["conv1", "12.50", "50.0 %"],
        ["a|b", "-", "25.0 %"],
    ]
    assert [row[1].value for row in found.rows] == [12.5, None]
    assert len(make_table(({**row, "error": ""} for row in ROWS), whole=True).columns) == 4
    assert make_table([]) is None
    assert (interval_cell((1.0, 3.0)).value, interval_cell((1.0, 3.0)).text) == (
        2.0,
        "1.000 to 3.000",
    )
    for unknown in (None, (None, 3.0), (1.0, None)):
        assert interval_cell(unknown) == numeric_cell(None)


def test_a_section_may_have_a_title_or_contents_alone():
    def lines(title, *contents):
        return sections_to_lines([Section.of(contents, title=title)])

    assert lines("Title") == ["Title"]
    assert lines("", "words") == ["words"]
    assert lines("", None, ()) == []
    assert sections_to_lines([["a"], ["b"]]) == ["a", "", "b"]


def test_a_docstring_introduces_contents_if_there_are_some():
    @prepend_docstring
    def contents(words):
        """What every
        section begins with.
        """
        yield from words

    assert [*contents([Paragraph("one"), "two"])] == [
        "What every section begins with.",
        Paragraph("one"),
        "two",
    ]
    assert [*contents(["One", "two.", None])] == ["What every section begins with. One two."]
    assert [*contents([None, ()])] == []


def test_a_narrow_terminal_breaks_texts_and_leaves_out_spare_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    words = "one two three four five six seven eight nine ten"
    texts = [Paragraph(words, indent=1, hanging=4), Paragraph(words, whole=True)]
    wide = [{"name": "x" * 30, "a": numeric_cell(1.0), "b": numeric_cell(2.0)}]
    found = sections_to_lines([texts, [make_table(wide, spare=("a",))]])
    assert found[:3] == [" one two three four five six seven eight", "    nine ten", words]
    assert found[-1] == "omitted for lack of width: a"
    assert max(len(line) for line in found if line != words) <= 40


def test_a_terminal_writes_a_row_with_its_sentences_and_notes_below_it():
    said = [TableCell("it waits", kinds="prose"), TableCell("", kinds="prose")]
    rows = [{**row, "why": why} for row, why in zip(ROWS, said, strict=True)]
    noted = make_table(rows, title="Times", notes=("slow", ""), indent=2)
    found = sections_to_text(
        [["first", None], [], ["then", noted], Section.of(["end"], title="Last")]
    )
    assert found.splitlines() == [
        *("first", "", "then", "", "Times"),
        "  layer   A ms   share",
        "  conv1  12.50  50.0 %",
        "      it waits; slow",
        "  a|b        -  25.0 %",
        *("", "Last", "end"),
    ]
    assert sections_to_lines([[make_table({"why": why} for why in said)]])[1] == "it waits"


@pytest.mark.parametrize(("tone", "code"), [("good", "32"), ("bad", "31;1"), ("", "")])
def test_a_colour_repeats_the_tone_of_the_first_cell_that_has_one(tone, code):
    sections = [[make_table([{"verdict": TableCell("slow", tone=tone), "name": "slow"}])]]
    *_, row = sections_to_lines(sections, colour=True)
    assert row == (f"\x1b[{code}mslow\x1b[0m     slow" if code else "slow     slow")
    assert "\x1b" not in sections_to_text(sections)


def test_records_cannot_control_the_terminal_or_the_markdown():
    hostile = [{"na\x1b[31mme": "a|b\x07\n# c", "n": numeric_cell(1.0)}]
    shown = sections_to_text([["x\x1b[31m\ny", make_table(hostile)]])
    assert "\x1b" not in shown
    assert len(shown.splitlines()) == 3
    assert table_to_markdown_lines(make_table(ROWS), markdown_code) == [
        "| layer | A, ms | share |",
        "| --- | --: | --: |",
        "| <code>conv1</code> | 12.50 | 50.0 % |",
        "| <code>a&#124;b</code> | - | 25.0 % |",
    ]
    assert "a&#124;b" in table_to_markdown_lines(make_table(ROWS))[-1]


def test_many_remarks_of_one_kind_are_counted_and_folded():
    texts = [f"remark {number}." for number in range(4)]
    assert [*counted_remarks(texts[:3], "remarks", "unsure")] == [
        Paragraph(text, "unsure") for text in texts[:3]
    ]
    first, table = counted_remarks(texts, "remarks", "unsure")
    assert first.tone == "unsure"
    assert first.text.startswith("4 remarks")
    assert first.text.endswith(texts[0])
    assert (table.title, table.folded) == ("All 4 remarks", True)
    assert [cell.text for (cell,) in table.rows] == texts
    assert [*counted_remarks([], "remarks")] == []


LISTS = [
    Items(texts=("one", "two", "a|b", "four", "five"), about="notes"),
    Items(texts=("how",), title="Method", folded=True),
    Items(texts=()),
    CommandLine("cnnbench ab --a=1", "Next"),
]


def test_a_list_and_a_command_in_each_format(monkeypatch):
    section = Section.of(LISTS, "x", "Lists")
    assert len(section.blocks) == 3
    assert sections_to_lines([section]) == [
        *("Lists", "one", "two", "a|b", "four", "five"),
        *("Method", "how", "Next: cnnbench ab --a=1"),
    ]
    assert sections_to_lines([section.without_commands()])[-1] == "how"
    report = Report(title="t", subtitle="s", sections=(section,))
    markdown = report_to_markdown(report)
    assert "\n- four\n- five\n\n### Method\n\n- how\n\nNext: <code>cnnbench ab" in markdown
    assert "details" not in markdown
    comment = sections_to_comment([section], "title")
    assert comment.startswith("### title\n\n#### Lists\n\n- one\n- two\n- a&#124;b\n\n<details>")
    assert "<details><summary>2 more notes</summary>\n\n- four\n- five\n\n</details>" in comment
    page = report_to_html(report)
    assert "<summary>2 more notes</summary>\n<ul><li>four</li><li>five</li></ul>" in page
    assert "Next: <code" in page


def test_notes_of_rows_are_below_them_or_in_a_folded_list():
    noted = make_table(ROWS, title="Times", notes=("slow", ""))
    section = Section.of([noted], "x")
    assert noted.remarks.texts == ("conv1: slow",)
    assert sections_to_lines([section])[3] == "      slow"
    assert "<details><summary>Why</summary>\n\n- conv1: slow\n" in sections_to_comment(
        [section], "t"
    )
    report = Report(title="t", subtitle="s", sections=(section,))
    assert "<li>conv1: slow</li>" in report_to_html(report)
    assert make_table(ROWS).remarks is None


def test_a_mark_stands_for_a_tone_and_is_a_circle_in_markdown():
    cells = [TableCell("slower", tone="bad", mark="-"), TableCell("same", mark="=")]
    table = make_table({"name": "a", "verdict": cell} for cell in cells)
    assert [line.split()[1:] for line in sections_to_lines([[table]])[1:]] == [
        ["-", "slower"],
        ["=", "same"],
    ]
    assert [line.split(" | ")[1] for line in table_to_markdown_lines(table)[2:]] == [
        "🔴 slower |",
        "⚪ same |",
    ]


def test_a_comment_has_a_limit_and_short_lists_stay_whole():
    short = Items(texts=("a", "b"), title="Short", folded=True)
    long = Items(texts=("|" * 90,) * 2000, title="Long", folded=True, about="lines")
    table = make_table({"name": f"{at}{'x' * 300}", "n": numeric_cell(at)} for at in range(900))
    sections = [Section.of([table, short, long], "x", "Title")]
    text = sections_to_comment(sections, "many")
    assert COMMENT_LIMIT - 1_000 < len(text) <= COMMENT_LIMIT
    assert "- a\n- b\n" in text
    rows = sum(line.startswith("| ") for line in text.splitlines()) - 3
    assert f"| … {900 - rows} more |  |" in text
    lines = text.count("- &#124;")
    assert f"- … and {2000 - lines} more lines\n" in text
    assert 0.4 < len("".join(text.partition("Short")[0])) / len(text) < 0.6
    assert text.count("<details>") == text.count("</details>") == 2


TABLE = "| a | b |\n| --- | ---: |\n| x | 1 |"


def test_rewriting_replaces_what_stands_between_the_markers():
    assert markdown_table(("a", "b"), ("---", "---:"), [("x", "1")]) == TABLE
    before = "before\n<!-- t: begin -->\nold\n<!-- t: end -->\nafter\n"
    expected = f"before\n<!-- t: begin -->\n{TABLE}\n<!-- t: end -->\nafter\n"
    assert replace_marked_table(before, "t", TABLE) == expected
    assert replace_marked_table(expected, "t", TABLE) == expected


def test_a_document_without_markers_is_refused():
    with pytest.raises(UsageError, match="models: end"):
        replace_marked_table("<!-- models: begin -->\n", "models", TABLE)


def test_a_number_follows_its_type_and_an_empty_cell_says_why():
    texts = [numeric_cell(5).text, numeric_cell(5.0).text, numeric_cell(5, scale=0.1).text]
    assert texts == ["5", "5.000", "0.5000"]
    shares, size = quantity_cell(0.5, "share"), quantity_cell(3 * 2.0**20, "bytes")
    assert (shares.text, shares.value, size.text, size.value) == ("50.00", 50.0, "3.000", 3.0)
    assert quantity_cell(None, "bytes").text == "-"
    assert interval_cell((1.0, 2.5), scale=2.0) == numeric_cell(3.0, "2.000 to 5.000")
    cells = numeric_cell(None, why="needs <six>"), interval_cell(None, why="needs <six>")
    assert cells[0] == cells[1]
    table = make_table({"name": cell.text, "n": cell} for cell in (*cells, numeric_cell(1)))
    section = Section(key="k", title="K", blocks=(table,))
    page = report_to_html(Report(title="t", subtitle="s", sections=(section,)))
    assert page.count('title="needs &lt;six&gt;"') == 2


def test_a_table_and_a_section_are_neither_folded_nor_indented_unless_they_say_so():
    table = Table(columns=(("a", "", ""),), rows=((TableCell("x"),),))
    section = Section(blocks=(table, *Section.of([make_table(ROWS)]).blocks))
    assert sections_to_lines([section])[:2] == ["a", "x"]
    assert sections_to_comment([section], "t").startswith(
        "### t\n\n| a |\n| --- |\n| x |\n\n| layer"
    )
    with pytest.raises(ValueError, match="shorter"):
        assert make_table(ROWS, notes=("one",)).remarks


@pytest.mark.parametrize(
    ("charts", "in_a_row"), [(1, 1), (2, 2), (3, 3), (4, 2), (5, 3), (6, 3), (9, 3)]
)
def test_charts_share_a_row(charts, in_a_row):
    group = ChartGroup(("chart",) * charts)
    assert group.charts_per_row == in_a_row
    assert ChartGroup(group.charts, pairs=True).charts_per_row == 2
    sections = (Section.of([group, "text"]), Section.of([["another"]], title="Title"))
    report = Report(title="t", subtitle="s", sections=sections)
    assert report.charts == [*group.charts, "another"]
    assert sections_to_lines(sections) == ["text"]


def test_the_first_paragraph_with_a_tone_remains_visible():
    table = make_table([{"a": TableCell("x", tone="bad")}])
    texts = [Paragraph("plain"), Paragraph("slow", "bad"), Paragraph("fast", "good")]
    assert Section.of([table, *texts]).visible_when_folded == texts[1]
    assert Section.of([table, *texts[:1]]).visible_when_folded is None


def test_a_report_is_written_as_markdown():
    answers = (Answer("How?", "slow*", "bad", ("a", "b")), Answer("Why?", "x"))
    charts = Section(blocks=(ChartGroup(("chart",)),), title="Charts")
    sections = (charts, Section.of(["x" * 601], title="Text", folded=True))
    report = Report(
        title="t", subtitle="s", answers=answers, highlights=(("n", "v"),), sections=sections
    )
    facts = "- 🔴 How?: slow&#42;\n  - a\n  - b\n- Why?: x\n- n: v"
    assert report_to_markdown(report) == f"# t\n\ns.\n\n{facts}\n\n## Text\n\n{'x' * 601}\n"
    assert report_to_markdown(Report(title="t", subtitle="s")) == "# t\n\ns.\n"
    assert repr(report) == "<Report: t, 2 sections>"


@pytest.mark.parametrize(
    ("longest", "block"),
    [
        (200, lambda text: make_table([{"name": text}])),
        (600, Paragraph),
        (600, lambda text: Items(texts=(text,))),
        (2000, lambda text: CommandLine(text, "Then")),
    ],
    ids=["cell", "paragraph", "list", "command"],
)
def test_a_comment_cuts_long_texts(longest, block):
    for length, kept in ((longest, longest), (longest + 1, longest - 1)):
        comment = sections_to_comment([Section.of([block("x" * length)])], "title")
        assert comment.count("x") == kept
        assert comment.count("…") + comment.count("&#8230;") == (kept < length)


def test_parts_of_a_comment_share_its_room(limits):
    lists = [
        Items(texts=("a",) * 3, title="S", folded=True, about="as"),
        Items(texts=("bb",) * 9, title="L", folded=True, about="bs"),
    ]

    def comment(limit):
        limits(markdown_module, COMMENT_LIMIT=limit)
        return sections_to_comment([Section.of(lists, title="Both", folded=True)], "t")

    head = "### t\n\n<details><summary>Both</summary>\n\n<details><summary>S</summary>\n\n"
    more = "<details><summary>L</summary>\n\n"
    end = "\n\n</details>\n\n</details>\n"
    whole = f"{head}- a\n- a\n- a\n\n</details>\n\n{more}{chr(10).join(['- bb'] * 9)}{end}"
    # Each line counts with its end, also the last one.
    fits = len(whole) + 1
    assert comment(fits) == whole
    for missing, kept in ((1, 4), (5, 4), (6, 3), (10, 3), (11, 2), (20, 1)):
        lines = "- bb\n" * kept + f"- … and {9 - kept} more bs"
        assert comment(fits - missing) == whole.replace("- bb\n" * 8 + "- bb", lines)
    # With fewer characters, the share of the short list is too small for its three lines.
    assert "- a\n- a\n- a\n" in comment(165)
    assert "- … and 3 more as\n" in comment(164)


def test_a_terminal_has_titles_and_writes_100_items():
    lines = sections_to_lines([[make_table(ROWS, title="T"), Items(texts=("i",), title="L")]])
    assert lines == [
        *("T", "layer   A ms   share", "conv1  12.50  50.0 %", "a|b        -  25.0 %"),
        *("L", "i"),
    ]
    for count, last in ((99, "x"), (100, "x"), (101, "and 1 more notes")):
        assert sections_to_lines([[Items(texts=("x",) * count, about="notes")]])[-1] == last


def test_texts_hang_like_their_first_line_and_colours_are_in_the_first(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    words = "one two three four five six seven eight nine ten"
    hanging = [Paragraph(words, indent=2), Items(texts=(words,))]
    assert sections_to_lines([[words], hanging]) == [
        *("one two three four five six seven eight", "nine ten", ""),
        *("  one two three four five six seven", "  eight nine ten"),
        *("one two three four five six seven eight", "      nine ten"),
    ]
    wrapped = make_table([{"verdict": TableCell("slow", tone="bad"), "name": words}])
    _, first, *others = sections_to_lines([[wrapped]], colour=True)
    assert first.startswith("\x1b[31;1mslow\x1b[0m     one")
    assert " ".join((first, *others)).split()[1:] == words.split()
