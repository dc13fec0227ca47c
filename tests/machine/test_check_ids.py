import pytest

from cnnbench.errors import FlagError
from cnnbench.flags import parse_args
from cnnbench.machine import checks as before
from cnnbench.machine import run_checks
from cnnbench.machine.check_ids import CONDITIONS, parse_quiet


def test_names_and_all():
    assert parse_quiet("") == frozenset()
    assert parse_quiet("load, steal") == {"load", "steal"}
    assert parse_quiet("load,all") == set(CONDITIONS)


@pytest.mark.parametrize(
    ("text", "hint"),
    [("lod", "'lod' is no condition; did you mean load?"), ("xyz", "there are load, steal, ")],
)
def test_unknown_name(text, hint):
    with pytest.raises(FlagError, match=f"^--quiet_conditions={text}: .*{hint[:20]}") as caught:
        parse_quiet(text)
    assert hint in str(caught.value)


def test_a_command_line_with_an_unknown_name_is_refused():
    with pytest.raises(FlagError, match="quiet_conditions"):
        parse_args(["--quiet_conditions=load,heat"])
    assert parse_args(["--quiet_conditions=load"]).params.quiet_conditions == "load"


def test_every_name_has_a_check_and_every_check_a_name():
    checks = {check.__name__ for check in (*before.CHECKS, *run_checks.CHECKS)}
    assert checks == set(CONDITIONS)
