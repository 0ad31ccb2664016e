"""The same examples on every machine; no time limits, for a first call may compile."""

from hypothesis import settings

settings.register_profile("openloop", deadline=None, derandomize=True, database=None)
settings.load_profile("openloop")
