"""Networks of many equal blocks, cut to a few narrow ones and a small image."""

from __future__ import annotations

from cnnbench.models import Model
from cnnbench.models.efficientnet import B0
from cnnbench.models.regnet import Line

CUT = {
    "mobilenet": {"image_size": 32, "stages": ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 1, 2))},
    "efficientnet_b0": {"image_size": 32, "stages": B0[:3]},
    "regnety_400mf": {"image_size": 32, "line": Line(4, 48, 120.0, 2.09, 8, 4)},
    "convnext_tiny": {"image_size": 32, "blocks": (1, 2, 1), "widths": (48, 96, 192)},
    "vit_b16": {"image_size": 32, "width": 192, "layers": 2, "heads": 3},
    "swin_t": {"image_size": 32, "window": 2, "width": 48, "layers": (2, 2), "heads": (2, 4)},
}


def cut(model: Model) -> Model:
    """The model itself, smaller if it is one of those."""
    for attribute, value in CUT.get(model.name, {}).items():
        setattr(model, attribute, value)
    return model
