"""Where a broker answers HTTP, asked over Kafka's protocol, so that nobody has to configure it.

strandlog lists the port of its HTTP door among the settings of the broker (`http.port`; -1 when it
is shut). The host is the address at which this client reached the broker: the door is open where
Kafka's is, and neither "every address", which it may listen on, nor a name that was advertised for
Kafka says more. An address is also what its guard against foreign names lets in.

Apache Kafka has no such setting and leaves it out of its answer: then there is no door.
"""

from __future__ import annotations

from strandlog.client.wire.cluster import Cluster, refusal

DESCRIBE_CONFIGS = 32
RESOURCE_BROKER = 4
THIS_BROKER = ""  # for Kafka: what holds for all brokers. A number would have to be the right one
SETTING = "http.port"


def http_address(cluster: Cluster) -> str | None:
    """`http://HOST:PORT` of some broker of the cluster, or None."""
    connection = cluster.any_connection()
    resource = {
        "resource_type": RESOURCE_BROKER,
        "resource_name": THIS_BROKER,
        "configuration_keys": [SETTING],
    }
    [answer] = connection.send(DESCRIBE_CONFIGS, {"resources": [resource]}).parsed().results
    if answer.error_code:
        raise refusal(answer.error_code, "the settings of the broker", answer.error_message)
    told = next((row.value for row in answer.configs if row.name == SETTING), None)
    if told is None or not told.isdigit():
        return None
    host = connection.peer_host
    return f"http://[{host}]:{told}" if ":" in host else f"http://{host}:{told}"
