"""Live traffic through a recording, routing proxy."""

from openloop.proxy.config import ProxySpec, ReplicaSpec, read_proxy
from openloop.proxy.server import Proxy, serve_proxy

__all__ = ["Proxy", "ProxySpec", "ReplicaSpec", "read_proxy", "serve_proxy"]
