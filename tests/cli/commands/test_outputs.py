"""Files that commands write: replaced by their like alone, and refused before the work."""

from __future__ import annotations

import pytest

from cnnbench.cli import main
from cnnbench.cli.commands.judging import _FORMATS as JUDGED
from cnnbench.judge.report.exports import FORMATS as EXPORTS

HISTORIES = ("table", "csv", "json", *EXPORTS)
COMMANDS = [
    *((("report",), "output", format) for format in ("html", "markdown", "csv")),
    (("report", "--table=runs"), "output", "csv"),
    *((("compare",), "output", format) for format in JUDGED),
    *((("history",), "output", format) for format in HISTORIES),
    *((("history",), "plot", suffix) for suffix in (".html", ".md", ".svg", ".png", ".pdf")),
]


@pytest.fixture
def call(save, tmp_path, capsys):
    """Runs a command on records; the exit code and what it says."""
    base, new = save(tmp_path / "base"), save(tmp_path / "new")

    def call(command, flag, format, output):
        name, *more = command
        arguments = [base, new] if name == "compare" else [base]
        flags = [] if format.startswith(".") else [f"--format={format}"]
        code = main([name, *arguments, *more, *flags, f"--{flag}={output}"])
        return code, capsys.readouterr().err

    return call


@pytest.mark.parametrize(("command", "flag", "format"), COMMANDS)
def test_only_the_like_is_replaced(command, flag, format, call, tmp_path):
    output = tmp_path / f"out{format if format.startswith('.') else ''}"
    assert [call(command, flag, format, output)[0] for _ in range(2)] == [0, 0]
    assert output.stat().st_size
    output.write_text("import this\n")
    before = output.read_bytes()
    code, err = call(command, flag, format, output)
    assert code == 2
    assert f"--{flag}={output}: is a file of another kind, not to be overwritten" in err
    assert output.read_bytes() == before


@pytest.mark.parametrize("command", ["compare", "history", "report"])
def test_faulty_files_are_named_and_make_the_answer_incomplete(command, save, tmp_path, capsys):
    sides = [save(tmp_path / name) for name in ("base", "new")]
    faulty = tmp_path / "new" / "9.json"
    faulty.write_text('{"schema": 1, "run_id"')
    arguments = sides if command == "compare" else [sides[1]]
    shown = ["--format=markdown"] if command == "report" else []
    assert main([command, *arguments, *shown]) == 3
    out, err = capsys.readouterr()
    assert err == f"cnnbench: warning: skipped {faulty}: cut off after 22 characters\n"
    assert {"compare": "skipped: 1 file\n", "history": "lenet", "report": "9.json"}[command] in out
    faulty.write_text('{"schema": 1, "kind": "comparison"}')  # not meant to be a record
    assert main([command, *arguments, *shown]) == 0


@pytest.mark.parametrize(
    "flag",
    ["result_json", "result_csv", "graph_file", "tfprof_file", "trace_file", "export_dir"],
)
def test_a_run_refuses_a_link_to_itself_and_files_of_others(flag, tmp_path, capsys):
    loop, mine = tmp_path / "loop", tmp_path / "mine"
    loop.symlink_to(loop)
    mine.write_text("import this\n")
    for path, reason in (
        (loop, "is a symbolic link that leads back to itself"),
        (mine, "is not a folder" if flag == "export_dir" else ""),
    ):
        assert main(["--model=trivial", "--device=cpu", f"--{flag}={path}"]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert err.startswith(f"cnnbench: error: --{flag}={path}: {reason}")
    assert mine.read_text() == "import this\n"


def test_relative_files_in_a_folder_that_is_gone(tmp_path, monkeypatch, capsys):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for command in (["--model=trivial"], ["allreduce", "--device=cpu", "--num_gpus=2"]):
        assert main([*command, "--result_json=r.json"]) == 2
        assert capsys.readouterr().err.startswith("cnnbench: error: --result_json=r.json: cannot")


@pytest.mark.parametrize(
    "argv",
    [["history", "{}"], ["ab", "--a_checkout={}", "--", "--model=lenet"], ["report", "{}"]],
)
def test_names_longer_than_any_path_are_one_line(argv, capsys):
    assert main([word.format("x" * 5000) for word in argv]) == 2
    assert capsys.readouterr().err.count("\n") == 1
