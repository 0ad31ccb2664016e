"""Where a target is: its URL, taken apart and looked up."""

import re
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote_plus, urlsplit

from openloop.errors import SpecError


@dataclass(frozen=True)
class Address:
    """A socket address, in plain values that a worker process can be told."""

    family: int
    host: str
    port: int
    name: str = ""  # for TLS; "" without it
    authorities: str = ""  # a file of certificates to trust besides the system's
    insecure: bool = False

    @property
    def where(self) -> tuple[str, int]:
        return self.host, self.port


@dataclass(frozen=True)
class Place:
    """What a URL says."""

    host: str  # as requests name it
    base: str  # path before /v1
    address: Address
    path: str = "/"  # all of it
    query: str = ""  # with its question mark


def shown(url: str) -> str:
    """A URL without what may be secret in it: a password, or a key in its query."""
    return re.sub(r"\?.+", "?...", re.sub(r"(^|//)[^/?]*@", r"\1...@", url), flags=re.DOTALL)


def secrets_of(headers: Mapping[str, str], query: str) -> dict[str, str]:
    """What is sent and is to be written down nowhere, by any name."""
    found = dict(headers)
    for number, (name, told, value) in enumerate(each.partition("=") for each in query[1:].split("&") if each):
        name, value = (name, value) if told else ("key", name)
        found[f"{number} {name}"] = f"{value} {unquote_plus(value)}"
    return found


def find_place(url: str, authorities: str = "", *, insecure: bool = False) -> Place:
    """The place of `url`, which is written with or without /v1 at its end."""
    told = shown(url)
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port
    except ValueError:
        raise SpecError(
            f"{told!r} is no address of a server, or has a port that is none; write http://host:8000"
        ) from None
    if not ((asked := parts.path + parts.query).isascii() and asked.isprintable() and " " not in asked):
        raise SpecError(f"{told!r} has a path or query that is not plain ASCII; write it percent-encoded")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SpecError(f"{told!r} is no address of a server; write it as http://host:8000")
    if "@" in parts.netloc:
        raise SpecError(
            f"{told!r} holds a user or a password, which would not be sent; give it with --key-env or --header"
        )
    tls = parts.scheme == "https"
    look_at_certificates(authorities)
    family, where = _look_up(parts.hostname, port or (443 if tls else 80))
    address = Address(family, where[0], where[1], parts.hostname if tls else "", authorities, insecure)
    base = parts.path.rstrip("/").removesuffix("/v1")
    return Place(parts.netloc, base, address, parts.path or "/", parts.query and f"?{parts.query}")


def look_at_certificates(path: str) -> None:
    if not path:
        return
    if not Path(path).is_file():
        raise SpecError(f"{path} is no file of certificates")
    try:
        ssl.create_default_context(cafile=path)
    except (OSError, ssl.SSLError) as error:
        why = error.reason if isinstance(error, ssl.SSLError) else error.strerror
        raise SpecError(f"{path} holds no certificates that can be read ({why}); give a PEM file of them") from None


def _look_up(host: str, port: int) -> tuple[int, tuple[str, int]]:
    """Of several addresses the first that can be connected to, or else the first: then requests will tell why not."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no name of a host"
        raise SpecError(f"{host!r} cannot be found: {why}; check the name in --target") from None
    for family, kind, _, _, where in found:
        with socket.socket(family, kind) as probe:
            probe.settimeout(1.0)
            if probe.connect_ex(where) == 0:
                return int(family), (str(where[0]), int(where[1]))
    return int(found[0][0]), (str(found[0][4][0]), int(found[0][4][1]))


def tls_context(address: Address) -> ssl.SSLContext | None:
    if not address.name:
        return None
    context = ssl.create_default_context()
    if address.authorities:
        context.load_verify_locations(address.authorities)
    if address.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
