from pathlib import Path

from cnnbench.child.commands import _file_digest, resolve

PLUGIN = "docs/examples/tiny_plugin.py"


def test_another_plug_in_of_the_same_name_is_another_run(tmp_path):
    copy = tmp_path / "plugin.py"
    copy.write_text(Path(PLUGIN).read_text())
    flags = ("--model=tiny9", f"--model_plugin={copy}")
    before = resolve("run", flags).identity
    assert resolve("run", flags).identity == before
    copy.write_text(copy.read_text() + "\n# Changed.\n")
    assert resolve("run", flags).identity != before


def test_a_file_that_is_not_there_has_no_digest(tmp_path):
    assert _file_digest(str(tmp_path / "none")) is None
