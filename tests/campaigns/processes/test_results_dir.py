"""The results directory, its journal and the identity of a campaign; files are those of a sweep."""

from __future__ import annotations

import os

import pytest
from forked import killed_writer

from cnnbench.campaigns.processes import results_dir
from cnnbench.campaigns.processes.child import ResolvedRun
from cnnbench.campaigns.processes.results_dir import (
    CampaignIdentity,
    CampaignKind,
    CodeChangedError,
    ConfigurationIdentity,
    Journal,
    ResultsFolder,
    configuration_identity,
    identity_differences,
    identity_values,
    is_lock_or_empty_folder,
)
from cnnbench.campaigns.sweep import SWEEP, find_records, record_file_name
from cnnbench.errors import BenchmarkError, FlagError, PathError

KEY = "0123456789ab"
RUN = ("suite-a num_gpus=2/x", KEY, 2)
EARLIER, LATER = "20250102T000000000000Z", "20260102T000000000000Z"


def test_long_and_odd_labels_make_file_names(tmp_path):
    with ResultsFolder(SWEEP, tmp_path) as store:
        for label in ("x" * 500, "ü/../..", "...", "a\nb"):
            path = tmp_path / record_file_name(label, KEY, 1, LATER)
            store.write(path, b"{}")
            assert path.parent == tmp_path
            assert path in find_records(tmp_path, KEY, 1)


def test_the_newest_is_last(tmp_path):
    with ResultsFolder(SWEEP, tmp_path) as store:
        for stamp in (LATER, EARLIER):
            store.write(tmp_path / record_file_name(*RUN, stamp), b"{}")
        found = find_records(tmp_path, KEY, 2)
        assert [path.name.split(".")[-2] for path in found] == [EARLIER, LATER]


def test_one_sweep_at_a_time(tmp_path):
    with ResultsFolder(SWEEP, tmp_path):
        holder = rf"--results=.*another process is writing there: pid {os.getpid()} on "
        with pytest.raises(FlagError, match=holder):
            ResultsFolder(SWEEP, tmp_path)
    ResultsFolder(SWEEP, tmp_path).__exit__()


def test_leftovers_are_removed_and_records_are_not(tmp_path):
    with ResultsFolder(SWEEP, tmp_path) as store:
        assert killed_writer(tmp_path / "r.json").suffix == ".tmp"
        store.write(tmp_path / record_file_name(*RUN, LATER), b"{}")
    with ResultsFolder(SWEEP, tmp_path):
        assert not [*tmp_path.glob("*.tmp")]
        assert len(find_records(tmp_path, KEY, 2)) == 1


def test_the_journal_survives_a_torn_line(tmp_path):
    with ResultsFolder(SWEEP, tmp_path) as store:
        journal = store.journal
        assert list(journal.read()) == []
        journal.add("start", key="k")
        path = tmp_path / "sweep.jsonl"
        path.write_bytes(path.read_bytes() + b'{"event": "end", "ke')
        journal.add("end", key="k", seconds=1.5)
        path.write_bytes(path.read_bytes() + b'[1]\n{"event": "to')
        events = list(journal.read())
    assert [(e["event"], e["key"]) for e in events] == [("start", "k"), ("end", "k")]
    assert events[1]["seconds"] == 1.5
    assert events[0]["time"].endswith("+00:00")


@pytest.fixture
def journal(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    for number in range(4):
        journal.add("look", pairs=number)
    return journal


def lines_of(journal):
    return journal.path.read_bytes().splitlines(keepends=True)


@pytest.mark.parametrize(
    "edited",
    [
        lambda lines: lines[:-1],
        lambda lines: lines[:2],
        lambda lines: lines[1:],
        lambda lines: [*lines[:2], lines[2][:9]],
        lambda lines: [lines[0], lines[2], lines[1], lines[3]],
        lambda lines: [*lines, lines[-1]],
        lambda lines: [lines[0].replace(b'"pairs": 0', b'"pairs": 5'), *lines[1:]],
        lambda lines: [line.partition(b', "crc"')[0] + b"}\n" for line in lines],
        lambda lines: [*lines[:3], lines[3].partition(b', "crc"')[0] + b"}\n"],
        lambda lines: [],
    ],
)
def test_a_journal_that_was_edited_is_refused(journal, edited):
    journal.path.write_bytes(b"".join(edited(lines_of(journal))))
    with pytest.raises(PathError, match="restore the file, or name another folder"):
        list(journal.read())


@pytest.mark.parametrize(
    "edited",
    [
        lambda data: data.replace(b'"pairs": 1', b'"pairs": 5'),  # of the same size
        lambda data: data + b'{"event": "end"}\n',
        lambda data: data[: data.index(b"\n") + 1],
        lambda data: b"",
    ],
)
def test_a_journal_that_another_process_edits_meanwhile_is_refused_later(journal, edited):
    journal.path.write_bytes(edited(journal.path.read_bytes()))
    for number in range(4, 7):
        journal.add("look", pairs=number)
    with pytest.raises(PathError, match="restore the file, or name another folder"):
        list(journal.read())


def test_events_are_added_without_reading_those_before(journal, monkeypatch):
    read = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda *given: read.append(given) or pread(*given))
    journal.add("look", pairs=4)
    assert not read
    journal.path.write_bytes(journal.path.read_bytes() + b'{"event": "torn')  # an unfinished write
    journal.add("look", pairs=5)
    assert len(read) == 1
    assert [one["pairs"] for one in journal.read()] == [*range(6)]


def test_a_torn_last_line_is_dropped_and_the_journal_goes_on(journal):
    journal.path.write_bytes(journal.path.read_bytes()[:-9])
    later = Journal(journal.path)
    assert [one["pairs"] for one in later.read()] == [0, 1, 2]
    later.add("look", pairs=7)
    assert [one["pairs"] for one in later.read()] == [0, 1, 2, 7]


def test_a_journal_of_1_0_0_is_read_and_goes_on_but_not_with_values_of_other_types(tmp_path):
    journal = Journal(tmp_path / "sweep.jsonl")
    old = '{"event": "sweep", "suite": "a", "seed": 1}\n{"event": "end", "seconds": 4.5}\n'
    journal.path.write_text(old)
    journal.add("session", campaign="sweep", suite="b")
    assert [one["event"] for one in journal.read()] == ["session", "end", "session"]
    assert SWEEP.stored_seed(str(tmp_path), "a") is None  # it has no question, which gives the seed
    journal.path.write_text(old.replace("4.5", '"x"'))
    journal.lines.unlink()
    with pytest.raises(PathError, match="line 2 is damaged"):
        list(Journal(journal.path).read())


def test_records_that_the_journal_does_not_name_are_refused(tmp_path):
    with ResultsFolder(SWEEP, tmp_path) as store:
        known = tmp_path / record_file_name(*RUN, LATER)
        store.add_session_start(suite="a")
        store.add_journal_note("started", files=store.journal_names(known))
        store.write(known, b"{}")
        (tmp_path / "comparison.json").write_text("of the user")
    ResultsFolder(SWEEP, tmp_path, resume=True).__exit__()
    with ResultsFolder(SWEEP, tmp_path) as store:
        store.write(tmp_path / record_file_name(*RUN, EARLIER), b"{}")
    with pytest.raises(FlagError, match=r"does not name suite-a.*r2.2025.*json"):
        ResultsFolder(SWEEP, tmp_path, resume=True)


OWN = CampaignKind(command="tune", noun="search", subfolders=("logs",), named_files=("*.json",))
FACTS = {"hostname": "here", "tensorflow_version": "2.21.0", "load_average_1min": 1.0}


def identity_of(plans=None, facts=FACTS, **policy):
    of_plans = {name: ConfigurationIdentity(values, None) for name, values in (plans or {}).items()}
    return CampaignIdentity(plans=of_plans, facts=facts, policy=policy, own=False)


def test_a_configuration_is_what_differs_from_the_defaults():
    flags = {"model": "lenet", "batch_size": 32, "num_batches": None, "own_flag": 1}
    values = identity_values({**flags, "xla": False}, side="a")
    assert values["model"] == "lenet"
    assert values["own_flag"] == 1
    assert values["side"] == "a"
    assert "xla" not in values
    resolved = ResolvedRun(identity={"model": "lenet"}, config={"x": 1}, parts=("p",))
    assert configuration_identity(resolved, side="a") == ConfigurationIdentity(
        {"model": "lenet", "side": "a"}, {"x": 1}, parts=("p",)
    )


@pytest.mark.parametrize(
    ("then", "now", "texts"),
    [
        (identity_of(seed=1), identity_of(seed=1), ()),
        (identity_of(seed=1), identity_of(seed=2), ("seed (1, now 2)",)),
        (identity_of(seed=1), identity_of(), ("seed (1, now not set)",)),
        (identity_of({"a": {"x": 1}}), identity_of({"a": {"x": "2"}}), ("x of a (1, now 2)",)),
        (identity_of({"": {}}), identity_of({"": {"x": True}}), ("x (not set, now true)",)),
        # A plan may be added, and facts that change always.
        (identity_of({"a": {"x": 1}}), identity_of({"b": {"x": 2}}), ()),
        (identity_of(), identity_of(facts={**FACTS, "load_average_1min": 9.0}), ()),
        (
            identity_of(),
            identity_of(facts={**FACTS, "tensorflow_version": "2.20.0"}),
            ("tensorflow_version (2.21.0, now 2.20.0)",),
        ),
        (identity_of(s="x" * 500), identity_of(s="y"), ("...", "now y")),
    ],
)
def test_differences_of_campaigns_are_named(then, now, texts):
    text = identity_differences(then.to_json(), now.to_json())
    assert all(one in text for one in texts)
    assert bool(text) == bool(texts)


def test_code_that_changes_meanwhile_is_named(monkeypatch):
    sources = iter(("one", "one", "two"))
    monkeypatch.setattr(results_dir, "source_digest", lambda: next(sources))
    identity = CampaignIdentity(plans={}, facts={}, policy={})
    assert identity.initial_code_state == {"sources of cnnbench": "one"}
    identity.raise_if_code_changed()
    with pytest.raises(BenchmarkError, match="sources of cnnbench"):
        identity.raise_if_code_changed()


def test_only_the_same_campaign_goes_on(tmp_path):
    folder = tmp_path / "r"
    with pytest.raises(FlagError, match="--results="):
        ResultsFolder(OWN, folder, identity_of(seed=1), resume=True)
    with ResultsFolder(OWN, folder, identity_of(seed=1)) as store:
        store.add_session_start(more=1)
    assert (folder / "logs").is_dir()
    with pytest.raises(FlagError, match="--resume"):
        ResultsFolder(OWN, folder, identity_of(seed=1))
    with ResultsFolder(OWN, folder, identity_of(seed=1), resume=True) as store:
        (session,) = store.journal.read("session")
        assert (session["campaign"], session["more"]) == ("tune", 1)
        assert session["question"]["policy"] == {"seed": 1}
    with pytest.raises(FlagError, match=r"seed \(1, now 2\)"):
        ResultsFolder(OWN, folder, identity_of(seed=2), resume=True)
    other = CampaignKind(command="bisect", noun="bisection")
    with pytest.raises(FlagError, match="not a journal of cnnbench bisect"):
        ResultsFolder(other, folder, resume=True)


def test_a_folder_with_other_files_is_not_used(tmp_path):
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(FlagError, match=r"--results=.*is not empty"):
        ResultsFolder(OWN, tmp_path)
    (tmp_path / "mine.txt").unlink()
    (tmp_path / "empty" / "inner").mkdir(parents=True)
    assert is_lock_or_empty_folder(tmp_path / "empty")
    with ResultsFolder(OWN, tmp_path):
        pass
    (tmp_path / "empty" / "inner" / "x").touch()
    assert not is_lock_or_empty_folder(tmp_path / "empty")
    (tmp_path / "link").symlink_to(tmp_path / "logs")
    assert not is_lock_or_empty_folder(tmp_path / "link")
    (tmp_path / "file").touch()
    with pytest.raises(FlagError, match="--results="):
        ResultsFolder(OWN, tmp_path / "file")


@pytest.mark.parametrize(
    ("text", "begins"),
    [
        (b"", True),
        (b'{"ev', True),
        (b'{"event": "session", "camp', True),
        (b'{"event": "session"}\n', False),
        (b"mine", False),
    ],
)
def test_a_campaign_whose_first_event_was_not_written_begins_again(tmp_path, text, begins):
    (tmp_path / "journal.jsonl").write_bytes(text)
    if not begins:
        with pytest.raises(FlagError, match="is not empty"):
            ResultsFolder(OWN, tmp_path, identity_of(seed=1))
        return
    with ResultsFolder(OWN, tmp_path, identity_of(seed=1)) as store:
        store.add_session_start()
    with ResultsFolder(OWN, tmp_path, identity_of(seed=1), resume=True) as store:
        assert [event["event"] for event in store.earlier] == ["session"]


def test_a_folder_that_is_replaced_gets_nothing_more(tmp_path):
    with ResultsFolder(OWN, tmp_path / "r") as store:
        with ResultsFolder(OWN, tmp_path / "r" / "final", resume=True, within=store) as inner:
            store.write(store.folder / "deep" / "a.json", b"{}")
            (tmp_path / "r").rename(tmp_path / "moved")
            for folder in (store, inner):
                with pytest.raises(BenchmarkError, match="is no longer the folder"):
                    folder.write(folder.folder / "b.json", b"{}")
            with pytest.raises(BenchmarkError, match="is no longer the folder"):
                store.journal.add("end")
    assert (tmp_path / "moved" / "deep" / "a.json").read_bytes() == b"{}"


def test_notes_and_processes_of_earlier_sessions_are_known(tmp_path):
    lost = {"side": "a", "how": "killed by SIGKILL"}
    with ResultsFolder(OWN, tmp_path) as store:
        store.add_session_start()
        store.add_journal_note("plan", pairs=8)
        store.journal.add("process", name="a", seconds=1.0, group=store.next_group_number())
        store.journal.add("process", name="a", seconds=2.0, group=store.next_group_number())
        store.journal.add("lost", pair="p", lost=[lost], again=True)
        store.journal.add("lost", pair="p", lost=[lost, lost], again=True)
        store.journal.add("lost", pair="q", lost=[lost], again=False)
        assert store.earlier_journal_notes("plan") == []
    with ResultsFolder(OWN, tmp_path, resume=True) as store:
        assert [note["pairs"] for note in store.earlier_journal_notes("plan")] == [8]
        assert store.earlier_journal_notes("other") == []
        assert store.last_process_events["a"]["seconds"] == 2.0
        assert [len(attempt) for attempt in store.killed_processes["p"]] == [1, 2]
        assert [*store.killed_processes] == ["p"]
        assert store.number_of_repeated_attempts == 2
        assert store.next_group_number() == 3


def test_files_and_folders_of_processes_are_moved_when_they_are_whole(tmp_path):
    with ResultsFolder(OWN, tmp_path / "r") as store:
        file, folder = store.folder / "race" / "a.json", store.folder / "checkpoints" / "a"
        store.unfinished_path(file).write_bytes(b"{}")
        assert store.unfinished_path(file).name == "race-a.json"
        assert store.unfinished_path(file).parent.parent != store.folder
        store.move_finished(file)
        assert file.read_bytes() == b"{}"
        store.unfinished_path(folder).mkdir()
        (store.unfinished_path(folder) / "model").write_bytes(b"m")
        (store.folder / "checkpoints").mkdir()
        store.move_finished(folder)
        assert (folder / "model").read_bytes() == b"m"
        assert not store.unfinished_path(folder).exists()
        store.move_finished(store.folder / "none.json")
        assert not (store.folder / "none.json").exists()
        assert store.journal_names(file, None, file, folder) == ["race/a", "checkpoints/a"]
        store.remove(folder)
        store.remove(file)
        store.remove(file)
        assert not file.exists()
        assert not folder.exists()
        with pytest.raises(BenchmarkError, match="cannot be written: No such file"):
            store.move(file, folder)


def test_events_of_other_forms_are_refused(tmp_path):
    journal = Journal(tmp_path / "j.jsonl")
    for line in (
        '{"event": "session", "question": {}}',
        '{"event": "end", "note": 3}',
        '{"seconds": "x"}',
    ):
        journal.path.write_text(line + "\n")
        with pytest.raises(PathError, match="line 1 is damaged"):
            list(journal.read())
    journal.path.write_text('{"event": "explanation"}\n')
    (note,) = journal.read("note")
    assert note["note"] == "explanation"


def test_an_edited_plug_in_changes_the_measured_code(tmp_path, git):
    git(tmp_path, "init")
    plugin = tmp_path / "net.py"
    plugin.write_text("")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "one")
    plan = ConfigurationIdentity({}, {"plugin": (str(plugin),)}, tmp_path)
    identity = CampaignIdentity(plans={"a": plan}, facts={}, policy={}, own=False)
    plugin.write_text("first = 1")
    identity.raise_if_code_changed()  # compared with the state at the first call
    plugin.write_text("second = 1")
    with pytest.raises(CodeChangedError, match="uncommitted changes of a"):
        identity.raise_if_code_changed()
