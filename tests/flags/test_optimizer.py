import pytest

from cnnbench.errors import FlagError
from cnnbench.flags import Params, validate
from cnnbench.flags.groups.optimizer import PiecewiseSchedule, parse_piecewise

DECAY = {
    "init_learning_rate": 0.1,
    "num_epochs_per_decay": 2.0,
    "learning_rate_decay_factor": 0.5,
}


@pytest.mark.parametrize(
    ("text", "rates", "boundaries"),
    [
        ("0.3;10;0.2;25;0.1", (0.3, 0.2, 0.1), (10, 25)),
        ("1", (1.0,), ()),
        ("1; 3; .1", (1.0, 0.1), (3,)),
        ("1;0;.1", (1.0, 0.1), (0,)),
    ],
)
def test_piecewise(text, rates, boundaries):
    assert parse_piecewise(text) == PiecewiseSchedule(rates, boundaries)
    validate(Params(piecewise_learning_rate_schedule=text))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1;3", "odd number"),
        ("1;3;.1;5", "odd number"),
        ("x;3;.1", "'x' is not a learning rate"),
        ("-1;3;.1", "'-1' is not a learning rate"),
        ("nan;3;.1", "'nan' is not a learning rate"),
        ("1;1.5;.1", "'1.5' is not an epoch"),
        ("1;;.1", "'' is not an epoch"),
        ("1;5;.1;5;.01", "increase"),
        ("1;5;.1;3;.01", "increase"),
    ],
)
def test_piecewise_refuses(text, reason):
    with pytest.raises(FlagError, match=reason) as caught:
        validate(Params(piecewise_learning_rate_schedule=text))
    assert caught.value.flag == "piecewise_learning_rate_schedule"


@pytest.mark.parametrize(
    "changes",
    [*({name: value} for name, value in DECAY.items()), {"minimum_learning_rate": 0.01}],
)
def test_piecewise_stands_alone(changes):
    (name,) = changes
    with pytest.raises(FlagError, match="--piecewise_learning_rate_schedule") as caught:
        validate(Params(piecewise_learning_rate_schedule="1;3;.1", **changes))
    assert caught.value.flag == name


def test_piecewise_may_warm_up():
    validate(Params(piecewise_learning_rate_schedule="1;3;.1", num_learning_rate_warmup_epochs=1))


def test_decay_needs_all_of_its_flags():
    validate(Params(**DECAY))
    validate(Params(**DECAY, minimum_learning_rate=0.01))
    for missing in DECAY:
        changes = {name: value for name, value in DECAY.items() if name != missing}
        if changes.keys() != {"init_learning_rate"}:
            with pytest.raises(FlagError, match=f"needs --{missing}$"):
                validate(Params(**changes))


def test_floor_needs_a_decay():
    with pytest.raises(FlagError, match="needs --init_learning_rate and --num_epochs_per_decay"):
        validate(Params(minimum_learning_rate=0.01))
    with pytest.raises(FlagError, match="needs --num_epochs_per_decay and --learning_rate_decay"):
        validate(Params(minimum_learning_rate=0.01, init_learning_rate=0.1))
    validate(Params(init_learning_rate=0.0))
