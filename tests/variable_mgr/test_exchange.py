"""Towers that meet while they are built; what a thread takes over, and how they end."""

from __future__ import annotations

import threading
from contextvars import ContextVar

import pytest
import tensorflow as tf

from cnnbench.variable_mgr import exchange


def sums(values):
    return [sum(values)] * len(values)


@pytest.fixture(autouse=True)
def _nothing_hangs():
    """Every thread of a tower has ended when `build_towers_in_threads` has."""
    yield
    assert [t.name for t in threading.enumerate() if t.name.startswith("cnnbench-tower")] == []


@pytest.fixture(params=["replicated", "mirrored_strategy", "central_storage_strategy"])
def run(request, make_manager):
    """run(build, count): what towers return that a manager builds with meetings in a step."""

    def run(build, count):
        manager = make_manager(request.param, count, ())
        results = []
        tf.function(
            lambda: results.extend(manager.run_towers(build, exchanges_values=True)),
            autograph=False,
        ).get_concrete_function()
        return results

    return run


def test_values_are_merged_once_in_the_order_of_the_towers_of_which_one_runs_at_a_time(run):
    merges, order = [], []

    def merge(values):
        merges.append((list(values), threading.current_thread()))
        return [value * 10 for value in values]

    def build(tower):
        order.append(("a", tower))
        first = exchange.merge_over_towers("a", tower, merge)
        order.append(("b", tower))
        last = exchange.merge_over_towers("b", first + 1, merge)
        order.append(("end", tower))
        return first, last

    assert run(build, 3) == [(0, 10), (10, 110), (20, 210)]
    here = threading.current_thread()
    assert merges == [([0, 1, 2], here), ([1, 11, 21], here)]
    assert order == [(part, tower) for part in ("a", "b", "end") for tower in range(3)]


def test_an_error_of_the_merge_ends_all(run):
    def merge(values):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(lambda tower: exchange.merge_over_towers("here", tower, merge), 2)


@pytest.mark.parametrize(
    ("points", "words"),
    [
        (("a", "ab"), "its end, tower 1 reached b"),
        (("ab", "a"), "b, tower 1 reached its end"),
        (("a", "b"), "tower 0 reached a, tower 1 reached b"),
    ],
)
def test_towers_that_part_are_named(points, words, run, request):
    def build(tower):
        for point in points[tower]:
            exchange.merge_over_towers(point, tower, sums)

    # TensorFlow has words of its own for towers of a strategy that meet unequally often.
    own = "replicated" in request.node.name or "end" not in words
    with pytest.raises(RuntimeError, match=words if own else None):
        run(build, 2)


@pytest.mark.parametrize(("failing", "late"), [(0, False), (2, False), (0, True), (1, True)])
def test_a_failing_tower_ends_all_with_its_error(failing, late, run):
    unwound = []

    def build(tower):
        try:
            if late:
                exchange.merge_over_towers("early", tower, sums)
            if tower == failing:
                raise LookupError(f"tower {tower}")
            exchange.merge_over_towers("late", tower, sums)
        finally:
            unwound.append(tower)

    before = threading.active_count()
    with pytest.raises(LookupError, match=f"tower {failing}"):
        run(build, 3)
    assert threading.active_count() == before
    assert sorted(unwound) == list(range(3 if late else failing + 1))


def test_an_ending_tower_that_carries_on_still_ends():
    def build(tower):
        if tower:
            raise LookupError
        for _ in range(3):
            try:
                exchange.merge_over_towers("here", tower, sums)
            except BaseException:
                continue

    with pytest.raises(LookupError):
        exchange.build_towers_in_threads(build, 2)


def test_meeting_outside_is_an_error():
    with pytest.raises(RuntimeError, match="must build the towers"):
        exchange.merge_over_towers("here", 1, sums)


def test_a_thread_takes_over_graph_device_scope_dependencies_and_context_variables(cpu_devices):
    variable: ContextVar[str] = ContextVar("test")
    variable.set("taken over")
    seen = []

    @tf.function(autograph=False)
    def step(x):
        before = tf.identity(x, name="before")
        # State of earlier towers must not show up in later ones.
        with tf.device(cpu_devices[3]), tf.control_dependencies([before]), tf.name_scope("first"):
            exchange.build_towers_in_threads(lambda tower: tf.no_op(), 2)
        free = exchange.build_towers_in_threads(lambda tower: tf.identity(x, name="free"), 2)
        assert [(one.device, [*one.op.control_inputs]) for one in free] == [("", [])] * 2
        assert [one.op.name for one in free] == ["free", "free_1"]

        def build(tower):
            seen.append((variable.get(), tf.get_current_name_scope()))
            plain = tf.no_op(name="plain").graph.get_operation_by_name("outer/plain")
            with tf.device(cpu_devices[4 + tower]), tf.name_scope(f"tower_{tower}"):
                mine = tf.identity(x, name="mine")
                total = exchange.merge_over_towers(
                    "sum", mine, lambda v: [tf.add_n(v, name="all")] * 2
                )
                after = tf.multiply(total, 2.0, name="after")
            return plain, mine, total, after

        with (
            tf.device(cpu_devices[2]),
            tf.name_scope("outer"),
            tf.control_dependencies([before]),
        ):
            made = exchange.build_towers_in_threads(build, 2)
            last = tf.identity(made[0][3], name="last")
        nowhere = tf.identity(x, name="nowhere")
        assert (last.device, nowhere.device) == (cpu_devices[2], "")
        assert nowhere.op.control_inputs == []
        for tower, (_, mine, total, after) in enumerate(made):
            assert mine.graph is last.graph
            assert mine.device == after.device == cpu_devices[4 + tower]
            assert mine.op.control_inputs == [before.op]
            assert after.op.name == f"outer/tower_{tower}/after"
            assert total.op.name == "outer/tower_0/all"
            assert total.device == cpu_devices[2]
        assert made[0][0].device == cpu_devices[2]
        assert made[0][0].control_inputs == [before.op]
        return [after for *_, after in made]

    assert [float(value) for value in step(tf.constant(3.0))] == [12.0, 12.0]
    assert seen == [("taken over", "outer")] * 2
