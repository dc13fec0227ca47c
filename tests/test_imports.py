"""What is known before TensorFlow is loaded."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
import cnnbench.data, cnnbench.run.driver.learning_rate, cnnbench.models as models
import cnnbench.base.jobs.devices
from cnnbench.variable_mgr import VariableMgrSpec, all_reduce, create, names
from cnnbench.variable_mgr.all_reduce import limits

assert "copy" in all_reduce.names()
assert limits.LIMITS
assert "replicated" in names()
models.declare(models.get_model("resnet152_v2", "imagenet"), 1001)
models.model_names("cifar10")
sys.exit(" ".join({"tensorflow", "numpy"} & set(sys.modules)) or None)
"""


def test_names_models_and_schedules_need_no_tensorflow():
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
