"""NumPy, which is imported when one of its names is used first.

The modules of commands use it instead of NumPy, so that ``--help`` and errors in flags do not wait
for NumPy. For type checkers, they import NumPy itself.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """Imports NumPy, and returns its attribute `name`. AttributeError if there is none."""
    if name.startswith("__"):  # Python and its tools look for these in every module.
        raise AttributeError(name)
    import numpy

    value = globals()[name] = getattr(numpy, name)
    return value
