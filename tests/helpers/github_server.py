"""A stand-in of GitHub, which runs the two workflows of ``gate --init=github``.

It follows GitHub's documentation of events, concurrency groups, expressions, steps, artifacts,
tokens and required checks, as far as these workflows use them.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ci_programs
import yaml
from ci_programs import Answer

MARK = "<!-- cnnbench: benchmark -->\n"

# The program gh: a request to the server, whose state is in a file. A token is the permissions
# that it grants.
_GH = """#!{python} -IS
import json, os, pathlib, re, subprocess, sys

file = pathlib.Path({state!r})
state, token = json.loads(file.read_text()), json.loads(os.environ["GH_TOKEN"])
words = sys.argv[2:]
(place,) = (word for word in words if word.startswith("repos/"))
pattern = r"repos/o/r/(pulls|issues/(comments/)?(\\d+)(/labels|/comments)?)([?].*)?"
found = re.fullmatch(pattern, place)
assert found, place
kind = found[4] or found[1]
if "-F" in words:
    assert token["pull-requests"] == "write"
    body = pathlib.Path(words[words.index("-F") + 1].removeprefix("body=@")).read_text()
    every = [one for some in state["comments"].values() for one in some]
    if "PATCH" in words:
        next(one for one in every if one["id"] == int(found[3]))["body"] = body
    else:
        own = {{"id": 100 + len(every), "user": {{"login": "github-actions[bot]"}}, "body": body}}
        state["comments"].setdefault(found[3], []).append(own)
    file.write_text(json.dumps(state))
    sys.exit()
assert token["pull-requests"] in ("read", "write")
if kind == "pulls":
    fields = dict(words[at + 1].split("=", 1) for at, word in enumerate(words) if word == "-f")
    answer = [one for one in state["pulls"] if "o:" + one["head"]["ref"] == fields["head"]]
elif found[3] not in state["labels"]:
    sys.exit("gh: Not Found (HTTP 404)")
elif kind == "/labels":
    answer = [{{"name": name}} for name in state["labels"][found[3]]]
else:
    answer = state["comments"].get(found[3], [])
query = words[words.index("--jq") + 1]
subprocess.run(["jq", "-r", query], input=json.dumps(answer), text=True, check=True)
"""


class _Text(str):
    """A text in an expression, where == ignores case."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and self.lower() == other.lower()

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


def _wrapped(value: Any) -> Any:
    return _Text(value) if isinstance(value, str) else value


def evaluate(expression: str, contexts: dict[str, Any]) -> Any:
    """The value of an expression of a workflow. Missing keys are null."""

    def look_up(path: str) -> Any:
        value: Any = contexts
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        return _wrapped(value)

    tokens = re.findall(r"'[^']*'|&&|\|\||==|!=|[!(),]|[\w.-]+", expression)
    assert "".join(tokens) == re.sub(r"\s+(?=([^']*'[^']*')*[^']*$)", "", expression), expression
    words = {"&&": "and", "||": "or", "!": "not", "true": "True", "false": "False"}
    functions = {
        "format": lambda text, *values: text.format(*values),
        "always": lambda: True,
        "text": _Text,
        "look_up": look_up,
    }
    parts = [
        words[token]
        if token in words
        else f"text({token})"
        if token[0] == "'"
        else token
        if token in functions or not token[0].isalpha()
        else f"look_up({token!r})"
        for token in tokens
    ]
    return eval(" ".join(parts), {"__builtins__": {}}, functions)


def fill_in(value: Any, contexts: dict[str, Any]) -> str:
    """A value of a workflow in which the expressions in braces are evaluated."""

    def text(match: re.Match[str]) -> str:
        result = evaluate(match[1].strip(), contexts)
        if isinstance(result, bool):
            return str(result).lower()
        return "" if result is None else str(result)

    return re.sub(r"\$\{\{(.*?)\}\}", text, str(value))


@dataclass
class Run:
    """A run of the workflow `benchmark`.

    Attributes:
      state: "waiting", "running", or how it ended: "success", "failure" or "cancelled".
      check: name of the check of its job.
      answers: what the gates of all attempts answered.
    """

    number: int
    event_name: str
    event: dict[str, Any]
    ref: str
    commit: str
    branch: str
    group: str = ""
    attempt: int = 1
    state: str = "waiting"
    check: str = ""
    answers: list[Answer] = field(default_factory=list)
    artifacts: dict[str, Path] = field(default_factory=dict)


class GitHub:
    """A repository o/r with pull requests.

    Attributes:
      project: its bare repository.
      runs: all runs of the benchmark.
      broken: whether the installation of programs fails.
    """

    def __init__(self, project: Path, place: Path, files: dict[str, str], git) -> None:
        self.project, self.runs, self.broken = project, [], False
        self._git, self._place, self._jobs = git, place, 0
        self._benchmark, self._comment = (yaml.safe_load(text) for text in files.values())
        self._checks: dict[str, list[tuple[str, Run, int]]] = {}
        self._state = place / "state.json"
        self._programs = place / "programs"
        place.mkdir()
        ci_programs.install(self._programs)
        gh = self._programs / "gh"
        gh.write_text(_GH.format(python=sys.executable, state=str(self._state)))
        gh.chmod(0o755)
        self._write(SimpleNamespace(pulls=[], labels={}, comments={}))

    # What people do.

    def open(self, number: int, head: str, base: str = "main") -> None:
        """Opens a pull request from the branch `change-NUMBER`."""
        state = self._read()
        state.pulls.append({"number": number, "head": {"ref": f"change-{number}", "sha": head}})
        state.labels[str(number)] = []
        self._write(state)
        self._set_head(number, head)
        self._pull_event(number, "opened", base=base)

    def push(self, number: int, head: str) -> None:
        """Pushes to the branch of a pull request."""
        self._set_head(number, head)
        self._pull_event(number, "synchronize")

    def reopen(self, number: int) -> None:
        """Closes a pull request, and opens it again."""
        self._pull_event(number, "reopened")

    def set_label(self, number: int, name: str, there: bool = True) -> None:
        """Sets or removes a label of a pull request."""
        state = self._read()
        others = [one for one in state.labels[str(number)] if one != name]
        state.labels[str(number)] = [*others, name] if there else others
        self._write(state)
        self._pull_event(number, "labeled" if there else "unlabeled", label={"name": name})

    def enqueue(self, number: int, onto: str = "main", base: str = "main") -> Run:
        """Adds a pull request to the merge queue of the branch `base`, behind the commit `onto`."""
        head, tip = self._head(number), self._git(self.project, "rev-parse", onto)
        tree = self._git(self.project, "merge-tree", "--write-tree", tip, head)
        words = ("-p", tip, "-p", head, "-m", f"Merge pull request #{number}")
        commit = self._git(self.project, "commit-tree", tree, *words)
        ref = f"refs/heads/gh-readonly-queue/{base}/pr-{number}-{tip}"
        self._git(self.project, "update-ref", ref, commit)
        group = {"head_sha": commit, "head_ref": ref, "base_sha": tip, "base_ref": base}
        event = {"action": "checks_requested", "merge_group": group}
        self._start("merge_group", event, ref, commit, ref.removeprefix("refs/heads/"))
        return self.runs[-1]

    def finish(self, run: Run, state: str = "") -> Run:
        """Waits for the end of a run, which is then in the given state."""
        assert run.state == "running"
        code = self._run_job(self._benchmark, self._contexts(run), run)
        self._end(run, state or ("failure" if code else "success"))
        return run

    def repeat(self, run: Run) -> Run:
        """Runs a run that has ended again: it keeps its event."""
        assert run.state not in ("waiting", "running")
        run.attempt += 1
        self._begin(run)
        return run if run.state == "waiting" else self.finish(run)

    # What people see.

    @property
    def running(self) -> list[Run]:
        """The runs that have not ended."""
        return [run for run in self.runs if run.state == "running"]

    def required_check(self, commit: str) -> str:
        """How the newest check `gate` of a commit ended; "waiting" without one. "success" and
        "skipped" count as passed."""
        named = [run for name, run, _ in self._checks.get(commit, ()) if name == "gate"]
        return named[-1].state if named else "waiting"

    def comments(self, number: int) -> list[str]:
        """The comments on a pull request."""
        return [one["body"] for one in self._read().comments.get(str(number), ())]

    def labels(self, number: int) -> list[str]:
        """The labels of a pull request."""
        return list(self._read().labels[str(number)])

    def add_comment(self, number: int, author: str, body: str) -> None:
        """Adds a comment of a person."""
        state = self._read()
        own = {"id": 7, "user": {"login": author}, "body": body}
        state.comments.setdefault(str(number), []).append(own)
        self._write(state)

    # The server.

    def _read(self) -> SimpleNamespace:
        return SimpleNamespace(**json.loads(self._state.read_text()))

    def _write(self, state: SimpleNamespace) -> None:
        self._state.write_text(json.dumps(vars(state)))

    def _head(self, number: int) -> str:
        return self._git(self.project, "rev-parse", f"refs/pull/{number}/head")

    def _set_head(self, number: int, head: str) -> None:
        self._git(self.project, "update-ref", f"refs/pull/{number}/head", head)
        state = self._read()
        (pull,) = (one for one in state.pulls if one["number"] == number)
        pull["head"]["sha"] = head
        self._write(state)

    def _pull_event(self, number: int, action: str, base: str = "main", **more: Any) -> None:
        if action not in self._benchmark[True]["pull_request"]["types"]:  # True is `on`, see YAML.
            return
        head, tip = self._head(number), self._git(self.project, "rev-parse", base)
        pull = {"number": number, "head": {"sha": head}, "base": {"sha": tip}}
        event = {"action": action, "pull_request": pull, **more}
        self._start("pull_request", event, f"refs/pull/{number}/merge", head, f"change-{number}")

    def _start(self, name: str, event: dict[str, Any], ref: str, commit: str, branch: str) -> None:
        run = Run(len(self.runs) + 1, name, json.loads(json.dumps(event)), ref, commit, branch)
        self.runs.append(run)
        self._begin(run)

    def _begin(self, run: Run) -> None:
        contexts, concurrency = self._contexts(run), self._benchmark["concurrency"]
        run.group, run.state = fill_in(concurrency["group"], contexts), "waiting"
        (job,) = self._benchmark["jobs"].values()
        assert "if" not in job  # The check of a skipped job would count as passed.
        run.check = fill_in(job["name"], contexts)
        self._checks.setdefault(run.commit, []).append((run.check, run, run.attempt))
        cancels = fill_in(concurrency["cancel-in-progress"], contexts) == "true"
        others = [one for one in self.runs if one.group == run.group and one is not run]
        for other in others:
            if other.state == "waiting" or (cancels and other.state == "running"):
                self._end(other, "cancelled")
        self._let_wait_or_run(run)

    def _let_wait_or_run(self, run: Run) -> None:
        if not any(one.group == run.group for one in self.running):
            run.state = "running"

    def _end(self, run: Run, state: str) -> None:
        was_running, run.state = run.state == "running", state
        if was_running:
            for other in self.runs:
                if other.state == "waiting" and other.group == run.group:
                    self._let_wait_or_run(other)
        workflow_run = {
            "event": run.event_name,
            "conclusion": state,
            "html_url": "https://run",
            "run_attempt": run.attempt,
            "id": run.number,
            "head_sha": run.commit,
            "head_branch": run.branch,
            "head_repository": {"owner": {"login": "o"}},
        }
        self._run_job(self._comment, {"github": {"event": {"workflow_run": workflow_run}}}, run)

    def _contexts(self, run: Run) -> dict[str, Any]:
        names = ("event_name", "event", "ref")
        context = {name: getattr(run, name) for name in names}
        return {"github": {**context, "run_id": run.number, "run_attempt": run.attempt}}

    def _run_job(self, workflow: Any, contexts: dict[str, Any], run: Run) -> int:
        """Runs the only job of a workflow. Returns the exit code of the first failed step."""
        (job,) = workflow["jobs"].values()
        contexts["github"] |= {"repository": "o/r", "token": json.dumps(workflow["permissions"])}
        if "if" in job and not evaluate(job["if"], contexts):
            return 0
        self._jobs += 1
        place = self._place / f"job-{self._jobs}"
        place.mkdir()
        env = {name: fill_in(value, contexts) for name, value in job.get("env", {}).items()}
        contexts |= {"env": env, "steps": {}}
        failed = 0
        for step in job["steps"]:
            condition = step.get("if", "true")
            if (not failed or "always()" in condition) and evaluate(condition, contexts):
                code = self._run_step(step, contexts, place, run)
                failed = failed or (0 if step.get("continue-on-error") else code)
        return failed

    def _run_step(self, step: Any, contexts: dict[str, Any], place: Path, run: Run) -> int:
        given = {name: fill_in(value, contexts) for name, value in step.get("with", {}).items()}
        action = step.get("uses", "").partition("@")[0]
        if action == "actions/checkout":
            assert (given["fetch-depth"], given["persist-credentials"]) == ("0", "False")
            self._git(place, "init", "--quiet")
            refs = ("+refs/heads/*:refs/remotes/origin/*", given["ref"])
            self._git(place, "fetch", "--quiet", self.project.as_uri(), *refs)
            self._git(place, "checkout", "--quiet", "--detach", given["ref"])
        elif action == "actions/upload-artifact" and (place / given["path"]).is_dir():
            assert given["name"] not in run.artifacts, "409: an artifact of this name exists"
            run.artifacts[given["name"]] = place / given["path"]
        elif action == "actions/download-artifact":
            if given["name"] not in run.artifacts:
                return 1
            subprocess.check_call(["cp", "-r", run.artifacts[given["name"]], place / given["path"]])
        elif "run" in step:
            return self._run_script(step, contexts, place, run)
        return 0

    def _run_script(self, step: Any, contexts: dict[str, Any], place: Path, run: Run) -> int:
        if self.broken and "pip install" in step["run"]:
            return 1
        own = {name: fill_in(value, contexts) for name, value in step.get("env", {}).items()}
        output = place / "output"
        output.touch()
        files = {"GITHUB_OUTPUT": str(output), "GITHUB_STEP_SUMMARY": str(place / "summary")}
        variables = {**contexts["env"], **own, **files}
        code = ci_programs.run_script(step["run"], self._programs, place, variables)
        if "id" in step:
            outputs = dict(line.split("=", 1) for line in output.read_text().splitlines())
            contexts["steps"][step["id"]] = {"outputs": outputs}
        answer = place / "gate" / "answer.json"
        if "cnnbench gate" in step["run"]:
            assert "GH_TOKEN" not in variables  # The code of strangers runs here.
            run.answers.append(Answer(code, **json.loads(answer.read_text())))
        return code
