"""The results directory of a campaign; files are those of a sweep."""

from __future__ import annotations

import os

import pytest
from forked import killed_writer

from cnnbench.campaigns.processes.identity import CampaignIdentity
from cnnbench.campaigns.processes.journal import JOURNAL, digest
from cnnbench.campaigns.processes.results_dir import (
    CampaignKind,
    ResultsFolder,
    is_leftover,
)
from cnnbench.campaigns.sweep.run import SWEEP, find_records, record_file_name
from cnnbench.errors import BenchmarkError, FlagError, PathError
from cnnbench.records.run import KilledProcess

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


def test_a_resumed_campaign_has_the_records_that_were_measured(tmp_path):
    path = tmp_path / record_file_name(*RUN, LATER)
    with ResultsFolder(SWEEP, tmp_path) as store:
        store.add_session_start(suite="a")
        store.write(path, b"{}")
        store.journal.add("process", name="r", record=path.name, sha256=digest(b"{}"))
        (tmp_path / "comparison.json").write_text("of the user")
    ResultsFolder(SWEEP, tmp_path, resume=True).__exit__()
    path.write_text("{ }")
    with pytest.raises(PathError, match=path.name):
        ResultsFolder(SWEEP, tmp_path, resume=True)
    ResultsFolder(SWEEP, tmp_path).__exit__()  # a new sweep in the same folder


OWN = CampaignKind(command="tune", noun="search", subfolders=("logs",))


def identity_of(**policy):
    return CampaignIdentity(plans={}, facts={}, policy=policy)


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
        assert store.earlier_settings.identity.policy == {"seed": 1}
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
    assert is_leftover(tmp_path / "empty")
    with ResultsFolder(OWN, tmp_path):
        pass
    (tmp_path / "empty" / "inner" / "x").touch()
    assert not is_leftover(tmp_path / "empty")
    (tmp_path / "link").symlink_to(tmp_path / "logs")
    assert not is_leftover(tmp_path / "link")
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
    (tmp_path / JOURNAL).write_bytes(text)
    if not begins:
        with pytest.raises(FlagError, match="is not empty"):
            ResultsFolder(OWN, tmp_path, identity_of(seed=1))
        return
    with ResultsFolder(OWN, tmp_path, identity_of(seed=1)) as store:
        store.add_session_start()
    with ResultsFolder(OWN, tmp_path, identity_of(seed=1), resume=True) as store:
        assert [event["event"] for event in store.earlier] == ["session"]


def test_a_part_of_a_folder_that_is_replaced_gets_nothing_more(tmp_path):
    """Though the path of the part itself leads to the same folder."""
    whole, elsewhere = tmp_path / "whole", tmp_path / "elsewhere"
    elsewhere.mkdir()
    whole.mkdir()
    (whole / "part").symlink_to(elsewhere)
    with (
        ResultsFolder(SWEEP, whole) as store,
        ResultsFolder(SWEEP, whole / "part", within=store) as part,
    ):
        part.raise_if_replaced()
        whole.rename(tmp_path / "moved")
        whole.mkdir()
        (whole / "part").symlink_to(elsewhere)
        with pytest.raises(BenchmarkError, match="whole: is no longer the folder"):
            part.raise_if_replaced()


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
        store.journal.add("process", name="a", seconds=1.0)
        store.journal.add("process", name="a", seconds=2.0)
        store.journal.add("lost", pair="p", lost=[lost, lost], again=True)
        store.journal.add("lost", pair="q", lost=[lost], again=False)
        assert store.earlier_journal_notes("plan") == []
    with ResultsFolder(OWN, tmp_path, resume=True) as store:
        assert [note["pairs"] for note in store.earlier_journal_notes("plan")] == [8]
        assert store.earlier_journal_notes("other") == []
        assert store.last_process_events["a"]["seconds"] == 2.0
        assert store.killed_processes == {"p": [KilledProcess(**lost)] * 2}


def test_files_of_processes_are_moved_when_they_are_whole(tmp_path):
    with ResultsFolder(OWN, tmp_path / "r") as store:
        file = store.folder / "race" / "a.json"
        store.unfinished_path(file).write_bytes(b"{}")
        assert store.unfinished_path(file).name == "race-a.json"
        assert store.unfinished_path(file).parent.parent != store.folder
        store.move_finished(file)
        assert file.read_bytes() == b"{}"
        store.move_finished(store.folder / "none.json")
        assert not (store.folder / "none.json").exists()
        store.remove(file)
        store.remove(file)
        assert not file.exists()
        with pytest.raises(BenchmarkError, match="cannot be written: No such file"):
            store.move(file, store.folder / "b.json")
