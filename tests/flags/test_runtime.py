import pytest

from cnnbench.errors import FlagError
from cnnbench.flags import Params, validate


@pytest.mark.parametrize(
    ("changes", "flag", "reason"),
    [
        ({"device": "cpu", "data_format": "NCHW"}, "data_format", "use NHWC or auto"),
        (
            {"per_gpu_thread_count": 3, "gpu_thread_mode": "global"},
            "per_gpu_thread_count",
            "--gpu_thread_mode=gpu_private",
        ),
        ({"gpu_indices": "0,x", "num_gpus": 2}, "gpu_indices", "whole numbers"),
        ({"gpu_indices": "0,-1", "num_gpus": 2}, "gpu_indices", "whole numbers"),
        ({"gpu_indices": "0,", "num_gpus": 2}, "gpu_indices", "whole numbers"),
        ({"gpu_indices": "1,1", "num_gpus": 2}, "gpu_indices", "once"),
        ({"gpu_indices": "0,1,2", "num_gpus": 2}, "gpu_indices", "3 GPUs, but --num_gpus=2"),
    ],
)
def test_refused(changes, flag, reason):
    with pytest.raises(FlagError, match=reason) as caught:
        validate(Params(**changes))
    assert caught.value.flag == flag


@pytest.mark.parametrize(
    "changes",
    [
        {"device": "gpu", "data_format": "NCHW"},
        {"data_format": "NCHW"},
        {"device": "cpu", "data_format": "NHWC", "num_gpus": 4},
        {"per_gpu_thread_count": 3, "gpu_thread_mode": "gpu_shared"},
        {"gpu_indices": "3,1", "num_gpus": 2},
    ],
)
def test_accepted(changes):
    validate(Params(**changes))
