"""scripts/Dockerfile, as far as it can be read without a container engine."""

from __future__ import annotations

import re
from pathlib import Path

from cnnbench.run.runtime.tensorflow import NEWEST_TESTED, OLDEST

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "scripts" / "Dockerfile").read_text(encoding="utf-8")
SETUP = (ROOT / "setup.py").read_text(encoding="utf-8")


def test_the_base_is_of_one_version_that_cnnbench_supports():
    (base,) = re.findall(r"^ARG BASE=(\S+)", TEXT, re.MULTILINE)
    found = re.fullmatch(r"python:3\.(\d+)\.\d+-slim-\w+(@sha256:[0-9a-f]{64})?", base)
    oldest, newest = re.search(r'python_requires=">=3\.(\d+),<3\.(\d+)"', SETUP).groups()
    assert int(oldest) <= int(found.group(1)) < int(newest)
    stages = set(re.findall(r"^FROM \S+ AS (\S+)", TEXT, re.MULTILINE))
    assert set(re.findall(r"^FROM (\S+)", TEXT, re.MULTILINE)) <= stages | {"${BASE}"}


def test_tensorflow_is_one_that_is_tested():
    (version,) = re.findall(r"^ARG TENSORFLOW=2\.(\d+)\.\d+$", TEXT, re.MULTILINE)
    (oldest,) = re.findall(r'"tensorflow>=([\d.]+)"', SETUP)
    assert oldest == ".".join(map(str, OLDEST))
    assert OLDEST <= (2, int(version)) <= NEWEST_TESTED
    assert {"and-cuda"} == set(re.findall(r'"\.\[([\w-]+)\]"', TEXT))
    assert '"and-cuda": [' in SETUP


def test_images_are_not_run_as_root():
    images = [part for part in TEXT.split("\nFROM ")[1:] if "ENTRYPOINT" in part]
    assert len(images) == 2
    for image in images:
        assert re.findall(r"^USER (\S+)", image, re.MULTILINE) == ["10001"]


def test_what_is_copied_is_there_and_reaches_the_builder():
    ignore = ROOT / "scripts" / "Dockerfile.dockerignore"
    sent = {line[1:] for line in ignore.read_text().splitlines() if line.startswith("!")}
    lines = re.findall(r"^COPY (?!--from)(.*) \S+$", TEXT, re.MULTILINE)
    copied = {name for line in lines for name in line.split()}
    assert copied == sent
    assert all((ROOT / name).exists() for name in copied)
