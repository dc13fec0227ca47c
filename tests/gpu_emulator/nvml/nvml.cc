// A stand-in for NVIDIA's management library, libnvidia-ml.so.1, with the calls that the package
// makes through pynvml. See ../README.md.
//
// Names, argument types and numbers are those of nvml.h. Memory in use and processes are those of
// the programs on the emulated GPUs; the rest is constant or set by environment variables.

#include <dirent.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sstream>
#include <string>

#define CALL extern "C" __attribute__((visibility("default")))

namespace {

enum Return { kSuccess = 0, kInvalidArgument = 2, kInsufficientSize = 7 };

constexpr int kMostDevices = 16;
constexpr unsigned kMaxMhz = 1000, kThrottledMhz = 500;
constexpr unsigned kWatts = 100, kLimitWatts = 150;
constexpr uint64_t kHeat = 0x20 | 0x40;  // throttle reasons: in software, in hardware

// As handles serve the addresses of these.
char devices[kMostDevices];
using Handle = char*;

int64_t Setting(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text && *text ? std::strtoll(text, nullptr, 0) : otherwise;
}

int Count() { return std::clamp<int64_t>(Setting("HOSTGPU_COUNT", 2), 0, kMostDevices); }

int NumberOf(Handle device) { return device - devices; }

uint64_t Throttled(int device) {
  const char* text = std::getenv("HOSTGPU_THROTTLE");
  std::stringstream words(text ? text : "");
  std::string word;
  uint64_t mask = 0;
  for (int i = 0; i <= device && std::getline(words, word, ','); ++i)
    mask = i == device ? std::strtoull(word.c_str(), nullptr, 0) : 0;
  return mask;
}

// Since the machine started.
uint64_t Nanoseconds() {
  timespec now;
  clock_gettime(CLOCK_BOOTTIME, &now);
  return now.tv_sec * uint64_t{1000000000} + now.tv_nsec;
}

// The processes on a device, with the bytes they have of it.
std::map<unsigned, uint64_t> Processes(int device) {
  std::map<unsigned, uint64_t> found;
  // Each process on emulated GPUs writes its bytes by device into a file; see host_device.cc.
  const char* folder = std::getenv("HOSTGPU_STATE");
  DIR* files = folder && *folder ? opendir(folder) : nullptr;
  while (const dirent* entry = files ? readdir(files) : nullptr) {
    const int pid = std::atoi(entry->d_name);
    if (pid <= 0) continue;
    const std::string path = std::string(folder) + "/" + entry->d_name;
    if (kill(pid, 0) != 0 && errno == ESRCH) {
      unlink(path.c_str());  // it ended
      continue;
    }
    int64_t bytes[kMostDevices] = {};
    if (std::FILE* file = std::fopen(path.c_str(), "rb")) {
      const size_t all = std::fread(bytes, sizeof bytes, 1, file);
      if (all && bytes[device] > 0) found[pid] = bytes[device];
      std::fclose(file);
    }
  }
  if (files) closedir(files);
  const char* text = std::getenv("HOSTGPU_PROCESSES");
  std::stringstream words(text ? text : "");
  for (std::string word; std::getline(words, word, ',');) {
    int on = 0, pid = 0, megabytes = 0;
    const int parts = std::sscanf(word.c_str(), "%d:%d:%d", &on, &pid, &megabytes);
    if (parts == 3 && on == device) found[pid] += static_cast<uint64_t>(megabytes) << 20;
  }
  return found;
}

int Text(const std::string& value, char* to, unsigned length) {
  if (value.size() >= length) return kInsufficientSize;
  std::strcpy(to, value.c_str());
  return kSuccess;
}

template <typename T>
int Give(T* to, uint64_t value) {
  *to = value;
  return kSuccess;
}

}  // namespace

CALL int nvmlInitWithFlags(unsigned) { return kSuccess; }
CALL int nvmlShutdown() { return kSuccess; }
CALL const char* nvmlErrorString(int) { return "an error of the emulator"; }

CALL int nvmlSystemGetDriverVersion(char* to, unsigned length) {
  return Text("emulated", to, length);
}

CALL int nvmlDeviceGetCount_v2(unsigned* to) { return Give(to, Count()); }

CALL int nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle* to) {
  if (index >= static_cast<unsigned>(Count())) return kInvalidArgument;
  *to = &devices[index];
  return kSuccess;
}

// As TensorFlow has it.
CALL int nvmlDeviceGetName(Handle, char* to, unsigned length) {
  return Text("EMULATED_GPU", to, length);
}

CALL int nvmlDeviceGetUUID(Handle device, char* to, unsigned length) {
  char text[48];
  std::snprintf(text, sizeof text, "GPU-%08x-0000-0000-0000-000000000000", NumberOf(device));
  return Text(text, to, length);
}

CALL int nvmlDeviceGetMemoryInfo(Handle device, unsigned long long* total_free_used) {
  const int64_t total = Setting("HOSTGPU_MEMORY_MB", 4096) << 20;
  int64_t used = 0;
  for (const auto& [pid, bytes] : Processes(NumberOf(device))) used += bytes;
  total_free_used[0] = total;
  total_free_used[1] = std::max<int64_t>(0, total - used);
  total_free_used[2] = used;
  return kSuccess;
}

CALL int nvmlDeviceGetMaxClockInfo(Handle, int, unsigned* to) { return Give(to, kMaxMhz); }

CALL int nvmlDeviceGetClockInfo(Handle device, int, unsigned* to) {
  return Give(to, Throttled(NumberOf(device)) ? kThrottledMhz : kMaxMhz);
}

CALL int nvmlDeviceGetCurrentClocksThrottleReasons(Handle device, unsigned long long* to) {
  return Give(to, Throttled(NumberOf(device)));
}

// Of every policy: how long the GPU has been hot; ever since the machine started, if it is now.
CALL int nvmlDeviceGetViolationStatus(Handle device, int, unsigned long long* reference_violation) {
  reference_violation[0] = Nanoseconds() / 1000;
  reference_violation[1] = Throttled(NumberOf(device)) & kHeat ? Nanoseconds() : 0;
  return kSuccess;
}

CALL int nvmlDeviceGetPowerManagementLimit(Handle, unsigned* to) {
  return Give(to, kLimitWatts * 1000);
}

// In millijoules.
CALL int nvmlDeviceGetTotalEnergyConsumption(Handle, unsigned long long* to) {
  return Give(to, Nanoseconds() / 1000000 * kWatts);
}

CALL int nvmlDeviceGetPersistenceMode(Handle, int* to) { return Give(to, 1); }

struct ProcessInfo {
  unsigned pid;
  unsigned long long bytes;
  unsigned gpu_instance, compute_instance;
};

CALL int nvmlDeviceGetComputeRunningProcesses_v3(Handle device, unsigned* count,
                                                 ProcessInfo* infos) {
  const auto found = Processes(NumberOf(device));
  const unsigned room = *count;
  *count = found.size();
  if (found.size() > room) return kInsufficientSize;
  for (const auto& [pid, bytes] : found) *infos++ = {pid, bytes, ~0u, ~0u};
  return kSuccess;
}
