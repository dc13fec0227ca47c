"""Elements of examples as plain data. No TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal, TypeVar

from cnnbench.errors import UsageError

V = TypeVar("V")

Size = int | str
"""A number, or the name of what decides it: ``num_classes``, or an attribute of the model."""

Role = Literal["feature", "label"]


@dataclasses.dataclass(frozen=True)
class Draw:
    """Distribution of an element's synthetic values, made by the class methods.

    `scale` is the standard deviation of ``normal`` and the value of ``constant``.
    """

    kind: Literal["normal", "integers", "uniform", "constant", "boxes"]
    scale: float = 1.0
    low: Size = 0
    high: Size = 1

    @classmethod
    def normal(cls, stddev: float = 1.0) -> Draw:
        """Normal distribution of mean 0; draws beyond two standard deviations are redrawn."""
        return cls("normal", stddev)

    @classmethod
    def integers(cls, low: Size, high: Size) -> Draw:
        """Integers from ``low`` to ``high`` - 1, uniformly distributed."""
        return cls("integers", low=low, high=high)

    @classmethod
    def uniform(cls, low: int = 0, high: int = 1) -> Draw:
        """Real numbers from ``low`` up to ``high``, uniformly distributed."""
        return cls("uniform", low=low, high=high)

    @classmethod
    def constant(cls, value: float) -> Draw:
        """``value`` everywhere."""
        return cls("constant", value)

    @classmethod
    def boxes(cls) -> Draw:
        """Boxes ``[..., 4]``: top, left, bottom and right in [0, 1], top < bottom, left < right."""
        return cls("boxes")


@dataclasses.dataclass(frozen=True)
class Element:
    """One named value of an example.

    Attributes:
      shape: shape of one example, without batch; ``()`` for a scalar. A size may be the name of an
        attribute of the model, such as ``image_size``.
      role: whether the network gets it (``feature``) or its loss and metrics (``label``).
      dtype: by TensorFlow's name. Features of ``float32`` are given in the precision of the run.
      draw: distribution of synthetic values; None for what only `Model.preprocess` makes.
      rows: name of a scalar element of integers, the number of rows that count; zeros fill the
        rest, as with boxes of which an image has few or many.
    """

    name: str
    shape: tuple[Size, ...]
    role: Role
    dtype: str = "float32"
    draw: Draw | None = None
    rows: str | None = None

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape of an element that `resolve` has returned."""
        return tuple(int(size) for size in self.shape)

    @property
    def is_real(self) -> bool:
        """Whether it holds real numbers, which networks convert to the run's precision."""
        return self.dtype.startswith(("float", "bfloat"))

    @property
    def named_sizes(self) -> tuple[str, ...]:
        """Sizes given by names."""
        bounds = () if self.draw is None else (self.draw.low, self.draw.high)
        return tuple(size for size in (*self.shape, *bounds) if isinstance(size, str))


IMAGE = Element("image", ("image_size", "image_size", "channels"), "feature", draw=Draw.normal(0.5))
"""A square image that looks, drawn, like a normalised photograph: in [-1, 1]."""

LABEL = Element("label", (), "label", "int64", Draw.integers(0, "num_classes"))
"""The class of an image. Of 64 bits: 32 would have to stay on the host of a GPU."""

IMAGE_CLASSIFICATION = (IMAGE, LABEL)


def resolve(elements: Sequence[Element], owner: object, num_classes: int) -> tuple[Element, ...]:
    """The elements with numbers in place of named sizes."""

    def number(size: Size) -> int:
        if isinstance(size, int):
            return size
        return num_classes if size == "num_classes" else named_size(owner, size)

    resolved = []
    for element in elements:
        draw = element.draw
        if draw is not None:
            draw = dataclasses.replace(draw, low=number(draw.low), high=number(draw.high))
        shape = tuple(number(size) for size in element.shape)
        resolved.append(dataclasses.replace(element, shape=shape, draw=draw))
    return tuple(resolved)


def named_size(owner: object, name: str) -> int:
    """The attribute that gives a named size of an element."""
    value = getattr(owner, name, None)
    who = f"model class {type(owner).__name__}"
    if not isinstance(value, int):
        raise UsageError(f"{who} needs an attribute {name} of type int, got {value!r}")
    if value < 1:
        raise UsageError(f"{who}: {name}={value} must be at least 1")
    return value


def of_role(elements: Sequence[Element], role: Role) -> tuple[Element, ...]:
    """The features, or the labels."""
    return tuple(element for element in elements if element.role == role)


def grouped(elements: Sequence[Element], role: Role, values: Mapping[str, V]) -> V | dict[str, V]:
    """The features, or the labels, as models take them: a single value, or the values by name."""
    names = [element.name for element in of_role(elements, role)]
    return values[names[0]] if len(names) == 1 else {name: values[name] for name in names}


def by_name(elements: Sequence[Element], role: Role, group: V | Mapping[str, V]) -> Mapping[str, V]:
    """The inverse of `grouped`."""
    if isinstance(group, Mapping):
        return group
    (element,) = of_role(elements, role)
    return {element.name: group}
