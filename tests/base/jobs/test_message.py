"""Messages over real sockets: whole, in parts, cut off, too long, and not those of cnnbench.

Tests cnnbench/base/message.py.
"""

from __future__ import annotations

import json
import socket
import threading

import pytest

from cnnbench.base import message
from cnnbench.base.message import MessageLink, pack, receive, unpack

pytestmark = pytest.mark.timeout(30)

VALUES = (None, {}, [1, 2.5, "ü\n\0"], {"end": [4, "no space\nleft"]}, "x" * 100_000)


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_what_is_sent_is_received_one_message_at_a_time(pair):
    ours, theirs = pair
    sender = threading.Thread(target=theirs.sendall, args=(b"".join(map(pack, VALUES)) + b"rest",))
    sender.start()
    assert [receive(ours, 10.0) for _ in VALUES] == [*VALUES]
    sender.join()
    assert ours.recv(100) == b"rest"  # no byte behind a message is lost


def test_a_message_may_arrive_byte_by_byte(pair):
    ours, theirs = pair

    def send():
        for byte in pack({"rank": 1}):
            theirs.sendall(bytes([byte]))

    sender = threading.Thread(target=send)
    sender.start()
    assert receive(ours, 10.0) == {"rank": 1}
    sender.join()


@pytest.mark.parametrize("parts", [1, 3, 1000])
def test_bytes_are_split_into_messages_wherever_they_were_cut(parts):
    data, found, rest = b"".join(map(pack, VALUES)), [], b""
    for place in range(0, len(data), parts):
        texts, rest = unpack(rest + data[place : place + parts])
        found += map(json.loads, texts)
        if parts == 1 and place > 200:
            break  # the long text, one byte after another
    assert found == [*VALUES][: len(found)]
    assert len(found) >= 4
    assert rest == (b"" if parts > 1 else rest)


@pytest.mark.parametrize("sent", [b"", b"\0\0", pack({"a": 1})[:-1]])
def test_a_connection_that_closes_early_has_no_message(pair, sent):
    ours, theirs = pair
    theirs.sendall(sent)
    theirs.close()
    with pytest.raises(EOFError):
        receive(ours, 10.0)


@pytest.mark.parametrize("sent", [b"", pack([1])[:-1]])
def test_a_message_that_is_late_is_not_waited_for(pair, sent):
    ours, theirs = pair
    theirs.sendall(sent)
    with pytest.raises(TimeoutError):
        receive(ours, 0.1)


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.0\r\n\r\n",
        (message.LONGEST + 1).to_bytes(4, "big"),
        b"\0\0\0\1{",
        b"\0\0\0\0",
        b"\0\0\0\2\xff\xff",
        b"\0\0\0\3NaN",
        b"\0\1\0\0" + b"[" * (1 << 16),
    ],
    ids=("http", "long", "cut", "empty", "bytes", "nan", "deep"),
)
def test_what_is_no_message_is_refused(pair, sent):
    ours, theirs = pair
    theirs.sendall(sent)
    with pytest.raises(ValueError, match=r"message|JSON|empty|cut|nested|NaN"):
        receive(ours, 10.0)


def test_a_length_that_no_message_has_is_refused_at_once():
    with pytest.raises(ValueError, match="bytes"):
        unpack(pack({}) + b"\xff\xff\xff\xff")


def test_a_link_keeps_what_the_other_process_does_not_receive_yet(pair):
    ours, theirs = map(MessageLink, pair)
    long = "x" * 3_000_000
    ours.send("first")
    ours.send(long)
    assert not ours.flush()
    texts = []
    while len(texts) < 2:
        ours.flush()
        texts += theirs.receive()
    assert ours.flush()
    ours.send("last")
    texts += theirs.receive()
    assert [json.loads(text) for text in texts] == ["first", long, "last"]
    assert theirs.receive() == []


@pytest.mark.parametrize("sent", [b"", pack(1)[:-1], b"\xff\xff\xff\xff"])
def test_a_link_ends_with_its_connection_or_with_what_is_no_message(pair, sent):
    ours, theirs = pair
    link = MessageLink(ours)
    theirs.sendall(sent)
    theirs.close()
    with pytest.raises(EOFError):
        [link.receive() for _ in range(9)]
    link.send("nobody receives it")


def test_the_longest_message_may_arrive():
    head = message.LONGEST.to_bytes(4, "big")
    assert unpack(head + b"x") == ([], head + b"x")
    assert unpack(b"\0\0\0") == ([], b"\0\0\0")
    assert unpack(b"\0\0\0\0") == ([b""], b"")
    assert unpack(b"\0\0\0\2[]\0") == ([b"[]"], b"\0")
    assert pack([1]) == b"\0\0\0\3[1]"


@pytest.mark.parametrize("limit", [(), (0.9,)], ids=["none", "short"])
def test_a_message_that_has_arrived_is_received_within_any_limit(pair, limit):
    ours, theirs = pair
    theirs.sendall(pack([1]))
    assert receive(ours, *limit) == [1]


def test_a_link_is_registered_at_a_selector_by_its_connection(pair):
    assert MessageLink(pair[0]).fileno() == pair[0].fileno()
