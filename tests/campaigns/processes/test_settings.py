"""The settings of a campaign: stored by the first session, and compared by those that go on.

Tests cnnbench/campaigns/processes/results_dir.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cnnbench.campaigns.processes.identity import Identity
from cnnbench.campaigns.processes.journal import JOURNAL
from cnnbench.campaigns.processes.results_dir import (
    CampaignKind,
    ResultsFolder,
    Settings,
    is_settings_without_events,
    load_settings,
    settings_path,
)
from cnnbench.errors import FlagError, PathError
from cnnbench.judge.compare import load_records

KIND = CampaignKind(command="own", noun="campaign")
SHARED = CampaignKind(command="sweep", noun="sweep", shared=True)


def settings(plans: dict[str, dict[str, int]], **policy: object) -> Settings:
    identity = Identity(plans=plans, code={"commit": "a"}, software={}, policy=policy)
    return Settings(campaign="own", identity=identity)


def session(kind: CampaignKind, folder: Path, own: Settings, resume: bool = False) -> None:
    with ResultsFolder(kind, folder, own, resume=resume) as store:
        store.add_session_start()


def test_the_first_session_stores_them_and_a_later_one_adds_plans(tmp_path: Path) -> None:
    own = settings({"a": {"x": 1}}, seed=7)
    session(KIND, tmp_path / "r", own)
    path = settings_path(tmp_path / "r")
    assert KIND.stored_seed(str(tmp_path / "none")) is None
    assert load_settings(path, Settings) == own
    assert KIND.stored_seed(str(tmp_path / "r")) == 7
    session(KIND, tmp_path / "r", settings({"b": {"x": 2}}, seed=7), resume=True)
    assert load_settings(path, Settings) == settings({"a": {"x": 1}, "b": {"x": 2}}, seed=7)
    with pytest.raises(FlagError, match=r"differs in x of b \(2, now 3\)"):
        session(KIND, tmp_path / "r", settings({"b": {"x": 3}}, seed=7), resume=True)


def test_a_part_of_another_campaign_is_not_continued(tmp_path: Path) -> None:
    session(KIND, tmp_path / "r", Settings(campaign="own"))
    assert load_settings(settings_path(tmp_path / "r"), Settings).identity is None
    with pytest.raises(FlagError, match="contains no campaign of cnnbench own"):
        session(KIND, tmp_path / "r", settings({}), resume=True)
    assert KIND.stored_seed(str(tmp_path / "r")) is None


def test_suites_in_one_folder_have_settings_of_their_own(tmp_path: Path) -> None:
    for suite, seed in (("a", 1), ("b", 2)):
        session(SHARED, tmp_path, settings({}, suite=suite, seed=seed))
    assert [SHARED.stored_seed(str(tmp_path), suite) for suite in ("a", "b", "c")] == [1, 2, None]
    session(SHARED, tmp_path, settings({}, suite="a", seed=1), resume=True)
    with pytest.raises(FlagError, match=r"seed \(1, now 3\)"):
        session(SHARED, tmp_path, settings({}, suite="a", seed=3), resume=True)
    # They are no records.
    (tmp_path / "x.json").write_text("{}")
    for paths in ([tmp_path], [f"{tmp_path}/*.json"]):
        assert [Path(file.path).name for file in load_records(paths).skipped] == ["x.json"]


def test_a_file_of_the_user_is_not_replaced(tmp_path: Path) -> None:
    path = settings_path(tmp_path, "a")
    path.write_text('{"editor": "of the user"}')
    with pytest.raises(FlagError, match=r"settings-a.json in it is not of cnnbench"):
        session(SHARED, tmp_path, settings({}, suite="a"))
    with pytest.raises(PathError, match=r"settings-a.json: not the settings of a campaign"):
        session(SHARED, tmp_path, settings({}, suite="a"), resume=True)
    assert path.read_text() == '{"editor": "of the user"}'


@pytest.mark.parametrize(("text", "named"), [("{", "cut off"), ('{"schema": 1}', "kind")])
def test_settings_that_cannot_be_read_are_named(tmp_path: Path, text: str, named: str) -> None:
    session(KIND, tmp_path / "r", settings({}))
    settings_path(tmp_path / "r").write_text(text)
    with pytest.raises(PathError, match=f"settings.json: .*{named}"):
        session(KIND, tmp_path / "r", settings({}), resume=True)


def test_a_campaign_that_was_killed_before_its_first_event_begins_again(tmp_path: Path) -> None:
    path = settings_path(tmp_path)
    path.write_text(settings({}, seed=1).to_json())
    assert is_settings_without_events(path)
    session(KIND, tmp_path, settings({}, seed=2))
    assert load_settings(path, Settings) == settings({}, seed=2)
    assert not is_settings_without_events(path)
    (tmp_path / JOURNAL).unlink()
    path.write_text('{"editor": "of the user"}')
    assert not is_settings_without_events(path)
    with pytest.raises(FlagError, match="is not empty"):
        session(KIND, tmp_path, settings({}))
