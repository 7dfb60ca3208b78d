"""Cluster id and layout version of a data folder (`meta.properties`).

Kafka writes a UUID as 22 characters of URL-safe base64, and `meta.properties` as lines of
`key=value` with comments. Strandlog's version also records the layout of the folder and ends with a
checksum over the preceding lines. `meta.properties.previous` is a copy, so that a single flipped
bit does not make the entire folder unusable.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from uuid import UUID

from strandlog.errors import CorruptStateError, UnknownLayoutError
from strandlog.record.checksum import crc32c
from strandlog.storage.files import PREVIOUS_SUFFIX, TEMP_SUFFIX, Files
from strandlog.storage.paths import LOCK, META_PROPERTIES, join

LAYOUT_VERSION = "1"
LAYOUT_KEY = "strandlog.layout"
CLUSTER_KEY = "cluster.id"
CHECKSUM_KEY = "strandlog.crc32c"

_COPY = META_PROPERTIES + PREVIOUS_SUFFIX
_HARMLESS_NAMES = {
    LOCK,
    "lost+found",
    META_PROPERTIES + TEMP_SUFFIX,
    _COPY + TEMP_SUFFIX,
}


def base64_id(value: UUID) -> str:
    """Format a UUID as Kafka does."""
    return urlsafe_b64encode(value.bytes).decode().rstrip("=")


def uuid_of(text: str) -> UUID:
    """Parse a UUID in Kafka's format. Raise ValueError if it is invalid."""
    return UUID(bytes=urlsafe_b64decode(text + "=="))


def properties_text(properties: Mapping[str, str]) -> bytes:
    """Return the contents of a properties file, ending with the checksum."""
    body = "".join(f"{key}={value}\n" for key, value in properties.items()).encode()
    return body + f"{CHECKSUM_KEY}={crc32c(body):08x}\n".encode()


def parse_properties(data: bytes) -> dict[str, str]:
    """Parse a properties file. Comments and lines without `=` are ignored."""
    properties: dict[str, str] = {}
    for line in data.decode(errors="replace").splitlines():
        key, separator, value = line.partition("=")
        if separator and not key.lstrip().startswith("#"):
            properties[key.strip()] = value.strip()
    return properties


def _is_intact(data: bytes) -> bool:
    body, separator, checksum = data.rpartition(f"{CHECKSUM_KEY}=".encode())
    return bool(separator) and checksum == f"{crc32c(body):08x}\n".encode()


def _read(files: Files, path: str) -> bytes:
    try:
        return files.read(path)
    except FileNotFoundError:
        return b""


def _intact_text(files: Files, folder: str) -> bytes:
    """Return the contents of the first intact copy, or b"" if there is none."""
    copies = (_read(files, join(folder, name)) for name in (META_PROPERTIES, _COPY))
    return next(filter(_is_intact, copies), b"")


def check_layout(files: Files, folder: str) -> None:
    """Raise an error unless the folder is a strandlog data folder, is empty or does not exist."""
    try:
        names = files.list_dir(folder)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise UnknownLayoutError(folder, "it is a file, not a folder") from None
    if META_PROPERTIES not in names and _COPY not in names:
        foreign = sorted(set(names) - _HARMLESS_NAMES)
        if foreign:
            more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
            raise UnknownLayoutError(folder, f"it holds {foreign[0]!r}{more}; use an empty folder")
        return
    text = _intact_text(files, folder) or _read(files, join(folder, META_PROPERTIES))
    _check_properties(folder, parse_properties(text), is_intact=_is_intact(text))


def _check_properties(folder: str, properties: dict[str, str], *, is_intact: bool) -> None:
    layout = properties.get(LAYOUT_KEY)
    if layout is None and CLUSTER_KEY in properties and CHECKSUM_KEY not in properties:
        raise UnknownLayoutError(folder, "it belongs to Apache Kafka; copy its topics instead")
    if layout is not None and layout != LAYOUT_VERSION:
        raise UnknownLayoutError(
            folder,
            f"it has layout {layout}, but this release reads only layout {LAYOUT_VERSION}; use a "
            "newer release of strandlog",
        )
    if layout is None or CLUSTER_KEY not in properties or not is_intact:
        raise CorruptStateError(
            join(folder, META_PROPERTIES),
            "it and its copy fail their checksums; restore one of them",
        )


def is_identified(files: Files, folder: str) -> bool:
    """Return whether the folder was opened before, that is, whether one of the copies exists."""
    return any(files.exists(join(folder, name)) for name in (META_PROPERTIES, _COPY))


def take_identity(
    files: Files, folder: str, new_uuid: Callable[[], UUID], problems: list[str]
) -> str:
    """Return the cluster id of a folder that passed `check_layout`. A new folder gets a new id.
    Afterwards both copies of `meta.properties` are intact."""
    text = _intact_text(files, folder)
    if not text:
        properties = {
            "version": "1",
            CLUSTER_KEY: base64_id(new_uuid()),
            "node.id": "0",
            "directory.id": base64_id(new_uuid()),
            LAYOUT_KEY: LAYOUT_VERSION,
        }
        text = properties_text(properties)
    for name in (META_PROPERTIES, _COPY):
        path = join(folder, name)
        found = _read(files, path)
        if found != text:
            if found:
                problems.append(f"{path} failed its checksum and was rewritten")
            files.replace(path, text)
    return parse_properties(text)[CLUSTER_KEY]


def read_cluster_id(files: Files, folder: str) -> str:
    """Return the cluster id of a folder that another process may own, or "" if it has none."""
    text = _intact_text(files, folder) or _read(files, join(folder, META_PROPERTIES))
    return parse_properties(text).get(CLUSTER_KEY, "")


def parent_of(path: str) -> str:
    """Return the parent folder."""
    head, slash, _ = path.rstrip("/").rpartition("/")
    return head or slash or "."


def make_durable_folder(files: Files, path: str) -> None:
    """Create a folder and its missing parents durably, unless it holds `meta.properties`."""
    if files.exists(join(path, META_PROPERTIES)):
        return
    missing = [path]
    while not files.exists(parent_of(missing[-1])):
        missing.append(parent_of(missing[-1]))
    files.make_dir(path)
    for made in reversed(missing):
        files.sync_dir(parent_of(made))
