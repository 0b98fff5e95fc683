// Text that a model holds, for messages: bounded, valid UTF-8, without what a terminal would obey.
#pragma once

#include <string>
#include <string_view>

namespace ortplugin {

inline void AppendEscaped(char c, std::string* text) {
  constexpr char kHex[] = "0123456789abcdef";
  const auto byte = static_cast<unsigned char>(c);
  *text += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
}

// In quotes: at most `most` bytes, what is not printable ASCII as \xNN.
inline std::string Quoted(std::string_view text, size_t most = 40) {
  std::string quoted = "'";
  for (const char c : text.substr(0, most)) {
    if (c >= 0x20 && c < 0x7f) {
      quoted += c;
    } else {
      AppendEscaped(c, &quoted);
    }
  }
  return quoted + (text.size() > most ? "...'" : "'");
}

// Bytes of the UTF-8 character that `text` begins with; 0 where that is none, or a control character.
inline size_t PrintableLength(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : 0;
  const size_t length = first >= 0xf5 ? 0 : first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : first >= 0xc2 ? 2 : 0;
  if (length == 0 || length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  const bool is_overlong = (first == 0xe0 && byte(1) < 0xa0) || (first == 0xf0 && byte(1) < 0x90);
  const bool is_surrogate = first == 0xed && byte(1) >= 0xa0, is_beyond = first == 0xf4 && byte(1) >= 0x90;
  const bool is_control = first == 0xc2 && byte(1) < 0xa0;
  return is_overlong || is_surrogate || is_beyond || is_control ? 0 : length;
}

// The first `most` bytes, with characters of every language; the rest of what `Quoted` escapes is escaped here too, but
// for line breaks and tabs where `keep_lines` is set.
inline std::string Printable(std::string_view text, size_t most, bool keep_lines) {
  std::string shown;
  for (size_t at = 0; at < text.size();) {
    if (shown.size() >= most) return shown + "...";
    const bool is_kept = keep_lines && (text[at] == '\n' || text[at] == '\t');
    const size_t length = is_kept ? 1 : PrintableLength(text.substr(at));
    if (length == 0) {
      AppendEscaped(text[at], &shown);
      ++at;
    } else {
      shown += text.substr(at, length);
      at += length;
    }
  }
  return shown;
}

}  // namespace ortplugin
