"""Facts are plain and never empty: versions, the commit, speed variables and never a secret.

Tests cnnbench/machine/facts.py and cnnbench/version.py.
"""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from cnnbench import version
from cnnbench.machine import facts as software
from cnnbench.machine.cpu import Host, read_facts
from cnnbench.machine.facts import collect


def test_loaded_tensorflow_tells_its_build():
    import tensorflow as tf

    facts = software.tensorflow_build_facts(Host(modules={"tensorflow": tf}))
    assert facts["tensorflow_version"] == tf.__version__
    assert facts["tensorflow_cuda_build"] in (True, False)
    assert software.tensorflow_build_facts(Host(modules={})) == {}


def test_threads_are_a_fact_only_when_set():
    threading = SimpleNamespace(
        get_intra_op_parallelism_threads=lambda: 3, get_inter_op_parallelism_threads=lambda: 0
    )
    config = SimpleNamespace(threading=threading)
    host = Host(modules={"tensorflow": SimpleNamespace(config=config)})
    assert software.tensorflow_thread_counts(host) == {
        "intra_op_threads": 3,
        "inter_op_threads": None,
    }
    assert software.tensorflow_thread_counts(Host(modules={})) == {}


@pytest.mark.parametrize(
    ("package", "keras"),
    [
        ("tensorflow", {"keras": "3.12"}),
        ("tensorflow-cpu", {}),
        ("tf-nightly", {"keras-nightly": "3.12"}),
    ],
)
def test_package_that_tensorflow_came_in(package, keras, monkeypatch):
    versions = {package: "2.21.0", "numpy": "2.0", **keras}
    monkeypatch.setattr(software, "_package_version", versions.get)
    facts = software.package_versions(Host())
    assert facts["tensorflow_package"] == package
    assert facts["tensorflow_version"] == "2.21.0"
    assert facts["keras_version"] == ("3.12" if keras else None)


@pytest.fixture
def installed(monkeypatch):
    """installed(FOLDER): moves cnnbench into it; returns one of its files."""

    def install(folder):
        source = folder / "cnnbench" / "__init__.py"
        source.parent.mkdir(parents=True)
        source.write_text("")
        monkeypatch.setattr(version, "__file__", str(source))
        return source

    return install


def test_commit_of_a_checkout(tmp_path, installed, git):
    source = installed(tmp_path)
    assert not any(software.cnnbench_commit(Host()).values())
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "x")
    clean = software.cnnbench_commit(Host())
    assert len(clean["git_commit"]) == 40
    assert clean["git_dirty"] is False
    assert (clean["git_changes"], clean["git_unknown"]) == (None, None)
    digests = set()
    for text in ("changed = 1", "changed = 2", "changed = 1"):
        source.write_text(text)
        facts = software.cnnbench_commit(Host())
        assert (facts["git_commit"], facts["git_dirty"]) == (clean["git_commit"], True)
        digests.add(facts["git_changes"])
    assert len(digests) == 2


def test_repository_around_an_installed_package_is_not_ours(tmp_path, installed, git):
    git(tmp_path, "init", "-q")
    installed(tmp_path / "venv" / "site-packages")
    assert not any(software.cnnbench_commit(Host()).values())


def test_an_installed_package_knows_the_commit_from_which_it_was_built(tmp_path, installed):
    file = installed(tmp_path / "site-packages").with_name("commit.txt")
    for text, dirty in (("c" * 40, False), ("c" * 40 + "-dirty", True)):
        file.write_text(f"{text}\n")
        facts = software.cnnbench_commit(Host())
        assert (facts["git_commit"], facts["git_dirty"]) == ("c" * 40, dirty)


SPEED = (
    *("TF_ENABLE_ONEDNN_OPTS", "TF_XLA_FLAGS", "TF_GPU_THREAD_MODE", "XLA_FLAGS", "NCCL_ALGO"),
    *("OMP_NUM_THREADS", "KMP_BLOCKTIME", "CUDA_VISIBLE_DEVICES", "NVIDIA_TF32_OVERRIDE"),
    *("LD_PRELOAD", "HOROVOD_FUSION_THRESHOLD", "OMPI_COMM_WORLD_SIZE", "OMPI_MCA_btl"),
)
OTHERS = (
    *("HOME", "AWS_SECRET_ACCESS_KEY", "TF_VAR_db_password", "TF_TOKEN_app_terraform_io"),
    *("NVIDIA_API_KEY", "NCCL_SECRET_KEY", "OMP_AUTH", "TF_USE_TOKEN"),
    *("OMPI_MCA_orte_precondition_transports", "HOROVOD_SECRET_KEY", "OMPI_MCA_some_token"),
)


CACHE = "--tf_xla_persistent_cache_directory=/tmp/cache"


@pytest.mark.parametrize(
    ("environ", "facts"),
    [
        (dict.fromkeys((*SPEED, *OTHERS), "1"), {f"env_{name}": "1" for name in SPEED}),
        ({"TF_XLA_FLAGS": f"--jit {CACHE}"}, {"env_TF_XLA_FLAGS": "--jit"}),
        ({"TF_XLA_FLAGS": CACHE}, {}),
        ({"XLA_FLAGS": "--a\n  --b"}, {"env_XLA_FLAGS": "--a --b"}),
        ({"OMP_PLACES": "x" * 5000}, {"env_OMP_PLACES": "x" * 1000}),
        ({"TF_XLA_FLAGS": "", "MY_TF_ENABLE_X": "1"}, {"env_TF_XLA_FLAGS": ""}),
    ],
)
def test_only_what_changes_speed_is_a_fact_in_one_short_line(environ, facts):
    assert software.environment_facts(Host(environ=environ)) == facts


def test_facts_of_this_machine_are_plain_and_never_empty():
    facts = collect()
    for name in ("hostname", "platform", "python_version", "tensorflow_version", "logical_cpus"):
        assert name in facts
    assert facts["cnnbench_version"] == version.__version__
    assert facts["logical_cpus"] >= 1
    json.dumps(facts, allow_nan=False)
    for name, value in facts.items():
        assert type(value) in (str, int, float, bool, list), name
        assert value not in ("", []), name
        if isinstance(value, list):
            assert all(isinstance(item, str) and item for item in value), name


def test_machine_that_tells_nothing_raises_nothing(machine):
    facts = collect(machine.host)
    assert "cgroup_cpu_limit" not in facts
    assert "gpu_names" not in facts
    assert not any(name.startswith("env_") for name in facts)


def test_files_full_of_nonsense_raise_nothing(machine):
    for path in ("proc/cpuinfo", "proc/meminfo", "proc/self/cgroup", "sys/fs/cgroup/cpu.max"):
        machine.put(path, "")
        (machine.root / path).write_bytes(b"\xff:\x00::\n:\n\n 0 0\nmax max")
    assert "hostname" in collect(machine.host)


def test_group_that_fails_costs_only_its_own_facts(machine):
    def broken(host):
        raise RuntimeError("no")

    def half(host):
        return {"a": 1, "b": None, "c": "", "d": [], "e": False, "f": 0}

    assert read_facts((broken, half), machine.host) == {"a": 1, "e": False, "f": 0}
