"""cnnbench gate: two commits measured by a stand-in, and the files of CI systems.

Tests cnnbench/campaigns/ab/root_paths.py.
"""

from __future__ import annotations

import html
import json
import os
import re
import shlex
import tempfile
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from pages import Page

from cnnbench.campaigns.ab.side import AbSide
from cnnbench.campaigns.ab.worktree import resolve_commit
from cnnbench.campaigns.processes.journal import JOURNAL
from cnnbench.campaigns.processes.results_dir import ResultsFolder
from cnnbench.cli.commands import ab_session, gate
from cnnbench.errors import FlagError
from cnnbench.judge.metrics.rules_file import load_rules

FLAGS = ("--burn_in=0", "--pairing=alternate", "--explain=never", "--seed=3", "--pairs=8")
SHORT = (*FLAGS[:-1], "--pairs=6")
NETWORK = ("--", "--model=lenet")


@pytest.fixture
def repository(tmp_path, git, monkeypatch):
    """main has gone on, and slower, since change left it; change has 80 % of its speed."""
    folder = tmp_path / "repository"
    git(tmp_path, "init", "--quiet", "--initial-branch=main", "repository")

    def commit(speed, message):
        (folder / "fake.json").write_text(json.dumps({"speed": speed, "salt": message}))
        git(folder, "add", "fake.json")
        git(folder, "commit", "--quiet", "-m", message)

    commit(100, "start")
    git(folder, "branch", "change")
    commit(50, "others went on")
    git(folder, "switch", "--quiet", "change")
    commit(80, "the change")
    monkeypatch.chdir(folder)
    for name in (gate.OUTPUT, "GITHUB_ACTIONS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    return folder


@pytest.fixture
def measured(repository, fake_python, quick_processes, quick_answers, monkeypatch):
    """Runs are made by the stand-in, which reads fake.json of its worktree."""
    command = AbSide.command
    monkeypatch.setattr(
        AbSide, "command", lambda side, record: (fake_python, *command(side, record)[1:])
    )


@pytest.fixture
def given(repository, monkeypatch):
    """The flags that cnnbench ab gets, and the flags of both A and B."""
    lines = []

    def run(values, common, repeat):
        behind = ("--", *common) if common else ()
        lines.append([*(f"--{name}={value}" for name, value in values.items()), *behind])
        return 0

    monkeypatch.setattr(ab_session, "run_experiment", run)
    return lines


@pytest.mark.usefixtures("measured")
def test_a_change_is_measured_against_the_commit_that_it_started_from(
    call, repository, git, tmp_path
):
    done = call("gate", "main", *SHORT, *NETWORK, code=1)
    assert "% slower" in done.out.partition("\n")[0]
    assert git(repository, "status", "--porcelain") == ""
    (folder,) = (tmp_path / "temporary").glob("cnnbench-gate-*")
    assert f"results in {folder}: comment.md, junit.xml, runs" in done.err
    assert (folder / "comment.md").read_text().startswith("### ")
    assert len(ElementTree.parse(folder / "junit.xml").findall(".//failure")) == 1
    commits = [
        json.loads((folder / "runs" / name).read_text())["subject"]["revision"]
        for name in ("a/0001-a.json", "b/0001-b.json")
    ]
    assert commits == git(repository, "rev-parse", "main~1", "change").split()


@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize(("kills", "code", "pairs"), [(1, 1, 6), (2, 4, 1)])
def test_a_killed_pair_is_left_out_and_two_in_a_row_end_it(
    call, repository, git, tmp_path, kills, code, pairs
):
    killed = {"speed": 80, "kill": {"0002-b": kills}, "kills": str(tmp_path)}
    (repository / "fake.json").write_text(json.dumps(killed))
    git(repository, "commit", "--quiet", "-am", "the killed change")
    done = call("gate", "main", f"--results={tmp_path}/results", *SHORT, *NETWORK, code=code)
    assert "pair 2 is measured again: B was killed by SIGKILL" in done.err
    assert ("; twice in a row; " in done.err) == (kills > 1)
    states = [
        json.loads(path.read_text())["status"]
        for path in sorted((tmp_path / "results" / "runs" / "b").glob("*.json"))
    ]
    assert states == ["ok"] * pairs + ["failed"] * (kills > 1)


@pytest.mark.usefixtures("measured")
def test_commits_that_are_not_comparable_and_the_command_that_compares_them(
    call, repository, git, tmp_path
):
    """The properties of the processes differ, as if a default had changed."""
    slow = {"speed": 80, "salt": "the other change", "facts": {"cpu_model": "Slow CPU"}}
    (repository / "fake.json").write_text(json.dumps(slow))
    git(repository, "commit", "--quiet", "-am", "the other change")
    results = f"--results={tmp_path}/results"
    done = call("gate", "main", results, *SHORT, *NETWORK, code=3)
    assert "--allow_different=cpu_model." in " ".join(done.out.split())
    (line,) = re.findall(": cnnbench (gate .*)", done.err)
    comment = html.unescape((tmp_path / "results" / "comment.md").read_text())
    assert f"Repeat: <code>cnnbench {line}</code>" in comment
    # The records of a single pair are too few, so compare advises the same command.
    sides = (tmp_path / "results" / "runs" / side for side in "ab")
    assert f": cnnbench {line}\n" in call("compare", *sides, code=3).err
    words = line.replace(" -- ", f" --results={tmp_path}/again -- ")
    assert "slower" in call(*shlex.split(words), code=1).out.partition("\n")[0]


@pytest.mark.slow
@pytest.mark.usefixtures("measured")
def test_annotations_on_runners_of_github_and_resuming(
    call, repository, git, monkeypatch, tmp_path
):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    results = f"--results={tmp_path}/results"
    done = call("gate", "main", "change", results, *FLAGS[:-1], "--pairs=2", *NETWORK, code=3)
    assert "\n::warning title=" in done.out
    comment = tmp_path / "results" / "comment.md"
    before = comment.read_text()
    # The line that settles it continues the gate; so does compare's.
    line = done.err.rpartition(": cnnbench ")[2].strip()
    assert re.fullmatch(rf"gate --resume {results} --pairs=\d+", line)
    # A developer's machine has the commits, but not the folder of the runner.
    commits = [commit[:12] for commit in git(repository, "rev-parse", "main~1", "change").split()]
    repeat = f"Repeat: <code>cnnbench gate {' '.join(commits)} "
    assert repeat in html.unescape(before)
    assert "--resume" not in before
    assert str(tmp_path) not in html.unescape(before).partition("\nBASE ")[0]
    sides = (tmp_path / "results" / "runs" / side for side in "ab")
    assert f": cnnbench {line}\n" in call("compare", *sides, code=3).err
    done = call(*line.split(), "--explain=never", code=1)
    assert "\n::error title=" in done.out
    assert comment.read_text() != before
    assert repeat in html.unescape(comment.read_text())
    for path in (tmp_path / "results", tmp_path / "results" / "runs"):
        call("report", path, f"--output={tmp_path}/r.md")
        assert "% slower" in (tmp_path / "r.md").read_text()
    (words,) = re.findall("Repeat: <code>cnnbench (.*)</code>", html.unescape(comment.read_text()))
    words = words.replace(" -- ", f" --results={tmp_path}/again -- ")
    assert "pair 2" in call(*shlex.split(words), code=3).err
    comment.unlink()
    call("ab", "--resume", f"{results}/runs", code=1)
    assert "regression" in comment.read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("measured")
def test_a_gate_with_a_plug_in_of_the_repository_is_resumed(call, repository, git, tmp_path):
    plugin = repository / "bench" / "nets.py"
    plugin.parent.mkdir()
    plugin.write_bytes((Path(__file__).parents[3] / "docs/examples/tiny_plugin.py").read_bytes())
    git(repository, "add", "bench")
    git(repository, "commit", "--quiet", "-m", "a plug-in")
    git(repository, "branch", "base")
    with plugin.open("a") as file:
        file.write("# changed\n")
    git(repository, "commit", "--quiet", "-am", "the plug-in changes")
    results = f"--results={tmp_path}/results"
    words = (results, *FLAGS[:-1], "--pairs=2", "--", "--plugin=bench/nets.py", "--model=tiny")
    call("gate", "base", *words, code=3)
    # The worktrees of this session have other paths.
    done = call("gate", "--resume", results, "--pairs=3", code=3)
    assert "[1/2] pair 3" in done.err
    (repository / "bench" / "nets.py").write_text("# not committed, and not measured\n")
    call("gate", "--resume", results, "--pairs=4", code=3)


@pytest.mark.slow
@pytest.mark.usefixtures("measured")
def test_a_gate_that_was_interrupted_before_its_first_process_begins_again(
    call, monkeypatch, tmp_path
):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    results = f"--results={tmp_path}/results"
    with monkeypatch.context() as patch:
        patch.setattr(ResultsFolder, "add_session_start", interrupt)
        call("gate", "main", results, *SHORT, *NETWORK, code=130)
        call("gate", "main", *SHORT, *NETWORK, code=130)
    assert (tmp_path / "results" / "runs" / "logs").is_dir()
    assert [*(tmp_path / "temporary").iterdir()] == []  # nothing is kept in a temporary folder
    call("gate", "main", results, *SHORT, *NETWORK, code=1)


def test_where_results_go(call, given, monkeypatch, tmp_path):
    call("gate", "main", *NETWORK)
    assert given[-1][-2:] == [*NETWORK]
    assert list((tmp_path / "temporary").iterdir()) == []  # nothing was measured
    monkeypatch.setenv(gate.OUTPUT, "gate")
    call("gate", "main", "change")
    assert given[-1][-1] == "--results=gate/runs"
    call("gate", "main", "change", "--results=other", "--pairs=7")
    assert {"--pairs=7", "--results=other/runs"} <= {*given[-1]}
    Path("other/file").touch()
    assert "--results=other: is not empty" in call("gate", "main", "--results=other", code=2).err


def test_a_branch_with_the_name_of_a_folder_is_a_branch(call, given, repository, git):
    (repository / "change").mkdir()
    call("gate", "main", "change")
    assert f"--b_checkout={git(repository, 'rev-parse', 'change')}" in given[0]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        # tests/cli/test_refusals.py has others.
        (("mian",), "main?"),
        (("theirs",), "origin/theirs"),
        (("main", "."), "main .: "),
        (("main", "--resume", "--results=x"), "--resume"),
        (("main", "--model=lenet"), "--model"),
        (("--init=github", "--results=x"), "--results: --init"),
        (("--init=github", "--accept=x"), "--accept: --init"),
        (("--init=github", "--pairs=0"), "--pairs=0: "),
        (("--init=gitlab", "--", "--model=a\nb"), "--init=gitlab: "),
        (("--init=github", "--", "--plugin=nest.py"), "--plugin=nest.py: "),
        (("main", "other"), "main and other"),
        (("main", "--results=fake.json"), "--results=fake.json: "),
    ],
)
def test_wrong_use(call, given, repository, git, words, named, transcript):
    if "other" in words:
        tree = git(repository, "rev-parse", "HEAD^{tree}")
        git(repository, "branch", "other", git(repository, "commit-tree", tree, "-m", "x"))
    git(repository, "update-ref", "refs/remotes/origin/theirs", "main")
    done = call("gate", *words, code=2)
    assert named in done.err
    transcript(" ".join(words).replace("\n", " "), done.err)
    assert done.err.count("\n") == 1
    assert (given, git(repository, "status", "--porcelain")) == ([], "")


GATE = ("--always_measure=true", "--seconds=3.0")
OWN = ("--plugin=bench/nets.py", "--model=ours", "--result_label=it's=$x\\")


def init(call, repository, system):
    """The files that --init writes, by their names."""
    (repository / "bench").mkdir(exist_ok=True)
    (repository / "bench/nets.py").touch()
    done = call("gate", *GATE, f"--init={system}", "--", *OWN)
    files = [Path(line) for line in done.out.splitlines()]
    return {str(file.relative_to(repository)): file.read_text() for file in files}


@pytest.mark.parametrize("system", ["github", "gitlab", "jenkins"])
def test_files_of_ci_systems_are_complete_and_never_replaced(call, repository, system):
    made = init(call, repository, system)
    assert made
    assert not any(mark in text for text in made.values() for mark in ("@CNNBENCH@", "@FLAGS@"))
    for name in made:
        (repository / name).write_text("mine")
    assert f"--init={system}: " in call("gate", f"--init={system}", code=2).err
    assert {(repository / name).read_text() for name in made} == {"mine"}


@pytest.fixture
def subfolder(repository, git, monkeypatch):
    """The current folder is tools/bench in the repository."""
    names = ("nets.py", "own.keras", "images/a", "both.py", "flags")
    files = dict.fromkeys([f"tools/bench/{name}" for name in names], "")
    files |= {"tools/other.py": "", "both.py": "", "tools/cnnbench.toml": "rules = []"}
    commit_files(repository, git, "a folder of many", **files)
    monkeypatch.chdir(repository / "tools" / "bench")
    return repository


def flags_in_file(call, system, *words):
    """The flags in a file of --init, which is removed, and what was printed on standard error."""
    done = call("gate", f"--init={system}", *words)
    files = [Path(line) for line in done.out.splitlines()]
    text = files[0].read_text()
    for file in files:
        file.unlink()
    (line,) = (line for line in text.splitlines() if "cnnbench gate" in line)
    return shlex.split(line.partition("--results=gate ")[2].partition("||")[0]), done.err


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("--plugin=nets.py", "--plugin=tools/bench/nets.py"),
        ("--plugin={}/tools/bench/nets.py", "--plugin=tools/bench/nets.py"),
        ("--plugin=../other.py,nets.py", "--plugin=tools/other.py,tools/bench/nets.py"),
        # Both exist: as in a gate, paths count from the root.
        ("--plugin=both.py", "--plugin=both.py"),
        ("--plugin=tools/other.py", "--plugin=tools/other.py"),
        ("--model=keras:own.keras", "--model=keras:tools/bench/own.keras"),
        ("--model=keras:ResNet50V2", "--model=keras:ResNet50V2"),
        ("--data_dir=images", "--data_dir=tools/bench/images"),
        ("--data_dir=/elsewhere", "--data_dir=/elsewhere"),
        ("--flagfile=flags", "--flagfile=tools/bench/flags"),
    ],
)
def test_paths_in_files_of_ci_systems_count_from_the_root(call, subfolder, given, written):
    given, behind = given.format(subfolder), ["--batch_size=8"]
    rules = "--rules=tools/cnnbench.toml"  # Those that a gate in this folder finds.
    flags, printed = flags_in_file(call, "github", "--", given, *behind)
    assert flags == [rules, "--", written, *behind]
    assert (written in printed) == (given != written)
    flags, _ = flags_in_file(call, "gitlab", "--", *given.split("=", 1), *behind)
    assert flags == [rules, "--", *written.split("=", 1), *behind]


def test_rules_in_files_of_ci_systems_count_from_the_root(call, subfolder, git, monkeypatch):
    network = ["--", "--model=lenet"]
    for system in ("github", "gitlab", "jenkins"):
        for given, written in (
            ("--rules=../cnnbench.toml", "--rules=tools/cnnbench.toml"),
            ("--rules=none", "--rules=none"),
            ("--rules=main:x.toml", "--rules=main:x.toml"),
        ):
            flags, _ = flags_in_file(call, system, given, "--pairs=8", *network)
            assert flags == ["--pairs=8", written, *network]
    git(subfolder, "mv", "tools/cnnbench.toml", "cnnbench.toml")
    git(subfolder, "commit", "--quiet", "-m", "rules in the root")
    assert flags_in_file(call, "github", *network)[0] == network
    monkeypatch.chdir(subfolder)
    assert flags_in_file(call, "github", *network)[0] == network


@pytest.mark.parametrize("path", ["nest.py", "../../../outside.py"])
def test_a_file_of_a_ci_system_without_its_plug_in_is_refused(call, subfolder, tmp_path, path):
    (tmp_path / "outside.py").touch()
    done = call("gate", "--init=github", "--", f"--plugin={path}", code=2)
    assert f"--plugin={path}: " in done.err
    assert "from the root" in done.err
    assert not (subfolder / ".github").exists()


@pytest.mark.usefixtures("measured")
def test_a_refused_plug_in_in_a_subfolder_is_named_from_the_root(call, subfolder, git):
    git(subfolder, "branch", "base")
    commit_files(subfolder, git, "changed", **{"tools/bench/nets.py": "# changed"})
    found = "--plugin=nets.py: cannot be read: No such file or directory; paths count from the root"
    done = call("gate", "base", "--", "--plugin=nets.py", "--model=tiny", code=2)
    assert f"{found} of the repository: --plugin=tools/bench/nets.py\n" in done.err
    done = call("gate", "base", "--", "--plugin=nest.py", "--model=tiny", code=2)
    assert done.err.endswith("; paths count from the root of the repository\n")


def commands(text):
    """The words of the call of cnnbench gate in a script."""
    (line,) = (line for line in text.splitlines() if "cnnbench gate" in line)
    return shlex.split(line.partition("||")[0])


def test_gitlab_runs_what_is_asked(call, repository):
    job = yaml.safe_load(init(call, repository, "gitlab")[".gitlab-ci.yml"])["benchmark"]
    words = commands(job["script"][1])
    assert words[-6:] == [*GATE, "--", *OWN]
    assert job["artifacts"]["reports"]["junit"] == "gate/junit.xml"
    assert job["allow_failure"] == {"exit_codes": 3}


def test_jenkins_runs_what_is_asked(call, repository):
    text = init(call, repository, "jenkins")["Jenkinsfile"]
    assert text.count("'''") == 4
    words = commands(text.replace("\\'", "'").replace("\\\\", "\\"))  # as Groovy reads it
    assert words[-6:] == [*GATE, "--", *OWN]


def workflows(call, repository):
    made = init(call, repository, "github")
    assert [*made] == [".github/workflows/benchmark.yml", ".github/workflows/benchmark-comment.yml"]
    return [yaml.safe_load(text) for text in made.values()]


def test_code_of_strangers_meets_no_secret_and_no_token_that_can_write(call, repository):
    measuring, commenting = workflows(call, repository)
    assert True in measuring  # "on", as YAML 1.1 reads it
    events = ["opened", "synchronize", "reopened", "labeled", "unlabeled"]
    queue = {"types": ["checks_requested"]}
    assert measuring[True] == {"pull_request": {"types": events}, "merge_group": queue}
    assert measuring["permissions"] == {"contents": "read", "pull-requests": "read"}
    steps = measuring["jobs"]["gate"]["steps"]
    (checkout,) = (step for step in steps if "checkout" in step.get("uses", ""))
    assert checkout["with"]["persist-credentials"] is False
    # Only a step before the checkout, in which no code of the repository runs, gets the token.
    given = [step for step in steps if "github.token" in str(step)]
    assert [steps.index(step) for step in given] == [0]
    assert "secrets." not in str((measuring, commenting))
    assert set(commenting[True]) == {"workflow_run"}
    assert commenting["permissions"] == {"actions": "read", "pull-requests": "write"}
    used = [step.get("uses", "") for step in commenting["jobs"]["comment"]["steps"]]
    assert not any("checkout" in one for one in used)


def test_no_expression_is_written_into_a_script(call, repository):
    for workflow in workflows(call, repository):
        for job in workflow["jobs"].values():
            for step in job["steps"]:
                assert "${{" not in step.get("run", "")
                if "cnnbench gate" in step.get("run", ""):
                    assert commands(step["run"])[-6:] == [*GATE, "--", *OWN]


@pytest.mark.parametrize(
    ("origin", "wanted"),
    [
        (None, "cnnbench @ git+https://github.com/OWNER/cnnbench@REVISION"),
        ("git@example.org:tools/cnnbench.git", "cnnbench @ git+https://example.org/tools/cnnbench"),
    ],
)
def test_what_ci_systems_install(repository, git, monkeypatch, origin, wanted, tmp_path):
    """Of a checkout: the address of its origin, at its commit."""
    place = tmp_path / "checkout" / "cnnbench" / "cli" / "commands"
    place.mkdir(parents=True)
    git(tmp_path, "clone", "--quiet", "repository", "made")
    os.rename(tmp_path / "made" / ".git", tmp_path / "checkout" / ".git")
    if origin is None:
        git(tmp_path / "checkout", "remote", "remove", "origin")
    else:
        git(tmp_path / "checkout", "remote", "set-url", "origin", origin)
        wanted = f"{wanted}@{git(repository, 'rev-parse', 'change')}"
    monkeypatch.setattr(gate, "__file__", str(place / "gate.py"))
    assert gate._pip_requirement() == wanted


def test_rules_are_those_of_the_merge_base(call, given, repository, git):
    def gate_rules(*words):
        call("gate", "main", *words, *NETWORK)
        (found,) = (one for one in given[-1] if one.startswith("--rules="))
        return found.removeprefix("--rules=")

    start = git(repository, "rev-parse", "main~1")[:12]
    (repository / "cnnbench.toml").write_text("[[rules]]\nfail_on = 'never'\n")
    git(repository, "add", "cnnbench.toml")
    git(repository, "commit", "--quiet", "-m", "rules of the change")
    assert gate_rules() == "none"
    message = f"--rules=cnnbench.toml: the merge base (commit {start}) lacks this file"
    assert message in call("gate", "main", "--rules=cnnbench.toml", code=2).err
    git(repository, "switch", "--quiet", "-c", "later")
    (repository / "fake.json").write_text("{}")
    git(repository, "commit", "--quiet", "-am", "a later change")
    tip = git(repository, "rev-parse", "change")
    call("gate", "change", *NETWORK)
    assert f"--rules={tip}:cnnbench.toml" in given[-1]
    call("gate", "change", "--rules=none", *NETWORK)
    assert "--rules=none" in given[-1]


def test_a_change_cannot_choose_its_rules_or_its_base_by_the_names_of_its_files(
    call, given, repository, git, tmp_path
):
    git(repository, "switch", "--quiet", "main")
    for name in ("cnnbench.toml", "ci/rules.toml"):
        (repository / name).parent.mkdir(exist_ok=True)
        (repository / name).write_text("[[rules]]\nthreshold = 1\n")
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "-m", "rules")
    tip = git(repository, "rev-parse", "HEAD")
    git(repository, "switch", "--quiet", "-c", "loose")
    for commit in (tip, tip[:12]):
        (repository / f"{commit}:cnnbench.toml").write_text("[[rules]]\nthreshold = 999\n")
        (repository / commit).mkdir()
        (repository / commit / "fake.json").write_text("{}")
    (repository / "ci/rules.toml").unlink()
    (repository / "ci/rules.toml").symlink_to("/dev/null")
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "-m", "loose rules")
    call("gate", "main", *NETWORK)
    assert {f"--rules={tip}:cnnbench.toml", f"--a_checkout={tip}"} <= {*given[-1]}
    for name in ("cnnbench.toml", "ci/rules.toml"):
        for words in ((f"--rules={name}",), (f"--rules={repository / name}",)):
            call("gate", "main", *words, *NETWORK)
            assert f"--rules={tip}:{name}" in given[-1]
            (text,) = (word.partition("=")[2] for word in given[-1] if word.startswith("--rules"))
            assert load_rules(text).rules[0].threshold == 1
    assert resolve_commit("a_checkout", tip) == tip
    with pytest.raises(FlagError, match="is a folder and a revision; use "):
        resolve_commit("a_checkout", tip[:12])


def test_rules_that_are_a_link_are_read_in_the_merge_base(call, given, repository, git, tmp_path):
    git(repository, "switch", "--quiet", "main")
    (tmp_path / "outside.toml").write_text("[[rules]]\nthreshold = 99\n")
    commit_files(repository, git, "rules", **{"ci/real.toml": "[[rules]]\nthreshold = 1\n"})
    links = {"cnnbench.toml": "ci/real.toml", "out.toml": "../outside.toml", "tools": "ci"}
    for name, target in links.items():
        (repository / name).symlink_to(target)
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "-m", "links")
    tip = git(repository, "rev-parse", "HEAD")
    git(repository, "switch", "--quiet", "-c", "loose")
    commit_files(repository, git, "loose", **{"ci/real.toml": "[[rules]]\nthreshold = 999\n"})
    for name, words in {
        "cnnbench.toml": (),
        "tools/real.toml": ("--rules=tools/real.toml",),
        "ci/real.toml": ("--rules=ci/real.toml",),
    }.items():
        call("gate", "main", *words, *NETWORK)
        assert f"--rules={tip}:{name}" in given[-1]
        assert load_rules(f"{tip}:{name}").rules[0].threshold == 1
    with pytest.raises(FlagError, match=rf"{tip}:out.toml: is a link to ../outside.toml, which is"):
        load_rules(f"{tip}:out.toml")
    git(repository, "switch", "--quiet", "main")
    (repository / "cnnbench.toml").unlink()
    (repository / "cnnbench.toml").symlink_to("../outside.toml")
    git(repository, "commit", "--quiet", "-am", "rules outside")
    git(repository, "switch", "--quiet", "-c", "later")
    commit_files(repository, git, "later", **{"fake.json": '{"speed": 1}'})
    done = call("gate", "main", *NETWORK, code=2)
    assert ":cnnbench.toml: is a link to ../outside.toml, which is outside" in done.err
    done = call("gate", "main", "--rules=out.toml", *NETWORK, code=2)
    assert ":out.toml: is a link to ../outside.toml, which is outside" in done.err


def commit_files(repository, git, message, **files):
    for name, text in files.items():
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text(text)
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "--allow-empty", "-m", message)


@pytest.fixture
def pages(repository, git):
    """A branch `pages` that differs from main only in files that no run loads."""
    git(repository, "switch", "--quiet", "main")
    commit_files(repository, git, "pages", **{"docs/a.png": "x", "README.md": "a"})
    git(repository, "switch", "--quiet", "-c", "pages")
    changed = {"README.md": "b", "docs/b.png": "y", "LICENSE.txt": "z", ".github/x.yml": "w"}
    commit_files(repository, git, "pages", **changed)
    return repository


def test_equal_code_is_not_measured(call, given, pages, git, tmp_path, monkeypatch):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    results = f"--results={tmp_path}/results"
    words = ("gate", "main", results, "--format=json", "--", "--model=lenet")
    done = call(*words)
    start, tip = git(pages, "rev-parse", "main", "pages").split()
    document, annotations = json.JSONDecoder().raw_decode(done.out)[0], done.out
    assert document["exit_code"] == 0
    files = [".github/x.yml", "LICENSE.txt", "README.md", "docs/b.png"]
    assert document["same_code"] == {"base": start, "new": tip, "files": files}
    answer = "The measured code is the same: no run loads the 4 files that differ (.github/x.yml, "
    assert document["answer"].startswith(answer)
    assert f"::notice title=cnnbench compare::{answer}".replace(",", ",") in annotations
    comment = (tmp_path / "results/comment.md").read_text()
    assert all(f"- {name}\n" in html.unescape(comment) for name in files)
    suites = ElementTree.parse(tmp_path / "results/junit.xml")
    (case,) = suites.iter("testcase")
    assert [*case] == []
    page = tmp_path / "x.html"
    call("gate", "main", f"--output={page}", "--", "--model=lenet")
    texts = Page(page.read_text()).texts
    assert any(text.startswith(answer) for text in texts["p"])
    assert texts["title"] == [f"HEAD against {start[:12]}"]
    assert {*files} <= {*texts["li"]}
    assert given == []
    call(*(word for word in words if word != results), "--always_measure", code=2)
    call("gate", "main", "--always_measure", "--", "--model=lenet")
    assert not any("always" in word for word in given.pop())
    wrong = call("gate", "main", "--", "--modle=lenet", code=2).err
    assert "--modle" in wrong
    plugin = tmp_path / "net.py"
    plugin.write_text("INITIALISES_ONLY = True\n")
    wrong = call("gate", "main", "-o", plugin, "--", f"--plugin={plugin}", code=2).err
    assert "is an input file of this command" in wrong
    assert plugin.read_text().startswith("INITIALISES_ONLY")


def test_leftovers_of_a_killed_gate_are_removed_if_nothing_is_measured(
    call, given, pages, tmp_path
):
    runs = tmp_path / "results" / "runs"
    (runs / "a").mkdir(parents=True)
    (runs / JOURNAL).write_text('{"event": "sess')  # torn
    words = ("gate", "main", f"--results={tmp_path}/results", "--", "--model=lenet")
    call(*words)
    left = sorted(path.name for path in (tmp_path / "results").iterdir())
    assert (left, given) == (["comment.md", "junit.xml"], [])


@pytest.mark.parametrize(
    ("changed", "flags", "measured"),
    [
        ({}, (), False),
        ({"docs/c.png": "m"}, ("--data_dir=docs",), True),
        ({"bench/notes.txt": "m"}, (), False),  # the rules of the merge base ignore it
        ({"cnnbench.toml": "ignore = ['*']", "bench/new.py": "m"}, (), True),
    ],
)
def test_what_is_not_known_to_be_equal_is_measured(
    call, given, pages, git, changed, flags, measured
):
    git(pages, "switch", "--quiet", "main")
    commit_files(pages, git, "rules", **{"cnnbench.toml": "ignore = ['bench/no*.txt']"})
    git(pages, "switch", "--quiet", "-c", "other")
    commit_files(pages, git, "more", **{"README.md": "c"}, **changed)
    flags = ("--model=lenet", *flags)
    call("gate", "main", "--", *flags)
    assert bool(given) == measured


def test_uncommitted_changes_are_not_measured_and_it_says_so(call, given, pages, git):
    text = "uncommitted changes are not measured"
    assert text not in call("gate", "main", *NETWORK).err
    (pages / "README.md").write_text("uncommitted")
    commit = git(pages, "rev-parse", "HEAD")[:12]
    assert f" {commit}\n" in call("gate", "main", *NETWORK).err
    assert text not in call("gate", "main", "change", *NETWORK).err
    assert text in call("gate", "pages", *NETWORK, code=2).err


@pytest.mark.slow
@pytest.mark.usefixtures("measured")
def test_a_plug_in_that_one_side_lacks_is_named_with_the_side_and_its_commit(
    call, repository, git, transcript
):
    plugin = Path(__file__).parents[3] / "docs/examples/tiny_plugin.py"
    commit_files(repository, git, "plug-in", **{"bench/nets.py": plugin.read_text()})
    git(repository, "branch", "new")
    words = ("--", "--plugin=bench/nets.py", "--model=tiny")
    lacks_a = call("gate", "main", *words, code=2).err
    start = git(repository, "rev-parse", "main~1")[:12]
    assert f"side A (commit {start}): --plugin=bench/nets.py: " in lacks_a
    git(repository, "rm", "--quiet", "bench/nets.py")
    git(repository, "commit", "--quiet", "-m", "without")
    tip = git(repository, "rev-parse", "HEAD")[:12]
    lacks_b = call("gate", "new", *words, code=2).err
    assert f"side B (HEAD, commit {tip}): --plugin=bench/nets.py: " in lacks_b
    transcript("plug-in", lacks_a)


@pytest.mark.usefixtures("measured")
def test_a_slowdown_is_accepted_by_a_flag(call, tmp_path):
    words = (f"--results={tmp_path}/flag", "--accept=label *slow*", *SHORT, *NETWORK)
    call("gate", "main", *words)
    assert "--accept (label &#42;slow&#42;)" in (tmp_path / "flag" / "comment.md").read_text()
