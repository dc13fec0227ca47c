"""NumPy, imported only when one of its names is used, because the import is slow.

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
    NDArray = Any  # Used only in annotations, which are not evaluated.

    class _LazyNumPy:
        def __getattr__(self, name: str) -> Any:
            """Imports NumPy, and returns its attribute `name`. AttributeError if there is none."""
            if name.startswith("__"):  # Python and its tools ask every object for such names.
                raise AttributeError(name)
            import numpy

            value = vars(self)[name] = getattr(numpy, name)
            return value

    np = _LazyNumPy()
