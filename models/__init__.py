"""The benchmark networks and their registry by name. Importing it does not import TensorFlow."""

from cnnbench.models.declaration import declare
from cnnbench.models.elements import IMAGE, LABEL, Draw, Element
from cnnbench.models.learning_rate import LearningRateSpec
from cnnbench.models.model import Model
from cnnbench.models.network import Network, T
from cnnbench.models.networks.keras import register_keras_model
from cnnbench.models.registry import (
    datasets,
    datasets_of,
    get_model,
    load_plugin,
    model_names,
    register_model,
)
from cnnbench.models.spec import BatchNorm, Initializer, ModelSpec, VariableSpec

__all__ = [
    "IMAGE",
    "LABEL",
    "BatchNorm",
    "Draw",
    "Element",
    "Initializer",
    "LearningRateSpec",
    "Model",
    "ModelSpec",
    "Network",
    "T",
    "VariableSpec",
    "datasets",
    "datasets_of",
    "declare",
    "get_model",
    "load_plugin",
    "model_names",
    "register_keras_model",
    "register_model",
]
