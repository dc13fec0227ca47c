"""`cnnbench history`: what it writes, where, and how it ends."""

import csv
import json

import pytest

from cnnbench.judge.history import METRICS
from cnnbench.records.run import ModelInfo
from cnnbench.records.subject import Subject


@pytest.fixture
def measured_commits(lenet_runs, saved, tmp_path):
    """measured_commits(FACTOR, COMMIT): the folder with a record per commit; from the ninth of
    twelve on, the speed changes by the factor.
    """

    def make(factor, commit="c{}".format):
        run, name = lenet_runs(), f"results-{factor}"
        records = (
            run(
                (100.0, 100.4, 99.7)[number % 3] * (1.0 if number < 8 else factor),
                started_at=f"2026-11-{number + 1:02}T00:00:00+00:00",
                flags={"result_label": f"commit={commit(number)}"},
            )
            for number in range(12)
        )
        return saved(tmp_path / name, records)

    return make


@pytest.fixture
def folder(measured_commits):
    return measured_commits(0.8)


def test_names_last_good_and_first_bad_and_fails_where_that_is_asked_for(call, folder):
    assert "last good c7, first bad c8" in " ".join(call("history", folder).out.split())
    out, err = call("history", folder, "--fail_on=step", code=1)
    assert "first bad c8" in " ".join(out.split())
    assert err == "cnnbench: --fail_on=step: 1 regression has not been undone\n"
    out = call("history", folder, "--fail_on=step", "--threshold=30").out
    assert "\nSteps: No regression\n" in out
    # Of speed more is better, of time less.
    call("history", folder, "--fail_on=step", "--metric=step_seconds", code=1)


SIZES = [
    ModelInfo(
        name="lenet",
        parameters=1000 * size,
        trainable_parameters=1000 * size,
        forward_flops_per_image=10**6 * size,
        training_flops_per_image=3 * 10**6 * size,
    )
    for size in (1, 2)
]


def test_another_network_begins_a_series_of_its_own(call, lenet_runs, tmp_path, saved):
    run, runs = lenet_runs(), []
    for number in range(12):
        size = number // 6
        label = {"result_label": f"commit=c{number}"}
        speed = 100.0 / (size + 1) + number % 3 / 10
        runs.append(run(speed, model=SIZES[size], flags=label))
    # It ended before its network was known.
    runs.append(run(None, model=None, flags=label, error=("Error", "no memory")))
    folder = saved(tmp_path / "results", runs)
    out = call("history", folder, "--fail_on=step").out
    words = [f"network of {n},000 parameters, {3 * n},000,000/{n},000,000 FLOPs" for n in (1, 2)]
    assert f"lenet, batch 8, 1 cpu, {words[1]} on" in out
    assert f"another network before: {words[0]}, not compared" in " ".join(out.split())
    document = json.loads(call("history", folder, "--format=json").out)
    assert sorted(len(one["points"]) for one in document["series"]) == [6, 6]
    (last,) = [one for one in document["series"] if words[1] in one["configuration"]]
    assert last["points"][-1]["failed"] == 1
    # A report has a row of each, too.
    assert len(rows(call("report", folder, "--format=csv"))) == 12


def rows(printed):
    return list(csv.DictReader(printed.out.splitlines()))


def test_all_metrics(call, lenet_runs, saved, tmp_path):
    folder = saved(tmp_path / "one", [lenet_runs()()])
    for metric in (name for name, one in METRICS.items() if "run" in one.kinds):
        assert call("history", folder, f"--metric={metric}").out.startswith(f"{metric}, ")


def test_selections(call, folder):
    out = call("history", folder, "--since=2026-11-09", "--machine=bo*", "--last=2", "--by=run").out
    assert "2 earlier points" in out
    assert "run11" in out
    assert "none of 12 runs" in call("history", folder, "--machine=gone", code=2).err


@pytest.fixture
def measured(lenet_runs, saved, tmp_path):
    """measured(SUBJECT...): the folder with a run of each."""
    run = lenet_runs()
    return lambda *subjects: saved(
        tmp_path / "measured", [run(100.0 + n, subject=one) for n, one in enumerate(subjects)]
    )


def test_uncommitted_states_of_a_commit_are_points_and_rows_of_their_own(call, measured):
    commit = {"repository": "nets", "revision": "a" * 40}
    states = [Subject(**commit, dirty=True, changes=digit * 16) for digit in "121"]
    folder = measured(Subject(**commit, dirty=False), *states)
    out, err = call("history", folder)
    assert err == ""
    short = "a" * 12
    names = [line.split("  ")[0] for line in out.splitlines() if line.startswith(short)]
    assert names == [f"{short} ({short}{state})" for state in ("", "+1111111", "+2222222")]
    assert len(rows(call("report", folder, "--format=csv"))) == 3


@pytest.mark.parametrize("command", ["history", "report --format=csv"])
def test_it_is_said_that_commits_are_unknown(call, measured, command):
    folder = measured(
        Subject(unknown="not safe"), Subject(unknown="not safe"), Subject(revision="b")
    )
    words = command.split()
    _, err = call(words[0], folder, *words[1:])
    said = "the commit of 2 measurements is unknown, and may be several"
    end = "(--quiet_conditions=commit silences this)"
    assert err == f"cnnbench: warning: {said}: not safe {end}\n"
    assert call(words[0], folder, *words[1:], "--quiet_conditions=commit").err == ""


@pytest.fixture
def over_branches(lenet_runs, tmp_path, saved, nets):
    """A repository, its commits, and the folder of records of two machines over these.

    m4 on the main line is slower; the branch that is merged after it was begun before.
    """
    repository, made = nets
    run, records = lenet_runs(), []
    fast = {"m1", "m2", "m3", "b1", "b2"}
    for name, commit in {**made, "v1": "v1"}.items():
        speed = 100.0 if name in fast else 80.0
        for machine, factor in (("Fast CPU", 1.0), ("Slow CPU", 0.5)):
            label = {"result_label": f"commit={commit}"}
            facts = {"cpu_model": machine, "usable_cpus": 2}
            records.append(run(speed * factor, flags=label, environment=facts))
    return repository, made, saved(tmp_path / "results", records)


@pytest.mark.slow
def test_machines_and_what_became_of_commits_are_said_in_all_outputs(call, over_branches, tmp_path):
    repository, made, folder = over_branches
    short = {name: commit[:12] for name, commit in made.items()}
    words = ("history", folder, f"--git={repository}", "--fail_on=step")
    page = tmp_path / "page.md"
    text = " ".join(call(*words, f"--plot={page}", code=1).out.split())
    document = json.loads(call(*words, "--format=json", code=1).out)
    remarks = document["remarks"]
    assert remarks[0].startswith("2 machines are not compared with each other: 21 points on ")
    assert remarks[1].startswith(f"{short['merge']} is a merge.")
    told = " ".join(remarks)
    assert all(short[name] in told for name in ("r1", "s2", "s1", "m8", "o1", "m6"))
    report = call("report", folder, f"--git={repository}", "--format=markdown").out
    for remark in remarks:
        assert all(remark in one for one in (text, page.read_text(), report))
    assert "the point before it" not in told


def test_rules_of_history(call, measured_commits, tmp_path, monkeypatch, git):
    monkeypatch.chdir(tmp_path)
    rules = tmp_path / "cnnbench.toml"
    folder = measured_commits(0.8, "c0ffee{:02}".format)
    words = ("history", folder, "--fail_on=step", "--format=json")
    report = ("report", folder, "--fail_on=step", "--format=csv")
    rules.write_text("[[rules]]\nconfigurations = 'lenet*'\nthreshold = 60\n")
    assert json.loads(call(*words).out)["series"][0]["steps"] == []
    call(*words, "--threshold=3", code=1)
    call(*report)
    accepted = "[[accept]]\ncommit = 'c0ffee07'\nreason = 'x'\nuntil = 2999-01-01\n"
    rules.write_text(accepted)
    call(*words, code=1)
    accepted = accepted.replace("07", "08")
    rules.write_text(accepted)
    found = json.loads(call(*words, "--plot=page.md").out)
    assert (found["regressions"], found["accepted"]) == ([], [0])
    assert "1 regression is accepted" in (tmp_path / "page.md").read_text()
    call(*report)
    rules.write_text(accepted.replace("2999", "2020"))
    call(*words, code=1)
    call(*report, code=1)
    # A commit that nobody knows is named; a measured one need not be in the repository.
    git(tmp_path, "init", "--quiet")
    rules.write_text(accepted + accepted.replace("c0ffee08", "0ddba11"))
    remark = json.loads(call(*words).out)["remarks"][-1]
    assert remark.startswith("cnnbench.toml: 1 ")
    assert ("0ddba11" in remark, "c0ffee08" in remark) == (True, False)


def test_the_message_of_a_commit_accepts_a_step(call, measured_commits, tmp_path, monkeypatch, git):
    monkeypatch.chdir(tmp_path)
    git(tmp_path, "init", "--quiet")

    def commit(number):
        message = "cnnbench-accept: slower lenet: wider" if number == 8 else "x"
        git(tmp_path, "commit", "--quiet", "--allow-empty", "-m", message)
        return git(tmp_path, "rev-parse", "HEAD")

    words = ("history", measured_commits(0.8, commit), "--fail_on=step", "--format=json")
    call(*words, code=1)
    (tmp_path / "cnnbench.toml").write_text("accept_by_message = true\n")
    found = json.loads(call(*words).out)
    assert (found["regressions"], found["accepted"]) == ([], [0])


def test_a_gain_fails_where_that_is_asked_for(call, folder, measured_commits, tmp_path):
    for words in ("slower", "step,faster"):
        call("history", folder, f"--fail_on={words}", code=1)
    for words in ("faster", "never"):
        call("history", folder, f"--fail_on={words}")
    better, page = measured_commits(1.2), tmp_path / "page.md"
    call("history", better, "--fail_on=step")
    words = ("history", better, "--fail_on=step,faster", "--format=json", f"--plot={page}")
    out, err = call(*words, code=1)
    assert err == "cnnbench: --fail_on=step,faster: 1 gain has not been undone\n"
    assert json.loads(out)["failed_on"] == ["faster"]
    assert "1 gain has not been undone" in page.read_text()


def test_a_step_that_only_the_cpu_time_shows_is_named(call, lenet_runs, tmp_path, saved):
    """Other programs on the machine make the throughput too noisy."""
    run, records = lenet_runs(), []
    for index in range(16):
        speed, seconds = 100.0 + 30 * ((7 * index) % 5 - 2), 0.020 if index < 8 else 0.030
        label = {"result_label": f"commit=c{index:02}"}
        records.append(run(speed, flags=label, step_cpu_seconds=(seconds,) * 3))
    out = " ".join(call("history", saved(tmp_path / "noisy", records)).out.split())
    assert "only cpu_time has a step: worse: +50.0 %" in out
    assert "--metric=cpu_time shows it" in out
