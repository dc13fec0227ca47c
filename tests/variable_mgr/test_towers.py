"""Towers built in step: where they meet, what a thread takes over, and how they end."""

from __future__ import annotations

import threading
from contextvars import ContextVar

import pytest
import tensorflow as tf

from cnnbench.variable_mgr import towers


def sums(values):
    return [sum(values)] * len(values)


@pytest.fixture(autouse=True)
def _nothing_hangs():
    """Every thread of a tower has ended when `in_step` has."""
    yield
    assert [t.name for t in threading.enumerate() if t.name.startswith("cnnbench-tower")] == []


def test_values_are_merged_once_in_the_order_of_the_towers():
    merges = []

    def merge(values):
        merges.append((list(values), threading.current_thread()))
        return [value * 10 for value in values]

    def build(tower):
        first = towers.meet("a", tower, merge)
        return first, towers.meet("b", first + 1, merge)

    assert towers.in_step(build, 3) == [(0, 10), (10, 110), (20, 210)]
    assert merges == [
        ([0, 1, 2], threading.current_thread()),
        ([1, 11, 21], threading.current_thread()),
    ]


def test_one_tower_runs_at_a_time_and_they_take_turns():
    order = []

    def build(tower):
        for part in range(2):
            order.append((part, tower))
            towers.meet("next", None, lambda values: values)
        order.append((2, tower))

    towers.in_step(build, 3)
    assert order == [(part, tower) for part in range(3) for tower in range(3)]


def test_a_single_tower_meets_itself():
    assert towers.in_step(lambda tower: towers.meet("here", 4, sums), 1) == [4]


@pytest.mark.parametrize(("failing", "late"), [(0, False), (2, False), (0, True), (1, True)])
def test_a_failing_tower_ends_all_with_its_error(failing, late):
    unwound = []

    def build(tower):
        try:
            if late:
                towers.meet("early", tower, sums)
            if tower == failing:
                raise LookupError(f"tower {tower}")
            towers.meet("late", tower, sums)
        finally:
            unwound.append(tower)

    with pytest.raises(LookupError, match=f"tower {failing}"):
        towers.in_step(build, 3)
    begun = range(3) if late else range(failing + 1)
    assert sorted(unwound) == list(begun)


def test_an_error_of_the_merge_ends_all():
    def merge(values):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        towers.in_step(lambda tower: towers.meet("here", tower, merge), 2)


@pytest.mark.parametrize(
    ("counts", "words"),
    [((1, 2), "its end, tower 1 to point 1"), ((2, 1), "point 1, tower 1 to its end")],
)
def test_towers_that_meet_unequally_often_are_named(counts, words):
    def build(tower):
        for number in range(counts[tower]):
            towers.meet(f"point {number}", tower, sums)

    with pytest.raises(RuntimeError, match=words):
        towers.in_step(build, 2)


def test_towers_that_come_to_different_points_are_named():
    with pytest.raises(RuntimeError, match="tower 0 has come to point 0, tower 1 to point 1"):
        towers.in_step(lambda tower: towers.meet(f"point {tower}", tower, sums), 2)


def test_an_ending_tower_that_carries_on_still_ends():
    def build(tower):
        if tower:
            raise LookupError
        for _ in range(3):
            try:
                towers.meet("here", tower, sums)
            except BaseException:
                continue

    with pytest.raises(LookupError):
        towers.in_step(build, 2)


def test_meeting_outside_is_an_error():
    with pytest.raises(RuntimeError, match="in step"):
        towers.meet("here", 1, sums)


def test_a_thread_takes_over_graph_device_scope_dependencies_and_context_variables(cpu_devices):
    variable: ContextVar[str] = ContextVar("test")
    variable.set("taken over")
    seen = []

    @tf.function(autograph=False)
    def step(x):
        before = tf.identity(x, name="before")
        # State of earlier towers must not show up in later ones.
        with tf.device(cpu_devices[3]):
            towers.in_step(lambda tower: tf.no_op(), 2)

        def build(tower):
            seen.append((variable.get(), tf.get_current_name_scope()))
            plain = tf.no_op(name="plain").graph.get_operation_by_name("outer/plain")
            with tf.device(cpu_devices[4 + tower]), tf.name_scope(f"tower_{tower}"):
                mine = tf.identity(x, name="mine")
                total = towers.meet("sum", mine, lambda v: [tf.add_n(v, name="all")] * 2)
                after = tf.multiply(total, 2.0, name="after")
            return plain, mine, total, after

        with (
            tf.device(cpu_devices[2]),
            tf.name_scope("outer"),
            tf.control_dependencies([before]),
        ):
            made = towers.in_step(build, 2)
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


def test_towers_are_in_step_without_tracing():
    def build(tower):
        return float(towers.meet("sum", tf.constant(tower + 1.0), lambda v: [tf.add_n(v)] * 2))

    assert towers.in_step(build, 2) == [3.0, 3.0]


def test_gradients_are_taken_within_each_tower():
    @tf.function(autograph=False)
    def step(x):
        @tf.custom_gradient
        def summed(y):
            def gradient(upstream):
                return towers.meet("back", upstream, lambda v: [tf.add_n(v)] * 2)

            return towers.meet("forth", y, lambda v: [tf.add_n(v)] * 2), gradient

        def build(tower):
            with tf.GradientTape() as tape:
                mine = x * (tower + 1.0)
                tape.watch(mine)
                loss = summed(mine) ** (tower + 1)
            return tape.gradient(loss, mine)

        return towers.in_step(build, 2)

    # The sum is 3x; its squares' and its own derivative add up on both.
    assert [float(g) for g in step(tf.constant(2.0))] == [13.0, 13.0]
