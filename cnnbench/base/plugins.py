"""Plug-ins: loading, checking and reporting what users register.

A new kind is a call of `add_kind` in the module of its table, which is named there.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import inspect
import linecache
import mmap
import numbers
import os
import sys
import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import (
    Annotated,
    Any,
    ClassVar,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from cnnbench.base.files import read_file
from cnnbench.base.interrupts import restored
from cnnbench.errors import BenchmarkError, FlagError, PathError, UsageError, exhausted, text_of

# Checks of values against the type annotations of the interfaces that plug-ins implement.

_NUMBERS: dict[Any, type] = {int: numbers.Integral, float: numbers.Real}


def misfit(value: Any, hint: Any, given: Sequence[Any] = ()) -> str:
    """Describes what a value should be if it does not fit its annotation; "" if it fits.

    A list is accepted for any sequence, and a value with shape and dtype for a tensor.

    Args:
      hint: as `typing.get_type_hints` returns it with extras. In `Annotated` a function of the
        value and of `given` returns what the value must be; "" if it is.
      given: arguments of the call that returned the value.
    """
    kind: Any = get_origin(hint) or hint
    args = get_args(hint)
    if kind is Annotated:
        return misfit(value, args[0], given) or str(args[1](value, given))
    if kind in (Union, types.UnionType):
        found = [misfit(value, one, given) for one in args]
        return "" if "" in found else found[0]
    if not isinstance(kind, type) or kind is Any:  # or a type variable
        return ""
    parts: Iterable[tuple[str, Any, Any]] = ()  # name of a part, its value, its annotation
    if kind.__name__ == "Callable":
        fits = callable(value)
    elif issubclass(kind, Mapping):
        fits = isinstance(value, Mapping)
        if fits and args:
            parts = [(f"for {shown(name)} ", one, args[1]) for name, one in value.items()]
            parts += [("as a key ", name, args[0]) for name in value]
    elif issubclass(kind, Sequence) and kind is not str:
        fits = isinstance(value, range if kind is range else (list, tuple))
        if fits and args:
            hints = args if kind is tuple and ... not in args else args[:1] * len(value)
            fits = len(value) == len(hints)
            parts = [("", *one) for one in zip(value, hints, strict=False)]
    else:
        fits = isinstance(value, _NUMBERS.get(kind, kind)) or (
            is_tensor(value)
            and (
                kind.__module__.startswith("tensorflow")
                or (kind is float and len(value.shape) == 0)
            )
        )
    if not fits:
        shape = f" of {len(args)}" if kind is tuple and ... not in args else ""
        article = "an" if kind.__name__[0] in "aeiouAEIO" else "a"
        other = f" of {len(value)}" if shape and isinstance(value, list | tuple) else ""
        return f"{article} {kind.__name__}{shape}, not {shown(value)}{other}"
    for where, one, of in parts:
        wrong = misfit(one, of, given)
        if wrong:
            return where + wrong
    return ""


def is_tensor(value: Any) -> bool:
    """Whether a value has shape and dtype."""
    return hasattr(value, "shape") and hasattr(value, "dtype")


def sizes(value: Any) -> Sequence[int | None] | None:
    """Sizes of a tensor, None for unknown ones; None if their number is unknown."""
    shape = value.shape
    if getattr(shape, "rank", 0) is None:
        return None
    return [None if size is None else int(size) for size in shape]


def shown(value: Any) -> str:
    """A value in a message: tensors as dtype and shape, others as text."""
    if is_tensor(value):
        known = sizes(value)
        shape = "of any rank" if known is None else known
        return f"a {getattr(value.dtype, 'name', value.dtype)} tensor {shape}"
    text = repr(value) if value is None or isinstance(value, (str, int, float)) else ""
    return text if 0 < len(text) <= 40 else f"a {type(value).__name__}"


# Plug-in files and entry points that register objects of the kinds in `_REGISTRIES`.

_MOST_MIB = 16
_MOST_FRAMES = 20
_NAME_BYTES = 512
_F = TypeVar("_F", bound=Callable[..., Any])

Added = dict[str, tuple[Any, ...]]  # flag of a kind: keys in its table

FLAG = "plugin"
"""The flag of files that register objects of any kinds."""

FLAGS = (FLAG, *(f"{kind}_plugin" for kind in ("dataset", "variable_mgr", "model")))
"""Flags that name plug-in files, in the order of loading: networks may extend those of data sets.

All but the first want an object of their kind.
"""

NAMED_BY = (
    *("model", "data_name", "variable_update", "all_reduce_spec"),
    *("optimizer", "learning_rate_schedule", "metrics"),
)
"""Flags that take the names of registered objects."""

# Imported before a plug-in is loaded, so that what it adds can be told from what was there.
_REGISTRIES = (
    "cnnbench.data.open",
    "cnnbench.models.model",
    "cnnbench.variable_mgr.modes",
    "cnnbench.variable_mgr.all_reduce.registry",
    "cnnbench.optimizers.registry",
    "cnnbench.records.metric",
    "cnnbench.records.reader",
)


@dataclass(frozen=True)
class Kind:
    """A kind of object that plug-ins register.

    Attributes:
      flag: names a file that registers such objects, or the objects themselves.
      noun: for messages.
      call: the function that registers one.
      table: all registered objects by key.
      prepare: fills the table with those of cnnbench.
      further: other tables with some of the objects.
    """

    flag: str
    noun: str
    call: str
    table: Callable[[], dict[Any, Any]]
    prepare: Callable[[], None]
    further: tuple[dict[Any, Any], ...] = ()

    @property
    def tables(self) -> tuple[dict[Any, Any], ...]:
        """All tables with registered objects."""
        return (self.table(), *self.further)

    def remove(self, key: Any) -> None:
        """Removes an object, if it is there."""
        gone = self.table().get(key)
        for table in self.tables:
            for one in [one for one, found in table.items() if found is gone]:
                del table[one]


_kinds: dict[str, Kind] = {}
# Name and registered objects of each plug-in file, and its FILES.
_files: dict[Path, tuple[str, Added, tuple[str, ...]]] = {}
_origins: dict[tuple[str, Any], str] = {}  # plug-in by flag of the kind and key
_groups: set[str] = set()  # loaded groups of entry points
digests: dict[str, str] = {}
"""SHA-256 of the source file of each loaded plug-in, by its name."""

before_loading: list[Callable[[], None]] = []
"""Functions called before code of a plug-in is loaded."""

_STDLIB = os.path.dirname(os.__file__) + os.sep
_places: set[str] = set()  # files and folders with code of plug-ins
_running = mmap.mmap(-1, _NAME_BYTES)


def add_kind(kind: Kind) -> None:
    """Lets plug-ins register things of this kind."""
    _kinds[kind.flag] = kind


def origin(flag: str, key: Any) -> str | None:
    """Name of the plug-in that registered an object; None if none did."""
    return _origins.get((flag, key))


@contextlib.contextmanager
def reported(kind: type[UsageError | BenchmarkError], name: str = "") -> Iterator[None]:
    """Reports an error of a plug-in in the block as one line, with its frames below.

    An error is a plug-in's if it was raised in one of its files, or in code called by these; any
    error, if `name` is that of the only plug-in in the block. Interrupts, a lack of memory and
    errors that cnnbench addresses to users pass unchanged. `kind` is UsageError before a run,
    BenchmarkError within.
    """
    try:
        with restored():
            yield
    except (KeyboardInterrupt, FlagError, PathError, BenchmarkError):
        raise
    except BaseException as error:
        found = [
            (frame.f_code, line)
            for frame, line in traceback.walk_tb(error.__traceback__)
            if _is_of_plugin(frame.f_code)
        ]
        full = exhausted(error) or type(error).__name__ == "ResourceExhaustedError"
        wrong = isinstance(error, MisfitError)
        who = name or getattr(error, _RAISED_IN, "")
        if full or getattr(error, "frames", None) or not (found or who or wrong):
            raise
        text = " ".join(text_of(error).split())
        if not isinstance(error, UsageError | MisfitError):
            text = f"{type(error).__name__}: {text}" if text else type(error).__name__
        place = "" if wrong else f"{_place(*found[-1]) if found else who}: "
        made = kind(place + text)
        made.frames = tuple(
            f"at {_place(*one)}: {linecache.getline(one[0].co_filename, one[1]).strip()}"
            for one in found[-_MOST_FRAMES:]
        )
        raise made from error


class MisfitError(TypeError):
    """A plug-in's function takes or returns other values than its interface declares."""


_RAISED_IN = "_cnnbench_plugin"  # attribute of errors: the plug-in whose code was running
_CHECKED = "_cnnbench_checked"  # attribute of functions that `checked` has made


@contextlib.contextmanager
def running(name: str) -> Iterator[None]:
    """Marks a block that runs only code of a plug-in.

    Restores the working directory, by which later paths are resolved, and ends copies of this
    process that the code has forked. `runs` returns the name meanwhile, also in a parent process.
    """
    before, process = _running[:], os.getpid()
    folder = os.open(".", getattr(os, "O_PATH", os.O_RDONLY))
    _running[:] = name.encode(errors="backslashreplace")[:_NAME_BYTES].ljust(_NAME_BYTES, b"\0")
    try:
        yield
    except Exception as error:
        if not hasattr(error, _RAISED_IN):
            with contextlib.suppress(AttributeError, TypeError):
                setattr(error, _RAISED_IN, name)
        raise
    finally:
        if os.getpid() != process:
            os._exit(0)
        _running[:] = before
        os.fchdir(folder)
        os.close(folder)


def _is_of_plugin(code: types.CodeType) -> bool:
    """Whether code is of a plug-in's file or of a file in its folder."""
    return not _places.isdisjoint((code.co_filename, os.path.dirname(code.co_filename)))


def is_built_in(made: Any) -> bool:
    """Whether a function or class is one of cnnbench, whose results are not checked."""
    return str(getattr(made, "__module__", "")).startswith("cnnbench.")


def calling_place() -> str:
    """File, line and function of the innermost call from a plug-in's code; "" without one."""
    for frame, line in traceback.walk_stack(None):
        if _is_of_plugin(frame.f_code):
            return _place(frame.f_code, line)
    return ""


def watch_child() -> None:
    """Makes `runs` report on the process that is forked next, and on no other."""
    global _running
    _running = mmap.mmap(-1, _NAME_BYTES)  # shared with the other process


def runs() -> str:
    """Name of the plug-in whose code runs here, or ran when the watched child ended; or ""."""
    return _running[:].rstrip(b"\0").decode(errors="replace")


def checked(function: _F, returns: Any, takes: Sequence[str] | None = None) -> _F:
    """A plug-in's function with a check of its result against the annotation `returns`.

    See `misfit`. `Any` accepts all but None, text and numbers. A returned function is checked, too,
    if `returns` is the annotation of a function. Functions of cnnbench are unchanged.

    Args:
      takes: the arguments of all calls: names of positional ones and, after "*", of others.

    Raises:
      MisfitError: the function does not take these arguments; in calls: a wrong result.
    """
    if is_built_in(function):
        return function
    if takes is not None:
        _check_signature(function, takes)

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        place = definition(function)
        with running(place):
            result = function(*args, **named)
        wrong = misfit(result, returns, (*args, *named.values()))
        if returns is Any and (result is None or isinstance(result, (str, bytes, int, float))):
            wrong = f"a result, not {shown(result)}"
        if wrong:
            raise MisfitError(f"{place} must return {wrong}")
        inner = _function_hint(returns)
        return result if inner is None else _checked_callable(result, *inner)

    vars(call)[_CHECKED] = True
    return cast("_F", call)


def _checked_callable(made: Any, returns: Any, takes: Sequence[str] | None) -> Any:
    """Checks calls of a function or of an instance, whose class is changed for this."""
    method = inspect.getattr_static(type(made), "__call__", None)
    if not inspect.isfunction(method):
        return checked(made, returns, takes)
    if not hasattr(method, _CHECKED):
        takes = None if takes is None else ["self", *takes]
        type(made).__call__ = checked(method, returns, takes)
    return made


def _check_signature(function: Callable[..., Any], takes: Sequence[str]) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of a function in C
        return
    at = takes.index("*") if "*" in takes else len(takes)
    try:
        signature.bind(*takes[:at], **dict.fromkeys(takes[at + 1 :]))
    except TypeError as error:
        place = definition(function)
        raise MisfitError(f"{place} must take ({', '.join(takes)}): {error}") from None


def _function_hint(hint: Any) -> tuple[Any, Sequence[str] | None] | None:
    """Annotations of the result and of the arguments of a function; None if the hint is of none."""
    for one in (hint, *get_args(hint)):
        if get_origin(one) is Callable:
            arguments, returns = get_args(one)
            named = isinstance(arguments, list)
            return returns, [getattr(a, "__name__", str(a)) for a in arguments] if named else None
    return None


def definition(function: Any) -> str:
    """File, line and name of a function, or of a class by its first function."""
    inner = inspect.unwrap(getattr(function, "func", function))
    for one in (inner, *vars(inner if inspect.isclass(inner) else type(inner)).values()):
        code = getattr(inspect.unwrap(one) if callable(one) else one, "__code__", None)
        if code:
            return _place(code, code.co_firstlineno)
    return repr(function)


def check_methods(made: type, interface: type) -> None:
    """Checks the signatures of a plug-in's methods, and their results in calls; see `checked`."""
    if is_built_in(made):
        return
    for name, method in list(vars(made).items()):
        declared = getattr(interface, name, None)
        if inspect.isfunction(method) and inspect.isfunction(declared) and name[:2] != "__":
            returns = _hints(declared).get("return")
            returns = object if returns is type(None) else returns
            setattr(made, name, checked(method, returns, _arguments(declared)))


def _arguments(declared: Callable[..., Any]) -> list[str] | None:
    by_kind: dict[Any, list[str]] = {}
    for one in inspect.signature(declared).parameters.values():
        by_kind.setdefault(one.kind, []).append(one.name)
    first, second, by_name = (
        by_kind.pop(kind, [])
        for kind in (
            inspect.Parameter.POSITIONAL_ONLY,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            inspect.Parameter.KEYWORD_ONLY,
        )
    )
    return None if by_kind else [*first, *second, *(["*"] if by_name else []), *by_name]


def check_attributes(owner: object, interface: type, who: str, *but: str) -> None:
    """Checks attributes of `who` by the annotations of the interface; integers must be positive.

    Attributes that are functions of a plug-in check their results from then on; those named in
    `but` are not checked. UsageError names the first wrong attribute.
    """
    for name, hint in _hints(interface).items():
        value = getattr(owner, name, None)
        wrong = "" if name in but or get_origin(hint) is ClassVar else misfit(value, hint)
        if wrong:
            raise UsageError(f"{who}: {name} must be {wrong}")
        if type(value) is int and value < 1 and float not in (hint, *get_args(hint)):
            raise UsageError(f"{who}: {name}={value} must be at least 1")
        function = _function_hint(hint)
        if callable(value) and function is not None and name not in but:
            object.__setattr__(owner, name, checked(value, *function))


@functools.cache
def _hints(declared: Any) -> dict[str, Any]:
    return get_type_hints(declared, include_extras=True)


def _own(file: str) -> None:
    """Marks the folder of a file as plug-in code, or only the file if it is in site-packages."""
    folder = os.path.dirname(file)
    _places.add(file if folder.endswith("-packages") else folder)


def _place(code: types.CodeType, line: int) -> str:
    # Python 3.10 lacks co_qualname; functions have it.
    name = getattr(code, "co_qualname", "") or next(
        (f.__qualname__ for f in gc.get_referrers(code) if isinstance(f, types.FunctionType)),
        code.co_name,
    )
    return f"{code.co_filename}:{line}: {name if name.endswith('>') else f'{name}()'}"


def files(flags: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Flag and path of each plug-in file that values of flags name, in the order of loading."""
    values = ((flag, flags.get(flag) or ()) for flag in FLAGS)
    return tuple(
        (flag, path)
        for flag, given in values
        for path in ([given] if type(given) is str else given)
    )


def load_all(flags: Mapping[str, Any]) -> None:
    """Loads the plug-in files that flags name, before what they register is looked up."""
    for flag, path in files(flags):
        load(path, flag)


def load(path: str, flag: str) -> tuple[Any, ...]:
    """Runs a plug-in file, which registers objects; returns the keys of those of the flag's kind.

    Loading the same text twice does nothing; an edited file replaces what it registered. It may
    register other kinds, too. Nothing stays registered when the file fails.

    Raises:
      UsageError: no such file, the file raises, registers nothing of the kind, or registers a name
        that is taken.
    """
    source = read_file(path, _MOST_MIB, flag)
    file = Path(os.path.realpath(path))
    digest, name = _sha256(source), f"--{flag}={path}"
    if file not in _files or digests.get(_files[file][0]) != digest:
        forget(file)
        _own(str(file))
        with _loading(name) as added:
            # Compiled by hand rather than imported: no bytecode file appears beside the user's
            # file, and an edit within the clock tick of the last load is seen.
            module = types.ModuleType(f"cnnbench_plugin_{file.stem}")
            module.__file__ = str(file)
            sys.modules[module.__name__] = module  # dataclasses and pickle look classes up there
            linecache.checkcache(str(file))
            exec(compile(source, str(file), "exec"), module.__dict__)
            beside = _beside(file, module.__dict__.get("FILES", ()))
        _files[file], digests[name] = (name, added, beside), digest
    wanted = [kind for kind in _kinds.values() if flag in (FLAG, kind.flag)]
    keys = tuple(key for kind in wanted for key in _files[file][1].get(kind.flag, ()))
    if not keys:
        noun = "nothing" if flag == FLAG else f"no {wanted[0].noun}"
        calls = " or ".join(sorted(kind.call for kind in wanted))
        raise FlagError(flag, path, f"registers {noun}; call {calls}")
    return keys


def _beside(file: Path, given: object) -> tuple[str, ...]:
    """Paths of the FILES of a plug-in; UsageError if one is not a file."""
    if not isinstance(given, list | tuple) or not all(isinstance(one, str) for one in given):
        raise UsageError("FILES must be a list of paths beside the plug-in")
    found = tuple(str(file.parent / one) for one in given)
    for path in (path for path in found if not os.path.isfile(path)):
        raise UsageError(f"FILES names {path}, which is not a file")
    return found


def parts(flags: Mapping[str, Any]) -> tuple[str, ...]:
    """Files that plug-ins use: their FILES, and the imported modules of their folders.

    Args:
      flags: values of flags, which name the plug-ins; those that are not loaded use none.
    """
    own = {Path(os.path.realpath(path)) for _, path in files(flags)} & _files.keys()
    if not own:  # TensorFlow alone has thousands of modules to look at
        return ()
    folders = tuple(f"{file.parent}{os.sep}" for file in own)
    found = {path for file in own for path in _files[file][2]}
    for name, module in list(sys.modules.items()):
        path = str(getattr(module, "__file__", None))
        if path.startswith(folders) and not (
            name.partition(".")[0] in ("__main__", "cnnbench")
            or path.startswith(_STDLIB)
            or "-packages" in path
            or Path(path) in _files
        ):
            found.add(path)
    return tuple(sorted(found))


def digest(path: str, used: Iterable[str] = ()) -> str:
    """SHA-256 of a plug-in file and of the files that it uses; those that are gone do not count."""
    texts = [Path(path).read_bytes()]
    for one in used:
        with contextlib.suppress(OSError):
            texts.append(os.path.basename(one).encode(errors="replace") + Path(one).read_bytes())
    return _sha256(b"\0".join(texts))


def modules_of(package: types.ModuleType) -> list[str]:
    """Names of the modules of a package, such as a folder of algorithms; imports none of them.

    Raises:
      BenchmarkError: the folder cannot be read, which `pkgutil` takes for an empty one.
    """
    try:
        files = [path for folder in package.__path__ for path in Path(folder).iterdir()]
    except OSError as error:
        reason = f"{error.filename}: cannot be read: {error.strerror}"
        raise BenchmarkError(f"{reason}; reinstall cnnbench") from None
    return sorted({path.stem for path in files if path.suffix == ".py"} - {"__init__"})


def load_entry_points(group: str) -> None:
    """Loads installed entry points once: modules that register on import, or functions."""
    if group in _groups:
        return
    import importlib.metadata  # imported late: it takes 10 ms, and few runs need it
    import importlib.util

    for point in importlib.metadata.entry_points(group=group):
        name = f"entry point {point.name} = {point.value} of group {group}"
        with _loading(name):
            source = str(getattr(importlib.util.find_spec(point.module), "origin", None))
            _own(source)
            found = point.load()
            if callable(found):
                found()
        with contextlib.suppress(OSError):  # in an archive
            digests[name] = _sha256(Path(source).read_bytes())
    _groups.add(group)


def loaded() -> set[Path]:
    """Paths of the loaded plug-in files."""
    return set(_files)


def forget(file: Path) -> None:
    """Removes what a file has registered."""
    name, added, _ = _files.pop(file, ("", {}, ()))
    digests.pop(name, None)
    for flag, keys in added.items():
        for key in keys:
            _kinds[flag].remove(key)
            _origins.pop((flag, key), None)


@contextlib.contextmanager
def _loading(name: str) -> Iterator[Added]:
    """Collects the objects that a plug-in registers in the block, by flag of their kind.

    Removes them if the block fails.
    """
    for prepare in before_loading:
        prepare()
    for module in _REGISTRIES:
        importlib.import_module(module)
    for kind in _kinds.values():
        kind.prepare()
    known = {flag: [dict(table) for table in kind.tables] for flag, kind in _kinds.items()}
    added: Added = {}
    try:
        with reported(UsageError, name), running(name):
            yield added
    except BaseException:
        for flag, kind in _kinds.items():
            for table, before in zip(kind.tables, known[flag], strict=True):
                table.clear()
                table.update(before)
        raise
    for flag, kind in _kinds.items():
        added[flag] = tuple(key for key in kind.table() if key not in known[flag][0])
        _origins.update({(flag, key): name for key in added[flag]})


def check_name(what: str, name: object) -> None:
    """Refuses, with UsageError, names that are not printable text or are empty."""
    if not isinstance(name, str) or not name or not name.isprintable():
        raise UsageError(f"{what} needs a name of printable characters, not {name!r}")


def _sha256(data: bytes) -> str:
    import hashlib  # imported late: --help does not need it

    return hashlib.sha256(data).hexdigest()
