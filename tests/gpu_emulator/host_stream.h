// What the kernels of the fake GPU need of its streams. See README.md.
#ifndef HOSTGPU_HOST_STREAM_H_
#define HOSTGPU_HOST_STREAM_H_

#include <cstdint>
#include <functional>
#include <string>

#include "tensorflow/c/experimental/stream_executor/stream_executor.h"

namespace hostgpu {

// Puts work at the end of a stream and returns at once. The stream's thread runs it when all that
// was put there before is done. `operation`, "name:type" of a kernel's node, makes it count, take
// its time and be traced as a kernel; "" as a copy within the device. `annotation`: see `Profile`.
void Enqueue(SP_Stream stream, const std::string& operation, const std::string& annotation,
             std::function<void()> work);

// Calls a function on the stream's thread when all that was put there before is done.
void Then(SP_Stream stream, std::function<void()> call);

// Waits until all that was put on the stream so far is done.
void Drain(SP_Stream stream);

// Lets a stream wait for what was put on another so far.
void After(SP_Stream stream, SP_Stream other);

// A further stream of a device, for ever.
SP_Stream NewStream(int ordinal);

// Number of the device a stream belongs to.
int Ordinal(SP_Stream stream);

// How many devices there are.
int DeviceCount();

// Remembers the first error of work on a stream; reported by the next launch on the device.
void Fail(SP_Stream stream, const std::string& message);
// The error, or "".
std::string Failure(SP_Stream stream);

// Work that HOSTGPU_RULES has something to say about: "kernel NAME:TYPE" or "MemcpyH2D", for example.
struct Verdict {
  int64_t delay_us = 0;  // it takes at least so long
  bool fails = false;    // as a faulty device does: every later event on it is an error
  bool hangs = false;    // never ends
};
// What happens to this execution on a device; counts it.
Verdict RuleFor(int ordinal, const std::string& work);

// Counts and traces a kernel that could not be launched asynchronously.
void CountSynchronous(SP_Stream stream, const std::string& name, const std::string& type);

// Appends what a stream did to the file of HOSTGPU_TRACE.
void Trace(int device, const void* stream, const char* what, const std::string& operation,
           int64_t start_ns, int64_t end_ns);

// Number of a device of this process on the machine; see CUDA_VISIBLE_DEVICES.
int OnMachine(int ordinal);

// What TensorFlow says of the launches of this thread while the profiler is on, without attributes.
std::string Annotation();

// Remembers what a stream did for the profiler, if that is on. `annotation`: that of the thread
// which launched it.
void Profile(int ordinal, const void* stream, const char* what, const std::string& annotation,
             int64_t start_ns, int64_t end_ns);

// As TensorFlow's profiler counts.
int64_t NanosecondsNow();

// Whether nothing is computed; see HOSTGPU_SKIP.
bool Skips();

// An integer of an environment variable.
int64_t Setting(const char* name, int64_t otherwise);

}  // namespace hostgpu

#endif  // HOSTGPU_HOST_STREAM_H_
