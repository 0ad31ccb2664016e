"""Whom to ask: a target turns what is asked into bytes, and what came back into what a user got."""

from openloop.load.targets.base import HttpTarget, JsonTarget, Target
from openloop.load.targets.messages import Messages
from openloop.load.targets.openai import Chat, Completions, Embeddings
from openloop.load.targets.plain import Function, Plain, check_template
from openloop.load.targets.responses import Responses
from openloop.said import Outcome

__all__ = [
    "TARGETS",
    "Chat",
    "Completions",
    "Embeddings",
    "Function",
    "HttpTarget",
    "JsonTarget",
    "Messages",
    "Outcome",
    "Plain",
    "Responses",
    "Target",
    "check_template",
]

TARGETS: dict[str, type[Target]] = {
    "chat": Chat,
    "completions": Completions,
    "responses": Responses,
    "messages": Messages,
    "embeddings": Embeddings,
    "http": Plain,
    "python": Function,
}
