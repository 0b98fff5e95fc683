// Runs an optimized model once through ONNX Runtime's C interface:
//
//   ORTPLUGIN_LIBRARY=.../libortplugin.so run_model MODEL [--cuda]
//
// What a program adds for ortplugin is one line in main: RegisterCustomOpsLibrary_V2. The rest makes inputs of the
// model's shapes (dynamic dimensions are 1), runs it, and prints each output's name, shape and first values.
#include <onnxruntime_c_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

const OrtApi* ort = nullptr;

[[noreturn]] void Stop(const std::string& message) {
  std::fprintf(stderr, "run_model: %s\n", message.c_str());
  std::exit(1);
}

void Check(OrtStatus* status) {
  if (status) Stop(ort->GetErrorMessage(status));
}

// A tensor's type, shape and data; what most programs know beforehand.
struct Tensor {
  ONNXTensorElementDataType type;
  std::vector<int64_t> shape;
  size_t count = 1;  // of elements
  void* data = nullptr;

  explicit Tensor(const OrtTensorTypeAndShapeInfo* info) {
    size_t rank = 0;
    Check(ort->GetTensorElementType(info, &type));
    Check(ort->GetDimensionsCount(info, &rank));
    shape.resize(rank);
    Check(ort->GetDimensions(info, shape.data(), rank));
    for (int64_t& dimension : shape) count *= static_cast<size_t>(dimension = dimension < 0 ? 1 : dimension);
  }
};

OrtValue* MakeInput(const OrtSession* session, size_t index, OrtAllocator* allocator) {
  OrtTypeInfo* type_info = nullptr;
  const OrtTensorTypeAndShapeInfo* info = nullptr;
  Check(ort->SessionGetInputTypeInfo(session, index, &type_info));
  Check(ort->CastTypeInfoToTensorInfo(type_info, &info));
  if (!info) Stop("input " + std::to_string(index) + " is no tensor");
  Tensor tensor(info);
  ort->ReleaseTypeInfo(type_info);
  OrtValue* value = nullptr;
  Check(ort->CreateTensorAsOrtValue(allocator, tensor.shape.data(), tensor.shape.size(), tensor.type, &value));
  Check(ort->GetTensorMutableData(value, &tensor.data));
  for (size_t i = 0; i < tensor.count; ++i) {
    if (tensor.type == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT) {
      static_cast<float*>(tensor.data)[i] = 0.5f + static_cast<float>(i % 64) / 256;
    } else if (tensor.type == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16) {  // the same numbers
      static_cast<uint16_t*>(tensor.data)[i] = static_cast<uint16_t>(0x3800 + i % 64 * 8);
    } else if (tensor.type == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64) {  // a token, or a mask's "look at this"
      static_cast<int64_t*>(tensor.data)[i] = 1;
    } else if (tensor.type == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32) {
      static_cast<int32_t*>(tensor.data)[i] = 1;
    } else if (tensor.type == ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL) {
      static_cast<bool*>(tensor.data)[i] = true;
    } else {
      Stop("this example has no values for an input of element type " + std::to_string(tensor.type));
    }
  }
  return value;
}

double Element(const Tensor& tensor, size_t i) {
  if (tensor.type == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT) return static_cast<float*>(tensor.data)[i];
  if (tensor.type == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32) return static_cast<int32_t*>(tensor.data)[i];
  if (tensor.type == ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL) return static_cast<bool*>(tensor.data)[i];
  if (tensor.type == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64) {
    return static_cast<double>(static_cast<int64_t*>(tensor.data)[i]);
  }
  if (tensor.type != ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16) return NAN;
  const uint16_t half = static_cast<uint16_t*>(tensor.data)[i];
  uint32_t bits = (half & 0x7fffu) << 13;  // a float, but for its exponent's bias
  if ((half & 0x7c00) == 0x7c00) bits |= 0x7f800000;  // infinity and NaN
  float magnitude;
  std::memcpy(&magnitude, &bits, sizeof magnitude);
  return std::ldexp(magnitude, 127 - 15) * (half >> 15 ? -1 : 1);
}

void Print(const char* name, OrtValue* value) {
  OrtTensorTypeAndShapeInfo* info = nullptr;
  Check(ort->GetTensorTypeAndShape(value, &info));
  Tensor tensor(info);
  ort->ReleaseTensorTypeAndShapeInfo(info);
  Check(ort->GetTensorMutableData(value, &tensor.data));
  std::printf("%s [", name);
  for (size_t i = 0; i < tensor.shape.size(); ++i) {
    std::printf("%s%lld", i ? ", " : "", static_cast<long long>(tensor.shape[i]));
  }
  std::printf("]:");
  for (size_t i = 0; i < std::min(tensor.count, size_t{8}); ++i) std::printf(" %.6g", Element(tensor, i));
  std::printf(tensor.count > 8 ? " ...\n" : "\n");
}

}  // namespace

int main(int argc, char** argv) {
  const bool cuda = argc == 3 && std::strcmp(argv[2], "--cuda") == 0;
  if (argc != (cuda ? 3 : 2)) Stop("usage: run_model MODEL [--cuda]");
  const char* const library = std::getenv("ORTPLUGIN_LIBRARY");
  ort = OrtGetApiBase()->GetApi(ORT_API_VERSION);
  if (!ort)
    Stop(std::string("built with headers newer than this ONNX Runtime, ") + OrtGetApiBase()->GetVersionString());

  OrtEnv* env = nullptr;
  OrtSessionOptions* options = nullptr;
  Check(ort->CreateEnv(ORT_LOGGING_LEVEL_WARNING, "run_model", &env));
  Check(ort->CreateSessionOptions(&options));
  if (library) Check(ort->RegisterCustomOpsLibrary_V2(options, library));  // ORT also unloads it, after the session
  if (cuda) {
    OrtCUDAProviderOptionsV2* cuda_options = nullptr;
    Check(ort->CreateCUDAProviderOptions(&cuda_options));
    Check(ort->SessionOptionsAppendExecutionProvider_CUDA_V2(options, cuda_options));
    ort->ReleaseCUDAProviderOptions(cuda_options);
  }
  OrtSession* session = nullptr;
  Check(ort->CreateSession(env, argv[1], options, &session));
  ort->ReleaseSessionOptions(options);

  OrtAllocator* allocator = nullptr;  // the CPU's; with CUDA, Run copies in and out
  size_t input_count = 0, output_count = 0;
  Check(ort->GetAllocatorWithDefaultOptions(&allocator));
  Check(ort->SessionGetInputCount(session, &input_count));
  Check(ort->SessionGetOutputCount(session, &output_count));
  std::vector<char*> input_names(input_count), output_names(output_count);
  std::vector<OrtValue*> inputs(input_count), outputs(output_count);
  for (size_t i = 0; i < input_count; ++i) {
    Check(ort->SessionGetInputName(session, i, allocator, &input_names[i]));
    inputs[i] = MakeInput(session, i, allocator);
  }
  for (size_t i = 0; i < output_count; ++i) {
    Check(ort->SessionGetOutputName(session, i, allocator, &output_names[i]));
  }
  Check(ort->Run(session, nullptr, input_names.data(), inputs.data(), input_count, output_names.data(), output_count,
    outputs.data()));
  for (size_t i = 0; i < output_count; ++i) Print(output_names[i], outputs[i]);

  for (OrtValue* value : inputs) ort->ReleaseValue(value);
  for (OrtValue* value : outputs) ort->ReleaseValue(value);
  for (char* name : input_names) Check(ort->AllocatorFree(allocator, name));
  for (char* name : output_names) Check(ort->AllocatorFree(allocator, name));
  ort->ReleaseSession(session);
  ort->ReleaseEnv(env);
  return 0;
}
