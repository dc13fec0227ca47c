"""Declarations of metrics of runs; importing the package registers those of all its modules."""

from __future__ import annotations

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):  # in alphabetical order
    importlib.import_module(f"{__name__}.{_module.name}")
