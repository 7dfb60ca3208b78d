"""The messages of proto/strandlog/v1/log.proto, generated (`make grpc`): do not edit them."""
