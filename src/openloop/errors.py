"""Every way in which openloop refuses, as one tree.

    OpenloopError           a sentence for the user; exit code 2
    ├── RunError            a folder or file that is not a readable run
    ├── RecordError         a row that breaks a rule of the table
    ├── SpecError           text, YAML or JSON that cannot be understood
    └── StorageError        the disk would not take what was to be written

A request that failed is not in this tree: it is a row.
"""


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
