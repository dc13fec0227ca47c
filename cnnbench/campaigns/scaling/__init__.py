"""Measures how the speed of a job grows with the number of workers, and predicts the growth."""

from __future__ import annotations

from cnnbench.campaigns.scaling.jobs import SCALING, ScalingJobs
from cnnbench.campaigns.scaling.points import STRONG, WEAK, ScalingPoint, scaling_points
from cnnbench.campaigns.scaling.predict import predict_exchange_seconds
from cnnbench.campaigns.scaling.texts import scaling_chart, store_points, table_text

__all__ = [
    "SCALING",
    "STRONG",
    "WEAK",
    "ScalingJobs",
    "ScalingPoint",
    "predict_exchange_seconds",
    "scaling_chart",
    "scaling_points",
    "store_points",
    "table_text",
]
