"""Rules as commands use them; tests/judge/metrics/test_rules.py has files of rules.

Tests cnnbench/cli/commands/judging.py.
"""

from __future__ import annotations

import json

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
    (entry,) = document["configurations"]
    assert entry["rule"] == "rule 2 (resnet*, lenet*)"
    assert document["rules"]["source"] == "cnnbench.toml"
    assert any(document["rules"]["digest"] in note for note in document["notes"])


def test_thresholds_and_flags_that_override_them(call, sides):
    rules("[[rules]]\nthreshold = 15\nmetrics.throughput.fail_on = ['slower', 'faster']\n")
    assert "= same" in call(*sides("slower")).out
    assert "- slower" in call(*sides("slower"), "--threshold=3", code=1).out
    assert "rules" not in json.loads(
        call(*sides("slower"), "--rules=none", "--format=json", code=1).out
    )
    call(*sides("faster"), "--threshold=3", code=1)
    call(*sides("faster"), "--threshold=3", "--fail_on=never")
    for wrong, named in (("x = 1", "cnnbench.toml: "), ("", "--rules=gone.toml: ")):
        rules(wrong)
        flags = () if wrong else ("--rules=gone.toml",)
        err = call(*sides("slower"), *flags, code=2).err
        assert err.startswith(f"cnnbench: error: {named}")
        assert err.count("\n") == 1


def test_judge_selects_metrics_and_the_answer_says_what_it_removes(call, sides, transcript):
    rules(
        "[[rules]]\njudge = ['throughput', 'memory']\n"
        "metrics = {throughput = {fail_on = 'never'}, memory = {share = 0.25}}\n"
    )
    document = json.loads(call(*sides("slower"), "--format=json", code=3).out)
    asked = {one["metric"]: one["verdict"] for one in document["configurations"][0]["results"]}
    assert asked == {"throughput": "slower", "memory": "not measured"}
    (note,) = (note for note in document["notes"] if "rule 1" in note)
    transcript("note", note)
    usual = call(*sides("slower"), "--metrics=throughput", "--format=json").out
    assert [*json.loads(usual)["metrics"]] == ["throughput"]


def test_a_rule_can_make_a_metric_fail_that_is_judged_but_not_requested(
    call, lenet_runs, saved, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    make = lenet_runs()
    sides = (
        make.with_startup(*(factor * 0.01 + 5 * slower for factor in range(5))) for slower in (1, 2)
    )
    folders = [saved(tmp_path / name, runs) for name, runs in zip("ab", sides, strict=True)]
    call("compare", *folders)
    for text, code in (("", 1), (", threshold = 200", 0)):
        rules(f"[[rules]]\nmetrics.startup = {{fail_on = 'slower'{text}}}\n")
        call("compare", *folders, code=code)


def test_an_accepted_commit_stays_in_the_answer_until_its_end(call, sides, transcript):
    accept = f"[[accept]]\ncommit = '{NEW[:9]}'\nreason = 'a wider stem'\n"
    rules(f"{accept}until = 2999-12-31\n")
    document = json.loads(call(*sides("slower"), "--format=json").out)
    transcript("accepted", document["answer"])
    result = document["configurations"][0]["results"][0]
    assert (result["verdict"], result["accepted"]["reason"]) == ("slower", "a wider stem")
    assert "::error" not in call(*sides("slower"), "--format=github").out
    rules(f"{accept}until = 2020-02-29\n")
    document = json.loads(call(*sides("slower"), "--format=json", code=1).out)
    assert NEW[:9] not in document["answer"]
    transcript("ended", next(note for note in document["notes"] if NEW[:9] in note))


def test_the_message_of_a_commit_accepts_a_regression_if_rules_allow_it(
    call, save, git, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    git(tmp_path, "init", "--quiet")
    folders = []
    for message, factor in (("x", 1.0), ("cnnbench-accept: slower lenet: more layers", 0.9)):
        git(tmp_path, "commit", "--quiet", "--allow-empty", "-m", message)
        subject = Subject(revision=git(tmp_path, "rev-parse", "HEAD"), dirty=False)
        folders.append(save(tmp_path / message[0], factor, subject=subject))
    words = ("compare", *folders, "--format=json")
    denied = json.loads(call(*words, code=1).out)
    assert any("accept_by_message = true" in note for note in denied["notes"])
    rules("accept_by_message = true\n")
    assert "(more layers)" in json.loads(call(*words).out)["answer"]
    # A commit that does not exist is named.
    rules("[[accept]]\ncommit = '0000010'\nreason = 'x'\nuntil = 2999-12-31\n")
    assert any("0000010" in note for note in json.loads(call(*words, code=1).out)["notes"])


def test_a_flag_accepts_all_regressions_of_new(call, sides):
    assert "(label accept-slower)" in call(*sides("slower"), "--accept=label accept-slower").out
    document = json.loads(call(*sides("slower"), "--accept=label", "--format=json").out)
    (throughput,) = (
        one for one in document["configurations"][0]["results"] if one["verdict"] == "slower"
    )
    assert throughput["accepted"]["reason"] == "label"
    assert "--accept= : " in call(*sides("slower"), "--accept= ", code=2).err
