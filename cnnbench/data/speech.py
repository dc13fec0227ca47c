"""What utterances are made of: samples, frames and letters. No TensorFlow."""

from __future__ import annotations

import itertools

SAMPLE_RATE = 16_000
WINDOW, STRIDE = 320, 160
"""Samples in a frame of a spectrogram, and from one frame to the next: 20 and 10 ms."""

BINS = WINDOW // 2 + 1
"""Frequencies of a spectrogram."""

ALPHABET = b" abcdefghijklmnopqrstuvwxyz'"
"""Letters by number. The blank of CTC comes behind them: class 28."""


def frames_of(samples: int) -> int:
    """Frames of the spectrogram of so many samples."""
    return max(0, 1 + (samples - WINDOW) // STRIDE)


def least_frames(text: bytes) -> int:
    """Frames without which no alignment exists: CTC needs a blank between equal letters."""
    return len(text) + sum(a == b for a, b in itertools.pairwise(text))
