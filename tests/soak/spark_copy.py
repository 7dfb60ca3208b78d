"""Copies a topic with Spark until it is killed: the job that the soak of Spark kills.

    python -m tests.soak.spark_copy BOOTSTRAP MASTER CONF CHECKPOINT GUARANTEE OUTPUT

It prints a line when the query has started.
"""

from __future__ import annotations

import json
import os
import sys

from strandlog.spark import session

INPUT = "numbers"


def main(
    bootstrap: str, master: str, conf: str, checkpoint: str, guarantee: str, output: str
) -> None:
    os.setpgid(0, 0)  # the JVM of the driver dies with it
    spark = session(master, json.loads(conf), app_name="copy", quiet=True)
    place = {"bootstrap.servers": bootstrap}
    query = (
        spark.readStream.format("strandlog")
        .options(**place, subscribe=INPUT, startingOffsets="earliest", groupId=output)
        .load()
        .select("key", "value")
        .writeStream.format("strandlog")
        .options(**place, topic=output, deliveryGuarantee=guarantee)
        .option("checkpointLocation", checkpoint)
        .start()
    )
    sys.stdout.write(f"started {query.id}\n")
    sys.stdout.flush()
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
