// The kernel cache: what is a hit, what is a miss, and what a hostile or broken disk may do to it (nothing).
//
// The cache remembers for the life of its process, so every use of it here happens in a forked child: InProcess. The
// test's own process never touches the cache; it prepares folders and looks at what is left in them.
#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "ortplugin/runtime/error.h"
#include "ortplugin/runtime/gpu/kernel_cache.h"
#include "tests/native/check.h"

namespace {

using ortplugin::CachedKernel;
using ortplugin::KernelKey;
using std::chrono::milliseconds;
using test::failed;
using test::passed;

constexpr uid_t kNobody = 65534;  // somebody who is not root and owns nothing

// ---- processes

struct Counts {
  std::atomic<int> passed{0}, failed{0};
};

// Starts `body` in a child. Its CHECKs are counted here when it is waited for.
class Child {
 public:
  explicit Child(const std::function<void()>& body) {
    void* const shared = mmap(nullptr, sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) std::abort();
    counts_ = new (shared) Counts;
    std::fflush(nullptr);
    id_ = fork();
    if (id_ < 0) std::abort();
    if (id_ > 0) return;
    passed = failed = 0;
    try {
      body();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "a case threw: %s\n", error.what());
      failed++;
    }
    counts_->passed = passed;
    counts_->failed = failed;
    std::exit(0);  // not _exit: the sanitizers report at exit
  }
  ~Child() {
    int status = 0;
    waitpid(id_, &status, 0);
    passed += counts_->passed;
    failed += counts_->failed;
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    munmap(counts_, sizeof(Counts));
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

 private:
  Counts* counts_;
  pid_t id_;
};

void InProcess(const std::function<void()>& body) { const Child child(body); }

// Root is bound by no permission, so it becomes somebody who is.
void InUnprivilegedProcess(const std::function<void()>& body) {
  InProcess([&body] {
    const bool privileged = geteuid() == 0 && (setgid(kNobody) != 0 || setuid(kNobody) != 0);
    CHECK(!privileged);
    if (privileged) return;
    body();
  });
}

// ---- files

std::string root;  // the temporary folder of this run
std::string folder;  // the cache folder of the current case; not yet there when the case starts
std::string case_dir;  // its parent

std::vector<std::string> Names(const std::string& path) {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(opendir(path.c_str()), closedir);
  while (const dirent* const entry = stream ? readdir(stream.get()) : nullptr) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

void MakeFolder(const std::string& path) { CHECK(mkdir(path.c_str(), 0700) == 0); }

std::string Bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

void Write(const std::string& path, const std::string& bytes) {
  unlink(path.c_str());
  std::ofstream(path, std::ios::binary) << bytes;
  chmod(path.c_str(), 0600);
}

mode_t Mode(const std::string& path) {
  struct stat status;
  return lstat(path.c_str(), &status) == 0 ? status.st_mode & 07777 : 0;
}

bool Exists(const std::string& path) {
  struct stat status;
  return lstat(path.c_str(), &status) == 0;
}

time_t Modified(const std::string& path) {
  struct stat status;
  return lstat(path.c_str(), &status) == 0 ? status.st_mtime : 0;
}

void Age(const std::string& path, time_t seconds) {
  const timespec when{time(nullptr) - seconds, 0};
  const timespec times[2] = {when, when};
  CHECK(utimensat(AT_FDCWD, path.c_str(), times, AT_SYMLINK_NOFOLLOW) == 0);
}

// A file that claims `bytes` and takes none.
void WriteSparse(const std::string& path, off_t bytes, time_t age) {
  Write(path, "");
  CHECK(truncate(path.c_str(), bytes) == 0);
  Age(path, age);
}

void Remove(const std::string& path) {
  struct stat status;
  if (lstat(path.c_str(), &status) != 0) return;
  if (S_ISDIR(status.st_mode)) {
    chmod(path.c_str(), 0700);
    for (const std::string& name : Names(path)) Remove(path + "/" + name);
    rmdir(path.c_str());
  } else {
    unlink(path.c_str());
  }
}

// ---- uses of the cache

std::atomic<int> warnings{0};
std::string last_warning;  // of single-threaded cases
void Warn(const std::string& message) {
  last_warning = message;
  warnings++;
}
void WarnFromThread(const std::string&) { warnings++; }

KernelKey Key(const std::string& source = "__global__ void f() {}") {
  return {source, "--std=c++17", "sm_90", "nvrtc 13.0", "0.1.0"};
}

std::string CodeOf(const KernelKey& key) {
  std::string code =
    "\x7f"
    "ELF";
  code.push_back('\0');  // code is bytes, not text
  return code + key.source + key.architecture;
}

struct Missed {};
std::string Miss() { throw Missed(); }

// Whether the key is at hand. Does not compile, so asking changes nothing.
bool IsHit(const KernelKey& key = Key()) {
  try {
    const auto code = CachedKernel(key, Miss, Warn);
    if (*code != CodeOf(key)) CHECK(!"the cache gave wrong code");
    return true;
  } catch (const Missed&) {
    return false;
  }
}

// Gets the key; the result tells whether it had to be compiled.
bool Compiles(const KernelKey& key = Key()) {
  bool compiled = false;
  const auto compile = [&] {
    compiled = true;
    return CodeOf(key);
  };
  CHECK(*CachedKernel(key, compile, Warn) == CodeOf(key));
  return compiled;
}

void Set(const char* variable, const std::string& value) { setenv(variable, value.c_str(), 1); }
void UseFolder(const std::string& path) { Set("ORTPLUGIN_CACHE_DIR", path); }

// The path of the one entry in the folder.
std::string OnlyEntry() {
  const std::vector<std::string> names = Names(folder);
  CHECK(names.size() == 1);
  return folder + "/" + (names.empty() ? "none" : names[0]);
}

// Which warns of nothing.
void InQuietProcess(const std::function<void()>& body) {
  InProcess([&body] {
    body();
    CHECK(warnings == 0);
  });
}

void Fill(const KernelKey& key = Key()) {
  InQuietProcess([&] { CHECK(Compiles(key)); });
}

// What a case with an unusable folder expects: the kernel all the same, from memory the second time, and one warning.
void CheckMemoryOnly(const std::string& part_of_warning) {
  CHECK(Compiles(Key("first")));
  CHECK(!Compiles(Key("first")));
  CHECK(Compiles(Key("second")));
  CHECK(warnings == 1);
  CHECK_WITH(last_warning.find(part_of_warning) != std::string::npos, last_warning);
}

void ExpectMemoryOnly(const std::string& part_of_warning) {
  InProcess([&] { CheckMemoryOnly(part_of_warning); });
}

// `work` in so many threads, each with its number.
void InThreads(int count, const std::function<void(int)>& work) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
}

// ---- cases: hits and misses

void MemoryHit() {
  InQuietProcess([] {
    UseFolder("");  // no disk
    const auto first = CachedKernel(Key(), [] { return CodeOf(Key()); }, Warn);
    const auto second = CachedKernel(Key(), Miss, Warn);
    CHECK(first == second);  // one object, not merely equal ones
    CHECK(*first == CodeOf(Key()));
  });
  CHECK(!Exists(folder));
}

void DiskHit() {
  Fill();
  InQuietProcess([] { CHECK(!Compiles()); });
  const std::string entry = OnlyEntry();
  CHECK(entry.size() == folder.size() + 1 + 32);
  CHECK(Mode(entry) == 0600);
  CHECK(Mode(folder) == 0700);
}

void BinaryAndEmptyCode() {
  std::string every_byte;
  for (int i = 0; i < 1024; ++i) every_byte.push_back(char(i * 7));
  for (const std::string& code : {std::string(), every_byte}) {
    const KernelKey key = Key("code of " + std::to_string(code.size()));
    InProcess([&] { CHECK(*CachedKernel(key, [&] { return code; }, Warn) == code); });
    InProcess([&] { CHECK(*CachedKernel(key, Miss, Warn) == code); });
  }
}

void EveryFieldCounts() {
  const KernelKey base{"source", "options", "sm_80", "nvrtc 12.9", "1.0"};
  Fill(base);
  InProcess([&] {
    for (std::string KernelKey::* field :
      {&KernelKey::source, &KernelKey::options, &KernelKey::architecture, &KernelKey::compiler, &KernelKey::plugin}) {
      for (const std::string& change : {base.*field + "1", std::string(), base.*field + std::string(1, '\0')}) {
        KernelKey other = base;
        other.*field = change;
        CHECK(!IsHit(other));
      }
    }
    KernelKey shifted = base;  // the same bytes, cut elsewhere
    shifted.source = "sourceo";
    shifted.options = "ptions";
    CHECK(!IsHit(shifted));
    CHECK(IsHit(base));
  });
}

void TruncatedAtEveryLength() {
  Fill();
  const std::string entry = OnlyEntry();
  const std::string whole = Bytes(entry);
  InQuietProcess([&] {
    bool any = false;
    for (size_t length = 0; length < whole.size(); ++length) {
      Write(entry, whole.substr(0, length));
      any = any || IsHit();
    }
    CHECK(!any);
    Write(entry, whole + "x");
    CHECK(!IsHit());
    Write(entry, whole + whole);
    CHECK(!IsHit());
    Write(entry, whole.substr(0, whole.size() / 2));
    CHECK(Compiles());  // and replaces it
  });
  CHECK(Bytes(entry) == whole);
  InProcess([] { CHECK(!Compiles()); });
}

void EveryByteFlipped() {
  Fill();
  const std::string entry = OnlyEntry();
  const std::string whole = Bytes(entry);
  InProcess([&] {
    bool any = false;
    for (size_t position = 0; position < whole.size(); ++position) {
      for (const int mask : {0x01, 0x80, 0xff}) {
        std::string altered = whole;
        altered[position] = char(altered[position] ^ mask);
        Write(entry, altered);
        any = any || IsHit();
      }
    }
    CHECK(!any);
    Write(entry, whole);
    CHECK(IsHit());
  });
}

std::string WithSize(std::string bytes, size_t at, uint64_t size) {
  for (size_t i = 0; i < 8; ++i) bytes[at + i] = char((size >> (8 * i)) & 0xff);
  return bytes;
}

void AbsurdSizes() {
  Fill();
  const std::string entry = OnlyEntry();
  const std::string whole = Bytes(entry);
  constexpr uint64_t kTerabyte = uint64_t{1} << 40;
  InQuietProcess([&] {
    for (const uint64_t size : {~uint64_t{0}, uint64_t{1} << 63, (uint64_t{1} << 63) - 1, kTerabyte, uint64_t{0}}) {
      Write(entry, WithSize(whole, 8, size));
      CHECK(!IsHit());
      Write(entry, WithSize(whole, 16, size));
      CHECK(!IsHit());
    }
    // A terabyte more code than there was, and a header that agrees with it.
    Write(entry, WithSize(whole, 16, CodeOf(Key()).size() + kTerabyte));
    CHECK(truncate(entry.c_str(), off_t(whole.size() + kTerabyte)) == 0);
    CHECK(!IsHit());
  });
}

void ForeignKeyUnderTheSameName() {
  Fill(Key("one"));
  const std::string entry = OnlyEntry();
  const std::string other = Bytes(entry);
  unlink(entry.c_str());
  Fill(Key("two"));  // of the same length, so that nothing but the key's text differs
  const std::string colliding = OnlyEntry();
  CHECK(colliding != entry);
  const std::string whole = Bytes(colliding);
  CHECK(whole.size() == other.size());
  Write(colliding, other);  // whole, and right for "one": as if the two hashes were equal
  InProcess([] { CHECK(Compiles(Key("two"))); });
  CHECK(Bytes(colliding) == whole);
}

void EntryIsNoPlainFile() {
  Fill();
  const std::string entry = OnlyEntry();
  const std::string elsewhere = case_dir + "/elsewhere";
  CHECK(rename(entry.c_str(), elsewhere.c_str()) == 0);
  InProcess([&] {
    CHECK(symlink(elsewhere.c_str(), entry.c_str()) == 0);
    CHECK(!IsHit());
    unlink(entry.c_str());
    CHECK(link(elsewhere.c_str(), entry.c_str()) == 0);
    CHECK(!IsHit());
    unlink(entry.c_str());
    CHECK(mkfifo(entry.c_str(), 0600) == 0);
    CHECK(!IsHit());  // and does not wait for a writer
    unlink(entry.c_str());
    Write(entry, Bytes(elsewhere));
    chmod(entry.c_str(), 0666);
    CHECK(!IsHit());
    unlink(entry.c_str());
    CHECK(warnings == 0);
    MakeFolder(entry);
    CHECK(Compiles());  // can't be replaced by a file
    CHECK(warnings == 1);
  });
  CHECK(Names(folder).size() == 1);  // no temporary file
}

// ---- cases: threads and processes

void ThreadsCompileOnce() {
  InQuietProcess([] {
    constexpr int kThreads = 16;
    constexpr int kKeys = 3;
    std::atomic<int> ready{0}, compiled{0}, right{0};
    std::vector<std::shared_ptr<const std::string>> got(kThreads);
    InThreads(kThreads, [&](int i) {
      ready++;
      while (ready < kThreads) std::this_thread::yield();
      const KernelKey key = Key("key " + std::to_string(i % kKeys));
      const auto compile = [&] {
        compiled++;
        std::this_thread::sleep_for(milliseconds(20));
        return CodeOf(key);
      };
      got[size_t(i)] = CachedKernel(key, compile, WarnFromThread);
      if (*got[size_t(i)] == CodeOf(key)) right++;
    });
    CHECK(compiled == kKeys);
    CHECK(right == kThreads);
    for (size_t i = kKeys; i < got.size(); ++i) CHECK(got[i] == got[i - kKeys]);
  });
  CHECK(Names(folder).size() == 3);
}

void ThrowingCompile() {
  InQuietProcess([] {
    constexpr int kThreads = 8;
    std::atomic<int> asking{0}, compiled{0}, threw{0};
    const auto compile = [&]() -> std::string {
      compiled++;
      while (asking < kThreads) std::this_thread::yield();
      std::this_thread::sleep_for(milliseconds(300));  // until the others wait
      ortplugin::Fail("error in line ", 7);
    };
    InThreads(kThreads, [&](int) {
      asking++;
      if (test::ErrorOf([&] { CachedKernel(Key(), compile, WarnFromThread); }) == "error in line 7") threw++;
    });
    CHECK(threw == kThreads);
    CHECK(compiled == 1);
    CHECK(Names(folder).empty());  // a failure leaves nothing on disk
    CHECK(Compiles());  // and the next request tries again
    CHECK(!Compiles());
  });
}

void ManyProcessesOnAColdCache() {
  constexpr int kProcesses = 8;
  constexpr int kKeys = 5;
  int gate[2];
  if (pipe(gate) != 0) std::abort();
  {
    std::vector<std::unique_ptr<Child>> children;
    for (int i = 0; i < kProcesses; ++i) {
      children.push_back(std::make_unique<Child>([&] {
        close(gate[1]);
        char byte;
        CHECK(read(gate[0], &byte, 1) == 0);  // all start when the gate is closed
        for (int k = 0; k < kKeys; ++k) Compiles(Key("key " + std::to_string(k)));
        CHECK(warnings == 0);
      }));
    }
    close(gate[0]);
    close(gate[1]);
  }
  CHECK(Names(folder).size() == kKeys);  // no temporary files
  CHECK(Mode(folder) == 0700);
  InProcess([] {
    for (int k = 0; k < kKeys; ++k) CHECK(!Compiles(Key("key " + std::to_string(k))));
  });
}

// Wherever the kill strikes, there is a whole entry or none.
void KilledWhileWriting() {
  constexpr int kKeys = 200;
  const auto key = [](int k) { return Key(std::to_string(k) + std::string(100000, 'x')); };
  for (const int delay : {1, 3, 7, 15, 30}) {
    const pid_t writer = fork();
    if (writer == 0) {
      for (int k = 0; k < kKeys; ++k) CachedKernel(key(k), [&] { return CodeOf(key(k)); }, nullptr);
      _exit(0);
    }
    std::this_thread::sleep_for(milliseconds(delay));
    kill(writer, SIGKILL);
    CHECK(waitpid(writer, nullptr, 0) == writer);
  }
  InQuietProcess([&] {
    int hits = 0;
    for (int k = 0; k < kKeys; ++k) hits += IsHit(key(k));  // and right, says IsHit
    const std::vector<std::string> names = Names(folder);
    CHECK(hits == std::count_if(names.begin(), names.end(), [](const std::string& name) { return name[0] != 't'; }));
  });
}

void UsedWhileTheProcessEnds() {
  InProcess([] {
    // Registered before the cache is first used, so it runs after whatever the cache might have registered.
    std::atexit([] {
      const bool good = *CachedKernel(
                          Key(), []() -> std::string { return "again"; }, nullptr) == CodeOf(Key()) &&
        *CachedKernel(Key("late"), [] { return std::string("late"); }, nullptr) == "late";
      if (!good) _exit(1);
    });
    CHECK(Compiles());
  });
}

void NoDescriptorLeaks() {
  InProcess([] {
    const size_t before = Names("/proc/self/fd").size();
    for (int k = 0; k < 20; ++k) {
      const KernelKey key = Key("key " + std::to_string(k));
      CHECK(!IsHit(key));
      CHECK(Compiles(key));
    }
    CHECK(Names("/proc/self/fd").size() == before);
  });
}

// ---- cases: which folder

void ChoiceOfFolder() {
  const std::string cache = case_dir + "/not/yet/cache";
  const std::string home = case_dir + "/home";
  MakeFolder(home);
  unsetenv("ORTPLUGIN_CACHE_DIR");
  Set("HOME", home);

  Set("XDG_CACHE_HOME", cache);
  Fill();
  CHECK(Names(cache + "/ortplugin").size() == 1);
  CHECK(Mode(cache + "/ortplugin") == 0700);
  CHECK(Mode(cache) == 0700);
  CHECK(Names(home).empty());

  Set("XDG_CACHE_HOME", "relative");  // invalid, so ignored
  Fill();
  CHECK(Names(home + "/.cache/ortplugin").size() == 1);
  CHECK(!Exists("relative"));

  Set("XDG_CACHE_HOME", cache);
  UseFolder(folder);  // wins
  Fill();
  CHECK(Names(folder).size() == 1);

  UseFolder("");  // off, without a warning
  Fill();
}

void MissingHome() {
  unsetenv("ORTPLUGIN_CACHE_DIR");
  unsetenv("XDG_CACHE_HOME");
  const std::string missing = case_dir + "/missing";
  Set("HOME", missing);
  ExpectMemoryOnly(missing + "/.cache/ortplugin");
  CHECK(!Exists(missing));
  unsetenv("HOME");
  ExpectMemoryOnly("HOME");
  Set("HOME", "relative");
  ExpectMemoryOnly("HOME");
}

void FolderIsAFile() {
  Write(folder, "precious");
  ExpectMemoryOnly(folder);
  CHECK(Bytes(folder) == "precious");
  UseFolder(folder + "/below");
  ExpectMemoryOnly(folder + "/below");
}

void FolderIsALink() {
  const std::string target = case_dir + "/target";
  MakeFolder(target);
  CHECK(symlink(target.c_str(), folder.c_str()) == 0);
  for (const char* const tail : {"", "/", "//", "/.", "/./"}) {
    UseFolder(folder + tail);
    ExpectMemoryOnly("symbolic link");
  }
  CHECK(Names(target).empty());
  unlink(folder.c_str());
  CHECK(symlink((case_dir + "/nowhere").c_str(), folder.c_str()) == 0);  // nor is a dangling one made true
  UseFolder(folder);
  ExpectMemoryOnly("symbolic link");
  CHECK(!Exists(case_dir + "/nowhere"));
}

void PermissionsOfTheFolder() {
  for (const mode_t mode : {0777, 01777, 0770, 0702, 0720}) {  // others may have put something in it
    mkdir(folder.c_str(), 0700);
    chmod(folder.c_str(), mode);
    ExpectMemoryOnly("other users can write");
    CHECK(Mode(folder) == mode);
    CHECK(Names(folder).empty());
  }
  for (const mode_t mode : {0755, 0750, 0701}) {  // others could only look: closed
    chmod(folder.c_str(), mode);
    InQuietProcess([] { Compiles(); });
    CHECK(Mode(folder) == 0700);
    CHECK(Names(folder).size() == 1);
  }
  Write(folder + "/letter", "precious");  // somebody's folder, named by mistake: left as it is
  chmod(folder.c_str(), 0755);
  ExpectMemoryOnly("letter");
  CHECK(Mode(folder) == 0755);
}

void UmaskDoesNotMatter() {
  InProcess([] {
    umask(0);
    CHECK(Compiles());
  });
  CHECK(Mode(folder) == 0700);
  CHECK(Mode(OnlyEntry()) == 0600);
}

void ForeignFolder() {
  if (geteuid() == 0) {
    MakeFolder(folder);
    CHECK(chown(folder.c_str(), kNobody, kNobody) == 0);
    ExpectMemoryOnly("belongs to user");
    CHECK(Names(folder).empty());
    // An entry that somebody else wrote, in a folder of ours.
    CHECK(chown(folder.c_str(), geteuid(), getegid()) == 0);
    Fill();
    CHECK(chown(OnlyEntry().c_str(), kNobody, kNobody) == 0);
    InProcess([] { CHECK(!IsHit()); });
  } else {
    UseFolder("/usr");
    ExpectMemoryOnly("belongs to user");
  }
}

void ReadOnlyFolder() {
  // As root the whole case runs as nobody, to whom the folders must belong.
  if (geteuid() == 0) CHECK(chown(case_dir.c_str(), kNobody, kNobody) == 0);
  InUnprivilegedProcess([] {
    CHECK(Compiles(Key("known")));
    CHECK(chmod(folder.c_str(), 0500) == 0);
  });
  InUnprivilegedProcess([] {
    CHECK(IsHit(Key("known")));  // what is there is used
    CHECK(warnings == 0);
    CheckMemoryOnly(folder);
  });
  CHECK(Names(folder).size() == 1);
  Remove(folder);
  CHECK(chmod(case_dir.c_str(), 0500) == 0);
  InUnprivilegedProcess([] { CheckMemoryOnly("can't be created"); });
  CHECK(chmod(case_dir.c_str(), 0000) == 0);
  InUnprivilegedProcess([] { CheckMemoryOnly("Permission denied"); });
  CHECK(chmod(case_dir.c_str(), 0700) == 0);
}

void FullDisk() {
  InProcess([] {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{64, 64};  // bytes of any file: the entry's write stops in its middle
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    CheckMemoryOnly("an entry can't be written");
  });
  CHECK(Names(folder).empty());  // nor a temporary file
  Fill();
}

void WarnsOnce() {
  Write(folder, "a file");
  InProcess([] {
    InThreads(8, [](int i) {
      for (int k = 0; k < 4; ++k) {
        CachedKernel(Key(std::to_string(i) + " " + std::to_string(k)), [] { return std::string("x"); }, WarnFromThread);
      }
    });
    CHECK(warnings == 1);
  });
  InProcess([] {  // a warning that fails, or that nobody wants, costs no kernel
    const auto compile = [] { return std::string("x"); };
    CHECK(*CachedKernel(Key("a"), compile, nullptr) == "x");
    CHECK(*CachedKernel(Key("b"), compile, [](const std::string&) { throw Missed(); }) == "x");
  });
}

// ---- cases: housekeeping

void StaysUnderTheLimit() {
  constexpr off_t kMiB = 1 << 20;
  MakeFolder(folder);
  const auto path = [](char digit) { return folder + "/" + std::string(32, digit); };
  WriteSparse(path('a'), 100 * kMiB, 100);
  WriteSparse(path('b'), 100 * kMiB, 300);
  WriteSparse(path('c'), 55 * kMiB, 200);
  Fill(Key("fits"));
  CHECK(Names(folder).size() == 4);
  WriteSparse(path('d'), 100 * kMiB, 50);
  WriteSparse(folder + "/letter", 500 * kMiB, 1000);  // neither counted nor removed
  Fill(Key("does not"));
  CHECK(Exists(path('a')));
  CHECK(!Exists(path('b')));  // the oldest, and it sufficed
  CHECK(Exists(path('c')));
  CHECK(Exists(path('d')));
  CHECK(Exists(folder + "/letter"));
  CHECK(Names(folder).size() == 6);
}

void ManyProcessesMakeRoom() {
  MakeFolder(folder);
  for (int i = 0; i < 300; ++i) {
    const std::string name = std::to_string(1000 + i);
    WriteSparse(folder + "/" + std::string(28, 'a') + name, 1 << 20, 1000 - i);
  }
  {
    std::vector<std::unique_ptr<Child>> children;
    for (int i = 0; i < 6; ++i) {
      children.push_back(std::make_unique<Child>([i] {
        for (int k = 0; k < 5; ++k) CHECK(Compiles(Key(std::to_string(i) + " of " + std::to_string(k))));
        CHECK(warnings == 0);
      }));
    }
  }
  size_t old = 0, fresh = 0;
  for (const std::string& name : Names(folder)) (name.substr(0, 28) == std::string(28, 'a') ? old : fresh)++;
  CHECK(fresh == 30);
  CHECK(old <= 255 && old >= 200);  // racing processes may remove a few more than they must, not all
}

void AbandonedTemporaryFiles() {
  Fill(Key("first"));
  const std::string prefix = folder + "/tmp.";
  Write(prefix + std::string(32, '1'), "of a process that died");
  Age(prefix + std::string(32, '1'), 2 * 60 * 60);
  Write(prefix + std::string(32, '2'), "being written by another process");
  Age(prefix + std::string(32, '2'), 30 * 60);
  Fill(Key("second"));
  CHECK(!Exists(prefix + std::string(32, '1')));
  CHECK(Exists(prefix + std::string(32, '2')));
}

void AHitRenewsTheAge() {
  Fill();
  const std::string entry = OnlyEntry();
  const time_t now = time(nullptr);
  Age(entry, 60 * 60);
  InProcess([] { CHECK(IsHit()); });
  CHECK(Modified(entry) < now - 1000);  // at most once a day
  Age(entry, 25 * 60 * 60);
  InProcess([] { CHECK(IsHit()); });
  CHECK(Modified(entry) >= now);
}

struct Case {
  const char* name;
  void (*run)();
};

#define CASE(function) {#function, function}
constexpr Case kCases[] = {
  CASE(MemoryHit),
  CASE(DiskHit),
  CASE(BinaryAndEmptyCode),
  CASE(EveryFieldCounts),
  CASE(TruncatedAtEveryLength),
  CASE(EveryByteFlipped),
  CASE(AbsurdSizes),
  CASE(ForeignKeyUnderTheSameName),
  CASE(EntryIsNoPlainFile),
  CASE(ThreadsCompileOnce),
  CASE(ThrowingCompile),
  CASE(ManyProcessesOnAColdCache),
  CASE(KilledWhileWriting),
  CASE(UsedWhileTheProcessEnds),
  CASE(NoDescriptorLeaks),
  CASE(ChoiceOfFolder),
  CASE(MissingHome),
  CASE(FolderIsAFile),
  CASE(FolderIsALink),
  CASE(PermissionsOfTheFolder),
  CASE(UmaskDoesNotMatter),
  CASE(ForeignFolder),
  CASE(ReadOnlyFolder),
  CASE(FullDisk),
  CASE(WarnsOnce),
  CASE(StaysUnderTheLimit),
  CASE(ManyProcessesMakeRoom),
  CASE(AbandonedTemporaryFiles),
  CASE(AHitRenewsTheAge),
};
#undef CASE

}  // namespace

int main() {
  const char* const parent = std::getenv("TMPDIR");
  std::string pattern = std::string(parent && *parent ? parent : "/tmp") + "/test_kernel_cache.XXXXXX";
  if (!mkdtemp(pattern.data())) {
    std::perror(pattern.c_str());
    return 1;
  }
  root = pattern;
  chmod(root.c_str(), 0711);  // an unprivileged child must be able to walk through
  if (chdir(root.c_str()) != 0) return 1;  // where a relative path would end
  int number = 0;
  for (const Case& the_case : kCases) {
    case_dir = root + "/" + std::to_string(number++);
    folder = case_dir + "/cache";
    mkdir(case_dir.c_str(), 0700);
    UseFolder(folder);
    const int failed_before = failed;
    the_case.run();
    if (failed != failed_before) std::fprintf(stderr, "FAILED: %s\n", the_case.name);
  }
  Remove(root);
  return test::Summary();
}
