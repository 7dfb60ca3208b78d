"""Protobuf schemas: .proto files, their compilation, descriptors and text."""
