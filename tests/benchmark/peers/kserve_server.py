"""KServe's SDK with a model that adds its input to itself: kserve_server.py GRPC_PORT HTTP_PORT.

Runs in an environment of its own, which has KServe's SDK and nothing of headrace.
"""

from __future__ import annotations

import sys

from kserve import InferOutput, InferRequest, InferResponse, Model, ModelServer


class Add(Model):
    def __init__(self) -> None:
        super().__init__("tiny")
        self.load()

    def load(self) -> bool:
        self.ready = True
        return True

    def predict(self, request: InferRequest, headers: object = None) -> InferResponse:
        x = request.inputs[0].as_numpy()
        output = InferOutput(name="y", shape=list(x.shape), datatype="FP32")
        output.set_data_from_numpy(x + x, binary_data=True)
        return InferResponse(request.id, "tiny", infer_outputs=[output])


if __name__ == "__main__":
    ModelServer(
        grpc_port=int(sys.argv[1]), http_port=int(sys.argv[2]), enable_latency_logging=False
    ).start([Add()])
