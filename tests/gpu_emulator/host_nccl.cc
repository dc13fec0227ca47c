#include "host_nccl.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "host_stream.h"
#include "host_tensor.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/framework/kernel_def.pb.h"
#include "tensorflow/core/framework/register_types.h"
#include "tensorflow/core/graph/graph.h"

namespace hostgpu {

using namespace tensorflow;  // NOLINT

namespace {

constexpr char kLabel[] = "hostgpu_nccl";

// Where the threads of the streams wait for each other.
class Barrier {
 public:
  explicit Barrier(int count) : missing_(count) {}
  void Arrive() {
    std::unique_lock<std::mutex> lock(mutex_);
    if (--missing_ == 0) changed_.notify_all();
    changed_.wait(lock, [this] { return missing_ <= 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int missing_;
};

struct Participant {
  SP_Stream stream;
  std::string operation;  // name:type
  std::string annotation;  // as the thread of TensorFlow's NcclManager has it
  Tensor input, output;   // aliases of device memory
  std::function<void()> done;
};

template <typename T>
void Merge(const std::string& how, const Tensor& from, Tensor* into) {
  const auto in = from.unaligned_flat<T>();
  auto out = into->unaligned_flat<T>();
  if (how == "sum") {
    out += in;
  } else if (how == "prod") {
    out = out * in;
  } else if (how == "min") {
    out = out.cwiseMin(in);
  } else {
    out = out.cwiseMax(in);
  }
}

// Computes one device's output from all inputs, in the order of the devices.
using Work = std::function<void(const std::vector<Participant>&, Tensor*)>;

void AllReduce(const std::string& how, bool mean, const std::vector<Participant>& all,
               Tensor* output) {
  std::memcpy(output->data(), all[0].input.data(), output->TotalBytes());
  for (size_t i = 1; i < all.size(); ++i) {
    switch (output->dtype()) {
#define CASE(T)                             \
  case DataTypeToEnum<T>::value:            \
    Merge<T>(how, all[i].input, output);    \
    break;
      CASE(float)
      CASE(double)
      CASE(Eigen::half)
      CASE(int32_t)
      CASE(int64_t)
#undef CASE
      default:
        LOG(FATAL) << "NCCL has no " << DataTypeString(output->dtype());
    }
  }
  if (!mean) return;
  switch (output->dtype()) {
#define CASE(T)                                                                              \
  case DataTypeToEnum<T>::value: {                                                           \
    auto out = output->unaligned_flat<T>();                                                  \
    for (int64_t i = 0; i < out.size(); ++i) out(i) = out(i) / static_cast<T>(all.size());   \
    break;                                                                                   \
  }
    CASE(float)
    CASE(double)
    CASE(Eigen::half)
#undef CASE
    default:
      LOG(FATAL) << "no mean of " << DataTypeString(output->dtype());
  }
}

void Gather(const std::vector<Participant>& all, Tensor* output) {
  char* to = static_cast<char*>(output->data());
  for (const Participant& one : all) {
    std::memcpy(to, one.input.data(), one.input.TotalBytes());
    to += one.input.TotalBytes();
  }
}

// Waits for the last device, then puts the work on all.
void Join(const std::string& key, int count, Participant participant, const Work& work) {
  static std::mutex mutex;
  static std::map<std::string, std::vector<Participant>> gathering;
  static std::map<int, SP_Stream> streams;
  std::lock_guard<std::mutex> lock(mutex);
  auto& joined = gathering[key];
  joined.push_back(std::move(participant));
  if (static_cast<int>(joined.size()) < count) return;
  auto all = std::make_shared<std::vector<Participant>>(std::move(joined));
  gathering.erase(key);
  std::sort(all->begin(), all->end(), [](const Participant& a, const Participant& b) {
    return Ordinal(a.stream) < Ordinal(b.stream);
  });
  auto begun = std::make_shared<Barrier>(count), read = std::make_shared<Barrier>(count);
  for (size_t i = 0; i < all->size(); ++i) {
    SP_Stream compute = (*all)[i].stream;
    SP_Stream& own = streams[Ordinal(compute)];
    if (!own) own = NewStream(Ordinal(compute));
    After(own, compute);
    Enqueue(own, (*all)[i].operation, (*all)[i].annotation, [=] {
      begun->Arrive();
      if ((*all)[i].output.TotalBytes() > 0 && !Skips()) work(*all, &(*all)[i].output);
      read->Arrive();
    });
    // Not on this thread, which would then launch what comes next
    Then(own, [=] { Env::Default()->SchedClosure((*all)[i].done); });
  }
}

class Nccl : public AsyncOpKernel {
 public:
  explicit Nccl(OpKernelConstruction* c) : AsyncOpKernel(c) {
    const std::string& op = c->def().op();
    if (op == "NcclAllReduce") {
      OP_REQUIRES_OK(c, c->GetAttr("reduction", &how_));
      OP_REQUIRES_OK(c, c->GetAttr("num_devices", &count_));
      OP_REQUIRES_OK(c, c->GetAttr("shared_name", &key_));
      return;
    }
    gathers_ = op.find("Gather") != std::string::npos;
    if (c->HasAttr("group_size")) {
      int group, instance;
      OP_REQUIRES_OK(c, c->GetAttr("group_size", &count_));
      OP_REQUIRES_OK(c, c->GetAttr("group_key", &group));
      OP_REQUIRES_OK(c, c->GetAttr("instance_key", &instance));
      key_ = absl::StrCat(group, ":", instance);
    }
    if (gathers_) return;
    std::string merge, final;
    OP_REQUIRES_OK(c, c->GetAttr("merge_op", &merge));
    OP_REQUIRES_OK(c, c->GetAttr("final_op", &final));
    how_ = merge == "Add" ? "sum" : merge == "Mul" ? "prod" : merge[1] == 'i' ? "min" : "max";
    mean_ = final == "Div";
  }

  void ComputeAsync(OpKernelContext* c, DoneCallback done) override {
    int count = count_;
    std::string key = absl::StrCat(key_, ":", c->step_id());
    if (count == 0) {  // version 2
      count = c->input(1).scalar<int32_t>()();
      key = absl::StrCat(c->input(2).scalar<int32_t>()(), ":", c->input(3).scalar<int32_t>()());
    }
    const Tensor& input = c->input(0);
    TensorShape shape = input.shape();
    if (gathers_) shape.set_dim(0, shape.dim_size(0) * count);
    Tensor* output = nullptr;
    OP_REQUIRES_OK_ASYNC(c, c->allocate_output(0, shape, &output), done);
    Participant own{StreamOf(c),
                    name() + ":" + type_string(),
                    gathers_ ? "ncclAllGather" : "ncclAllReduce",
                    Alias(input),
                    Alias(*output),
                    std::move(done)};
    Work work = Gather;
    if (!gathers_)
      work = [how = how_, mean = mean_](const std::vector<Participant>& all, Tensor* into) {
        AllReduce(how, mean, all, into);
      };
    Join(key, count, std::move(own), work);
  }

 private:
  std::string key_, how_;
  int count_ = 0;
  bool mean_ = false, gathers_ = false;
};

OpKernel* MakeNccl(OpKernelConstruction* c) { return new Nccl(c); }

constexpr const char* kCollectives[] = {"CollectiveReduce", "CollectiveGather",
                                        "CollectiveReduceV2", "CollectiveGatherV2"};

// Labels the collectives on GPUs that are to run by NCCL; those of several processes run in the
// ring. Calls that XLA should compile run operation by operation: it has no fake GPUs.
class Rewrites : public GraphOptimizationPass {
 public:
  absl::Status Run(const GraphOptimizationPassOptions& options) override {
    if (!options.partition_graphs) return absl::OkStatus();
    std::map<std::string, int> gpus;  // of the function's devices, by process
    for (auto& [device, graph] : *options.partition_graphs)
      if (device.find(":GPU:") != std::string::npos) ++gpus[Process(device)];
    for (auto& [device, graph] : *options.partition_graphs) {
      if (device.find(":GPU:") == std::string::npos) continue;
      for (Node* node : graph->op_nodes()) {
        node->ClearAttr("_XlaMustCompile");
        const bool one = std::find(std::begin(kCollectives), std::end(kCollectives),
                                   node->type_string()) != std::end(kCollectives);
        std::string hint;
        if (!one || !GetNodeAttr(node->attrs(), "communication_hint", &hint).ok()) continue;
        if (hint != "nccl") continue;
        const int size = GroupSize(node);
        if (size == 0 || size > gpus[Process(device)]) {
          node->ClearAttr("communication_hint");
          node->AddAttr("communication_hint", "ring");
        } else {
          node->AddAttr("_kernel", kLabel);
        }
      }
    }
    return absl::OkStatus();
  }

 private:
  static std::string Process(const std::string& device) {
    return device.substr(0, device.find("/device:"));
  }

  // How many devices take part; 0 if that is not known.
  static int GroupSize(const Node* node) {
    int size = 0;
    if (GetNodeAttr(node->attrs(), "group_size", &size).ok()) return size;
    const Node* input = nullptr;  // of version 2
    Tensor value;
    if (!node->input_node(1, &input).ok() || !input->IsConstant()) return 0;
    if (!GetNodeAttr(input->attrs(), "value", &value).ok() || value.dtype() != DT_INT32) return 0;
    return value.scalar<int32_t>()();
  }
};

}  // namespace

Maker NcclKernel(const std::string& op) { return op == "NcclAllReduce" ? MakeNccl : nullptr; }

void RegisterCollectives() {
  for (const char* op : kCollectives) {
    auto* def = new KernelDef;
    def->set_op(op);
    def->set_device_type(DEVICE_GPU);
    def->set_label(kLabel);
    if (std::string(op).find("V2") != std::string::npos)
      for (const char* name : {"group_size", "group_key", "instance_key"})
        def->add_host_memory_arg(name);
    kernel_factory::OpKernelRegistrar(def, "hostgpu::Nccl", MakeNccl);
  }
  OptimizationPassRegistry::Global()->Register(OptimizationPassRegistry::POST_PARTITIONING, 1000,
                                               std::make_unique<Rewrites>());
}

}  // namespace hostgpu
