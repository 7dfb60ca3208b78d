"""Ids and the properties file that carries them, in Kafka's forms.

Kafka writes a UUID as 22 characters of URL-safe base64, and `meta.properties` as lines of
`key=value` with comments.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from uuid import UUID


def base64_id(value: UUID) -> str:
    """A UUID as Kafka prints it."""
    return urlsafe_b64encode(value.bytes).decode().rstrip("=")


def uuid_of(text: str) -> UUID:
    """The UUID that Kafka's form stands for; ValueError when it is none."""
    return UUID(bytes=urlsafe_b64decode(text + "=="))


def properties_text(properties: Mapping[str, str]) -> bytes:
    """The lines of a properties file."""
    return "".join(f"{key}={value}\n" for key, value in properties.items()).encode()


def parse_properties(data: bytes) -> dict[str, str]:
    """What a properties file says. Lines without `=` and comments say nothing."""
    properties: dict[str, str] = {}
    for line in data.decode(errors="replace").splitlines():
        key, separator, value = line.partition("=")
        if separator and not key.lstrip().startswith("#"):
            properties[key.strip()] = value.strip()
    return properties
