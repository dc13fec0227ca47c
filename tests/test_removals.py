"""Who removes or replaces files, and that no writer gives up its lock before it renames."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
REMOVING = ("rmtree", "unlink", "rmdir", "removedirs", "rename", "renames", "truncate")
OF_MODULES = (
    "os.remove",
    "os.replace",
    "shutil.move",
    "gfile.remove",
    "gfile.copy",
    "io.write_file",
)
ENDS = {name.partition(".")[2] for name in OF_MODULES}
CALLED = re.compile(rf"\.({'|'.join({*REMOVING, *ENDS})})\(")

ALLOWED = {
    "base/locks.py release": "its own lock file, locked",
    "base/locks.py __exit__": "the temporary folder that this process has made",
    "base/locks.py remove_if_abandoned": "a temporary folder by name, owner and lock",
    "records/files.py write_atomically": "its own temporary file; replaces the target",
    "base/urls.py unlink": "as its caller says",
    "records/files.py _prove_writable": "its own file, which shows that files can be written",
    "records/files.py remove_abandoned_files": "unlocked temporary files of this machine, by name",
    "data/folder.py move_all_or_none": "moves its own files, or takes back those it has moved",
    "records/checkpoints.py delete_old_checkpoints": "checkpoints beyond --max_ckpts_to_keep",
    "records/checkpoints.py write_training_status": "its own note, of a training that was refused",
    "records/checkpoints.py delete_incomplete_files": "what TensorFlow left of a write",
    "run/driver/saved_model.py write": "its own folder; only a SavedModel is replaced",
    "campaigns/processes/campaign.py _run_group": "files of processes that this one has ended",
    "campaigns/processes/results_dir.py move": "files of its own processes, locked",
    "campaigns/processes/results_dir.py remove": "what earlier processes of the campaign have left",
    "run/runtime/supervisor.py _exit_at_once": "code that TensorFlow generated",
    "cli/commands/gate.py _results_folder": "its own temporary folder, without results",
    "cli/commands/gate.py _report_if_same_code": "folders without files, locked",
    "campaigns/processes/guard.py guard_worktree": "the worktree that this process has made",
    "judge/history/cache.py write": "its own table, damaged; the records are the only copy",
    "scripts/measure_results.py template": "its own temporary record",
    "scripts/measure_results.py make_records_folder": "tables of values, which are no only copy",
    "scripts/planted_faults.py failed_tests": "the cache of pytest in its own copy",
    "scripts/kills.py find_problems_after_kill": "files in its own temporary folder",
    "scripts/stops.py _disturb": "the folder of results that it has made, during a run",
    "scripts/stops.py run_cases": "its own temporary folder",
    "scripts/validate_explain.py add_process_to_pool": "its own trial, kept under another name",
    "scripts/check_install.py check_way_to_install": "the checkout in a folder that it made",
    "scripts/make_environment.py write_state": "replaces its own file in the environment",
    "scripts/make_environment.py make": "an environment that it made, as `needed_change` decides",
    "scripts/typecheck.py link_tree": "its own links",
}
"""Functions that remove, move or replace files, and why that is never a file of somebody else."""


@functools.cache
def functions():
    """Functions of the product and the scripts, as "FILE NAME", with their calls in order.

    Those of a file that calls nothing of such a name are left out.
    """
    found = []
    for top in ("cnnbench", "models", "variable_mgr", "scripts"):
        for path in sorted((ROOT / top).rglob("*.py")):
            file = path.relative_to(ROOT / "cnnbench" if top == "cnnbench" else ROOT)
            text = path.read_text(encoding="utf-8")
            for node in ast.walk(ast.parse(text)) if CALLED.search(text) else ():
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    calls = [one for one in ast.walk(node) if isinstance(one, ast.Call)]
                    calls.sort(key=lambda one: one.lineno)
                    found.append((f"{file} {node.name}", calls))
    return found


def removes(call):
    """Whether a call removes, moves or replaces a file or folder."""
    if not isinstance(call.func, ast.Attribute):
        return False
    name = call.func.attr
    of_path = name == "replace" and len(call.args) == 1 and not call.keywords  # unlike that of text
    of_module = name in ENDS and ast.unparse(call.func).endswith(OF_MODULES)
    return of_path or of_module or name in REMOVING


def releases(call):
    """Whether a call gives up a lock: closes its descriptor, unlocks it, or leaves it."""
    source = ast.unparse(call)
    return source.startswith("os.close(") or "LOCK_UN" in source or source.endswith(".release()")


def test_only_these_functions_remove_files():
    found = {name: one for name, calls in functions() for one in filter(removes, calls)}
    new = {name: ast.unparse(call) for name, call in found.items() if name not in ALLOWED}
    assert new == {}, "say in ALLOWED why that is no file of a user"
    assert ALLOWED.keys() - found.keys() == set()


def test_no_lock_is_given_up_before_a_rename():
    renaming = 0
    for name, calls in functions():
        moves = [one for one in calls if removes(one) and one.func.attr in ("replace", "rename")]
        renaming += bool(moves)
        for move in moves:
            early = [
                ast.unparse(one) for one in calls if releases(one) and one.lineno < move.lineno
            ]
            assert not early, (name, early)
    assert renaming > 3
