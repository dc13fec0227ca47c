from __future__ import annotations

import os
import sys

import pytest

from cnnbench.run.runtime.native_log import without_info_lines


def write(text):
    os.write(2, text.encode())


def test_informational_lines_are_dropped_and_others_kept(capfd, monkeypatch):
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    with without_info_lines():
        write("I0000 00:00:1795162120.891879   13488 port.cc:153] oneDNN is on\n")
        write("I0000 00:00:1795162120.891879   13488 cpu_feature_guard.cc:227] This TensorFlow\n")
        write("To enable the following instructions: AVX2 FMA, rebuild TensorFlow with flags.\n")
        write("WARNING: All log messages before absl::InitializeLog() is called\n")
        write("E0000 00:00:1795162120.891879   13488 cuda.cc:1] call to cuInit: (303)\n")
        write("=== Source Location Trace: ===\n")
        write("external/xla/xla/stream_executor/cuda/cuda_status.cc:50\n")
        for library in ("FFT", "DNN", "BLAS"):
            text = f"Unable to register cu{library} factory: Attempting to register factory for "
            write(
                f"E0000 00:00:1796142741.222279   31796 cuda.cc:1] {text}plugin cu{library} when\n"
            )
            write(f"2026-12-01 16:32:21.138821: E external/cuda.cc:477] {text}plugin\n")
        write("E0000 00:00:1795162120.891879   13488 cuda.cc:1] driver too old\n")
        write("W0000 00:00:1795162120.891879   13488 cuda.cc:1] old driver\n")
    write("afterwards\n")
    lines = capfd.readouterr().err.splitlines()
    assert [line[:15] for line in lines] == ["cnnbench: E0000", "cnnbench: W0000", "afterwards"]


def test_what_was_held_back_comes_out_when_the_block_fails(capfd, monkeypatch):
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)

    def load():
        with without_info_lines():
            write("E0000 broken library\n")
            raise ImportError

    with pytest.raises(ImportError):
        load()
    assert capfd.readouterr().err == "cnnbench: E0000 broken library\n"


def test_what_python_has_buffered_keeps_its_place(capfd, monkeypatch):
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    with open(2, "w", buffering=8192, closefd=False) as buffered:
        monkeypatch.setattr(sys, "stderr", buffered)
        buffered.write("before\n")
        with without_info_lines():
            buffered.write("I0000 by Python\n")
            write("W0000 by a library\n")
        assert capfd.readouterr().err == "before\ncnnbench: W0000 by a library\n"


def test_log_level_0_shows_everything(capfd, monkeypatch):
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")
    with without_info_lines():
        write("I0000 details\n")
    assert capfd.readouterr().err == "I0000 details\n"


CU_INIT = "failed call to cuInit: INTERNAL: CUDA error: Failed call to cuInit: "
NO_DRIVER, NO_GPU = (
    f"{CU_INIT}UNKNOWN ERROR (303)",
    f"{CU_INIT}CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected",
)
HEADS = {
    "before InitializeLog": "{}0000 00:00:1763974321.123456   27278 ",
    "after InitializeLog": "{}1129 17:33:25.123456   27278 ",
    "TensorFlow 2.18": "2026-11-29 17:33:25.123456: {} external/local_xla/xla/stream_executor/",
}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_lines_about_a_missing_gpu_are_dropped_in_every_form(capfd, monkeypatch, head):
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    error, info = head.format("E"), head.format("I")
    with without_info_lines():
        write(f"{error}cuda_platform.cc:52] {NO_DRIVER}\n{error}cuda_driver.cc:152] {NO_GPU}\n")
        write(f'{info}cuda_diagnostics.cc:160] env: CUDA_VISIBLE_DEVICES=""\n')
        write(f"{info}cuda_diagnostics.cc:171] hostname: box\n")
        write(f"{info}cuda_diagnostics.cc:183] libcuda reported version is: NOT_FOUND\n")
        # Other errors of the driver are not known to be harmless.
        write(f"{error}cuda_platform.cc:52] {CU_INIT}UNKNOWN ERROR (34)\n")
        write(f"{error}cuda_platform.cc:52] {CU_INIT}CUDA_ERROR_INVALID_DEVICE: no\n")
        write(f"{error}cuda_dnn.cc:1] (303)\n{NO_DRIVER}\n")
    lines = capfd.readouterr().err.splitlines()
    assert [line.rpartition(" ")[2] for line in lines] == ["(34)", "no", "(303)", "(303)"]
