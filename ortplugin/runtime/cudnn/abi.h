// The part of cuDNN 9's graph interface that the plugin calls: names and numbers of cudnn_graph.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ortplugin::cudnn::abi {

using Status = int;
using Handle = struct cudnnContext*;
using RawDescriptor = void*;

// The thousands of a status say its kind.
enum StatusKind : int { kBadParameter = 2, kNotSupported = 3, kInternalError = 4, kExecutionFailed = 5 };

enum DataType : int { kFloat = 0, kDouble = 1, kHalf = 2, kBFloat16 = 9, kBoolean = 11 };

enum AttributeType : int {
  kTypeHandle = 0,
  kTypeDataType = 1,
  kTypeBoolean = 2,
  kTypeInt64 = 3,
  kTypeFloat = 4,
  kTypeDouble = 5,
  kTypePointer = 6,
  kTypeConvolutionMode = 7,
  kTypeHeuristicMode = 8,
  kTypeKnob = 9,
  kTypeNanPropagation = 10,
  kTypeNumericalNote = 11,
  kTypePointwiseMode = 14,
  kTypeDescriptor = 15,
  kTypeBehaviorNote = 19,
};

enum DescriptorType : int {
  kPointwise = 0,
  kConvolution = 1,
  kEngine = 2,
  kEngineConfiguration = 3,
  kHeuristic = 4,
  kPlan = 5,
  kKnobChoice = 7,
  kConvolutionForward = 10,
  kConvolutionWeightGradient = 11,
  kConvolutionDataGradient = 12,
  kPointwiseOperation = 13,
  kOperationGraph = 15,
  kVariantPack = 16,
  kTensor = 17,
};

enum Attribute : int {
  kPointwiseMode = 0,
  kPointwiseMathPrecision = 1,
  kPointwiseNanPropagation = 2,
  kReluLowerClip = 3,
  kReluUpperClip = 4,
  kReluLowerClipSlope = 5,
  kEluAlpha = 6,
  kSoftplusBeta = 7,
  kSwishBeta = 8,
  kConvolutionComputeType = 100,
  kConvolutionMode = 101,
  kConvolutionDilations = 102,
  kConvolutionStrides = 103,
  kConvolutionPostPaddings = 104,
  kConvolutionPrePaddings = 105,
  kConvolutionSpatialDims = 106,
  kHeuristicMode = 200,
  kHeuristicGraph = 201,
  kHeuristicResults = 202,
  kConfigurationEngine = 300,
  kConfigurationKnobChoices = 302,
  kPlanHandle = 400,
  kPlanConfiguration = 401,
  kPlanWorkspaceSize = 402,
  kKnobChoiceType = 600,
  kKnobChoiceValue = 601,
  // The three convolutions have each alpha, beta, the descriptor and three tensors in an order of their own.
  kForwardAlpha = 700,
  kForwardBeta = 701,
  kForwardConvolution = 702,
  kForwardW = 703,
  kForwardX = 704,
  kForwardY = 705,
  kDataGradientAlpha = 706,
  kDataGradientBeta = 707,
  kDataGradientConvolution = 708,
  kDataGradientW = 709,
  kDataGradientX = 710,
  kDataGradientY = 711,
  kWeightGradientAlpha = 712,
  kWeightGradientBeta = 713,
  kWeightGradientConvolution = 714,
  kWeightGradientW = 715,
  kWeightGradientX = 716,
  kWeightGradientY = 717,
  kOperationPointwise = 750,
  kOperationX = 751,
  kOperationB = 752,
  kOperationY = 753,
  kOperationT = 758,
  kGraphHandle = 800,
  kGraphOperations = 801,
  kTensorByteAlignment = 900,
  kTensorDataType = 901,
  kTensorDimensions = 902,
  kTensorStrides = 903,
  kTensorUniqueId = 906,
  kTensorIsVirtual = 907,
  kTensorIsByValue = 908,
  kVariantPackUniqueIds = 1000,
  kVariantPackPointers = 1001,
  kVariantPackWorkspace = 1003,
  kEngineGraph = 1300,
  kEngineIndex = 1301,
  kEngineNumericalNotes = 1303,
  kEngineBehaviorNotes = 1305,
};

enum class PointwiseMode : int {
  kAdd = 0,
  kMul = 1,
  kMin = 2,
  kMax = 3,
  kSqrt = 4,
  kDiv = 6,
  kSub = 9,
  kAbs = 10,
  kCeil = 11,
  kExp = 13,
  kFloor = 14,
  kLog = 15,
  kNeg = 16,
  kErf = 20,
  kIdentity = 21,
  kReciprocal = 22,
  kRelu = 100,
  kTanh = 101,
  kSigmoid = 102,
  kElu = 103,
  kGelu = 104,
  kSoftplus = 105,
  kSwish = 106,
  kGeluTanh = 107,
  kEqual = 300,
  kNotEqual = 301,
  kGreater = 302,
  kGreaterOrEqual = 303,
  kLess = 304,
  kLessOrEqual = 305,
  kAnd = 400,
  kOr = 401,
  kNot = 402,
  kSelect = 601,
};

enum HeuristicMode : int { kHeuristicB = 1, kHeuristicFallback = 2, kHeuristicA = 3 };

enum NumericalNote : int {
  kNoteTensorCore = 0,
  kNoteDownConvertInputs = 1,
  kNoteReducedPrecisionReduction = 2,
  kNoteFft = 3,
  kNoteNondeterministic = 4,
  kNoteWinograd = 5,
  kNoteStrictNanPropagation = 9,
};

enum BehaviorNote : int { kNoteRuntimeCompilation = 0 };

constexpr int kCrossCorrelation = 1;
constexpr int kPropagateNan = 1;

struct Functions {
  size_t (*cudnnGetVersion)();
  size_t (*cudnnGetCudartVersion)();
  const char* (*cudnnGetErrorString)(Status);
  void (*cudnnGetLastErrorString)(char*, size_t);
  Status (*cudnnCreate)(Handle*);
  Status (*cudnnDestroy)(Handle);
  Status (*cudnnSetStream)(Handle, void*);
  Status (*cudnnBackendCreateDescriptor)(DescriptorType, RawDescriptor*);
  Status (*cudnnBackendDestroyDescriptor)(RawDescriptor);
  Status (*cudnnBackendFinalize)(RawDescriptor);
  Status (*cudnnBackendSetAttribute)(RawDescriptor, Attribute, AttributeType, int64_t, const void*);
  Status (*cudnnBackendGetAttribute)(RawDescriptor, Attribute, AttributeType, int64_t, int64_t*, void*);
  Status (*cudnnBackendExecute)(Handle, RawDescriptor, RawDescriptor);
};

}  // namespace ortplugin::cudnn::abi
