"""Rows of --result_csv."""

from __future__ import annotations

import csv
import io

import pytest
from imports import read

from cnnbench.records.run import Batch, ErrorInfo, Placement
from cnnbench.records.subject import Subject

ROW = {
    **{"run_id": "r1", "started_at": "2026-05-01T10:00:00+00:00", "status": "ok"},
    **{"model": "lenet", "flags": '{"model": "lenet", "num_gpus": 2}'},
}


def table(*rows, columns=()):
    """A file with these rows; absent cells are empty."""
    names = [*ROW, *dict.fromkeys(name for row in rows for name in row if name not in ROW)]
    order = columns or names
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(order)
    writer.writerows([{**ROW, **row}.get(name, "") for name in order] for row in rows)
    # The reader knows the table by its first columns.
    return text.getvalue().replace("\r\n", "\n")


def test_a_row_with_every_cell(tmp_path):
    (record,), reasons = read(
        tmp_path,
        table(
            {
                **{"command": "cnnbench --model=lenet '--trace_file=a b'"},
                **{"batch_per_device": "8", "batch_global": "16"},
                **{"batch_requested_per_device": "9", "device": "cpu", "num_towers": "2"},
                **{"num_workers": "1", "variable_update": "replicated", "all_reduce": "a;b"},
                **{"hostname": "h", "logical_cpus": "4", "gpu_names": "A;B"},
                **{"subject_repository": "o/r", "subject_revision": "abc"},
                **{"subject_dirty": "true", "subject_changes": "c", "subject_side": "a"},
                **{"images_per_sec": "12.5", "last_loss": "1.5", "eval_top_1": "0.5"},
                **{"peak_flops_source": "measured", "mfu": "nan"},
            }
        ),
    )
    assert reasons == []
    assert (record.run_id, record.started_at, record.status) == tuple(ROW.values())[:3]
    assert record.config == {"model": "lenet", "num_gpus": 2}
    assert record.command == ("cnnbench", "--model=lenet", "--trace_file=a b")
    assert record.batch == Batch(per_device=8, global_=16, requested_per_device=9)
    assert record.placement == Placement(
        **{"device": "cpu", "devices": (), "num_towers": 2, "num_workers": 1},
        **{"variable_update": "replicated", "all_reduce": ("a", "b")},
    )
    assert record.environment == {"hostname": "h", "logical_cpus": 4, "gpu_names": ["A", "B"]}
    assert record.subject == Subject(
        **{"repository": "o/r", "revision": "abc", "dirty": True, "changes": "c", "side": "a"}
    )
    assert record.imported.values == {
        **{"images_per_sec": 12.5, "final_loss": 1.5, "accuracy": 0.5, "top_1": 0.5}
    }
    assert record.error is None


def test_cells_that_are_empty_are_unknown(tmp_path):
    (record,), _ = read(tmp_path, table({"batch_global": "", "num_towers": "", "hostname": ""}))
    assert (record.batch, record.placement, record.environment) == (None, None, {})
    assert record.subject is None or record.subject.dirty is None


def test_a_batch_that_was_not_asked_for_in_another_size(tmp_path):
    (record,), _ = read(tmp_path, table({"batch_per_device": "8", "batch_global": "16"}))
    assert record.batch == Batch(per_device=8, global_=16)


def test_a_clean_checkout_is_not_a_dirty_one(tmp_path):
    (record,), _ = read(tmp_path, table({"subject_revision": "abc", "subject_dirty": "false"}))
    assert record.subject.dirty is False


def test_a_failed_run_has_its_error(tmp_path):
    (record,), _ = read(tmp_path, table({"status": "failed", "error": "OomError: no: memory"}))
    assert record.error == ErrorInfo(type="OomError", message="no: memory")


def test_the_labels_of_a_row_are_kept_and_those_of_the_user_count(tmp_path):
    text = table({"result_label": "commit=one"})
    (record,), _ = read(tmp_path, text)
    assert (record.config["result_label"], record.subject.revision) == ("commit=one", "one")
    (record,), _ = read(tmp_path, text, labels="commit=two")
    assert (record.config["result_label"], record.subject.revision) == ("commit=two", "two")


def test_a_row_that_is_appended_does_not_change_those_before(tmp_path):
    (one,), _ = read(tmp_path, table({}))
    first, second = read(tmp_path, table({}, {"run_id": "r2"}))[0]
    assert (first, second.run_id) == (one, "r2")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ('r2,2026-05-01T10:00:00+00:00,ok,lenet,"{', "is not a complete row: "),
        ("r2,2026-05-01T10:00:00+00:00,ok,lenet", "is not a complete row"),
        ("r2,2026-05-01T10:00:00+00:00,ok,lenet,[1]", "is not a row of --result_csv: flags are "),
        (",2026-05-01T10:00:00+00:00,ok,lenet,{}", "is not a row of --result_csv: 'run_id'"),
    ],
)
def test_a_row_that_cannot_be_read_is_named_and_the_others_are_read(tmp_path, row, reason):
    records, (why,) = read(tmp_path, f"{table({})}{row}\n{table({}).splitlines()[1]}\n")
    assert len(records) == 2
    assert reason in why


def test_a_table_without_a_column_that_is_needed(tmp_path):
    columns = ("run_id", "started_at", "status", "model", "command")
    records, (reason,) = read(tmp_path, table({}, columns=columns))
    assert not records
    assert reason.endswith("has no column flags")
