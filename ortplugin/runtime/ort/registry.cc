// The operator table, and the only way in: RegisterCustomOps, which ONNX Runtime calls when a program registers the
// library. Every function here that ORT calls returns a status; no exception leaves it.

#include <cstdio>
#include <mutex>
#include <unordered_map>

#include "ortplugin/ops/attention/attention.h"
#include "ortplugin/ops/conv/conv.h"
#include "ortplugin/ops/conv_grad/conv_grad.h"
#include "ortplugin/ops/conv_transpose/conv_transpose.h"
#include "ortplugin/ops/layer_norm/layer_norm.h"
#include "ortplugin/ops/lstm/lstm.h"
#include "ortplugin/ops/matmul/matmul_norm.h"
#include "ortplugin/ops/pointwise/pointwise.h"
#include "ortplugin/ops/pool/pool.h"
#include "ortplugin/ops/scatter/scatter.h"
#include "ortplugin/ops/sum_to/sum_to.h"
#include "ortplugin/ops/transpose/transpose.h"
#include "ortplugin/runtime/ort/ort.h"
#include "ortplugin/runtime/text.h"

namespace ortplugin {
namespace {

// One operator a line.
const Operator* const kOperators[] = {
  &kFusedLayerNorm,
  &kScatterND,
  &kScatterElements,
  &kUpdateSlice,
  &kFusedPointwise,
  &kFusedSumTo,
  &kFusedConv,
  &kFusedConvTranspose,
  &kConvGrad,
  &kFusedPool,
  &kFusedResize,
  &kFusedMatMul,
  &kFusedMatMulNorm,
  &kFusedAttention,
  &kFusedTranspose,
  &kFusedLSTM,
};

constexpr const char* kDomain = "ortplugin";
constexpr size_t kLongestName = 200, kLongestMessage = 20000;  // a compiler's log is long
constexpr const char* kRegistered = "ortplugin.registered";  // set in the session options that have the domain

// An operator on one execution provider, as ORT wants it. They are made once for each ORT in the process and never
// freed: sessions refer to them until the end, and the order in which a process unloads libraries is not ours.
struct RegisteredOp : ort::CustomOp {
  const Operator* op;
  std::string label;  // "ortplugin.FusedLayerNorm"
  bool on_cuda;
  const ort::Api* api;
};

struct CreatedKernel {
  std::unique_ptr<Kernel> kernel;
  const ort::Api* api;
  std::string node;
};

template <typename Body>
ort::Status* Guard(const ort::Api* api, const std::string& where, Body body) noexcept {
  try {
    try {
      body();
      return nullptr;
    } catch (const std::bad_alloc&) {
      return ort::CreateStatus(api, ort::kOrtFail, (where + ": out of host memory").c_str());
    } catch (const std::exception& error) {
      // No text of a model may reach a terminal's control sequences, or break a caller that decodes UTF-8.
      const std::string message = Printable(where + ": " + error.what(), kLongestMessage, true);
      return ort::CreateStatus(api, ort::kOrtFail, message.c_str());
    }
  } catch (...) {
    return ort::CreateStatus(api, ort::kOrtFail, "ortplugin: an error that could not be described");
  }
}

const RegisteredOp& Registered(const ort::CustomOp* op) { return *static_cast<const RegisteredOp*>(op); }

ort::Status* InferShapes(const ort::CustomOp* op, ort::ShapeInferContext* context) {
  const RegisteredOp& registered = Registered(op);
  return Guard(registered.api, registered.label, [&] {
    ShapeContext shapes(registered.api, context);
    registered.op->infer(shapes);
  });
}

ort::Status* CreateKernel(const ort::CustomOp* op, const ort::Api* api, const ort::KernelInfo* info, void** kernel) {
  const RegisteredOp& registered = Registered(op);
  *kernel = nullptr;
  return Guard(api, registered.label, [&] {
    const NodeInfo node_info(api, info);
    const std::string name = "node '" + Printable(node_info.name(), kLongestName, false) + "'";
    try {
      auto created = std::make_unique<CreatedKernel>();
      created->kernel = (registered.on_cuda ? registered.op->create_cuda : registered.op->create_cpu)(node_info);
      created->api = api;
      created->node = registered.label + " " + name;
      *kernel = created.release();
    } catch (const Error& error) {
      Fail(name, ": ", error.what());
    }
  });
}

ort::Status* ComputeKernel(void* kernel, ort::KernelContext* context) {
  const CreatedKernel& created_kernel = *static_cast<CreatedKernel*>(kernel);
  return Guard(created_kernel.api, created_kernel.node, [&] {
    Run run(created_kernel.api, context);
    created_kernel.kernel->Compute(run);
  });
}

RegisteredOp* Describe(const Operator& op, bool on_cuda, const ort::Api* api) {
  auto* registered = new RegisteredOp{};
  registered->op = &op;
  registered->label = std::string(kDomain) + "." + op.name;
  registered->on_cuda = on_cuda;
  registered->api = api;
  registered->version = ort::kApiVersion;
  registered->GetName = [](const ort::CustomOp* self) { return Registered(self).op->name; };
  registered->GetExecutionProviderType = [](const ort::CustomOp* self) -> const char* {
    return Registered(self).on_cuda ? "CUDAExecutionProvider" : nullptr;
  };
  registered->GetInputType = [](const ort::CustomOp*, size_t) { return ort::kUndefined; };
  registered->GetInputTypeCount = [](const ort::CustomOp*) -> size_t { return 1; };
  registered->GetOutputType = [](const ort::CustomOp*, size_t) { return ort::kUndefined; };
  registered->GetOutputTypeCount = [](const ort::CustomOp*) -> size_t { return 1; };
  registered->GetInputCharacteristic = [](const ort::CustomOp*, size_t) { return ort::kVariadic; };
  registered->GetOutputCharacteristic = [](const ort::CustomOp*, size_t) { return ort::kVariadic; };
  registered->GetInputMemoryType = [](const ort::CustomOp*, size_t) { return ort::kMemTypeDefault; };
  registered->GetVariadicInputMinArity = [](const ort::CustomOp*) { return 1; };
  registered->GetVariadicInputHomogeneity = [](const ort::CustomOp*) { return 0; };
  registered->GetVariadicOutputMinArity = [](const ort::CustomOp*) { return 1; };
  registered->GetVariadicOutputHomogeneity = [](const ort::CustomOp*) { return 0; };
  registered->CreateKernelV2 = CreateKernel;
  registered->KernelComputeV2 = ComputeKernel;
  registered->KernelDestroy = [](void* kernel) { delete static_cast<CreatedKernel*>(kernel); };
  registered->InferOutputShapeFn = InferShapes;
  if (op.in_place != nullptr) {
    registered->GetMayInplace = op.in_place;
    registered->ReleaseMayInplace = [](int* inputs, int* outputs) {
      delete[] inputs;
      delete[] outputs;
    };
  }
  registered->GetStartVersion = [](const ort::CustomOp*) { return 1; };
  registered->GetEndVersion = [](const ort::CustomOp*) { return 1; };
  return registered;
}

// The domain with all operators, made at the first registration with this ORT.
ort::CustomOpDomain* Domain(const ort::Api* api) {
  static auto* const mutex = new std::mutex;
  static auto* const domains = new std::unordered_map<const ort::Api*, ort::CustomOpDomain*>;
  const std::lock_guard<std::mutex> lock(*mutex);
  ort::CustomOpDomain*& domain = (*domains)[api];
  if (domain == nullptr) {
    ort::CustomOpDomain* made = nullptr;
    Check(api, ort::CreateCustomOpDomain(api, kDomain, &made));
    for (const Operator* op : kOperators)
      for (const bool on_cuda : {false, true})
        Check(api, ort::CustomOpDomain_Add(api, made, static_cast<const ort::CustomOp*>(Describe(*op, on_cuda, api))));
    domain = made;
  }
  return domain;
}

}  // namespace
}  // namespace ortplugin

extern "C" __attribute__((visibility("default"))) ortplugin::ort::Status* RegisterCustomOps(
  ortplugin::ort::SessionOptions* options, const ortplugin::ort::ApiBase* base) {
  using namespace ortplugin;
  const ort::Api* api = base->GetApi(ort::kApiVersion);
  if (api == nullptr) {
    // An ORT this old still has CreateStatus, the first function of every version's table.
    api = base->GetApi(1);
    return Guard(api, "ortplugin", [&] {
      Fail("it needs ONNX Runtime ", ort::kMinimumRelease, " or later; this process has ", base->GetVersionString(),
        ". Upgrade onnxruntime or onnxruntime-gpu");
    });
  }
  return Guard(api, "ortplugin", [&] {
    int registered = 0;
    Check(
      api, ort::HasSessionConfigEntry(api, static_cast<const ort::SessionOptions*>(options), kRegistered, &registered));
    if (registered) return;
    // By its release: asked for an API that it lacks, ORT prints a complaint.
    int minor = 0;
    if (std::sscanf(base->GetVersionString(), "1.%d", &minor) == 1) NoteRelease(api, minor);
    Check(api, ort::AddCustomOpDomain(api, options, Domain(api)));
    Check(api, ort::AddSessionConfigEntry(api, options, kRegistered, "1"));
  });
}
