"""Small models that the demo, the tests and the benchmarks train."""

from .gpt import GPT, GPTConfig, GPTFirst, GPTLast
from .llama import Llama, LlamaConfig
from .lora import LoraLinear, add_lora

__all__ = ["GPT", "GPTConfig", "GPTFirst", "GPTLast", "Llama", "LlamaConfig", "LoraLinear", "add_lora"]
