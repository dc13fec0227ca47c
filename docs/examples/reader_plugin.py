"""A reader of a script's own log, whose lines are "resnet50, batch 64: 812.4 images/sec"."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cnnbench import RunRecord
from cnnbench.records.readers import ResultFile, register_reader

LINE = re.compile(r"(\w+), batch (\d+): ([\d.]+) images/sec$")


@register_reader("speed_log", rb"^\w+, batch \d+: [\d.]+ images/sec$")
def read(file: ResultFile) -> Iterator[RunRecord]:
    """A record for each line."""
    for number, text in file.lines:
        if found := LINE.match(text):
            config = {"model": found[1], "batch_size": int(found[2])}
            values = {"throughput": float(found[3])}
            yield file.run("speed_log", config, part=number, values=values)
        elif text:
            file.skip(number, text)
