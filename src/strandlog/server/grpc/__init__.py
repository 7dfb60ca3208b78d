"""The gRPC listener: proto/strandlog/v1/log.proto."""
