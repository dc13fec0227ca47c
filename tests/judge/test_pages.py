"""Pages in a browser: nothing is cut off, faint, out of reach or without a name."""

from __future__ import annotations

import dataclasses
import itertools
import os
from pathlib import Path

import browser as chromium
import pytest
from pages import HOSTILE
from step_profiles import CONV, Profiles, changed
from studies import ROWS, roofline, step_profile, tuning

from cnnbench.judge.compare import Criteria, compare_records
from cnnbench.judge.explain import explain
from cnnbench.judge.history import METRICS, blocks, trend
from cnnbench.judge.history.page import HistoryDocument
from cnnbench.judge.report import build, gather
from cnnbench.records.load import Loaded

pytestmark = pytest.mark.slow

LOOKED_FOR = (Path(chromium.__file__).parent / "looked_for.js").read_text()
# What Jenkins sends with files of a build, unless its administrator changes that.
JENKINS = "sandbox; default-src 'none'; img-src 'self'; style-src 'self'"
NAMES = ("report", "history", "explain", "pairs", "studies", "hostile")
WITH_ALL_CONTROLS = ("history", "explain", "studies")
"""Pages that have every kind of control and of chart between them."""
ERRORS = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
NAMED = ("button", "group", "heading", "image", "link", "navigation", "slider", "table")


@pytest.fixture(scope="module")
def browser():
    path = chromium.program()
    if path is None:
        missing = f"none of {', '.join(chromium.NAMES)}; Debian's package is chromium"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(missing)
    started = chromium.Browser(path)
    yield started
    started.close()


def history(commits, series_of):
    """A page with a step for the worse and an outlier."""
    found = commits.history([100.0] * 8 + [90.0] * 6 + [70.0] + [90.0] * 6)
    speed = METRICS["throughput"]
    return blocks.build_page(
        HistoryDocument(speed, [trend(one, speed) for one in series_of(found)])
    )


def explanation(lenet):
    """A page on six processes of each side, in one of which a layer has twice the work."""
    twice = changed(lambda part: part[:2] == ("conv1", CONV), 2.0, flops=2 * 10**9)
    base, new = (Profiles(lenet).side(rows, 6) for rows in (None, twice))
    sides = [Loaded(tuple(one.record for one in side), ()) for side in (base, new)]
    comparison = gather(sides[1], sides[0]).comparison
    explained = dataclasses.replace(comparison, explanation=explain(base, new))
    return build(gather(sides[1], comparison=explained))


def experiment(lenet):
    """A page on pairs of which B is slower, with the command that repeats them."""
    speeds = [100.0 + number % 5 / 2 for number in range(12)]
    base, new = (lenet.of(*(factor * speed for speed in speeds)) for factor in (1.0, 0.9))
    comparison = compare_records(base, new, Criteria(paired=True))
    repeat = "cnnbench ab --b=--optimizer=adam --pairs=12 -- --model=lenet --device=cpu"
    return build(
        gather(Loaded((*base, *new), ()), comparison=dataclasses.replace(comparison, repeat=repeat))
    )


def with_studies(*studies):
    return build(gather(Loaded((), (), (), studies)))


def named_layers(record):
    """A roofline whose layers have long names."""
    rows = [dataclasses.replace(row, layer=f"stage3_block12_{row.layer}") for row in ROWS]
    return roofline(record, rows=tuple(rows))


@pytest.fixture(scope="module")
def written(request, made_page):
    """written(NAME): the file of a page, made when it is asked for first."""
    given = request.getfixturevalue
    full_runs = given("make_full_runs")()
    reports = {
        "report": lambda: given("report"),
        "history": lambda: history(given("make_by_commit")(), given("series_of")),
        "explain": lambda: explanation(given("lenet_runs")()),
        "pairs": lambda: experiment(given("lenet_runs")()),
        "studies": lambda: with_studies(
            *(tuning(), named_layers(full_runs(118)), step_profile(full_runs))
        ),
        "hostile": lambda: build(given("hostile"), HOSTILE),
    }
    return lambda name: made_page(name, reports[name])


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    server = chromium.Served(JENKINS)
    yield server
    server.close()


@pytest.fixture(params=NAMES)
def opened(request, browser, written):
    """The browser with a page, all of whose folded parts are open."""
    browser.open(written(request.param).as_uri())
    browser.evaluate(LOOKED_FOR)
    browser.evaluate("lookedFor.open()")
    return browser


def test_a_page_loads_only_itself_and_reports_no_error(opened):
    assert opened.happened(*ERRORS) == []
    assert len(opened.happened("Network.requestWillBeSent")) == 1


def test_nothing_is_cut_off_and_all_can_be_read(opened):
    for width in (390, 1400):
        opened.show(width, "light")
        found = opened.evaluate("[lookedFor.cutOff(), lookedFor.chartsNotOnce()]")
        assert found == [[], []], width
    for width, scheme in ((390, "dark"), (1400, "light")):
        opened.show(width, scheme)
        found = opened.evaluate("[lookedFor.faintText(), lookedFor.faintLines()]")
        assert found == [[], []], (width, scheme)
    opened.show(965, "dark", "print")  # letter paper, landscape, without margins
    assert opened.evaluate("[lookedFor.cutOff(), lookedFor.faintText()]") == [[], []]


@pytest.mark.parametrize("opened", WITH_ALL_CONTROLS, indirect=True)
def test_the_keyboard_reaches_every_control_and_shows_where_it_is(opened):
    opened.evaluate("window.controls = lookedFor.controls(); document.activeElement.blur()")
    left = set(range(opened.evaluate("controls.length")))
    for _ in range(2 * len(left) + 4):
        opened.press("Tab")
        place = opened.evaluate("controls.indexOf(document.activeElement)")
        if place in left:
            left.remove(place)
            assert opened.evaluate("lookedFor.showsItsFocus(document.activeElement)"), place
        if not left:
            break
    assert left == set()


def test_screen_readers_are_told_names_and_roles(opened):
    nodes = opened.accessible()
    # The name of an unfolding part is that of its summary.
    parts = opened.evaluate("document.querySelectorAll('details').length")
    nameless = [role for role, name, _ in nodes if role in NAMED and not name.strip()]
    assert nameless == ["group"] * parts
    focusable = [one for one in nodes if one[2].get("focusable") and one[0] != "RootWebArea"]
    assert [one for one in focusable if not one[1].strip() or one[0] == "generic"] == []
    roles = [role for role, _, _ in nodes]
    assert [roles.count(one) for one in ("banner", "main", "contentinfo")] == [1, 1, 1]
    levels = [about["level"] for role, _, about in nodes if role == "heading"]
    assert levels[0] == levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


@pytest.mark.parametrize("name", WITH_ALL_CONTROLS)
def test_without_styles_and_scripts_each_chart_is_there_once(browser, served, written, name):
    browser.open(served.url(written(name)))
    assert len(browser.happened("Network.requestWillBeSent")) == 1
    assert browser.evaluate("document.querySelectorAll('button, .tip').length") == 0
    browser.evaluate(LOOKED_FOR)
    browser.evaluate("lookedFor.open()")
    browser.show(1400, "light")
    assert browser.evaluate("[lookedFor.chartsNotOnce(), lookedFor.cutOff()]") == [[], []]
    for scheme in ("light", "dark"):
        browser.show(1400, scheme)
        found = browser.evaluate("[lookedFor.faintText(), lookedFor.faintLines()]")
        assert found == [[], []], scheme


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_the_first_screen_is_the_verdict_with_its_chart_and_command(
    browser, written, width, height
):
    browser.open(written("pairs").as_uri())
    browser.show(width, "light")
    parts = ("h2", "p", "figure", "ul", ".command")
    ends = [
        browser.evaluate(f"document.querySelector('.wide > {part}, .wide {part}').{edge}")
        for part in parts
        for edge in ("getBoundingClientRect().top", "getBoundingClientRect().bottom")
    ]
    assert ends == sorted(ends)
    assert ends[-1] <= height
    first = browser.evaluate("document.querySelector('nav').getBoundingClientRect().top")
    assert ends[-1] < first
    shown = ".broad" if width > 900 else ".narrow"
    assert browser.evaluate(f"document.querySelectorAll('.wide {shown} use').length") == 12


def focus(browser, selector):
    assert browser.evaluate(f"document.querySelector({selector!r}).focus() ?? true")


def test_keys_move_through_points_sort_tables_and_zoom(browser, written):
    browser.open(written("history").as_uri())
    focus(browser, ".broad .marks .point")
    first = browser.evaluate("document.querySelector('.tip').textContent")
    browser.press("ArrowRight")
    second, label = browser.evaluate(
        "[document.querySelector('.tip').textContent, document.activeElement.ariaLabel]"
    )
    assert "c000" in first
    assert "c001" in second
    assert second == label
    browser.press("Escape")
    assert browser.evaluate("document.querySelector('.tip').hidden")
    focus(browser, ".zoom input")
    browser.press("ArrowRight")
    assert browser.evaluate("document.querySelector('.zoom output').textContent").endswith(
        ", 20 points"
    )
    focus(browser, "summary")
    browser.press("Enter")
    focus(browser, "#points th:nth-child(3) button")
    speeds = (
        "Array.from(document.querySelectorAll('#points td:nth-child(3)'), e => e.dataset.value)"
    )
    browser.press("Enter")
    assert browser.evaluate(speeds) == sorted(browser.evaluate(speeds), key=float)
    browser.press("Enter")
    assert browser.evaluate(speeds) == sorted(browser.evaluate(speeds), key=float)[::-1]
    assert browser.happened(*ERRORS) == []


def test_paper_has_what_is_folded(browser, written):
    browser.open(written("history").as_uri())
    assert browser.evaluate("document.querySelector('details').open") is False
    assert browser("Page.printToPDF", preferCSSPageSize=True)["data"]
    assert browser.evaluate("document.querySelector('details').open") is True


def test_headings_of_printed_tables_are_text_which_the_browser_repeats(browser, written):
    """Chromium repeats neither buttons nor what is positioned."""
    browser.open(written("history").as_uri())
    browser.show(965, media="print")
    kinds = """Array.from(document.querySelectorAll('thead th'), head => [
        getComputedStyle(head).position,
        getComputedStyle(head.querySelector('button') ?? head).display,
    ].join(' '))"""
    assert {*browser.evaluate(kinds)} <= {"static contents", "static table-cell"}


def test_the_heading_of_a_long_table_stays_in_sight(browser, written):
    browser.open(written("history").as_uri())
    places = browser.evaluate(
        """(function () {
          const section = document.querySelector("#points");
          section.open = true;
          const box = section.querySelector(".scroll"), table = box.querySelector("table");
          box.style.maxHeight = "200px";
          box.scrollTop = 150;
          return [table, table.tHead.rows[0].cells[0]].map(function (one) {
            return one.getBoundingClientRect().top - box.getBoundingClientRect().top;
          });
        })()"""
    )
    assert places == [pytest.approx(-149, abs=2), pytest.approx(1, abs=2)]


@pytest.mark.parametrize(
    ("words", "commits", "told"),
    [
        ("C01", range(10, 20), "10 of 21 rows"),
        ("outlier  c014", [14], "1 of 21 rows"),
        ("<script>", [], "0 of 21 rows"),
        (" ", range(21), ""),
    ],
)
def test_a_filter_leaves_the_rows_that_contain_all_words(browser, written, words, commits, told):
    browser.open(written("history").as_uri())
    shown, number = browser.evaluate(
        f"""(function () {{
          const section = document.querySelector("#points");
          section.open = true;
          const input = section.querySelector("input[type=search]");
          input.value = {words!r};
          input.dispatchEvent(new Event("input"));
          const rows = Array.from(section.querySelectorAll("tbody tr"));
          return [
            rows.filter(row => row.offsetHeight).map(row => row.cells[0].textContent),
            section.querySelector("output").textContent,
          ];
        }})()"""
    )
    assert sorted(shown) == [f"c{number:03}" for number in commits]
    assert number == told
