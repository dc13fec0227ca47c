"""Rules as they are read and asked; tests/cli/commands/test_rules.py has what commands do.

Tests cnnbench/judge/metrics/rules_file.py.
"""

from __future__ import annotations

import subprocess
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from golden import sentences

from cnnbench.errors import FlagError, UsageError
from cnnbench.judge.metrics import rules as rules_module
from cnnbench.judge.metrics.policy import Policy
from cnnbench.judge.metrics.rules import Acceptance, ConfigurationRule, MetricRule, Rules
from cnnbench.judge.metrics.rules_file import NO_RULES, RulesFile, load_rules, rules_flag_at_commit
from cnnbench.records.metric import METRICS

THROUGHPUT, MEMORY, ACCURACY = (METRICS[name] for name in ("throughput", "memory", "accuracy"))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(folder, text):
    (folder / "cnnbench.toml").write_text(text)
    return load_rules(None)


def test_the_first_rule_whose_pattern_fits_is_used(folder):
    rules = read(
        folder,
        """
        ignore = "docs/*"
        [[rules]]
        configurations = "vgg*"
        threshold = 1
        [[rules]]
        configurations = ["resnet*", "lenet*"]
        fail_on = ["slower", "faster", "slower"]
        judge = "memory"
        metrics.memory = { threshold = 2.5, share = 1 }
        """,
    )
    first, second = rules.rules
    assert [rules.rule_for(name) for name in ("vgg16, batch 8", "lenet", "alexnet")] == [
        (1, first),
        (2, second),
        (0, ConfigurationRule()),
    ]
    assert [rules.title(number) for number in (2, 0)] == ["rule 2 (resnet*, lenet*)", ""]
    assert (first.threshold, first.fail_on, first.judge) == (1.0, None, ())
    assert second.fail_on == ("slower", "faster")
    assert second.judge == ("memory",)
    assert second.metrics == (MetricRule(name="memory", threshold=2.5, share=1.0),)
    assert (rules.source, rules.ignore, rules.accepts) == ("cnnbench.toml", ("docs/*",), False)


def test_a_digest_is_of_the_rules_and_not_of_their_layout(folder):
    digests = [read(folder, text).digest for text in ("[[rules]]", "[[rules]] # x", "rules = []")]
    assert digests[0] == digests[1] != digests[2]
    assert len(digests[0]) == 12


def test_a_policy_has_the_threshold_of_the_metric_then_of_the_rule():
    own = MetricRule(name="memory", threshold=7.0, fail_on=("slower",))
    rules = Rules(
        rules=(
            ConfigurationRule(
                configurations=("lenet",), threshold=5.0, fail_on=("faster",), metrics=(own,)
            ),
        )
    )
    policy = rules.policy_for(Policy(), "lenet", THROUGHPUT, ())
    assert (policy.own_threshold, policy.fail_on, policy.gates) == (0.05, ("faster",), False)
    assert policy.share is None
    policy = rules.policy_for(Policy(), "lenet", MEMORY, ())
    assert (policy.own_threshold, policy.fail_on, policy.gates) == (0.07, ("slower",), True)
    # A metric with a threshold of its own does not take that of the rule.
    assert rules.threshold("lenet", ACCURACY) is None
    assert rules.threshold("lenet", THROUGHPUT) == 0.05
    assert rules.threshold("alexnet", THROUGHPUT) is None
    without = rules.without_overridden()
    assert without.threshold("lenet", THROUGHPUT) is None
    assert without.threshold("lenet", MEMORY) == 0.07
    speed = replace(own, name="throughput")
    rules = Rules(rules=(ConfigurationRule(metrics=(speed,)),)).without_overridden()
    assert rules.rules[0].metrics == (replace(speed, threshold=None),)


def test_shares_of_alpha_add_up_to_one():
    rule = ConfigurationRule(
        judge=("throughput", "memory", "startup"),
        metrics=(MetricRule(name="memory", share=0.5), MetricRule(name="accuracy")),
    )
    shares = rule.alpha_shares()
    assert shares == {"throughput": 0.25, "memory": 0.5, "startup": 0.25}
    rules = Rules(rules=(rule,))
    assert rules.smallest_share == 0.25
    assert Rules().smallest_share == 1.0
    judged = (THROUGHPUT, MEMORY, METRICS["startup"])
    found = [rules.policy_for(Policy(), "x", one, judged, 2).share for one in judged]
    assert found == [0.125, 0.25, 0.125]
    assert rules.policy_for(Policy(), "x", ACCURACY, judged).share is None
    # --metrics overrides what a rule judges: all metrics then have equal shares.
    given = rules.without_judged_metrics()
    assert given.rules[0].judge == ()
    assert given.policy_for(Policy(), "x", MEMORY, judged).share == pytest.approx(1 / 3)


def test_rules_that_change_nothing_say_so():
    memory = MetricRule(name="memory")
    changing = [{"threshold": 5.0}, {"fail_on": ()}, {"judge": ("memory",)}]
    assert [ConfigurationRule(**one).effects().count("no change") for one in ({}, *changing)] == [
        *(1, 0, 0, 0)
    ]
    assert "memory: no change" in ConfigurationRule(metrics=(memory,)).effects()
    both = ConfigurationRule(fail_on=("slower", "changed")).effects()
    assert both.endswith("slower and changed")


ACCEPT = '[[accept]]\ncommit = "abcdef1"\nreason = "x"\nuntil = "2026-12-31"\n'


WRONG = [
    # A file of rules, and the place and value that the error names.
    ("rules = 1", "rules", "array"),
    ("rules = [1]", "rule 1", "table"),
    ("[[rule]]", "", "rule"),
    ("[accept]", "accept", "array"),
    ("accept_by_message = 1", "accept_by_message", "true"),
    ("x = 1", "", "x"),
    ("ignore = [1]", "ignore", "patterns"),
    *((f"ignore = '{one}'", "ignore", f"'{one}'") for one in ("/a", "a/../b", "")),
    ('ignore = "a\\u0007"', "ignore", "x07"),
    ("[[rules]]\n[[rules]]\ntreshold = 1", "rule 2", "treshold"),
    ("[[rules]]\nthreshold = 'x'", "rule 1.threshold", "'x'"),
    ("[[rules]]\nthreshold = -1", "rule 1", "-1"),
    ("[[rules]]\nthreshold = 1000", "rule 1: threshold", "1000"),
    ("[[rules]]\n[[rules]]\nfail_on = 'worse'", "rule 2: fail_on", "worse"),
    ("[[rules]]\nfail_on = ['never', 'slower']", "rule 1: fail_on", "never"),
    ("[[rules]]\nfail_on = []", "rule 1: fail_on", "never"),
    ("[[rules]]\njudge = 'speed'", "rule 1: judge", "speed"),
    ("[[rules]]\njudge = []", "rule 1: judge", "never"),
    ("[[rules]]\nmetrics = ['memory']", "rule 1: metrics", "judge"),
    ("[[rules]]\nmetrics = [{name = 'memory'}]", "rule 1: metrics", "judge"),
    ("[[rules]]\nmetrics.speed = {}", "rule 1: metrics", "speed"),
    ("[[rules]]\nmetrics.memory = 1", "rule 1: metrics.memory", "table"),
    ("[[rules]]\nmetrics.memory = {judge = 1}", "rule 1: metrics.memory", "judge"),
    ("[[rules]]\nmetrics.memory = {shares = 1}", "rule 1: metrics.memory", "shares"),
    ("[[rules]]\nmetrics.memory = {share = 1}", "rule 1: metrics.memory: share", "judge"),
    *(
        (
            f"[[rules]]\njudge = ['memory', 'startup']\nmetrics.memory = {{share = {share}}}",
            *("rule 1: metrics", "0.001"),
        )
        for share in ("0.9995", "1e-17")
    ),
    ("[[rules]]\njudge = 'memory'\nmetrics.memory = {share = 0.5}", "rule 1: metrics", "1"),
    (ACCEPT.replace("commit", "commits"), "accept 1", "commits"),
    ("[[accept]]\nreason = 'x'\nuntil = '2026-12-31'", "accept 1.commit", "missing"),
    ("[[accept]]\ncommit = 'abcdef0'\nuntil = 2030-01-01", "accept 1.reason", "missing"),
    (ACCEPT.replace("abcdef1", "abcdef"), "accept 1: commit", "abcdef"),
    (ACCEPT.replace("abcdef1", "main"), "accept 1: commit", "main"),
    (ACCEPT.replace('"x"', '" "'), "accept 1: reason", "empty"),
    (ACCEPT.replace("12-31", "13-31"), "accept 1: until", "2026-13-31"),
    (ACCEPT.replace("2026-12-31", "May"), "accept 1: until", "May"),
    (ACCEPT + "metrics = ['speed']", "accept 1: metrics", "speed"),
]


def test_wrong_rules_are_refused_by_file_place_and_value(folder):
    told = {}
    for text, place, value in WRONG:
        with pytest.raises(UsageError) as refused:
            read(folder, text)
        message = str(refused.value)
        assert message.startswith(f"cnnbench.toml: {place}")
        assert value in message
        told["; ".join(text.splitlines())] = message
    assert len(told) == len(WRONG)
    sentences(Path(__file__).parent / "golden" / "rules.txt", told, told)


@pytest.mark.parametrize("text", ["[[rules", "a = 1\na = 2", "x = " + "[" * 20_000])
def test_what_is_no_toml_is_refused(folder, text):
    with pytest.raises(UsageError, match=r"^cnnbench\.toml: .*TOML"):
        read(folder, text)


def test_least_and_largest_values_are_accepted(folder):
    rules = read(
        folder,
        "[[rules]]\nthreshold = 0\n[[rules]]\nthreshold = 999.9\njudge = ['memory', 'startup']\n"
        "metrics.memory = {share = 0.999}\n"
        "[[rules]]\njudge = ['memory', 'startup']\nmetrics.memory = {share = 0.001}",
    )
    assert [rule.threshold for rule in rules.rules] == [0.0, 999.9, None]
    assert rules.rules[1].alpha_shares()["startup"] == pytest.approx(0.001)
    assert rules.rules[2].alpha_shares()["memory"] == 0.001


def test_a_file_on_disk_or_in_a_commit():
    for text in ("rules.toml", "./HEAD:rules.toml", "../a:b", "/a:b"):
        assert (RulesFile.parse(text).commit, RulesFile.parse(text).path) == (None, text)
    for commit, path in (("HEAD", "rules.toml"), ("a", "b:c")):
        file = RulesFile.parse(f"{commit}:{path}")
        assert (file.commit, file.path, str(file)) == (commit, path, f"{commit}:{path}")


def test_which_file_is_read(folder, monkeypatch):
    assert load_rules(None) == load_rules(NO_RULES) == Rules()
    (folder / "pyproject.toml").write_text("[tool.cnnbench]\nignore = 'a'\n[tool.other]\nx = 1")
    assert (load_rules(None).ignore, load_rules(None).source) == (("a",), "pyproject.toml")
    (folder / "cnnbench.toml").write_text("ignore = 'b'")
    assert load_rules(None).ignore == ("b",)
    assert load_rules("pyproject.toml").ignore == ("a",)
    assert load_rules(NO_RULES) == Rules()
    (folder / "other").mkdir()
    other = folder / "other" / "pyproject.toml"
    other.write_text("[tool.other]")
    with pytest.raises(FlagError, match=r"--rules=.*tool\.cnnbench"):
        load_rules(str(other))
    # Of folders above, only those of the same repository are searched.
    monkeypatch.chdir(folder / "other")
    assert load_rules(None) == Rules()
    (folder / ".git").mkdir()
    assert (load_rules(None).ignore, load_rules(None).source) == (("b",), "../cnnbench.toml")


@pytest.mark.parametrize("text", ["tool = 1", "[tool]", "[tool.other]\ncnnbench = 1", "[[tool]]"])
def test_a_project_file_without_a_section_has_no_rules(folder, text):
    (folder / "pyproject.toml").write_text(text)
    assert load_rules(None) == Rules()
    with pytest.raises(FlagError, match=r"^--rules=pyproject\.toml: .*tool\.cnnbench"):
        load_rules("pyproject.toml")
    (folder / "pyproject.toml").write_text("[tool]\ncnnbench = 1")
    with pytest.raises(UsageError, match=r"^pyproject\.toml: must be a table"):
        load_rules(None)


@pytest.fixture
def commits(folder):
    """commits(MESSAGE, TEXT): the hash of a commit with these rules, after those before."""

    def git(*words):
        user = ("-c", "user.name=n", "-c", "user.email=e@x")
        command = ["git", *user, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")

    def commit(message, text="", path="cnnbench.toml"):
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text)
        git("add", "--all")
        git("commit", "-q", "--allow-empty", "-m", message)
        return git("rev-parse", "HEAD")

    return commit


def test_rules_of_a_commit(commits, folder, monkeypatch):
    bare = commits("no rules", path="other")
    first = commits("first", "ignore = 'a'")
    commits("second", "ignore = 'b'")
    found = load_rules(f"{first}:cnnbench.toml")
    assert found.ignore == ("a",)
    assert found.short_source == f"{first[:12]}:cnnbench.toml"
    assert load_rules("HEAD:cnnbench.toml").short_source == "HEAD:cnnbench.toml"
    for value in ("HEAD:missing.toml", "gone:cnnbench.toml"):
        with pytest.raises(FlagError, match=f"^--rules={value}"):
            load_rules(value)
    # The rules of a merge base: those that were there, whatever a change makes of them.
    assert rules_flag_at_commit(first, None) == f"{first}:cnnbench.toml"
    assert rules_flag_at_commit(bare, None) == NO_RULES
    assert rules_flag_at_commit(first, "cnnbench.toml") == f"{first}:cnnbench.toml"
    assert rules_flag_at_commit(first, NO_RULES) == NO_RULES
    assert rules_flag_at_commit(first, "HEAD:cnnbench.toml") == "HEAD:cnnbench.toml"
    outside = str(folder.parent / "x.toml")
    assert rules_flag_at_commit(first, outside) == outside
    with pytest.raises(FlagError, match="--rules=cnnbench.toml.*" + bare[:12]):
        rules_flag_at_commit(bare, "cnnbench.toml")
    below = commits("below", "ignore = 'c'", "below/cnnbench.toml")
    monkeypatch.chdir(folder / "below")
    assert rules_flag_at_commit(below, None) == f"{below}:below/cnnbench.toml"
    assert rules_flag_at_commit(first, None) == f"{first}:cnnbench.toml"
    assert rules_flag_at_commit(first, "../cnnbench.toml") == f"{first}:cnnbench.toml"


def accepted(rules, base, new, configuration="lenet, batch 8", metric=THROUGHPUT, result="slower"):
    return rules.acceptance_between(configuration, metric, result, base, new)


def test_accepted_commits_are_those_between_two_revisions(commits):
    before, within, after = (commits(name) for name in ("before", "within", "after"))
    own = Acceptance(commit=within[:7], reason="x", until="2999-01-01")
    rules = Rules(accept=(own,))
    assert rules.accepts
    assert accepted(rules, [before], [after]) == own
    assert accepted(rules, [before, before], [within]) == own
    assert accepted(rules, [within], [after]) is None
    assert accepted(rules, [before], [after, within]) is None
    # The newest revision need not be a commit of this repository.
    other = replace(own, commit="f" * 7)
    assert accepted(Rules(accept=(other,)), ["a" * 40], ["f" * 40]) == other
    text = Rules(accept=(own, other)).unknown_commits_text()
    assert (other.commit in text, own.commit in text) == (True, False)
    assert Rules().unknown_commits_text() == ""


@pytest.mark.parametrize(
    ("name", "fitting", "other"),
    [
        ("metrics", "throughput", "memory"),
        ("configurations", "lenet*", "vgg*"),
        ("results", "slower", "changed"),
    ],
)
def test_what_an_acceptance_is_about(name, fitting, other):
    for parts, fits in (({}, True), ({name: (fitting,)}, True), ({name: (other,)}, False)):
        own = Acceptance(commit="b" * 7, reason="x", **parts)
        assert own.accepts_result("lenet, batch 8", THROUGHPUT, "slower") is fits
        found = accepted(Rules(accept=(own,)), ["a" * 40], ["b" * 40])
        assert found == (own if fits else None)


def test_an_acceptance_that_has_ended_is_named_only_where_no_other_one_fits():
    today, over, always = (
        Acceptance(commit="b" * 7, reason="x", until=day)
        for day in ("2999-12-31", "2020-01-01", "")
    )
    sides = ["a" * 40], ["b" * 40]
    assert accepted(Rules(accept=(over, today)), *sides) == today
    assert accepted(Rules(accept=(over,)), *sides) == over
    assert "2020-01-01" in over.source_text
    assert "until" not in always.source_text


def test_a_flag_accepts_all_regressions_of_new():
    commit = Acceptance(commit="b" * 7, reason="x")
    rules = Rules(accept=(commit,)).accepting_all("known")
    assert [one.reason for one in rules.accept] == ["x", "known"]
    assert [one.reason for one in rules.accepting_all("again").accept] == ["x", "again"]
    assert accepted(rules, ["a" * 40], ["c" * 40]).source_text == "--accept (known)"
    # Also where sides have several revisions.
    assert accepted(rules, ["a" * 40, "b" * 40], ["c" * 40]).reason == "known"


def test_messages_of_commits_accept_if_rules_allow_it(commits):
    before = commits("before")
    after = commits(
        "A title\n\ncnnbench-accept: slower lenet: a known cost \n"
        "cnnbench-accept: faster vgg16: no such word\ncnnbench-accept: changed vgg*: wider"
    )
    Path(f"{before}..{after}").touch()  # which git could take for a file
    sides = [before], [after]
    assert accepted(Rules(), *sides) is None
    rules = Rules(accept_by_message=True)
    assert rules.accepts
    found = accepted(rules, *sides)
    assert (found.commit, found.reason, found.by_message) == (after, "a known cost", True)
    assert after[:12] in found.source_text
    assert accepted(rules, *sides, configuration="lenet") == found
    assert accepted(rules, *sides, configuration="lenet5") is None
    assert accepted(rules, *sides, result="changed") is None
    assert accepted(rules, *sides, configuration="vgg16", result="changed").reason == "wider"
    assert accepted(rules, *sides, configuration="vgg16") is None


def test_the_top_of_a_repository_is_at_most_63_folders_above(tmp_path, monkeypatch):
    (tmp_path / ".git").mkdir()
    (tmp_path / "cnnbench.toml").write_text("[[rules]]")
    for depth, known in ((63, 1), (64, 0)):
        place = tmp_path.joinpath(*"a" * depth)
        place.mkdir(parents=True, exist_ok=True)
        monkeypatch.chdir(place)
        assert len(load_rules(None).rules) == known


@pytest.mark.parametrize(
    ("until", "has_ended"),
    [("", False), ("2026-05-03", False), ("2026-05-02", False), ("2026-05-01", True)],
)
def test_the_last_day_of_an_acceptance_counts(until, has_ended, monkeypatch):
    class Clock(datetime):
        @classmethod
        def now(cls, zone=None):
            return datetime(2026, 5, 2, 23, 59, tzinfo=zone)

    monkeypatch.setattr(rules_module, "datetime", Clock)
    assert Acceptance(commit="1234567", reason="x", until=until).has_ended == has_ended
