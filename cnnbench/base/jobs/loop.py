"""Waiting for other processes of a job: intervals, reports and event loops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")

RETRY_SECONDS = 0.1
"""Interval between two attempts to reach another process."""

REPORT_SECONDS = 5.0
"""Interval between two lines about missing processes."""


async def report(tell: Callable[[str], None], missing: Callable[[], str]) -> NoReturn:
    """Prints every few seconds which tasks are `missing`, until cancelled."""
    while True:
        await asyncio.sleep(REPORT_SECONDS)
        tell(f"waiting for {missing()}")


def run(main: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine as `asyncio.run` does, and returns as soon as it has ended.

    It does not wait for pending look-ups of host names, blocking calls that take minutes if no name
    server answers: asyncio joins the threads of its own executor when the loop ends, and Python at
    its exit.
    """

    async def with_daemon_threads() -> T:
        asyncio.get_running_loop().set_default_executor(_DaemonThreads())
        return await main

    return asyncio.run(with_daemon_threads())


class _DaemonThreads(ThreadPoolExecutor):
    """An executor with a daemon thread per call; asyncio accepts only such subclasses."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Starts a call; its thread is not joined."""
        future: Future[T] = Future()

        def call() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)

        future.set_running_or_notify_cancel()
        threading.Thread(target=call, name="look-up", daemon=True).start()
        return future
