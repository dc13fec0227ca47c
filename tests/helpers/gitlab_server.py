"""A stand-in of GitLab and of its runner, which runs the job of a .gitlab-ci.yml.

The variables of each kind of pipeline and the refs that a runner fetches are those of GitLab's
documentation and source code (lib/gitlab/ci/variables, Ci::BuildRunnerPresenter).
"""

from __future__ import annotations

import json
from pathlib import Path

import ci_programs
import yaml
from ci_programs import Answer


class GitLab:
    """A project with merge requests.

    Attributes:
      project: the bare repository of the project.
      labels: labels of the merge requests by number.
    """

    def __init__(self, project: Path, place: Path, git) -> None:
        self.project, self.labels = project, {}
        self._place, self._git, self._pipelines = place, git, 0
        self._diff_bases: dict[int, str] = {}
        place.mkdir()
        ci_programs.install(place / "programs")

    def request(self, number: int, head: str, target: str = "main") -> None:
        """Opens a merge request, or pushes to it: GitLab then stores the base of its diff."""
        self._git(self.project, "update-ref", f"refs/merge-requests/{number}/head", head)
        self._diff_bases[number] = self._git(self.project, "merge-base", target, head)

    def branch_pipeline(self, number: int, file: str) -> Answer:
        """The pipeline of a merge request whose project does not merge the results."""
        head = self._head(number)
        return self._run(number, file, head, {})

    def merged_results(
        self, number: int, file: str, onto: str = "main", how: str = "merge"
    ) -> tuple[Answer, str]:
        """The pipeline of a merged result or, if `onto` is the commit of the merge request ahead,
        of a merge train. Returns the tested commit, too.

        `how` is "merge" or "squash", which also stands for a rebase: the tested commit does not
        contain the commits of the source branch.
        """
        head, target = self._head(number), self._git(self.project, "rev-parse", onto)
        tree = self._git(self.project, "merge-tree", "--write-tree", target, head)
        parents = ["-p", target, *(["-p", head] if how == "merge" else [])]
        commit = self._git(self.project, "commit-tree", tree, *parents, "-m", "of GitLab")
        names = {"SOURCE": head, "TARGET": target}
        tips = {f"CI_MERGE_REQUEST_{name}_BRANCH_SHA": tip for name, tip in names.items()}
        return self._run(number, file, commit, tips), commit

    def _head(self, number: int) -> str:
        return self._git(self.project, "rev-parse", f"refs/merge-requests/{number}/head")

    def _run(self, number: int, file: str, commit: str, tips: dict[str, str]) -> Answer:
        job = yaml.safe_load(file)["benchmark"]
        self._pipelines += 1
        ref = f"refs/pipelines/{self._pipelines}"
        self._git(self.project, "update-ref", ref, commit)
        clone = self._place / str(self._pipelines)
        assert job["variables"] == {"GIT_DEPTH": "0"}  # Then a runner fetches all branches.
        self._git(self._place, "init", "--quiet", str(clone))
        self._git(clone, "remote", "add", "origin", self.project.as_uri())
        refs = (f"+{ref}:{ref}", "+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*")
        self._git(clone, "fetch", "--quiet", "origin", *refs)
        self._git(clone, "checkout", "--quiet", "--detach", commit)
        variables = {
            "CI_COMMIT_SHA": commit,
            "CI_PIPELINE_SOURCE": "merge_request_event",
            "CI_MERGE_REQUEST_SOURCE_BRANCH_SHA": "",
            "CI_MERGE_REQUEST_TARGET_BRANCH_SHA": "",
            "CI_MERGE_REQUEST_DIFF_BASE_SHA": self._diff_bases[number],
            "CI_MERGE_REQUEST_REF_PATH": f"refs/merge-requests/{number}/head",
            **tips,
        }
        if self.labels.get(number):  # Without labels, GitLab does not set the variable.
            variables["CI_MERGE_REQUEST_LABELS"] = ",".join(self.labels[number])
        script = "\n".join(job["script"])
        code = ci_programs.run_script(script, self._place / "programs", clone, variables)
        answer = json.loads((clone / "gate" / "answer.json").read_text())
        return Answer(code, **answer)
