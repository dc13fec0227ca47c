"""A comparison as JUnit XML: a test case per configuration and metric."""

from __future__ import annotations

from xml.etree import ElementTree as xml

from cnnbench.base.text import plain
from cnnbench.judge.compare.configuration import label
from cnnbench.judge.compare.judgement import Level, Verdict
from cnnbench.judge.compare.result import ComparedConfiguration, Comparison, MetricResult
from cnnbench.judge.report.renderers import wording

_SUITE = "cnnbench compare"


def render(comparison: Comparison) -> str:
    """The document: regressions are failures, failed runs errors, warnings skipped cases."""
    suites = xml.Element("testsuites", name=_SUITE)
    for metric in comparison.metrics:
        if own := comparison.of(metric):
            suite = xml.SubElement(suites, "testsuite", name=f"{_SUITE}: {metric.name}")
            if comparison.repeated_pairs:
                properties = xml.SubElement(suite, "properties")
                value = str(comparison.repeated_pairs)
                xml.SubElement(properties, "property", name="repeated_pairs", value=value)
            for entry, result in own:
                _add(suite, comparison, entry, result)
    if len(suites):
        xml.SubElement(suites[0], "system-out").text = "\n".join(map(plain, comparison.opening))
    if comparison.skipped:
        suite = xml.SubElement(suites, "testsuite", name=f"{_SUITE}: files")
        for one in comparison.skipped:
            case = _case(suite, "cnnbench.files", one.path)
            xml.SubElement(case, "skipped", message=plain(one.reason))
    for suite in suites:
        counted = {"tests": "", "failures": "/failure", "errors": "/error", "skipped": "/skipped"}
        for name, tag in counted.items():
            suite.set(name, str(len(suite.findall(f"testcase{tag}"))))
    xml.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + xml.tostring(suites, "unicode") + "\n"


def _case(suite: xml.Element, classname: str, name: str) -> xml.Element:
    return xml.SubElement(suite, "testcase", classname=classname, name=plain(name), time="0")


def _add(
    suite: xml.Element, comparison: Comparison, entry: ComparedConfiguration, result: MetricResult
) -> None:
    # The same whatever else is compared, since programs follow cases by their names.
    name = f"{label(entry.configuration)} [{entry.configuration.key}]"
    case = _case(suite, f"cnnbench.{result.metric.name}", name)
    level, failed = comparison.level(entry, result), result.verdict is Verdict.FAILED
    tag = "skipped" if level is Level.WARNING or failed or result.verdict.undecided else ""
    if level is Level.ERROR:
        tag = "error" if failed else "failure"
    if tag:
        xml.SubElement(case, tag, message=plain(wording.explained(result)), type=result.word)
    xml.SubElement(case, "system-out").text = plain(_numbers(comparison, entry, result))


def _numbers(comparison: Comparison, entry: ComparedConfiguration, result: MetricResult) -> str:
    judgement, metric = result.judgement, result.metric
    base, new = map(metric.value_text, (judgement.base_median, judgement.new_median))
    cells = {title: one.text for title, one in wording.row(comparison, entry, result).items()}
    change, interval = (cells[title] for title in wording.titles(comparison))
    return (
        f"base {base}, new {new}, change {change} ({interval}), p {cells['p']}, "
        f"runs {cells['runs']}: {judgement.reason}"
    )
