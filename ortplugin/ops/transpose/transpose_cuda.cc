// FusedTranspose on the GPU: which variant of transpose.cu a shape gets, its tile, and the launch.

#include <algorithm>
#include <optional>
#include <tuple>

#include "ortplugin/ops/transpose/transpose.h"
#include "ortplugin/runtime/gpu/kernel_sources.h"
#include "ortplugin/runtime/gpu/plan_cache.h"
#include "ortplugin/runtime/program/operands.h"
#include "ortplugin/runtime/round_up.h"

namespace ortplugin {
namespace {

constexpr int64_t kNarrow = int64_t{1} << 31;
constexpr int64_t kSector = 32;  // bytes that memory moves at least
constexpr int64_t kMostThreads = 256;  // of a block

// ITEMS in transpose.cu.
int64_t ItemsOf(int64_t bytes) { return bytes <= 2 ? 16 : bytes <= 8 ? 8 : 4; }

// The most units of an access of up to 4 bytes that divides all of these numbers of bytes.
int64_t UnitsOf(int64_t unit, const std::vector<int64_t>& bytes) {
  int64_t units = std::max<int64_t>(1, 4 / unit);
  for (const int64_t each : bytes)
    while (units > 1 && each % (units * unit) != 0) units /= 2;
  return units;
}

// The tile of a block, of `columns` of x and `rows` of y.
struct Tile {
  int64_t columns, rows, threads, read_lanes, read_rows, write_lanes, write_columns, pitch, blocks;
  double cost;  // in bytes of memory that take as long
};

// What reads or writes a tile's lines, of so many bytes each: whole sectors, two of them in part where lines begin
// anywhere, and what an access costs that goes on elsewhere.
double LineBytes(int64_t lines, int64_t line, int64_t step, bool is_whole) {
  if (is_whole) return double(lines * line);
  return double(lines * (RoundUp(line, kSector) + kSector + (step % kSector != 0 ? kSector / 2 : 0)));
}

// Of the tiles that threads and their registers can take the one that costs least.
class TileChoice {
 public:
  TileChoice(const TransposeAxis& columns, const TransposeAxis& rows, int64_t outside, int64_t unit, int64_t read,
    int64_t write, const DeviceFacts& gpu)
    : columns_(columns), rows_(rows), outside_(outside), unit_(unit), read_(read), write_(write), gpu_(gpu) {}

  std::optional<Tile> Find() const {
    std::optional<Tile> best;
    for (const int64_t columns : Lengths(columns_.length, read_, rows_.from))
      for (const int64_t rows : Lengths(rows_.length, write_, columns_.to))
        for (int64_t threads = 64; threads <= kMostThreads; threads *= 2)
          if (const std::optional<Tile> tile = Fit(columns, rows, threads))
            if (!best || tile->cost < best->cost) best = tile;
    return best;
  }

 private:
  // Parts of an axis that are nearly equal, of whole accesses and, where lines begin with a sector, of whole sectors.
  std::vector<int64_t> Lengths(int64_t length, int64_t access, int64_t line_step) const {
    const int64_t step = line_step % kSector == 0 ? std::max(access, kSector / unit_) : access;
    std::vector<int64_t> lengths;
    for (int64_t most = 8; most <= 1024; most *= 2) {
      const int64_t part = DivideUp(length, DivideUp(length, most));
      lengths.push_back(std::min(length, RoundUp(part, step)));
    }
    return lengths;
  }

  std::optional<Tile> Fit(int64_t columns, int64_t rows, int64_t threads) const {
    constexpr int64_t kMostShared = 24 << 10;
    // What a block of the most threads costs besides: its start, and latencies that others must hide.
    constexpr double kOfBlock = 6000;
    Tile tile{columns, rows, threads, DivideUp(columns, read_), 0, DivideUp(rows, write_), 0, 0, 0, 0};
    if (tile.read_lanes > threads || tile.write_lanes > threads) return std::nullopt;
    tile.read_rows = threads / tile.read_lanes;
    tile.write_columns = threads / tile.write_lanes;
    if (DivideUp(rows, tile.read_rows) > ItemsOf(read_ * unit_)) return std::nullopt;
    if (DivideUp(columns, tile.write_columns) > ItemsOf(write_ * unit_)) return std::nullopt;
    // A warp that writes has few lanes along short rows, and 32 / lanes columns beside each other: as many banks must
    // lie between its rows.
    const int64_t apart = std::max<int64_t>(1, 32 / PowerUp(tile.write_lanes) / write_);
    tile.pitch = (DivideUp(columns, apart) | 1) * apart;
    if (rows * tile.pitch * unit_ > kMostShared) return std::nullopt;
    const int64_t tiles = DivideUp(columns_.length, columns) * DivideUp(rows_.length, rows) * outside_;
    tile.blocks = tiles;
    const bool is_read_whole = columns == columns_.length && rows_.from == columns * unit_;
    const bool is_written_whole = rows == rows_.length && columns_.to == rows * unit_;
    const double bytes = LineBytes(rows, columns * unit_, rows_.from, is_read_whole) +
      LineBytes(columns, rows * unit_, columns_.to, is_written_whole) + kOfBlock * double(threads) / kMostThreads;
    tile.cost = bytes * double(std::max<int64_t>(tiles, gpu_.multiprocessors));
    return tile;
  }

  TransposeAxis columns_, rows_;
  int64_t outside_, unit_, read_, write_;
  const DeviceFacts& gpu_;
};

void Push(std::vector<uint64_t>* block, const std::vector<int64_t>& numbers) {
  for (const int64_t number : numbers) block->push_back(uint64_t(number));
}

void PushDivider(std::vector<uint64_t>* block, int64_t divisor, bool wide = false) {
  for (const uint64_t number : MakeDivider(uint64_t(divisor), wide)) block->push_back(number);
}

void PushAxis(std::vector<uint64_t>* block, const TransposeAxis& axis, bool wide = false) {
  Push(block, {axis.length, axis.from, axis.to});
  PushDivider(block, axis.length, wide);
}

// Threads along y.
TransposeConfig ConfigureRows(TransposeShape shape, int alignment) {
  int64_t unit = shape.element;
  const bool has_run = !shape.axes.empty() && shape.axes.back().from == unit;
  std::vector<int64_t> places{alignment, shape.offset};
  if (has_run) {
    // As much of the run at once as it and all that lies around it allow.
    for (size_t axis = 0; axis + 1 < shape.axes.size(); ++axis) places.push_back(shape.axes[axis].from);
    places.push_back(shape.axes.back().length * unit);
    for (int64_t bytes = 16; bytes > unit; bytes /= 2)
      if (std::all_of(places.begin(), places.end(), [&](int64_t place) { return place % bytes == 0; })) {
        shape.axes.back().length /= bytes / unit;
        unit = shape.axes.back().from = shape.axes.back().to = bytes;
        break;
      }
  }
  if (shape.axes.empty()) shape.axes.push_back({1, 0, 0});
  const int64_t units = shape.count(), write = UnitsOf(unit, {alignment, units * unit});
  int64_t extent = 0;  // of x, in bytes
  for (const TransposeAxis& axis : shape.axes) extent += (axis.length - 1) * axis.from;
  TransposeConfig config{};
  config.unit = int(unit);
  config.read = 1;
  config.write = int(write);
  config.axes = int(shape.axes.size());
  config.threads = int(kMostThreads);
  const int64_t of_block = kMostThreads * ItemsOf(write * unit);
  config.wide = std::max(units, extent) >= kNarrow - of_block * write;
  config.blocks = DivideUp(units / write, of_block);
  config.arguments = {0, 0};
  Push(&config.arguments, {units / write});
  for (size_t axis = shape.axes.size(); axis-- > 0;) PushAxis(&config.arguments, shape.axes[axis], config.wide);
  return config;
}

// Of an axis of x and the last one of y, which is another; nothing where there is none.
std::optional<TransposeConfig> ConfigureTiles(const TransposeShape& shape, const DeviceFacts& gpu, int alignment) {
  const std::vector<TransposeAxis>& axes = shape.axes;
  if (axes.size() < 2) return std::nullopt;
  const auto by_step = [](const TransposeAxis& a, const TransposeAxis& b) { return a.from < b.from; };
  const auto place = size_t(std::min_element(axes.begin(), axes.end(), by_step) - axes.begin());
  const TransposeAxis &columns = axes[place], &rows = axes.back();
  const int64_t unit = shape.element, count = shape.count();
  if (place + 1 == axes.size() || std::max(columns.length, rows.length) >= kNarrow / 2) return std::nullopt;

  std::vector<int64_t> places{alignment, shape.offset, columns.length * unit};
  for (size_t axis = 0; axis < axes.size(); ++axis)
    if (axis != place) places.push_back(axes[axis].from);
  const int64_t read = columns.from == unit ? UnitsOf(unit, places) : 1;
  const int64_t write = UnitsOf(unit, {alignment, rows.length * unit});
  const int64_t outside = count / columns.length / rows.length;
  const std::optional<Tile> tile = TileChoice(columns, rows, outside, unit, read, write, gpu).Find();
  // Without a tile each unit is read alone, at worst with its sector.
  const double alone = double(count) * double(unit + std::max(unit, kSector));
  if (!tile || tile->cost > std::max(alone, 1.0) || tile->blocks >= kNarrow) return std::nullopt;

  TransposeConfig config{};
  config.is_tiled = true;
  config.threads = int(tile->threads);
  config.unit = int(unit);
  config.read = int(read);
  config.write = int(write);
  config.axes = int(axes.size()) - 2;
  config.blocks = tile->blocks;
  config.shared_bytes = unsigned(tile->rows * tile->pitch * unit);
  const int64_t column_tiles = DivideUp(columns.length, tile->columns), row_tiles = DivideUp(rows.length, tile->rows);
  config.arguments = {0, 0};
  Push(&config.arguments,
    {columns.length, rows.length, columns.from, columns.to, rows.from, tile->columns, tile->rows, column_tiles,
      row_tiles, tile->read_lanes, tile->read_rows, tile->write_lanes, tile->write_columns, tile->pitch});
  for (const int64_t divisor : {column_tiles, row_tiles, tile->read_lanes, tile->write_lanes})
    PushDivider(&config.arguments, divisor);
  for (size_t axis = axes.size() - 1; axis-- > 0;)
    if (axis != place) PushAxis(&config.arguments, axes[axis]);
  PushAxis(&config.arguments, {1, 0, 0});  // the kernel has one more than it uses
  return config;
}

}  // namespace

TransposeConfig ConfigureTranspose(TransposeShape shape, const DeviceFacts& gpu, int alignment) {
  shape.FoldRun(alignment);
  const bool has_run = !shape.axes.empty() && shape.axes.back().from == shape.element;
  if (!has_run)
    if (std::optional<TransposeConfig> tiles = ConfigureTiles(shape, gpu, alignment)) return *tiles;
  return ConfigureRows(std::move(shape), alignment);
}

const char* TransposeName(const TransposeConfig& config) {
  return config.is_tiled ? "transpose_tiles" : "transpose_rows";
}

std::string TransposeSource(const TransposeConfig& config) {
  const char* const type = config.unit == 1 ? "unsigned char"
    : config.unit == 2                      ? "unsigned short"
    : config.unit == 4                      ? "unsigned"
    : config.unit == 8                      ? "uint2"
                                            : "uint4";
  return Joined(kCommonSource, "\ntypedef ", type, " unit_t;\n",
    Defines({{"UNIT", config.unit}, {"TILED", config.is_tiled}, {"READ", config.read}, {"WRITE", config.write},
      {"AXES", config.axes}, {"WIDE", config.wide}, {"THREADS", config.threads}}),
    "\n", kTransposeSource);
}

cuda::PackedKernel LoadTranspose(const TransposeShape& shape, const DeviceFacts& device, int alignment) {
  const TransposeConfig config = ConfigureTranspose(shape, device, alignment);
  if (config.blocks >= kNarrow) Fail("the output takes ", config.blocks, " blocks, more than a launch has");
  const cuda::Function kernel = cuda::Load(device, TransposeSource(config), TransposeName(config), cuda::Warn);
  return {kernel, {config.blocks, config.threads, config.shared_bytes}, config.arguments};
}

namespace {

// A kernel for one input shape, ready to launch.
struct Plan {
  Shape output;
  int64_t offset;
  cuda::PackedKernel kernel;
};

struct Variant {
  ort::ElementType type;
  int alignment;
  bool operator<(const Variant& other) const {
    return std::tie(type, alignment) < std::tie(other.type, other.alignment);
  }
};

// What both addresses are a multiple of, in bytes, up to 16.
int AlignmentOf(const void* x, const void* y) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(x) | reinterpret_cast<uintptr_t>(y) | 16;
  return int(address & (~address + 1));
}

class CudaTranspose : public Kernel {
 public:
  explicit CudaTranspose(const NodeInfo& info)
    : attributes_(TransposeAttributes::Parse(info)), device_(cuda::Device(info.device())) {
    // Compiles for the shape that the model declares, so that errors come with the session and runs find the kernel
    // there.
    const TensorType x = info.input(0);
    if (x.type == ort::kUndefined) return;
    const int64_t element = CheckTransposeType(x.type);
    if (!KnownShapes({x}) || x.shape.empty()) return;
    if (ElementCount(FitTranspose(attributes_, x.shape, element).output) > 0) Make(x.shape, {x.type, 16});
  }

  void Compute(Run& run) const override {
    const Tensor x = run.input(0);
    const int64_t element = CheckTransposeType(x.type);
    const cuda::Stream stream = run.stream();
    // The output's address is known once its shape is. Almost always it is a multiple of 16.
    const int alignment = AlignmentOf(x.data, nullptr);
    std::shared_ptr<const Plan> plan = plans_.Find({x.shape}, {x.type, alignment});
    const Shape shape = plan != nullptr ? plan->output : FitTranspose(attributes_, x.shape, element).output;
    void* const y = run.output(0, shape);
    if (ElementCount(shape) == 0) return;
    const int both = AlignmentOf(x.data, y);
    if (both != alignment) plan = plans_.Find({x.shape}, {x.type, both});
    if (plan == nullptr) {
      cuda::RefuseCapture(device_, stream);
      plan = Make(x.shape, {x.type, both});
    }
    const void* const addresses[] = {static_cast<const char*>(x.data) + plan->offset, y};
    plan->kernel.Launch(device_, stream, addresses, 2);
  }

 private:
  std::shared_ptr<const Plan> Make(const Shape& input, const Variant& variant) const {
    const TransposeShape shape = FitTranspose(attributes_, input, CheckTransposeType(variant.type));
    auto plan = std::make_unique<Plan>();
    *plan = {shape.output, shape.offset, LoadTranspose(shape, device_, variant.alignment)};
    return plans_.Keep({input}, variant, std::move(plan));
  }

  TransposeAttributes attributes_;
  const DeviceFacts& device_;
  mutable PlanCache<Plan, Variant> plans_;
};

}  // namespace

std::unique_ptr<Kernel> CreateCudaTranspose(const NodeInfo& info) { return std::make_unique<CudaTranspose>(info); }

}  // namespace ortplugin
