// The attribute `algorithm` of a convolution: what it may be, and that texts are read as they are written.

#include "ortplugin/ops/conv/algorithm.h"

#include "tests/native/check.h"

using namespace ortplugin;

int main() {
  for (const char* text : {"auto", "own", "fused", "split", "fused:engine=3;k2=1", "split:engine=0;k0=1;k14=27",
         "shuffle", "shuffle:engine=63;k25=1"})
    CHECK_WITH(ConvAlgorithm::Parse(text).ToString() == text, text);
  CHECK(ConvAlgorithm::Parse("split:engine=7;k2=1").plan->engine == 7);
  CHECK(!ConvAlgorithm::Parse("split").plan);
  for (const char* text : {"", "Auto", "auto ", "auto:", "auto:engine=1", "own:engine=1",
         "shuffle:", "fused:", "fused:engine=", "split:engine=1;", "split:engine=-1", "engine=1", "cudnn"}) {
    const std::string message = test::ErrorOf([&] { ConvAlgorithm::Parse(text); });
    CHECK_WITH(message.find("algorithm is '" + std::string(text) + "'") == 0, std::string(text) + ": " + message);
  }
  return test::Summary();
}
