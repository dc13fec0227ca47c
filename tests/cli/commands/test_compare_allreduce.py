"""`cnnbench compare` and `cnnbench history` on what `cnnbench allreduce` and sweeps leave."""

import json

import pytest
from pages import Page


def side(reductions, factor=1.0):
    speeds = (6.0, 6.012, 5.988, 6.006, 5.994)
    return reductions.of(*(speed * factor for speed in speeds))


def test_facts_and_flags_of_reductions_may_be_named(call, reductions, tmp_path, saved):
    base = saved(tmp_path / "base", side(reductions))
    new = saved(tmp_path / "new", side(reductions, 0.8))
    for name in ("all_reduce_spec", "iters_per_step", "tensors", "gradient_repacking", "cpu_model"):
        out, err = call("compare", base, new, f"--allow_different={name}", code=1)
        assert out.splitlines()[5].startswith("bus_bandwidth")
        assert ("- slower" in out, err) == (True, "")


def test_jobs_and_reductions_are_judged_together(call, reductions, lenet_runs, tmp_path, saved):
    runs, speeds = lenet_runs(), (100, 101)
    sides = (saved(tmp_path / name, [*side(reductions), *runs.of(*speeds)]) for name in "ab")
    out, err = call("compare", *sides, code=3)
    assert "bus_bandwidth" in out
    assert err.startswith("cnnbench: for a verdict on lenet, ")
    assert err.count("\n") == 1


def test_history_says_what_there_is_to_follow(call, reductions, lenet_runs, tmp_path, saved):
    folder = saved(tmp_path / "reductions", reductions.of(6.0))
    assert call("history", folder, code=2).err == (
        f"cnnbench: error: {folder}: no run records; --metric=bus_bandwidth follows the "
        "all-reduces that there are\n"
    )
    folder = saved(tmp_path / "runs", [lenet_runs()()])
    assert call("history", folder, "--metric=bus_bandwidth", code=2).err == (
        f"cnnbench: error: {folder}: no all-reduce measurements with bus_bandwidth; "
        "cnnbench allreduce --result_json=FILE writes them\n"
    )


@pytest.mark.slow
def test_files_of_the_command_itself(call, holds, tmp_path):
    for name in ("base", "new"):
        (tmp_path / name).mkdir()
        flags = [
            *("allreduce", "--device=cpu", "--num_gpus=2", "--sizes=4K,64K"),
            *("--all_reduce_spec=copy,xring", "--peers=reduction_to_one_device"),
            *("--num_batches=3", "--num_warmup_batches=0", "--iters_per_step=1"),
            f"--result_label=commit={name}",
            f"--result_json={tmp_path}/{name}/1.json",
        ]
        call(*flags)
    out = call("compare", f"{tmp_path}/base", f"{tmp_path}/new", "--format=json", code=3).out
    document = json.loads(out)
    holds("comparison", document)
    assert (document["exit_code"], document["skipped"]) == (3, [])
    found = [(one["name"], one["kind"], one["decides"]) for one in document["configurations"]]
    assert found == [
        (f"all-reduce {spec}, {size} bytes, 2 cpu{peer}", "peer" if peer else "allreduce", not peer)
        for spec, peer in (("copy", ""), ("reduction_to_one_device", ", peer"), ("xring", ""))
        for size in (4096, 65536)
    ] + [(f"memory copy, {size} bytes, 2 cpu", "copy", False) for size in (4096, 65536)]
    for one in document["configurations"]:
        (speed, *rest) = one["results"]
        assert (speed["unit"], len(speed["base_values"]), len(speed["new_values"])) == (
            "GB/s",
            1,
            1,
        )
        assert speed["verdict"] == "inconclusive"
        assert [again["metric"] for again in rest] == ["build"] * (one["kind"] == "allreduce")
        assert not any(fact["blocks"] for fact in one["differences"])
    # The bandwidth is that of the command's own table.
    record = json.loads((tmp_path / "base" / "1.json").read_text())
    (point,) = [p for p in record["points"] if (p["spec"], p["bytes"]) == ("xring", 65536)]
    (entry,) = [
        one
        for one in document["configurations"]
        if one["name"].startswith("all-reduce xring, 65536")
    ]
    # Of two devices each sends all of its bytes once.
    expected = 65536 / sorted(point["seconds"])[1] / 1e9
    assert entry["results"][0]["base_values"] == [pytest.approx(expected)]

    document = json.loads(call("history", tmp_path, "--metric=bus_bandwidth", "--format=json").out)
    holds("history", document)
    assert len(document["series"]) == 6
    names = {point["name"] for series in document["series"] for point in series["points"]}
    assert names == {"base", "new"}


def test_a_page_about_reductions_begins_with_the_verdict(call, reductions, tmp_path, saved):
    """No section of the page is about runs."""
    base = saved(tmp_path / "base", side(reductions))
    new = saved(tmp_path / "new", side(reductions, 0.8))
    answer = json.loads(call("compare", base, new, "--format=json", code=1).out)["answer"]
    file = tmp_path / "x.html"
    call("compare", base, new, f"--output={file}", code=1)
    page = Page(file.read_text())
    assert page.texts["h1"] == [f"{new} against {base}"]
    assert answer.rstrip(".") in [text.strip() for texts in page.texts.values() for text in texts]
    # The measurements of both sides are there.
    assert "allreduce" in {found.get("id") for _, found in page.elements}
    # The answer is the verdict: not one for each of ten records.
    assert not any(title.startswith("All-reduce, ") for title in page.texts["h2"])
