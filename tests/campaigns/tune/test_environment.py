"""The environment variables that a search varies, and why some have no effect here."""

from __future__ import annotations

import platform
from ctypes.util import find_library

import pytest

from cnnbench.campaigns.tune import environment
from cnnbench.machine import cpu


@pytest.fixture(autouse=True)
def _fresh() -> None:
    environment.why_unusable.cache_clear()


@pytest.mark.parametrize(
    ("kernels", "values"),
    [("onednn-avx512", ["0"]), ("eigen-avx2", ["0", "1"]), ("library", ["0", "1"])],
)
def test_onednn_gets_the_values_that_differ_from_the_default(
    monkeypatch: pytest.MonkeyPatch, kernels: str, values: list[str]
) -> None:
    monkeypatch.setattr(cpu, "convolution_kernels", lambda host: kernels)
    onednn, allocators = environment.dimensions({})
    assert [one["TF_ENABLE_ONEDNN_OPTS"] for one in onednn] == values
    assert [name for one in allocators for name in one] == [
        *("GLIBC_TUNABLES", "GLIBC_TUNABLES", "LD_PRELOAD", "LD_PRELOAD")
    ]


def test_a_variable_that_the_user_has_set_does_not_vary() -> None:
    assert environment.dimensions({"TF_ENABLE_ONEDNN_OPTS": "1"})[0] == []
    # Both variables select the allocator.
    assert environment.dimensions({"LD_PRELOAD": ""})[1] == []
    assert environment.dimensions({"GLIBC_TUNABLES": ""})[1] == []


KEPT, HUGE = (one["GLIBC_TUNABLES"] for one in environment.dimensions({})[1][:2])


@pytest.mark.parametrize(
    ("libc", "pages", "kept", "huge"),
    [
        (("glibc", "2.36"), "madvise", "", ""),
        (("glibc", "2.36"), "never", "", "no huge pages"),
        (("glibc", "2.31"), "madvise", "", "2.35 or later, and this is 2.31"),
        (("glibc", "2.17"), "madvise", "(glibc) 2.26 or later", "(glibc) 2.26 or later"),
        (("musl", "1.2.5"), "madvise", "(glibc) 2.26 or later", "(glibc) 2.26 or later"),
        (("", ""), "madvise", "(glibc) 2.26 or later", "(glibc) 2.26 or later"),
    ],
)
def test_tunables_need_a_c_library_that_reads_them(
    monkeypatch: pytest.MonkeyPatch, libc: tuple[str, str], pages: str, kept: str, huge: str
) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: libc)
    monkeypatch.setattr(cpu, "os_kernel_settings", lambda host: {"transparent_huge_pages": pages})
    for value, reason in ((KEPT, kept), (HUGE, huge)):
        found = environment.why_unusable("GLIBC_TUNABLES", value)
        assert (reason in found) if reason else not found


def test_the_dynamic_linker_says_which_library_is_installed() -> None:
    libraries = [one["LD_PRELOAD"] for one in environment.dimensions({})[1] if "LD_PRELOAD" in one]
    assert len(libraries) == 2
    for library in libraries:
        reason = environment.why_unusable("LD_PRELOAD", library)
        installed = find_library(library.partition(".")[0].removeprefix("lib")) is not None
        assert (reason == "") is installed
        assert installed or reason.startswith(f"{library} ")
    assert environment.why_unusable("LD_PRELOAD", "libm.so.6") == ""


def test_long_values_have_short_names_in_tables() -> None:
    assert environment.short_text("GLIBC_TUNABLES", KEPT) == "GLIBC_TUNABLES=<kept_memory>"
    assert environment.short_text("num_intra_threads", "2") == "num_intra_threads=2"
