// y = Transpose(x[window]), by the axes of y: a number i of y's units (of UNIT bytes, which stay together) is a sum of
// coordinates, each of which moves so many bytes in x and in y.
//
// TILED 1: two axes are the innermost, one of x (columns) and one of y (rows). A block takes a tile of both:
//
//   tile[row][column] = x[.., row, column]       threads along columns, READ units each, neighbours in x
//   y[.., column, row] = tile[row][column]       threads along rows, WRITE units each, neighbours in y
//
// TILED 0: the innermost axis of y lies side by side in x too, or no tile pays. Threads along y, WRITE units each.
//
// The text in front defines these, unit_t, AXES (of TILED 1 those outside the tile), WIDE and THREADS. Needs
// common.cuh.

#if WIDE
typedef unsigned long long index_t;
#else
typedef unsigned index_t;
#endif

struct Axis {
  unsigned long long length, from, to;  // from, to: in bytes
  Divider by_length;
};

// Units of a thread that are under way at once: 16 to 64 bytes of it.
#define ITEMS(count) ((count) * UNIT <= 2 ? 16 : (count) * UNIT <= 8 ? 8 : 4)

#if TILED

struct Arguments {
  const char* x;
  char* y;
  unsigned long long columns, rows;  // of the two axes
  unsigned long long column_from, column_to, row_from;  // bytes; neighbours in y along rows are UNIT apart
  unsigned long long tile_columns, tile_rows;  // at most, multiples of READ and WRITE
  unsigned long long column_tiles, row_tiles;  // of each axis
  unsigned long long read_lanes, read_rows;  // threads along a tile's columns; rows read at the same time
  unsigned long long write_lanes, write_columns;  // likewise
  unsigned long long pitch;  // units between rows of the tile
  Divider by_column_tiles, by_row_tiles, by_read_lanes, by_write_lanes;
  Axis axes[AXES + 1];  // the innermost first
};

extern "C" __global__ void __launch_bounds__(THREADS) transpose_tiles(const Arguments a) {
  extern __shared__ __align__(16) unsigned char memory[];
  unit_t* const tile = (unit_t*)memory;
  grid_dependency_wait();
  unsigned rest = blockIdx.x, next = quotient(rest, a.by_column_tiles);
  const unsigned first_column = (rest - next * (unsigned)a.column_tiles) * (unsigned)a.tile_columns;
  rest = next;
  next = quotient(rest, a.by_row_tiles);
  const unsigned first_row = (rest - next * (unsigned)a.row_tiles) * (unsigned)a.tile_rows;
  rest = next;
  const char* x = a.x + first_column * a.column_from + first_row * a.row_from;
  char* y = a.y + first_column * a.column_to + first_row * (unsigned long long)UNIT;
#pragma unroll
  for (int axis = 0; axis < AXES; ++axis) {
    unsigned at = rest;
    if (axis + 1 < AXES) {
      rest = quotient(rest, a.axes[axis].by_length);
      at -= rest * (unsigned)a.axes[axis].length;
    }
    x += at * a.axes[axis].from;
    y += at * a.axes[axis].to;
  }
  const unsigned columns = min((unsigned)a.tile_columns, (unsigned)a.columns - first_column);
  const unsigned rows = min((unsigned)a.tile_rows, (unsigned)a.rows - first_row);
  const unsigned pitch = (unsigned)a.pitch;
  {
    const unsigned step = (unsigned)a.read_rows, row = quotient(threadIdx.x, a.by_read_lanes);
    const unsigned column = (threadIdx.x - row * (unsigned)a.read_lanes) * READ;
    const unsigned end = row < step && column < columns ? rows : 0;
    const char* from = x + column * a.column_from + row * a.row_from;
    Vector<unit_t, READ> held[ITEMS(READ)];
#pragma unroll
    for (int i = 0; i < ITEMS(READ); ++i) {
      if (row + i * step < end) held[i].load((const unit_t*)from);
      from += step * a.row_from;
    }
    unit_t* to = tile + row * pitch + column;
#pragma unroll
    for (int i = 0; i < ITEMS(READ); ++i) {
      if (row + i * step < end) {
#pragma unroll
        for (int j = 0; j < READ; ++j) to[j] = held[i].elements[j];
      }
      to += step * pitch;
    }
  }
  __syncthreads();
  const unsigned step = (unsigned)a.write_columns, column = quotient(threadIdx.x, a.by_write_lanes);
  const unsigned row = (threadIdx.x - column * (unsigned)a.write_lanes) * WRITE;
  const unsigned end = column < step && row < rows ? columns : 0;
  const unit_t* from = tile + row * pitch + column;
  char* to = y + column * a.column_to + row * UNIT;
#pragma unroll
  for (int i = 0; i < ITEMS(WRITE); ++i) {
    if (column + i * step < end) {
      Vector<unit_t, WRITE> made;
#pragma unroll
      for (int j = 0; j < WRITE; ++j) made.elements[j] = from[j * pitch];
      made.store((unit_t*)to);
    }
    from += step;
    to += step * a.column_to;
  }
}

#else

struct Arguments {
  const char* x;
  char* y;
  unsigned long long count;  // of accesses to y
  Axis axes[AXES];  // the innermost first
};

extern "C" __global__ void __launch_bounds__(THREADS) transpose_rows(const Arguments a) {
  grid_dependency_wait();
  const index_t first = (index_t)blockIdx.x * (THREADS * ITEMS(WRITE)) + threadIdx.x;
  Vector<unit_t, WRITE> held[ITEMS(WRITE)];
#pragma unroll
  for (int i = 0; i < ITEMS(WRITE); ++i) {
    if (first + i * THREADS >= (index_t)a.count) continue;
#pragma unroll
    for (int j = 0; j < WRITE; ++j) {
      index_t rest = (first + i * THREADS) * WRITE + j, from = 0;
#pragma unroll
      for (int axis = 0; axis < AXES; ++axis) {
        index_t at = rest;
        if (axis + 1 < AXES) {
          rest = quotient(rest, a.axes[axis].by_length);
          at -= rest * (index_t)a.axes[axis].length;
        }
        from += at * (index_t)a.axes[axis].from;
      }
      Vector<unit_t, 1> unit;
      unit.load((const unit_t*)(a.x + from));
      held[i].elements[j] = unit.elements[0];
    }
  }
#pragma unroll
  for (int i = 0; i < ITEMS(WRITE); ++i)
    if (first + i * THREADS < (index_t)a.count)
      held[i].store((unit_t*)a.y + (unsigned long long)(first + i * THREADS) * WRITE);
}

#endif
