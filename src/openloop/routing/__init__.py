"""Where a request goes: pure policies over what is known of the replicas."""

from openloop.routing.index import ENTRIES, find, find_home, forget, learn, learn_home, look, make_index, unlearn
from openloop.routing.policies import ROUTING, LeastRequests, RoundRobin, read_routing
from openloop.routing.policy import FULL, LIMIT, NEVER, Policy, chance, compiled, least, settle
from openloop.routing.router import Replayed, Routed, Router, prefix_names, replay, session_name, start_memory
from openloop.routing.rows import ASK, MEMORY, NOBODY, SEED, VIEW, rows

__all__ = [
    "ASK",
    "ENTRIES",
    "FULL",
    "LIMIT",
    "MEMORY",
    "NEVER",
    "NOBODY",
    "ROUTING",
    "SEED",
    "VIEW",
    "LeastRequests",
    "Policy",
    "Replayed",
    "RoundRobin",
    "Routed",
    "Router",
    "chance",
    "compiled",
    "find",
    "find_home",
    "forget",
    "learn",
    "learn_home",
    "least",
    "look",
    "make_index",
    "prefix_names",
    "read_routing",
    "replay",
    "rows",
    "session_name",
    "settle",
    "start_memory",
    "unlearn",
]
