"""Contents of a report, as data and as a page."""

from __future__ import annotations

from html.parser import HTMLParser

from cnnbench.base.document import Table
from cnnbench.judge.report import build, gather
from cnnbench.records.load import Loaded

HOSTILE = (
    "</script></style></title></svg>--><script>alert(1)</script><img src=x onerror=alert(1)>"
    "\"'><b onmouseover='x'>=1+1|`@you` #1 https://x.y [l](javascript:x)\r\n\x1b[31m\x00\u202e"
)
VOID = {"meta", "link", "img", "br", "hr", "input", "base"}


class Page(HTMLParser):
    """Elements with their attributes, text by element, and whether all were closed."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.texts, self._open = [], {}, []
        self.policy = ""
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        assert len(dict(attrs)) == len(attrs)
        self.elements.append((tag, dict(attrs)))
        if dict(attrs).get("http-equiv") == "Content-Security-Policy":
            self.policy = dict(attrs)["content"]
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        where = self._open[-1] if self._open else ""
        self.texts.setdefault(where, []).append(data)

    def count(self, tag):
        return sum(one == tag for one, _ in self.elements)


def report_of(*records, reductions=(), studies=(), base=None):
    """The report on records and other documents, compared with those of a baseline."""
    baseline = None if base is None else Loaded(tuple(base), ())
    return build(gather(Loaded(records, (), tuple(reductions), tuple(studies)), baseline))


def section(report, key):
    return next(one for one in report.sections if one.key == key)


def rows(report, key, table=0):
    """Rows of a table of a section, as {title: text}."""
    tables = [one for one in section(report, key).blocks if isinstance(one, Table)]
    titles = [title for title, _, _ in tables[table].columns]
    return [
        dict(zip(titles, (cell.text for cell in row), strict=True)) for row in tables[table].rows
    ]
