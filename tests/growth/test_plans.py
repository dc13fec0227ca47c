"""CPU time of command lines, sweeps and journals, by their length."""

from __future__ import annotations

import pytest
from growth import check_growth

from cnnbench.campaigns.processes.journal import Journal
from cnnbench.plan import parse_run

pytestmark = pytest.mark.slow


def test_a_command_line_of_many_flags():
    """The last value of a flag that is given several times counts."""

    def prepare(count):
        words = ["--model=lenet", *(f"--num_batches={number + 1}" for number in range(count))]
        return lambda: parse_run(words)

    check_growth(prepare, 2000)


def test_a_file_of_many_flags(tmp_path):
    def prepare(count):
        path = tmp_path / str(count)
        path.write_text("".join(f"--num_batches={number + 1}\n" for number in range(count)))
        return lambda: parse_run([f"--flagfile={path}"])

    check_growth(prepare, 2000)


def test_the_list_of_a_sweep(call, tmp_path):
    def prepare(count):
        path = tmp_path / f"{count}.yaml"
        sizes = [*range(1, count + 1)]
        path.write_text(f"entries: [{{name: a, repeats: 2, matrix: {{batch_size: {sizes}}}}}]\n")
        return lambda: call("sweep", path, "--list")

    check_growth(prepare, 25)


def test_the_journal_of_a_campaign(tmp_path):
    def prepare(count):
        path = tmp_path / f"{count}.jsonl"
        path.unlink(missing_ok=True)  # what is prepared again starts with an empty journal
        journal = Journal(path)
        for number in range(count):
            journal.add("process", name=f"a{number}", attempt=1, code=0)
        assert len([*journal.read()]) == count
        return lambda: [*Journal(path).read()]

    check_growth(prepare, 1000)


def test_writing_the_journal_of_a_campaign(tmp_path):
    def prepare(count):
        def write():
            journal = Journal(tmp_path / f"{count}.jsonl")
            journal.path.unlink(missing_ok=True)
            for number in range(count):
                journal.add("process", name=f"a{number}", attempt=1, code=0)

        return write

    check_growth(prepare, 100)
