"""From one operating point to the curve: sweeps over offered load, and the knee with its interval."""

from openloop.frontier.folder import Frontier, open_frontier
from openloop.frontier.knee import Knee
from openloop.frontier.measure import sweep
from openloop.frontier.point import Point

__all__ = ["Frontier", "Knee", "Point", "open_frontier", "sweep"]
