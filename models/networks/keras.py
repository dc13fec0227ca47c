"""Runs Keras models from `keras.applications`, files and plug-ins as networks.

Like every network, a Keras model declares variables and is called in each tower's graph. Its
variables are its weights and the states of its random generators. `build` applies it as one
function of the features and the variables' values.

A network's sizes and variables are needed before TensorFlow starts, because a run first sets the
number of threads and devices, and measures memory in a forked child. Therefore another child
process builds and traces the model, and returns plain data.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, overload

from cnnbench.arrays import Array, Tensor
from cnnbench.base import plugins
from cnnbench.base.child import exit_manner, fork_child
from cnnbench.base.terminal import ErrorStoringStream
from cnnbench.base.text import nearest_word
from cnnbench.errors import UsageError, text_of
from cnnbench.models.learning_rate import LearningRateSpec
from cnnbench.models.model import Elements, Model
from cnnbench.models.network import Network, T
from cnnbench.models.registry import register_family, register_model
from cnnbench.models.spec import Initializer, KerasDeclaration

PREFIX = "keras:"
"""Prefix of the values of ``--model`` that name a Keras model."""

SUFFIX = ".keras"

APPLICATIONS = (
    *(f"ConvNeXt{size}" for size in ("Base", "Large", "Small", "Tiny", "XLarge")),
    "DenseNet121",
    "DenseNet169",
    "DenseNet201",
    *(f"EfficientNetB{number}" for number in range(8)),
    *(f"EfficientNetV2{size}" for size in ("B0", "B1", "B2", "B3", "L", "M", "S")),
    "InceptionResNetV2",
    "InceptionV3",
    "MobileNet",
    "MobileNetV2",
    "MobileNetV3Large",
    "MobileNetV3Small",
    "NASNetLarge",
    "NASNetMobile",
    *(f"ResNet{depth}{version}" for depth in (101, 152, 50) for version in ("", "V2")),
    "VGG16",
    "VGG19",
    "Xception",
)
"""Networks in `keras.applications`, listed here so that `--help` need not import Keras.
"""


class KerasModel(Model):
    """A Keras model for images, with one output per class.

    Args:
      make: function of a dtype policy, such as "mixed_bfloat16", that returns a new `keras.Model`.
        During the call, the policy is also the global one.
      image_size: height and width of the images if the model accepts any size.
      source: identifies the initial values; see `Initializer.given`.
      application: name of the network in `keras.applications` whose preprocessing is applied to
        images; "" for none.
    """

    batch_size = 32
    learning_rate = LearningRateSpec(0.001)
    data_format = "NHWC"
    keras_layers = "fused"

    def __init__(
        self,
        name: str,
        dataset: str,
        make: Callable[[str], Any],
        *,
        image_size: int | None = None,
        source: str = "",
        application: str = "",
    ) -> None:
        self.name = name
        self.dataset = dataset
        self._make = make
        self._given_size = image_size
        self._source = source
        self._application = application
        self._built: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._values: dict[tuple[int, int], dict[str, Array]] = {}
        self._apply_declaration(_declare_in_child(self._declare))
        # A model that was already built in this process does not have the initial values of the
        # run's seed, so it is discarded.
        self._built.clear()

    def resize(self, image_size: int | None, num_classes: int | None) -> None:
        """Sets the image size in pixels and the number of outputs; None keeps the default.

        Only networks of `keras.applications` support other values than the default.
        """
        own = image_size in (None, self.image_size) and num_classes in (None, self.classes)
        if self._application and not own:
            size = image_size or self.image_size
            self._make = partial(
                _application, self._application, (size, num_classes or self.classes)
            )
            self._apply_declaration(_declare_in_child(self._declare))
            self._built.clear()
        super().resize(image_size, num_classes)

    def _apply_declaration(self, declared: KerasDeclaration) -> None:
        initializer = Initializer.given(self._draw_value, self._source)
        self.image_size, self.channels, self.classes, variables, self._work = declared
        self.num_classes = self.classes
        self.image_sizes = range(self.image_size, self.image_size + 1)
        self.variables = tuple(replace(variable, initializer=initializer) for variable in variables)

    def _declare(self) -> KerasDeclaration:
        from cnnbench.models import keras_declaration  # loads Keras

        built = self.get_built_model("float32")
        declared = keras_declaration.declare_keras_model(built.model, self._given_size)
        self._apply_declaration(declared)
        return declared._replace(work=keras_declaration.count_layer_work(self, built, declared))

    def get_built_model(self, dtype: str, seed: int = 0) -> Any:
        """Returns the `BuiltKerasModel` for a dtype, such as "float32"; builds it if necessary."""
        from cnnbench.models import keras_build

        with self._lock:
            if dtype not in self._built:
                fuses = self.keras_layers == "fused"
                self._built[dtype] = keras_build.build_keras_model(
                    self._make, dtype, seed, self._given_size, fuses=fuses
                )
            return self._built[dtype]

    def _draw_value(self, name: str, seed: int, tower: int) -> Array:
        """Returns a variable's initial value in a model that is built with `seed` + `tower`."""
        values = self._values.setdefault((seed, tower), {})
        if name not in values:
            if tower:
                with self._lock:
                    self._built.pop("float32", None)
            values_drawn = self.get_built_model("float32", seed + tower).values()
            values.update(
                zip((variable.name for variable in self.variables), values_drawn, strict=True)
            )
        return values.pop(name)

    def preprocess(
        self, example: Mapping[str, Tensor], seed: Tensor, *, training: bool
    ) -> Elements:
        """Scales images as `keras.applications` requires, and converts labels to output indices.

        In ImageNet, label 0 is not a class, so the first of 1,000 outputs is for label 1.
        """
        del seed, training
        first = int(self.dataset == "imagenet" and self.classes == 1000)
        elements = {**example, "label": (example["label"] - first) % self.classes}
        if self._application:
            from cnnbench.models import keras_build

            elements["image"] = keras_build.preprocess_images(self._application, example["image"])
        return elements

    def build(self, net: Network[T], images: T) -> T:
        """Declares the variables, and applies the whole Keras model as one TensorFlow function."""
        values = [net.declared(variable) for variable in self.variables]

        def call(images: Tensor, *values: Tensor) -> Tensor:
            from cnnbench.models import keras_build

            return keras_build.call_keras_model(
                self.get_built_model, self.variables, net, images, values
            )

        return net.apply(call, images, *values, shape=(self.classes,), flops=self._work)


B = TypeVar("B", bound=Callable[[], Any])


@overload
def register_keras_model(
    name: str, build: B, *, dataset: str = "imagenet", image_size: int | None = None
) -> B: ...


@overload
def register_keras_model(
    name: str, *, dataset: str = "imagenet", image_size: int | None = None
) -> Callable[[B], B]: ...


def register_keras_model(
    name: str, build: Any = None, *, dataset: str = "imagenet", image_size: int | None = None
) -> Any:
    """Registers a Keras model for ``--model``. Names must be unique within a data set.

    Without `build`, returns a decorator for the function.

    Args:
      build: function that returns a new `keras.Model`. The model maps a batch of images, with
        height and width `image_size`, to logits (or softmax probabilities) ``[n, classes]``.
      dataset: the data set for the model, such as ``imagenet`` or ``cifar10``.
      image_size: height and width in pixels. By default, they are read from the model's input.
    """

    def register(build: B) -> B:
        make = partial(KerasModel, name, dataset, lambda policy: build(), image_size=image_size)
        register_model(name, dataset, make)
        return build

    return register if build is None else register(build)


def _create_model(name: str, dataset: str) -> KerasModel:
    """Creates the model for ``--model=keras:...``, from a file or from `keras.applications`."""
    wanted = name.removeprefix(PREFIX)
    if wanted.endswith(SUFFIX):
        # Imported late, because these modules would slow down --help.
        import hashlib
        import zipfile

        if not os.path.isfile(wanted):
            raise UsageError("there is no such file")
        if not zipfile.is_zipfile(wanted):
            raise UsageError("the file is not in the .keras format, which model.save writes")
        source = hashlib.sha256(Path(wanted).read_bytes()).hexdigest()
        return KerasModel(name, dataset, partial(_load_file, wanted), source=source)
    if wanted not in APPLICATIONS:
        near = nearest_word(wanted, APPLICATIONS)
        hint = f"did you mean {PREFIX}{near}? " if near else ""
        listed = ", ".join(APPLICATIONS)
        raise UsageError(f"unknown; {hint}give a file that ends in {SUFFIX}, or one of {listed}")
    return KerasModel(name, dataset, partial(_application, wanted, None), application=wanted)


def _load_file(path: str, policy: str) -> Any:
    from cnnbench.models import keras_build

    return keras_build.load_keras_file(path, policy)


def _application(name: str, sizes: tuple[int, int] | None, policy: str) -> Any:
    from cnnbench.models import keras_build

    return keras_build.make_application(name, sizes)


def _declare_in_child(declare: Callable[[], KerasDeclaration]) -> KerasDeclaration:
    """Calls `declare`, which starts TensorFlow, in a child process.

    If TensorFlow already runs in this process, `declare` is called in this process.
    """
    backend = os.environ.get("KERAS_BACKEND") or "tensorflow"
    if backend != "tensorflow":
        raise UsageError(f"Keras models run on TensorFlow; unset KERAS_BACKEND={backend}")
    if os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true"):
        raise UsageError("Keras models need Keras 3; unset TF_USE_LEGACY_KERAS")
    import pickle  # Imported late: few runs need it.

    # Keras may be imported before the fork, because its import starts no threads.
    from cnnbench.models import keras_declaration  # noqa: F401

    if _may_have_threads():
        return declare()
    child, link = fork_child()
    if child is None:
        code = 1
        try:
            link.sendall(pickle.dumps(_try_declare(declare)))
            code = 0
        finally:
            os._exit(code)  # The child never returns to the callers of this function.
    with link, link.makefile("rb") as stream:
        data = stream.read()
    _, status = os.waitpid(child.pid, 0)
    if not data:
        manner = exit_manner(os.waitstatus_to_exitcode(status))
        raise UsageError(f"building the Keras model ended the process {manner}")
    answer = pickle.loads(data)
    if isinstance(answer, KerasDeclaration):
        return answer
    error = UsageError(answer[0])
    error.frames = answer[1]
    raise error


_GRAPH_THREAD = "tf_graph_runner"
"""Thread of TensorFlow's default graph, which exists as soon as a plug-in is loaded (see
`cnnbench.run.runtime.loading`). Models are traced in other graphs, which have their own threads.
"""


def _may_have_threads() -> bool:
    """Whether TensorFlow may have started threads here that a forked child would lack."""
    try:
        threads = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    except OSError:  # A thread ended meanwhile, or not Linux.
        threads = []
    needed = [name for name in threads if name.strip() != _GRAPH_THREAD]
    return not threads or any(name.startswith("tf_") for name in needed)


def _try_declare(
    declare: Callable[[], KerasDeclaration],
) -> KerasDeclaration | tuple[str, tuple[str, ...]]:
    """Calls `declare` in the child process.

    Returns the result of `declare`, or the message and stack frames of its error.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    if isinstance(sys.stderr, ErrorStoringStream):
        sys.stderr.duplicate_descriptor()
    # Otherwise, TensorFlow would warn that there is no GPU.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    try:
        with plugins.reporting_plugin_errors(UsageError):
            return declare()
    except UsageError as error:
        return text_of(error), error.frames
    except BaseException as error:
        return f"{type(error).__name__}: {' '.join(text_of(error).split())}", ()


register_family(PREFIX, _create_model, tuple(f"{PREFIX}{name}" for name in APPLICATIONS))
