"""KServe's SDK with an ONNX network: kserve_server.py GRPC_PORT HTTP_PORT MODEL.

Runs in an environment of its own, which has KServe's SDK and nothing of headrace.
"""

from __future__ import annotations

import sys

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

    def predict(self, request: InferRequest, headers: object = None) -> InferResponse:
        x = request.inputs[0].as_numpy()
        (y,) = self.session.run(["y"], {"x": x})
        output = InferOutput(name="y", shape=list(y.shape), datatype="FP32")
        output.set_data_from_numpy(y, binary_data=True)
        return InferResponse(request.id, "tiny", infer_outputs=[output])


if __name__ == "__main__":
    ModelServer(
        grpc_port=int(sys.argv[1]), http_port=int(sys.argv[2]), enable_latency_logging=False
    ).start([Network(sys.argv[3])])
