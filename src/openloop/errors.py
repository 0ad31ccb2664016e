"""Every way in which openloop refuses, as one tree. A request that failed is not in it: it is a row."""


class OpenloopError(Exception):
    """One sentence that names the offending value and the fix."""

    exit_code = 2


class RunError(OpenloopError):
    """A folder or file that is not a readable run."""


class RecordError(OpenloopError):
    """A row that breaks a rule of the table."""


class SpecError(OpenloopError):
    """Text, YAML or JSON that cannot be understood."""


class StorageError(OpenloopError):
    """The disk would not take what was to be written."""
