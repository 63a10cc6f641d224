// Calls of gRPC in C++: calls ADDRESS SMALL LARGE LARGEST, files with a message of ModelInfer each.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/client_unary_call.h>
#include <grpcpp/impl/codegen/sync_stream.h>

using grpc::ByteBuffer;
using grpc::ClientContext;
using grpc::StatusCode;
using grpc::internal::RpcMethod;
using Channel = std::shared_ptr<grpc::Channel>;
using Both = grpc::internal::ClientReaderWriterFactory<ByteBuffer, ByteBuffer>;
using Stream = std::unique_ptr<grpc::ClientReaderWriter<ByteBuffer, ByteBuffer>>;

const char* const kInfer = "/inference.GRPCInferenceService/ModelInfer";
const char* const kStream = "/inference.GRPCInferenceService/ModelStreamInfer";
const char* const kUpload = "/headrace.v1.InferenceEngine/UploadModel";
const char* const kHealth = "/grpc.health.v1.Health/Check";
const char* const kWatch = "/grpc.health.v1.Health/Watch";

void Check(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", what.c_str());
  std::exit(1);
}

ByteBuffer Message(const std::string& bytes) {
  grpc::Slice slice(bytes);
  return ByteBuffer(&slice, 1);
}

ByteBuffer MessageOf(const char* path) {
  std::ifstream file(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), {});
  return Message(bytes.substr(5));
}

Channel Connect(const char* address) {
  grpc::ChannelArguments options;
  options.SetMaxReceiveMessageSize(-1);
  options.SetMaxSendMessageSize(-1);
  options.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 1000);
  options.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  options.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), options);
}

size_t Call(const Channel& channel, const char* method, const ByteBuffer& message,
            ClientContext* context) {
  ByteBuffer reply;
  RpcMethod unary(method, RpcMethod::NORMAL_RPC);
  grpc::Status status =
      grpc::internal::BlockingUnaryCall(channel.get(), unary, context, message, &reply);
  Check(status.ok(), std::string(method) + ": " + status.error_message());
  return reply.Length();
}

size_t Call(const Channel& channel, const char* method, const ByteBuffer& message) {
  ClientContext context;
  return Call(channel, method, message, &context);
}

Stream Open(const Channel& channel, const char* method, ClientContext* context) {
  return Stream(
      Both::Create(channel.get(), RpcMethod(method, RpcMethod::BIDI_STREAMING), context));
}

// Watches the server's health until the call ends, or its first answer if it is to be cancelled.
StatusCode Watched(const Channel& channel, std::chrono::milliseconds time, bool cancels) {
  ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + time);
  Stream stream = Open(channel, kWatch, &context);
  stream->Write(Message(""));
  stream->WritesDone();
  ByteBuffer reply;
  while (stream->Read(&reply)) {
    if (cancels) context.TryCancel();
  }
  return stream->Finish().error_code();
}

int main(int, char** arguments) {
  using std::chrono::seconds;
  Channel channel = Connect(arguments[1]);
  ByteBuffer small = MessageOf(arguments[2]), large = MessageOf(arguments[3]);
  ByteBuffer largest = MessageOf(arguments[4]);

  std::puts("calls");
  std::vector<std::thread> callers;
  for (int count = 0; count < 32; ++count)
    callers.emplace_back([&] { Call(channel, kInfer, small); });
  for (auto& each : callers) each.join();

  std::puts("sizes");
  Call(channel, kHealth, Message(""));
  Check(Call(channel, kInfer, large) > 16 << 20, "a short reply");
  Check(Call(channel, kInfer, largest) > 63 << 20, "a short reply");

  std::puts("metadata");
  for (int count = 0; count < 2; ++count) {
    ClientContext context;
    context.AddMetadata("x-long", std::string(15000, 'a'));
    context.AddMetadata("x-bytes-bin", std::string("\0\xff\0", 3));
    Call(channel, kInfer, small, &context);
  }

  std::puts("compressed");
  for (auto kind : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    ClientContext context;
    context.set_compression_algorithm(kind);
    Call(channel, kInfer, large, &context);
  }

  std::puts("deadline");
  Check(Watched(channel, std::chrono::milliseconds(500), false) == StatusCode::DEADLINE_EXCEEDED,
        "no deadline");

  std::puts("cancels");
  for (int count = 0; count < 100; ++count)
    Check(Watched(channel, seconds(300), true) == StatusCode::CANCELLED, "not cancelled");

  std::puts("streams");
  {
    ClientContext context;
    Stream stream = Open(channel, kStream, &context);
    std::thread writer([&] {
      for (int count = 0; count < 504; ++count) stream->Write(small);
      stream->Write(large);
      stream->WritesDone();
    });
    ByteBuffer reply;
    int replies = 0;
    while (stream->Read(&reply)) ++replies;
    writer.join();
    Check(stream->Finish().ok() && replies == 505, std::to_string(replies) + " replies");
  }
  {
    ClientContext context;
    Stream stream = Open(channel, kUpload, &context);
    ByteBuffer chunk = Message("\x0a\xe8\x07" + std::string(1000, 'a')), reply;
    for (int count = 0; count < 100; ++count) Check(stream->Write(chunk), "a chunk");
    stream->WritesDone();
    Check(stream->Read(&reply) && stream->Finish().ok(), "an upload");
  }

  std::puts("pings");  // one a second, while a call is open and nothing comes
  Check(Watched(channel, seconds(5), false) == StatusCode::DEADLINE_EXCEEDED, "pings");
  Call(channel, kInfer, small);
  std::puts("done");
}
