"""Settings for users, SASL and bearer tokens. A setting that exists in Kafka has the same name and,
except sasl.enabled.mechanisms, the same default.

The token settings apply to OAUTHBEARER on Kafka listeners, to HTTP and to gRPC. No setting in this
module can be changed at run time, so that no client can weaken the authentication of others.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from strandlog.config.authentication import is_loopback
from strandlog.config.setting import MAX_INT, MAX_LONG, setting
from strandlog.config.tables.client import OAUTHBEARER, PLAIN, SCRAM_SHA_256, SCRAM_SHA_512
from strandlog.config.tables.logins import LoginSettings
from strandlog.errors import HIDDEN, InvalidSettingError

JWKS_URL = "sasl.oauthbearer.jwks.endpoint.url"
MECHANISMS = (SCRAM_SHA_256, SCRAM_SHA_512, PLAIN, OAUTHBEARER)


@dataclass(kw_only=True, repr=False, eq=False)
class AuthenticationSettings(LoginSettings):
    """The part of `BrokerSettings` that decides how clients authenticate, and limits logins."""

    sasl_enabled_mechanisms: tuple[str, ...] = setting(
        kind="list",
        default=(SCRAM_SHA_256, SCRAM_SHA_512),
        choices=MECHANISMS,
        dynamic=False,
        help=(
            "SASL mechanisms that listeners with SASL accept. PLAIN and OAUTHBEARER send the "
            "password or token to the broker, so use them only with TLS. OAUTHBEARER requires "
            "sasl.oauthbearer.jwks.endpoint.url. Kafka's default is GSSAPI, which is not supported."
        ),
    )
    connections_max_reauth_ms: int = setting(
        kind="ms",
        default=0,
        minimum=0,
        maximum=MAX_LONG,
        dynamic=False,
        help=(
            "Maximum validity of a SASL login; after that, the client must re-authenticate on the "
            "same connection. 0: no limit, except the expiry of a token."
        ),
    )
    sasl_server_max_receive_size: int = setting(
        kind="bytes",
        default=512 * 1024,
        minimum=1024,
        maximum=MAX_INT,
        dynamic=False,
        help=(
            "Maximum size of a request before the client has authenticated; a connection that "
            "announces a larger request is closed."
        ),
    )
    connection_failed_authentication_delay_ms: int = setting(
        kind="ms",
        default=100,
        minimum=0,
        maximum=60_000,
        dynamic=False,
        help="Delay before the response to a failed login, which slows down password guessing.",
    )
    users_max_count: int = setting(
        kind="int",
        default=10_000,
        minimum=1,
        maximum=MAX_INT,
        dynamic=False,
        help="Maximum number of users with a password; creating more fails.",
    )
    max_user_changes_per_request: int = setting(
        kind="int",
        default=100,
        minimum=1,
        maximum=MAX_INT,
        dynamic=False,
        help=(
            "Maximum number of credentials that one request may change; a request with more fails. "
            "All of them are changed in one step of the event loop."
        ),
    )
    sasl_oauthbearer_jwks_endpoint_url: str = setting(
        kind="text",
        default="",
        dynamic=False,
        help=(
            "URL of the JWKS document with the public keys of the token provider: https:// or "
            "file:// (http:// only on the same machine). The certificate of an HTTPS server is "
            "verified with the system's CAs, or with the CAs in the file that the environment "
            "variable SSL_CERT_FILE names. Empty: tokens are not accepted."
        ),
    )
    sasl_oauthbearer_expected_audience: str = setting(
        kind="text",
        default="",
        dynamic=False,
        help=(
            "Accepted audiences (aud), separated by commas; a token must have at least one of "
            "them. Empty: any."
        ),
    )
    sasl_oauthbearer_expected_issuer: str = setting(
        kind="text",
        default="",
        dynamic=False,
        help="Issuer (iss) that tokens must have. Empty: any.",
    )
    sasl_oauthbearer_sub_claim_name: str = setting(
        kind="text",
        default="sub",
        dynamic=False,
        help="Token claim that contains the name of the principal.",
    )
    sasl_oauthbearer_clock_skew_seconds: int = setting(
        kind="int",
        default=30,
        minimum=0,
        maximum=3600,
        dynamic=False,
        help=(
            "Maximum time that the token provider's clock may be ahead of the broker's. No "
            "token is accepted after its expiry."
        ),
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = setting(
        kind="ms",
        default=3_600_000,
        minimum=1000,
        maximum=MAX_INT,
        dynamic=False,
        help=(
            "Interval at which the keys are reloaded; a file is read at least once a minute. A "
            "token with an unknown key causes an earlier reload, at most every 10 seconds."
        ),
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: int = setting(
        kind="ms",
        default=100,
        minimum=1,
        maximum=MAX_INT,
        dynamic=False,
        help="Delay after the first failure to load the keys; doubles with each further failure.",
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: int = setting(
        kind="ms",
        default=10_000,
        minimum=1,
        maximum=MAX_INT,
        dynamic=False,
        help="Maximum delay after a failure to load the keys.",
    )

    def jwks_address(self) -> SplitResult | None:
        """Return the parsed JWKS URL, or None if tokens are not accepted. Raise
        `InvalidSettingError` if the URL is invalid or not allowed."""
        url = self.sasl_oauthbearer_jwks_endpoint_url
        if not url and OAUTHBEARER in self.sasl_enabled_mechanisms:
            raise InvalidSettingError(JWKS_URL, url, f"{OAUTHBEARER} requires a URL")
        if not url:
            return None
        try:
            parts = urlsplit(url)
            host, user = parts.hostname or "", parts.username
        except ValueError as error:
            raise InvalidSettingError(JWKS_URL, url, "it is not a valid URL") from error
        if user is not None:
            raise InvalidSettingError(JWKS_URL, HIDDEN, "it must not contain a user or password")
        is_file = parts.scheme == "file" and host in ("", "localhost") and bool(parts.path)
        is_web = bool(host) and (parts.scheme == "https" or _is_local(parts.scheme, host))
        if not is_file and not is_web:
            raise InvalidSettingError(
                JWKS_URL,
                url,
                "expected https:// or file://; http:// is allowed only on the same machine, "
                "because others on the network could replace the keys",
            )
        return parts

    @property
    def token_audiences(self) -> list[str]:
        """The accepted audiences; a token must have at least one of them. Empty: any."""
        names = self.sasl_oauthbearer_expected_audience.split(",")
        return [name.strip() for name in names if name.strip()]


def _is_local(scheme: str, host: str) -> bool:
    return scheme == "http" and is_loopback(host)
