"""Writes the verdicts of a comparison as JUnit XML, with a test case for each configuration and
metric.
"""

from __future__ import annotations

from xml.etree import ElementTree as xml

from cnnbench.base.escapes import to_plain_line
from cnnbench.judge.compare import ComparedConfiguration, Comparison, MetricResult, Verdict
from cnnbench.judge.compare.configuration import configuration_name
from cnnbench.judge.compare.verdicts import AnnotationLevel
from cnnbench.judge.report.comparison import (
    change_column_titles,
    exit_code_meaning,
    result_cells,
    summary_lines,
    verdict_with_reason,
)

_SUITE = "cnnbench compare"


def junit_xml(comparison: Comparison) -> str:
    """Returns a comparison as JUnit XML. Regressions are failures, failed runs are errors, and
    warnings are skipped test cases.
    """
    suites = xml.Element("testsuites", name=_SUITE)
    for metric in comparison.metrics:
        if own := comparison.results_of_metric(metric):
            suite = xml.SubElement(suites, "testsuite", name=f"{_SUITE}: {metric.name}")
            if comparison.repeated_pairs:
                properties = xml.SubElement(suite, "properties")
                value = str(comparison.repeated_pairs)
                xml.SubElement(properties, "property", name="repeated_pairs", value=value)
            for entry, result in own:
                _add_result(suite, comparison, entry, result)
    if comparison.same_code is not None:
        suite = xml.SubElement(suites, "testsuite", name=f"{_SUITE}: code")
        _add_test_case(suite, "cnnbench.code", exit_code_meaning(comparison))
    if len(suites):
        lines = map(to_plain_line, summary_lines(comparison))
        xml.SubElement(suites[0], "system-out").text = "\n".join(lines)
    if comparison.skipped:
        suite = xml.SubElement(suites, "testsuite", name=f"{_SUITE}: files")
        for file in comparison.skipped:
            case = _add_test_case(suite, "cnnbench.files", file.path)
            xml.SubElement(case, "skipped", message=to_plain_line(file.reason))
    for suite in suites:
        counted = {"tests": "", "failures": "/failure", "errors": "/error", "skipped": "/skipped"}
        for name, tag in counted.items():
            suite.set(name, str(len(suite.findall(f"testcase{tag}"))))
    xml.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + xml.tostring(suites, "unicode") + "\n"


def _add_test_case(suite: xml.Element, classname: str, name: str) -> xml.Element:
    return xml.SubElement(
        suite, "testcase", classname=classname, name=to_plain_line(name), time="0"
    )


def _add_result(
    suite: xml.Element, comparison: Comparison, entry: ComparedConfiguration, result: MetricResult
) -> None:
    # Programs recognise a test case by its name, so the name must not change if other
    # configurations are added.
    name = f"{configuration_name(entry.configuration)} [{entry.configuration.key}]"
    case = _add_test_case(suite, f"cnnbench.{result.metric.name}", name)
    level, failed = comparison.annotation_level(entry, result), result.verdict is Verdict.FAILED
    tag = ""
    if level is AnnotationLevel.ERROR:
        tag = "error" if failed else "failure"
    elif level is AnnotationLevel.WARNING or failed or result.verdict.is_undecided:
        tag = "skipped"
    if tag:
        message = to_plain_line(verdict_with_reason(result))
        xml.SubElement(case, tag, message=message, type=result.word)
    numbers = _numbers_text(comparison, entry, result)
    xml.SubElement(case, "system-out").text = to_plain_line(numbers)


def _numbers_text(
    comparison: Comparison, entry: ComparedConfiguration, result: MetricResult
) -> str:
    judgement, metric = result.judgement, result.metric
    base, new = map(metric.value_text, (judgement.base_median, judgement.new_median))
    cells = {title: cell.text for title, cell in result_cells(comparison, entry, result).items()}
    titles = change_column_titles(comparison)
    change, interval = (cells[title] for title in titles)
    note = judgement.reason if judgement.note is None else judgement.note
    return (
        f"medians: base {base}, new {new}; {titles[0]} {change} ({interval}), p {cells['p']}, "
        f"runs {cells['runs']}{f': {note}' if note else ''}"
    )
