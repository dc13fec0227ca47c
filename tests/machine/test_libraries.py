"""GPU libraries that a process has loaded name their versions; none is loaded for that.

Tests cnnbench/machine/facts.py.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from forked import Forked, cnnbench

from cnnbench.machine.facts import loaded_library_versions

SOURCE = """
#include <cstdlib>
static int answer(int* value, int number) {
  *value = number;
  return std::getenv("FAILING") ? 1 : 0;
}
static const int kCublas[] = {CUBLAS, 1, 0}, kCudnn[] = {9, 19, 0};
extern "C" {
int cublasLtGetProperty(int which, int* value) { return answer(value, kCublas[which]); }
int cudnnGetProperty(int which, int* value) { return answer(value, kCudnn[which]); }
int cudaRuntimeGetVersion(int* value) { return answer(value, 12090); }
int cuDriverGetVersion(int* value) { return answer(value, 13010); }
int ncclGetVersion(int* value) { return answer(value, NCCL); }
// With which TensorFlow's loader and the libraries answer, by loading others.
int cublasGetProperty(int, int*) { std::abort(); }
unsigned long cudnnGetVersion() { std::abort(); }
}
"""
NAMES = (
    *("libcublas.so.12", "libcublasLt.so.12", "libcudnn.so.9", "libcudnn_graph.so.9"),
    *("libnccl.so.2", "libcudart.so.12", "libcuda.so.1"),
)
FACTS = {
    "gpu_driver_cuda": "13.1",
    "loaded_cudart": "12.9",
    "loaded_cublas": "13.1.0",
    "loaded_cudnn": "9.19.0",
    "loaded_nccl": "2.27.7",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with libraries of all names; below it "older", and "empty" without functions."""
    if shutil.which("g++") is None:
        if os.environ.get("CI"):
            raise RuntimeError("the libraries need the C++ compiler g++")
        pytest.skip("the libraries need the C++ compiler g++, which is not installed")
    folder = tmp_path_factory.mktemp("libraries")
    source = folder / "source.cc"
    source.write_text(SOURCE)
    for place, cublas, nccl in ((folder, 13, 22707), (folder / "older", 12, 2804)):
        place.mkdir(exist_ok=True)
        built = place / "built"
        given = ["-shared", "-fPIC", f"-DCUBLAS={cublas}", f"-DNCCL={nccl}"]
        subprocess.run(["g++", *given, source, "-o", built], check=True)
        for name in NAMES:
            shutil.copy(built, place / name)
    empty = folder / "empty"
    empty.mkdir()
    command = ["g++", "-shared", "-x", "c++", os.devnull, "-o", empty / "libnccl.so.2"]
    subprocess.run(command, check=True)
    return folder


TELL = """
import ctypes, json, sys
from cnnbench.machine.facts import with_loaded_libraries

for path in sys.argv[1:]:
    ctypes.CDLL(path)
mapped = open("/proc/self/maps").read()
print(json.dumps(with_loaded_libraries({})))
names = "libcu", "libnccl"
before, after = ({path for path in text.split() if any(one in path for one in names)}
                 for text in (mapped, open("/proc/self/maps").read()))
assert before == after, after - before
"""


@pytest.mark.parametrize(
    ("names", "failing", "facts"),
    [
        (NAMES, None, FACTS),
        (NAMES, "1", {}),
        # Neither tells a version without a further library, which is not loaded.
        (("libcublas.so.12", "libcudnn.so.9"), None, {}),
        (("empty/libnccl.so.2", "libcudart.so.12"), None, {"loaded_cudart": "12.9"}),
        (("older/libnccl.so.2",), None, {"loaded_nccl": "2.8.4"}),
        (
            ("libcublasLt.so.12", "older/libcublasLt.so.12", "libcublas.so.12"),
            *(None, {"loaded_cublas": "13.1.0, 12.1.0"}),
        ),
    ],
)
def test_loaded_libraries_name_their_versions(folder, tmp_path, names, failing, facts):
    out, err = tmp_path / "out", tmp_path / "err"
    variables = {"LD_LIBRARY_PATH": str(folder), "FAILING": failing}
    paths = [folder / name for name in names]
    process = Forked(TELL, paths, out, err, environment=variables)
    assert process.wait(60) == 0, err.read_text()
    assert json.loads(out.read_text()) == facts


def test_a_mapped_file_that_is_no_loaded_library_tells_nothing(folder, machine):
    rows = (f"7f00-7f01 r-xp 00000000 08:01 42 {folder / name}" for name in NAMES)
    machine.put("proc/self/maps", "\n".join(rows))
    assert loaded_library_versions(machine.host) == {}
    assert str(folder) not in Path("/proc/self/maps").read_text()


# Records --------------------------------------------------------------------------------------

MODEL = """
import ctypes, os
from cnnbench.models import LearningRateSpec, Model, register_model

calls = []

def step():
    ctypes.CDLL({library!r})
    calls.append(len(calls))
    if len(calls) == 3:
        {third}

class Loading(Model):
    name, dataset, image_size, batch_size = "loading", "imagenet", 8, 2
    learning_rate = LearningRateSpec(0.1)

    def build(self, net, images):
        return net.logits(net.flatten(images))

    def loss(self, outputs, labels):
        import tensorflow as tf
        tf.numpy_function(step, [], [])
        return super().loss(outputs, labels)

register_model("loading", "imagenet", Loading)
"""
ALGORITHM = """
import ctypes
import tensorflow as tf
from cnnbench.variable_mgr.all_reduce.registry import register

@register("loading")
class Loading:
    def __init__(self, context):
        pass

    def __call__(self, tensors, index):
        ctypes.CDLL({library!r})
        return [tf.add_n(tensors)] * len(tensors)
"""
RUN = ("run", "--model=loading", "--num_batches=4", "--peak_flops=1e12")
REDUCE = ("allreduce", "--all_reduce_spec=loading", "--num_gpus=2", "--sizes=4K", "--num_batches=2")


@pytest.mark.parametrize(
    ("words", "third", "code", "status"),
    [
        ((*RUN, "--num_warmup_batches=0"), "pass", 0, "ok"),
        ((*RUN, "--num_warmup_batches=0"), "raise ValueError", 4, "failed"),
        ((*RUN, "--num_warmup_batches=1"), "os.abort()", 4, "failed"),
        (REDUCE, "", 0, "ok"),
    ],
)
def test_records_name_libraries_that_steps_load(folder, tmp_path, words, third, code, status):
    library = folder / "libcudnn_graph.so.9"
    source = MODEL if third else ALGORITHM
    (tmp_path / "own.py").write_text(source.format(library=str(library), third=third))
    given = [*words, "--plugin=own.py", "--device=cpu", "--result_json=r.json"]
    process = Forked(cnnbench, given, tmp_path / "out", tmp_path / "err", tmp_path)
    assert process.wait(110) == code, (tmp_path / "err").read_text()
    record = json.loads((tmp_path / "r.json").read_text())
    assert (record["status"], record["environment"]["loaded_cudnn"]) == (status, "9.19.0")
