"""Records like those of a year of measurements; the whole is scripts/measure_results."""

import measure_results

from cnnbench.records.run import RunRecord


def test_records_are_valid_distinct_and_reproducible(lenet_runs):
    like = {**lenet_runs()(100.0).to_dict(), "losses": [], "step_cpu_seconds": []}
    made = list(measure_results.records(like, 50))
    assert made == list(measure_results.records(like, 50))
    found = [RunRecord.from_json(text) for _, text in made]
    assert len({one.run_id for one in found}) == len({path for path, _ in made}) == 50
    commits = [one.subject.revision for one in found]
    assert [commits.count(one) for one in dict.fromkeys(commits)] == [24, 24, 2]
    assert {one.batch.per_device for one in found} == {8, 16, 32}
    assert {len(one.step_seconds) for one in found} == {100}
