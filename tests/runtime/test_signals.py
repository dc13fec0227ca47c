from __future__ import annotations

import os
import signal

import pytest

from cnnbench.runtime.signals import uninterrupted


def work(number: int, done: list[str]) -> None:
    with uninterrupted():
        os.kill(os.getpid(), number)
        done.append("the block")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_delivered_after_the_block(number: int) -> None:
    done: list[str] = []
    before = signal.signal(number, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            work(number, done)
    finally:
        signal.signal(number, before)
    assert done == ["the block"]
