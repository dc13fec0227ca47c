"""`cnnbench history`: what it writes, where, and how it ends."""

import csv
import json
from dataclasses import replace

import pytest

from cnnbench.judge.history import METRICS
from cnnbench.records.run import ModelInfo
from cnnbench.records.subject import Subject


@pytest.fixture
def folder(lenet_runs, tmp_path, saved):
    """A record per commit, the last four of twelve a fifth slower."""
    run = lenet_runs()
    records = (
        run(
            (100.0, 100.4, 99.7)[number % 3] * (1.0 if number < 8 else 0.8),
            started_at=f"2026-11-{number + 1:02}T00:00:00+00:00",
            flags={"result_label": f"commit=c{number}"},
        )
        for number in range(12)
    )
    return saved(tmp_path / "results", records)


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


@pytest.fixture
def changed_network(lenet_runs, tmp_path, saved):
    """changed_network(FIRST, SECOND): six commits of one network, and six of one twice as slow."""

    def make(*sizes):
        run, runs = lenet_runs(), []
        for number in range(12):
            size = sizes[number >= 6]
            label = {"result_label": f"commit=c{number}"}
            speed = 100.0 / (size + 1) + number % 3 / 10
            runs.append(run(speed, model=SIZES[size], flags=label))
        # It ended before its network was known.
        runs.append(run(None, model=None, flags=label, error=("Error", "no memory")))
        return saved(tmp_path / "results", runs)

    return make


@pytest.mark.parametrize("sizes", [(0, 1), (1, 0)])
def test_another_network_begins_a_series_of_its_own(call, changed_network, sizes):
    folder = changed_network(*sizes)
    out = call("history", folder, "--fail_on=step").out
    words = [f"network of {n},000 parameters, {3 * n},000,000/{n},000,000 FLOPs" for n in (1, 2)]
    before, after = (words[size] for size in sizes)
    assert f"lenet, batch 8, 1 cpu, {after} on" in out
    assert f"another network before: {before}, not compared" in " ".join(out.split())
    assert not any(line.strip().startswith(("- worse", "+ better")) for line in out.splitlines())
    document = json.loads(call("history", folder, "--format=json").out)
    assert sorted(len(one["points"]) for one in document["series"]) == [6, 6]
    (last,) = [one for one in document["series"] if after in one["configuration"]]
    assert last["points"][-1]["failed"] == 1


def test_a_machine_of_two_states_is_named_and_does_not_fail_the_job(
    call, lenet_runs, tmp_path, saved
):
    run = lenet_runs()
    states = "FSFFSFFFSFFSSFFFSFFSSS"
    speeds = [(70.0 if one == "S" else 100.0) + index % 5 / 5 for index, one in enumerate(states)]
    runs = [run(v, flags={"result_label": f"commit=c{i:02}"}) for i, v in enumerate(speeds)]
    folder = saved(tmp_path, runs)
    out = " ".join(call("history", folder, "--fail_on=step").out.split())
    assert "noise of two states: -29.9 % in 9 of 22 runs, alternating" in out
    lasting = [run(68.0, flags={"result_label": f"commit=d{i:02}"}) for i in range(16)]
    saved(tmp_path, lasting)
    assert "worse: -3" in call("history", folder, "--fail_on=step", code=1).out


def test_two_networks_of_one_commit_are_not_pooled(call, lenet_runs, tmp_path, saved):
    run, flags = lenet_runs(), {"result_label": "commit=c1"}
    runs = [run(speed, model=SIZES[size], flags=flags) for size, speed in ((0, 100.0), (1, 50.0))]
    runs.append(run(None, model=None, flags=flags, error=("Error", "no memory")))
    folder = saved(tmp_path, [*runs, run(101.0, model=SIZES[0], flags=flags)])
    values = [row["value"] for row in rows(call("history", folder, "--format=csv"))]
    assert sorted(map(float, values)) == pytest.approx([50.0, 100.5])
    table = rows(call("report", folder, "--format=csv"))
    speeds = [float(row["throughput_images_per_sec"]) for row in table]
    assert sorted(speeds) == pytest.approx([50.0, 100.5])
    assert sorted(row["parameters"] for row in table) == ["1000", "2000"]


def test_abbreviations_of_a_commit_are_one_point_and_one_row(call, lenet_runs, tmp_path, saved):
    run, commit = lenet_runs(), "abcdef0123" * 4
    labels = (commit[:7], commit[:12], commit, commit[:6] + "1")
    runs = [run(flags={"result_label": f"commit={label}"}) for label in labels]
    folder = saved(tmp_path, runs)
    points = rows(call("history", folder, "--format=csv"))
    assert [(row["commit"], row["processes"]) for row in points] == [
        (commit, "3"),
        (labels[-1], "1"),
    ]
    table = rows(call("report", folder, "--format=csv"))
    assert [row["processes"] for row in table] == ["3", "1"]
    # Of two commits that begin with it, it may be either.
    label = f"commit={commit[:-1]}f"
    saved(tmp_path, [run(flags={"result_label": label})])
    points = rows(call("history", folder, "--format=csv"))
    expected = {commit[:7]: "1", commit[:12]: "1", commit: "1", labels[-1]: "1", label[7:]: "1"}
    assert {row["commit"]: row["processes"] for row in points} == expected
    sides = [saved(tmp_path / name, one) for name, one in (("a", runs[:3]), ("b", runs[3:]))]
    assert "within" not in call("compare", *sides, code=3).out


def rows(printed):
    return list(csv.DictReader(printed.out.splitlines()))


@pytest.mark.parametrize("metric", [name for name, one in METRICS.items() if "run" in one.kinds])
def test_all_metrics(call, folder, metric):
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
    points = {
        line.split("  ")[0]: line.split()[-1] for line in out.splitlines() if line.startswith(short)
    }
    assert points == {
        f"{short} ({short})": "1",
        f"{short} ({short}+1111111)": "2",
        f"{short} ({short}+2222222)": "1",
    }
    rows = call("report", folder, "--format=csv").out.splitlines()[1:]
    assert len(rows) == 3
    out = call("history", folder, "--format=openmetrics").out
    assert 'changes="1111111111111111"' in out


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
    assert remarks[:2] == [
        "2 machines are not compared with each other: 21 points on Fast CPU, 2 CPUs; "
        "21 points on Slow CPU, 2 CPUs.",
        f"{short['merge']} is a merge. Before it, its branches had 80.00 images/sec at "
        f"{short['m4']} and 100.0 images/sec at {short['b2']} (lenet, batch 8, 1 cpu).",
    ]
    told = " ".join(remarks)
    for name, told_of in (
        *(("r1", "now"), ("s2", "squash"), ("s1", "on no branch or tag"), ("m8", "v1")),
        *(("o1", "HEAD does not contain"), ("m6", "reverts")),
    ):
        assert short[name] in told
        assert told_of in told
    report = call("report", folder, f"--git={repository}", "--format=markdown").out
    for remark in remarks:
        assert all(remark in one for one in (text, page.read_text(), report))
    assert "the point before it" not in told


def test_a_step_between_two_branches_is_called_so(call, over_branches):
    repository, made, folder = over_branches
    for file in folder.iterdir():
        if any(made[name] in file.read_text() for name in ("m4", "merge")):
            file.unlink()
    remarks = json.loads(call("history", folder, f"--git={repository}", "--format=json").out)[
        "remarks"
    ]
    assert f"{made['r1'][:12]} does not contain" not in " ".join(remarks)  # it has no place


def test_rules_of_history(call, lenet_runs, saved, tmp_path, monkeypatch, git):
    monkeypatch.chdir(tmp_path)
    run, rules = lenet_runs(), tmp_path / "cnnbench.toml"
    records = [
        run(
            (100.0, 100.4, 99.7)[n % 3] * (1.0 if n < 8 else 0.8),
            started_at=f"2026-11-{n + 1:02}T00:00:00+00:00",
            flags={"result_label": f"commit=c0ffee{n:02}"},
        )
        for n in range(12)
    ]
    words = ("history", saved(tmp_path / "results", records), "--fail_on=step", "--format=json")
    report = ("report", words[1], "--fail_on=step", "--format=csv")
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


def test_the_message_of_a_commit_accepts_a_step(
    call, lenet_runs, saved, tmp_path, monkeypatch, git
):
    monkeypatch.chdir(tmp_path)
    git(tmp_path, "init", "--quiet")
    run, records = lenet_runs(), []
    for n in range(12):
        message = "cnnbench-accept: slower lenet: wider" if n == 8 else "x"
        git(tmp_path, "commit", "--quiet", "--allow-empty", "-m", message)
        commit = git(tmp_path, "rev-parse", "HEAD")
        records.append(
            run(
                (100.0, 100.4, 99.7)[n % 3] * (1.0 if n < 8 else 0.8),
                started_at=f"2026-11-{n + 1:02}T00:00:00+00:00",
                flags={"result_label": f"commit={commit}"},
            )
        )
    words = ("history", saved(tmp_path / "results", records), "--fail_on=step", "--format=json")
    call(*words, code=1)
    (tmp_path / "cnnbench.toml").write_text("accept_by_message = true\n")
    found = json.loads(call(*words).out)
    assert (found["regressions"], found["accepted"]) == ([], [0])


def test_a_gain_fails_where_that_is_asked_for(call, folder, lenet_runs, saved, tmp_path):
    for words in ("slower", "step,faster"):
        call("history", folder, f"--fail_on={words}", code=1)
    for words in ("faster", "never", "nothing"):
        call("history", folder, f"--fail_on={words}")
    run = lenet_runs()
    speeds = [(100.0, 100.4, 99.7)[n % 3] * (1.0 if n < 8 else 1.2) for n in range(12)]
    gain = [
        run(
            v,
            started_at=f"2026-11-{n + 1:02}T00:00:00+00:00",
            flags={"result_label": f"commit=c{n}"},
        )
        for n, v in enumerate(speeds)
    ]
    better = saved(tmp_path / "better", gain)
    call("history", better, "--fail_on=step")
    page = tmp_path / "page.md"
    words = ("history", better, "--fail_on=step,faster", "--format=json", f"--plot={page}")
    out, err = call(*words, code=1)
    assert err == "cnnbench: --fail_on=step,faster: 1 gain has not been undone\n"
    assert json.loads(out)["failed_on"] == ["faster"]
    assert "1 gain has not been undone" in page.read_text()


def test_a_step_that_only_the_cpu_time_shows_is_named(lenet_runs, tmp_path, saved, call):
    """Other programs on the machine make the throughput too noisy."""
    make = lenet_runs()
    records = []
    for index in range(16):
        cpu = 0.020 if index < 8 else 0.030
        speed = 100.0 + 30 * ((7 * index) % 5 - 2)
        flags = {"result_label": f"commit={'abcdef0123456789'[index] * 40}"}
        record = make(speed, flags=flags)
        cpu_seconds = tuple(cpu for _ in record.step_seconds)
        records.append(replace(record, step_cpu_seconds=cpu_seconds))
    saved(tmp_path / "noisy", records)
    out = " ".join(call("history", tmp_path / "noisy").out.split())
    assert "only cpu_time has a step: worse: +50.0 %" in out
    assert "--metric=cpu_time shows it" in out
    document = json.loads(call("history", tmp_path / "noisy", "--format=json").out)
    assert any("--metric=cpu_time" in remark for remark in document["remarks"])
