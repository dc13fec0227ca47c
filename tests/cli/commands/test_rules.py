"""Rules by configuration and metric, from files of the current folder, --rules and commits.

Tests cnnbench/cli/commands/judging.py.
"""

from __future__ import annotations

import json
import math
import os
import subprocess

import pytest

from cnnbench.records.subject import Subject

BASE, NEW = ("a" * 40, "b" * 40)


@pytest.fixture
def sides(save, tmp_path, monkeypatch):
    """Folders of two revisions: as fast, 10 % slower and 10 % faster; the current folder."""
    monkeypatch.chdir(tmp_path)
    base = save(tmp_path / "base", subject=Subject(revision=BASE, dirty=False))
    subject = Subject(revision=NEW, dirty=False)
    new = {
        name: save(tmp_path / name, factor, subject=subject)
        for name, factor in {"same": 1.0, "slower": 0.9, "faster": 1.1}.items()
    }
    return lambda name: ("compare", base, new[name])


def rules(text, file="cnnbench.toml"):
    with open(file, "w", encoding="utf-8") as out:
        out.write(text)


def test_the_first_rule_that_fits_decides_and_the_answer_names_it(call, sides, transcript):
    rules(
        """
        [[rules]]
        configurations = "vgg*"
        threshold = 1
        [[rules]]
        configurations = ["resnet*", "lenet*"]
        fail_on = ["slower", "faster"]
        [[rules]]
        fail_on = "never"
        """
    )
    document = json.loads(call(*sides("faster"), "--format=json", code=1).out)
    transcript("notes", "\n".join(note for note in document["notes"] if "rule" in note))
    document = json.loads(call(*sides("slower"), "--format=json", code=1).out)
    (entry,) = document["configurations"]
    assert entry["rule"] == "rule 2 (resnet*, lenet*)"
    assert document["rules"]["source"] == "cnnbench.toml"
    digest = document["rules"]["digest"]
    assert any(digest in one and "rule 3 (*)" in one for one in document["notes"])
    with open("cnnbench.toml", "a", encoding="utf-8") as file:
        file.write("# a comment does not change the digest\n")
    again = json.loads(call(*sides("slower"), "--format=json", code=1).out)
    assert again["rules"]["digest"] == digest


def test_thresholds_and_flags_that_override_them(call, sides):
    rules("[[rules]]\nthreshold = 15\nmetrics.throughput.fail_on = ['slower', 'faster']\n")
    assert "= same" in call(*sides("slower")).out
    assert "- slower" in call(*sides("slower"), "--threshold=3", code=1).out
    assert "- slower" in call(*sides("slower"), "--rules=none", code=1).out
    call(*sides("faster"), "--threshold=3", code=1)
    call(*sides("faster"), "--threshold=3", "--fail_on=never")


def test_a_rule_for_a_metric_changes_only_this_metric(call, sides):
    without = json.loads(call(*sides("slower"), "--format=json", code=1).out)
    rules("[[rules]]\nmetrics.memory = { threshold = 5 }\n")
    document = json.loads(call(*sides("slower"), "--format=json", code=1).out)
    assert document["configurations"][0]["results"] == without["configurations"][0]["results"]
    assert document["metrics"] == without["metrics"]
    (note,) = (note for note in document["notes"] if "rule 1" in note)
    assert "lenet, batch 8, 1 cpu: memory: threshold 5" in note
    rules("[[rules]]\nmetrics.throughput = { threshold = 15 }\n")
    assert "= same" in call(*sides("slower")).out


def test_judge_selects_metrics_and_the_answer_says_what_it_removes(call, sides, transcript):
    rules(
        "[[rules]]\njudge = ['throughput', 'memory']\n"
        "metrics = {throughput = {fail_on = 'never'}, memory = {share = 0.25}}\n"
    )
    document = json.loads(call(*sides("slower"), "--format=json", code=3).out)
    asked = {one["metric"]: one["verdict"] for one in document["configurations"][0]["results"]}
    assert asked == {"throughput": "slower", "memory": "not measured"}
    (note,) = (note for note in document["notes"] if "rule 1" in note)
    assert "0.25" in note
    transcript("note", note)
    usual = call(*sides("slower"), "--metrics=throughput", "--format=json").out
    assert [*json.loads(usual)["metrics"]] == ["throughput"]
    assert "judges" not in usual
    # A single metric has the level that it has with --metrics.
    rules("[[rules]]\njudge = 'throughput'\n")
    (by_rule,) = json.loads(call(*sides("slower"), "--format=json", code=1).out)["configurations"]
    words = ("--rules=none", "--metrics=throughput", "--format=json")
    (by_flag,) = json.loads(call(*sides("slower"), *words, code=1).out)["configurations"]
    assert by_rule["results"] == by_flag["results"]


def test_a_rule_can_make_a_metric_fail_that_is_judged_but_not_requested(
    call, lenet_runs, saved, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    make = lenet_runs()
    sides = (
        make.with_startup(*(factor * 0.01 + 5 * slower for factor in range(5))) for slower in (1, 2)
    )
    folders = [saved(tmp_path / name, runs) for name, runs in zip("ab", sides, strict=True)]
    words = ("compare", *folders)
    call(*words)
    rules("[[rules]]\nmetrics.startup.fail_on = 'slower'\n")
    call(*words, code=1)
    rules("[[rules]]\nmetrics.startup = {fail_on = 'slower', threshold = 200}\n")
    call(*words)


def test_rules_of_a_folder_above_are_used_up_to_the_top_of_the_repository(
    call, sides, tmp_path, monkeypatch
):
    top, below = tmp_path / "top", tmp_path / "top/bench/nets"
    below.mkdir(parents=True)
    rules("[[rules]]\nfail_on = 'never'\n", top / "cnnbench.toml")
    monkeypatch.chdir(below)
    call(*sides("slower"), code=1)
    (top / ".git").mkdir()
    assert "../../cnnbench.toml, digest" in call(*sides("slower")).out
    rules("[tool.cnnbench]\nrules = []\n", top / "bench/pyproject.toml")
    call(*sides("slower"), code=1)


def test_files_of_rules_that_are_no_files(call, sides, transcript):
    os.mkfifo("pipe")
    for name in ("pipe", "/dev/zero"):
        err = call(*sides("slower"), f"--rules={name}", code=2).err
        assert f"--rules={name}: " in err
        transcript(name, err)
    rules("\ufeff[[rules]]\nfail_on = 'never'\n")
    call(*sides("slower"))


def test_metrics_that_are_asked_for_share_alpha(call, sides):
    def p_values(metrics):
        document = json.loads(call(*sides("slower"), metrics, "--format=json", code=1).out)
        return [one["p_adjusted"] for one in document["configurations"][0]["results"]]

    separated = 2 / math.comb(10, 5)
    assert p_values("--metrics=throughput") == pytest.approx([separated])
    both = "--metrics=throughput,images_per_sec"
    # Both have changed, so each has the level of two changes.
    assert p_values(both) == pytest.approx([separated] * 2)
    assert "96 % interval" in call(*sides("slower"), both, code=1).out
    call(*sides("slower"), both, "--alpha=0.007", code=3)


def test_cnnbench_toml_comes_before_pyproject_toml(call, sides):
    rules("[tool.other]\nx = 1\n", "pyproject.toml")
    assert "rules" not in json.loads(call(*sides("slower"), "--format=json", code=1).out)
    rules("[[tool.cnnbench.rules]]\nfail_on = 'never'\n", "pyproject.toml")
    call(*sides("slower"))
    rules("[[rules]]\nfail_on = 'slower'\n")
    call(*sides("slower"), code=1)
    call(*sides("slower"), "--rules=pyproject.toml")


@pytest.mark.parametrize(
    ("text", "named"),
    [("[[rules", "TOML"), ("[[rules]]\nthreshold = " + "[" * 9000, "TOML"), ("x = 1", '"x"')],
)
def test_wrong_rules_are_refused_by_file_and_key(call, sides, text, named):
    rules(text)
    err = call(*sides("slower"), code=2).err
    assert err.count("\n") == 1
    assert err.startswith("cnnbench: error: cnnbench.toml: ")
    assert named in err
    call(*sides("slower"), "--rules=none", code=1)


def test_files_that_cannot_be_read(call, sides, transcript):
    missing = call(*sides("slower"), "--rules=gone.toml", code=2).err
    assert "--rules=gone.toml: " in missing
    rules("", "pyproject.toml")
    call(*sides("slower"), code=1)
    other = call(*sides("slower"), "--rules=pyproject.toml", code=2).err
    assert "--rules=pyproject.toml: " in other
    assert "--rules=HEAD:x: " in call(*sides("slower"), "--rules=HEAD:x", code=2).err
    transcript("files", missing + other)


def test_an_accepted_commit_stays_in_the_answer_until_its_end(call, sides, transcript):
    accept = f"[[accept]]\ncommit = '{NEW[:9]}'\nreason = 'a wider stem'\n"
    rules(f"{accept}until = 2999-12-31\n")
    document = json.loads(call(*sides("slower"), "--format=json").out)
    transcript("accepted", document["answer"])
    result = document["configurations"][0]["results"][0]
    assert (result["verdict"], result["accepted"]["reason"]) == ("slower", "a wider stem")
    assert "::error" not in call(*sides("slower"), "--format=github").out
    for other in (
        accept.replace("bbb", "ccc") + "until = 2999-12-31\n",
        f"{accept}until = 2999-12-31\nmetrics = 'memory'\n",
        f"{accept}until = 2999-12-31\nconfigurations = 'vgg*'\n",
        f"{accept}until = 2020-02-29\n",
    ):
        rules(other)
        document = json.loads(call(*sides("slower"), "--format=json", code=1).out)
        assert NEW[:9] not in document["answer"]
    (note,) = (note for note in document["notes"] if NEW[:9] in note)
    assert "2020-02-29" in note
    transcript("ended", note)


def test_rules_of_a_commit(call, sides):
    def git(*words):
        subprocess.run(["git", "-c", "user.name=x", "-c", "user.email=x", *words], check=True)

    git("init", "-q", "-b", "main")
    rules("[[rules]]\nfail_on = 'slower'\n")
    git("add", "cnnbench.toml")
    git("commit", "-q", "-m", "rules")
    rules("[[rules]]\nfail_on = 'never'\n")
    call(*sides("slower"))
    call(*sides("slower"), "--rules=main:cnnbench.toml", code=1)
    rules("[[rules]]\nfail_on = 'never'\n", "main:cnnbench.toml")
    call(*sides("slower"), "--rules=main:cnnbench.toml", code=1)
    call(*sides("slower"), "--rules=./main:cnnbench.toml")
    rules("", "own:rules.toml")
    err = call(*sides("slower"), "--rules=own:rules.toml", code=2).err
    assert "./own:rules.toml" in err


@pytest.fixture
def change(call, save, git, tmp_path, monkeypatch):
    """change(MESSAGE): the folders of a commit and of a slower commit with this message."""
    monkeypatch.chdir(tmp_path)
    git(tmp_path, "init", "--quiet", "--initial-branch=main")

    def measured(message, name):
        git(tmp_path, "commit", "--quiet", "--allow-empty", "-m", message)
        commit = git(tmp_path, "rev-parse", "HEAD")
        factor = 0.9 if name == "new" else 1.0
        return save(tmp_path / name, factor, subject=Subject(revision=commit, dirty=False))

    def change(message):
        folders = [measured(text, name) for name, text in {"base": "base", "new": message}.items()]
        return "compare", *folders, "--format=json"

    return change


LINE = "cnnbench-accept: slower lenet: more layers: 4 % slower"


@pytest.mark.parametrize(
    ("message", "accepted"),
    [
        (f"wider\n\n{LINE}\n", True),
        (LINE.replace("lenet", "lenet, batch 8*"), True),
        (LINE.replace("lenet", "*"), True),
        (LINE.replace("lenet", "len"), False),
        (LINE.replace("slower ", "changed ", 1), False),
        (f"see {LINE}", False),
        ("cnnbench-accept: slower lenet", False),
    ],
)
def test_the_message_of_a_commit_accepts_a_regression_if_rules_allow_it(
    call, change, message, accepted
):
    words = change(message)
    denied = json.loads(call(*words, code=1).out)
    assert any("accept_by_message = true" in note for note in denied["notes"]) == accepted
    rules("accept_by_message = true\n")
    document = json.loads(call(*words, code=0 if accepted else 1).out)
    assert ("(more layers: 4 % slower)" in document["answer"]) == accepted
    rules("accept_by_message = 1\n")
    assert "accept_by_message: " in call(*words, code=2).err


def test_a_flag_accepts_all_regressions_of_new(call, sides):
    assert "(label accept-slower)" in call(*sides("slower"), "--accept=label accept-slower").out
    document = json.loads(call(*sides("slower"), "--accept=label", "--format=json").out)
    (throughput,) = (
        one for one in document["configurations"][0]["results"] if one["verdict"] == "slower"
    )
    assert throughput["accepted"]["reason"] == "label"
    assert "--accept= : " in call(*sides("slower"), "--accept= ", code=2).err


def test_accepted_commits_that_do_not_exist_are_named(call, change):
    words = change("wider")
    table = "[[accept]]\ncommit = '{:07x}'\nreason = 'x'\nuntil = 2999-12-31\n"
    rules("".join(table.format(number) for number in range(16, 5016)))
    (note,) = (note for note in json.loads(call(*words, code=1).out)["notes"] if "accepted" in note)
    assert note.startswith("cnnbench.toml: 5000 ")
    assert "0000010" in note
