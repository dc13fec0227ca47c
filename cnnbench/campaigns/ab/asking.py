"""What child processes answer about A or B before anything is measured: its resolved flags, whether
its cnnbench has a feature, and the versions of its packages.

The child processes have the working directory and the environment variables of the measured
processes. So relative paths and imports work as in the measured processes, and this process loads
no plug-in.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from cnnbench.base import plugins
from cnnbench.campaigns.ab.root_paths import hint_of_root
from cnnbench.campaigns.ab.side import AbSide
from cnnbench.campaigns.launch import JobLayout, resolve_run
from cnnbench.campaigns.processes import (
    Child,
    Command,
    ConfigurationIdentity,
    ResolvedRun,
    identity_values,
    launcher_code,
    own_checkout,
)
from cnnbench.errors import DataError, UsageError
from cnnbench.flags import parse_args
from cnnbench.machine.facts import may_record_variable
from cnnbench.records.codec import decode, encode

_ASK = "from cnnbench.campaigns.ab.asking import print_answer; print_answer(*sys.argv[1:])"

# Resolving flags has a time limit, because the import of a plug-in may never return.
_SECONDS = 120.0

_ANSWER_SECONDS = 60.0

_MODULES = {
    "conv_gradients": ("run/runtime/convolutions.py",),
    "launch": ("campaigns/launch.py", "campaigns/launch/tasks.py", "launch/tasks.py"),
    "profile_json": ("records/profiles.py", "records/step_profile.py"),
    "turns": ("run/runtime/turns.py", "runtime/turns.py"),
}
"""Module files by feature. A version of cnnbench has the feature if it contains one of them."""

_HAS_FILE = (
    "import os, cnnbench; home = os.path.dirname(cnnbench.__file__); "
    "sys.exit(not any(os.path.isfile(os.path.join(home, name)) for name in sys.argv[1:]))"
)

_VERSIONS = """\
import json, platform
try:
    from cnnbench.machine import facts
    from cnnbench.machine.cpu import Host
    packages = getattr(facts, "package_versions", None) or facts.packages
except ImportError:  # a version from before these modules were merged
    from cnnbench.machine.host import Host
    from cnnbench.machine.software import packages
print(json.dumps({"python": platform.python_version(), **packages(Host())}))
"""


def resolve_flags(side: AbSide, name: str = "") -> AbSide:
    """Returns a copy of A or B whose flags are resolved in a child process, as far as this cnnbench
    knows the flags.

    Raises UsageError if a flag is invalid. The message begins with `name`, if given, and with the
    code of a side that has its own code.
    """
    try:
        layout = json.dumps(None if side.layout is None else side.layout._asdict())
        done = run_code(side, _ASK, layout, *side.flags, use_own_cnnbench=True, timeout=_SECONDS)
        answer = json.loads(done.stdout.splitlines()[-1])
        error, resolved = answer["error"], decode(ResolvedRun, answer["resolved"])
    except (OSError, subprocess.TimeoutExpired, ValueError, LookupError, TypeError):
        # If a plug-in has ended the process, the measured process will report the reason.
        return replace(side, resolved=ResolvedRun())
    if not side.is_this_cnnbench:
        return replace(side, resolved=replace(resolved, notices=()))
    if error is not None:
        code = side.code_name
        if side.revision and side.commit and not side.commit.startswith(side.revision):
            code = f"{side.revision}, {code}"
        error = f"{error}{hint_of_root(side, error)}"
        raise UsageError(f"side {name} ({code}): {error}" if name and code else error)
    return replace(side, resolved=resolved)


def run_code(
    side: AbSide, code: str, *arguments: str, use_own_cnnbench: bool, timeout: float
) -> subprocess.CompletedProcess[bytes]:
    """Runs Python code in the working directory of A or B, with the environment variables of A or
    B.

    The code finds `arguments` in sys.argv[1:]. If `use_own_cnnbench`, it imports the cnnbench of
    this process, otherwise the cnnbench of A or B. Raises OSError if the code cannot be started,
    and subprocess.TimeoutExpired if it has not ended after `timeout` seconds.
    """
    python, root = (None, own_checkout()) if use_own_cnnbench else (side.python, side.import_folder)
    command = Command(
        words=[python or sys.executable, "-c", launcher_code(code), root, *arguments],
        log=Path(os.devnull),
        environment=side.variables,
        folder=side.checkout,
    )
    with tempfile.TemporaryFile() as output:
        with Child(command, stdout=output.fileno()) as child:
            ended = child.wait(timeout)
        if ended is None:
            raise subprocess.TimeoutExpired(command.words, timeout)
        if ended.error is not None or ended.code is None:
            raise OSError(ended.error or "the process was killed")
        output.seek(0)
        return subprocess.CompletedProcess(command.words, ended.code, output.read())


def print_answer(job: str, *flags: str) -> None:
    """Main function of the child process of `resolve_flags`: prints resolved flags as JSON.

    `job` is a JSON `JobLayout` or null.
    """
    error, resolved = None, ResolvedRun()
    try:
        fields = json.loads(job)
        layout = None if fields is None else JobLayout(**fields)
        resolved = resolve_run(parse_args(flags), layout)
        resolved = replace(resolved, packages=plugins.loaded_packages())
    except (UsageError, DataError) as refusal:
        error = str(refusal)
    print("\n" + json.dumps({"error": error, "resolved": encode(resolved)}))


def supports(side: AbSide, feature: str) -> bool:
    """Whether the cnnbench that A or B runs has a feature, by its name in `_MODULES`. False if
    unknown.

    Files are checked instead of imports, because an editable installation would provide modules
    that a checkout lacks.
    """
    if side.is_this_cnnbench:
        return True
    paths = _MODULES[feature]
    try:
        done = run_code(side, _HAS_FILE, *paths, use_own_cnnbench=False, timeout=_ANSWER_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def package_versions(side: AbSide) -> Mapping[str, object]:
    """The versions of Python, cnnbench, TensorFlow, Keras and NumPy that A or B runs, by the names
    of records. Empty if the interpreter does not report them.
    """
    with contextlib.suppress(OSError, subprocess.TimeoutExpired, ValueError):
        said = run_code(side, _VERSIONS, use_own_cnnbench=False, timeout=_ANSWER_SECONDS)
        return dict(json.loads(said.stdout))
    return {}


def identity_of(side: AbSide) -> ConfigurationIdentity:
    """The flags, interpreter and environment variables of A or B, which `--resume` must not
    change.
    """
    shown = {name: text for name, text in side.variables.items() if may_record_variable(name)}
    packages = {} if side.python is None else package_versions(side)
    identity = identity_values(
        side.resolved.identity or side.given_flags,
        flags=side.flags,
        python=side.python,
        job=() if side.layout is None else side.layout.flags,
        variables=sorted(side.variables),
        packages=packages,
        **shown,
    )
    if side.checkout is not None:
        # A worktree has another path in a later session.
        folder = json.dumps(f"{side.checkout}{os.sep}")[1:-1]
        identity = json.loads(json.dumps(encode(identity)).replace(folder, ""))
    return ConfigurationIdentity(
        identity, side.config, side.checkout, side.resolved.parts, side.is_this_cnnbench
    )
