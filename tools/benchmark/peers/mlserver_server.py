"""MLServer with an ONNX network: mlserver_server.py GRPC_PORT HTTP_PORT MODEL.

Runs in an environment of its own, which has MLServer and nothing of headrace. Its workers in other
processes are off, because a hop to them costs a tiny request more than they can win.
"""

from __future__ import annotations

import asyncio
import sys

import onnxruntime
from mlserver import MLModel, MLServer, ModelSettings, Settings
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class Network(MLModel):
    async def load(self) -> bool:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # a tiny network gains nothing by more
        self.session = onnxruntime.InferenceSession(sys.argv[3], options)
        return True

    async def predict(self, request: InferenceRequest) -> InferenceResponse:
        x = NumpyCodec.decode_input(request.inputs[0])
        (y,) = self.session.run(["y"], {"x": x})
        output = NumpyCodec.encode_output("y", y)
        return InferenceResponse(model_name="tiny", outputs=[output])


async def main() -> None:
    settings = Settings(
        host="127.0.0.1",
        grpc_port=int(sys.argv[1]),
        http_port=int(sys.argv[2]),
        metrics_endpoint=None,
        parallel_workers=0,
        debug=False,
    )
    server = MLServer(settings)
    await server.start([ModelSettings(name="tiny", implementation=Network)])


if __name__ == "__main__":
    asyncio.run(main())
