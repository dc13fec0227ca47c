"""Runs a sweep and kills it with SIGKILL at its n-th line; then resumes it. No TensorFlow.

Called as ``kill_anywhere.py SUITE RESULTS TEMPLATE COUNT``. For each of COUNT moments, spread
over the life of a sweep, a fork runs the sweep in a folder of its own and dies there, a second
fork resumes and dies at another moment, a third resumes to the end. Prints a line of JSON per
moment with what is in the folder then.
"""

import io
import json
import os
import signal
import sys
from pathlib import Path

from cnnbench.base.text.progress import Reporter
from cnnbench.campaigns.processes.campaign import Campaign
from cnnbench.campaigns.sweep import document, planning, schema
from cnnbench.campaigns.sweep.runner import Sweep
from cnnbench.campaigns.sweep.store import Store
from cnnbench.judge.compare import load_records

FACTS = {"hostname": "here"}
WATCHED = tuple(os.sep + part for part in (f"sweep{os.sep}", f"processes{os.sep}", "files.py"))


def sweep(plan, folder, program, resume):
    with Store(folder) as store:
        campaign = Campaign(Reporter(io.StringIO()), FACTS)
        Sweep(plan, store, campaign, seed=1, resume=resume, program=program).run()


def fork(plan, folder, program, resume, line):
    """Runs in a child that is killed at a line, if it gets there; whether it was."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    lines = 0

    def trace(frame, event, _):
        nonlocal lines
        if not any(part in frame.f_code.co_filename for part in WATCHED):
            return None
        if event == "line":
            lines += 1
            if lines == line:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    if line is not None:
        sys.settrace(trace)
    sweep(plan, folder, program, resume)
    sys.settrace(None)
    Path(folder, "lines").write_text(str(lines))
    os._exit(0)


def main():
    suite, results, template, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    script = str(Path(__file__).with_name("fake_run.py"))
    program = (sys.executable, "-IS", script, template)
    plan = planning.make_plan(schema.check(document.load(suite)), FACTS)
    whole = os.path.join(results, "whole")
    assert not fork(plan, whole, program, False, 10**9)
    lines = int(Path(whole, "lines").read_text())
    for moment in range(count):
        folder = os.path.join(results, str(moment))
        first = 1 + lines * moment // count
        killed = fork(plan, folder, program, False, first)
        # What is there now must be sound, and stay.
        between = load_records([folder]) if list(Path(folder).glob("*.json")) else None
        kept = [] if between is None else [r.run_id for r in between.records if r.status == "ok"]
        fork(plan, folder, program, True, 1 + (lines - first) // 2)
        fork(plan, folder, program, True, None)
        loaded = load_records([folder])
        sweeps = [json.loads(path.read_text())["sweep"] for path in Path(folder).glob("*.json")]
        print(
            json.dumps(
                {
                    "line": first,
                    "killed": killed,
                    "skipped": [str(s) for s in loaded.skipped]
                    + [str(s) for s in (between.skipped if between else ())],
                    "lost": sorted(set(kept) - {r.run_id for r in loaded.records}),
                    "runs": sorted([s["key"], s["repeat"]] for s in sweeps),
                    "ok": sum(r.status == "ok" for r in loaded.records),
                    "expected": sorted(
                        [case.key, r + 1] for case in plan.cases for r in range(case.repeats)
                    ),
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
