"""ONNX's operator cases, mutated at random, through devices: a fuzzer for plugins.

    python -m headrace.testing.fuzz --device CPU --seconds 600 --seed 7

A device must answer each request rightly, or refuse the network or the request. It must not answer
wrongly, read memory that is not the request's, hang, or end its process.
"""
