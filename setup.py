"""The packages: ``models/``, ``variable_mgr/`` and ``configs/`` become part of ``cnnbench``.

Everything else is in ``pyproject.toml``, which cannot search several folders for packages. A
top-level package called ``models`` would collide with the ``models/`` folder that many repositories
put on PYTHONPATH, hence the mapping. An editable install follows it as a release does;
``scripts/check_install`` tries both, and ``scripts/typecheck`` shows the mapped layout to mypy,
which does not follow it.
"""

from __future__ import annotations

from setuptools import find_packages, setup

FOLDERS = {
    "cnnbench": "cnnbench",
    "cnnbench.configs": "configs",
    "cnnbench.models": "models",
    "cnnbench.variable_mgr": "variable_mgr",
}

setup(
    packages=[
        package
        for name, folder in FOLDERS.items()
        for package in (name, *(f"{name}.{found}" for found in find_packages(folder)))
    ],
    package_dir=FOLDERS,
)
