"""The package as installed: its namespace, its command and the content of a wheel."""

from __future__ import annotations

import ast
import email
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from forked import finished

ROOT = Path(__file__).resolve().parents[1]
PAGE_FILES = ("template.html", "style.css", "script.js")


TOP_LEVEL = {
    *("cnnbench", "configs", "docs", "models", "scripts", "tests", "variable_mgr", ".ci"),
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", ".gitignore"),
    *("setup.py", "pyproject.toml", "mkdocs.yml", "MANIFEST.in"),
}
"""What is committed at the top level: packages, documents and what builds them, no products."""


def test_nothing_else_is_committed_at_the_top_level():
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout of git")
    listed = finished(["git", "ls-files", "-z"], None, cwd=ROOT).stdout.split("\0")
    assert {name.partition("/")[0] for name in listed if name} == TOP_LEVEL
    wheel = ["git", "check-ignore", "-q", "any-1.0-py3-none-any.whl"]
    assert finished(wheel, None, cwd=ROOT).returncode == 0


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder with a ``models`` and a ``variable_mgr`` that nobody may import."""
    for name in ("models", "variable_mgr"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise RuntimeError('wrong {name}')\n")
    return tmp_path


def _python(hostile: Path, *args: str) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": str(hostile)}
    return finished([sys.executable, *args], None, cwd=hostile, environment=environment)


def test_the_hostile_folders_would_be_imported_by_their_bare_names(hostile):
    for name in ("models", "variable_mgr"):
        assert f"wrong {name}" in _python(hostile, "-c", f"import {name}").stderr


def test_help_among_hostile_folders(hostile):
    done = _python(hostile, "-m", "cnnbench", "--help")
    assert done.returncode == 0, done.stderr
    assert "--variable_update" in done.stdout


CODE = """
import sys
import cnnbench.data, cnnbench.plan.length, cnnbench.models as models
import cnnbench.base.job
from cnnbench.variable_mgr import VariableMgrSpec, all_reduce, create, names
from cnnbench.variable_mgr.all_reduce import registry

assert "copy" in all_reduce.names()
assert all(registry.find(name) for name in all_reduce.names())
assert "replicated" in names()
models.declare(models.get_model("resnet152_v2", "imagenet"), 1001)
models.model_names("cifar10")
sys.exit(" ".join({"tensorflow", "numpy"} & set(sys.modules)) or None)
"""


def test_names_models_and_schedules_need_no_tensorflow(hostile):
    done = _python(hostile, "-c", CODE)
    assert (done.returncode, done.stderr) == (0, "")


def test_console_command_is_installed():
    (entry,) = importlib.metadata.entry_points(group="console_scripts", name="cnnbench")
    assert callable(entry.load())
    assert (Path(sys.executable).parent / "cnnbench").exists()


def test_version_is_the_package_version():
    import cnnbench

    assert importlib.metadata.version("cnnbench") == cnnbench.__version__


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    if importlib.util.find_spec("setuptools") is None:
        pytest.skip("setuptools is not installed here, and a build without isolation needs it")
    scratch = tmp_path_factory.mktemp("wheel")
    for name in ("cnnbench", "configs", "docs", "models", "variable_mgr"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, scratch / "source" / name, ignore=ignore)
    for name in ("setup.py", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, scratch / "source" / name)
    author = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    address = "https://user:secret@example.org/owner/cnnbench.git"
    remote = ["remote", "add", "origin", address]
    for words in (["init", "-q"], remote, ["add", "."], [*author, "commit", "-q", "-m", "x"]):
        finished(["git", *words], cwd=scratch / "source")
    # The changed file is not part of the commit.
    with (scratch / "source" / "README.md").open("a") as readme:
        readme.write("changed\n")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--no-build-isolation", "--wheel-dir", str(scratch), "./source"]
    finished(command, cwd=scratch, seconds=300)
    (made,) = scratch.glob("cnnbench-*.whl")
    return made


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


@pytest.fixture(scope="module")
def wheel_names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def _imported_by_the_package() -> set[str]:
    """Top-level names of everything that is imported anywhere in the sources."""
    found = set()
    for folder in ("cnnbench", "models", "variable_mgr"):
        for source in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Import):
                    found |= {alias.name.split(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom):
                    found.add((node.module or "").split(".")[0])
    return found


def test_what_is_required_is_what_is_imported(metadata):
    required = [r for r in metadata.get_all("Requires-Dist") if "extra ==" not in r]
    names = {re.match(r"[\w-]+", requirement)[0] for requirement in required}
    # Only pytest imports the plug-in for pytest, and only mypy what is in _typeshed; mpi4py is
    # used where MPI has started the processes and somebody has installed it.
    known = {"cnnbench", "pytest", "_typeshed", "mpi4py"}
    others = _imported_by_the_package() - set(sys.stdlib_module_names) - known
    imported_as = {
        "absl-py": "absl",
        "ml-dtypes": "ml_dtypes",
        "protobuf": "google",
        "pyyaml": "yaml",
    }
    assert {imported_as.get(name, name) for name in names} == others


def test_wheel_puts_everything_below_one_name(wheel_names):
    tops = {name.split("/")[0] for name in wheel_names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"cnnbench"}


def test_wheel_holds_every_source_file(wheel_names):
    for folder, inside in (
        ("cnnbench", "cnnbench"),
        ("models", "cnnbench/models"),
        ("variable_mgr", "cnnbench/variable_mgr"),
    ):
        for source in (ROOT / folder).rglob("*.py"):
            assert f"{inside}/{source.relative_to(ROOT / folder)}" in wheel_names
    for suite in (ROOT / "configs").glob("*.yaml"):
        assert f"cnnbench/configs/{suite.name}" in wheel_names
    for name in ("base/charts/theme.css", *(f"base/document/page/{n}" for n in PAGE_FILES)):
        assert f"cnnbench/{name}" in wheel_names
    assert "cnnbench/py.typed" in wheel_names


def test_wheel_holds_the_pages_and_the_files_to_which_they_link(wheel_names):
    for pattern in ("*.md", "evidence/*", "examples/*.*", "schemas/*.json"):
        for page in (ROOT / "docs").glob(pattern):
            assert f"cnnbench/{page.relative_to(ROOT)}" in wheel_names


def test_metadata_have_the_address_of_the_repository_without_a_password(metadata):
    assert metadata.get_all("Project-URL") == ["Repository, https://example.org/owner/cnnbench"]


PICTURE, LINK = (re.compile(rf"{mark}\[[^\]]*\]\(([^)]*)\)") for mark in ("!", "(?<!!)"))


def test_a_package_index_shows_the_pictures_and_links_of_the_readme(metadata, wheel):
    """It has only the text. The commit is not that of the wheel, because of uncommitted changes."""
    assert metadata["Description-Content-Type"] == "text/markdown"
    text, readme = metadata.get_payload(), (ROOT / "README.md").read_text()
    for pattern, kind in ((PICTURE, "raw"), (LINK, "blob")):
        address = f"https://example.org/owner/cnnbench/{kind}/HEAD/"
        given, found = pattern.findall(readme), pattern.findall(text)
        assert len(found) == len(given) > 3
        for one, absolute in zip(given, found, strict=True):
            assert absolute == (one if one.startswith("https://") else f"{address}{one}")
            name = one.partition("#")[0]
            assert one.startswith("https://") or (ROOT / name).exists()


def test_wheel_contains_its_commit(wheel):
    command = ["git", "rev-parse", "HEAD"]
    head = finished(command, cwd=wheel.parent / "source").stdout.strip()
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read("cnnbench/commit.txt").decode().split() == [f"{head}-dirty"]


def test_suites_are_found_in_what_is_installed(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    code = (
        "import cnnbench.campaigns.suite.nodes as s; "
        "print(s.find_suite('smoke')); print(*s.shipped_suites())"
    )
    done = _python(tmp_path, "-c", f"import sys; sys.path.insert(0, 'site'); {code}")
    assert done.returncode == 0, done.stderr
    path, names = done.stdout.splitlines()
    assert path == "site/cnnbench/configs/smoke.yaml"
    assert "leading_indicators" in names.split()


BACKEND = (
    "from setuptools import build_meta as b; import sys; print(getattr(b, sys.argv[1])('out'))"
)


def _built(folder: Path, what: str) -> Path:
    """What the build backend makes in the subfolder `out` of a folder with sources."""
    (folder / "out").mkdir(exist_ok=True)
    done = finished([sys.executable, "-c", BACKEND, what], cwd=folder, seconds=300)
    return folder / "out" / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> tuple[Path, Path]:
    """A clone with products of tests and builds, and the content of its source distribution. Both
    are not to be changed.
    """
    if not (ROOT / ".git").exists() or importlib.util.find_spec("setuptools") is None:
        pytest.skip("needs a checkout of git, and setuptools")
    clone, place = tmp_path_factory.mktemp("clone"), tmp_path_factory.mktemp("sdist")
    listed = finished(["git", "ls-files", "-z"], cwd=ROOT).stdout.split("\0")
    for name in filter(None, listed):
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, clone / name)
    author = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    remote = ["remote", "add", "origin", "git@example.org:owner/cnnbench.git"]
    for words in (["init", "-q"], remote, ["add", "."], [*author, "commit", "-q", "-m", "x"]):
        finished(["git", *words], cwd=clone)
    for name in (
        "tests/helpers/__pycache__/x.pyc",
        "cnnbench/base/x.pyo",
        ".hypothesis/x",
        "dist/x",
    ):
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / name).touch()
    with tarfile.open(_built(clone, "build_sdist")) as archive:
        archive.extractall(place)
    (content,) = place.iterdir()
    return clone, content


@pytest.mark.slow
def test_a_source_distribution_has_all_committed_files_and_no_products(sources):
    """So also the helpers and data of tests, the scripts and the changelog."""
    clone, content = sources
    committed = {*finished(["git", "ls-files", "-z"], cwd=clone).stdout.split("\0")} - {""}
    found = {str(path.relative_to(content)) for path in content.rglob("*") if path.is_file()}
    made = {name for name in found if name.startswith("cnnbench.egg-info/")}
    made |= {"PKG-INFO", "setup.cfg", "cnnbench/commit.txt"}
    assert (committed - found, found - made - committed) == (set(), set())
    for name in committed:
        assert (content / name).read_bytes() == (clone / name).read_bytes(), name
        assert os.access(content / name, os.X_OK) == os.access(clone / name, os.X_OK), name


@pytest.mark.slow
def test_a_wheel_of_a_source_distribution_is_that_of_the_checkout(sources, tmp_path):
    clone, _ = sources
    copies = [shutil.copytree(folder, tmp_path / folder.name) for folder in sources]
    wheels = [_built(folder, "build_wheel") for folder in copies]
    contents = []
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if not name.endswith("/RECORD")]
            contents.append({name: archive.read(name) for name in names})
    assert contents[0].keys() == contents[1].keys()
    assert contents[0] == contents[1]
    head = finished(["git", "rev-parse", "HEAD"], cwd=clone).stdout.strip()
    (metadata,) = (text for name, text in contents[0].items() if name.endswith("/METADATA"))
    picture = f"https://example.org/owner/cnnbench/raw/{head}/docs/pictures/comment.png"
    assert picture in metadata.decode()
    assert not [name for name in contents[0] if name.endswith((".png", "CHANGELOG.md"))]


@pytest.mark.slow
def test_tests_in_a_source_distribution_find_their_helpers(sources, tmp_path):
    content = shutil.copytree(sources[1], tmp_path / "content")
    files = ("tests/base/text/test_escape.py", "tests/cli/commands/test_gate_in_ci.py")
    command = [sys.executable, "-m", "pytest", "-q", "-x", *files, "-k", "escape or not_blame"]
    done = finished(command, None, cwd=content, seconds=250)
    assert done.returncode == 0, done.stdout
    assert "skipped" not in done.stdout.splitlines()[-1]
