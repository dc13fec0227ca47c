// Devices of type "GPU" in host memory, for TensorFlow's StreamExecutor C API. See README.md.
//
// A stream is a thread with a queue, so that launches return before the work is done and streams
// run beside each other, ordered by events only, as on a GPU.

#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "host_stream.h"
#include "tensorflow/c/tf_status.h"

namespace {

constexpr int kMostDevices = 16;

// What a device did; order and number as in hostgpu_counters below.
struct Counters {
  std::atomic<int64_t> kernels{0}, synchronous{0};
  std::atomic<int64_t> htod{0}, htod_bytes{0}, dtoh{0}, dtoh_bytes{0}, dtod{0}, dtod_bytes{0};
  std::atomic<int64_t> deepest{0};  // most pieces of work that ever waited on one stream
  std::atomic<int64_t> busy_ns{0};  // of all streams
};
Counters counters[kMostDevices];

std::mutex failure_mutex;
std::string failure[kMostDevices];
std::atomic<bool> broken[kMostDevices];  // by a rule; see Verdict

// With HOSTGPU_REPORT set, the counters go to stderr in the end.
struct Report {
  ~Report() {
    if (!std::getenv("HOSTGPU_REPORT")) return;
    for (int i = 0; i < kMostDevices; ++i) {
      const Counters& c = counters[i];
      if (c.kernels + c.htod + c.dtod == 0) continue;
      std::fprintf(stderr,
                   "hostgpu %d: %lld kernels (%lld synchronous), copies htod %lld (%lld bytes), "
                   "dtoh %lld (%lld), dtod %lld (%lld); deepest queue %lld; busy %.3f s\n",
                   i, (long long)c.kernels, (long long)c.synchronous, (long long)c.htod,
                   (long long)c.htod_bytes, (long long)c.dtoh, (long long)c.dtoh_bytes,
                   (long long)c.dtod, (long long)c.dtod_bytes, (long long)c.deepest,
                   1e-9 * c.busy_ns);
    }
    for (const auto& [type, count] : synchronous)
      std::fprintf(stderr, "hostgpu: %d x %s launched synchronously\n", count, type.c_str());
  }

  std::map<std::string, int> synchronous;
} report;

// One record of an event.
struct Record {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;

  void Finish() {
    std::lock_guard<std::mutex> lock(mutex);
    done = true;
    changed.notify_all();
  }
  void Wait() {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [this] { return done; });
  }
  bool Done() {
    std::lock_guard<std::mutex> lock(mutex);
    return done;
  }
};

}  // namespace

struct SP_Stream_st {
  explicit SP_Stream_st(int number) : ordinal(number), worker([this] { Run(); }) {}

  ~SP_Stream_st() {
    Put(nullptr);
    worker.join();
  }

  // Null ends the thread.
  void Put(std::function<void()> work) {
    std::lock_guard<std::mutex> lock(mutex);
    queue.push_back(std::move(work));
    int64_t waiting = queue.size(), most = counters[ordinal].deepest;
    while (waiting > most && !counters[ordinal].deepest.compare_exchange_weak(most, waiting)) {
    }
    changed.notify_one();
  }

  std::shared_ptr<Record> Mark() {
    auto record = std::make_shared<Record>();
    Put([record] { record->Finish(); });
    return record;
  }

  const int ordinal;

 private:
  void Run() {
    pthread_setname_np(pthread_self(), "hostgpu");
    for (;;) {
      std::function<void()> work;
      {
        std::unique_lock<std::mutex> lock(mutex);
        changed.wait(lock, [this] { return !queue.empty(); });
        work = std::move(queue.front());
        queue.pop_front();
      }
      if (!work) return;
      work();
    }
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> queue;
  std::thread worker;  // last: it uses the others
};

struct SP_Event_st {
  std::mutex mutex;
  std::shared_ptr<Record> record;  // of the last time it was recorded

  std::shared_ptr<Record> Last() {
    std::lock_guard<std::mutex> lock(mutex);
    return record;
  }
};

struct SP_Timer_st {
  std::atomic<int64_t> start{0}, stop{0};
};

namespace hostgpu {

int64_t NanosecondsNow() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

int64_t Setting(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text && *text ? std::atoll(text) : otherwise;
}

bool Skips() {
  static const bool skips = Setting("HOSTGPU_SKIP", 0) != 0;
  return skips;
}

// Work on a stream takes at least its delay.
static void Timed(int ordinal, const void* stream, const char* what, const std::string& operation,
                  const std::string& annotation, int64_t delay_ns,
                  const std::function<void()>& work) {
  const Verdict verdict =
      RuleFor(ordinal, operation.empty() ? what : std::string(what) + " " + operation);
  const int64_t start = NanosecondsNow();
  if (verdict.fails) broken[ordinal] = true;
  while (verdict.hangs) std::this_thread::sleep_for(std::chrono::hours(1));
  work();
  delay_ns = std::max(delay_ns, 1000 * verdict.delay_us);
  const int64_t left = start + delay_ns - NanosecondsNow();
  if (left > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(left));
  const int64_t end = NanosecondsNow();
  counters[ordinal].busy_ns += end - start;
  Profile(ordinal, stream, what, annotation, start, end);
  Trace(OnMachine(ordinal), stream, what, operation, start, end);
}

void Enqueue(SP_Stream stream, const std::string& operation, const std::string& annotation,
             std::function<void()> work) {
  static const int64_t delay_ns = 1000 * Setting("HOSTGPU_KERNEL_US", 0);
  const bool kernel = !operation.empty();
  if (kernel) counters[stream->ordinal].kernels++;
  stream->Put([=, work = std::move(work)] {
    Timed(stream->ordinal, stream, kernel ? "kernel" : "MemcpyD2D", operation, annotation,
          kernel ? delay_ns : 0, work);
  });
}

void Then(SP_Stream stream, std::function<void()> call) { stream->Put(std::move(call)); }

void Drain(SP_Stream stream) { stream->Mark()->Wait(); }

void After(SP_Stream stream, SP_Stream other) {
  stream->Put([record = other->Mark()] { record->Wait(); });
}

SP_Stream NewStream(int ordinal) { return new SP_Stream_st(ordinal); }

int Ordinal(SP_Stream stream) { return stream->ordinal; }

// The devices of this process: numbers on the machine. As CUDA does it, CUDA_VISIBLE_DEVICES
// selects and orders them, and hides what comes after a number that there is not. A forked process
// has those of its own variables.
static const std::vector<int>& Visible() {
  static std::mutex mutex;
  static auto* by_process = new std::map<pid_t, std::vector<int>>;
  std::lock_guard<std::mutex> lock(mutex);
  const auto [found, is_new] = by_process->try_emplace(getpid());
  std::vector<int>& visible = found->second;
  if (!is_new) return visible;
  const int64_t count = std::clamp<int64_t>(Setting("HOSTGPU_COUNT", 2), 0, kMostDevices);
  const char* selected = std::getenv("CUDA_VISIBLE_DEVICES");
  for (int i = 0; !selected && i < count; ++i) visible.push_back(i);
  std::stringstream words(selected ? selected : "");
  for (std::string word; std::getline(words, word, ',');) {
    char* end = nullptr;
    const long number = std::strtol(word.c_str(), &end, 10);
    if (end == word.c_str() || number < 0 || number >= count) break;
    visible.push_back(number);
  }
  // Every part of a card is a device; see cards/sitecustomize.py.
  const int64_t parts = std::clamp<int64_t>(Setting("HOSTGPU_PARTS", 1), 1, kMostDevices);
  std::vector<int> cards;
  cards.swap(visible);
  for (const int card : cards) visible.insert(visible.end(), parts, card);
  return visible;
}

int DeviceCount() { return Visible().size(); }
int OnMachine(int ordinal) { return Visible()[ordinal]; }

Verdict RuleFor(int ordinal, const std::string& work) {
  struct Rule {
    std::string pattern;
    std::vector<std::string> actions;
    std::map<int, int64_t> seen;  // by device
  };
  static std::mutex mutex;
  static auto* rules = [] {
    auto* result = new std::vector<Rule>;
    const char* text = std::getenv("HOSTGPU_RULES");
    std::stringstream lines(text ? text : "");
    for (std::string line; std::getline(lines, line, ';');) {
      const size_t at = line.find('=');
      if (at == std::string::npos) continue;
      Rule rule{line.substr(0, at), {}, {}};
      std::stringstream actions(line.substr(at + 1));
      for (std::string action; std::getline(actions, action, ',');) {
        const size_t times = action.find('*');  // N*ACTION
        const int64_t count = times == std::string::npos ? 1 : std::atoll(action.c_str());
        if (times != std::string::npos) action = action.substr(times + 1);
        rule.actions.insert(rule.actions.end(), count, action);
      }
      if (!rule.actions.empty()) result->push_back(std::move(rule));
    }
    return result;
  }();
  Verdict result;
  if (rules->empty()) return result;
  const int device = OnMachine(ordinal);
  const std::string full = "GPU:" + std::to_string(device) + " " + work;
  std::lock_guard<std::mutex> lock(mutex);
  for (Rule& rule : *rules) {
    if (full.find(rule.pattern) == std::string::npos) continue;
    const std::string& action = rule.actions[rule.seen[device]++ % rule.actions.size()];
    result.fails = result.fails || action == "fail";
    result.hangs = result.hangs || action == "hang";
    result.delay_us = std::max<int64_t>(result.delay_us, std::atoll(action.c_str()));
  }
  return result;
}

void Trace(int device, const void* stream, const char* what, const std::string& operation,
           int64_t start_ns, int64_t end_ns) {
  static std::mutex mutex;
  static std::FILE* file = []() -> std::FILE* {
    const char* folder = std::getenv("HOSTGPU_TRACE");
    if (!folder || !*folder) return nullptr;
    const std::string path = std::string(folder) + "/" + std::to_string(getpid()) + ".tsv";
    std::FILE* made = std::fopen(path.c_str(), "w");
    if (made) std::setvbuf(made, nullptr, _IOLBF, 1 << 12);  // a process may end at any time
    return made;
  }();
  if (!file) return;
  std::lock_guard<std::mutex> lock(mutex);
  std::fprintf(file, "%d\t%p\t%s\t%s\t%lld\t%lld\n", device, stream, what, operation.c_str(),
               (long long)start_ns, (long long)end_ns);
}

void Fail(SP_Stream stream, const std::string& message) {
  std::lock_guard<std::mutex> lock(failure_mutex);
  if (failure[stream->ordinal].empty()) failure[stream->ordinal] = message;
}

std::string Failure(SP_Stream stream) {
  std::lock_guard<std::mutex> lock(failure_mutex);
  return failure[stream->ordinal];
}

void CountSynchronous(SP_Stream stream, const std::string& name, const std::string& type) {
  counters[stream->ordinal].synchronous++;
  const int64_t now = NanosecondsNow();
  Trace(OnMachine(stream->ordinal), stream, "synchronous", name + ":" + type, now, now);
  std::lock_guard<std::mutex> lock(failure_mutex);
  report.synchronous[type]++;
}

}  // namespace hostgpu

namespace {

using hostgpu::Setting;

void Ok(TF_Status* status) { TF_SetStatus(status, TF_OK, ""); }

// Memory.

void* Take(uint64_t size) { return std::aligned_alloc(256, (size + 255) / 256 * 256); }

// Counts what this process has of a device. The file of its number in the folder HOSTGPU_STATE holds
// the bytes of every device of the machine, for nvml/nvml.cc.
void CountMemory(const SP_Device* device, int64_t bytes) {
  static std::mutex mutex;
  static int64_t in_use[kMostDevices] = {};
  static const int file = [] {
    const char* folder = std::getenv("HOSTGPU_STATE");
    if (!folder || !*folder) return -1;
    const std::string path = std::string(folder) + "/" + std::to_string(getpid());
    return open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  }();
  std::lock_guard<std::mutex> lock(mutex);
  in_use[hostgpu::OnMachine(device->ordinal)] += bytes;
  if (file >= 0 && pwrite(file, in_use, sizeof in_use, 0) < 0) std::perror("HOSTGPU_STATE");
}

void Allocate(const SP_Device* device, uint64_t size, int64_t, SP_DeviceMemoryBase* memory) {
  memory->struct_size = SP_DEVICE_MEMORY_BASE_STRUCT_SIZE;
  memory->opaque = Take(size);
  memory->size = memory->opaque ? size : 0;
  CountMemory(device, malloc_usable_size(memory->opaque));
}

void Deallocate(const SP_Device* device, SP_DeviceMemoryBase* memory) {
  CountMemory(device, -static_cast<int64_t>(malloc_usable_size(memory->opaque)));
  std::free(memory->opaque);
  memory->opaque = nullptr;
  memory->size = 0;
}

void* HostAllocate(const SP_Device*, uint64_t size) { return Take(size); }
void HostDeallocate(const SP_Device*, void* memory) { std::free(memory); }
TF_Bool AllocatorStats(const SP_Device*, SP_AllocatorStats*) { return false; }

TF_Bool MemoryUsage(const SP_Device*, int64_t* free, int64_t* total) {
  const int64_t card = Setting("HOSTGPU_MEMORY_MB", 4096) << 20;  // touched pages alone use memory
  *free = *total = card / std::max<int64_t>(Setting("HOSTGPU_PARTS", 1), 1);
  return true;
}

// Streams and events.

// TensorFlow makes the one for kernels first.
std::atomic<SP_Stream> compute_stream[kMostDevices];

void CreateStream(const SP_Device* device, SP_Stream* stream, TF_Status* status) {
  *stream = new SP_Stream_st(device->ordinal);
  SP_Stream none = nullptr;
  compute_stream[device->ordinal].compare_exchange_strong(none, *stream);
  Ok(status);
}

void DestroyStream(const SP_Device*, SP_Stream stream) { delete stream; }

void WaitForStream(const SP_Device*, SP_Stream dependent, SP_Stream other, TF_Status* status) {
  hostgpu::After(dependent, other);
  Ok(status);
}

void StreamStatus(const SP_Device*, SP_Stream stream, TF_Status* status) {
  const std::string message = hostgpu::Failure(stream);
  TF_SetStatus(status, message.empty() ? TF_OK : TF_INTERNAL, message.c_str());
}

void CreateEvent(const SP_Device*, SP_Event* event, TF_Status* status) {
  *event = new SP_Event_st;
  Ok(status);
}

void DestroyEvent(const SP_Device*, SP_Event event) { delete event; }

SE_EventStatus EventStatus(const SP_Device* device, SP_Event event) {
  if (broken[device->ordinal]) return SE_EVENT_ERROR;
  const auto record = event->Last();
  return !record || record->Done() ? SE_EVENT_COMPLETE : SE_EVENT_PENDING;
}

void RecordEvent(const SP_Device*, SP_Stream stream, SP_Event event, TF_Status* status) {
  std::lock_guard<std::mutex> lock(event->mutex);
  event->record = stream->Mark();
  Ok(status);
}

void WaitForEvent(const SP_Device* const, SP_Stream stream, SP_Event event,
                  TF_Status* const status) {
  if (const auto record = event->Last()) stream->Put([record] { record->Wait(); });
  Ok(status);
}

void BlockForEvent(const SP_Device*, SP_Event event, TF_Status* status) {
  if (const auto record = event->Last()) record->Wait();
  Ok(status);
}

void BlockUntilDone(const SP_Device* device, SP_Stream stream, TF_Status* status) {
  hostgpu::Drain(stream);
  StreamStatus(device, stream, status);
}

void SynchronizeAll(const SP_Device*, TF_Status* status) { Ok(status); }

TF_Bool HostCallback(const SP_Device*, SP_Stream stream, SE_StatusCallbackFn callback, void* arg) {
  stream->Put([=] {
    TF_Status* status = TF_NewStatus();
    callback(arg, status);
    if (TF_GetCode(status) != TF_OK) hostgpu::Fail(stream, TF_Message(status));
    TF_DeleteStatus(status);
  });
  return true;
}

// Timers.

void CreateTimer(const SP_Device*, SP_Timer* timer, TF_Status* status) {
  *timer = new SP_Timer_st;
  Ok(status);
}

void DestroyTimer(const SP_Device*, SP_Timer timer) { delete timer; }

void StartTimer(const SP_Device*, SP_Stream stream, SP_Timer timer, TF_Status* status) {
  stream->Put([timer] { timer->start = hostgpu::NanosecondsNow(); });
  Ok(status);
}

void StopTimer(const SP_Device*, SP_Stream stream, SP_Timer timer, TF_Status* status) {
  stream->Put([timer] { timer->stop = hostgpu::NanosecondsNow(); });
  Ok(status);
}

uint64_t TimerNanoseconds(SP_Timer timer) { return timer->stop - timer->start; }

// Copies.

// Nanoseconds a copy takes at least.
int64_t CopyTime(uint64_t size) {
  static const int64_t fixed_us = Setting("HOSTGPU_COPY_US", 0);
  static const int64_t mb_per_s = Setting("HOSTGPU_COPY_MB_PER_S", 0);
  return 1000 * fixed_us + (mb_per_s > 0 ? 1000 * static_cast<int64_t>(size) / mb_per_s : 0);
}

void Copy(SP_Stream stream, const char* what, void* to, const void* from, uint64_t size) {
  stream->Put([=, annotation = hostgpu::Annotation()] {
    hostgpu::Timed(stream->ordinal, stream, what, "", annotation, CopyTime(size), [=] {
      if (to) std::memcpy(to, from, size);
    });
  });
}

// Without a stream: the caller waits.
void CopyNow(const SP_Device* device, const char* what, void* to, const void* from,
             uint64_t size) {
  hostgpu::Timed(device->ordinal, nullptr, what, "", hostgpu::Annotation(), CopyTime(size),
                 [=] { std::memcpy(to, from, size); });
}

void CountDtoh(const SP_Device* device, uint64_t size) {
  counters[device->ordinal].dtoh++;
  counters[device->ordinal].dtoh_bytes += size;
}
void CountHtod(const SP_Device* device, uint64_t size) {
  counters[device->ordinal].htod++;
  counters[device->ordinal].htod_bytes += size;
}
void CountDtod(const SP_Device* device, uint64_t size) {
  counters[device->ordinal].dtod++;
  counters[device->ordinal].dtod_bytes += size;
}

void Dtoh(const SP_Device* device, SP_Stream stream, void* to, const SP_DeviceMemoryBase* from,
          uint64_t size, TF_Status* status) {
  CountDtoh(device, size);
  Copy(stream, "MemcpyD2H", to, from->opaque, size);
  Ok(status);
}

void Htod(const SP_Device* device, SP_Stream stream, SP_DeviceMemoryBase* to, const void* from,
          uint64_t size, TF_Status* status) {
  CountHtod(device, size);
  // TensorFlow's plugged-in devices do not wait for kernels that still use the memory when a tensor
  // comes from another process or is a constant; those of CUDA do (`sync_dst_compute`).
  SP_Stream compute = compute_stream[device->ordinal];
  if (stream != compute) hostgpu::After(stream, compute);
  Copy(stream, "MemcpyH2D", to->opaque, from, size);
  Ok(status);
}

void Dtod(const SP_Device* device, SP_Stream stream, SP_DeviceMemoryBase* to,
          const SP_DeviceMemoryBase* from, uint64_t size, TF_Status* status) {
  CountDtod(device, size);
  void* into = hostgpu::Skips() ? nullptr : to->opaque;  // takes its time only
  Copy(stream, "MemcpyP2P", into, from->opaque, size);
  Ok(status);
}

void SyncDtoh(const SP_Device* device, void* to, const SP_DeviceMemoryBase* from, uint64_t size,
              TF_Status* status) {
  CountDtoh(device, size);
  CopyNow(device, "MemcpyD2H", to, from->opaque, size);
  Ok(status);
}

void SyncHtod(const SP_Device* device, SP_DeviceMemoryBase* to, const void* from, uint64_t size,
              TF_Status* status) {
  CountHtod(device, size);
  CopyNow(device, "MemcpyH2D", to->opaque, from, size);
  Ok(status);
}

void SyncDtod(const SP_Device* device, SP_DeviceMemoryBase* to, const SP_DeviceMemoryBase* from,
              uint64_t size, TF_Status* status) {
  CountDtod(device, size);
  CopyNow(device, "MemcpyP2P", to->opaque, from->opaque, size);
  Ok(status);
}

void MemSet(const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* where, uint8_t pattern,
            uint64_t size, TF_Status* status) {
  stream->Put([to = where->opaque, pattern, size] { std::memset(to, pattern, size); });
  Ok(status);
}

void MemZero(const SP_Device* device, SP_Stream stream, SP_DeviceMemoryBase* where, uint64_t size,
             TF_Status* status) {
  MemSet(device, stream, where, 0, size, status);
}

void MemSet32(const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* where, uint32_t pattern,
              uint64_t size, TF_Status* status) {
  stream->Put([to = static_cast<char*>(where->opaque), pattern, size] {
    for (uint64_t at = 0; at + 4 <= size; at += 4) std::memcpy(to + at, &pattern, 4);
  });
  Ok(status);
}

// Platform.

int32_t NumaNode(const SP_Device*) { return 0; }
int64_t Bandwidth(const SP_Device*) { return -1; }
double Gflops(const SP_Device*) { return -1; }

void VisibleDevices(const SP_Platform*, int* count, TF_Status* status) {
  *count = hostgpu::DeviceCount();
  Ok(status);
}

void CreateDevice(const SP_Platform*, SE_CreateDeviceParams* params, TF_Status* status) {
  static char bus[kMostDevices][16];
  std::snprintf(bus[params->ordinal], sizeof bus[0], "0000:%02x:00.0",
                hostgpu::OnMachine(params->ordinal) + 1);
  params->device->struct_size = SP_DEVICE_STRUCT_SIZE;
  params->device->ordinal = params->ordinal;
  params->device->hardware_name = "Host memory";
  params->device->device_vendor = "hostgpu";
  params->device->pci_bus_id = bus[params->ordinal];
  Ok(status);
}

void CreateDeviceFns(const SP_Platform*, SE_CreateDeviceFnsParams* params, TF_Status* status) {
  *params->device_fns = {SP_DEVICE_FNS_STRUCT_SIZE, nullptr, NumaNode, Bandwidth, Gflops};
  Ok(status);
}

void CreateExecutor(const SP_Platform*, SE_CreateStreamExecutorParams* params, TF_Status* status) {
  SP_StreamExecutor& e = *params->stream_executor;
  e.struct_size = SP_STREAMEXECUTOR_STRUCT_SIZE;
  e.allocate = Allocate;
  e.deallocate = Deallocate;
  e.host_memory_allocate = HostAllocate;
  e.host_memory_deallocate = HostDeallocate;
  e.get_allocator_stats = AllocatorStats;
  e.device_memory_usage = MemoryUsage;
  e.create_stream = CreateStream;
  e.destroy_stream = DestroyStream;
  e.create_stream_dependency = WaitForStream;
  e.get_stream_status = StreamStatus;
  e.create_event = CreateEvent;
  e.destroy_event = DestroyEvent;
  e.get_event_status = EventStatus;
  e.record_event = RecordEvent;
  e.wait_for_event = WaitForEvent;
  e.create_timer = CreateTimer;
  e.destroy_timer = DestroyTimer;
  e.start_timer = StartTimer;
  e.stop_timer = StopTimer;
  e.memcpy_dtoh = Dtoh;
  e.memcpy_htod = Htod;
  e.memcpy_dtod = Dtod;
  e.sync_memcpy_dtoh = SyncDtoh;
  e.sync_memcpy_htod = SyncHtod;
  e.sync_memcpy_dtod = SyncDtod;
  e.block_host_for_event = BlockForEvent;
  e.block_host_until_done = BlockUntilDone;
  e.synchronize_all_activity = SynchronizeAll;
  e.mem_zero = MemZero;
  e.memset = MemSet;
  e.memset32 = MemSet32;
  e.host_callback = HostCallback;
  Ok(status);
}

void CreateTimerFns(const SP_Platform*, SP_TimerFns* timer, TF_Status* status) {
  *timer = {SP_TIMER_FNS_STRUCT_SIZE, nullptr, TimerNanoseconds};
  Ok(status);
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) void SE_InitPlugin(SE_PlatformRegistrationParams* params,
                                                          TF_Status* status) {
  params->platform->struct_size = SP_PLATFORM_STRUCT_SIZE;
  params->platform->name = "EMULATED_GPU";  // what programs see as the name of the devices
  params->platform->type = "GPU";
  params->platform->use_bfc_allocator = true;
  params->platform_fns->struct_size = SP_PLATFORM_FNS_STRUCT_SIZE;
  params->platform_fns->get_device_count = VisibleDevices;
  params->platform_fns->create_device = CreateDevice;
  params->platform_fns->destroy_device = [](const SP_Platform*, SP_Device*) {};
  params->platform_fns->create_device_fns = CreateDeviceFns;
  params->platform_fns->destroy_device_fns = [](const SP_Platform*, SP_DeviceFns*) {};
  params->platform_fns->create_stream_executor = CreateExecutor;
  params->platform_fns->destroy_stream_executor = [](const SP_Platform*, SP_StreamExecutor*) {};
  params->platform_fns->create_timer_fns = CreateTimerFns;
  params->platform_fns->destroy_timer_fns = [](const SP_Platform*, SP_TimerFns*) {};
  params->destroy_platform = [](SP_Platform*) {};
  params->destroy_platform_fns = [](SP_PlatformFns*) {};
  Ok(status);
}

// For tests, by ctypes: kernels, synchronous kernels, copies and bytes host to device, device to
// host, device to device, deepest queue, nanoseconds that streams were busy.
__attribute__((visibility("default"))) void hostgpu_counters(int device, int64_t* values) {
  Counters& c = counters[device];
  const int64_t all[] = {c.kernels,    c.synchronous, c.htod,       c.htod_bytes, c.dtoh,
                         c.dtoh_bytes, c.dtod,        c.dtod_bytes, c.deepest,    c.busy_ns};
  std::memcpy(values, all, sizeof all);
}

}  // extern "C"
