// A server of gRPC's library in C++, with the methods of tests/support/grpc_servers.py.
// Prints the port where it listens, then "began REQUEST" and "ended REQUEST" of the calls that hang,
// and stops at the end of its input.

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <iostream>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace {

std::mutex output;

void say(const std::string& what, const std::string& request) {
  std::lock_guard<std::mutex> lock(output);
  std::cout << what << " " << request << std::endl;
}

std::string text(const grpc::ByteBuffer& message) {
  std::vector<grpc::Slice> slices;
  message.Dump(&slices);
  std::string joined;
  for (const auto& slice : slices) {
    joined.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return joined;
}

grpc::ByteBuffer message(const std::string& text) {
  grpc::Slice slice(text);
  return grpc::ByteBuffer(&slice, 1);
}

// The metadata of a call that begins with t-, one a line: the key, and the value in hexadecimal.
std::string metadata(const grpc::GenericCallbackServerContext& context) {
  std::vector<std::pair<std::string, std::string>> found;
  for (const auto& [key, value] : context.client_metadata()) {
    if (key.starts_with("t-")) {
      found.emplace_back(std::string(key.data(), key.size()), std::string(value.data(), value.size()));
    }
  }
  std::sort(found.begin(), found.end());
  std::ostringstream lines;
  for (const auto& [key, value] : found) {
    lines << key << " " << std::hex;
    for (unsigned char each : value) lines << (each >> 4) << (each & 15);
    lines << "\n";
  }
  return lines.str();
}

// One call: a message is read, what it brings is written, and so on.
class Call : public grpc::ServerGenericBidiReactor {
 public:
  explicit Call(grpc::GenericCallbackServerContext* context)
      : context_(context), method_(context->method().substr(context->method().rfind('/') + 1)) {
    if (method_ == "Packed") context->set_compression_algorithm(GRPC_COMPRESS_GZIP);
    StartRead(&read_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      if (method_ == "Total" && !context_->IsCancelled()) {
        reply(std::to_string(total_), true);
      } else {
        finish(grpc::Status::OK);
      }
    } else if (method_ == "Chat") {
      write(read_, false);
    } else if (method_ == "Total") {
      total_ += read_.Length();
      StartRead(&read_);
    } else if (method_ == "Echo" || method_ == "Packed") {
      write(read_, true);
    } else if (method_ == "Count") {
      count_ = std::stoi(text(read_));
      count_ == 0 ? finish(grpc::Status::OK) : reply("0", false);
    } else if (method_ == "Status") {
      context_->AddTrailingMetadata("text", "a, b");
      context_->AddTrailingMetadata("some-bin", std::string("\x00\xff,\xfe", 4));
      context_->AddTrailingMetadata("some-bin", "");
      auto code = static_cast<grpc::StatusCode>(std::stoi(text(read_)));
      finish(grpc::Status(code, "ä % + \n“quoted”"));
    } else if (method_ == "Metadata") {
      reply(metadata(*context_), true);
    } else if (method_ == "Left") {
      reply(std::to_string(left()), true);
    } else if (method_ == "Hang") {
      hang();
    } else {
      finish(grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "Method not found!"));
    }
  }

  void OnWriteDone(bool ok) override {
    if (!ok || last_) {
      finish(grpc::Status::OK);
    } else if (method_ == "Count") {
      ++counted_ == count_ ? finish(grpc::Status::OK) : reply(std::to_string(counted_), false);
    } else {
      StartRead(&read_);
    }
  }

  void OnCancel() override {
    std::lock_guard<std::mutex> lock(guard_);
    cancelled_ = true;
    if (hangs_) end();
  }

  void OnDone() override { delete this; }

 private:
  double left() const {
    auto seconds = context_->deadline() - std::chrono::system_clock::now();
    return std::chrono::duration<double>(seconds).count();
  }

  void hang() {
    std::lock_guard<std::mutex> lock(guard_);
    say("began", text(read_));
    hangs_ = true;
    if (cancelled_) end();
  }

  void end() {
    say("ended", text(read_));
    finish(grpc::Status::CANCELLED);
  }

  void reply(const std::string& text, bool last) { write(message(text), last); }

  void write(grpc::ByteBuffer message, bool last) {
    written_.Swap(&message);
    last_ = last;
    StartWrite(&written_);
  }

  void finish(const grpc::Status& status) {
    if (!finished_.exchange(true)) Finish(status);
  }

  grpc::GenericCallbackServerContext* context_;
  std::string method_;
  grpc::ByteBuffer read_;
  grpc::ByteBuffer written_;
  std::size_t total_ = 0;
  int count_ = 0;
  int counted_ = 0;
  bool last_ = false;
  std::mutex guard_;  // of what a cancel and a read tell each other
  bool hangs_ = false;
  bool cancelled_ = false;
  std::atomic<bool> finished_{false};
};

class Service : public grpc::CallbackGenericService {
  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override {
    return new Call(context);
  }
};

}  // namespace

int main() {
  Service service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.SetMaxReceiveMessageSize(-1);
  builder.SetMaxSendMessageSize(-1);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, 1 << 16);
  builder.RegisterCallbackGenericService(&service);
  auto server = builder.BuildAndStart();
  std::cout << port << std::endl;
  std::string rest;
  std::getline(std::cin, rest);
  server->Shutdown(std::chrono::system_clock::now());
}
