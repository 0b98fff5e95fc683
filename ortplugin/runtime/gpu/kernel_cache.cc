// An entry is a file named by the hash of its key. It holds
//
//   magic and format version   8 bytes
//   size of the key text       8 bytes, little endian
//   size of the code           8 bytes, little endian
//   key text                   every field of the KernelKey, each after its own size
//   code
//   checksum of all the above  16 bytes
//
// A hit needs the whole key text equal, so two keys of one hash can't get each other's code. The checksum is against
// accidents (a torn write, a bad disk); against people there are the folder's owner and mode.
#include "ortplugin/runtime/gpu/kernel_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <future>
#include <mutex>
#include <optional>
#include <string_view>
#include <system_error>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ortplugin/runtime/error.h"

namespace ortplugin {
namespace {

using Code = std::shared_ptr<const std::string>;

constexpr std::string_view kMagic = "ortpkc01";  // the last two digits are the format's version
constexpr size_t kHeaderSize = 24;
constexpr size_t kChecksumSize = 16;
constexpr uint64_t kFolderLimit = uint64_t{256} << 20;  // bytes of all entries together, and so of any one
constexpr time_t kTouchAfter = 24 * 60 * 60;  // seconds: a hit renews an entry's age at most once a day
constexpr time_t kAbandonedAfter = 60 * 60;  // seconds until a temporary file is taken for a dead process's
constexpr std::string_view kTemporary = "tmp.";
constexpr size_t kNameSize = 32;  // hexadecimal digits of a hash

std::string Reason(int error) { return std::system_category().message(error); }

// ---- bytes

void AppendNumber(std::string* text, uint64_t number) {
  for (int shift = 0; shift < 64; shift += 8) text->push_back(char((number >> shift) & 0xff));
}

uint64_t NumberAt(const char* bytes) {
  uint64_t number = 0;
  for (int i = 7; i >= 0; --i) number = number << 8 | static_cast<unsigned char>(bytes[i]);
  return number;
}

// FNV-1a of 128 bits (Fowler, Noll, Vo; IETF draft-eastlake-fnv), low byte first. Every step is a bijection of the
// state, so one altered byte always alters the result.
std::string Hash(std::string_view text) {
  __extension__ using Word = unsigned __int128;
  constexpr Word kPrime = Word{1} << 88 | 0x13b;
  Word state = Word{0x6c62272e07bb0142} << 64 | 0x62b821756295c58d;
  for (const char c : text) state = (state ^ static_cast<unsigned char>(c)) * kPrime;
  std::string bytes;
  AppendNumber(&bytes, uint64_t(state));
  AppendNumber(&bytes, uint64_t(state >> 64));
  return bytes;
}

std::string HashName(std::string_view text) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string name;
  for (const char c : Hash(text)) {
    name.push_back(kDigits[static_cast<unsigned char>(c) >> 4]);
    name.push_back(kDigits[static_cast<unsigned char>(c) & 15]);
  }
  return name;
}

bool IsHashName(std::string_view name) {
  return name.size() == kNameSize && name.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

bool IsTemporaryName(std::string_view name) {
  return name.substr(0, kTemporary.size()) == kTemporary && IsHashName(name.substr(kTemporary.size()));
}

// Injective: the sizes keep neighbouring fields from running into each other.
std::string KeyText(const KernelKey& key) {
  std::string text;
  for (const std::string* field : {&key.source, &key.options, &key.architecture, &key.compiler, &key.plugin}) {
    AppendNumber(&text, field->size());
    text += *field;
  }
  return text;
}

// ---- files

class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  ~Descriptor() { Close(); }
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }

  explicit operator bool() const { return number_ >= 0; }
  int number() const { return number_; }
  bool Close() {  // false if the file system reports a failed write only now, as NFS does
    const int number = std::exchange(number_, -1);
    return number < 0 || close(number) == 0;
  }

 private:
  int number_;
};

bool ReadAll(int file, char* bytes, size_t count) {
  while (count > 0) {
    const ssize_t got = read(file, bytes, count);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    bytes += got;
    count -= size_t(got);
  }
  return true;
}

bool WriteAll(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t put = write(file, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return false;
    bytes.remove_prefix(size_t(put));
  }
  return true;
}

struct File {
  std::string name;
  uint64_t size;
  time_t modified;
  bool ours;  // a regular file with the name of an entry or of a temporary file
};

std::vector<File> List(int folder) {
  const int copy = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);  // readdir moves the offset of its own one
  DIR* const stream = copy < 0 ? nullptr : fdopendir(copy);
  if (!stream) {
    const int error = errno;
    if (copy >= 0) close(copy);
    Fail("it can't be listed: ", Reason(error));
  }
  const std::unique_ptr<DIR, int (*)(DIR*)> closer(stream, closedir);
  std::vector<File> files;
  while (const dirent* const entry = readdir(stream)) {
    const std::string_view name = entry->d_name;
    struct stat status;
    if (name == "." || name == "..") continue;
    if (fstatat(folder, entry->d_name, &status, AT_SYMLINK_NOFOLLOW) != 0) continue;  // another process removed it
    const bool ours = S_ISREG(status.st_mode) && (IsHashName(name) || IsTemporaryName(name));
    files.push_back({std::string(name), uint64_t(status.st_size), status.st_mtime, ours});
  }
  return files;
}

// ---- the folder

struct Folder {
  std::string path;  // empty: the disk is turned off
  size_t must_exist = 0;  // this many leading characters of the path are never created
  const char* reason = nullptr;  // why it can't be used, where that is known beforehand
};

Folder ChooseFolder() {
  // secure_getenv: the environment of a set-user-ID program is somebody else's.
  if (const char* const own = secure_getenv("ORTPLUGIN_CACHE_DIR")) {
    std::string path = own;
    // "link/" and "link/." would follow a link.
    while (path.size() > 1 && (path.back() == '/' || (path.back() == '.' && path[path.size() - 2] == '/'))) {
      path.pop_back();
    }
    return {path, 0};
  }
  // A relative path there is invalid and to be ignored, says the XDG base directory specification.
  const char* const cache = secure_getenv("XDG_CACHE_HOME");
  if (cache && cache[0] == '/') return {std::string(cache) + "/ortplugin"};
  const char* const home = secure_getenv("HOME");
  if (home && home[0] == '/') return {std::string(home) + "/.cache/ortplugin", std::string_view(home).size()};
  return {"$HOME/.cache/ortplugin", 0, "HOME is not set to an absolute path"};
}

// Throws Error with the reason where the folder can't be used. All further work goes through the descriptor, so that it
// stays with the folder that was checked.
Descriptor OpenFolder(const Folder& folder) {
  const std::string& path = folder.path;
  if (folder.reason) Fail(folder.reason);
  constexpr int kFlags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
  Descriptor opened(open(path.c_str(), kFlags));
  if (!opened && errno == ENOENT) {
    int failure = 0;  // the first; alone it proves nothing, for some mounts answer so for a folder that exists
    for (size_t slash = path.find('/', folder.must_exist + 1);; slash = path.find('/', slash + 1)) {
      if (mkdir(path.substr(0, slash).c_str(), 0700) != 0 && errno != EEXIST && failure == 0) failure = errno;
      if (slash == std::string::npos) break;
    }
    opened = Descriptor(open(path.c_str(), kFlags));
    if (!opened && failure != 0) Fail("it can't be created: ", Reason(failure));
  }
  if (!opened) {
    const int error = errno;
    if (error == ENOTDIR || error == ELOOP) Fail("it is no folder, or a symbolic link, which is not followed");
    Fail("it can't be opened: ", Reason(error));
  }

  struct stat status;
  if (fstat(opened.number(), &status) != 0) Fail("it can't be examined: ", Reason(errno));
  if (status.st_uid != geteuid()) Fail("it belongs to user ", status.st_uid, ", not to user ", geteuid());
  if ((status.st_mode & 022) != 0) Fail("other users can write to it; check what it holds, then chmod 700");
  if ((status.st_mode & 077) != 0) {
    // Others could only read. Closing it is safe, unless somebody named a folder that serves more than this cache.
    for (const File& file : List(opened.number())) {
      if (!file.ours) Fail("it is open to other users and holds other files than the cache's, such as ", file.name);
    }
    if (fchmod(opened.number(), 0700) != 0) Fail("it is open to other users and chmod 700 fails: ", Reason(errno));
    if (fstat(opened.number(), &status) != 0 || (status.st_mode & 077) != 0) {
      Fail("it is open to other users and chmod 700 has no effect");
    }
  }
  return opened;
}

// ---- entries

// Nothing where there is no entry of that key, whole and unaltered.
std::optional<std::string> Load(int folder, const std::string& name, const std::string& key) {
  // O_NONBLOCK: never wait for the other end of a pipe.
  const Descriptor file(openat(folder, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat status;
  if (!file || fstat(file.number(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  if (status.st_uid != geteuid() || (status.st_mode & 022) != 0 || status.st_nlink != 1) return std::nullopt;

  // What the sizes say is compared before anything is allocated; kFolderLimit keeps the sums from overflowing.
  if (status.st_size < 0 || uint64_t(status.st_size) > kFolderLimit) return std::nullopt;
  const size_t size = size_t(status.st_size);
  std::array<char, kHeaderSize> header;
  if (size < kHeaderSize + key.size() + kChecksumSize) return std::nullopt;
  if (!ReadAll(file.number(), header.data(), header.size())) return std::nullopt;
  const size_t code_size = size - kHeaderSize - key.size() - kChecksumSize;
  if (std::string_view(header.data(), kMagic.size()) != kMagic || NumberAt(&header[8]) != key.size() ||
    NumberAt(&header[16]) != code_size) {
    return std::nullopt;
  }
  std::string text(size, '\0');
  std::copy(header.begin(), header.end(), text.begin());
  if (!ReadAll(file.number(), &text[kHeaderSize], size - kHeaderSize)) return std::nullopt;
  if (text.compare(kHeaderSize, key.size(), key) != 0) return std::nullopt;
  const std::string_view checked(text.data(), size - kChecksumSize);
  if (text.compare(size - kChecksumSize, kChecksumSize, Hash(checked)) != 0) return std::nullopt;

  // The oldest entries are removed first, so one in use must look young. It does not matter if this fails.
  if (time(nullptr) - status.st_mtime > kTouchAfter) (void)futimens(file.number(), nullptr);
  return text.substr(kHeaderSize + key.size(), code_size);
}

// Removes temporary files that nobody will finish, then the oldest entries until `wanted` more bytes fit. Other
// processes may do the same at this moment: a file that is gone already counts as removed.
void MakeRoom(int folder, uint64_t wanted) {
  std::vector<File> files = List(folder);
  std::sort(files.begin(), files.end(), [](const File& a, const File& b) { return a.modified < b.modified; });
  const time_t now = time(nullptr);
  uint64_t total = wanted;
  for (const File& file : files) total += file.ours ? file.size : 0;
  for (const File& file : files) {
    const bool abandoned = IsTemporaryName(file.name) && now - file.modified > kAbandonedAfter;
    const bool oldest = IsHashName(file.name) && total > kFolderLimit;
    if (!file.ours || (!abandoned && !oldest)) continue;
    if (unlinkat(folder, file.name.c_str(), 0) == 0 || errno == ENOENT) total -= file.size;
  }
}

// Throws Error with the reason if the entry can't be written; then no temporary file is left.
void Store(int folder, const std::string& name, const std::string& key, const std::string& code) {
  std::string text(kMagic);
  AppendNumber(&text, key.size());
  AppendNumber(&text, code.size());
  text += key;
  text += code;
  text += Hash(text);
  if (text.size() > kFolderLimit) return;
  MakeRoom(folder, text.size());

  // Unique among the threads of this process and, but for O_EXCL's check, among processes and hosts that share the
  // folder.
  static std::atomic<uint64_t> counter{0};
  std::string temporary;
  Descriptor file;
  for (int attempt = 0; !file && attempt < 100; ++attempt) {
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    std::string unique;
    for (const auto number : {int64_t(getpid()), int64_t(now.tv_sec), int64_t(now.tv_nsec), int64_t(counter++)}) {
      AppendNumber(&unique, uint64_t(number));
    }
    temporary = std::string(kTemporary) + HashName(unique);
    file = Descriptor(openat(folder, temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!file && errno != EEXIST) break;
  }
  if (!file) Fail("no file can be created in it: ", Reason(errno));

  // The order matters: the bytes are on disk before the name is, so a crash leaves no whole name with half an entry.
  const bool done = WriteAll(file.number(), text) && fsync(file.number()) == 0 && file.Close() &&
    renameat(folder, temporary.c_str(), folder, name.c_str()) == 0;
  if (!done) {
    const int error = errno;
    unlinkat(folder, temporary.c_str(), 0);
    Fail("an entry can't be written: ", Reason(error));
  }
}

// ---- the process

struct Process {
  std::mutex mutex;
  std::unordered_map<std::string, std::shared_future<Code>> kernels;  // by key text; guarded by `mutex`
  std::atomic<bool> warned{false};
};

// Deliberately never destroyed: a session may end, or another thread compile, after static destructors have run.
Process& TheProcess() {
  static Process* const process = new Process;
  return *process;
}

// Runs `work` on the opened folder. The disk only ever saves time, so whatever goes wrong becomes the one warning.
template <typename Work>
void WithFolder(const Folder& folder, const std::function<void(const std::string&)>& warn, const Work& work) {
  if (folder.path.empty()) return;
  std::string reason;
  try {
    const Descriptor opened = OpenFolder(folder);
    work(opened.number());
    return;
  } catch (const std::exception& error) {
    reason = error.what();
  }
  if (!warn || TheProcess().warned.exchange(true)) return;
  try {
    warn("The kernel cache can't use the folder " + folder.path + ": " + reason +
      ". Compiled kernels are kept in memory only. Set ORTPLUGIN_CACHE_DIR to a folder of your own, or to nothing to "
      "do without.");
  } catch (...) {  // A kernel is not lost because a log is.
  }
}

Code LoadOrCompile(const std::string& key, const std::function<std::string()>& compile,
  const std::function<void(const std::string&)>& warn) {
  const Folder folder = ChooseFolder();
  const std::string name = HashName(key);
  std::optional<std::string> code;
  WithFolder(folder, warn, [&](int opened) { code = Load(opened, name, key); });
  if (!code) {
    code = compile();
    WithFolder(folder, warn, [&](int opened) { Store(opened, name, key, *code); });
  }
  return std::make_shared<const std::string>(*std::move(code));
}

}  // namespace

std::shared_ptr<const std::string> CachedKernel(const KernelKey& key, const std::function<std::string()>& compile,
  const std::function<void(const std::string&)>& warn) {
  Process& process = TheProcess();
  const std::string text = KeyText(key);
  std::promise<Code> promise;
  std::shared_future<Code> future = promise.get_future().share();
  bool first;
  {
    const std::lock_guard<std::mutex> lock(process.mutex);
    const auto [slot, inserted] = process.kernels.try_emplace(text, future);
    future = slot->second;
    first = inserted;
  }
  if (first) {
    try {
      promise.set_value(LoadOrCompile(text, compile, warn));
    } catch (...) {
      {  // Forgotten before the waiters wake, so that whoever asks after a failure tries again.
        const std::lock_guard<std::mutex> lock(process.mutex);
        process.kernels.erase(text);
      }
      promise.set_exception(std::current_exception());
    }
  }
  return future.get();
}

}  // namespace ortplugin
