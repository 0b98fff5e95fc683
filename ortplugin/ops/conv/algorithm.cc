#include "ortplugin/ops/conv/algorithm.h"

#include "ortplugin/runtime/text.h"

namespace ortplugin {
namespace {

constexpr const char* kWords[] = {"auto", "own", "fused", "split", "shuffle"};  // by kind

}  // namespace

std::string ConvAlgorithm::ToString() const {
  return kWords[size_t(kind)] + (plan ? ":" + plan->ToString() : std::string());
}

ConvAlgorithm ConvAlgorithm::Parse(const std::string& text) {
  const size_t colon = text.find(':');
  const std::string word = text.substr(0, colon);
  for (const Kind kind : {Kind::kAuto, Kind::kOwn, Kind::kFused, Kind::kSplit, Kind::kShuffle}) {
    if (word != kWords[size_t(kind)]) continue;
    if (colon == std::string::npos) return {kind, std::nullopt};
    if (kind == Kind::kAuto || kind == Kind::kOwn) break;
    try {
      return {kind, cudnn::PlanText::Parse(text.substr(colon + 1))};
    } catch (const Error& error) {
      Fail("algorithm is ", Quoted(text), ": ", error.what());
    }
  }
  Fail("algorithm is ", Quoted(text),
    ", but must be auto, own, fused, split or shuffle, of which the last three may name a ",
    "plan of cuDNN, as in fused:engine=3;k2=1. Use auto, or let optimize-model --tune find one");
}

}  // namespace ortplugin
