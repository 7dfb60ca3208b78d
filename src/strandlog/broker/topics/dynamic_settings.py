"""Broker settings that clients can change while the broker runs.

As in Kafka, a change applies to one of two layers, `node` or `cluster`. The value of a setting
comes from the first of these layers that contains one:

    node       AlterConfigs on broker "0"
    cluster    AlterConfigs on broker "", the default for all brokers
    static     file, environment and options that the broker was started with
    built in   the default of the setting

`DynamicSettings` validates changes and merges the layers; the catalog stores `node` and `cluster`
in `topics.json`, so changes survive a restart. `apply` writes the result into the `BrokerSettings`
that all parts of the broker share. The broker reads settings marked as `dynamic` whenever it needs
them; changes to any other setting are rejected, because the broker may read it only at start-up.
Listeners, TLS, logins and secrets are never dynamic: a client that may alter settings must not
choose files, addresses or credentials for the broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from strandlog.config.setting import Setting, Value
from strandlog.config.tables.broker import BROKER_SETTINGS, BrokerSettings
from strandlog.errors import HIDDEN, SettingError, is_secret_name

Layer = Literal["node", "cluster"]
LAYERS: tuple[Layer, ...] = get_args(Layer)  # highest precedence first
Layers = Mapping[Layer, Mapping[str, Value]]
AT_START_UP = "it is only read at start-up; restart to change it"


class DynamicSettings:
    """The two dynamic layers, and the broker settings that they override."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self._static = dict(settings.explicit)
        self._layers: Layers = {layer: {} for layer in LAYERS}

    def load(self, document: Mapping[str, Mapping[str, str]]) -> list[str]:
        """Load the layers from a document. Return a problem for each value that this version does
        not accept; such a value has no effect and is dropped."""
        problems: list[str] = []
        layers: dict[Layer, dict[str, Value]] = {layer: {} for layer in LAYERS}
        for layer in LAYERS:
            for name, raw in document.get(layer, {}).items():
                try:
                    layers[layer][name] = _parsed(BROKER_SETTINGS[name], raw)
                except SettingError as error:
                    shown = HIDDEN if is_secret_name(name) else raw
                    problems.append(f"the dynamic setting {name}={shown} has no effect: {error}")
        self.apply(layers)
        return problems

    @property
    def layers(self) -> Layers:
        """The values that clients set, by layer."""
        return self._layers

    def static_value(self, name: str) -> Value | None:
        """Return the value that the broker was started with; None if it was not set."""
        return self._static.get(name)

    def value_below(self, layer: Layer, name: str) -> Value:
        """Return the value of a setting, considering only `layer` and the layers below it."""
        for each in LAYERS[LAYERS.index(layer) :]:
            if name in self._layers[each]:
                return self._layers[each][name]
        return self._static.get(name, BROKER_SETTINGS[name].default)

    def with_changes(self, layer: Layer, changes: Mapping[str, object | None]) -> Layers:
        """Validate a change and return the resulting layers; None removes a value."""
        values = dict(self._layers[layer])
        for name, raw in changes.items():
            row = BROKER_SETTINGS[name]
            if raw is None and row.is_dynamic:
                values.pop(name, None)
            else:
                values[name] = _parsed(row, raw)
        return {**self._layers, layer: values}

    def apply(self, layers: Layers) -> None:
        """Replace the layers and apply their values to the broker."""
        self._layers = layers
        merged = dict(self._static)
        for layer in reversed(LAYERS):
            merged |= layers[layer]
        self._settings.update(merged)


def _parsed(row: Setting, raw: object) -> Value:
    if not row.is_dynamic:
        raise row.invalid(raw, AT_START_UP)
    return row.parse(raw)


def layers_document(layers: Layers) -> dict[str, dict[str, str]]:
    """Return the layers that have values, in the format of the file."""
    return {
        layer: {name: BROKER_SETTINGS[name].format(value) for name, value in values.items()}
        for layer, values in layers.items()
        if values
    }
