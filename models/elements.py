"""Features and labels of examples, as plain data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal, TypeVar

from cnnbench.errors import UsageError

V = TypeVar("V")

Size = int | str
"""A size: a number, or a name, which is ``num_classes`` or an attribute of the model."""

Role = Literal["feature", "label"]


@dataclasses.dataclass(frozen=True)
class Draw:
    """Random distribution of the synthetic values of a feature or label.

    Create it with a class method, such as `Draw.normal`. `scale` is the standard deviation of
    ``normal`` and the value of ``constant``.
    """

    kind: Literal["normal", "integers", "uniform", "constant", "boxes"]
    scale: float = 1.0
    low: Size = 0
    high: Size = 1

    @classmethod
    def normal(cls, stddev: float = 1.0) -> Draw:
        """Creates a normal distribution with mean 0, truncated at two standard deviations."""
        return cls("normal", stddev)

    @classmethod
    def integers(cls, low: Size, high: Size) -> Draw:
        """Creates a uniform distribution of integers from ``low`` to ``high`` - 1."""
        return cls("integers", low=low, high=high)

    @classmethod
    def uniform(cls, low: int = 0, high: int = 1) -> Draw:
        """Creates a uniform distribution of real numbers from ``low`` to ``high``."""
        return cls("uniform", low=low, high=high)

    @classmethod
    def constant(cls, value: float) -> Draw:
        """Creates a distribution in which every synthetic value is ``value``."""
        return cls("constant", value)

    @classmethod
    def boxes(cls) -> Draw:
        """Creates a distribution of boxes ``[..., 4]``: top, left, bottom and right in [0, 1].

        Each box has top < bottom and left < right.
        """
        return cls("boxes")


@dataclasses.dataclass(frozen=True)
class Element:
    """One named feature or label of an example: shape, dtype and synthetic values.

    Attributes:
      shape: shape for one example, without batch; ``()`` for a scalar. A size may be the name of an
        attribute of the model, such as ``image_size``.
      role: ``feature`` for an input of the network, ``label`` for an input of loss and metrics.
      dtype: TensorFlow's name of the dtype. ``float32`` features are converted to the precision of
        the run.
      draw: distribution of synthetic values; None if only `Model.preprocess` creates the element.
      rows: name of a scalar integer element that contains the number of valid rows. The other rows
        are zeros. For example, the number of boxes varies between images.
    """

    name: str
    shape: tuple[Size, ...]
    role: Role
    dtype: str = "float32"
    draw: Draw | None = None
    rows: str | None = None

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape as integers. Call `resolve_sizes` first if the shape contains names."""
        return tuple(int(size) for size in self.shape)

    @property
    def is_real(self) -> bool:
        """Whether the dtype is floating-point, so that a feature is cast to the run's precision."""
        return self.dtype.startswith(("float", "bfloat"))

    @property
    def named_sizes(self) -> tuple[str, ...]:
        """Sizes that are names of model attributes, such as ``image_size``, instead of numbers."""
        bounds = () if self.draw is None else (self.draw.low, self.draw.high)
        return tuple(size for size in (*self.shape, *bounds) if isinstance(size, str))


IMAGE = Element("image", ("image_size", "image_size", "channels"), "feature", draw=Draw.normal(0.5))
"""A square image. Synthetic values are like those of a normalised photograph, in [-1, 1]."""

LABEL = Element("label", (), "label", "int64", Draw.integers(0, "num_classes"))
"""The class of an image. It has 64 bits, because TensorFlow keeps int32 in host memory."""

IMAGE_CLASSIFICATION = (IMAGE, LABEL)


def resolve_sizes(
    elements: Sequence[Element], owner: object, num_classes: int
) -> tuple[Element, ...]:
    """Replaces names of sizes, such as ``image_size``, by the values of the model's attributes.

    `owner` is the model.
    """

    def number(size: Size) -> int:
        if isinstance(size, int):
            return size
        return num_classes if size == "num_classes" else positive_size_attribute(owner, size)

    resolved = []
    for element in elements:
        draw = element.draw
        if draw is not None:
            draw = dataclasses.replace(draw, low=number(draw.low), high=number(draw.high))
        shape = tuple(number(size) for size in element.shape)
        resolved.append(dataclasses.replace(element, shape=shape, draw=draw))
    return tuple(resolved)


def positive_size_attribute(owner: object, name: str) -> int:
    """Returns the model attribute `name`; raises UsageError if it is not an integer above 0."""
    value = getattr(owner, name, None)
    who = f"model class {type(owner).__name__}"
    if not isinstance(value, int):
        raise UsageError(f"{who} needs an attribute {name} of type int, got {value!r}")
    if value < 1:
        raise UsageError(f"{who}: {name}={value} must be at least 1")
    return value


def elements_of_role(elements: Sequence[Element], role: Role) -> tuple[Element, ...]:
    """Selects all features, or all labels, from the elements of an example."""
    return tuple(element for element in elements if element.role == role)


def group_values(
    elements: Sequence[Element], role: Role, values: Mapping[str, V]
) -> V | dict[str, V]:
    """Returns the only feature (or label), or a mapping by name if there are several."""
    names = [element.name for element in elements_of_role(elements, role)]
    return values[names[0]] if len(names) == 1 else {name: values[name] for name in names}


def values_by_name(
    elements: Sequence[Element], role: Role, group: V | Mapping[str, V]
) -> Mapping[str, V]:
    """Inverse of `group_values`: converts features (or labels) to values by name."""
    if isinstance(group, Mapping):
        return group
    (element,) = elements_of_role(elements, role)
    return {element.name: group}
