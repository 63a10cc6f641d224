// Callers that infer without a pause: closed_loop ADDRESS REQUEST_FILE CALLERS.
// Prints "calling" once every caller has had a reply, and at the end of its input every status with
// its number.

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <fstream>
#include <iostream>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "headrace/v1/inference_engine.grpc.pb.h"

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  std::ifstream file(argv[2], std::ios::binary);
  std::stringstream bytes;
  bytes << file.rdbuf();
  headrace::v1::InferRequest request;
  if (!request.ParseFromString(bytes.str())) return 2;
  const int callers = std::stoi(argv[3]);
  std::atomic<bool> stop{false};
  std::atomic<int> calling{0};
  std::mutex guard;
  std::map<int, long> seen;
  std::vector<std::thread> threads;
  for (int caller = 0; caller < callers; ++caller) {
    threads.emplace_back([&] {
      grpc::ChannelArguments options;
      options.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection for each
      auto channel =
          grpc::CreateCustomChannel(argv[1], grpc::InsecureChannelCredentials(), options);
      auto stub = headrace::v1::InferenceEngine::NewStub(channel);
      std::map<int, long> mine;
      bool first = true;
      while (!stop) {
        grpc::ClientContext context;
        headrace::v1::InferReply reply;
        ++mine[stub->Infer(&context, request, &reply).error_code()];
        if (first && ++calling == callers) std::cout << "calling" << std::endl;
        first = false;
      }
      std::lock_guard<std::mutex> lock(guard);
      for (auto [code, count] : mine) seen[code] += count;
    });
  }
  std::string rest;
  std::getline(std::cin, rest);
  stop = true;
  for (auto& thread : threads) thread.join();
  for (auto [code, count] : seen) std::cout << code << " " << count << "\n";
}
