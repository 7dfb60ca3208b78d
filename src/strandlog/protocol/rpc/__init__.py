"""Code generated from proto/strandlog/v1/log.proto by `make grpc`; do not edit."""
