// The profiler of the fake GPUs: a plane "/device:GPU:N" with a line per stream, as CUDA's has.
#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "host_stream.h"
#include "tensorflow/c/experimental/pluggable_profiler/pluggable_profiler.h"
#include "tsl/profiler/protobuf/xplane.pb.h"
#include "xla/tsl/profiler/backends/cpu/annotation_stack.h"

namespace {

struct Event {
  int ordinal;
  const void* stream;
  std::string what, annotation;
  int64_t start_ns, end_ns;
};

std::mutex mutex;
bool running = false;
int64_t started_ns = 0;
std::vector<Event> events;

// One device's plane. Every name is kept once, as metadata.
class Plane {
 public:
  Plane(tensorflow::profiler::XSpace* space, int ordinal) : plane_(space->add_planes()) {
    plane_->set_id(ordinal);
    plane_->set_name("/device:GPU:" + std::to_string(ordinal));
    (*plane_->mutable_stat_metadata())[1].set_id(1);
    (*plane_->mutable_stat_metadata())[1].set_name("tf_op");
  }

  void Add(const Event& event) {
    auto [line, fresh] = lines_.try_emplace(event.stream, nullptr);
    if (fresh) {
      line->second = plane_->add_lines();
      line->second->set_id(lines_.size());
      line->second->set_name("Stream #" + std::to_string(lines_.size()));
      line->second->set_timestamp_ns(started_ns);
    }
    auto* made = line->second->add_events();
    made->set_metadata_id(Name(event.what));
    made->set_offset_ps(1000 * (event.start_ns - started_ns));
    made->set_duration_ps(1000 * (event.end_ns - event.start_ns));
    if (event.annotation.empty()) return;
    auto* stat = made->add_stats();
    stat->set_metadata_id(1);
    stat->set_str_value(event.annotation);
  }

 private:
  int64_t Name(const std::string& name) {
    auto [found, fresh] = names_.try_emplace(name, names_.size() + 1);
    if (fresh) {
      auto& metadata = (*plane_->mutable_event_metadata())[found->second];
      metadata.set_id(found->second);
      metadata.set_name(name);
    }
    return found->second;
  }

  tensorflow::profiler::XPlane* plane_;
  std::map<const void*, tensorflow::profiler::XLine*> lines_;
  std::map<std::string, int64_t> names_;
};

void Start(const TP_Profiler*, TF_Status* status) {
  std::lock_guard<std::mutex> lock(mutex);
  events.clear();
  running = true;
  started_ns = hostgpu::NanosecondsNow();
  tsl::profiler::AnnotationStack::Enable(true);
  TF_SetStatus(status, TF_OK, "");
}

void Stop(const TP_Profiler*, TF_Status* status) {
  std::lock_guard<std::mutex> lock(mutex);
  running = false;
  tsl::profiler::AnnotationStack::Enable(false);
  TF_SetStatus(status, TF_OK, "");
}

// Called for the size, then for the message.
void Collect(const TP_Profiler*, uint8_t* buffer, size_t* size, TF_Status* status) {
  std::lock_guard<std::mutex> lock(mutex);
  tensorflow::profiler::XSpace space;
  std::map<int, Plane> planes;
  for (const Event& event : events)
    planes.try_emplace(event.ordinal, &space, event.ordinal).first->second.Add(event);
  if (buffer) {
    space.SerializeToArray(buffer, *size);
    events.clear();
  }
  *size = space.ByteSizeLong();
  TF_SetStatus(status, TF_OK, "");
}

}  // namespace

namespace hostgpu {

std::string Annotation() {
  // "name:type#attributes#", of nested ones the outermost first, as "one::another".
  const std::string& all = tsl::profiler::AnnotationStack::Get();
  return all.substr(0, std::min(all.find("::"), all.find('#')));
}

void Profile(int ordinal, const void* stream, const char* what, const std::string& annotation,
             int64_t start_ns, int64_t end_ns) {
  std::lock_guard<std::mutex> lock(mutex);
  // As that of CUDA, without what began before.
  if (running && start_ns >= started_ns)
    events.push_back({ordinal, stream, what, annotation, start_ns, end_ns});
}

}  // namespace hostgpu

extern "C" __attribute__((visibility("default"))) void TF_InitProfiler(
    TF_ProfilerRegistrationParams* params, TF_Status* status) {
  params->struct_size = TF_PROFILER_REGISTRATION_PARAMS_STRUCT_SIZE;
  params->profiler->struct_size = TP_PROFILER_STRUCT_SIZE;
  params->profiler->device_type = "GPU";
  params->profiler_fns->struct_size = TP_PROFILER_FNS_STRUCT_SIZE;
  params->profiler_fns->start = Start;
  params->profiler_fns->stop = Stop;
  params->profiler_fns->collect_data_xspace = Collect;
  params->destroy_profiler = [](TP_Profiler*) {};
  params->destroy_profiler_fns = [](TP_ProfilerFns*) {};
  TF_SetStatus(status, TF_OK, "");
}
