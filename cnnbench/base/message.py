"""Messages between processes of cnnbench: a JSON value after its length in bytes.

Four bytes contain the length of the JSON text in bytes, the most significant byte first. Nothing is
authenticated, and received values are neither executed nor stored. These processes send messages:

- Processes of a job that is about to start, and the first of them (`base/star.py`).
- Processes of a running job (`run/watchdog.py`), on their connection with the chief: regularly
  ``{"up": bool, "standing": progress}``; once ``{"end": [exit code, reason]}``, or ``{"failed":
  reason}``, or ``{"lost": reason}``.
- The guard of a child process (`campaigns/processes/guard.py`), to the parent of both: once
  ``{"status": wait status}`` or ``{"error": reason}``.
- A run, to the process that supervises it (`run/runtime/supervisor.py`): once ``{"code": exit
  code}``.

One connection carries single bytes instead: a measured process and the campaign that assigns its
time slices exchange the letters of `run/runtime/turns.py`, because ``ab`` also measures earlier
versions of cnnbench, which know these letters.
"""

from __future__ import annotations

import contextlib
import json
import math
import socket
import time
from typing import Any

from cnnbench.base.files import parse_json

LONGEST = 1 << 22
"""Maximum number of bytes of a JSON text. It suffices for the addresses of 65,535 processes."""

FOREIGN = (OSError, EOFError, ValueError, LookupError, TypeError)
"""Errors that occur while a message is read and used if the other process is not of cnnbench."""

_LENGTH_BYTES = 4
_BYTES_AT_ONCE = 1 << 16


def pack(value: object) -> bytes:
    """The bytes of a message with a JSON value."""
    text = json.dumps(value).encode()
    return len(text).to_bytes(_LENGTH_BYTES, "big") + text


def unpack(data: bytes) -> tuple[list[bytes], bytes]:
    """Splits received bytes into the JSON texts of complete messages and the rest.

    ValueError if the length of a message is above `LONGEST`.
    """
    texts = []
    while len(data) >= _LENGTH_BYTES:
        end = _LENGTH_BYTES + _parse_length(data[:_LENGTH_BYTES])
        if len(data) < end:
            break
        texts.append(data[_LENGTH_BYTES:end])
        data = data[end:]
    return texts, data


def receive(link: socket.socket, seconds: float = math.inf) -> Any:
    """Receives one message, and no byte that follows it. Returns its JSON value.

    Raises:
      TimeoutError: the message is not complete after `seconds`.
      EOFError: the connection was closed before the end of the message.
      ValueError: what arrived is not a message.
      OSError: the connection is broken.
    """
    deadline = time.monotonic() + seconds
    length = _parse_length(_receive_exactly(link, _LENGTH_BYTES, deadline))
    return parse_json(_receive_exactly(link, length, deadline))


class MessageLink:
    """A connection on which messages are sent and received without blocking.

    Bytes that the other process does not receive yet are queued, and sent by a later call.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._received = self._unsent = b""

    def fileno(self) -> int:
        """File descriptor for a selector."""
        return self._connection.fileno()

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()

    def send(self, value: object) -> None:
        """Queues a message with a JSON value, and sends queued messages as far as possible without
        blocking.
        """
        self._unsent += pack(value)
        self.flush()

    def flush(self) -> bool:
        """Sends the queued messages as far as possible without blocking. Returns whether all were
        sent.
        """
        # An error means that the buffer is full, or that the connection is closed, which `receive`
        # will detect.
        with contextlib.suppress(OSError):
            self._unsent = self._unsent[self._connection.send(self._unsent) :]
        return not self._unsent

    def receive(self) -> list[bytes]:
        """Receives the JSON texts of the messages that have arrived since the last call.

        EOFError if the connection was closed or is broken, or if no message can have the length.
        """
        try:
            data = self._connection.recv(_BYTES_AT_ONCE)
            texts, self._received = unpack(self._received + data)
        except BlockingIOError:
            return []
        except (OSError, ValueError) as error:
            raise EOFError from error
        if not data:
            raise EOFError
        return texts


def _parse_length(data: bytes) -> int:
    length = int.from_bytes(data, "big")
    if length > LONGEST:
        raise ValueError(f"a message of {length} bytes")
    return length


def _receive_exactly(link: socket.socket, count: int, deadline: float) -> bytes:
    data = b""
    while len(data) < count:
        seconds = deadline - time.monotonic()
        if seconds <= 0:
            raise TimeoutError
        link.settimeout(None if seconds == math.inf else seconds)
        part = link.recv(count - len(data))
        if not part:
            raise EOFError
        data += part
    return data
