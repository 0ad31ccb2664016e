"""The built-in OpenAI-compatible endpoint, which keeps the truth about what it did."""

from openloop.serve.answers import Behaviour
from openloop.serve.endpoint import Endpoint
from openloop.serve.engine import ENGINES, Engine, EngineSpec, Slots, read_engine

__all__ = ["ENGINES", "Behaviour", "Endpoint", "Engine", "EngineSpec", "Slots", "read_engine"]
