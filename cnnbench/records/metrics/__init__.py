"""Declarations of the metrics of runs. Importing this package registers the metrics of all its
modules.
"""

from __future__ import annotations

import importlib
import pkgutil

# `iter_modules` returns the modules of this package in alphabetical order.
for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
