"""The time of the timed loop, with scripted clocks."""

from __future__ import annotations

from contextlib import suppress

from cnnbench.run.driver.loop_time import LoopTime, LoopTimer


def test_what_is_away_counts_neither_as_wall_time_nor_as_cpu_time() -> None:
    now = [LoopTime(100.0, 7.0, 3.0)]

    def spend(wall: float, user: float, system: float) -> None:
        before = now[0]
        now[0] = LoopTime(before.wall + wall, before.user + user, before.system + system)

    timer = LoopTimer(lambda: now[0])
    spend(1.0, 1.5, 0.25)
    with timer.away():
        spend(50.0, 40.0, 30.0)
    spend(2.0, 3.0, 0.5)
    with suppress(KeyboardInterrupt), timer.away():
        spend(8.0, 8.0, 8.0)
        raise KeyboardInterrupt
    assert timer.loop() == LoopTime(3.0, 4.5, 0.75)
    assert timer.wall_seconds == 61.0


def test_readings_are_of_this_process() -> None:
    timer = LoopTimer()
    sum(range(10**6))
    spent = timer.loop()
    assert spent.wall > 0
    assert spent.user + spent.system > 0
