"""What a search varies by itself, and no other test compares, trains the same.

docs/tune.md lists all settings of searches with their tests.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from forked import finished
from short_runs import NETWORKS

from cnnbench.campaigns.tune import environment
from cnnbench.campaigns.tune.space import SearchSpace, search_groups
from cnnbench.flags.parse import parse_args

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "tune.md").read_text(encoding="utf-8")

RUN = (
    *("-m", "cnnbench", f"--plugin={NETWORKS}", "--model=normal", "--device=cpu", "--num_gpus=2"),
    *("--batch_size=2", "--num_batches=5", "--num_warmup_batches=0", "--peak_flops=0"),
)
ALLOCATORS = [item for setting in environment.dimensions({})[1] for item in setting.items()]


def losses(folder: Path, *flags: str, **variables: str) -> list[float]:
    """The losses of a run in a process of its own."""
    folder.mkdir()
    words = [sys.executable, *RUN, *flags, f"--result_json={folder / 'record.json'}"]
    finished(words, environment=variables)
    found: list[float] = json.loads((folder / "record.json").read_text())["losses"]
    return found


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses without any setting."""
    found = losses(tmp_path_factory.mktemp("usual") / "run")
    assert len(set(found)) == 5
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        ("--xla_compile",),
        ("--xla",),
        ("--num_intra_threads=1", "--num_inter_threads=1"),
    ],
)
def test_kernels_and_threads_train_the_same(
    usual: list[float], tmp_path: Path, flags: tuple[str, ...]
) -> None:
    assert losses(tmp_path / "run", *flags) == pytest.approx(usual, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "value"), ALLOCATORS, ids=lambda text: text[:30])
def test_memory_trains_the_same(usual: list[float], tmp_path: Path, name: str, value: str) -> None:
    if reason := environment.why_unusable(name, value):
        pytest.skip(reason)
    assert losses(tmp_path / "run", **{name: value}) == pytest.approx(usual, rel=1e-5)


@pytest.mark.parametrize("on_gpu", [False, True])
def test_the_page_names_a_test_for_each_setting(on_gpu: bool, tmp_path: Path) -> None:
    table = PAGE.partition("| setting | what may change | test |")[2]
    lines = table.partition("\n\n")[0].splitlines()[2:]
    settings = {name for line in lines for name in re.findall(r"`-*(\w+)`", line.split("|")[1])}
    for line in lines:
        assert re.search(r"`tests/[\w/]+\.py`", line), line
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        (tmp_path / f"{name}.bin").write_bytes(bytes(1 + 3 * 32 * 32))
    words = ["--model=trivial", f"--data_dir={tmp_path}", "--num_gpus=2"]
    space = SearchSpace(args=parse_args([*words, *([] if on_gpu else ["--device=cpu"])]))
    groups = search_groups(space, space.make_candidate({}), on_gpu=on_gpu, cpus=4).values()
    assert {name for choices in groups for choice in choices for name in choice} <= settings
