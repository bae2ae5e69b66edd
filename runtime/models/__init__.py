"""Models: one decoder, and the families that are configurations of it.

ModelConfig    what a model is, from its config.json          config.py, families.py, rope.py
load_decoder   from a source's tensors to a running model     weights.py
Decoder        tokens and KV memory in, logits out            decoder.py
"""

from .config import LayerConfig, ModelConfig
from .decoder import Decoder
from .weights import load_decoder

__all__ = ["Decoder", "LayerConfig", "ModelConfig", "load_decoder"]
