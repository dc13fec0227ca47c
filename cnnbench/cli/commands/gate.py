"""``cnnbench gate``: measure a commit against its merge base, for CI systems."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path

from cnnbench.base.locks import lock_folder
from cnnbench.base.terminal import print_notice, print_warning
from cnnbench.campaigns.ab.root_paths import flags_from_root
from cnnbench.campaigns.ab.same_code import find_same_code
from cnnbench.campaigns.ab.side import AbSide, check_flags_of_commit
from cnnbench.campaigns.processes import is_leftover
from cnnbench.cli.commands import ab_session, choose_format, write_init_files
from cnnbench.cli.commands.ab_flags import OF_ONE_EXPERIMENT, SECTIONS, AbFlags
from cnnbench.cli.commands.ab_report import write_gate_reports
from cnnbench.cli.commands.campaign_flags import CampaignFlags, results_folder
from cnnbench.cli.commands.command_lines import (
    flag_words,
    replace_flags,
    split_command_and_run_flags,
)
from cnnbench.cli.commands.sides import SideFlags
from cnnbench.errors import ExitCode, FlagError, UsageError
from cnnbench.flags import (
    flag,
    flag_sections,
    redeclare_flag,
    specs_of,
    split_at_double_dash,
    split_command_line,
)
from cnnbench.judge.compare import Comparison
from cnnbench.judge.metrics.rules import Rules
from cnnbench.judge.metrics.rules_file import (
    NO_RULES,
    RulesFile,
    path_from_root,
    rules_flag_at_commit,
)
from cnnbench.machine import repository
from cnnbench.machine.repository import (
    GitError,
    abbreviate_hash,
    find_commit_hash,
    git,
    uncommitted_changes_text,
    why_commit_is_missing,
)
from cnnbench.plan import refuse_files_of_run
from cnnbench.records.files import OutputFile, raising_flag_errors

_ABOUT = """\
Usage: cnnbench gate BASE [HEAD] [FLAGS] [-- FLAGS OF cnnbench run]
       cnnbench gate --init=github|gitlab|jenkins [FLAGS] [-- FLAGS OF cnnbench run]

Answers whether a change made training slower: measures the commit HEAD (the current one if not
given) and its merge base with BASE, each in a temporary worktree, in interleaved pairs of fresh
processes as cnnbench ab does. Prints the verdict and leaves a folder with comment.md (for the pull
request), junit.xml and runs, all records. On GitHub's runners it also prints annotations. If no run
loads any of the files that differ, such as README.md, nothing is measured. The page cnnbench docs
ci explains gates; --init writes the files with which a CI system runs a gate.

  cnnbench gate main
  cnnbench gate main change --timeout=300 -- --plugin=bench/nets.py --model=ours
  cnnbench gate --resume --results=DIR --pairs=28
  cnnbench gate --init=github -- --plugin=bench/nets.py --model=ours
"""

_EXIT_CODES = """\
Exit codes: 0 no regression; 1 HEAD is slower or computes something else (or what --fail_on names);
3 inconclusive or not comparable; 4 a process failed, or processes were killed
twice in a row; 2 wrong use; 130 interrupted.
"""

OUTPUT = "GATE_OUTPUT"
"""Environment variable with the folder for results if --results is not given."""

_RUNS = "runs"
_EXAMPLE = ("--model=lenet",)

# Flags that the files of --init cannot contain, because they set them or belong to one gate.
_OF_ONE_GATE = ("results", "resume", "accept")

# Paths of the files that --init writes, by CI system and by the name of a file's template.
_WORKFLOWS = ".github/workflows"
_CI_FILES = {
    "github": {
        "github.yml": f"{_WORKFLOWS}/benchmark.yml",
        "github-comment.yml": f"{_WORKFLOWS}/benchmark-comment.yml",
    },
    "gitlab": {"gitlab.yml": ".gitlab-ci.yml"},
    "jenkins": {"jenkins.groovy": "Jenkinsfile"},
}


@dataclass(frozen=True, kw_only=True)
class GateFlags(AbFlags):
    """Flags of `cnnbench gate`."""

    init: str | None = flag(
        None,
        "Write the files with which this CI system measures every change, using the other flags "
        "and the flags after --. Measure nothing. Existing files are not replaced.",
        choices=tuple(_CI_FILES),
    )
    always_measure: bool = flag(
        False,
        "Also measure if every file that differs is one that no run loads, such as README.md "
        "(cnnbench docs ci).",
    )
    results: str | None = redeclare_flag(
        CampaignFlags,
        "results",
        help=f"Where all results go; if not given the folder of {OUTPUT}, or a new one in the "
        "temporary directory, which is printed.",
    )


# `cnnbench gate` compares two commits, so flags that define A and B otherwise are refused.
_NOT_OF_GATES = {spec.name for spec in specs_of(SideFlags)}
_SECTIONS = {"init": "What to do", **SECTIONS}
_FLAGS = {
    title: tuple(spec for spec in specs if spec.name not in _NOT_OF_GATES)
    for title, specs in flag_sections(GateFlags, _SECTIONS).items()
}
_SPECS = tuple(spec for specs in _FLAGS.values() for spec in specs)
HELP = (_ABOUT, [(title, specs) for title, specs in _FLAGS.items() if specs], _EXIT_CODES)


def main(argv: Sequence[str]) -> int:
    """Measures two commits, or writes the files of a CI system."""
    values, commits, common = split_command_and_run_flags(argv, _SPECS, "gate BASE HEAD")
    if values.get("init"):
        of_one_gate = [*commits, *(f"--{name}" for name in _OF_ONE_GATE if name in values)]
        if of_one_gate:
            reason = "--init writes files for gates of all changes; leave this out"
            raise UsageError(f"{of_one_gate[0]}: {reason}")
        GateFlags(**values).check_values()
        own = replace_flags(split_at_double_dash(argv)[0], _SPECS, ("init",))
        _write_ci_files(values["init"], own, common or _EXAMPLE)
        if not common:
            print_notice(f"the files measure {' '.join(_EXAMPLE)}: replace this by your own flags")
        return ExitCode.OK
    is_resumed = values.get("resume", False)
    if len(commits) not in ((0,) if is_resumed else (1, 2)):
        wants = "no commits with --resume" if is_resumed else "one or two commits, BASE and HEAD"
        raise UsageError(f"cnnbench gate takes {wants}, not {len(commits)} arguments")
    change = None if is_resumed else _find_change(values.get("rules"), *commits)
    results = values.get("results") or (None if is_resumed else os.environ.get(OUTPUT) or None)
    if is_resumed:
        results = results_folder(results, "gate", resume=True)
    with _results_folder(results, is_resumed) as folder:
        if change is not None and not values.get("always_measure"):
            options = GateFlags(**choose_format({**values, "rules": change.rules}, _SPECS))
            if _report_if_same_code(change, options, common, folder):
                return ExitCode.OK
        of_ab = {name: values[name] for name in values if name not in ("init", "always_measure")}
        hashes: list[str] = []
        if change is not None:
            # A full hash is never the name of a folder, of a branch or of a tag, which a change may
            # add. The abbreviated hashes are the same in every clone.
            head = change.tip if os.path.isdir(change.head) else change.head
            of_ab |= {"a_checkout": change.start, "b_checkout": head, "rules": change.rules}
            hashes = [abbreviate_hash(change.start), abbreviate_hash(change.tip)]
        of_ab["results"] = str(folder / _RUNS)
        words = flag_words(values, _SPECS, OF_ONE_EXPERIMENT)
        return ab_session.run_experiment(of_ab, common, ("gate", *hashes, *words, "--", *common))


@dataclass(frozen=True, kw_only=True)
class _Change:
    """The change that a gate measures.

    Attributes:
      head: name of the measured commit, as given by the user.
      start: hash of the merge base of BASE and `head`.
      tip: hash of the commit `head`.
      rules: value of --rules for the rules in the merge base.
    """

    head: str
    start: str
    tip: str
    rules: str


def _find_change(rules: str | None, base: str, head: str = "HEAD") -> _Change:
    """Finds the commits that a gate compares.

    Side A is not `base`, because other changes may have been merged since the change started. The
    rules are also read from the merge base, because a change must not loosen the rules by which it
    is judged.
    """
    try:
        find_commit_hash(base)
        tip = find_commit_hash(head)
        try:
            start = git("merge-base", base, head)
        except GitError:
            reason = f"{base} and {head} have no common ancestor"
            missing = why_commit_is_missing()
            raise GitError(f"{reason}: {missing}" if missing else reason) from None
    except GitError as error:
        raise UsageError(f"{base} {head}: {error}") from None
    if start == tip:
        nothing = f"{base} contains all commits of {head} ({abbreviate_hash(tip)})"
        remedy = ""
        if uncommitted_changes_text("B", tip):
            remedy = "; uncommitted changes are not measured, so commit them first"
        raise UsageError(f"{base} {head}: {nothing}, so there is nothing to measure{remedy}")
    rules = rules_flag_at_commit(start, rules)
    return _Change(head=head, start=start, tip=tip, rules=rules)


def _report_if_same_code(
    change: _Change, options: GateFlags, flags: Sequence[str], folder: Path
) -> bool:
    """If no run loads any of the files that differ, reports that the code is the same, without a
    measurement. Returns whether this is so.

    Wrong flags are refused as in a measurement.
    """
    rules = options.load_rules()
    same = find_same_code(change.start, change.tip, flags, rules.ignore)
    if same is None:
        return False
    options.check_values()
    side = AbSide(flags=tuple(flags))
    refuse_files_of_run([OutputFile("output", options.output)], side.given_flags)
    check_flags_of_commit(side, change.tip)
    comparison = Comparison(
        base_label=abbreviate_hash(change.start),
        new_label=abbreviate_hash(change.head),
        policy=options.policy,
        rules=rules if rules != Rules() else None,
        metrics=(),
        entries=(),
        same_code=same,
    )
    if (runs := folder / _RUNS).is_dir():  # An earlier gate was killed before its first process.
        with lock_folder("results", str(runs), partial(print_warning, name="lock")):
            if is_leftover(runs):
                shutil.rmtree(runs)
    if text := uncommitted_changes_text("B", change.tip):
        print_notice(text)
    options.write_comparison(comparison)
    write_gate_reports(folder, comparison)
    print_notice("--always_measure measures even if the code is the same")
    return True


@contextlib.contextmanager
def _results_folder(results: str | None, is_resumed: bool) -> Iterator[Path]:
    """Context manager: creates the results folder of a gate, which must be empty unless resumed.

    A temporary folder is removed if no results were written.
    """
    if results is None:
        folder = Path(tempfile.mkdtemp(prefix="cnnbench-gate-"))
    else:
        folder = Path(results)
        with raising_flag_errors("results", results, "used"):
            if not is_resumed and folder.is_dir() and not is_leftover(folder):
                raise FlagError("results", results, "is not empty; name another folder")
            folder.mkdir(parents=True, exist_ok=True)
    try:
        yield folder
    finally:
        if results is None and is_leftover(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _write_ci_files(system: str, own: Sequence[str], common: Sequence[str]) -> None:
    """Writes the files of a CI system into the repository. Raises an error if a file exists.

    `own` contains flags of a gate, and `common` flags of runs. CI jobs start in the root of the
    repository, so paths are written as they count from there.
    """
    try:
        top = Path(git("rev-parse", "--show-toplevel"))
        if "\n" in "".join([*own, *common]):
            raise UsageError(f"--init={system}: a flag contains a line break")
        flags = [*_rules_from_root(own), "--", *flags_from_root(common)]
        if changed := [word for word in flags if word not in (*own, "--", *common)]:
            print_notice(f"paths count from the root of the repository: {shlex.join(changed)}")
    except GitError as error:
        raise UsageError(f"--init={system}: needs a git repository: {error}") from None
    values = {"@CNNBENCH@": shlex.quote(_pip_requirement()), "@FLAGS@": shlex.join(flags)}
    if system == "jenkins":  # Groovy strings need escape characters.
        values = {
            mark: value.replace("\\", "\\\\").replace("'", "\\'") for mark, value in values.items()
        }
    templates = {top / name: f"ci/{template}" for template, name in _CI_FILES[system].items()}
    write_init_files(system, templates, values)


def _rules_from_root(own: Sequence[str]) -> list[str]:
    """Returns the flags of a gate with a value of --rules that selects, in the root of the
    repository, the file that a gate in the current folder reads.
    """
    specs = [spec for spec in _SPECS if spec.name == "rules"]
    texts, _ = split_command_line(own, {spec.name: spec for spec in specs})
    given = texts.get("rules", [""])[-1]
    file = RulesFile.parse(given)
    rules = given
    if not given and git("rev-parse", "--show-prefix"):
        with contextlib.suppress(GitError):  # Nothing is committed.
            found = RulesFile.parse(rules_flag_at_commit(find_commit_hash("HEAD"), None)).path
            rules = found if "/" in found else ""  # A gate in the root finds the rules there.
    elif given not in ("", NO_RULES) and file.commit is None:
        rules = path_from_root(file.path) or given
    return replace_flags(own, specs, ("rules",), [f"--rules={rules}"] if rules else [])


def _pip_requirement() -> str:
    """The argument with which pip installs the revision of this cnnbench.

    If the revision or the remote repository is unknown, the argument contains OWNER and REVISION.
    """
    with contextlib.suppress(metadata.PackageNotFoundError, ValueError, KeyError, TypeError):
        origin = json.loads(metadata.distribution("cnnbench").read_text("direct_url.json") or "")
        if "vcs_info" in origin:
            return f"cnnbench @ git+{origin['url']}@{origin['vcs_info']['commit_id']}"
    checkout = Path(__file__).resolve().parents[3]
    with contextlib.suppress(GitError):
        if (checkout / ".git").exists():
            url = git("config", "--get", "remote.origin.url", folder=checkout)
            address = repository.repository_address(url)
            if address and "/" in address and url != address:
                commit = git("rev-parse", "HEAD", folder=checkout)
                return f"cnnbench @ git+https://{address}@{commit}"
    print_notice("the source of this cnnbench is unknown: replace OWNER and REVISION in the files")
    return "cnnbench @ git+https://github.com/OWNER/cnnbench@REVISION"
