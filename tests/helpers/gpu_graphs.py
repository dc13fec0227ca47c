"""Steps traced for GPUs where there are none, and what is wrong with their graphs.

Tracing makes nodes with names of devices; only what is computed eagerly meanwhile, such as the
initial values of variables, needs devices. `pretending` has all of that computed on one CPU and
remembers which device was asked for. `cnnbench` then builds the functions of a run for any job,
and `findings` looks at them: the installed TensorFlow knows which operations have GPU kernels,
`gpu_crossings.EXPECTED` which tensors and signals may go from device to device.

TensorFlow has no public way to its kernels, to what eager operations are placed by, or to what a
traced function captures. The private names are used in this file alone, by tests and by
scripts/check_gpu_graphs; the package has none.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import tensorflow as tf
from gpu_crossings import EXPECTED, PER_TOWER, REPLICATED, home
from tensorflow.python.eager import context
from tensorflow.python.framework import kernels
from tensorflow.python.ops import resource_variable_ops

from cnnbench.flags import Params, validate
from cnnbench.run.driver.build import BuiltRun, assemble
from cnnbench.run.driver.console import Console
from cnnbench.run.driver.plan import make_plan
from cnnbench.run.runtime.tensorflow import Devices
from cnnbench.variable_mgr import base
from cnnbench.variable_mgr.strategies import make

Flags = Mapping[str, Any]

_HERE = "/job:localhost/replica:0/task:0/device:CPU:0"


class _Asked(threading.local):
    """The device that the eager code of a thread asks for."""

    def __init__(self) -> None:
        self.devices = [_HERE]


_asked = _Asked()


class _Pretended(context._EagerDeviceContext):
    """The CPU in place of any device."""

    def __init__(self, ctx: Any, name: Any) -> None:
        self._wanted = name
        super().__init__(ctx, None if name is None else _HERE)

    def __enter__(self) -> Any:
        asked = tf.DeviceSpec.from_string(_HERE)
        if self._wanted is not None:
            outer = tf.DeviceSpec.from_string(_asked.devices[-1])
            asked = outer.make_merged_spec(tf.DeviceSpec.from_string(self._wanted))
        _asked.devices.append(asked.to_string())
        return super().__enter__()

    def __exit__(self, *error: object) -> Any:
        _asked.devices.pop()
        return super().__exit__(*error)


@dataclass
class Homes:
    """The variables made since `pretending` began, by the `id` of their handle.

    Attributes:
      devices: full string of the device that was asked for.
      names: of the variables.
      handles: the handles, which an `id` needs to stay one.
    """

    devices: dict[int, str] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    handles: list[Any] = field(default_factory=list)


@contextlib.contextmanager
def pretending() -> Iterator[Homes]:
    """Has everything eager done on one CPU, and variables say that they are where they should be.

    Variables hold zeros. Strategies that are made meanwhile are forgotten in the end.
    """
    homes = Homes()
    variable = resource_variable_ops.BaseResourceVariable
    make_variable, device_of = variable.__init__, variable.device

    def made(self: Any, *args: Any, **options: Any) -> None:
        make_variable(self, *args, **options)
        if not tf.is_symbolic_tensor(self.handle):
            homes.devices[id(self.handle)] = _asked.devices[-1]
            homes.names[id(self.handle)] = self.name.partition(":")[0]
            homes.handles.append(self.handle)

    def device(self: Any) -> str:
        return homes.devices.get(id(self.handle)) or device_of.fget(self)

    with contextlib.ExitStack() as stack:
        for owner, name, value in (
            (context, "_EagerDeviceContext", _Pretended),
            (variable, "__init__", made),
            (variable, "device", property(device)),
            (base, "initial_value", lambda one, seed, tower=0: tf.zeros(one.shape)),
            (make, "_collective_devices", None),
        ):
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        try:
            yield homes
        finally:
            make._mirrored.cache_clear()


@dataclass(frozen=True, eq=False)
class Node:
    """An operation, also one of a branch or loop, which stands where it is called.

    Attributes:
      name: begins with the names of the calls it is in.
      op, attributes: of its definition.
      device: full string; of an operation without one that of its variable or its call, or "".
      inputs: what makes each input, and the tensor's name; not the handles of variables.
      signals: what it waits for without a tensor.
      variable: name and device of the variable whose handle it takes or, as a placeholder, is.
      compiled: whether XLA compiles it.
    """

    name: str
    op: str
    attributes: Any
    device: str
    inputs: tuple[tuple[Node, str], ...] = ()
    signals: tuple[Node, ...] = ()
    variable: tuple[str, str] | None = None
    compiled: bool = False

    @property
    def label(self) -> str:
        """Name and kind, or "variable NAME" if it is the value of one on the variable's device."""
        made = self
        while made.op in ("Cast", "Identity") and made.inputs[0][0].device == self.device:
            made = made.inputs[0][0]
        if made.op == "ReadVariableOp" and made.variable is not None:
            return f"variable {made.variable[0]}"
        return f"{self.name}:{self.op}"

    @property
    def kind(self) -> str:
        """ "GPU" or "CPU"."""
        return self.device.rpartition("/device:")[2].partition(":")[0]


_BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")
_LOOPS = ("While", "StatelessWhile")
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
# What TensorFlow replaces before it runs.
_NO_KERNEL = ("Placeholder", *_BRANCHES, *_LOOPS, *_CALLS)

_Value = tuple[Node, str]


class _Flat:
    """The nodes of a traced function, with those of what it calls.

    Args:
      function: a concrete function.
      homes: of the variables.

    Attributes:
      nodes: those that results and effects depend on; TensorFlow prunes the rest.
    """

    def __init__(self, function: Any, homes: Homes) -> None:
        graph = function.graph
        self._library = {f.signature.name: f for f in graph.as_graph_def().library.function}
        captured = {
            inside.op.name: (homes.names[id(handle)], homes.devices[id(handle)])
            for handle, inside in graph.captures
            if id(handle) in homes.devices
        }
        definitions = [operation.node_def for operation in graph.get_operations()]
        made = self._body(definitions, {}, "", "", captured=captured)
        roots = [made[tensor.op.name] for tensor in graph.outputs]
        roots += [made[operation.name] for operation in graph.control_outputs]
        needed: dict[Node, None] = {}
        while roots:
            node = roots.pop()
            if node not in needed:
                needed[node] = None
                roots += [*(source for source, _ in node.inputs), *node.signals]
        self.nodes = tuple(needed)

    def _body(
        self,
        definitions: Sequence[Any],
        arguments: Mapping[str, _Value],
        scope: str,
        device: str,
        *,
        captured: Mapping[str, tuple[str, str]] | None = None,
        compiled: bool = False,
    ) -> dict[str, Node]:
        """The nodes of a function by name, and of what it calls within them.

        Args:
          definitions: of its nodes.
          arguments: its arguments by name.
          scope: before the names of its nodes.
          device: of its nodes that name none.
          captured: name and device of the variables whose handles some placeholders are.
          compiled: see `Node`.
        """
        made: dict[str, Node] = {}
        left = list(definitions)
        while left:
            waiting = []
            for one in left:
                sources = [_source(text) for text in one.input]
                if any(name not in made and name not in arguments for name in sources):
                    waiting.append(one)
                    continue
                values = [
                    arguments.get(name) or (made[name], scope + text)
                    for name, text in zip(sources, one.input, strict=True)
                    if not text.startswith("^")
                ]
                before = tuple(
                    made[t[1:]] for t in one.input if t.startswith("^") and t[1:] in made
                )
                made[one.name] = self._node(
                    one, values, before, scope, device, (captured or {}).get(one.name), compiled
                )
            assert len(waiting) < len(left), "a cycle"
            left = waiting
        return made

    def _node(
        self,
        one: Any,
        values: Sequence[_Value],
        before: tuple[Node, ...],
        scope: str,
        device: str,
        variable: tuple[str, str] | None,
        compiled: bool,
    ) -> Node:
        name = scope + one.name
        op = _CALLS[0] if one.op in self._library else one.op  # some calls are by name
        handles = [
            node.variable for node, _ in values if node.op == "Placeholder" and node.variable
        ]
        if handles and op not in _NO_KERNEL:
            variable = handles[0]
        where = _whole(one.device) or (variable[1] if variable and op != "Placeholder" else device)
        inputs = [
            (node, text)
            for node, text in values
            if not (node.variable and node.op == "Placeholder")
        ]
        if self._called(one):
            xla = compiled or one.attr["_XlaMustCompile"].b
            given = values[1:] if op in _BRANCHES else values
            inputs = inputs[: 1 if op in _BRANCHES else 0] if not xla else inputs
            for function in self._called(one):
                results, effects = self._inlined(function, given, f"{name}/", where, xla)
                inputs = inputs if xla else [*inputs, *results]
                before = (*before, *effects, *((node for node, _ in results) if xla else ()))
        return Node(name, op, one.attr, where, tuple(inputs), before, variable, compiled)

    def _called(self, one: Any) -> list[str]:
        if one.op in self._library:  # called by name
            return [one.op]
        if one.op not in (*_BRANCHES, *_LOOPS, *_CALLS):
            return []
        names = [
            one.attr[key].func.name for key in ("f", "then_branch", "else_branch", "cond", "body")
        ]
        return [
            name for name in [*names, *(f.name for f in one.attr["branches"].list.func)] if name
        ]

    def _inlined(
        self, function: str, given: Sequence[_Value], scope: str, device: str, compiled: bool
    ) -> tuple[list[_Value], list[Node]]:
        """What a function returns, and its effects."""
        body = self._library[function]
        names = [argument.name for argument in body.signature.input_arg]
        arguments = dict(zip(names, given, strict=True))
        made = self._body(body.node_def, arguments, scope, device, compiled=compiled)
        results = [
            arguments.get(text) or (made[_source(text)], scope + text)
            for text in (body.ret[argument.name] for argument in body.signature.output_arg)
        ]
        results = [(node, text) for node, text in results if node.op != "Placeholder"]
        return results, [made[name] for name in body.control_ret.values()]


@cache
def _whole(device: str) -> str:
    """The full string of a device; of one without a task that of this process."""
    if not device:
        return ""
    own = tf.DeviceSpec.from_string(_HERE).replace(device_type=None, device_index=None)
    return own.make_merged_spec(tf.DeviceSpec.from_string(device)).to_string()


def _source(text: str) -> str:
    """The name of the node, or of the argument, that makes an input of a definition."""
    return text.removeprefix("^").partition(":")[0]


@cache
def _kernels(op: str) -> tuple[Any, ...]:
    return tuple(kernels.get_registered_kernels_for_op(op).kernel)


def has_kernel(node: Node) -> bool:
    """Whether TensorFlow has a kernel of the operation, with its dtypes, for GPUs.

    For an operation that XLA compiles: whether XLA knows it on GPUs.
    """
    kinds = ("XLA_GPU_JIT",) if node.compiled else ("GPU", "DEFAULT")
    label = node.attributes["_kernel"].s.decode()

    def takes(constraint: Any) -> bool:
        value = node.attributes[constraint.name]
        allowed = set(constraint.allowed_values.list.type)
        return not allowed or set(value.list.type or [value.type]) <= allowed

    return any(
        kernel.device_type in kinds and kernel.label == label and all(map(takes, kernel.constraint))
        for kernel in _kernels(node.op)
    )


@dataclass(frozen=True)
class Finding:
    """Something wrong with a step.

    Attributes:
      step: "training", "evaluation", "forward" or, of what all have, "variables".
      what: one line; numbers of layers and devices are left out, so that findings can be counted.
    """

    step: str
    what: str


def _general(text: str) -> str:
    return re.sub(r"\d+", "N", text)


def _without_kernel(nodes: Sequence[Node]) -> Iterator[str]:
    for node in nodes:
        if node.kind == "GPU" and node.op not in _NO_KERNEL and not has_kernel(node):
            dtypes = ", ".join(
                f"{key}={tf.as_dtype(value.type).name}"
                for key, value in sorted(node.attributes.items())
                if value.type
            )
            compiler = "XLA has no" if node.compiled else "there is no GPU"
            yield f"{compiler} kernel of {node.op}({dtypes}): {_general(node.name)}"


def _elsewhere(nodes: Sequence[Node]) -> Iterator[str]:
    for node in nodes:
        if node.variable and node.op != "Placeholder" and node.device != node.variable[1]:
            name, home = node.variable
            yield f"{_general(node.label)} is on {node.device}, its variable {name} on {home}"


def _misplaced(built: BuiltRun, params: Params) -> Iterator[str]:
    """Variables that are not where the mode has them, and slots that are not beside theirs."""
    manager = built.manager
    towers = list(manager.get_devices())
    for name, variable in manager.savable_variables().items():
        devices = [copy.device for copy in variable.copies]
        if params.variable_update in PER_TOWER:
            if devices != towers:
                yield f"copies of {_general(name)} are on {devices}"
            devices = []
        if variable.primary.trainable:
            devices += [copy.device for copy in manager.updated(name).copies]
        for device in devices:
            if params.variable_update not in REPLICATED and home(params) not in device:
                yield f"{_general(name)} is on {device}"
    for name, slot in built.slots.items():
        owner = name.rpartition("/")[0]
        if owner in manager.savable_variables():
            beside = [copy.device for copy in manager.updated(owner).copies]
            if [copy.device for copy in slot.copies] != beside:
                yield f"the slot {_general(name)} is not beside its variable"


def _crossings(nodes: Sequence[Node]) -> Iterator[tuple[Node, Node, bool]]:
    """Source, target and whether it is a signal, of what TensorFlow sends: once per device."""
    seen = set()
    for node in nodes:
        for source, what in (*node.inputs, *((one, None) for one in node.signals)):
            ends = (source.device, node.device)
            key = (what or source, node.device)
            if all(ends) and len(set(ends)) == 2 and key not in seen:
                seen.add(key)
                yield source, node, what is None


def _unexpected(nodes: Sequence[Node], step: str, params: Params) -> Iterator[str]:
    rows = [row for row in EXPECTED if step in row.steps and row.when(params)]
    signals = Counter()
    for source, target, signal in _crossings(nodes):
        route = f"{source.kind}>{target.kind}"
        what = "signal" if signal else "tensor"
        ends = (source.label, target.label, route, params)
        found = [row for row in rows if row.signal == signal and row.allows(*ends)]
        if not found:
            yield f"{what} {route} from {_general(source.label)} to {_general(target.label)}"
        elif signal and not any(row.many for row in found):
            signals[source.device, target] += 1
    for (device, target), count in signals.items():
        if count > 1:
            yield f"{count} signals from {device} to {_general(target.label)} in place of one"


def steps_of(built: BuiltRun) -> dict[str, Any]:
    """The traced functions of a run by name: "training" or "forward", and "evaluation"."""
    steps = {}
    if built.step is not None:
        steps["training" if built.slots is not None else "forward"] = built.step.function
    if built.evaluator is not None:
        steps["evaluation"] = built.evaluator._function.concrete
    return steps


def build(flags: Flags) -> BuiltRun:
    """The functions of a run on GPUs, traced; within `pretending`.

    Args:
      flags: those that differ from the defaults; of a job those of the process that builds.

    Raises:
      FlagError: they do not go together.
    """
    params = params_of(flags)
    plan = make_plan(params)
    labels = tuple(f"/gpu:{i}" for i in range(params.num_gpus))
    devices = Devices(plan.job.on("gpu"), labels, intra_threads=1, inter_threads=0)
    return assemble(params, plan, devices, Console.silent())


def params_of(flags: Flags) -> Params:
    """Validated parameters of a run on GPUs with two examples per device.

    Raises:
      FlagError: the flags do not go together.
    """
    params = Params.from_dict({"device": "gpu", "batch_size": 2, "num_batches": 10, **flags})
    validate(params)
    return params


def signals(function: Any, homes: Homes) -> int:
    """How many signals without a tensor a step sends from device to device.

    Args:
      function: a concrete function.
      homes: what `pretending` gave.
    """
    return sum(signal for _, _, signal in _crossings(_Flat(function, homes).nodes))


def findings(flags: Flags) -> Counter[Finding]:
    """What is wrong with the steps of a run, and how often.

    Args:
      flags: see `build`.

    Raises:
      FlagError: they do not go together.
    """
    params = params_of(flags)
    found: Counter[Finding] = Counter()
    with pretending() as homes:
        built = build(flags)
        for step, function in steps_of(built).items():
            if step == "training" and params.forward_only:
                step = "forward"
            nodes = _Flat(function, homes).nodes
            checks = (_without_kernel(nodes), _elsewhere(nodes), _unexpected(nodes, step, params))
            found.update(Finding(step, what) for check in checks for what in check)
        found.update(Finding("variables", what) for what in _misplaced(built, params))
        built.close()
    return found
