// The part of ONNX Runtime's published C interface that the plugin uses. ORT's headers are not in its wheel, and its
// function table only ever grows at the end, so an index stays right in every later version. Names, order and
// signatures are those of onnxruntime_c_api.h (API 18 and later); nothing else of it is needed here.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ortplugin::ort {

// What the plugin asks of ORT: 18 (ONNX Runtime 1.18) is the first with everything below and with in-place hints.
constexpr uint32_t kApiVersion = 18;
constexpr const char* kMinimumRelease = "1.18";

struct Api {
  void* functions[1];  // indexed by the numbers below
};
struct ApiBase {
  const Api* (*GetApi)(uint32_t version);
  const char* (*GetVersionString)();
};

struct Status;
struct Value;
struct MemoryInfo;
struct Allocator;
struct TypeInfo;
struct TensorInfo;  // OrtTensorTypeAndShapeInfo
struct SessionOptions;
struct CustomOp;
struct CustomOpDomain;
struct KernelInfo;
struct KernelContext;
struct ShapeInferContext;
struct OpAttr;
struct Op;

enum ErrorCode : int { kOrtFail = 1 };
enum MemType : int { kMemTypeDefault = 0 };
enum Characteristic : int { kVariadic = 2 };
enum AllocatorType : int { kDeviceAllocator = 0 };
enum OpAttrType : int { kAttrInt = 1, kAttrInts = 2, kAttrFloat = 3, kAttrFloats = 4, kAttrString = 5 };
// ONNXTensorElementDataType, whose numbers are those of ONNX's TensorProto.DataType.
enum ElementType : int {
  kUndefined = 0,
  kFloat = 1,
  kUInt8 = 2,
  kInt8 = 3,
  kUInt16 = 4,
  kInt16 = 5,
  kInt32 = 6,
  kInt64 = 7,
  kString = 8,
  kBool = 9,
  kFloat16 = 10,
  kDouble = 11,
  kUInt32 = 12,
  kUInt64 = 13,
  kComplex64 = 14,
  kComplex128 = 15,
  kBFloat16 = 16,
  kFloat8E4M3FN = 17,
  kFloat8E4M3FNUZ = 18,
  kFloat8E5M2 = 19,
  kFloat8E5M2FNUZ = 20,
};

// clang-format off
#define ORTPLUGIN_ORT_FUNCTIONS(X) \
  X(0, CreateStatus, Status*, ErrorCode, const char*) \
  X(2, GetErrorMessage, const char*, const Status*) \
  X(26, CreateCustomOpDomain, Status*, const char*, CustomOpDomain**) \
  X(27, CustomOpDomain_Add, Status*, CustomOpDomain*, const CustomOp*) \
  X(28, AddCustomOpDomain, Status*, SessionOptions*, CustomOpDomain*) \
  X(49, CreateTensorWithDataAsOrtValue, Status*, const MemoryInfo*, void*, size_t, const int64_t*, size_t, \
    ElementType, Value**) \
  X(51, GetTensorMutableData, Status*, Value*, void**) \
  X(55, CastTypeInfoToTensorInfo, Status*, const TypeInfo*, const TensorInfo**) \
  X(57, CreateTensorTypeAndShapeInfo, Status*, TensorInfo**) \
  X(58, SetTensorElementType, Status*, TensorInfo*, ElementType) \
  X(59, SetDimensions, Status*, TensorInfo*, const int64_t*, size_t) \
  X(60, GetTensorElementType, Status*, const TensorInfo*, ElementType*) \
  X(61, GetDimensionsCount, Status*, const TensorInfo*, size_t*) \
  X(62, GetDimensions, Status*, const TensorInfo*, int64_t*, size_t) \
  X(63, GetSymbolicDimensions, Status*, const TensorInfo*, const char**, size_t) \
  X(65, GetTensorTypeAndShape, Status*, const Value*, TensorInfo**) \
  X(69, CreateCpuMemoryInfo, Status*, AllocatorType, MemType, MemoryInfo**) \
  X(72, MemoryInfoGetId, Status*, const MemoryInfo*, int*) \
  X(75, AllocatorAlloc, Status*, Allocator*, size_t, void**) \
  X(76, AllocatorFree, Status*, Allocator*, void*) \
  X(77, AllocatorGetInfo, Status*, const Allocator*, const MemoryInfo**) \
  X(85, KernelInfoGetAttribute_float, Status*, const KernelInfo*, const char*, float*) \
  X(86, KernelInfoGetAttribute_int64, Status*, const KernelInfo*, const char*, int64_t*) \
  X(87, KernelInfoGetAttribute_string, Status*, const KernelInfo*, const char*, char*, size_t*) \
  X(90, KernelContext_GetInput, Status*, const KernelContext*, size_t, const Value**) \
  X(91, KernelContext_GetOutput, Status*, KernelContext*, size_t, const int64_t*, size_t, Value**) \
  X(93, ReleaseStatus, void, Status*) \
  X(94, ReleaseMemoryInfo, void, MemoryInfo*) \
  X(96, ReleaseValue, void, Value*) \
  X(98, ReleaseTypeInfo, void, TypeInfo*) \
  X(99, ReleaseTensorTypeAndShapeInfo, void, TensorInfo*) \
  X(130, AddSessionConfigEntry, Status*, SessionOptions*, const char*, const char*) \
  X(132, ReleaseAllocator, void, Allocator*) \
  X(162, KernelInfoGetAttributeArray_float, Status*, const KernelInfo*, const char*, float*, size_t*) \
  X(163, KernelInfoGetAttributeArray_int64, Status*, const KernelInfo*, const char*, int64_t*, size_t*) \
  X(193, KernelContext_GetGPUComputeStream, Status*, const KernelContext*, void**) \
  X(211, CreateOpAttr, Status*, const char*, const void*, int, OpAttrType, OpAttr**) \
  X(212, ReleaseOpAttr, void, OpAttr*) \
  X(213, CreateOp, Status*, const KernelInfo*, const char*, const char*, int, const char**, const ElementType*, int, \
    const OpAttr* const*, int, int, int, Op**) \
  X(214, InvokeOp, Status*, const KernelContext*, const Op*, const Value* const*, int, Value* const*, int) \
  X(215, ReleaseOp, void, Op*) \
  X(217, CopyKernelInfo, Status*, const KernelInfo*, KernelInfo**) \
  X(218, ReleaseKernelInfo, void, KernelInfo*) \
  X(230, KernelInfo_GetInputCount, Status*, const KernelInfo*, size_t*) \
  X(231, KernelInfo_GetOutputCount, Status*, const KernelInfo*, size_t*) \
  X(234, KernelInfo_GetInputTypeInfo, Status*, const KernelInfo*, size_t, TypeInfo**) \
  X(237, HasSessionConfigEntry, Status*, const SessionOptions*, const char*, int*) \
  X(244, KernelInfo_GetNodeName, Status*, const KernelInfo*, char*, size_t*) \
  X(249, KernelInfoGetConstantInput_tensor, Status*, const KernelInfo*, size_t, int*, const Value**) \
  X(265, KernelContext_GetResource, Status*, const KernelContext*, int, int, void**) \
  X(267, ShapeInferContext_GetInputCount, Status*, const ShapeInferContext*, size_t*) \
  X(268, ShapeInferContext_GetInputTypeShape, Status*, const ShapeInferContext*, size_t, TensorInfo**) \
  X(269, ShapeInferContext_GetAttribute, Status*, const ShapeInferContext*, const char*, const OpAttr**) \
  X(270, ShapeInferContext_SetOutputTypeShape, Status*, const ShapeInferContext*, size_t, const TensorInfo*) \
  X(271, SetSymbolicDimensions, Status*, TensorInfo*, const char**, size_t) \
  X(272, ReadOpAttr, Status*, const OpAttr*, OpAttrType, void*, size_t, size_t*) \
  X(274, KernelContext_ParallelFor, Status*, const KernelContext*, void (*)(void*, size_t), size_t, size_t, void*) \
  X(277, KernelContext_GetScratchBuffer, Status*, const KernelContext*, const MemoryInfo*, size_t, void**) \
  X(278, KernelInfoGetAllocator, Status*, const KernelInfo*, MemType, Allocator**) \
  X(390, TensorTypeAndShape_HasShape, bool, const TensorInfo*) /* API 24; see KnowsShape in ort.cc */
// clang-format on

#define ORTPLUGIN_DECLARE(index, name, returns, ...) \
  template <typename... Arguments> \
  returns name(const Api* api, Arguments... arguments) { \
    using Function = returns (*)(__VA_ARGS__); \
    return reinterpret_cast<Function>(const_cast<Api*>(api)->functions[index])(arguments...); \
  }
ORTPLUGIN_ORT_FUNCTIONS(ORTPLUGIN_DECLARE)
#undef ORTPLUGIN_DECLARE

// OrtCustomOp as of API 18. ORT reads only the members that `version` promises.
struct CustomOp {
  uint32_t version;
  void* (*CreateKernel)(const CustomOp*, const Api*, const KernelInfo*);
  const char* (*GetName)(const CustomOp*);
  const char* (*GetExecutionProviderType)(const CustomOp*);
  ElementType (*GetInputType)(const CustomOp*, size_t);
  size_t (*GetInputTypeCount)(const CustomOp*);
  ElementType (*GetOutputType)(const CustomOp*, size_t);
  size_t (*GetOutputTypeCount)(const CustomOp*);
  void (*KernelCompute)(void*, KernelContext*);
  void (*KernelDestroy)(void*);
  Characteristic (*GetInputCharacteristic)(const CustomOp*, size_t);
  Characteristic (*GetOutputCharacteristic)(const CustomOp*, size_t);
  MemType (*GetInputMemoryType)(const CustomOp*, size_t);
  int (*GetVariadicInputMinArity)(const CustomOp*);
  int (*GetVariadicInputHomogeneity)(const CustomOp*);
  int (*GetVariadicOutputMinArity)(const CustomOp*);
  int (*GetVariadicOutputHomogeneity)(const CustomOp*);
  Status* (*CreateKernelV2)(const CustomOp*, const Api*, const KernelInfo*, void**);
  Status* (*KernelComputeV2)(void*, KernelContext*);
  Status* (*InferOutputShapeFn)(const CustomOp*, ShapeInferContext*);
  int (*GetStartVersion)(const CustomOp*);
  int (*GetEndVersion)(const CustomOp*);
  size_t (*GetMayInplace)(int**, int**);
  void (*ReleaseMayInplace)(int*, int*);
  size_t (*GetAliasMap)(int**, int**);
  void (*ReleaseAliasMap)(int*, int*);
};

}  // namespace ortplugin::ort
