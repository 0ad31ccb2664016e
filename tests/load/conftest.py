"""What several tests of the load engine need."""

import platform
import sys

import pytest

from openloop.load import crew
from openloop.native.kept import PLAIN


@pytest.fixture(params=["machine code", "Python"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers send and read by machine code, where there is any, and otherwise by themselves."""
    if request.param == "Python":
        monkeypatch.setattr(crew, "intake_code", lambda: b"")
    elif sys.platform != "linux" or platform.machine() != "x86_64" or PLAIN:
        pytest.skip("no machine code of ours runs here")
    else:
        assert crew.intake_code()
