// Kernels of the fake GPUs: those that TensorFlow registers for GPUs, computed by the CPU's.
//
// For every GPU kernel of the installed TensorFlow that is not the very class the CPU has, too, one
// with the same types and host memory is registered with a higher priority. It allocates outputs,
// puts the CPU's kernel on the device's stream, and returns, as a CUDA kernel's launch does: like
// that it holds no references to its tensors, so the order of streams alone keeps them. See
// README.md.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

#include "host_nccl.h"
#include "host_stream.h"
#include "host_tensor.h"
#include "tensorflow/c/kernels.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/device.h"
#include "tensorflow/core/framework/kernel_def.pb.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/tensor_util.h"

namespace hostgpu {

using namespace tensorflow;  // NOLINT

namespace {

// Fresh memory, freed when the stream has done what was launched before: launches hold no
// references to what they read.
class KeptMemory : public Allocator {
 public:
  std::string Name() override { return "hostgpu"; }
  void* AllocateRaw(size_t alignment, size_t size) override {
    return port::AlignedMalloc(size, static_cast<std::align_val_t>(alignment));
  }
  void DeallocateRaw(void* memory) override {
    Enqueue(stream, "", "", [memory] { port::AlignedFree(memory); });
  }

  std::atomic<SP_Stream> stream{nullptr};
};

// A device with a GPU's name that CPU kernels can compute on.
class HostDevice : public Device {
 public:
  // Lasts forever, as devices do. `kept`: launches can read its memory after it is given back.
  static HostDevice* Of(DeviceBase* gpu, bool kept) {
    static std::mutex mutex;
    static std::map<std::pair<DeviceBase*, bool>, HostDevice*> all;
    std::lock_guard<std::mutex> lock(mutex);
    HostDevice*& one = all[{gpu, kept}];
    if (!one || one->name() != gpu->attributes().name()) one = new HostDevice(gpu, kept);
    return one;
  }

  Allocator* GetAllocator(AllocatorAttributes) override {
    return kept_ ? &memory : cpu_allocator();
  }
  absl::Status Sync() override { return absl::OkStatus(); }
  absl::Status MakeTensorFromProto(const TensorProto& proto, const AllocatorAttributes,
                                   Tensor* tensor) override {
    return tensor->FromProto(cpu_allocator(), proto) ? absl::OkStatus()
                                                     : absl::InvalidArgumentError("bad tensor");
  }

  KeptMemory memory;

 private:
  HostDevice(DeviceBase* gpu, bool kept) : Device(gpu->env(), gpu->attributes()), kept_(kept) {
    using Workers = DeviceBase::CpuWorkerThreads;
    set_tensorflow_cpu_worker_threads(const_cast<Workers*>(gpu->tensorflow_cpu_worker_threads()));
    set_eigen_cpu_device(const_cast<Eigen::ThreadPoolDevice*>(gpu->eigen_cpu_device()));
  }

  const bool kept_;
};

// Which tensors of an operation have the layout of its attribute data_format.
struct Layout {
  std::vector<int> inputs, outputs;
  int sizes = -1;  // the input that is a shape
};

const Layout* LayoutOf(const NodeDef& def) {
  static const auto* all = new std::map<std::string, Layout>{
      {"AvgPool", {{0}, {0}}},
      {"AvgPoolGrad", {{1}, {0}, 0}},
      {"BiasAdd", {{0}, {0}}},
      {"BiasAddGrad", {{0}, {}}},
      {"Conv2D", {{0}, {0}}},
      {"Conv2DBackpropFilter", {{0, 2}, {}}},
      {"Conv2DBackpropInput", {{2}, {0}, 0}},
      {"DepthToSpace", {{0}, {0}}},
      {"DepthwiseConv2dNative", {{0}, {0}}},
      {"DepthwiseConv2dNativeBackpropFilter", {{0, 2}, {}}},
      {"DepthwiseConv2dNativeBackpropInput", {{2}, {0}, 0}},
      {"FusedBatchNorm", {{0}, {0}}},
      {"FusedBatchNormV2", {{0}, {0}}},
      {"FusedBatchNormV3", {{0}, {0}}},
      {"FusedBatchNormGrad", {{0, 1}, {0}}},
      {"FusedBatchNormGradV2", {{0, 1}, {0}}},
      {"FusedBatchNormGradV3", {{0, 1}, {0}}},
      {"MaxPool", {{0}, {0}}},
      {"MaxPoolGrad", {{0, 1, 2}, {0}}},
      {"SpaceToDepth", {{0}, {0}}},
      {"_FusedBatchNormEx", {{0}, {0}}},
      {"_FusedBatchNormGradEx", {{0, 1}, {0}}},
      {"_FusedConv2D", {{0}, {0}}},
  };
  const auto found = all->find(def.op());
  const auto format = def.attr().find("data_format");
  if (found == all->end() || format == def.attr().end()) return nullptr;
  return format->second.s() == "NCHW" ? &found->second : nullptr;
}

// The definition with data_format NHWC.
NodeDef ChannelsLast(const NodeDef& def) {
  static const int order[] = {0, 2, 3, 1};
  NodeDef result = def;
  auto& attributes = *result.mutable_attr();
  attributes["data_format"].set_s("NHWC");
  for (const char* name : {"strides", "ksize", "dilations", "explicit_paddings"}) {
    const auto old = def.attr().find(name);
    if (old == def.attr().end()) continue;
    const auto& from = old->second.list();
    const int each = from.i_size() / 4;  // 2 for paddings
    auto* to = attributes[name].mutable_list();
    for (int i = 0; i < 4; ++i)
      for (int j = 0; j < each; ++j) to->set_i(i * each + j, from.i(order[i] * each + j));
  }
  return result;
}

// Batch norm with what TensorFlow's graph optimizer joins to it on GPUs: a sum with another tensor,
// and ReLU. The CPU has batch norm alone.
struct Fused {
  bool forward = false, backward = false, relu = false;

  static Fused Of(const NodeDef& def) {
    Fused result{def.op() == "_FusedBatchNormEx", def.op() == "_FusedBatchNormGradEx"};
    if (result.forward || result.backward)
      result.relu = def.attr().at("activation_mode").s() == "Relu";
    return result;
  }

  // The definition of batch norm alone.
  NodeDef Alone(NodeDef def) const {
    if (!forward && !backward) return def;
    def.set_op(forward ? "FusedBatchNormV3" : "FusedBatchNormGradV3");
    def.mutable_attr()->erase("num_side_inputs");
    def.mutable_attr()->erase("activation_mode");
    const int kept = forward ? 5 : 6;
    while (def.input_size() > kept) def.mutable_input()->RemoveLast();  // control inputs, too
    return def;
  }
};

// The CPU's kernel of a node, kept by launches that outlive the GPU's.
struct CpuKernel {
  std::unique_ptr<OpKernel> kernel;
  const Layout* layout = nullptr;
  HostDevice *device = nullptr, *kept = nullptr;  // see HostDevice::Of
  Fused fused;
};

// What one execution of a CPU kernel needs. Tensors are aliases of device memory, or of the host.
struct Launch {
  std::shared_ptr<CpuKernel> cpu;
  ResourceMgr* resources = nullptr;
  ScopedStepContainer* container = nullptr;
  int64_t step = 0;
  std::vector<Tensor> inputs;
  std::vector<bool> by_reference;  // inputs that the kernel changes
  std::vector<Tensor> outputs;     // results

  absl::Status Run(bool kept);

 private:
  absl::Status Compute(bool kept);
  absl::Status ComputeGroups(int64_t groups, bool kept);
  int64_t Groups() const;
};

// Groups of a convolution's gradient, which the CPU's kernels do not know; otherwise 1.
int64_t Launch::Groups() const {
  const std::string& op = cpu->kernel->type_string();
  if (op == "Conv2DBackpropFilter")
    return inputs[0].dim_size(3) / inputs[1].flat<int32_t>()(2);
  if (op == "Conv2DBackpropInput" && inputs[0].NumElements() == 4)
    return inputs[0].flat<int32_t>()(3) / inputs[1].dim_size(2);
  return 1;
}

// Channels are the last dimension of all its tensors; of filters, those of the output.
absl::Status Launch::ComputeGroups(int64_t groups, bool kept) {
  const bool of_filter = cpu->kernel->type_string() == "Conv2DBackpropFilter";
  const std::vector<Tensor> all = inputs;
  const int sizes = of_filter ? 1 : 0;
  std::vector<Tensor> parts;
  for (int64_t i = 0; i < groups; ++i) {
    for (size_t j = 0; j < all.size(); ++j)
      inputs[j] = static_cast<int>(j) == sizes ? tensor::DeepCopy(all[j])
                                               : LastDimensionPart(all[j], i, groups);
    inputs[sizes].flat<int32_t>()(3) /= groups;
    TF_RETURN_IF_ERROR(Compute(kept));
    parts.push_back(outputs[0]);
  }
  outputs[0] = JoinedLastDimension(parts);
  return absl::OkStatus();
}

absl::Status Launch::Run(bool kept) {
  const Layout* layout = cpu->layout;
  const Fused fused = cpu->fused;
  Tensor side;
  for (Tensor& one : inputs) one = Aligned(one);
  if (fused.forward) {
    if (inputs.size() > 5) side = inputs[5];
    inputs.resize(5);
  } else if (fused.backward) {
    if (fused.relu) inputs[0] = WherePositive(inputs[0], inputs[7]);
    side = inputs[0];
    inputs.resize(6);
  }
  if (layout) {
    for (int i : layout->inputs) inputs[i] = ToChannelsLast(inputs[i]);
    if (layout->sizes >= 0) inputs[layout->sizes] = SizesToChannelsLast(inputs[layout->sizes]);
  }
  const int64_t groups = Groups();
  TF_RETURN_IF_ERROR(groups > 1 ? ComputeGroups(groups, kept) : Compute(kept));
  if (layout)
    for (int i : layout->outputs) outputs[i] = ToChannelsFirst(outputs[i]);
  if (fused.forward && side.NumElements() > 0) outputs[0] = Sum(outputs[0], side);
  if (fused.forward && fused.relu) outputs[0] = WherePositive(outputs[0], outputs[0]);
  if (fused.backward) outputs.push_back(side);
  return absl::OkStatus();
}

absl::Status Launch::Compute(bool kept) {
  const int count = cpu->kernel->num_outputs();
  std::vector<TensorValue> values;
  std::remove_pointer_t<decltype(TensorValue::mutex_if_ref)> lock;
  for (size_t i = 0; i < inputs.size(); ++i)
    values.push_back(by_reference[i] ? TensorValue(&lock, &inputs[i]) : TensorValue(&inputs[i]));
  std::vector<AllocatorAttributes> in(inputs.size()), out(count + 1);
  static auto* runner = new std::function<void(std::function<void()>)>(
      [](std::function<void()> work) { Env::Default()->SchedClosure(std::move(work)); });
  CancellationManager cancellation;
  OpKernelContext::Params params;
  params.step_id = step;
  params.op_kernel = cpu->kernel.get();
  params.device = kept ? cpu->kept : cpu->device;
  params.resource_manager = resources;
  params.step_container = container;
  params.cancellation_manager = &cancellation;
  params.inputs = values;
  params.input_alloc_attrs = in;
  params.output_attr_array = out.data();
  params.runner = runner;
  params.inc_num_deferred_ops_function = [] {};
  params.dec_num_deferred_ops_function = [] {};
  OpKernelContext context(&params, count);
  cpu->kernel->Compute(&context);
  TF_RETURN_IF_ERROR(context.status());
  outputs.resize(count);
  for (int i = 0; i < count; ++i) {
    TensorValue value = context.release_output(i);
    if (!value.tensor || value.is_ref()) continue;
    outputs[i] = std::move(*value.tensor);
    delete value.tensor;
  }
  return absl::OkStatus();
}

bool ReadsOnly(const std::string& op) {
  return op == "ResourceGather" || op == "ResourceGatherNd" || op == "ReadVariableOp";
}

class HostKernel : public OpKernel {
 public:
  // `in_place`: takes the memory of an input that nothing else uses, as its GPU kernel does.
  HostKernel(OpKernelConstruction* c, bool in_place)
      : OpKernel(c), in_place_(in_place), cpu_(std::make_shared<CpuKernel>()) {
    cpu_->device = HostDevice::Of(c->device(), false);
    cpu_->kept = HostDevice::Of(c->device(), true);
    cpu_->layout = LayoutOf(c->def());
    cpu_->fused = Fused::Of(c->def());
    const NodeDef node = cpu_->fused.Alone(cpu_->layout ? ChannelsLast(c->def()) : c->def());
    std::shared_ptr<const NodeProperties> properties;
    OP_REQUIRES_OK(c, NodeProperties::CreateFromNodeDef(node, OpRegistry::Global(), &properties));
    OpKernel* kernel = nullptr;
    OP_REQUIRES_OK(c, CreateOpKernel(DeviceType(DEVICE_CPU), cpu_->device, cpu_allocator(),
                                     c->function_library(), c->resource_manager(), properties,
                                     c->graph_def_version(), &kernel));
    cpu_->kernel.reset(kernel);
    OP_REQUIRES_OK(c, OpRegistry::Global()->LookUp(c->def().op(), &registered_));
    version_ = c->graph_def_version();
  }

  void Compute(OpKernelContext* c) override {
    SP_Stream stream = StreamOf(c);
    const std::string failure = Failure(stream);
    OP_REQUIRES(c, failure.empty(), absl::InternalError("earlier work on the device: " + failure));
    auto launch = std::make_shared<Launch>();
    launch->cpu = cpu_;
    launch->resources = c->resource_manager();
    launch->step = c->step_id();
    std::vector<std::pair<Var*, Tensor>> shadows;
    bool known = true;
    for (int i = 0; i < c->num_inputs(); ++i) {
      launch->by_reference.push_back(c->input_is_ref(i));
      if (c->input_is_ref(i)) {
        launch->inputs.push_back(Alias(c->mutable_input(i, /*lock_held=*/false), /*owned=*/true));
        continue;
      }
      const Tensor& input = c->input(i);
      if (c->input_dtype(i) == DT_RESOURCE) {
        Tensor handle = input;
        core::RefCountPtr<Var> variable;
        if (LookupResource(c, HandleFromInput(c, i), &variable).ok()) {
          OP_REQUIRES_OK(c, Shadow(c, stream, variable.get(), &handle));
        } else {
          known = false;
        }
        launch->inputs.push_back(handle);
      } else if (c->input_memory_type(i) == HOST_MEMORY || !DataTypeCanUseMemcpy(input.dtype())) {
        known = known && c->input_memory_type(i) == HOST_MEMORY;
        launch->inputs.push_back(input);
      } else {
        launch->inputs.push_back(Alias(input));
      }
    }
    std::vector<TensorShape> shapes;
    std::vector<bool> ignored;
    if (known) OP_REQUIRES_OK(c, Infer(c, launch->inputs, &shapes, &ignored, &known));
    if (!known) return Synchronous(c, stream, launch.get());
    std::vector<Tensor> results;
    std::vector<int> candidates(c->num_inputs());
    std::iota(candidates.begin(), candidates.end(), 0);
    for (int i = 0; i < c->num_outputs(); ++i) {
      Tensor* result = nullptr;
      if (IsRefType(output_type(i))) {
        c->forward_ref_input_to_ref_output(0, i);
        results.emplace_back();
        continue;
      }
      if (in_place_) {
        OP_REQUIRES_OK(c, c->forward_input_or_allocate_output(candidates, i, shapes[i], &result));
      } else {
        OP_REQUIRES_OK(c, c->allocate_output(i, shapes[i], &result));
      }
      results.push_back(Alias(*result));
    }
    Enqueue(stream, name() + ":" + type_string(), Annotation(),
            [stream, launch, results, ignored, name = name()] {
      if (Skips()) return;
      absl::Status status = launch->Run(false);
      for (size_t i = 0; status.ok() && i < results.size(); ++i) {
        const Tensor& made = launch->outputs[i];
        if (ignored[i]) continue;
        if (made.TotalBytes() != results[i].TotalBytes()) {
          status = absl::InternalError(absl::StrCat("output ", i, " has shape ",
                                                    made.shape().DebugString(), " in place of ",
                                                    results[i].shape().DebugString()));
        } else if (made.TotalBytes() > 0) {
          std::memcpy(results[i].data(), made.data(), made.TotalBytes());
        }
      }
      if (!status.ok()) Fail(stream, name + ": " + std::string(status.message()));
    });
  }

 private:
  // Replaces the handle of a variable by one of a variable at the same memory. The stream can then
  // write to it after the launch. Memory that is read elsewhere is copied first, as ever.
  absl::Status Shadow(OpKernelContext* c, SP_Stream stream, Var* variable, Tensor* handle) {
    mutex_lock lock(*variable->mu());
    Tensor* tensor = variable->tensor();
    if (!variable->is_initialized)
      return absl::FailedPreconditionError(absl::StrCat(name(), " of a variable without a value"));
    if (!ReadsOnly(type_string()) && tensor->TotalBytes() > 0 && !tensor->RefCountIsOne()) {
      Tensor copy;
      TF_RETURN_IF_ERROR(c->allocate_temp(tensor->dtype(), tensor->shape(), &copy));
      EnqueueCopy(stream, *tensor, copy);
      *tensor = copy;
    }
    auto* shadow = new Var(tensor->dtype());
    *shadow->tensor() = Alias(*tensor, /*owned=*/true);
    shadow->is_initialized = true;
    Tensor result(DT_RESOURCE, TensorShape({}));
    const DtypeAndPartialTensorShape type{tensor->dtype(), tensor->shape()};
    result.scalar<ResourceHandle>()() =
        ResourceHandle::MakeRefCountingHandle(shadow, cpu_->device->name(), {type});
    *handle = result;
    return absl::OkStatus();
  }

  // Shapes of the outputs, if they follow from the inputs' shapes and from what is on the host.
  absl::Status Infer(OpKernelContext* c, const std::vector<Tensor>& inputs,
                     std::vector<TensorShape>* shapes, std::vector<bool>* ignored, bool* known) {
    using Types = std::vector<std::pair<PartialTensorShape, DataType>>;
    *known = false;
    if (c->num_outputs() > 0 && !registered_->shape_inference_fn) return absl::OkStatus();
    std::vector<PartialTensorShape> input_shapes;
    std::vector<const Tensor*> values;
    std::vector<std::unique_ptr<Types>> handles;
    for (int i = 0; i < c->num_inputs(); ++i) {
      input_shapes.push_back(inputs[i].shape());
      const bool host = c->input_memory_type(i) == HOST_MEMORY && inputs[i].dtype() != DT_RESOURCE;
      values.push_back(host ? &inputs[i] : nullptr);
      handles.push_back(nullptr);
      if (inputs[i].dtype() == DT_RESOURCE) {
        handles.back() = std::make_unique<Types>();
        for (const auto& one : inputs[i].scalar<ResourceHandle>()().dtypes_and_shapes())
          handles.back()->push_back({one.shape, one.dtype});
      }
    }
    shape_inference::InferenceContext inference(version_, AttrSlice(def()), registered_->op_def,
                                                input_shapes, values, {}, handles);
    TF_RETURN_IF_ERROR(inference.construction_status());
    if (registered_->shape_inference_fn)
      TF_RETURN_IF_ERROR(inference.Run(registered_->shape_inference_fn));
    for (int i = 0; i < c->num_outputs(); ++i) {
      // cuDNN's scratch: of any size
      const bool forward = type_string() == "FusedBatchNormV3" || cpu_->fused.forward;
      const bool scratch = forward && i == 5;
      ignored->push_back(scratch || IsRefType(output_type(i)));
      if (c->output_memory_type(i) == HOST_MEMORY || !DataTypeCanUseMemcpy(BaseType(output_type(i))))
        return absl::OkStatus();
      const auto shape = inference.output(i);
      if (!scratch && !inference.FullyDefined(shape)) return absl::OkStatus();
      TensorShape full;
      if (scratch) {
        full.AddDim(0);
      } else {
        for (int d = 0; d < inference.Rank(shape); ++d)
          full.AddDim(inference.Value(inference.Dim(shape, d)));
      }
      shapes->push_back(full);
    }
    *known = true;
    return absl::OkStatus();
  }

  // Waits for the stream and computes at once, for results of unknown size or on the host.
  void Synchronous(OpKernelContext* c, SP_Stream stream, Launch* launch) {
    CountSynchronous(stream, name(), type_string());
    Drain(stream);
    launch->container = c->step_container();
    cpu_->kept->memory.stream = stream;
    OP_REQUIRES_OK(c, launch->Run(/*kept=*/true));
    for (int i = 0; i < c->num_outputs(); ++i) {
      const Tensor& made = launch->outputs[i];
      if (!made.IsInitialized()) continue;
      if (!DataTypeCanUseMemcpy(made.dtype())) {
        c->set_output(i, made);
        continue;
      }
      Tensor* result = nullptr;
      OP_REQUIRES_OK(c, c->allocate_output(i, made.shape(), &result));
      if (c->output_memory_type(i) == DEVICE_MEMORY) {
        EnqueueCopy(stream, made, *result);  // memory of `made` lasts as long
      } else if (made.TotalBytes() > 0) {
        std::memcpy(result->data(), made.data(), made.TotalBytes());
      }
    }
  }

  const bool in_place_;
  std::shared_ptr<CpuKernel> cpu_;
  const OpRegistrationData* registered_ = nullptr;
  int version_ = 0;
};

// Assigns a variable: takes the value's memory if nothing else uses it, otherwise copies it.
class AssignVariable : public OpKernel {
 public:
  explicit AssignVariable(OpKernelConstruction* c) : OpKernel(c) {
    OP_REQUIRES_OK(c, c->GetAttr("dtype", &dtype_));
    if (c->HasAttr("validate_shape")) OP_REQUIRES_OK(c, c->GetAttr("validate_shape", &validate_));
  }

  void Compute(OpKernelContext* c) override {
    SP_Stream stream = StreamOf(c);
    core::RefCountPtr<Var> variable;
    const Tensor& value = c->input(1);
    OP_REQUIRES_OK(c, LookupOrCreateResource<Var>(c, HandleFromInput(c, 0), &variable,
                                                  [this](Var** made) {
                                                    *made = new Var(dtype_);
                                                    return absl::OkStatus();
                                                  }));
    AllocatorAttributes attributes;
    attributes.set_gpu_compatible(true);
    attributes.set_nic_compatible(true);
    std::unique_ptr<Tensor> taken =
        c->forward_input(1, OpKernelContext::Params::kNoReservation, dtype_, value.shape(),
                         DEVICE_MEMORY, attributes);
    mutex_lock lock(*variable->mu());
    Tensor* tensor = variable->tensor();
    OP_REQUIRES(c, tensor->dtype() == dtype_, absl::InvalidArgumentError("dtype: " + name()));
    OP_REQUIRES(
        c, !validate_ || !variable->is_initialized || tensor->shape() == value.shape(),
        absl::InvalidArgumentError("shape " + value.shape().DebugString() + ": " + name()));
    variable->is_initialized = true;
    if (taken) {
      *tensor = *taken;
      return;
    }
    if (!tensor->RefCountIsOne() || tensor->shape() != value.shape()) {
      Tensor fresh;
      OP_REQUIRES_OK(c, c->allocate_temp(dtype_, value.shape(), &fresh, attributes));
      *tensor = fresh;
    }
    EnqueueCopy(stream, value, *tensor);
  }

 private:
  DataType dtype_;
  bool validate_ = false;
};

// Registration.

OpKernel* MakeKernel(OpKernelConstruction* c) { return new HostKernel(c, false); }
OpKernel* MakeInPlace(OpKernelConstruction* c) { return new HostKernel(c, true); }
OpKernel* MakeAssign(OpKernelConstruction* c) { return new AssignVariable(c); }

// The class of the kernel that a device has for the types of `def`, or "".
std::string ClassOf(const char* device, const KernelDef& def) {
  const OpDef* op = nullptr;
  if (!OpRegistry::Global()->LookUpOpDef(def.op(), &op).ok()) return "";
  NodeDef node;
  node.set_name("example");
  node.set_op(def.op());
  if (!def.label().empty()) (*node.mutable_attr())["_kernel"].set_s(def.label());
  for (const auto& constraint : def.constraint()) {
    AttrValue& value = (*node.mutable_attr())[constraint.name()];
    const DataType first = constraint.allowed_values().list().type(0);
    for (const auto& attribute : op->attr()) {
      if (attribute.name() != constraint.name()) continue;
      if (attribute.type() == "type") {
        value.set_type(first);
      } else {
        value.mutable_list()->add_type(first);
      }
    }
  }
  const KernelDef* found = nullptr;
  std::string name;
  return FindKernelDef(DeviceType(device), node, &found, &name).ok() ? name : "";
}

// What is registered for GPUs that is not what the CPU has, too.
std::vector<std::pair<KernelDef, std::string>> Replaceable() {
  std::vector<std::pair<KernelDef, std::string>> result;
  const KernelList all = GetAllRegisteredKernels();
  for (const KernelDef& def : all.kernel()) {
    if (def.device_type() != DEVICE_GPU) continue;
    const std::string gpu = ClassOf(DEVICE_GPU, def);
    if (gpu.find("CPUDevice") != std::string::npos) continue;  // all in host memory
    if (gpu.empty() || gpu != ClassOf(DEVICE_CPU, def)) result.emplace_back(def, gpu);
  }
  return result;
}

void Register(const KernelDef& def, const std::string& gpu_class) {
  auto* copy = new KernelDef(def);
  copy->set_priority(def.priority() + 1000);
  bool in_place = false;
  for (const char* start : {"BinaryOp<", "UnaryOp<", "Mlir"})
    in_place = in_place || gpu_class.rfind(start, 0) == 0;
  Maker make = in_place ? MakeInPlace : MakeKernel;
  if (def.op() == "AssignVariableOp") make = MakeAssign;
  if (Maker nccl = NcclKernel(def.op())) make = nccl;
  kernel_factory::OpKernelRegistrar(copy, "HostKernel of " + gpu_class, make);
}

}  // namespace

SP_Stream StreamOf(OpKernelContext* c) {
  TF_Status* status = TF_NewStatus();
  SP_Stream stream = TF_GetStream(reinterpret_cast<TF_OpKernelContext*>(c), status);
  TF_DeleteStatus(status);
  CHECK(stream) << "not on a fake GPU";
  return stream;
}

}  // namespace hostgpu

extern "C" __attribute__((visibility("default"))) void TF_InitKernel() {
  for (const auto& [def, gpu_class] : hostgpu::Replaceable()) {
    if (hostgpu::Setting("HOSTGPU_LIST", 0))
      std::fprintf(stderr, "%s %s\n", def.op().c_str(), gpu_class.c_str());
    hostgpu::Register(def, gpu_class);
  }
  hostgpu::RegisterCollectives();
}
