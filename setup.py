"""Packaging: ``models/``, ``variable_mgr/`` and ``configs/`` become part of ``cnnbench``.

A top-level package called ``models`` would collide with the ``models/`` folder
that many repositories put on PYTHONPATH, hence the mapping. An editable install
follows it as a release does; ``scripts/check_install`` tries both, and
``scripts/typecheck`` shows the mapped layout to mypy, which does not follow it.
"""

from __future__ import annotations

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
# No upper limit: pip would replace the TensorFlow that is to be measured. A run with one that is
# newer than those tested says so.
TENSORFLOW = "tensorflow>=2.18"

MAPPED = {
    "cnnbench.configs": "configs",
    "cnnbench.models": "models",
    "cnnbench.variable_mgr": "variable_mgr",
}


def _packages() -> list[str]:
    """Every package by the name it is imported under."""
    names = ["cnnbench", *(f"cnnbench.{p}" for p in find_packages("cnnbench"))]
    for package, folder in MAPPED.items():
        names += [package, *(f"{package}.{p}" for p in find_packages(folder))]
    return names


def _version() -> str:
    """The version, read without importing the package."""
    text = (HERE / "cnnbench" / "version.py").read_text(encoding="utf-8")
    match = re.search(r'^__version__ = "([^"]+)"', text, re.MULTILINE)
    if match is None:
        raise ValueError('cnnbench/version.py has no line of the form __version__ = "..."')
    return match.group(1)


setup(
    name="cnnbench",
    version=_version(),
    description="Measures how fast convolutional networks train on TensorFlow",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    classifiers=[
        "Environment :: Console",
        "Intended Audience :: Science/Research",
        "Operating System :: MacOS",
        "Operating System :: POSIX :: Linux",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in range(10, 14)),
        "Topic :: System :: Benchmark",
        "Typing :: Typed",
    ],
    python_requires=">=3.10,<3.14",
    packages=_packages(),
    package_dir={"cnnbench": "cnnbench", **MAPPED},
    package_data={
        "cnnbench": ["py.typed"],
        "cnnbench.base.charts": ["*.css"],
        "cnnbench.configs": ["*.yaml"],
        "cnnbench.judge.report": ["html/*"],
    },
    install_requires=[
        TENSORFLOW,
        "absl-py>=1.0",  # TensorFlow brings it along
        "numpy>=1.26",
        # For reports, comparisons and suites; a training run imports none of them.
        "jinja2>=3.1,<4",
        "matplotlib>=3.8,<4",
        "ml-dtypes>=0.4",  # bfloat16 for NumPy; TensorFlow brings it along
        "pandas>=2.1,<4",
        "protobuf>=4.25",  # TensorFlow brings it along
        "psutil>=5.9,<8",
        "pyyaml>=6.0,<7",
    ],
    extras_require={
        "and-cuda": [
            TENSORFLOW.replace("tensorflow", "tensorflow[and-cuda]"),
            "nvidia-ml-py>=12,<14",
        ],
        "test": [
            "pytest>=8",
            "pytest-timeout>=2.3",
            "pytest-xdist>=3.5",
            "hypothesis>=6.100",
            "jsonschema>=4.18",
            "scikit-learn>=1.4",
            "scikit-image>=0.22",
            "scipy>=1.11,<2",
            "ruff>=0.6",
            "mypy>=1.11",
            "nvidia-ml-py>=12,<14",  # reads emulated GPUs
            "types-PyYAML>=6.0",
            "types-psutil>=5.9",
            "setuptools>=70.1",  # the test of the wheel builds one without isolation
        ],
    },
    entry_points={
        "console_scripts": ["cnnbench = cnnbench.cli:entry_point"],
        "pytest11": ["cnnbench = cnnbench.pytest_plugin"],
    },
)
