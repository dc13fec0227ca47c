from __future__ import annotations

import os

import pytest

from cnnbench.run.runtime.loading import without_info_lines


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


def test_log_level_0_shows_everything(capfd, monkeypatch):
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")
    with without_info_lines():
        write("I0000 details\n")
    assert capfd.readouterr().err == "I0000 details\n"
