"""scripts/typecheck: the link tree and the paths in its messages."""

from __future__ import annotations

import typecheck


def test_tree_has_the_installed_layout_and_forgets_what_is_gone(tmp_path):
    for folder in ("cnnbench/flags", "configs", "models", "variable_mgr"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "__init__.py").touch()
    (tmp_path / "cnnbench" / "old.py").touch()
    tree = tmp_path / "tree"
    typecheck.link_tree(tmp_path, tree)
    assert (tree / "cnnbench" / "old.py").exists()
    (tmp_path / "cnnbench" / "old.py").rename(tmp_path / "cnnbench" / "new.py")
    typecheck.link_tree(tmp_path, tree)
    names = sorted(p.name for p in (tree / "cnnbench").iterdir())
    assert names == ["configs", "flags", "models", "new.py", "variable_mgr"]
    assert (tree / "cnnbench" / "models" / "__init__.py").exists()


def test_messages_name_the_files_of_the_checkout():
    text = "t/cnnbench/models/a.py:1: error: x\nt/cnnbench/cli.py:2: error: t/cnnbench/b\nFound 2\n"
    expected = "models/a.py:1: error: x\ncnnbench/cli.py:2: error: t/cnnbench/b\nFound 2\n"
    assert typecheck.checkout_paths(text, "t") == expected
