"""The folder of checkpoints as a run finds and leaves it; tests/records has its files."""

import pytest
import tensorflow as tf
from forked import killed_writer
from short_runs import TINY

pytestmark = pytest.mark.usefixtures("quick_start")


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_run_resumes_without_its_state_file_and_removes_what_kills_have_left(tmp_path, call):
    own = {"num_warmup_batches": 0, "train_dir": tmp_path, "save_model_steps": 2}
    flags = {**TINY, **own}
    call(**flags)
    (tmp_path / "checkpoint").write_bytes(b'model_checkpoint_path: "model.ckpt-4')
    killed = killed_writer(tmp_path / "record.json")
    (tmp_path / "model.ckpt-4.index").unlink()
    (tmp_path / "model.ckpt-3_temp").mkdir()
    err = call(**{**flags, "num_batches": 3}, max_ckpts_to_keep=1).err
    assert f"resuming from {tmp_path}/model.ckpt-2 at global step 2" in err
    kept = {"checkpoint", "model.ckpt-3.index", "model.ckpt-3.data-00000-of-00001"}
    assert kept <= set(names(tmp_path))
    assert not {"model.ckpt-2.index", "model.ckpt-3_temp", killed.name} & set(names(tmp_path))
    assert tf.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "model.ckpt-3")


@pytest.mark.parametrize("name", ["run[1]", "run*", "run\\1", "run\udcff"])
def test_paths_that_tensorflow_misreads_are_refused(tmp_path, name, call):
    assert "--train_dir=" in call(**TINY, train_dir=f"{tmp_path}/{name}", code=2).err
    assert names(tmp_path) == []
