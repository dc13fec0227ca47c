"""Figures measured on GPUs, in tests/data/gpu: their form, their units, and the bounds they keep.

`lines.yaml` there has the rules, README.md describes them. All figures in this file are invented.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from cnnbench.run.runtime.peak_flops import sum_published_peak_flops

FOLDER = Path(__file__).parent / "data" / "gpu"
RULES = yaml.safe_load((FOLDER / "lines.yaml").read_text(encoding="utf-8"))
FORM = {"check": str, "status": str, "seconds": float, "line": str, "facts": dict}
EMULATED = re.compile(r'"(EMULATED_GPU|emulated)"')
DTYPES = {
    "bf16": ("bfloat16", False),
    "fp16": ("float16", False),
    "tf32": ("float32", True),
    "fp32": ("float32", False),
}


class Facts(dict[str, Any]):
    """An object of JSON, whose values are attributes too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def read(text: str) -> tuple[Facts, list[Facts]]:
    """The header and the other lines; those of the probe get the form of checks."""
    header, *lines = (json.loads(line, object_hook=Facts) for line in text.splitlines())
    return header, [_of_probe(one) if "step" in one else one for one in lines]


def _of_probe(one: Facts) -> Facts:
    status = "ok" if one.get("ok") else "FAILED"
    return Facts(one, check=f"probe_{one.step}", status=status, line=one.get("text"), facts=one)


def faults(name: str, text: str) -> list[str]:
    """What is wrong with the file of that name; each begins with the check, or with "header"."""
    header, lines = read(text)
    found = [
        f"header: {key} is {header.get(key)!r}, not {pattern}"
        for key, pattern in RULES["header"].items()
        if not re.fullmatch(pattern, str(header.get(key)))
    ]
    if found:
        return found
    card, _, date = name.removesuffix(".jsonl").partition("-")
    if date != header.date or card not in header.card.lower():
        found.append(f"header: {header.card} and {header.date} in a file named {name}")
    if sum_published_peak_flops([header.card], "float32") is None:
        found.append(f"header: no peak is published of {header.card}")
    if not any(json.dumps(header.card) in json.dumps(one) for one in lines):
        found.append(f"header: no other line names {header.card}")
    form = [(one, _fault_of_form(one, lines)) for one in lines]
    found += [f"{one.get('check')}: {fault}" for one, fault in form if fault]
    if found:
        return found
    for one in lines:
        mine = [f"{one.check}: {fault}" for fault in _faults_of_figures(one, header.card, lines)]
        if "verdict" not in one:
            found += mine
        elif not mine:
            found.append(f"{one.check}: a verdict where nothing is wrong")
    return found


def _fault_of_form(one: Facts, lines: Sequence[Facts]) -> str | None:
    for key, kind in FORM.items():
        if not isinstance(one.get(key), kind):
            return f"{key} is {one.get(key)!r}"
    if not _rules_of(one):
        return "not in lines.yaml"
    if one.status not in ("ok", "FAILED"):
        return f"status is {one.status}"
    if [other.get("check") for other in lines].count(one.check) > 1:
        return "more than one line"
    if EMULATED.search(json.dumps(one)):
        return "a rehearsal on emulated GPUs, not a measurement"
    if not re.match(r"(cnnbench|kit|bound): .", one.get("verdict", "bound: none")):
        return f"the verdict does not begin with cnnbench, kit or bound: {one.verdict}"
    return None


def _rules_of(one: Facts) -> list[dict[str, Any]]:
    return [rules for name, rules in RULES["checks"].items() if fnmatch(one.check, name)]


def _faults_of_figures(one: Facts, card: str, lines: Sequence[Facts]) -> Iterator[str]:
    if one.status != "ok":
        yield one.line
        return
    missing = False
    for rules in _rules_of(one):
        for unit, paths in rules.get("fields", {}).items():
            least, most = RULES["units"][unit]
            for path in paths:
                if not _all_numbers(one.facts, path, least, most):
                    missing = True
                    yield f"{path} is not in {unit}, from {least:g} to {most:g}"
    if missing:
        return
    names = _names(one, card, lines)
    for bound in (bound for rules in _rules_of(one) for bound in rules.get("bounds", [])):
        try:
            holds = eval(bound, dict(names))
        except (AttributeError, LookupError, NameError, TypeError) as error:
            holds = False
            bound += f" ({error})"
        if not holds:
            yield f"not {bound}"


def _all_numbers(facts: Facts, path: str, least: float, most: float) -> bool:
    value: Any = facts
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    numbers = value if isinstance(value, list) else [value]
    return all(type(number) in (int, float) and least <= number <= most for number in numbers)


def _names(one: Facts, card: str, lines: Sequence[Facts]) -> dict[str, Any]:
    """What the bounds of a line may use: its facts, and what follows from other lines."""

    def peak_tflops(precision: str) -> float:
        return (sum_published_peak_flops([card], *DTYPES[precision]) or (math.nan,))[0] / 1e12

    parts = [other for other in lines if other.check.startswith(("logical_", "workers_"))]
    return {
        **one.facts,
        "measured": one.facts,
        "check": one.check,
        "line": one.line,
        "card": card,
        "near": near,
        "peak_tflops": peak_tflops,
        "agrees_with_nvidia_smi": agrees_with_nvidia_smi,
        "speeds": {
            other.check: other.facts.images_per_sec
            for other in lines
            if "images_per_sec" in other.facts
        },
        # With staged variables gradients are a step late.
        "losses_of_parts": [
            (other.facts.losses, 1 if "logical_staged" in (one.check, other.check) else None)
            for other in parts
            if "losses" in other.facts
        ],
    }


def near(found: Any, truth: Any, bound: float) -> bool:
    """Whether numbers, or all of two lists of one length, differ by at most that share."""
    if not isinstance(found, list):
        found, truth = [found], [truth]
    return len(found) == len(truth) and all(
        math.isclose(a, b, rel_tol=bound) for a, b in zip(found, truth, strict=True)
    )


def agrees_with_nvidia_smi(measured: Facts) -> bool:
    """Whether the facts of a card are those of nvidia-smi; numbers are texts in both."""
    told = {name: value for name, value in measured["nvidia-smi"].items() if value is not None}
    mine = [measured.gpu.get(name) for name in told]
    first = [str(value[0] if isinstance(value, list) and value else value) for value in mine]
    return bool(told) and all(map(_same_text_or_number, first, told.values()))


def _same_text_or_number(one: str, other: str) -> bool:
    try:
        return math.isclose(float(one), float(other), abs_tol=0.01)
    except ValueError:
        return one == other


@pytest.mark.parametrize(
    "path",
    sorted(FOLDER.glob("*.jsonl"))
    or [pytest.param(None, marks=pytest.mark.skip("nothing was measured on a GPU yet"))],
    ids=lambda path: path and path.name,
)
def test_measured_figures(path: Path) -> None:
    assert faults(path.name, path.read_text(encoding="utf-8")) == []


NAME = "h100-2020-01-02.jsonl"
CARD = "NVIDIA H100 80GB HBM3"
HEADER = {
    "card": CARD,
    "driver": "500.10.01",
    "cuda": "13.0",
    "tensorflow": "2.21.0",
    "cublas": "13.1.0",
    "cudnn": "9.19.0",
    "date": "2020-01-02",
    "commit": "0" * 40,
}
SPEED = {
    "images_per_sec": 1000.0,
    "images_per_sec_mean": 990.0,
    "total_images_per_sec": 980.0,
    "step_median": 0.256,
    "step_min": 0.25,
    "step_max": 0.27,
    "startup": {"first_step": 9.0},
    "mfu": 0.1,
    "tflops": 98.95,
    "peak_memory_mib": 20_000,
    "gpu_joules_per_image": 0.5,
    "gpu_watts": 490.0,
    "first_loss": 7.0,
    "last_loss": 6.0,
    "conditions": {"gpu_clocks_mhz": [1500]},
    "samples": {
        "busy_watts": 500.0,
        "idle_watts": 100.0,
        "busy_clock_mhz": 1500,
        "most_memory_mib": 70_000,
    },
    "facts": {
        "gpu_names": [CARD],
        "gpu_power_limits_watts": ["700.00"],
        "gpu_max_clocks_mhz": ["1980"],
    },
}
ROW = {"dtype": "bf16", "compiled": False, "batch": 256, "device": CARD, "images_per_sec": 2000.0}
LOSSES = [7.0 - 0.01 * step for step in range(21)]
STEPS = [0.1 if (step + 1) % 10 else 1.0 for step in range(71)]
GOOD: dict[str, dict[str, Any]] = {
    "probe_matmul_speed": {f"matmul_{n}_tflops": 50.0 for n in ("bfloat16", "TF32", "float32")},
    "speed_bf16": SPEED,
    "speed_tf32_xla_compile": {**SPEED, "mfu": 0.2, "tflops": 98.9},
    "speed_fp32": {**SPEED, "mfu": 0.5, "tflops": 33.5},
    "peer_torch": {"rows": [ROW, {"dtype": "tf32", "error": "no"}], "ratio_bf16": 0.5},
    "peer_torch_again": {"row": ROW},
    "peer_harness": {"share": 1.0},
    "peer_bare": {n: {"cnnbench": 0.1, "ahead": 0.1, "waited": 0.11} for n in ("bf16", "tf32")},
    "peer_keras": {"keras": 0.2},
    **{
        f"losses_{name}": {"gpu": LOSSES, "cpu": LOSSES}
        for name in ("lenet", "trivial", "xla", "resnet20", "bf16", "fp16")
    },
    "losses_resnet50": {"gpu": LOSSES[:7], "cpu": LOSSES[:7]},
    "logical_replicated": {"losses": LOSSES[:11]},
    "logical_staged": {"losses": [LOSSES[0]] * 11},
    "workers_collective_ring": {"losses": LOSSES[:11]},
    "step_times": {
        **dict.fromkeys(("fast", "fast_truth", "behind_slow"), 0.1),
        **dict.fromkeys(("slow", "slow_truth"), 1.0),
        **dict.fromkeys(("sum", "loop_seconds"), 11.4),
        "steps": STEPS,
        "slow_steps": [19, 29, 39, 49, 59, 69],
    },
    "fault_two_gpus": {},
    "fault_nccl_twice": {"errors": ["cnnbench: error: no"]},
    "fault_memory": {"record_error": {"message": "no memory"}},
    "environment": {
        "gpu": {"gpu_names": [CARD], "gpu_power_limits_watts": ["700.00"]},
        "nvidia-smi": {"gpu_names": CARD, "gpu_power_limits_watts": "700", "gpu_driver": None},
    },
    "conditions": {"notes": {"gpu_processes": "GPU 0 also runs 1"}},
    "profile_roofline": {
        **{"rows": 100, "rows_seconds": 0.09, "remainder": 0.01, "step": 0.1},
        **{"unprofiled": 0.1, "bound_images_per_sec": 9e3, "machine": {"bytes_per_sec": 2e12}},
    },
    "profile_trace": {"events_on_gpu": 100, "named": 90, "layer_seconds": 0.09, "step": 0.1},
    "profile_json": {"share": 0.9, "rows": 100, "profiled": 0.1, "plain": 0.1},
    "profile_explain": {"explain": {"rows": []}},
    "input_files": {"bytes": 10**8},
    "input": {"images_per_sec": 900.0, "images_per_sec_mean": 900.0, "wait": 0.0, "cores": 16},
    "ab": {"seconds": 100.0},
}
LINES = {
    "fault_two_gpus": "cnnbench: error: --num_gpus=2: TensorFlow sees 1 GPU(s)",
    "fault_nccl_twice": "9 s, exit code 4: cnnbench: error: no",
    "fault_memory": "9 s: cnnbench: error: out of memory",
    "ab": "99 s for 6 pairs, exit code 0: faster",
}


def _text(*, header: dict[str, Any] = HEADER, **changed: Any) -> str:
    """A file of good lines; `changed` has keys of the lines of checks to replace, or None."""
    lines = [header]
    for check, facts in GOOD.items():
        one = {"check": check, "status": "ok", "seconds": 9.0, "line": LINES.get(check, "")}
        if changed.get(check, {}) is not None:
            lines.append({**one, "facts": facts, **changed.get(check, {})})
    return "".join(json.dumps(one) + "\n" for one in lines)


def _with(check: str, path: str, value: Any) -> str:
    """The line of a check with another fact, and the lines beside which it is seen."""
    facts = json.loads(json.dumps(GOOD[check]))
    *parts, last = path.split(".")
    inner = facts
    for part in parts:
        inner = inner[part]
    inner[last] = value
    seen = {check, "environment", "speed_bf16", "logical_replicated", "workers_collective_ring"}
    return _text(**{**dict.fromkeys(GOOD.keys() - seen), check: {"facts": facts}})


def test_good_lines() -> None:
    assert faults(NAME, _text()) == []
    bounds = {name for check in GOOD for name in RULES["checks"] if fnmatch(check, name)}
    assert bounds == RULES["checks"].keys()


def _fields() -> Iterator[tuple[str, str, float]]:
    for check in GOOD:
        for rules in _rules_of(Facts(check=check)):
            for unit, paths in rules.get("fields", {}).items():
                yield from ((check, path, 1000 * RULES["units"][unit][1]) for path in paths)


def test_another_unit_or_none() -> None:
    others = [("ab", "seconds", None), ("ab", "seconds", "1")]
    for check, path, wrong in [*_fields(), *others]:
        found = faults(NAME, _with(check, path, wrong))
        place = f"{check}: {path} is not in "
        assert any(fault.startswith(place) for fault in found), place


SAME = ("losses_lenet", "losses_trivial", "losses_xla")
BROKEN = (
    ("probe_matmul_speed", "matmul_bfloat16_tflops", 1000.0),
    ("probe_matmul_speed", "matmul_TF32_tflops", 500.0),
    ("probe_matmul_speed", "matmul_float32_tflops", 70.0),
    ("speed_bf16", "step_median", 0.26),
    ("speed_bf16", "images_per_sec_mean", 940.0),
    ("speed_bf16", "step_min", 0.26),
    ("speed_bf16", "step_max", 0.25),
    ("speed_bf16", "mfu", 0.2),
    ("speed_tf32_xla_compile", "mfu", 0.1),
    ("speed_fp32", "mfu", 0.1),
    ("speed_bf16", "gpu_joules_per_image", 0.6),
    ("speed_bf16", "samples.busy_watts", 700.0),
    ("speed_bf16", "samples.idle_watts", 495.0),
    ("speed_bf16", "facts.gpu_power_limits_watts", ["400.00"]),
    ("speed_bf16", "samples.busy_clock_mhz", 2000),
    ("speed_bf16", "conditions.gpu_clocks_mhz", [1500, 2000]),
    ("speed_bf16", "facts.gpu_names", ["NVIDIA H200"]),
    ("peer_torch", "rows", [{"dtype": "bf16", "error": "no"}]),
    ("peer_torch", "rows", [{**ROW, "batch": 2}]),
    ("peer_torch", "rows", [{**ROW, "device": "cpu"}]),
    ("peer_torch", "ratio_bf16", 0.6),
    ("peer_torch_again", "row.device", "cpu"),
    ("peer_torch_again", "row.batch", 2),
    ("peer_harness", "share", 0.96),
    ("peer_bare", "bf16.waited", 0.094),
    ("peer_bare", "tf32.ahead", 0.094),
    *((check, "gpu", LOSSES[:5]) for check in GOOD if check.startswith("losses_")),
    *((check, "gpu", [7.0002, *LOSSES[1:]]) for check in (*SAME, "losses_resnet20")),
    *((check, "gpu", [*LOSSES[:20], 1.0002 * LOSSES[20]]) for check in SAME),
    ("losses_resnet20", "gpu", [*LOSSES[:20], 1.01 * LOSSES[20]]),
    ("losses_resnet50", "gpu", [7.002, *LOSSES[1:7]]),
    ("losses_resnet50", "gpu", [*LOSSES[:6], 6.0]),
    ("losses_bf16", "gpu", [7.2, *LOSSES[1:]]),
    ("losses_bf16", "gpu", [*LOSSES[:20], 6.0]),
    ("losses_fp16", "gpu", [7.1, *LOSSES[1:]]),
    ("losses_fp16", "gpu", [*LOSSES[:20], 6.0]),
    ("logical_replicated", "losses", [*LOSSES[:10], 6.0]),
    ("logical_staged", "losses", [7.001, *LOSSES[1:]]),
    ("workers_collective_ring", "losses", LOSSES[:5]),
    ("step_times", "slow_steps", [19, 29, 39, 49, 59]),
    ("step_times", "steps", STEPS[:30]),
    ("step_times", "fast", 0.104),
    ("step_times", "slow", 0.96),
    ("step_times", "behind_slow", 0.104),
    ("step_times", "sum", 11.0),
    ("fault_nccl_twice", "errors", []),
    ("fault_memory", "record_error", None),
    ("environment", "gpu.gpu_names", ["NVIDIA H200"]),
    ("environment", "nvidia-smi", {"gpu_names": None}),
    ("environment", "nvidia-smi.gpu_power_limits_watts", "650"),
    ("conditions", "notes", {"load": "busy"}),
    ("profile_roofline", "remainder", 0.04),
    ("profile_roofline", "rows_seconds", 0.08),
    ("profile_roofline", "unprofiled", 0.08),
    ("profile_trace", "named", 70),
    ("profile_trace", "layer_seconds", 0.05),
    ("profile_json", "share", 1.1),
    ("profile_json", "plain", 0.07),
    ("profile_explain", "explain", {}),
)
REPHRASED = (
    ("fault_two_gpus", "needs a GPU"),
    ("fault_nccl_twice", "not on CPUs and emulated GPUs"),
    ("fault_memory", "needs a GPU"),
    ("ab", "99 s for 6 pairs, exit code 3: inconclusive"),
)


def test_broken_bounds() -> None:
    files = [
        *((check, _with(check, path, value)) for check, path, value in BROKEN),
        *((check, _text(**{check: {"line": line}})) for check, line in REPHRASED),
    ]
    every = {
        (name, bound)
        for name, rules in RULES["checks"].items()
        for bound in rules.get("bounds", [])
    }
    broken = set()
    for check, text in files:
        found = faults(NAME, text)
        mine = {
            (name, bound)
            for name, bound in every
            if fnmatch(check, name) and any(f.startswith(f"{check}: not {bound}") for f in found)
        }
        assert mine, (check, found)
        broken |= mine
    assert every - broken == set()


@pytest.mark.parametrize(
    ("name", "changed", "fault"),
    [
        ("h100-2020-01-03.jsonl", {}, "header: "),
        ("h200-2020-01-02.jsonl", {}, "header: "),
        (NAME, {"header": {**HEADER, "cudnn": None}}, "header: cudnn is None"),
        (NAME, {"header": {**HEADER, "card": "EMULATED_GPU"}}, "header: card is 'EMULATED_GPU'"),
        (NAME, {"header": {**HEADER, "card": "NVIDIA H100 X"}}, "header: no peak is published"),
        (NAME, {"ab": {"seconds": None}}, "ab: seconds is None"),
        (NAME, {"ab": {"check": "abc"}}, "abc: not in lines.yaml"),
        (NAME, {"ab": {"check": "peer_keras"}}, "peer_keras: more than one line"),
        (NAME, {"ab": {"status": "unfinished"}}, "ab: status is unfinished"),
        (NAME, {"ab": {"status": "FAILED", "line": "killed"}}, "ab: killed"),
        (NAME, {"ab": {"status": "FAILED", "verdict": "noise"}}, "ab: the verdict does not begin"),
        (NAME, {"ab": {"verdict": "kit: too few pairs"}}, "ab: a verdict where nothing is wrong"),
    ],
)
def test_form(name: str, changed: dict[str, Any], fault: str) -> None:
    found = faults(name, _text(**changed))
    assert found[0].startswith(fault)


def test_a_failed_check_needs_a_verdict() -> None:
    failed = {"status": "FAILED", "facts": {}, "line": "mean and median differ"}
    assert faults(NAME, _text(speed_bf16={**failed, "verdict": "bound: a guess"})) == []


def test_lines_of_the_probe() -> None:
    step = {"step": "matmul_speed", "ok": True, "seconds": 2.5, "text": "50 TFLOP/s"}
    own = json.dumps({**step, **GOOD["probe_matmul_speed"]}) + "\n"
    assert faults(NAME, _text(probe_matmul_speed=None) + own) == []
    assert faults(NAME, _text() + own) == ["probe_matmul_speed: more than one line"] * 2
    own = json.dumps({**step, "step": "xla", "ok": False, "text": "no ptxas"}) + "\n"
    assert faults(NAME, _text() + own) == ["probe_xla: no ptxas"]


def test_a_rehearsal_is_no_measurement() -> None:
    """With any header, and with a verdict that would excuse a measured line."""
    names = {**SPEED["facts"], "gpu_names": ["EMULATED_GPU"], "gpu_driver": "emulated"}
    line = {"facts": {**SPEED, "facts": names}, "verdict": "kit: small sizes"}
    [fault] = faults(NAME, _text(speed_bf16=line))
    assert fault == "speed_bf16: a rehearsal on emulated GPUs, not a measurement"
    without = {check: None for check, facts in GOOD.items() if CARD in json.dumps(facts)}
    assert faults(NAME, _text(**without)) == [f"header: no other line names {CARD}"]
