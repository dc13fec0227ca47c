"""NumPy, which is imported when one of its names is used first.

The modules of commands use it instead of NumPy, so that ``--help`` and errors in flags do not wait
for NumPy. For type checkers, `np` is NumPy itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["NDArray", "np"]

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    NDArray = Any  # Only annotations name it, and they are not evaluated.

    class _LazyNumPy:
        def __getattr__(self, name: str) -> Any:
            """Imports NumPy, and returns its attribute `name`. AttributeError if there is none."""
            if name.startswith("__"):  # Python and its tools look for these in every object.
                raise AttributeError(name)
            import numpy

            value = vars(self)[name] = getattr(numpy, name)
            return value

    np = _LazyNumPy()
