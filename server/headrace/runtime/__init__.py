"""The plugin SDK: devices, networks, requests and executors. Imports no gRPC."""
