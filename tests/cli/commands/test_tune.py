"""``cnnbench tune`` from the command line, with processes that only write records."""

from __future__ import annotations

import csv
import functools
import io
import json
import os
import shlex
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cnnbench.campaigns.tune import bench, final, race
from cnnbench.campaigns.tune.final import Weights
from cnnbench.campaigns.tune.search import Round
from cnnbench.campaigns.tune.space import Candidate
from cnnbench.cli import main
from cnnbench.flags import parse_args
from cnnbench.records.outputs import KINDS

pytestmark = pytest.mark.timeout(300)

GIVEN = ("--model=lenet", "--num_gpus=2", "--batch_size=4", "--device=cpu")
SPACE = """\
entries:
  - name: modes
    matrix: {variable_update: [replicated, mirrored_strategy, independent]}
"""


FAST = {"--variable_update=replicated": 1.2}


@pytest.fixture(scope="module")
def search(fake_python: str) -> Callable[..., int]:
    """search(FOLDER, FLAG...): exit code of a search over a few modes, of a folder with a space."""

    def run(folder: Path, *flags: str, weights: Weights | None = None, **say: object) -> int:
        alike = weights or Weights("weights are the same after 3 steps, all bits", True)
        (folder / "space.yaml").write_text(SPACE)
        words = (f"--space={folder / 'space.yaml'}", "--minutes=2", "--seed=5", *flags)
        own = () if any("--results" in w for w in flags) else (f"--results={folder / 'r'}",)
        setting = functools.partial(bench.BenchSetting, python=fake_python)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("cnnbench.cli.commands.tune.BenchSetting", setting)
            patch.setattr(race, "MOST_ROUNDS", 3)
            patch.setattr(final.Final, "weights", lambda self, leader: alike)
            patch.setenv("FAKE", json.dumps({"parent": os.getpid(), **say}))
            return main(["tune", *GIVEN[:2], *words, *own, "--", *GIVEN[2:]])

    return run


@pytest.fixture
def tune(
    search: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Exit code, standard output and error of `search` in a folder of its own."""

    def run(*flags: str, **more: Any) -> tuple[int, str, str]:
        code = search(tmp_path, *flags, **more)
        return code, *capsys.readouterr()

    return run


@pytest.fixture(scope="module")
def finished(search: Callable[..., int], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a search that one mode has won."""
    folder = tmp_path_factory.mktemp("search")
    assert search(folder, by_flag=FAST) == 0
    return folder


@pytest.fixture
def again(
    finished: Path, tmp_path: Path, tune: Callable[..., tuple[int, str, str]]
) -> Callable[..., tuple[int, str, str]]:
    """The same search with other flags, resumed: all of its processes have run."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    return functools.partial(tune, "--resume", by_flag=FAST)


def test_the_candidates_are_listed_with_what_is_dropped(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "space.yaml").write_text(SPACE)
    assert main(["tune", *GIVEN, "--list", f"--space={tmp_path / 'space.yaml'}"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "modes: 3 candidates",
        "  as given",
        "  variable_update=replicated",
        "  variable_update=mirrored_strategy",
        "  dropped: changes what is trained; allow it with --allow=consistency: "
        "variable_update=independent",
    ]


def test_the_winner_comes_first_and_its_flag_file_reads_back(
    again: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    file, plot = tmp_path / "fast.flags", tmp_path / "race.svg"
    outputs = (f"--write_flagfile={file}", f"--plot={plot}")
    code, out, err = again(*outputs)
    assert code == 0, err
    lines = out.splitlines()
    words = shlex.split(lines[0])
    assert words == ["cnnbench", *GIVEN, "--variable_update=replicated"]
    assert lines[1] == ""
    text = " ".join(out.split())
    assert " faster than the flags as given (8 pairs). Weights are the same after 3 steps" in text
    assert "cannot run: changes what is trained" in text
    assert KINDS["table of tune"](out.encode())
    back = parse_args([f"--flagfile={file}"])
    assert back.params == parse_args(words[1:]).params
    assert KINDS["flag file"](file.read_bytes())
    assert KINDS[".svg"](plot.read_bytes())
    assert "mirrored_strategy" in plot.read_text()
    assert "slower beyond doubt: as given (modes 2: 16." in text
    # Ordinary records, which other commands read.
    pairs = [str(tmp_path / "r" / "final" / side) for side in ("a", "b")]
    allowed = "--allow_different=variable_update,all_reduce"
    assert main(["compare", *pairs, "--paired", allowed]) == 0
    assert main(["report", str(tmp_path / "r"), "--format=markdown"]) == 0


def test_formats(
    again: Callable[..., tuple[int, str, str]], tmp_path: Path, holds: Callable[..., None]
) -> None:
    code, out, _ = again("--format=json")
    assert code == 0
    assert KINDS["json of tune"](out.encode())
    holds("tune", found := json.loads(out))
    assert found["command"][1:] == [*GIVEN, "--variable_update=replicated"]
    target = tmp_path / "rows.csv"
    target.write_text("candidate,flags\n")  # which may be replaced
    code, out, _ = again("--format=csv", f"--output={target}")
    assert (code, out) == (0, "")
    rows = list(csv.DictReader(io.StringIO(target.read_text())))
    assert rows[0]["candidate"] == "variable_update=replicated"
    assert {row["candidate"] for row in rows} == {row["candidate"] for row in found["rows"]}


def test_nothing_is_claimed_of_like_candidates(tune: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = tune(scatter=0.004)
    assert code == 0
    assert shlex.split(out.splitlines()[0]) == ["cnnbench", *GIVEN]
    assert "These are the flags as given" in out


def test_a_winner_that_trains_differently_is_a_failure(
    again: Callable[..., tuple[int, str, str]],
) -> None:
    differ = Weights("weights differ after 3 steps: w by 0.5 of its largest value", False)
    code, out, err = again(weights=differ)
    assert code == 4
    assert shlex.split(out.splitlines()[0]) == ["cnnbench", *GIVEN]
    assert "weights differ after 3 steps" in err.splitlines()[-1]


def test_an_interrupt_says_how_to_go_on(
    tune: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    (tmp_path / "once").touch()
    names = [f"0001-{side}" for side in "ab"]
    code, out, err = tune(interrupt=names, once=str(tmp_path / "once"), by_flag=FAST)
    assert (code, out) == (130, "")
    *_, line, last = err.splitlines()
    assert last == "cnnbench: error: interrupted"
    assert line.startswith(
        f"cnnbench: to go on: cnnbench tune --results={tmp_path / 'r'} --resume --model=lenet "
    )
    assert line.endswith("-- --batch_size=4 --device=cpu")


def test_a_search_whose_time_was_up_says_how_to_go_on(
    tune: Callable[..., tuple[int, str, str]], quick_processes: None, tmp_path: Path
) -> None:
    fast = {"--variable_update=replicated": 1.2}
    results = f"--results={tmp_path / 'r'}"
    short = ("--pairing=alternate", "--minutes=0.01")
    _, out, err = tune(*short, results, by_flag=fast, wait=0.3)  # half of its time for one
    assert "not tried for lack of time" in out
    (line,) = (line for line in err.splitlines() if "to go on with more time" in line)
    words = shlex.split(line.partition("time: ")[2])
    assert words[:5] == ["cnnbench", "tune", results, "--minutes=1", "--resume"]
    assert {"--pairing=alternate", "--seed=5", *GIVEN} < set(words)
    assert not any(word in words for word in short[1:])
    code, out, err = tune(*short, "--minutes=2", "--resume", results, by_flag=fast)
    assert code == 0, err
    assert out.splitlines()[0].endswith("--variable_update=replicated")
    assert "to go on" not in err


OF_JOBS = """\
entries:
  - name: packing
    matrix: {variable_update: [null, replicated], gradient_repacking: [null, 8]}
"""


def test_the_winner_of_jobs_is_a_launch(
    tune: Callable[..., tuple[int, str, str]], quick_processes: None, tmp_path: Path
) -> None:
    (tmp_path / "jobs.yaml").write_text(OF_JOBS)
    file = tmp_path / "fast.flags"
    flags = ("--workers=2", f"--space={tmp_path / 'jobs.yaml'}", f"--write_flagfile={file}")
    code, out, err = tune(*flags, by_flag={"--gradient_repacking=8": 1.2})
    assert code == 0, err
    assert "one after the other, since they cannot step in turn: a job of several" in err
    assert "--variable_update=collective_all_reduce is tried first, as if it were given" in err
    line = out.splitlines()[0]
    own = [*GIVEN, "--variable_update=collective_all_reduce", "--gradient_repacking=8"]
    assert shlex.split(line) == ["cnnbench", "launch", "--workers=2", "--", *own]
    assert "works in one process only" in " ".join(out.split())
    assert KINDS["table of tune"](out.encode())
    assert file.read_text().splitlines()[1:] == own
    assert KINDS["flag file"](file.read_bytes())
    for path in (*tmp_path.glob("r/race/*.json"), *tmp_path.glob("r/final/?/*.json")):
        config = json.loads(path.read_text())["config"]
        assert config["worker_hosts"].count("localhost:") == 2, path
    code, _, err = tune("--workers=3", *flags[1:], "--resume")
    assert code == 2
    assert "holds a search that differs in job; name another folder" in err


def test_a_real_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Only the first job is started; its races, pairs and weights are other tests'.
    def speeds(
        self: bench.RaceBench, group: str, number: int, candidates: Sequence[Candidate], _: int
    ) -> Round:
        return Round(speeds={one.key: 100.0 + 20 * at for at, one in enumerate(candidates)})

    proof = final.Proof(verdict="faster", gain=0.2, pairs=8)
    monkeypatch.setattr(bench.RaceBench, "measure", speeds)
    monkeypatch.setattr(bench.RaceBench, "affordable", lambda *_: 20)
    monkeypatch.setattr(final.Final, "prove", lambda self, leader: proof)
    alike = Weights("weights are the same", True)
    monkeypatch.setattr(final.Final, "weights", lambda self, leader: alike)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs.yaml").write_text(OF_JOBS)
    flags = ["--model=trivial", "--data_name=cifar10", "--device=cpu", "--batch_size=2"]
    flags += ["--num_batches=2", "--num_warmup_batches=1", "--quiet_conditions=all"]
    code = main(["tune", "--workers=2", "--space=jobs.yaml", "--results=r", *flags])
    out, err = capsys.readouterr()
    assert code == 0, err
    words = shlex.split(out.splitlines()[0])
    assert words[:4] == ["cnnbench", "launch", "--workers=2", "--"]
    assert words[-1] == "--gradient_repacking=8"
    (path,) = (tmp_path / "r" / "race").glob("first-*.json")
    assert json.loads(path.read_text())["batch"]["global"] == 4
