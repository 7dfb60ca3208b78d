"""What `strandlog serve` does, without the library that parses the rest of the command line.

Loading that library takes longer than starting the broker. So a plain call (`serve [DATA]` with
options out of `PLAIN_OPTIONS`, each with its value, and `PLAIN_FLAGS`) is read here. Anything else,
be it `--help`, an option that is not in the table or a value that does not fit, gives None and is
left to `serve.py`, which knows every option, prints help and says what is wrong.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from strandlog.cli.configuration import CONFIG_FILE_VARIABLE, is_pair, read_configuration
from strandlog.cli.file_limits import fitted, raise_limit, wanted
from strandlog.config.origin import Origin
from strandlog.config.resolve import Chosen
from strandlog.config.setting import Value
from strandlog.config.tables.broker import BrokerSettings
from strandlog.config.tables.server import (
    EVERY_HOST,
    MAX_PORT,
    NOT_EVERY_HOST,
    SERVER_SETTINGS,
    ServerSettings,
)
from strandlog.errors import InvalidSettingError, MissingExtraError

logger = logging.getLogger(__name__)


@dataclass
class ServeArguments:
    """What `serve` was called with; None where nothing was said."""

    data: str | None = None
    host: str | None = None
    port: int | None = None
    advertise: str | None = None
    config: str | None = None
    pairs: list[str] = field(default_factory=list)
    grpc_port: int | None = None
    no_grpc: bool = False
    http_port: int | None = None
    no_http: bool = False


def _plain_port(text: str) -> int:
    # A socket would take 99999 for 34463, without a word.
    if not (text.isascii() and text.isdigit()) or int(text) > MAX_PORT:
        raise ValueError(text)
    return int(text)


# Flag, the attribute that it sets, and how its value is read.
PLAIN_OPTIONS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "--host": ("host", str),
    "--port": ("port", _plain_port),
    "--grpc-port": ("grpc_port", _plain_port),
    "--http-port": ("http_port", _plain_port),
    "--advertise": ("advertise", str),
    "--config": ("config", str),
    "--set": ("pairs", str),
}
PLAIN_FLAGS = {"--no-grpc": "no_grpc", "--no-http": "no_http"}


def parse_plain(words: Sequence[str]) -> ServeArguments | None:
    """What a plain call asks for; None when this is no plain call."""
    arguments = ServeArguments(config=os.environ.get(CONFIG_FILE_VARIABLE) or None)
    rest = iter(words)
    has_data = False
    for word in rest:
        if not word.startswith("-"):
            if has_data or not word:
                return None
            arguments.data, has_data = word, True
            continue
        if word in PLAIN_FLAGS:
            setattr(arguments, PLAIN_FLAGS[word], True)
            continue
        flag, is_joined, value = word.partition("=")
        option = PLAIN_OPTIONS.get(flag)
        given = value if is_joined else next(rest, None)
        if option is None or given is None or (not is_joined and given.startswith("-")):
            return None
        name, read = option
        try:
            if name == "pairs":
                arguments.pairs.append(given)
            else:
                setattr(arguments, name, read(given))
        except ValueError:
            return None
    return arguments if all(map(is_pair, arguments.pairs)) else None


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > MAX_PORT:
        raise InvalidSettingError("--advertise", text, "expected HOST:PORT")
    if host.strip("[]") in EVERY_HOST:
        raise InvalidSettingError("--advertise", text, NOT_EVERY_HOST)
    return host.strip("[]"), int(port)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
    http = next((word for word in line.split() if word.startswith("http=")), None)
    if http is not None and sys.stderr.isatty():
        address = http.removeprefix("http=")
        sys.stderr.write(f"look at it: http://{address}/   stop it: Ctrl-C\n")


def _within_descriptors(settings: BrokerSettings) -> BrokerSettings:
    """The settings, with limits for which there are file descriptors."""
    allowed = raise_limit(settings)
    found = fitted(settings, allowed)
    if found is not settings:
        logger.warning(
            "%d file descriptors are allowed, %d wanted: the limits are now %d Kafka, %d HTTP and "
            "%d gRPC connections and %d open log files; see 'strandlog doctor'",
            allowed,
            wanted(settings),
            found.max_connections,
            found.http_max_connections,
            found.grpc_max_connections,
            found.log_max_open_files,
        )
    return found


def _port(asked: int | None, configured: int, is_off: bool) -> int | None:
    """The port of a door; None for one that stays shut."""
    port = configured if asked is None else asked
    return None if is_off or port < 0 else port


def _listener(arguments: ServeArguments, server: ServerSettings) -> str | None:
    if arguments.host is None and arguments.port is None:
        return None
    host = server.listen.host if arguments.host is None else arguments.host
    port = server.listen.port if arguments.port is None else arguments.port
    return f"PLAINTEXT://{host}:{port}"


def _said(arguments: ServeArguments, server: ServerSettings) -> dict[str, Chosen]:
    """The settings that the other options and DATA say, and beat."""
    said: dict[str, tuple[Value | None, str]] = {
        "log.dirs": (arguments.data, "DATA"),
        "listeners": (_listener(arguments, server), "--host, --port"),
        "advertised.listeners": (arguments.advertise, "--advertise"),
        "grpc.port": (-1 if arguments.no_grpc else arguments.grpc_port, "--grpc-port"),
        "http.port": (-1 if arguments.no_http else arguments.http_port, "--http-port"),
    }
    return {
        name: Chosen(SERVER_SETTINGS[name], value, Origin("option", where))
        for name, (value, where) in said.items()
        if value is not None
    }


def serve(arguments: ServeArguments) -> None:
    """Serve until SIGTERM or SIGINT."""
    try:
        import uvloop  # noqa: PLC0415 - an extra

        from strandlog.server.app import ServerOptions, run_until_stopped  # noqa: PLC0415 - needs extras
        from strandlog.server.log_limit import limit_repeats  # noqa: PLC0415 - the same
    except ImportError as error:
        raise MissingExtraError("server", error.name or "uvloop") from error
    faulthandler.enable()  # a crash in native code or SIGBUS leaves a stack trace behind
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )
    limit_repeats()
    configuration = read_configuration(arguments.config, arguments.pairs)
    configuration.check()
    for note in configuration.notes:
        logger.warning("%s", note)
    settings = _within_descriptors(configuration.broker_settings())
    server = configuration.server
    assert server is not None, "check() lets nothing else through"
    advertise = arguments.advertise
    options = ServerOptions(
        os.path.abspath(arguments.data or server.data),
        server.listen.host if arguments.host is None else arguments.host,
        server.listen.port if arguments.port is None else arguments.port,
        server.advertised if advertise is None else _address(advertise),
        settings,
        grpc_port=_port(arguments.grpc_port, server.grpc_port, arguments.no_grpc),
        is_grpc_wanted=arguments.grpc_port is not None,
        http_port=_port(arguments.http_port, server.http_port, arguments.no_http),
        is_http_wanted=arguments.http_port is not None,
        http_hosts=server.http_hosts,
        chosen={**configuration.chosen, **_said(arguments, server)},
    )

    uvloop.run(run_until_stopped(options, _say))
