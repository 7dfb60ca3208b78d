"""Key and value formats: JSON, Avro and Protobuf, with or without a schema registry."""
