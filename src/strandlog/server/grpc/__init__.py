"""The gRPC listener, which serves proto/strandlog/v1/log.proto."""
