// Tensors at memory of a fake GPU. See README.md.
#ifndef HOSTGPU_HOST_TENSOR_H_
#define HOSTGPU_HOST_TENSOR_H_

#include <vector>

#include "host_stream.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace hostgpu {

// A tensor at the same memory that does not keep it. Kernels write into it only if `owned`.
tensorflow::Tensor Alias(const tensorflow::Tensor& tensor, bool owned = false);

// The tensor, or a copy of one that begins where the CPU's vector instructions cannot.
tensorflow::Tensor Aligned(const tensorflow::Tensor& tensor);

// NCHW to NHWC and back. Of other ranks than 4 the tensor itself.
tensorflow::Tensor ToChannelsLast(const tensorflow::Tensor& tensor);
tensorflow::Tensor ToChannelsFirst(const tensorflow::Tensor& tensor);
tensorflow::Tensor SizesToChannelsLast(const tensorflow::Tensor& sizes);

// Element by element: a + b; a where b is positive, otherwise 0.
tensorflow::Tensor Sum(const tensorflow::Tensor& a, const tensorflow::Tensor& b);
tensorflow::Tensor WherePositive(const tensorflow::Tensor& a, const tensorflow::Tensor& b);

// One of equal parts of the last dimension, and all of them joined.
tensorflow::Tensor LastDimensionPart(const tensorflow::Tensor& tensor, int64_t part, int64_t parts);
tensorflow::Tensor JoinedLastDimension(const std::vector<tensorflow::Tensor>& parts);

// Copies on a stream, between tensors of one device.
void EnqueueCopy(SP_Stream stream, const tensorflow::Tensor& from, const tensorflow::Tensor& to);

// The stream a kernel launches on.
SP_Stream StreamOf(tensorflow::OpKernelContext* c);

}  // namespace hostgpu

#endif  // HOSTGPU_HOST_TENSOR_H_
