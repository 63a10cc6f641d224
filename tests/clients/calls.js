// Calls of Node's gRPC: node calls.js ADDRESS SMALL LARGE LARGEST, files with a message of ModelInfer
// each.
"use strict";
const fs = require("fs");
const grpc = require("@grpc/grpc-js");

const [address, ...files] = process.argv.slice(2);
const [small, large, largest] = files.map((name) => fs.readFileSync(name).subarray(5));
const INFER = "/inference.GRPCInferenceService/ModelInfer";
const STREAM = "/inference.GRPCInferenceService/ModelStreamInfer";
const UPLOAD = "/headrace.v1.InferenceEngine/UploadModel";
const HEALTH = "/grpc.health.v1.Health/Check";
const WATCH = "/grpc.health.v1.Health/Watch";
const nothing = Buffer.alloc(0);
const same = (bytes) => bytes;

function connect(options = {}) {
  return new grpc.Client(address, grpc.credentials.createInsecure(), {
    "grpc.max_receive_message_length": -1,
    "grpc.max_send_message_length": -1,
    "grpc.use_local_subchannel_pool": 1,
    "grpc.keepalive_time_ms": 1000,
    "grpc.keepalive_permit_without_calls": 1,
    ...options,
  });
}

function call(client, message, metadata = new grpc.Metadata(), method = INFER) {
  return new Promise((resolve, reject) => {
    const done = (error, reply) => (error ? reject(error) : resolve(reply));
    client.makeUnaryRequest(method, same, same, message, metadata, done);
  });
}

function several(count, make) {
  return Promise.all(Array.from({ length: count }, make));
}

function check(holds, what) {
  if (!holds) throw new Error(what);
}

function watch(client, options, seen) {
  const empty = new grpc.Metadata();
  const stream = client.makeServerStreamRequest(WATCH, same, same, nothing, empty, options);
  stream.on("data", () => seen(stream));
  return new Promise((resolve) => stream.on("error", (error) => resolve(error.code)));
}

const tests = {
  async calls(client) {
    await several(32, () => call(client, small));
  },
  async largeMessages(client) {
    const replies = await several(4, () => call(client, large));
    check(replies.every((each) => each.length > 16 << 20), "short replies");
  },
  async sizes(client) {
    await call(client, nothing, new grpc.Metadata(), HEALTH);
    check((await call(client, largest)).length > 63 << 20, "a short reply");
  },
  async metadata(client) {
    const metadata = new grpc.Metadata();
    metadata.set("x-long", "a".repeat(15000));
    metadata.set("x-bytes-bin", Buffer.from([0, 255, 0]));
    await call(client, small, metadata);
    await call(client, small, metadata);
  },
  async compressed() {
    for (const kind of [1, 2]) {
      const client = connect({ "grpc.default_compression_algorithm": kind });
      await call(client, large);
      client.close();
    }
  },
  async deadline(client) {
    const code = await watch(client, { deadline: Date.now() + 500 }, () => {});
    check(code === grpc.status.DEADLINE_EXCEEDED, `deadline: ${code}`);
  },
  async cancels(client) {
    for (let count = 0; count < 100; count++) {
      const code = await watch(client, {}, (stream) => stream.cancel());
      check(code === grpc.status.CANCELLED, `cancel: ${code}`);
    }
  },
  async stream(client) {
    const stream = client.makeBidiStreamRequest(STREAM, same, same);
    const messages = [...Array(500).fill(small), ...Array(4).fill(large)];
    let replies = 0;
    stream.on("data", () => replies++);
    const ended = new Promise((resolve, reject) => stream.on("end", resolve).on("error", reject));
    for (const each of messages) {
      if (!stream.write(each)) await new Promise((resolve) => stream.once("drain", resolve));
    }
    stream.end();
    await ended;
    check(replies === messages.length, `${replies} replies`);
  },
  async upload(client) {
    const chunk = Buffer.concat([Buffer.from([0x0a, 0xe8, 0x07]), Buffer.alloc(1000, "a")]);
    const reply = await new Promise((resolve, reject) => {
      const done = (error, found) => (error ? reject(error) : resolve(found));
      const stream = client.makeClientStreamRequest(UPLOAD, same, same, done);
      for (let count = 0; count < 100; count++) stream.write(chunk);
      stream.end();
    });
    check(reply.includes("sha256:"), "an upload");
  },
  async pings(client) {
    const code = await watch(client, { deadline: Date.now() + 5000 }, () => {});
    check(code === grpc.status.DEADLINE_EXCEEDED, `pings: ${code}`);
    await call(client, small);
  },
};

(async () => {
  const client = connect();
  for (const [name, test] of Object.entries(tests)) {
    console.log(name);
    await test(client);
  }
  console.log("done");
  process.exit(0);
})().catch((error) => {
  console.error(error);
  process.exit(1);
});
