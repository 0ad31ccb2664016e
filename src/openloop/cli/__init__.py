"""The commands: thin, no logic. Heavy rooms are imported inside them, so that `openloop --help` stays quick."""

import io
import os
import sys
from importlib import import_module

import click

from openloop.cli.common import cli, say
from openloop.errors import OpenloopError

__all__ = ["cli", "main"]

# The commands of each file join the group as it is imported.
for _name in ("curve", "exchange", "live", "planning", "reading", "virtual"):
    import_module(f"openloop.cli.{_name}")


def main() -> None:
    """Run a command; anything it refuses is one sentence on standard error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a name that the terminal cannot show must not stop us
    try:
        status = cli.main(standalone_mode=False)
        sys.stdout.flush()
    except OpenloopError as error:
        sys.exit(say(str(error), error.exit_code))
    except click.ClickException as error:
        asked = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "openloop"
        sys.exit(say(f"{error.format_message()} ({asked} --help tells more)", error.exit_code))
    except (click.Abort, KeyboardInterrupt):
        sys.exit(say("interrupted", 130))
    except MemoryError:
        sys.exit(say("there is not enough memory for this; ask for less of it", 2))
    except OSError as error:
        what = error.filename or ("output" if error.errno else "something that is needed")
        sys.exit(say(f"{what} cannot be used: {error.strerror or error}", 2))
    except Exception as error:
        if "OPENLOOP_TRACEBACK" in os.environ:
            raise
        what = f"{type(error).__name__}: {' '.join(str(error).split())}"
        sys.exit(say(f"a defect, please report it: {what} (OPENLOOP_TRACEBACK=1 shows where)", 3))
    sys.exit(status if isinstance(status, int) else 0)
