"""Other tools' files to records: a file each, which knows its own by their first bytes."""

from openloop.importers.registry import IMPORTERS, open_any, read_foreign, tool_of

__all__ = ["IMPORTERS", "open_any", "read_foreign", "tool_of"]
