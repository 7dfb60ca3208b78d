"""PySpark over strandlog: the data source comes with the `spark` extra of a later release."""
