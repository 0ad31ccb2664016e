"""Where a request goes: pure policies over what is known of the replicas."""

from openloop.routing.blocks import Blocks, read_events, token_names
from openloop.routing.index import ENTRIES, find, find_home, forget, learn, learn_home, look, make_index
from openloop.routing.policies import ROUTING, read_routing
from openloop.routing.policy import ASK, NOBODY, VIEW, Policy
from openloop.routing.router import CHUNK_TOKENS, Routed, Router, prefix_names, replay, session_name, start_memory

__all__ = [
    "ASK",
    "CHUNK_TOKENS",
    "ENTRIES",
    "NOBODY",
    "ROUTING",
    "VIEW",
    "Blocks",
    "Policy",
    "Routed",
    "Router",
    "find",
    "find_home",
    "forget",
    "learn",
    "learn_home",
    "look",
    "make_index",
    "prefix_names",
    "read_events",
    "read_routing",
    "replay",
    "session_name",
    "start_memory",
    "token_names",
]
