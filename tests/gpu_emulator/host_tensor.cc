#include "host_tensor.h"

#include <cstring>

#include "tensorflow/core/framework/allocation_description.pb.h"

namespace hostgpu {

using tensorflow::DataTypeSize;
using tensorflow::Tensor;
using tensorflow::TensorBuffer;
using tensorflow::TensorShape;

namespace {

class Borrowed : public TensorBuffer {
 public:
  Borrowed(const Tensor& tensor, bool owned)
      : TensorBuffer(tensor.data()), size_(tensor.TotalBytes()), owned_(owned) {}
  size_t size() const override { return size_; }
  TensorBuffer* root_buffer() override { return this; }
  void FillAllocationDescription(tensorflow::AllocationDescription*) const override {}
  bool OwnsMemory() const override { return owned_; }

 private:
  const size_t size_;
  const bool owned_;
};

// Swaps the two inner dimensions of [n, rows, columns].
Tensor Swapped(const Tensor& from, const TensorShape& shape, int64_t n, int64_t rows,
               int64_t columns) {
  Tensor result(from.dtype(), shape);
  const size_t size = DataTypeSize(from.dtype());
  const char* in = static_cast<const char*>(from.data());
  char* out = static_cast<char*>(result.data());
  for (int64_t i = 0; i < n; ++i)
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c)
        std::memcpy(out + ((i * columns + c) * rows + r) * size,
                    in + ((i * rows + r) * columns + c) * size, size);
  return result;
}

// Element by element, of a floating-point type.
template <class Function>
Tensor Combined(const Tensor& a, const Tensor& b, Function function) {
  Tensor result(a.dtype(), a.shape());
  switch (a.dtype()) {
#define CASE(T)                                                                          \
  case tensorflow::DataTypeToEnum<T>::value:                                             \
    for (int64_t i = 0; i < a.NumElements(); ++i)                                        \
      result.flat<T>()(i) = function(a.unaligned_flat<T>()(i), b.unaligned_flat<T>()(i)); \
    break;
    CASE(float)
    CASE(Eigen::half)
    CASE(tensorflow::bfloat16)
#undef CASE
    default:
      LOG(FATAL) << "no " << tensorflow::DataTypeString(a.dtype());
  }
  return result;
}

}  // namespace

Tensor Sum(const Tensor& a, const Tensor& b) {
  return Combined(a, b, [](auto x, auto y) { return x + y; });
}

Tensor WherePositive(const Tensor& a, const Tensor& b) {
  return Combined(a, b, [](auto x, auto y) { return y > decltype(y)(0) ? x : decltype(x)(0); });
}

Tensor Alias(const Tensor& tensor, bool owned) {
  if (tensor.TotalBytes() == 0) return tensor;
  auto* buffer = new Borrowed(tensor, owned);
  Tensor result(tensor.dtype(), tensor.shape(), buffer);
  buffer->Unref();
  return result;
}

Tensor Aligned(const Tensor& tensor) {
  if (tensor.TotalBytes() == 0 || reinterpret_cast<uintptr_t>(tensor.data()) % 64 == 0 ||
      !tensorflow::DataTypeCanUseMemcpy(tensor.dtype()))
    return tensor;
  Tensor result(tensor.dtype(), tensor.shape());
  std::memcpy(result.data(), tensor.data(), tensor.TotalBytes());
  return result;
}

Tensor ToChannelsLast(const Tensor& t) {
  if (t.dims() != 4) return t;
  const int64_t n = t.dim_size(0), c = t.dim_size(1), h = t.dim_size(2), w = t.dim_size(3);
  return Swapped(t, TensorShape({n, h, w, c}), n, c, h * w);
}

Tensor ToChannelsFirst(const Tensor& t) {
  if (t.dims() != 4) return t;
  const int64_t n = t.dim_size(0), h = t.dim_size(1), w = t.dim_size(2), c = t.dim_size(3);
  return Swapped(t, TensorShape({n, c, h, w}), n, h * w, c);
}

Tensor SizesToChannelsLast(const Tensor& sizes) {
  if (sizes.NumElements() != 4) return sizes;
  static const int order[] = {0, 2, 3, 1};
  Tensor result(sizes.dtype(), sizes.shape());
  for (int i = 0; i < 4; ++i) {
    if (sizes.dtype() == tensorflow::DT_INT32) {
      result.flat<int32_t>()(i) = sizes.flat<int32_t>()(order[i]);
    } else {
      result.flat<int64_t>()(i) = sizes.flat<int64_t>()(order[i]);
    }
  }
  return result;
}

Tensor LastDimensionPart(const Tensor& tensor, int64_t part, int64_t parts) {
  TensorShape shape = tensor.shape();
  const int last = shape.dims() - 1;
  const int64_t count = shape.dim_size(last) / parts;
  shape.set_dim(last, count);
  Tensor result(tensor.dtype(), shape);
  const size_t size = count * DataTypeSize(tensor.dtype());
  const char* in = static_cast<const char*>(tensor.data()) + part * size;
  char* out = static_cast<char*>(result.data());
  for (int64_t row = 0; row < result.NumElements() / count; ++row)
    std::memcpy(out + row * size, in + row * parts * size, size);
  return result;
}

Tensor JoinedLastDimension(const std::vector<Tensor>& parts) {
  TensorShape shape = parts[0].shape();
  const int last = shape.dims() - 1;
  const int64_t count = shape.dim_size(last), rows = parts[0].NumElements() / count;
  shape.set_dim(last, count * parts.size());
  Tensor result(parts[0].dtype(), shape);
  const size_t size = count * DataTypeSize(result.dtype());
  char* out = static_cast<char*>(result.data());
  for (int64_t row = 0; row < rows; ++row)
    for (const Tensor& part : parts) {
      std::memcpy(out, static_cast<const char*>(part.data()) + row * size, size);
      out += size;
    }
  return result;
}

void EnqueueCopy(SP_Stream stream, const Tensor& from, const Tensor& to) {
  if (from.TotalBytes() == 0) return;
  Enqueue(stream, "", Annotation(), [out = to.data(), in = from.data(), size = from.TotalBytes()] {
    if (!Skips()) std::memcpy(out, in, size);
  });
}

}  // namespace hostgpu
