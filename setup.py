"""Packaging: ``models/`` and ``variable_mgr/`` become part of the ``cnnbench`` namespace.

A top-level package called ``models`` would collide with the ``models/`` folder
that many repositories put on PYTHONPATH, hence the mapping.
"""

from __future__ import annotations

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
TENSORFLOW = "tensorflow>=2.18,<2.22"

MAPPED = {"cnnbench.models": "models", "cnnbench.variable_mgr": "variable_mgr"}


def _packages() -> list[str]:
    names = ["cnnbench", *(f"cnnbench.{p}" for p in find_packages("cnnbench"))]
    for package, folder in MAPPED.items():
        names += [package, *(f"{package}.{p}" for p in find_packages(folder))]
    return names


def _version() -> str:
    text = (HERE / "cnnbench" / "__init__.py").read_text(encoding="utf-8")
    match = re.search(r'__version__ = "([^"]+)"', text)
    assert match is not None
    return match.group(1)


setup(
    name="cnnbench",
    version=_version(),
    description="Measures how fast convolutional networks train on TensorFlow",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    python_requires=">=3.10,<3.14",
    packages=_packages(),
    package_dir={"cnnbench": "cnnbench", **MAPPED},
    package_data={"cnnbench": ["py.typed"]},
    install_requires=[TENSORFLOW, "absl-py>=2.0", "numpy>=1.26", "pandas>=2.1"],
    extras_require={
        "and-cuda": [TENSORFLOW.replace("tensorflow", "tensorflow[and-cuda]")],
        "test": [
            "pytest>=8",
            "pytest-timeout>=2.3",
            "hypothesis>=6.100",
            "scikit-learn>=1.4",
            "scikit-image>=0.22",
            "ruff>=0.6",
            "mypy>=1.11",
        ],
    },
    entry_points={"console_scripts": ["cnnbench = cnnbench.cli:entry_point"]},
)
