"""KServe's SDK with an ONNX network: kserve_server.py GRPC_PORT HTTP_PORT MODEL [CONFIGURATION].

CONFIGURATION is a file with a reply to ModelConfig, which perf_analyzer asks for, and KServe's SDK
does not know.

Runs in an environment of its own, which has KServe's SDK and nothing of headrace.
"""

from __future__ import annotations

import sys
from pathlib import Path

import grpc
import onnxruntime
from kserve import InferOutput, InferRequest, InferResponse, Model, ModelServer


class Network(Model):
    def __init__(self, path: str) -> None:
        super().__init__("tiny")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # a tiny network gains nothing by more
        self.session = onnxruntime.InferenceSession(path, options)
        self.load()

    def load(self) -> bool:
        self.ready = True
        return True

    def get_input_types(self) -> list[dict[str, object]]:
        return [{"name": "x", "datatype": "FP32", "shape": [1, 16]}]

    def get_output_types(self) -> list[dict[str, object]]:
        return [{"name": "y", "datatype": "FP32", "shape": [1, 16]}]

    def predict(self, request: InferRequest, headers: object = None) -> InferResponse:
        x = request.inputs[0].as_numpy()
        (y,) = self.session.run(["y"], {"x": x})
        output = InferOutput(name="y", shape=list(y.shape), datatype="FP32")
        output.set_data_from_numpy(y, binary_data=True)
        return InferResponse(request.id, "tiny", infer_outputs=[output])


def answer_model_config(reply: bytes) -> None:
    """Has every server that is made from now on give this reply."""
    make = grpc.aio.server

    async def configuration(request: bytes, context: object) -> bytes:
        return reply

    method = grpc.unary_unary_rpc_method_handler(configuration)
    handler = grpc.method_handlers_generic_handler(
        "inference.GRPCInferenceService", {"ModelConfig": method}
    )

    def made(*args: object, **options: object) -> grpc.aio.Server:
        server = make(*args, **options)
        server.add_generic_rpc_handlers((handler,))
        return server

    grpc.aio.server = made


if __name__ == "__main__":
    if len(sys.argv) > 4:
        answer_model_config(Path(sys.argv[4]).read_bytes())
    ModelServer(
        grpc_port=int(sys.argv[1]), http_port=int(sys.argv[2]), enable_latency_logging=False
    ).start([Network(sys.argv[3])])
