"""The gRPC door: proto/strandlog/v1/log.proto."""
