// Unary requests from many connections, in closed loops or at planned times:
//
//   load ADDRESS METHOD REQUEST_FILE CALLERS SECONDS [CONNECTIONS [PER_SECOND]]
//
// All calls carry the file's bytes. Without PER_SECOND, each of CALLERS sends its next request when
// its reply has come. With it, requests go at random, independent times, PER_SECOND on average, to
// the connections in turn, and a latency counts from the planned time; CALLERS means nothing then.
// The times are the same in every run. Requests of the first WARM_UP seconds are not counted.
//
// Prints the number of replies, the seconds that they took, and microseconds of latency: the median,
// the 99th percentile, the longest, the largest of the connections' medians, and the 99th percentile
// of how late the generator itself sent. Then the fewest replies of a connection. Ends with 1 and
// the status when a call fails.

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;
constexpr double WARM_UP = 0.5;

struct Call {
  std::unique_ptr<grpc::ClientContext> context;
  std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader;
  grpc::ByteBuffer reply;
  grpc::Status status;
  Clock::time_point planned, sent;
  size_t connection = 0;
};

double micros(Clock::duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

double quantile(std::vector<double>& values, size_t percent) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, values.size() * percent / 100)];
}

class Generator {
 public:
  Generator(const std::string& address, const std::string& method, const grpc::Slice& message,
            size_t connections)
      : method_(method), message_(message), latencies_(connections) {
    grpc::ChannelArguments options;
    options.SetMaxReceiveMessageSize(-1);
    options.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    std::vector<std::shared_ptr<grpc::Channel>> channels;
    for (size_t index = 0; index < connections; ++index) {
      channels.push_back(
          grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), options));
      channels.back()->GetState(true);
    }
    for (auto& channel : channels) {
      if (!channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(30))) {
        std::cerr << "no connection to " << address << "\n";
        std::exit(1);
      }
      stubs_.push_back(std::make_unique<grpc::GenericStub>(channel));
    }
  }

  // Each reply is answered with another request, until the end.
  void closed(size_t callers, Seconds seconds) {
    begin(Seconds(0), seconds);
    for (size_t index = 0; index < callers; ++index) {
      auto* call = new Call;
      call->connection = index % stubs_.size();
      start(call, Clock::now());
    }
    receive([this](Call* call, Clock::time_point now) {
      const bool more = now < end_;
      if (more) start(call, now);
      return more;
    });
  }

  // Requests go at planned times, however long replies take.
  void open(double per_second, Seconds seconds) {
    begin(Seconds(WARM_UP), seconds);
    // The starter counts as a call of its own, so that the queue stays open while it waits.
    open_ = 1;
    std::thread starter([&] {
      prctl(PR_SET_TIMERSLACK, 1);
      std::mt19937_64 random(1);
      std::exponential_distribution<double> gap(per_second);
      auto planned = counts_from_ - std::chrono::duration_cast<Clock::duration>(Seconds(WARM_UP));
      for (size_t index = 0; planned < end_; ++index) {
        std::this_thread::sleep_until(planned);
        auto* call = new Call;
        call->connection = index % stubs_.size();
        start(call, planned);
        planned += std::chrono::duration_cast<Clock::duration>(Seconds(gap(random)));
      }
      if (--open_ == 0) queue_.Shutdown();
    });
    receive([](Call*, Clock::time_point) { return false; });
    starter.join();
  }

  void report() {
    std::vector<double> all, medians;
    size_t fewest = SIZE_MAX;
    for (auto& each : latencies_) {
      all.insert(all.end(), each.begin(), each.end());
      medians.push_back(quantile(each, 50));
      fewest = std::min(fewest, each.size());
    }
    const double took = Seconds(last_ - counts_from_).count();
    std::cout << all.size() << " " << took << " " << quantile(all, 50) << " " << quantile(all, 99)
              << " " << quantile(all, 100) << " " << quantile(medians, 100) << " "
              << quantile(late_, 99) << " " << fewest << std::endl;
  }

 private:
  void begin(Seconds warm_up, Seconds seconds) {
    counts_from_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(warm_up);
    end_ = counts_from_ + std::chrono::duration_cast<Clock::duration>(seconds);
  }

  void start(Call* call, Clock::time_point planned) {
    ++open_;
    grpc::ByteBuffer request(&message_, 1);
    call->context = std::make_unique<grpc::ClientContext>();
    call->planned = planned;
    call->sent = Clock::now();
    call->reader = stubs_[call->connection]->PrepareUnaryCall(call->context.get(), method_, request,
                                                              &queue_);
    call->reader->StartCall();
    call->reader->Finish(&call->reply, &call->status, call);
  }

  // Takes replies until none is open. `again` says whether it has sent the call once more.
  template <typename Again>
  void receive(Again again) {
    void* tag;
    bool ok;
    while (queue_.Next(&tag, &ok)) {
      auto* call = static_cast<Call*>(tag);
      if (!call->status.ok()) {
        std::cerr << call->status.error_code() << ": " << call->status.error_message() << ", "
                  << call->context->debug_error_string() << std::endl;
        std::_Exit(1);
      }
      last_ = Clock::now();
      if (call->planned >= counts_from_) {
        latencies_[call->connection].push_back(micros(last_ - call->planned));
        late_.push_back(micros(call->sent - call->planned));
      }
      if (!again(call, last_)) delete call;
      if (--open_ == 0) queue_.Shutdown();
    }
  }

  const std::string method_;
  const grpc::Slice message_;
  std::vector<std::unique_ptr<grpc::GenericStub>> stubs_;
  grpc::CompletionQueue queue_;
  std::atomic<long> open_{0};
  Clock::time_point counts_from_, end_, last_;
  std::vector<std::vector<double>> latencies_;  // by connection
  std::vector<double> late_;
};

int main(int argc, char** argv) {
  if (argc < 6 || argc > 8) return 2;
  std::ifstream file(argv[3], std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  Generator generator(argv[1], argv[2], grpc::Slice(text.str()), argc > 6 ? std::stoul(argv[6]) : 1);
  const Seconds seconds(std::stod(argv[5]));
  if (argc > 7) {
    generator.open(std::stod(argv[7]), seconds);
  } else {
    generator.closed(std::stoul(argv[4]), seconds);
  }
  generator.report();
}
