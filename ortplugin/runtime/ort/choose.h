// Attributes that are one of a few words.
#pragma once

#include <cstddef>
#include <string>

#include "ortplugin/runtime/ort/ort.h"
#include "ortplugin/runtime/text.h"

namespace ortplugin {

// The place of the attribute's word among these. Throws Error where it is none of them.
template <size_t N>
size_t Choose(const char* attribute, const std::string& word, const char* const (&words)[N]) {
  std::string known;
  for (size_t i = 0; i < N; ++i) {
    if (word == words[i]) return i;
    known += (i ? ", " : "") + std::string(words[i]);
  }
  Fail("the attribute '", attribute, "' is ", Quoted(word), " but must be one of ", known);
}

}  // namespace ortplugin
