"""What is deleted in a folder of checkpoints, and that nothing sound is ever ignored.

tests/records/test_written_files.py has which files are a checkpoint.
"""

import fcntl
from pathlib import Path

import pytest
import tensorflow as tf
from forked import killed_writer
from short_runs import TINY

from cnnbench.records.checkpoints import delete_old_checkpoints

pytestmark = pytest.mark.usefixtures("quick_start")

INDEX_END = bytes.fromhex("57fb808b247547db")


@pytest.fixture
def folder(tmp_path):
    """Three checkpoints, the last in two data files."""
    for step in (5, 10):
        (tmp_path / f"model.ckpt-{step}.index").write_bytes(INDEX_END)
        (tmp_path / f"model.ckpt-{step}.data-00000-of-00001").touch()
    (tmp_path / "model.ckpt-100.index").write_bytes(INDEX_END)
    for part in range(2):
        (tmp_path / f"model.ckpt-100.data-0000{part}-of-00002").touch()
    return tmp_path


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_tidying_deletes_old_checkpoints_and_what_kills_have_left(folder):
    own = ("notes.txt", "model.ckpt-7_template", "checkpoint.tmp-notes")
    (folder / "model.ckpt-10.index").unlink()
    (folder / "model.ckpt-7_temp").mkdir()
    (folder / "model.ckpt-7_temp" / "part-00000-of-00001").touch()
    killed_writer(folder / "record.json")
    for name in (f"checkpoint.tmp{'0a' * 16}", *own):
        (folder / name).touch()
    delete_old_checkpoints(str(folder), keep=1)
    assert names(folder) == [
        "checkpoint",
        "checkpoint.tmp-notes",
        "model.ckpt-100.data-00000-of-00002",
        "model.ckpt-100.data-00001-of-00002",
        "model.ckpt-100.index",
        "model.ckpt-7_template",
        "notes.txt",
    ]
    assert tf.train.latest_checkpoint(str(folder)) == str(folder / "model.ckpt-100")


def test_a_file_that_another_process_is_writing_there_is_left_alone(folder):
    """As of an evaluation whose --result_json is in the folder."""
    waiting = killed_writer(folder / "record.json")
    with waiting.open("w") as file:  # as if its process lived
        fcntl.flock(file, fcntl.LOCK_EX)
        delete_old_checkpoints(str(folder), keep=1)
        assert waiting.exists()


def test_zero_keeps_all_and_a_torn_newer_one_is_left_alone(folder):
    (folder / "model.ckpt-100.index").unlink()
    delete_old_checkpoints(str(folder), keep=0)
    assert {name.split(".")[1] for name in names(folder) if "." in name} == {
        "ckpt-5",
        "ckpt-10",
        "ckpt-100",
    }
    state = tf.train.get_checkpoint_state(str(folder))
    assert [Path(path).name for path in state.all_model_checkpoint_paths] == [
        "model.ckpt-5",
        "model.ckpt-10",
    ]


def test_a_run_resumes_without_its_state_file(tmp_path, call):
    own = {"num_warmup_batches": 0, "train_dir": tmp_path, "save_model_steps": 2}
    flags = {**TINY, **own}
    call(**flags)
    (tmp_path / "checkpoint").unlink()
    (tmp_path / "model.ckpt-4.index").unlink()
    (tmp_path / "model.ckpt-3_temp").mkdir()
    err = call(**{**flags, "num_batches": 3}, max_ckpts_to_keep=1).err
    assert f"resuming from {tmp_path}/model.ckpt-2 at global step 2" in err
    kept = {"checkpoint", "model.ckpt-3.index", "model.ckpt-3.data-00000-of-00001"}
    assert kept <= set(names(tmp_path))
    assert not {"model.ckpt-2.index", "model.ckpt-3_temp"} & set(names(tmp_path))


@pytest.mark.parametrize("name", ["run[1]", "run*", "run\\1", "run\udcff"])
def test_paths_that_tensorflow_misreads_are_refused(tmp_path, name, call):
    assert "--train_dir=" in call(**TINY, train_dir=f"{tmp_path}/{name}", code=2).err
    assert names(tmp_path) == []
