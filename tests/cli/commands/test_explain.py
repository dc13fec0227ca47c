"""cnnbench explain, and what ab says with it."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex

import pytest
from step_profiles import write_sides

from cnnbench.cli.commands import explain as _command  # noqa: F401 (it registers its kinds)
from cnnbench.records.profiles import StepProfile

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def profiles(lenet_runs, tmp_path):
    """Files with profiles of A, and of B whose conv1 has twice the work."""
    return write_sides(lenet_runs(), tmp_path)


@pytest.fixture
def sides(fake_python, quick_answers, quick_processes, profiles, tmp_path, monkeypatch):
    """Flags of sides whose processes write those profiles."""
    monkeypatch.chdir(tmp_path)

    def make(speed=50, **say):
        flags = []
        for side, path in profiles.items():
            fake = {"profile": str(path), "speed": 100 if side == "a" else speed, **say}
            flags += [f"--{side}_python={fake_python}", f"--{side}_env=FAKE={json.dumps(fake)}"]
        return flags

    return make


def test_two_files_are_explained(call, profiles, tmp_path, holds):
    paths = [str(profiles[side]) for side in "ab"]
    out = call("explain", *paths, "--rows=3").out
    assert out.startswith("Not distinguishable from one process to the next: a step takes ")
    assert "The work certainly differs: other work to do in conv1" in " ".join(out.split())
    assert "other rows" in out
    file = tmp_path / "why.json"
    out = call("explain", *paths, "--format=json", f"--output={file}").out
    document = json.loads(file.read_text())
    holds("explanation", document)
    assert document["causes"][0]["place"] == "conv1"
    assert out.startswith(document["answer"][:60])
    assert call("explain", *paths, "--format=table").out.startswith("Not distinguishable from")
    assert call("explain", *paths, "--format=markdown").out.startswith("### cnnbench: why\n")


def test_processes_of_both_sides_are_profiled_in_turn(call, sides, tmp_path):
    trace = tmp_path / "trace"
    out, err = call("explain", *sides(trace=str(trace)), "--results=so why", "--", "--model=lenet")
    page = call("report", "so why", "--format=markdown").out
    assert page.startswith("# Why B differs from A\n")
    head, _, body = page.partition("\n## Where the difference is\n")
    assert f"- Why B differs from A: {out.split('.')[0]}" in head
    assert "| cause |" in body
    assert "3 processes of A and 3 of B" in " ".join(out.split())
    order = [name[-1] for name in trace.read_text().split()]
    assert "".join(order) == "abbaab"
    command = re.search(r"to judge the records again: (.*)", err).group(1)
    again = call(*shlex.split(command)[1:]).out
    assert again.splitlines()[0] == out.splitlines()[0]
    flags = json.loads((tmp_path / "so why" / "discarded" / "0001-a.discarded").read_text())[
        "command"
    ]
    assert {"--profile_steps=20", "--num_warmup_batches=25", "--num_batches=20"} <= set(flags)


LINE = (
    "onednn_verbose,v1,primitive,exec,cpu,convolution,{},backward_weights,"
    "src:f32::blocked:acdb::f0 wei:f32::blocked:Acdb16a::f0,,alg:x,mb8,1.0"
)
STEPS = "1\timages/sec: 9.0\t1.0\n{0}\n{0}\n2\timages/sec: 9.0\t1.0"


@pytest.fixture
def with_onednn(sides, profiles):
    """Makes profiles name operations of oneDNN, of sides whose processes print its log."""

    def make(names="ab", device="cpu", **say):
        for side in names:
            found = StepProfile.from_json(profiles[side].read_bytes())
            placement = dataclasses.replace(found.record.placement, device=device)
            record = dataclasses.replace(found.record, placement=placement)
            graph = {**found.graph, "_MklNativeConv2D": 2}
            profiles[side].write_text(
                dataclasses.replace(found, graph=graph, record=record).to_json()
            )
        flags = sides(**say)
        logs = {"a": "jit:avx2", "b": "gemm:jit"}
        for number, side in ((1, "a"), (3, "b")):
            begin, _, fake = flags[number].partition("FAKE=")
            log = {"onednn": STEPS.format(LINE.format(logs[side]))}
            flags[number] = f"{begin}FAKE={json.dumps({**json.loads(fake), **log})}"
        return flags

    return make


def test_a_short_process_of_each_side_logs_kernels_of_onednn(call, with_onednn, tmp_path):
    trace = tmp_path / "trace"
    flags = with_onednn(trace=str(trace))
    out, err = call("explain", *flags, "--results=why", "--format=json")
    fact = {
        "fact": "oneDNN convolution backward_weights",
        "base": "2 jit:avx2 (f32)",
        "new": "2 gemm:jit (f32)",
    }
    document = json.loads(out)
    assert fact in document["facts"]
    assert document["base_processes"] == 3
    assert trace.read_text().split()[6:] == ["onednn-a", "onednn-b"]
    assert "[8/8] oneDNN B: ok " in err
    made = json.loads((tmp_path / "why" / "discarded" / "onednn-a.discarded").read_text())
    assert {"--display_every=1", "--num_batches=2"} <= set(made["command"])
    assert not any("profile" in word for word in made["command"])
    assert fact in json.loads(call("explain", "why/a", "why/b", "--format=json").out)["facts"]


def test_a_log_that_fails_leaves_the_explanation(call, with_onednn, tmp_path):
    out, err = call("explain", *with_onednn(fail=["onednn-b"]), "--results=why", "--format=json")
    assert "oneDNN B: no good" in err
    assert json.loads(out)["causes"][0]["place"] == "conv1"
    assert "oneDNN" not in out


@pytest.mark.parametrize(
    ("names", "device", "flag"),
    [("b", "cpu", ()), ("ab", "gpu", ()), ("ab", "cpu", ("--num_epochs=1",))],
)
def test_when_no_log_is_made(call, with_onednn, tmp_path, names, device, flag):
    trace = tmp_path / "trace"
    flags = with_onednn(names, device, trace=str(trace))
    err = call("explain", *flags, "--results=why", "--", "--model=lenet", *flag).err
    assert len(trace.read_text().split()) == 6
    assert "oneDNN" not in err


def test_jobs_are_profiled_by_their_chiefs(call, sides, tmp_path):
    words = ["explain", "--workers=2", *sides(launches=True), "--results=why", "--rounds=1"]
    assert " in conv1 (" in call(*words, "--", "--model=lenet").out
    document = json.loads((tmp_path / "why" / "discarded" / "0001-a.discarded").read_text())
    assert document["config"]["worker_hosts"].count("localhost:") == 2
    err = call("explain", "a.json", "b.json", "--workers=2", code=2).err
    assert "--workers=2: has an effect only on new processes" in err


def test_a_verdict_of_slower_is_explained_in_every_output(call, sides, tmp_path, holds):
    flags = [*sides(), "--burn_in=0", "--pairs=6", "--", "--model=lenet"]
    out = call("ab", "--results=r", "--format=json", "--output=r.json", *flags, code=1).out
    assert "mean milliseconds of a step\n" in out
    assert "in conv1" in out
    document = json.loads((tmp_path / "r.json").read_text())
    holds("comparison", document)
    answer = document["explanation"]["answer"]
    assert " in conv1 (" in answer
    assert len(document["configurations"][0]["base_runs"]) == 6  # none of those that were profiled
    out, err = call("report", "r", "--format=markdown")
    assert "## Where the difference is" in out
    assert "conv1" in out
    assert "skipped" not in err


@pytest.mark.parametrize(
    ("speed", "given", "explained"),
    [
        (100, ("--explain",), False),
        (100, ("--explain=always",), True),
        (50, ("--explain=never",), False),
        (150, ("--explain=auto",), True),
    ],
)
def test_when_a_verdict_is_explained(sides, call, tmp_path, speed, given, explained):
    quick = ("--burn_in=0", "--pairs=6", "--results=r")
    out = call("ab", *given, *sides(speed), *quick, code=None).out
    assert ("mean milliseconds of a step" in out) is explained
    assert (tmp_path / "r" / "explain").exists() is explained


def test_a_side_that_cannot_be_profiled_is_one_line_and_the_verdict_stands(call, sides, tmp_path):
    flags = sides()
    flags[1] = f"--a_env=FAKE={json.dumps({'speed': 100})}"
    out, err = call("ab", *flags, "--burn_in=0", "--pairs=6", "--results=r", code=1)
    told = "not explained: the cnnbench of side A is of a version without --profile_json"
    assert err.count(told) == 1
    assert "- slower" in out
    err = call("explain", *flags, "--results=why", code=4).err
    assert "of side A is of a version without --profile_json" in err


def test_real_processes(call, tmp_path, holds, loaded_processes, quick_answers):
    flags = ["--model=lenet", "--device=cpu", "--batch_size=4", "--quiet_conditions=all"]
    flags += ["--peak_flops=1e12"]
    results = tmp_path / "why"
    command = ["explain", "--b=--precision=bf16", "--rounds=1", "--steps=3", "--format=json"]
    document = json.loads(call(*command, f"--results={results}", "--", *flags).out)
    holds("explanation", document)
    rows = {(row["layer"], row["kind"], row["direction"]): row for row in document["rows"]}
    for direction in ("forward", "input gradient", "kernel gradient"):
        assert rows["conv1", "convolution 5x5", direction]["new"] > 0
    total = sum(row["difference"] for row in document["rows"]) + document["remainder"]
    assert total == pytest.approx(document["difference"])
    assert {"fact": "precision", "base": "fp32", "new": "bf16"} in document["facts"]
    profile = json.loads((results / "b" / "0001-b.profile").read_text())
    holds("step_profile", profile)
    kinds = {kernel for row in profile["rows"] for kernel in row["operations"]}
    assert any(re.fullmatch(r"\w*Conv2D\w* bfloat16", kernel) for kernel in kinds)
