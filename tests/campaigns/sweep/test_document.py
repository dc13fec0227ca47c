"""YAML with line numbers."""

from __future__ import annotations

import pytest

from cnnbench.campaigns.sweep.document import load
from cnnbench.errors import UsageError


def test_every_node_knows_its_line(write):
    root = load(write("a: 1\nb:\n  - x\n  - {c: y}\n"))
    (_, line_a, a), (_, line_b, b) = root.fields
    assert (line_a, a.line, line_b) == (1, 1, 2)
    assert [item.line for item in b.items] == [3, 4]
    assert b.items[1].fields[0][2].text == "y"


@pytest.mark.parametrize(
    ("written", "kind", "text"),
    [
        *((text, "boolean", text) for text in ("true", "Yes", "ON", "false", "no", "Off")),
        *((text, "string", text) for text in ("2026-01-02", "x:y")),
        ("'yes'", "string", "yes"),
        ("~", "null", "~"),
        ("", "null", ""),
        ("3", "integer", "3"),
        ("'3'", "string", "3"),
        ("1.5", "number", "1.5"),
    ],
)
def test_kinds(write, written, kind, text):
    node = load(write(f"a: {written}")).fields[0][2]
    assert (node.kind, node.text) == (kind, text)
    if kind == "boolean":
        assert node.is_true == (text in ("true", "Yes", "ON"))


@pytest.mark.parametrize("text", ["1e-3", "012", "0x10", "1_000", "1:30"])
def test_numbers_keep_their_text(write, text):
    assert load(write(f"a: {text}")).fields[0][2].text == text


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b"# nothing\n", "is empty"),
        (b"a: \xff\xfe\x00\x81", "not YAML"),
        *((opening * 1100, "nested too deeply") for opening in (b"[", b"{a: ", b"- ")),
        (None, "No such file"),
    ],
)
def test_files_that_cannot_be_read(tmp_path, data, words):
    path = tmp_path / "suite.yaml"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(UsageError, match=rf"suite\.yaml: .*{words}"):
        load(str(path))


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: 1\nb: [1, 2\nc: 3\n", 3, "not YAML"),
        ("a: 1\n\tb: 2\n", 2, "not YAML"),
        ("a: 1\nb: 2\na: 3\n", 3, 'the key "a" is there twice'),
        ("a: 1\n---\nb: 2\n", 2, "not YAML"),
        ("a: !!python/object/apply:os.system [ls]\nb: !mine 3\n", 2, "!mine"),
        ("? [a, b]\n: 1\n", 1, "a key must be a word"),
        ("a: &x [1, *x]\n", 1, "nested too deeply"),
        ("a: *nowhere\n", 1, "undefined alias"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(write, text, line, words):
    path = write(text)
    with pytest.raises(UsageError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert words in str(caught.value)


def test_no_tag_runs_code(write, tmp_path):
    trace = tmp_path / "trace"
    with pytest.raises(UsageError):
        load(write(f"a: !!python/object/apply:pathlib.Path.touch [{trace}]\nb: !x 1"))
    assert not trace.exists()


def test_aliases_cost_nothing(write):
    # Ten levels of nine aliases each would be three thousand million nodes.
    lines = ["l0: &l0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]" for i in range(1, 10)]
    assert len(load(write("\n".join(lines))).fields) == 10
