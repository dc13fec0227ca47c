"""Loads plug-ins, and keeps track of the objects that they register.

To add a kind of object, create a `cnnbench.base.registry.Registry`, and list its module in
`_REGISTRIES`.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import inspect
import linecache
import mmap
import os
import re
import sys
import threading
import traceback
import types
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import (
    Any,
    Protocol,
)

from cnnbench.base.files import read_file
from cnnbench.base.interrupts import errors_as_interrupts
from cnnbench.errors import BenchmarkError, FlagError, PathError, UsageError, exhausted, text_of

_MOST_MIB = 16
_MOST_FRAMES = 20
_NAME_BYTES = 512
_FRAME = re.compile(r'File "([^"\n]+)", line (\d+), in (\S+)')

Added = dict[str, tuple[Any, ...]]
"""Keys of the objects that a plug-in has registered, by name of the kind."""

FLAG = "plugin"
"""The flag that names plug-in files."""

# These modules register cnnbench's own objects. They are imported before a plug-in is loaded;
# otherwise, the plug-in could be taken for the owner of these objects.
_REGISTRIES = (
    "cnnbench.data.open",
    "cnnbench.models.registry",
    "cnnbench.variable_mgr.registry",
    "cnnbench.variable_mgr.all_reduce.registry",
    "cnnbench.optimizers.registry",
    "cnnbench.records.exports",
    "cnnbench.records.metric",
    "cnnbench.records.readers",
    "cnnbench.run.driver.observers.observer",
)


class PluginKind(Protocol):
    """A kind of objects that plug-ins can register, by name: a `cnnbench.base.registry.Registry`.

    Attributes:
      kind: name of the kind, such as "model".
      call: the call that registers an object, for messages.
      flag: the flag that takes the names of the objects; "" if there is none.
    """

    kind: str
    call: str
    flag: str

    def __iter__(self) -> Iterator[Any]: ...
    def __getitem__(self, name: Any, /) -> Any: ...
    def load_own(self) -> None:
        """Registers the objects of cnnbench itself."""

    def remove(self, name: Any) -> None:
        """Removes a registered object."""


_kinds: dict[str, PluginKind] = {}
_INITIALISES = "INITIALISES_ONLY"
# For each loaded plug-in file: its name, the registered keys, and the files that it lists in FILES.
_files: dict[Path, tuple[str, Added, tuple[str, ...]]] = {}
# Plug-in files that set INITIALISES_ONLY = True.
_initialising: set[Path] = set()
# For each registered object, given as (name of its kind, key): the name of its plug-in.
_origins: dict[tuple[str, Any], str] = {}
_groups: set[str] = set()  # Names of the entry-point groups that have been loaded.
digests: dict[str, str] = {}
"""SHA-256 of the source file of each loaded plug-in, by name of the plug-in."""

before_loading: list[Callable[[], None]] = []
"""Functions called before code of a plug-in is loaded."""

_around: list[Callable[[], contextlib.AbstractContextManager[Any]]] = []
# The active `containing_plugin_code` blocks. The last item is the innermost block.
_running_blocks: list[contextlib.ExitStack] = []

_STDLIB = os.path.dirname(os.__file__) + os.sep
_places: set[str] = set()  # Files and folders that contain code of plug-ins.
_running = mmap.mmap(-1, _NAME_BYTES)


def add_plugin_kind(kind: PluginKind) -> None:
    """Adds a kind of objects that plug-ins can register."""
    _kinds[kind.kind] = kind


def is_name_flag(flag: str) -> bool:
    """Whether a flag takes the names of registered objects."""
    return any(kind.flag == flag for kind in _kinds.values())


def plugin_of_object(kind: str, key: Any) -> str | None:
    """Name of the plug-in that registered an object; None for an object of cnnbench itself."""
    return _origins.get((kind, key))


@contextlib.contextmanager
def reporting_plugin_errors(
    kind: type[UsageError | BenchmarkError], name: str = ""
) -> Iterator[None]:
    """Context manager that converts an error raised by a plug-in to a one-line error, which also
    lists the stack frames in plug-in code.

    An error belongs to a plug-in if it was raised in a file of the plug-in or in code called from
    there. If only one plug-in runs in the block, pass its `name`; then every error belongs to it.
    Interrupts, lack of memory and cnnbench's own errors for users are not changed. `kind` is
    UsageError before a run and BenchmarkError during a run.
    """
    try:
        with errors_as_interrupts():
            yield
    except (KeyboardInterrupt, FlagError, PathError, BenchmarkError):
        raise
    except BaseException as error:
        frames = [
            (frame.f_code, line)
            for frame, line in traceback.walk_tb(error.__traceback__)
            if _is_plugin_code(frame.f_code)
        ]
        full = exhausted(error) or type(error).__name__ == "ResourceExhaustedError"
        wrong = isinstance(error, PluginInterfaceError)
        who = name or getattr(error, _RAISED_IN, "")
        if full or getattr(error, "frames", None) or not (frames or who or wrong):
            raise
        text = " ".join(text_of(error).split())
        if not isinstance(error, UsageError | PluginInterfaceError):
            text = f"{type(error).__name__}: {text}" if text else type(error).__name__
        place = _code_location(*frames[-1]) if frames else who
        made = kind(text if wrong else f"{place}: {text}")
        made.frames = tuple(
            f"at {_code_location(*frame)}: "
            f"{linecache.getline(frame[0].co_filename, frame[1]).strip()}"
            for frame in frames[-_MOST_FRAMES:]
        )
        raise made from error


def plugin_location_of_error(error: BaseException) -> str:
    """File, line and function of the innermost frame in plug-in code from which an error came; ""
    if there is none.
    """
    frames = traceback.walk_tb(error.__traceback__)
    places = [(frame.f_code, line) for frame, line in frames if _is_plugin_code(frame.f_code)]
    return _code_location(*places[-1]) if places else ""


class PluginInterfaceError(TypeError):
    """A plug-in's function has wrong parameters or returns a value of the wrong type."""


# Name of the attribute of an exception that contains the name of the plug-in whose code raised it.
_RAISED_IN = "_cnnbench_plugin"


@contextlib.contextmanager
def containing_plugin_code(name: str) -> Iterator[None]:
    """Context manager for a block that only runs code of the plug-in `name`.

    Afterwards, restores the working directory, because later paths may be relative, and ends
    processes that the code has forked. During the block, `running_plugin_name` returns the name,
    even in a parent process. UsageError if the code has switched off eager execution of TensorFlow.
    """
    before, process = _running[:], os.getpid()
    folder = os.open(".", getattr(os, "O_PATH", os.O_RDONLY))
    _running[:] = name.encode(errors="backslashreplace")[:_NAME_BYTES].ljust(_NAME_BYTES, b"\0")
    block = contextlib.ExitStack()
    _running_blocks.append(block)
    try:
        with block:
            for enter in _around:
                block.enter_context(enter())
            yield
        _check_eager()
    except Exception as error:
        if not hasattr(error, _RAISED_IN):
            with contextlib.suppress(AttributeError, TypeError):
                setattr(error, _RAISED_IN, name)
        raise
    finally:
        if os.getpid() != process:
            os._exit(0)
        _running_blocks.remove(block)
        _running[:] = before
        os.fchdir(folder)
        os.close(folder)


def add_plugin_code_context(
    make_context: Callable[[], contextlib.AbstractContextManager[Any]],
) -> None:
    """Registers a context manager that encloses all plug-in code from now on, including the rest of
    a `containing_plugin_code` block that is active now.
    """
    _around.append(make_context)
    if _running_blocks:
        _running_blocks[-1].enter_context(make_context())


def _is_plugin_code(code: types.CodeType) -> bool:
    """Whether a code object was defined in a plug-in file or in another file in the folder of a
    plug-in.
    """
    return not _places.isdisjoint((code.co_filename, os.path.dirname(code.co_filename)))


def is_defined_by_cnnbench(definition: Any) -> bool:
    """Whether a function or class belongs to cnnbench, so that its results need not be checked."""
    if isinstance(definition, functools.partial):
        definition = definition.func
    return str(getattr(definition, "__module__", "")).startswith("cnnbench.")


def calling_plugin_location() -> str:
    """File, line and function of the innermost stack frame in plug-in code; "" if there is none."""
    for frame, line in traceback.walk_stack(None):
        if _is_plugin_code(frame.f_code):
            return _code_location(frame.f_code, line)
    return ""


def plugin_location_in_text(text: str) -> str:
    """Finds the innermost frame in plug-in code in the text of a traceback: file, line and
    function.

    Returns an empty string if no frame is in plug-in code.
    """
    for file, line, name in reversed(_FRAME.findall(text)):
        if not _places.isdisjoint((file, os.path.dirname(file))):
            return f"{file}:{line}: {_call_text(name)}"
    return ""


def share_running_plugin() -> None:
    """Lets this process read which plug-in the next child process is running, even after the child
    has crashed.

    While the child process runs plug-in code, `running_plugin_name` returns the name of the plug-in
    in both processes.
    """
    global _running
    # A forked child process writes to this memory, and its parent reads it.
    _running = mmap.mmap(-1, _NAME_BYTES)


def running_plugin_name() -> str:
    """Name of the plug-in whose code is running; "" if no plug-in is running.

    After a child process of `share_running_plugin` has ended, returns the plug-in that
    was running in the child.
    """
    return _running[:].rstrip(b"\0").decode(errors="replace")


def definition_location(function: Any) -> str:
    """File, line and name of a function. For a class, the location of its first method is used."""
    inner = inspect.unwrap(getattr(function, "func", function))
    for member in (inner, *vars(inner if inspect.isclass(inner) else type(inner)).values()):
        code = getattr(inspect.unwrap(member) if callable(member) else member, "__code__", None)
        if code:
            return _code_location(code, code.co_firstlineno)
    return repr(function)


def _mark_as_plugin(file: str) -> None:
    """Marks a plug-in file and all files in the same folder as plug-in code. If the folder is
    site-packages, only the file is marked.
    """
    folder = os.path.dirname(file)
    _places.add(file if folder.endswith("-packages") else folder)


def _code_location(code: types.CodeType, line: int) -> str:
    # Python 3.10 has no co_qualname, so the function that has this code object is searched for its
    # name.
    name = getattr(code, "co_qualname", "") or next(
        (f.__qualname__ for f in gc.get_referrers(code) if isinstance(f, types.FunctionType)),
        code.co_name,
    )
    return f"{code.co_filename}:{line}: {_call_text(name)}"


def _call_text(name: str) -> str:
    return name if name.endswith(">") else f"{name}()"


def plugin_files_of_flags(flags: Mapping[str, Any]) -> tuple[str, ...]:
    """Paths of the plug-in files that flags name, in the order in which they are loaded. `flags`
    contains values or, from a command line, texts.
    """
    paths = flags.get(FLAG) or ()
    return tuple(paths.split(",")) if type(paths) is str else tuple(paths)


def load_plugins_of_flags(flags: Mapping[str, Any]) -> None:
    """Loads all plug-in files that flags name. Call this function before you look up registered
    objects.
    """
    for path in plugin_files_of_flags(flags):
        load_plugin_file(path)


def load_plugin_file(path: str) -> Added:
    """Runs a plug-in file, which registers objects such as models. Returns the keys of the
    registered objects by kind.

    Loading an unchanged file again does nothing. If the file has changed, its new objects replace
    the old ones. If the file fails, none of its objects remain registered. A file that sets
    INITIALISES_ONLY = True registers no object: it only prepares something, such as a platform.

    Raises:
      UsageError: the file does not exist, raises an error, registers nothing, or registers a name
        that exists already.
    """
    source = read_file(path, _MOST_MIB, FLAG)
    file = Path(os.path.realpath(path))
    digest, name = _sha256_hex(source), f"--{FLAG}={path}"
    if file not in _files or digests.get(_files[file][0]) != digest:
        forget_plugin(file)
        _mark_as_plugin(str(file))
        with _registering(name) as added:
            # The file is run with exec instead of imported. An import would write a bytecode file
            # next to the user's file, and would overlook an edit that follows the previous one
            # within the clock resolution of the file system.
            module = types.ModuleType(f"cnnbench_plugin_{file.stem}")
            module.__file__ = str(file)
            # With this entry, Python's modules dataclasses and pickle find the classes of the
            # plug-in.
            sys.modules[module.__name__] = module
            linecache.checkcache(str(file))
            exec(compile(source, str(file), "exec"), module.__dict__)
            beside = _declared_files(file, module.__dict__.get("FILES", ()))
        if module.__dict__.get(_INITIALISES) is True:
            _initialising.add(file)
        _files[file], digests[name] = (name, added, beside), digest
    registered = _files[file][1]
    keys = [key for keys_of_kind in registered.values() for key in keys_of_kind]
    if file in _initialising:
        if keys:
            raise FlagError(FLAG, path, f"sets {_INITIALISES} = True, but registers {keys[0]}")
    elif not keys:
        calls = " or ".join(sorted(kind.call for kind in _kinds.values()))
        reason = f"registers nothing; call {calls}, or set {_INITIALISES} = True if it only "
        raise FlagError(FLAG, path, f"{reason}prepares something")
    return registered


def _declared_files(file: Path, value: object) -> tuple[str, ...]:
    """Absolute paths of the files that a plug-in lists in FILES; UsageError if one of them is not a
    file.
    """
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
        raise UsageError("FILES must be a list of paths, relative to the folder of the plug-in")
    paths = tuple(str(file.parent / name) for name in value)
    for path in (path for path in paths if not os.path.isfile(path)):
        raise UsageError(f"FILES names {path}, which is not a file")
    return paths


def files_used_by_plugins(flags: Mapping[str, Any]) -> tuple[str, ...]:
    """Paths of the files that plug-ins use: the files that they list in FILES, and modules imported
    from their folders.

    Args:
      flags: values of flags, some of which name plug-ins. Plug-ins that are not loaded are ignored.
    """
    own = {Path(os.path.realpath(path)) for path in plugin_files_of_flags(flags)} & _files.keys()
    # TensorFlow imports thousands of modules. Without plug-ins, none of them needs to be checked.
    if not own:
        return ()
    folders = tuple(f"{file.parent}{os.sep}" for file in own)
    paths = {path for file in own for path in _files[file][2]}
    for name, module in list(sys.modules.items()):
        path = str(getattr(module, "__file__", None))
        if path.startswith(folders) and not (
            name.partition(".")[0] in ("__main__", "cnnbench")
            or path.startswith(_STDLIB)
            or "-packages" in path
            or Path(path) in _files
        ):
            paths.add(path)
    return tuple(sorted(paths))


def loaded_packages() -> dict[str, str]:
    """Maps the names of the packages and modules that this process has imported to their folders or
    files, without those of Python and of cnnbench.
    """
    packages = {}
    for name, module in list(sys.modules.items()):
        if "." in name or name in sys.stdlib_module_names or name in ("__main__", "cnnbench"):
            continue
        folders = [*(getattr(module, "__path__", None) or ())]
        place = folders[0] if folders else getattr(module, "__file__", None)
        if isinstance(place, str) and os.path.isabs(place):
            packages[name] = os.path.realpath(place)
    return packages


def plugin_digest(path: str, used: Iterable[str] = ()) -> str:
    """SHA-256 of a plug-in file together with the files `used`, on which it depends. Missing files
    are ignored.
    """
    texts = [Path(path).read_bytes()]
    for file in used:
        with contextlib.suppress(OSError):
            texts.append(os.path.basename(file).encode(errors="replace") + Path(file).read_bytes())
    return _sha256_hex(b"\0".join(texts))


def submodule_names(package: types.ModuleType) -> list[str]:
    """Names of the modules in a package, such as a folder of algorithms. The modules are not
    imported.

    Raises:
      BenchmarkError: the folder cannot be read. (`pkgutil` would treat it as empty.)
    """
    try:
        files = [path for folder in package.__path__ for path in Path(folder).iterdir()]
    except OSError as error:
        reason = f"{error.filename}: cannot be read: {error.strerror}"
        raise BenchmarkError(f"{reason}; reinstall cnnbench") from None
    return sorted({path.stem for path in files if path.suffix == ".py"} - {"__init__"})


def load_entry_points(group: str) -> None:
    """Loads the installed entry points of a group. Later calls with the same group do nothing.

    An entry point is a module that registers objects when it is imported, or a function.
    """
    if group in _groups:
        return
    # Imported late, because this takes 10 ms and few runs need it.
    import importlib.metadata
    import importlib.util

    for point in importlib.metadata.entry_points(group=group):
        name = f"entry point {point.name} = {point.value} of group {group}"
        with _registering(name):
            source = str(getattr(importlib.util.find_spec(point.module), "origin", None))
            _mark_as_plugin(source)
            entry = point.load()
            if callable(entry):
                entry()
        # If an entry point is in a zip archive, its source file cannot be read.
        with contextlib.suppress(OSError):
            digests[name] = _sha256_hex(Path(source).read_bytes())
    _groups.add(group)


def forget_plugin(file: Path) -> None:
    """Unregisters a loaded plug-in file and removes all objects that it has registered."""
    name, added, _ = _files.pop(file, ("", {}, ()))
    _initialising.discard(file)
    digests.pop(name, None)
    for kind, keys in added.items():
        for key in keys:
            _kinds[kind].remove(key)
            _origins.pop((kind, key), None)


@contextlib.contextmanager
def _registering(name: str) -> Iterator[Added]:
    """Context manager that records the keys of the objects that a plug-in registers in the block.

    The keys are grouped by kind, and are complete after the block. If the block
    fails, the objects are removed.
    """
    for prepare in before_loading:
        prepare()
    for module in _REGISTRIES:
        importlib.import_module(module)
    for kind in _kinds.values():
        kind.load_own()
    known = {of: {*kind} for of, kind in _kinds.items()}
    added: Added = {}
    try:
        with reporting_plugin_errors(UsageError, name), containing_plugin_code(name):
            yield added
    except BaseException:
        for of, kind in _kinds.items():
            for key in _added_keys(kind, known[of]):
                kind.remove(key)
        raise
    for of, kind in _kinds.items():
        added[of] = _added_keys(kind, known[of])
        _origins.update({(of, key): name for key in added[of]})


def _added_keys(kind: PluginKind, known: Container[Any]) -> tuple[Any, ...]:
    """Keys of the objects that a plug-in has registered, besides those in `known`. Functions of
    cnnbench are left out: the plug-in may have imported a module that registers them.
    """
    return tuple(
        key
        for key in kind
        if key not in known
        and not (inspect.isfunction(kind[key]) and is_defined_by_cnnbench(kind[key]))
    )


def _check_eager() -> None:
    """Raises UsageError if the code of a plug-in that ran last has switched off eager execution."""
    tensorflow = sys.modules.get("tensorflow")
    is_eager = getattr(tensorflow, "executing_eagerly", lambda: True)
    if not (is_eager() or _in_new_thread(is_eager)):
        raise UsageError(
            "switches off eager execution of TensorFlow, which every run needs; remove the call of "
            "disable_eager_execution or disable_v2_behavior"
        )


def _in_new_thread(is_eager: Callable[[], bool]) -> bool:
    """Calls `is_eager` in a new thread. While a function is traced, it is false in this thread."""
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(is_eager()))
    thread.start()
    thread.join()
    return results == [True]


def check_name(what: str, name: object) -> None:
    """Raises UsageError if the name of an object to register is empty or is not printable text."""
    if not isinstance(name, str) or not name or not name.isprintable():
        raise UsageError(f"{what} needs a name of printable characters, not {name!r}")


def _sha256_hex(data: bytes) -> str:
    # hashlib is imported late, because --help does not need it.
    import hashlib

    return hashlib.sha256(data).hexdigest()
