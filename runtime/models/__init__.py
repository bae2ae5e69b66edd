"""Models: one decoder, and the families that are configurations of it.

ModelConfig    what a model is, from its config.json          config.py, families.py, rope.py
Precision      in how many bits weights are held              precision.py
load_decoder   from a source's tensors to a running model     weights.py, parameters.py
Decoder        tokens and KV memory in, logits out            decoder.py
"""

from .config import LayerConfig, ModelConfig
from .decoder import Decoder
from .precision import Precision, dtype_name
from .weights import load_decoder, weight_bytes

__all__ = [
    "Decoder",
    "LayerConfig",
    "ModelConfig",
    "Precision",
    "dtype_name",
    "load_decoder",
    "weight_bytes",
]
