"""Every number of an output is a value of the document, of experiments of every command.

A document is what ``--format=json`` writes. The numbers of results remember where they come from
(helpers/agreement.py), so that each digit of an output leads to a path of the document, or is in a
text of it (a name, a commit, a flag), or in the closed list below.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import dataclasses
import functools
import io
import json
import math
import random
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from agreement import Document, Page, chart_text, encoded, faults, page_text, tracked, without_marks
from forked import finished
from step_profiles import CONV, Profiles, changed

from cnnbench.base.charts import draw as chart_writer
from cnnbench.base.document import Report, Section
from cnnbench.base.document.console import sections_to_text
from cnnbench.base.document.formats import render_report
from cnnbench.base.document.markdown import report_to_markdown, sections_to_comment
from cnnbench.base.tables import dataclasses_to_csv
from cnnbench.campaigns.ab import asking, opening
from cnnbench.campaigns.bisect import history as git_history
from cnnbench.campaigns.bisect import search
from cnnbench.campaigns.bisect.texts import bisection_text
from cnnbench.campaigns.launch import resolve_run
from cnnbench.campaigns.processes import campaign, identity
from cnnbench.campaigns.processes.child import ProcessResult
from cnnbench.campaigns.processes.outcome import BenchmarkCommand
from cnnbench.campaigns.strategies import session as modes
from cnnbench.campaigns.strategies import weights as compared_weights
from cnnbench.campaigns.strategies.weights import WeightDistance
from cnnbench.campaigns.tune import race
from cnnbench.campaigns.tune import search as tuned
from cnnbench.campaigns.tune import texts as text
from cnnbench.cli import main
from cnnbench.cli.commands import ab_flags, ab_session, bisect, sides, strategies, tune
from cnnbench.flags import parse_args
from cnnbench.judge.compare import Comparison, Criteria, compare_records
from cnnbench.judge.compare.comparability import differing_values_text
from cnnbench.judge.explain import explain
from cnnbench.judge.explain.blocks import differences_chart, explanation_sections
from cnnbench.judge.history import HistoryEntry, all_series
from cnnbench.judge.history import blocks as history_blocks
from cnnbench.judge.history import page as history_page
from cnnbench.judge.history import phrases as history_texts
from cnnbench.judge.history.steps import trend
from cnnbench.judge.metrics.judged import THROUGHPUT
from cnnbench.judge.report.comparison import mentioned_differences
from cnnbench.judge.report.renderers import render
from cnnbench.judge.report.sections import strategies as modes_report
from cnnbench.judge.report.sections import tune as search_report
from cnnbench.machine import facts
from cnnbench.machine import repository as git_repository
from cnnbench.records import codec
from cnnbench.records.campaigns import StrategyRow
from cnnbench.records.explanation import Explanation
from cnnbench.records.profiles import GAPS, INPUT_WAIT
from cnnbench.records.run import ConditionNote, Conditions, Measured, RunRecord, StartupSeconds
from cnnbench.records.subject import Subject
from cnnbench.version import __version__

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

EXPERIMENTS = 7
FEW = {"bisect": 4, "gate": 4}
"""The number where they take long; the gate also has those of ab, the same command."""

COMMITS = 4
"""Commits of a bisection."""

MUTATIONS = 96

NO_RESULTS = (
    "95 % interval",  # a level
    "(95 %: ",
    "95 %: between",
    f"page of version {__version__}",
    "the 6 pairs that a verdict needs",
    "--rounds=6 can",
    "--rounds=3 does",
    "--num_intra_threads=1",
    "the 10 largest of",  # of --rows
    "(from 6 processes on)",
    "steps are looked for from 6 on",
    *(f"process {place}: " for place in range(1, 7)),  # of a dot of a chart
    "ended with exit code 4; last log line: no good",  # words of a process
)
"""The closed list: words with digits that are no results and are in no text of the document."""

_KNOWN = re.compile("|".join(map(re.escape, NO_RESULTS)))

PROSE = ("answer", "advice", "reason", "weights", "incomplete")
"""Keys of documents whose texts are sentences about its numbers, which are said there, too."""


@dataclass(frozen=True)
class Experiment:
    """What a command says of an experiment: its document, outputs, and outputs without marks."""

    document: Document
    pages: tuple[Page, ...]
    without_marks: Callable[[], dict[str, str]]

    @classmethod
    def of(
        cls,
        result: Any,
        document: Any,
        outputs: Mapping[str, Callable[[Any], str]],
        phrases: Sequence[str] = (),
    ) -> Experiment:
        """The experiment of a result; `outputs` write it."""
        pages = tuple(Page.of(name, write(result)) for name, write in outputs.items())
        plain = without_marks(result)
        return cls(
            Document(encoded(document), PROSE, phrases),
            pages,
            lambda: {name: write(plain) for name, write in outputs.items()},
        )

    @functools.cached_property
    def faults(self) -> list[str]:
        """What the outputs, and the sentences of the document, say beside the document."""
        pages = (*self.document.sentences, *self.pages)
        return [f"{one.name}: {fault}" for one in pages for fault in self.faults_of(one)]

    def has_faults(self) -> bool:
        """Whether there are any."""
        return any(map(self.faults_of, (*self.pages, *self.document.sentences)))

    def faults_of(self, page: Page) -> list[str]:
        """The same of one output."""
        return faults(page, self.document, _KNOWN)


Make = Callable[[Mapping[str, str], str, str], RunRecord | None]
"""Makes the record of a process from its flags, its folder and its name; None if it fails."""


class MadeUpMachine:
    """What processes on it leave, and what is not looked up again for each experiment."""

    def __init__(self, make: Make, seed: int) -> None:
        self._make = make
        self._draw = random.Random(seed)

    def execute(self, command: BenchmarkCommand, timeout: float) -> ProcessResult:
        """In place of a process: writes its record, or nothing."""
        words = [word for word in command.words if word.startswith("--")]
        values = dict(word[2:].partition("=")[::2] for word in words)
        name = command.log.stem
        command.log.parent.mkdir(parents=True, exist_ok=True)
        command.log.write_text("about to measure\n")
        if "train_dir" in values:
            Path(values["train_dir"]).mkdir(parents=True, exist_ok=True)
        record = self._make(values, str(command.folder or ""), name)
        if record is None:
            command.log.write_text("no good\n")
            return ProcessResult(4, 1.0)
        config = {**command.blank.config, **record.config}
        record = dataclasses.replace(
            record, config=config, explicit_flags=command.blank.explicit_flags
        )
        Path(values["result_json"]).write_text(record.to_json())
        return ProcessResult(0, self._draw.uniform(1.0, 3.0), max_rss_bytes=2**30)


_MACHINE = {"hostname": "box", "cpu_model": "Fast CPU", "logical_cpus": 8, "usable_cpus": 8}
_MACHINE |= {"tensorflow_version": "2.21.0", "memory_bytes": 2**34}


def _answer(side: Any, code: str, *arguments: str, use_own_cnnbench: bool, timeout: float) -> Any:
    """In place of a process that resolves the flags of a side."""
    resolved = resolve_run(parse_args(arguments[1:]))
    text = json.dumps({"error": None, "resolved": codec.encode(resolved)})
    return SimpleNamespace(returncode=0, stdout=text.encode())


@contextlib.contextmanager
def on(machine: MadeUpMachine, folder: Path) -> Iterator[pytest.MonkeyPatch]:
    """Campaigns run on the machine meanwhile, in a folder."""

    @contextlib.contextmanager
    def worktree(commit: str, repository: Any = ".") -> Iterator[Path]:
        place = folder / "worktrees" / commit
        place.mkdir(parents=True, exist_ok=True)
        yield place

    def subject(place: Any) -> Subject:
        return Subject(repository="nets", revision=Path(place or ".").name, dirty=False)

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(campaign, "execute", machine.execute)
        patch.setattr(asking, "run_code", _answer)
        patch.setattr(identity, "source_digest", lambda *_: "0" * 32)
        patch.setattr(facts, "collect", lambda: dict(_MACHINE))
        for owner in (search, opening):
            patch.setattr(owner, "worktree", worktree)
        patch.setattr(sides, "resolve_commit", lambda flag, text: text)
        patch.setattr(git_repository, "read_repository_state", subject)
        patch.setattr(git_repository, "measured_code", lambda *_: Subject(revision="a" * 40))
        yield patch


def run(*words: str) -> None:
    """A command line in this process that comes to a result."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([*words])
    assert code in (0, 1, 3, 4, 130), err.getvalue()
    assert "Traceback" not in err.getvalue(), err.getvalue()


def strategies_of(seed: int, folder: Path, make: Any) -> Experiment:
    """Modes with speeds, memory, failures and distances of weights of their own."""
    draw = random.Random(seed)
    speeds: dict[Any, float] = collections.defaultdict(lambda: draw.uniform(50, 200))
    scatter, failing = draw.choice([0.003, 0.03]), draw.choice(["", "replicated", "independent"])

    def record(flags: Mapping[str, str], place: str, name: str) -> Any:
        mode, devices = flags["variable_update"], int(flags["num_gpus"])
        if mode == failing and draw.random() < 0.4:
            return None
        found = make(
            speeds[mode, devices] * (1 + draw.gauss(0, scatter)),
            devices=devices,
            measured=Measured(peak_memory_bytes=draw.randint(10**8, 10**10)),
            startup_seconds=StartupSeconds(
                import_=1.0, build=draw.uniform(1, 3), first_step=draw.uniform(0.2, 1)
            ),
        )
        numbers = ("variables", "variable_copies", "reduction_operations")
        placement = dataclasses.replace(
            found.placement, **{name: draw.randint(4, 3000) for name in numbers}
        )
        return dataclasses.replace(found, placement=placement)

    printed: list[Any] = []
    with on(MadeUpMachine(record, seed), folder) as patch, tracked():
        patch.setattr(compared_weights, "compare_and_remove", lambda _, of: weights(draw, of))
        patch.setattr(strategies, "_write_results", lambda *found: printed.append(found))
        if draw.random() < 0.2:
            patch.setattr(compared_weights, "compare_and_remove", interrupted)
        run(
            *("strategies", "--model=trivial", "--data_name=cifar10", "--device=cpu"),
            *("--num_gpus=2", "--batch_size=2", "--modes=parameter_server,replicated,independent"),
            *(f"--rounds={draw.choice([2, 3, 6])}", f"--seed={seed}", "--results=results"),
        )
        (document, cases, _) = printed[0]
        outputs = {
            "table": lambda one: modes.table_text(one, cases),
            "csv": lambda one: dataclasses_to_csv(StrategyRow, one.rows),
            **pages_of(modes_report.modes_section, modes_report.fastest_mode_answers),
        }
        return Experiment.of(document, document, outputs)


def weights(draw: random.Random, checkpoints: Any) -> dict[str, WeightDistance]:
    """Distances of weights from those of the first checkpoint."""
    size = draw.choice([0.0, 1e-6, 1e-6, 1e-3])
    first, *others = checkpoints
    found = {name: WeightDistance(size * draw.random(), "conv0/w") for name in others}
    return {first: WeightDistance(0.0, ""), **found}


def interrupted(*_: Any) -> Any:
    raise KeyboardInterrupt


SPACE = """\
entries:
  - name: modes
    matrix: {variable_update: [replicated, mirrored_strategy, independent]}
"""


def tune_of(seed: int, folder: Path, make: Any) -> Experiment:
    """A search among modes with speeds of their own, some of which fail."""
    draw = random.Random(seed)
    factors: dict[str, float] = collections.defaultdict(
        lambda: draw.choice([0.7, 0.97, 1.0, 1.0, 1.02, 1.1, 1.3])
    )
    scatter, failing = draw.choice([0.002, 0.01, 0.03]), draw.choice(["", "replicated"])

    def record(flags: Mapping[str, str], place: str, name: str) -> Any:
        mode = flags.get("variable_update", "")
        if mode and mode == failing and draw.random() < 0.5:
            return None
        return make(100 * factors[mode] * (1 + draw.gauss(0, scatter)), devices=2)

    printed: list[Any] = []
    with on(MadeUpMachine(record, seed), folder) as patch, tracked():
        patch.setattr(tuned, "compare_and_remove", lambda _, of, name: weights(draw, of))
        patch.setattr(race, "MOST_ROUNDS", draw.choice([2, 4]))
        patch.setattr(tune, "_write_outcome", lambda found, *_: printed.append(found) or 0)
        Path("space.yaml").write_text(SPACE)
        run(
            *("tune", "--model=lenet", "--num_gpus=2", "--space=space.yaml", f"--seed={seed}"),
            *(f"--minutes={draw.choice([0.2, 1, 2])}", "--results=results", "--pairing=alternate"),
            *("--", "--batch_size=4", "--device=cpu"),
        )
        outputs = {
            "table": text.table_text,
            "csv": text.candidates_csv,
            "flags": text.flag_file_text,
            **pages_of(search_report.best_flags_section, search_report.search_verdict_answers),
        }
        return Experiment.of(printed[0], printed[0], outputs)


def explain_of(seed: int, folder: Path, make: Any) -> Experiment:
    """Profiles of sides that differ in layers, work, gaps, waits or all of it, or not at all."""
    draw = random.Random(seed)
    profiles = Profiles(make, seed, draw.choice([0.02, 0.1]), draw.choice([0.005, 0.02]))
    new = draw.choice(
        [
            None,
            changed(lambda part: part[:2] == ("conv1", CONV), 2.0, flops=2 * 10**9),
            changed(lambda part: part[:2] == ("conv1", CONV), 1.0, flops=2 * 10**9),
            changed(lambda part: part.kind == CONV, 1.3),
            changed(lambda part: part == GAPS, 8.0),
            changed(lambda part: part == INPUT_WAIT, 90.0),
            changed(lambda part: True, 1.2),
        ]
    )
    processes, flags = draw.choice([1, 2, 3, 3]), draw.choice([{}, {"num_intra_threads": 1}])
    sides = profiles.side(None, processes), profiles.side(new, processes, **flags)
    with tracked():
        found = explain(*sides)
        outputs: dict[str, Callable[[Any], str]] = {
            "table": lambda one: sections_to_text(explanation_sections(one)),
            "all rows": lambda one: sections_to_text(explanation_sections(one, 0, full=True)),
            "markdown": lambda one: unescape(sections_to_comment(explanation_sections(one), "")),
            "chart": lambda one: page_text(chart_text(differences_chart(one))),
        }
        return Experiment.of(found, found, outputs, phrases_of(found))


def side_of(draw: random.Random, make: Any, speed: float, **how: Any) -> list[RunRecord]:
    """Runs of a configuration: how many, how scattered, how disturbed, with slow steps or not."""
    found = []
    for _ in range(how["processes"]):
        mean = 8 / (speed * (1 + draw.gauss(0, how["scatter"])))
        steps = [mean * (1 + 0.01 * draw.random()) for _ in range(24)]
        if how.get("slow"):
            steps = [seconds * (1.6 if at % 3 == 2 else 1) for at, seconds in enumerate(steps)]
        busy = how["busy"] * draw.uniform(0.8, 1.2)
        note = ConditionNote(id="load", when="during", text="others", advice="stop")
        conditions = Conditions(
            before={}, during={"other_cpus": busy}, notes=(note,) if busy > 0.3 else ()
        )
        found.append(
            make(
                speed,
                flags={"batch_size": how["batch"]},
                step_seconds=tuple(steps),
                losses=(1.0,) * len(steps),
                conditions=conditions,
                step_cpu_seconds=tuple(1.5 * seconds for seconds in steps),
                measured=Measured(peak_memory_bytes=int(5e8 * (1 + draw.gauss(0, 0.01)))),
                startup_seconds=StartupSeconds(
                    import_=1.0, build=draw.uniform(1, 1.2), first_step=0.5
                ),
                environment=how.get("environment"),
            )
        )
    return found


_METRICS = (None, None, ("throughput",), ("cpu_time", "throughput"), ("memory", "cpu_time"))


def compare_of(seed: int, folder: Path, make: Any) -> Experiment:
    """Configurations that changed or not, with noise, loads, failures, other facts, A/A runs."""
    draw = random.Random(seed)
    base: list[RunRecord] = []
    new: list[RunRecord] = []
    alike: list[RunRecord] = []
    for batch in draw.sample([8, 16, 32, 64], draw.choice([1, 1, 2, 3])):
        how = {
            "batch": batch,
            "processes": draw.choice([2, 4, 5, 8, 10]),
            "scatter": draw.choice([0.002, 0.02, 0.06]),
            "busy": draw.choice([0.0, 0.1, 2.0]),
        }
        facts = draw.choice([{}, {}, {}, {"usable_cpus": 4}, {"kernel": "5.1"}])
        factor, slow = draw.choice([1, 1, 0.98, 0.95, 0.8, 1.1]), draw.random() < 0.2
        base += side_of(draw, make, 100.0, **how)
        new += side_of(draw, make, 100.0 * factor, slow=slow, environment=facts, **how)
        if draw.random() < 0.1:
            new.append(make(flags={"batch_size": batch}, error=("E", "no good")))
        if draw.random() < 0.3:
            alike += side_of(draw, make, 100.0, **{**how, "processes": 5})
    if draw.random() < 0.2:
        base += side_of(draw, make, 70.0, batch=128, processes=3, scatter=0.01, busy=0.0)
    with tracked():
        found = compare_records(
            base,
            new,
            Criteria(
                metrics=draw.choice(_METRICS),
                paired=draw.choice([None, True]) if len(base) == len(new) else None,
            ),
            aa=alike or None,
        )
        return compared(found)


def compared(found: Comparison) -> Experiment:
    """What all formats say of a comparison."""
    outputs = {
        "table": lambda one: render(one, "table"),
        "markdown": lambda one: unescape(render(one, "markdown")),
        "junit": lambda one: junit_text(render(one, "junit")),
        "github": lambda one: annotations(render(one, "github")),
    }
    facts = [one for entry in found.entries for one in entry.differences]
    phrases = [f"exit code {int(found.exit_code)}", *mentioned_differences(found)]
    phrases += [differing_values_text(one.fact, one.base, one.new) for one in facts]
    phrases += [] if found.explanation is None else phrases_of(found.explanation)
    return Experiment.of(found, found, outputs, phrases)


def junit_text(document: str) -> str:
    """The texts of JUnit XML, whose numbers of cases are right."""
    texts = []
    for suite in ElementTree.fromstring(document):
        tags = {"tests": "", "failures": "/failure", "errors": "/error", "skipped": "/skipped"}
        for name, tag in tags.items():
            assert suite.get(name) == str(len(suite.findall(f"testcase{tag}")))
        texts.append(suite.get("name") or "")
        for element in suite.iter():
            if element is not suite:
                values = (text for name, text in element.items() if name != "time")
                texts += [*values, element.text or ""]
    return "\n".join(texts)


def annotations(commands: str) -> str:
    """Workflow commands of GitHub, decoded."""
    for code, character in (("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        commands = commands.replace(code, character)
    return commands


def ab_of(seed: int, folder: Path, make: Any) -> Experiment:
    """Pairs of two numbers of threads, which may be explained."""
    draw = random.Random(seed)
    other = draw.choice(["--b=--num_intra_threads=2", "--b=--num_intra_threads=2", "--aa"])
    words = ["--a=--num_intra_threads=1", other, "--results=results"]

    def is_new(flags: Mapping[str, str], place: str) -> bool:
        return flags.get("num_intra_threads") == "2"

    return paired(draw, folder, make, words, is_new)


GATE = ("--a_checkout=", "--b_checkout=", "--results=gate/runs", "--format=markdown")


def gate_of(seed: int, folder: Path, make: Any) -> Experiment:
    """The experiment of cnnbench gate, of two revisions."""
    draw = random.Random(seed)
    (folder / "gate").mkdir()
    start, change = "a" * 12, "b" * 12
    given = (f"{GATE[0]}{start}", f"{GATE[1]}{change}", *GATE[2:], "--output=gate/comment.md")
    return paired(draw, folder, make, given, lambda flags, place: place.endswith(change))


def paired(
    draw: random.Random,
    folder: Path,
    make: Any,
    words: Sequence[str],
    is_new: Callable[[Mapping[str, str], str], bool],
) -> Experiment:
    """An experiment of cnnbench ab whose side B is slower, faster, the same, or fails."""
    factor, scatter = draw.choice([1, 1, 0.97, 0.9, 1.1]), draw.choice([0.003, 0.02, 0.05])
    failing, explained = draw.random() < 0.1, draw.random() < 0.3
    profiles = Profiles(make, draw.randint(0, 99))
    slower = changed(lambda part: part[:2] == ("conv1", CONV), 1.5, flops=2 * 10**9)

    def record(flags: Mapping[str, str], place: str, name: str) -> Any:
        if is_new(flags, place) and failing and draw.random() < 0.2:
            return None
        speed = 100 * (factor if is_new(flags, place) else 1)
        return make(speed * (1 + draw.gauss(0, scatter)))

    written: list[Comparison] = []
    with on(MadeUpMachine(record, 1), folder) as patch, tracked():
        patch.setattr(
            ab_flags.AbFlags, "write_comparison", lambda self, found: written.append(found)
        )
        patch.setattr(
            ab_session,
            "_explain_by_profiles",
            lambda *_: explain(profiles.side(), profiles.side(slower)),
        )
        run(
            *("ab", *words, f"--pairs={draw.choice([4, 8, 8])}", f"--seed={draw.randint(0, 9)}"),
            *(
                "--burn_in=0",
                "--pairing=alternate",
                f"--explain={'auto' if explained else 'never'}",
            ),
            *("--", "--model=lenet", "--device=cpu"),
        )
        return compared(written[0])


def history_of(seed: int, folder: Path, make: Any) -> Experiment:
    """Series of commits of one or two configurations: steps, trends, outliers, other machines."""
    draw = random.Random(seed)
    commits, per_commit = draw.choice([4, 6, 20, 30]), draw.choice([1, 3])
    kind = draw.choice(["step", "undone", "trend", "outlier", "slow", "hosts", "machines", "facts"])
    first, scatter = draw.randint(3, max(3, commits - 3)), draw.choice([0.003, 0.015])
    factor = draw.choice([1, 0.9, 0.95, 1.1])

    def record(commit: int, batch: int) -> RunRecord:
        facts = {"hostname": f"box{draw.randint(1, 2)}"} if kind == "hosts" else {}
        steps = [8 / 100] * 24
        changes = {
            "trend": factor ** min(max(commit - first, 0) / 10, 1.0),
            "undone": factor if first <= commit < first + 5 else 1.0,
            "outlier": 0.7 if commit == first else 1.0,
            "hosts": 0.9 if facts == {"hostname": "box1"} else 1.0,
        }
        if kind == "slow" and commit >= first:
            steps[::3] = [0.16] * 8
        if kind == "machines":
            facts["cpu_model"] = f"CPU {commit % 2}"
        if kind == "facts":
            facts["kernel"] = "5.1" if commit < first else "5.2"
        speed = changes.get(kind, factor if commit >= first else 1.0) * math.exp(
            draw.gauss(0, scatter)
        )
        return make(
            100.0,
            flags={"batch_size": batch, "result_label": f"commit=c{commit:03}"},
            environment=facts,
            step_seconds=tuple(seconds / speed for seconds in steps),
            losses=(1.0,) * len(steps),
        )

    records = [
        record(commit, batch)
        for batch in draw.sample([8, 16], draw.choice([1, 2]))
        for commit in range(commits)
        for _ in range(per_commit)
    ]
    with tracked():
        entries = [entry for one in records for entry in HistoryEntry.all_of(one)]
        found = [trend(one, THROUGHPUT) for one in all_series(entries, THROUGHPUT)]
        remarks = history_texts.history_remarks(found, THROUGHPUT, None)
        document = history_page.HistoryDocument(THROUGHPUT, found, remarks)
        outputs: dict[str, Callable[[Any], str]] = {
            "table": history_blocks.terminal_text,
            "csv": history_page.csv_text,
            "page": lambda one: page_text(history_blocks.render("x.html", one).decode()),
            "markdown": lambda one: unescape(history_blocks.render("x.md", one).decode()),
        }
        starts = [point.started for one in found for point in one.series.points]
        forms = ("%Y-%m-%d %H:%M", "%m-%d %H:%M", "%Y-%m-%d")
        phrases = {f"{start:{form}}" for start in starts for form in forms}
        phrases |= {f"c{commit:03}" for commit in range(commits)}
        return Experiment.of(document, document, outputs, sorted(phrases))


@functools.cache
def repository() -> Path:
    """A repository of some commits; the machine of an experiment gives them speeds."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    stream = []
    for number in range(COMMITS):
        stream += [
            "commit refs/heads/main",
            f"committer a <a@b> {1700000000 + number} +0000",
            f"data <<END\ncommit {number}\nEND",
            f"M 100644 inline file\ndata <<END\n{number}\nEND",
        ]
    finished(["git", "init", "--quiet", "--initial-branch=main", str(folder)])
    of_folder = ["git", "-C", str(folder)]
    finished([*of_folder, "fast-import", "--quiet"], input="\n".join(stream) + "\n")
    finished([*of_folder, "reset", "--quiet", "--hard"])
    return folder


git = functools.cache(git_repository.git)
"""What git says of the repository, which does not change, is asked once."""


@functools.cache
def commits() -> list[str]:
    """Its commits, the oldest first."""
    return finished(
        ["git", "-C", str(repository()), "rev-list", "--reverse", "main"]
    ).stdout.split()


@dataclass(frozen=True)
class BisectionResult:
    """The values of a bisection, which has no JSON: what was measured and what may be the first."""

    steps: tuple[Any, ...]
    suspects: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return {name: codec.encode(getattr(self, name)) for name in ("steps", "suspects")}


def bisect_of(seed: int, folder: Path, make: Any) -> Experiment:
    """A commit that made runs slower, or none, among others that may not run."""
    draw = random.Random(seed)
    first, factor = draw.randint(1, COMMITS - 1), draw.choice([1, 0.97, 0.9, 0.6])
    scatter, broken = draw.choice([0.001, 0.01, 0.03]), draw.choice([-1, -1, 1, 2])

    def record(flags: Mapping[str, str], place: str, name: str) -> Any:
        number = commits().index(Path(place).name)
        if number == broken:
            return None
        return make(100 * (factor if number >= first else 1) * (1 + draw.gauss(0, scatter)))

    reported: list[Any] = []
    with on(MadeUpMachine(record, seed), folder) as patch, tracked():
        for owner in (git_history, git_repository):
            patch.setattr(owner, "git", git)
        patch.setattr(bisect, "_print_result", lambda found, *_: reported.append(found) or 0)
        run(
            *("bisect", commits()[0], commits()[-1], f"--repository={repository()}"),
            *("--pairs=6", "--most_pairs=8", "--burn_in=0", "--results=results", f"--seed={seed}"),
            *("--pairing=alternate", "--", "--model=lenet"),
        )
        (found,) = reported
        document: Any = BisectionResult(tuple(found.steps.values()), found.suspects)
        phrases = [f"commit {number}" for number in range(COMMITS)]
        phrases += [*commits(), *(one[:12] for one in commits()), str(repository()), "2023-11-14"]
        return Experiment.of(found, document, {"table": bisection_text}, phrases)


def phrases_of(found: Explanation) -> list[str]:
    """How outputs say the facts that differ; values of facts are texts, such as 8."""
    return [f"{one.fact} is {one.base} in A and {one.new} in B" for one in found.facts]


def pages_of(section: Any, answers: Any) -> dict[str, Callable[[Any], str]]:
    """The page and the Markdown of a report that has a section on a document, and answers."""

    def report(document: Any) -> Report:
        subject: Any = SimpleNamespace(strategies=[document], tunings=[document])
        return Report(
            title="report",
            subtitle="of a folder",
            answers=tuple(answers(subject)),
            sections=(Section.of(section(subject), "section", "Section"),),
        )

    return {
        "page": lambda one: page_text(render_report(report(one), "html")),
        "markdown": lambda one: unescape(report_to_markdown(report(one))),
    }


COMMANDS: Mapping[str, Callable[[int, Path, Any], Experiment]] = {
    "ab": ab_of,
    "bisect": bisect_of,
    "compare": compare_of,
    "explain": explain_of,
    "gate": gate_of,
    "history": history_of,
    "strategies": strategies_of,
    "tune": tune_of,
}


@pytest.fixture(scope="module", autouse=True)
def _wide_terminal_and_plain_charts():
    """No line is broken, and charts are their values and texts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "4000")
        patch.setattr(chart_writer, "chart_to_svg", chart_text)
        yield


@pytest.fixture(scope="module")
def experiments(lenet_runs, tmp_path_factory) -> Callable[[str], list[Experiment]]:
    """The experiments of a command, made once."""
    made: dict[str, list[Experiment]] = {}

    def of(command: str) -> list[Experiment]:
        if command not in made:
            make = lenet_runs({"hostname": "box", "usable_cpus": 8})
            made[command] = [
                COMMANDS[command](seed, tmp_path_factory.mktemp("experiment"), make)
                for seed in range(FEW.get(command, EXPERIMENTS))
            ]
            made[command] += of("ab")[FEW["gate"] :] if command == "gate" else []
        return made[command]

    return of


@pytest.mark.parametrize("command", COMMANDS)
def test_every_number_is_a_value_of_the_document(experiments, command) -> None:
    found = [fault for one in experiments(command) for fault in one.faults]
    kinds = collections.Counter(re.sub(r"\d+", "0", one) for one in found)
    assert not found, "\n".join(f"{many} {one}" for one, many in kinds.most_common(40))


@pytest.mark.parametrize("command", COMMANDS)
def test_outputs_are_those_without_the_marks_of_this_test(experiments, command) -> None:
    for one in experiments(command)[::4]:
        plain = one.without_marks()
        for page in one.pages:
            assert page.text.split() == plain[page.name].split()


def mutated(one: Experiment, draw: random.Random, of_document: bool) -> tuple[Experiment, str]:
    """The experiment with one value of the document, or one printed digit, that is another one."""
    assert not one.faults
    if of_document:
        path = draw.choice(sorted(one.document.said))
        value = one.document.values[path]
        other = value + draw.choice([-1, 1]) if isinstance(value, int) else value * 1.25 + 1e-3
        document = one.document.with_value(path, other)
        return dataclasses.replace(one, document=document), f"{path}: {value} -> {other}"
    page = draw.choice([page for page in one.pages if re.search(r"\d", page.text)])
    at = draw.choice([found.start() for found in re.finditer(r"\d", page.text)])
    digit = str((int(page.text[at]) + draw.randint(1, 9)) % 10)
    altered = dataclasses.replace(page, text=f"{page.text[:at]}{digit}{page.text[at + 1 :]}")
    what = f"{page.name}: {page.text[max(0, at - 50) : at + 30]!r}, digit {page.text[at]}"
    without_sentences = one.document.with_value("", None)
    without_sentences.sentences = []
    return dataclasses.replace(one, pages=(altered,), document=without_sentences), what


@pytest.mark.parametrize("of_document", [True, False])
def test_another_value_and_another_digit_are_noticed(experiments, of_document) -> None:
    draw = random.Random(1)
    missed = []
    for number in range(MUTATIONS // 2):
        command = [*COMMANDS][number % len(COMMANDS)]
        of_command = experiments(command)
        one = draw.choice([one for one in of_command if not one.faults and one.document.said])
        other, what = mutated(one, draw, of_document)
        if not other.has_faults():  # the experiment has none
            missed.append(f"{command}: {what}")
    assert len(missed) <= 0.05 * MUTATIONS / 2, "\n".join(missed)
