"""Registries contain the objects of one kind by name, for example all optimizers.

A registry contains cnnbench's own objects, those of plug-in files, and those of installed packages.
Packages are loaded only if a name is unknown without them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, overload

from cnnbench.base import plugins
from cnnbench.base.text import unknown_name_reason
from cnnbench.errors import FlagError, UsageError

K = TypeVar("K")
V = TypeVar("V")
F = TypeVar("F", bound=Callable[..., Any])


class Registry(dict[K, V]):
    """Objects of one kind by name, in the order of registration.

    Args:
      kind: noun for messages, such as "mode".
      call: how a plug-in registers an object, for messages; "" if plug-ins cannot.
      flag: the flag that takes the names; "" if there is none.
      group: group of the entry points with which installed packages register objects; "" if they
        cannot.
      own: package whose modules register cnnbench's own objects when they are imported; "" if the
        module that creates the registry registers them.
      further: other tables, which contain some of the objects by other names.
    """

    def __init__(
        self,
        kind: str,
        call: str = "",
        *,
        flag: str = "",
        group: str = "",
        own: str = "",
        further: Sequence[dict[str, V]] = (),
    ) -> None:
        super().__init__()
        self.kind, self.call, self.flag, self.group = kind, call, flag, group
        self._own, self._further = own, tuple(further)
        if call:
            plugins.add_plugin_kind(self)

    def load_own(self) -> None:
        """Registers cnnbench's own objects, if this has not happened yet."""
        package, self._own = self._own, ""  # Modules that are being imported may call this method.
        if not package:
            return
        try:
            for module in plugins.submodule_names(importlib.import_module(package)):
                importlib.import_module(f"{package}.{module}")
        except BaseException:
            self._own = package
            raise

    def load_packages(self) -> None:
        """Registers the objects of installed packages, if this has not happened yet."""
        if self.group:
            plugins.load_entry_points(self.group)

    def add(self, name: K, value: V, shown: str = "") -> None:
        """Registers an object under a new name. UsageError if the name is taken.

        `shown` is the name in messages, if it differs from `name`.
        """
        if name in self:
            raise self.taken_error(shown or name)
        self[name] = value

    def taken_error(self, name: object) -> UsageError:
        """Creates the error for a name that is taken."""
        return UsageError(f"{self.kind} {name} is registered already; choose another name")

    def find(self, name: K) -> V:
        """Returns the object with the given name. Installed packages are loaded only if the name is
        unknown.

        Raises:
          FlagError: there is no such object. The message lists all names, and suggests one.
        """
        self.load_own()
        if name not in self:
            self.load_packages()
        if name not in self:
            reason = unknown_name_reason(str(name), [*map(str, self)])
            raise FlagError(self.flag, str(name), reason)
        return self[name]

    def remove(self, name: K) -> None:
        """Removes an object from the registry and from the further tables. Unknown names are
        ignored.
        """
        removed = self.pop(name, None)
        for table in self._further:
            for other in [other for other, value in table.items() if value is removed]:
                del table[other]


class _HasName(Protocol):
    @property
    def name(self) -> str: ...


S = TypeVar("S", bound=_HasName)


class SpecRegistry(Registry[str, S]):
    """Registry of objects that are declared by instances of a class with the attribute `name`.

    Args:
      spec: the class, such as `OptimizerSpec`.
      work: the attribute with the function or class that does the work. `register` decorates it.
      **options: arguments of `Registry`.
    """

    def __init__(self, spec: type[S], work: str, **options: Any) -> None:
        super().__init__(**options)
        self._spec: Any = spec
        self._work = work

    @overload
    def register(self, spec: S, /) -> S: ...

    @overload
    def register(self, spec: str, /, **attributes: Any) -> Callable[[F], F]: ...

    def register(self, spec: Any, /, **attributes: Any) -> Any:
        """Registers a declaration, or declares and registers the function or class below.

        ``register(OptimizerSpec(name="own", update=update, formula="..."))`` is the same as
        ``@register("own", formula="...")`` above the function `update`.

        Raises:
          UsageError: the name is taken, or the declaration is invalid.
        """
        if isinstance(spec, str):

            def declare(work: F) -> F:
                self.register(self._spec(**{"name": spec, self._work: work, **attributes}))
                return work

            return declare
        if not isinstance(spec, self._spec):
            raise UsageError(f"{self.kind}: {spec!r} is not of type {self._spec.__name__}")
        self.add(spec.name, spec)
        return spec
