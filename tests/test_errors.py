from __future__ import annotations

import pytest

from cnnbench.errors import FlagError, NonFiniteLossError, informative_line


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("disk   full\nmore", "disk full"),
        ("Graph execution error:\n\nDetected at node conv", "Detected at node conv"),
        (
            "Graph execution error:\n\nDetected at node ones defined at (most recent call last):\n"
            '  File "step.py", line 4, in f\n\nOOM when allocating tensor\n\t [[{{node ones}}]]\n'
            "Hint: add a flag\n [Op:__inference_f_15]",
            "OOM when allocating tensor",
        ),
        ("{{function_node __wrapped__X}} OOM here [Op:Conv2D] name: ", "OOM here"),
        (
            "Graph execution error:\n\nDetected at node a defined at (most recent call last):\n"
            "<stack traces unavailable>\nDetected at node a defined at (most recent call last):\n"
            "<stack traces unavailable>\n2 root error(s) found.\n"
            "  (0) UNAVAILABLE:  Socket closed\nAdditional GRPC error information:\n"
            "  (1) CANCELLED: [Derived] too\n0 successful operations.",
            "Socket closed",
        ),
        (
            "Detected at node x defined at:\n<stack traces unavailable>\ngone",
            "gone",
        ),
        (
            "Exception encountered when calling Slow.call().\n\n\x1b[1mno such axis\x1b[0m\n\n"
            "Arguments received by Slow.call():\n  - inputs=...",
            "no such axis",
        ),
        ("", "ValueError"),
    ],
)
def test_the_first_line_that_says_something(message, expected):
    assert informative_line(ValueError(message)) == expected


def test_errors_name_flag_value_and_step():
    assert str(FlagError("num_gpus", 0, "must be at least 1")) == "--num_gpus=0: must be at least 1"
    assert "at step 3;" in str(NonFiniteLossError(3, float("nan"), 10))
    assert "at warm-up step 8;" in str(NonFiniteLossError(-3, float("nan"), 10))
    without_advice = str(NonFiniteLossError(3, float("nan")))
    assert without_advice == "loss is nan at step 3; pass --allow_nonfinite to go on measuring"
