#pragma once

namespace ortplugin {

constexpr const char* kPluginVersion = ORTPLUGIN_VERSION;  // from pyproject.toml, by way of CMake

}  // namespace ortplugin
