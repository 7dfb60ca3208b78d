"""The name under which Spark finds strandlog by itself: it imports modules that begin with
`pyspark_`.

Spark looks for a class `DefaultSource` here and passes by while there is none.
"""
