"""Settings for client quotas. A setting that exists in Kafka has the same name."""

from __future__ import annotations

from dataclasses import dataclass

from strandlog.config.setting import MAX_INT, setting

SAMPLES_HELP = "A rate covers this many samples, including the current one."


@dataclass(kw_only=True, init=False, repr=False, eq=False)
class QuotaSettings:
    """The part of `BrokerSettings` that client quotas use."""

    quota_window_num: int = setting(
        kind="int",
        default=11,
        minimum=2,
        maximum=1000,
        dynamic=False,
        help=f"Number of samples for byte, request-time and connection quotas. {SAMPLES_HELP}",
    )
    quota_window_size_seconds: int = setting(
        kind="int",
        default=1,
        minimum=1,
        maximum=3600,
        dynamic=False,
        help="Length of a sample for byte, request-time and connection quotas, in seconds.",
    )
    controller_quota_window_num: int = setting(
        kind="int",
        default=11,
        minimum=2,
        maximum=1000,
        dynamic=False,
        help=f"Number of samples for controller_mutation_rate. {SAMPLES_HELP}",
    )
    controller_quota_window_size_seconds: int = setting(
        kind="int",
        default=1,
        minimum=1,
        maximum=3600,
        dynamic=False,
        help=(
            "Length of a sample for controller_mutation_rate, in seconds. A client may use the "
            "unused allowance of all samples in one burst."
        ),
    )
    client_quotas_max_count: int = setting(
        kind="int",
        default=10_000,
        minimum=1,
        maximum=MAX_INT,
        dynamic=False,
        help="Maximum number of client quotas; setting more fails. All are kept in memory.",
    )
    quota_sensors_max_count: int = setting(
        kind="int",
        default=20_000,
        minimum=4,
        maximum=MAX_INT,
        dynamic=False,
        help=(
            "Maximum number of users, client ids and addresses that are measured separately for "
            "each kind of quota; one user may account for up to a quarter of them. Idle ones are "
            "forgotten; above the maximum, further ones share one allowance per quota."
        ),
    )
