"""Measures which tests detect faults: plants each fault in a copy of the checkout and tests it.

Usage: scripts/planted_faults [OPTIONS]

Prints for each fault how many tests of the everyday suite fail because of it, and the seconds of
the tests. Tests that also fail without the fault are not included. The exit status is 0 if at least
one test and at most --most tests fail for each fault, 1 if not, and 2 for wrong use.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from command_line import parse_options, run_script

from cnnbench.errors import UsageError
from cnnbench.flags.declare import flag

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("cnnbench", "models", "variable_mgr")


@dataclass(frozen=True)
class Fault:
    """A text that occurs once in cnnbench's code, its faulty replacement, and the tests to run."""

    old: str
    new: str
    tests: str

    def site(self, root: Path) -> tuple[Path, str]:
        """Returns the file that contains the old text, and the file's content with the new text.

        Raises LookupError unless exactly one file contains the old text, exactly once.
        """
        files = (path for name in PRODUCT for path in sorted((root / name).rglob("*.py")))
        found = [(path, text) for path in files if self.old in (text := path.read_text("utf-8"))]
        if len(found) != 1 or found[0][1].count(self.old) != 1:
            raise LookupError(f"not once in {', '.join(PRODUCT)}: {self.old!r}")
        ((path, text),) = found
        return path, text.replace(self.old, self.new)


FAULTS = {
    "p values of several tests are not adjusted": Fault(
        "np.minimum(1.0, parts * rejected)",
        "np.ones_like(parts)",
        "tests/base/stats tests/judge/compare",
    ),
    "the floor of changes is ignored": Fault(
        "        floor=smallest_relevant_change(samples, policy),",
        "        floor=0.0,",
        "tests/judge/compare",
    ),
    "decay is not multiplied by the towers": Fault(
        "decay=weight_decay * towers if summed else weight_decay",
        "decay=weight_decay",
        "tests/plan tests/run/step/test_size_of_decay.py tests/run/step/test_fused_decay.py",
    ),
    "the median of an even number is the lower one": Fault(
        "return (ordered[half - 1] + ordered[half]) / 2",
        "return ordered[half - 1]",
        "tests/base/stats tests/judge/compare tests/judge/history/test_steps.py",
    ),
    "a checkpoint beyond the last batch is accepted": Fault(
        "if done - self.batches <= self.warm_up.most:",
        "if done >= 0:",
        "tests/run/driver/test_benchmark_cnn.py",
    ),
    "digests of records are not compared": Fault(
        'return digest(read_file(path)) == event.get("sha256")',
        "return bool(read_file(path))",
        "tests/campaigns/processes/test_journal.py",
    ),
    "edited code goes unnoticed between processes": Fault(
        "changed = [name for name in {**then, **now} if then.get(name) != now.get(name)]",
        "changed = [name for name in {**then, **now} if name not in now]",
        "tests/campaigns/processes tests/cli/commands/test_sweep.py",
    ),
    "exports have no intervals": Fault(
        "low, high = values.interval or (None, None)",
        "low, high = None, None",
        "tests/judge/report",
    ),
    "MLPerf logs of stopped runs say success": Fault(
        'status = "success" if done else "aborted"',
        'status = "success"',
        "tests/run/observe/test_mlperf_log.py",
    ),
    "memory is estimated without slots": Fault(
        "return len(plan.numerics.optimizer_spec.slots) + ",
        "return 0 + ",
        "tests/run/driver/test_estimates.py",
    ),
    "load of other processes is never warned of": Fault(
        "if others is None or others < max(0.1, _OTHERS_SHARE * cpus):",
        "if others is None or others >= 0.0:",
        "tests/machine/test_checks.py tests/machine/test_conditions_runs.py",
    ),
    "temporary folders are left behind": Fault(
        "        if not self.kept:\n            shutil.rmtree(self.path, ignore_errors=True)\n",
        "",
        "tests/base/test_lock.py tests/cli/commands/test_launch.py",
    ),
    "--tf_random_seed is ignored by input": Fault(
        "start = (seed * 0x9E3779B97F4A7C15 + zlib",
        "start = (1 * 0x9E3779B97F4A7C15 + zlib",
        "tests/data/test_synthetic.py tests/data/test_coco.py tests/data/test_position.py",
    ),
    "--fp16_loss_scale is ignored": Fault(
        "(flags.fp16_loss_scale or DEFAULT_FP16_LOSS_SCALE)",
        "DEFAULT_FP16_LOSS_SCALE",
        "tests/plan tests/run/step/test_train_step.py",
    ),
    "rechd exchanges the wrong halves": Fault(
        "sides = [int(rank & length > 0) for rank in range(power)]",
        "sides = [int(rank & length == 0) for rank in range(power)]",
        "tests/variable_mgr/all_reduce/test_oracle.py",
    ),
    "the central crop begins a row late": Fault(
        "begin = tf.stack([top // 2, left // 2, 0])",
        "begin = tf.stack([(top + 1) // 2, left // 2, 0])",
        "tests/data/test_image.py",
    ),
    "the latency of single batches is not measured": Fault(
        "self._measure_latency()",
        "pass",
        "tests/run/driver/test_training.py tests/records/test_run.py",
    ),
    "explain joins gaps only to causes with most operations": Fault(
        "_MORE = 0.1  # This", "_MORE = 0.9  # This", "tests/judge/explain"
    ),
    "explain joins updates only to layers with all parameters": Fault(
        "_MUCH = 0.4  # A", "_MUCH = 0.99  # A", "tests/judge/explain"
    ),
    "the time of the build is in milliseconds": Fault(
        "build=time.perf_counter() - start)",
        "build=1000.0 * (time.perf_counter() - start))",
        "tests/run/driver/test_benchmark_cnn.py",
    ),
    "a column of --result_csv has the time of another part": Fault(
        '"startup_build_seconds": "record.startup_seconds.build"',
        '"startup_build_seconds": "record.startup_seconds.first_step"',
        "tests/records/test_result_files.py",
    ),
    "bounds of paired differences mix samples": Fault(
        "np.sort(_walsh_averages(differences), axis=1)",
        "np.sort(_walsh_averages(differences), axis=0)",
        "tests/base/stats",
    ),
    "a training is planned with one step too many": Fault(
        "return self.warm_up.least + self.batches",
        "return self.warm_up.least + self.batches + 1",
        "tests/plan",
    ),
    "gradients are clipped by norm": Fault(
        "tf.clip_by_value(gradient, -bound, bound)",
        "tf.clip_by_norm(gradient, bound)",
        "tests/optimizers/test_clipping.py tests/run/step/test_sparse_gradients.py",
    ),
    "--max_seconds includes the warm-up": Fault(
        "if not self._limits or not self._steps:",
        "if not self._limits:",
        "tests/run/driver/test_training.py",
    ),
    "ab and tune choose the steps of runs with a time limit": Fault(
        "LENGTHS = frozenset(names_of_flags(ACCEPTED.values(), RunPart.LENGTH))",
        'LENGTHS = frozenset({"num_batches", "num_epochs"})',
        "tests/campaigns/tune/test_bench.py",
    ),
    "a resumed training makes all steps again": Fault(
        "steps = length.batches - restored.global_step",
        "steps = length.batches",
        "tests/run/driver/test_benchmark_cnn.py",
    ),
    "the L2 loss is added twice": Fault(
        "loss = loss + l2_loss()",
        "loss = loss + 2.0 * l2_loss()",
        "tests/run/step/test_train_step.py tests/run/step/test_copied_tower.py",
    ),
}


@dataclass(frozen=True)
class Options:
    """Command-line options: which faults, and how many tests may fail."""

    fault: str | None = flag(None, "The only faults: those whose names contain this.")
    most: int = flag(40, "Most tests that may fail for one fault.", minimum=1)
    all: bool = flag(False, "Also run the slow tests, which only scripts/test --all runs.")
    names: bool = flag(False, "Also print the names of the failed tests.")


def failed_tests(copy: Path, tests: Iterable[str], *, slow: bool = False) -> list[str]:
    """Returns the names of the `tests` that fail in a copy of the checkout.

    Args:
      copy: the root of the copy.
      tests: files, folders or tests, relative to the copy.
      slow: whether slow tests run too.

    Raises RuntimeError if pytest cannot run the tests.
    """
    cache = copy / "planted_cache"
    shutil.rmtree(cache, ignore_errors=True)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-o", f"cache_dir={cache}"]
    command += [] if slow else ["-m", "not slow"]
    command += [f"--basetemp={copy / 'planted'}", *tests]
    # Processes that tests start must also import the copy.
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
    if done.returncode == 0:
        return []
    failed = cache / "v/cache/lastfailed"
    # The exit code 1 can also mean that pytest did not start, for example if it is not installed.
    if done.returncode != 1 or not failed.exists():
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return [*json.loads(failed.read_text())]


def copy_checkout(to: Path) -> None:
    """Copies the files that git tracks, and new files that git does not ignore."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "-co", "--exclude-standard"]
    for name in filter(None, subprocess.check_output(command, text=True).split("\0")):
        if (ROOT / name).exists():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name, follow_symlinks=False)


def main(arguments: Sequence[str]) -> int:
    """Plants the faults one after the other, and prints a row for each."""

    def check(options: Options) -> None:
        if not any((options.fault or "") in name for name in FAULTS):
            raise UsageError(f"--fault={options.fault}: no fault has it in its name")

    options = parse_options(Options, __doc__, arguments, check)
    chosen = {name: one for name, one in FAULTS.items() if (options.fault or "") in name}
    outside = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        copy_checkout(copy)
        for name, fault in chosen.items():
            path, text = fault.site(copy)
            before, start = path.read_text("utf-8"), time.monotonic()
            path.write_text(text, "utf-8")
            failed = failed_tests(copy, fault.tests.split(), slow=options.all)
            path.write_text(before, "utf-8")
            if failed:  # Some tests fail without the fault, such as tests that need a repository.
                failed = sorted({*failed} - {*failed_tests(copy, failed, slow=options.all)})
            seconds = time.monotonic() - start
            print(f"{len(failed):4} tests  {seconds:6.0f} s  {name}", flush=True)
            if options.names:
                print("".join(f"      {test}\n" for test in failed), end="", flush=True)
            outside += not 1 <= len(failed) <= options.most
    return int(outside > 0)


if __name__ == "__main__":
    run_script(main)
