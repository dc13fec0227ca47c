from cnnbench.processes.commands import _file_digest


def test_a_file_that_is_not_there_has_no_digest(tmp_path):
    assert _file_digest(str(tmp_path / "none")) is None
