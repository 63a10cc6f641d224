"""ONNX's backend test cases, run through a device in processes of their own.

    python -m headrace.testing.backend_cases --device CPU

runs all of them and reports the result of each. ``--expectations DIR`` compares them with the
expected results.
"""
