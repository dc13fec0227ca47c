import pytest

from cnnbench.errors import FlagError
from cnnbench.flags import FLAGS, Params, parse_args, validate
from cnnbench.flags.retired import NOT_YET, available_choices

SPECS = {spec.name: spec for spec in FLAGS}


@pytest.mark.parametrize("name", sorted(NOT_YET))
def test_refused_by_name(name):
    for value in NOT_YET[name]:
        text = SPECS[name].text(value)
        with pytest.raises(FlagError) as caught:
            parse_args([f"--{name}={text}"])
        assert str(caught.value).startswith(f"--{name}={text}: not available yet; ")
        with pytest.raises(FlagError, match="not available yet"):
            validate(Params(**{name: value}))


def test_messages_say_what_works():
    def message(flag, value):
        with pytest.raises(FlagError) as caught:
            validate(Params(**{flag: value}))
        return caught.value.reason.split("; ")[-1]

    for name, values in NOT_YET.items():
        assert message(name, values[0]).startswith(f"use {SPECS[name].choices[0]} or ")


@pytest.mark.parametrize(
    ("flag", "values"),
    [
        ("variable_update", ("parameter_server", "replicated", "independent")),
        ("bn_stats", ("first", "mean", "sync")),
        ("compact_gradient_transfer", (True, False)),
    ],
)
def test_the_rest_of_the_values_work(flag, values):
    for value in values:
        validate(Params(**{flag: value}))


def test_available_choices():
    for name, values in NOT_YET.items():
        assert not set(values) & set(available_choices(SPECS[name]))
    assert available_choices(SPECS["optimizer"]) == SPECS["optimizer"].choices
