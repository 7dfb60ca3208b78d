"""A driver that shows everything Spark shows of a job: `python -m tests.spark.secret_job JSON`.

The JSON has folder, literal (options with secrets in them) and reference (options that refer to
secrets). The job reads a batch with the former, copies a stream with the latter, and fails with
both. Plans, errors and pages of the UI go to stdout, Spark's log at level INFO to stderr; the event
log and the checkpoint go to the folder.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request


def show(text: object) -> None:
    sys.stdout.write(f"{text}\n")


def main() -> None:
    from strandlog.spark import session

    job = json.loads(sys.argv[1])
    folder, literal, reference = job["folder"], job["literal"], job["reference"]
    os.makedirs(f"{folder}/events")
    conf = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{folder}/events",
        "spark.eventLog.compress": "false",
        "spark.ui.port": "0",
    }
    spark = session("local[2]", conf, quiet=True, report="off")
    spark.sparkContext.setLogLevel("INFO")
    rows = spark.read.format("strandlog").options(**literal, subscribe="in").load()
    for mode in ("extended", "formatted", "cost"):
        rows.explain(mode)
    rows.createOrReplaceTempView("rows")
    spark.sql("DESCRIBE EXTENDED rows").show(100, truncate=False)
    rows.select("value").write.format("strandlog").mode("append").options(
        **literal, topic="batch"
    ).save()
    query = (
        spark.readStream.format("strandlog")
        .options(**reference, subscribe="in", startingOffsets="earliest")
        .load()
        .select("value")
        .writeStream.format("strandlog")
        .options(**reference, topic="out", checkpointLocation=f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    query.explain(True)
    show(query.lastProgress)
    for options in (literal, reference):
        try:
            spark.read.format("strandlog").options(**options, subscribe="missing").load().collect()
        except Exception as error:  # noqa: BLE001 - to be shown
            show(repr(error) + str(error))
    context = spark.sparkContext
    api = f"/api/v1/applications/{context.applicationId}"
    for page in ("/SQL/", "/StreamingQuery/", "/environment/", f"{api}/sql?planDescription=true"):
        with urllib.request.urlopen(f"{context.uiWebUrl}{page}") as response:
            show(response.read().decode())
    spark.stop()


if __name__ == "__main__":
    main()
