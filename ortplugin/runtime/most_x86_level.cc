#include "ortplugin/runtime/x86_level.h"

namespace ortplugin {
int MostX86Level() { return 4; }
}  // namespace ortplugin
