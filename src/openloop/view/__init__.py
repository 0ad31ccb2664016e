"""A local page over all runs and frontiers in a folder."""

from openloop.view.server import ViewServer

__all__ = ["ViewServer"]
