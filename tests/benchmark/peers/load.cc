// Closed loops of one unary request: load ADDRESS METHOD REQUEST_FILE CALLERS SECONDS
//
// All calls share one connection and carry the file's bytes. Prints the number of replies, the
// seconds that they took, and the median and the 99th percentile of the latency in microseconds.
// Ends with 1 and the status when a call fails.

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

using Clock = std::chrono::steady_clock;

struct Call {
  std::unique_ptr<grpc::ClientContext> context;
  std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader;
  grpc::ByteBuffer reply;
  grpc::Status status;
  Clock::time_point started;
};

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  std::ifstream file(argv[3], std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  const grpc::Slice slice(text.str());
  const std::string method = argv[2];
  const int callers = std::stoi(argv[4]);

  grpc::ChannelArguments options;
  options.SetMaxReceiveMessageSize(-1);
  auto channel = grpc::CreateCustomChannel(argv[1], grpc::InsecureChannelCredentials(), options);
  grpc::GenericStub stub(channel);
  grpc::CompletionQueue queue;
  std::vector<Call> calls(callers);

  auto start = [&](Call& call) {
    call.context = std::make_unique<grpc::ClientContext>();
    grpc::ByteBuffer request(&slice, 1);
    call.started = Clock::now();
    call.reader = stub.PrepareUnaryCall(call.context.get(), method, request, &queue);
    call.reader->StartCall();
    call.reader->Finish(&call.reply, &call.status, &call);
  };

  const auto begun = Clock::now();
  const auto end = begun + std::chrono::duration<double>(std::stod(argv[5]));
  std::vector<double> latencies;
  for (Call& call : calls) start(call);
  int open = callers;
  void* tag;
  bool ok;
  while (open > 0 && queue.Next(&tag, &ok)) {
    Call& call = *static_cast<Call*>(tag);
    if (!call.status.ok()) {
      std::cerr << call.status.error_code() << ": " << call.status.error_message() << "\n";
      return 1;
    }
    const auto now = Clock::now();
    latencies.push_back(std::chrono::duration<double, std::micro>(now - call.started).count());
    if (now < end) {
      start(call);
    } else {
      --open;
    }
  }
  const std::chrono::duration<double> took = Clock::now() - begun;
  std::sort(latencies.begin(), latencies.end());
  const size_t count = latencies.size();
  std::cout << count << " " << took.count() << " " << latencies[count / 2] << " "
            << latencies[count * 99 / 100] << std::endl;
}
