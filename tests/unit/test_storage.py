import os
import resource
import signal
import stat
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import one_in, ones, parametrize, parsed, raises
from sample import SAMPLING

from ortplugin.errors import ModelError, OrtPluginError, StorageError, UsageError
from ortplugin.model import storage
from ortplugin.model.checks import check_structure, check_tensors
from ortplugin.model.storage import load_model, save_model

WEIGHT = np.arange(1024, dtype=np.float32).reshape(32, 32)


def small_model(weight=WEIGHT, opset=17):
  return parsed(
    "small (float[n,32] x) => (y) { [matmul] m = MatMul(x, w)  [add] y = Add(m, b) }",
    opset,
    weights={"w": weight, "b": ones(32)},
  )


def write(path, model):
  path.write_bytes(model.SerializeToString())
  return path


def external_model(folder, **entries):
  """A model whose weight lies in weights.bin, with its external_data entries overridden; None removes one."""
  (folder / "weights.bin").write_bytes(WEIGHT.tobytes())
  model = small_model()
  tensor = model.graph.initializer[0]
  tensor.ClearField("raw_data")
  tensor.data_location = TensorProto.EXTERNAL
  for key, value in {"location": "weights.bin", "offset": "0", "length": str(WEIGHT.nbytes), **entries}.items():
    tensor.external_data.add(key=key, value=value)
  return write(folder / "model.onnx", model)


def refused(path, *words):
  with pytest.raises(OrtPluginError) as caught:
    load_model(path)
  text = str(caught.value)
  assert "\n" not in text
  for word in words:
    assert word in text
  return text


# ---- reading


def test_a_good_model_is_read_as_it_is(tmp_path):
  model = small_model()
  assert load_model(write(tmp_path / "m.onnx", model)) == model


def test_missing_empty_and_foreign_files(tmp_path):
  refused(tmp_path / "none.onnx", "does not exist")
  (tmp_path / "empty.onnx").write_bytes(b"")
  refused(tmp_path / "empty.onnx", "is empty")
  refused(tmp_path, "not a regular file")
  for name, data in {
    "text.onnx": b"hello, world\n" * 10,
    "png.onnx": b"\x89PNG\r\n\x1a\n" + bytes(100),
    "zeros.onnx": bytes(1000),
  }.items():
    (tmp_path / name).write_bytes(data)
    refused(tmp_path / name, name)


def test_a_named_pipe_is_refused_without_waiting(tmp_path):
  os.mkfifo(tmp_path / "pipe.onnx")
  refused(tmp_path / "pipe.onnx", "not a regular file")


def test_every_truncation_is_refused(tmp_path):
  """Of a file that anyone wrote, and of our own output."""
  whole, path = tmp_path / "whole.onnx", tmp_path / "cut.onnx"
  save_model(small_model(), whole)
  for data in (small_model().SerializeToString(), whole.read_bytes()):
    for length in sorted({*range(1, 64), *range(64, len(data), 97), *range(len(data) - 64, len(data))}):
      path.write_bytes(data[:length])
      with pytest.raises(ModelError):
        load_model(path)


def test_altered_bytes_never_give_a_traceback(tmp_path, rng):
  data = small_model(WEIGHT[:2, :2]).SerializeToString()
  path = tmp_path / "altered.onnx"
  for _ in range(1000):
    altered = bytearray(data)
    for position in rng.integers(0, len(data), 3):
      altered[position] = rng.integers(0, 256)
    path.write_bytes(altered)
    with suppress(OrtPluginError):  # some changes leave a valid model
      load_model(path)


@parametrize(
  "location, words",
  [
    ("/etc/passwd", "relative path"),
    ("../weights.bin", "relative path"),
    ("sub/../../weights.bin", "relative path"),
    ("..\\weights.bin", "relative path"),
    ("", "relative path"),
    (".", "relative path"),
    ("nothing.bin", "not there"),
    ("folder", "not a regular file"),
    ("symlink.bin", "symbolic link"),
    ("linked/weights.bin", "symbolic link"),
    ("hardlink.bin", "hard link"),
    ("weights.bin/x", "can't be opened"),
    ("pipe", "not a regular file"),
  ],
)
def test_external_data_stay_in_the_folder(tmp_path, location, words):
  folder, outside = tmp_path / "model", tmp_path / "outside"
  folder.mkdir()
  outside.mkdir()
  (outside / "weights.bin").write_bytes(WEIGHT.tobytes())
  (folder / "folder").mkdir()
  os.mkfifo(folder / "pipe")
  (folder / "symlink.bin").symlink_to(outside / "weights.bin")
  (folder / "linked").symlink_to(outside)
  os.link(outside / "weights.bin", folder / "hardlink.bin")
  refused(external_model(folder, location=location), words, "'w'")


@parametrize(
  "entries, words",
  [
    ({"offset": "-1"}, "offset"),
    ({"offset": "1"}, "weights.bin"),
    ({"offset": str(2**62)}, "weights.bin"),
    ({"offset": str(2**64)}, "offset"),
    ({"offset": "1e3"}, "offset"),
    ({"length": "-4096"}, "length"),
    ({"length": "4095"}, "4095"),
    ({"length": str(2**62)}, "needs 4096"),
    ({"length": "٤٠٩٦"}, "length"),
    ({"length": ""}, "length"),
  ],
)
def test_external_offsets_and_lengths(tmp_path, entries, words):
  refused(external_model(tmp_path, **entries), words, "'w'")


def test_good_external_data_are_read(tmp_path):
  stored = storage.load(external_model(tmp_path, location="./weights.bin"))
  assert stored.data_files == (tmp_path / "weights.bin",)
  assert stored.proto == small_model()


def test_external_data_that_share_a_file_without_bound(tmp_path, patch):
  patch(storage, "_OVERLAP_FLOOR", 0)
  model = onnx.load(external_model(tmp_path), load_external_data=False)
  for index in range(20):
    copy = model.graph.initializer.add()
    copy.CopyFrom(model.graph.initializer[0])
    copy.name = f"w{index}"
  refused(write(tmp_path / "model.onnx", model), "16 times")


@parametrize(
  "dims, words",
  [
    ([2**40, 2**40], "overflows"),
    ([2**31, 2**31, 4], "overflows"),
    ([2**33], "bytes"),
    ([-1, 32], "negative"),
    ([32, 33], "bytes"),
  ],
)
@parametrize("external", [False, True])
def test_a_tiny_file_that_asks_for_a_huge_tensor(tmp_path, dims, words, external):
  path = external_model(tmp_path) if external else write(tmp_path / "model.onnx", small_model())
  model = onnx.load(path, load_external_data=False)
  tensor = model.graph.initializer[0]
  del tensor.dims[:]
  tensor.dims.extend(dims)
  limits = resource.getrlimit(resource.RLIMIT_AS)
  used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
  resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, limits[1]))  # allocating what it asks for would fail
  try:
    refused(write(path, model), words, "'w'")
  finally:
    resource.setrlimit(resource.RLIMIT_AS, limits)


def test_a_sparse_file_larger_than_memory(tmp_path):
  path = external_model(tmp_path)
  os.truncate(tmp_path / "weights.bin", 2**43)  # takes no space on the disk
  model = onnx.load(path, load_external_data=False)
  tensor = model.graph.initializer[0]
  tensor.dims[0], tensor.dims[1] = 2**20, 2**21
  tensor.external_data[2].value = str(2**43)
  refused(write(path, model), "memory")


def test_typed_data_of_the_wrong_length(tmp_path):
  model = small_model()
  tensor = model.graph.initializer[1]
  tensor.ClearField("raw_data")
  tensor.float_data.extend([1.0] * 31)
  refused(write(tmp_path / "m.onnx", model), "needs 32 values and holds 31")


def test_data_in_attributes_are_checked_too(tmp_path):
  model = small_model()
  value = numpy_helper.from_array(ones(4), "v")
  model.graph.node.insert(0, helper.make_node("Constant", [], ["c"], "constant", value=value))
  model.graph.node[0].attribute[0].t.dims[0] = 2**60
  refused(write(tmp_path / "m.onnx", model), "'constant' (Constant)")


DAMAGE = {
  "new IR": (lambda m: setattr(m, "ir_version", 99), "upgrade onnx"),
  "old IR": (lambda m: setattr(m, "ir_version", 1), "IR version 1"),
  "new opset": (lambda m: setattr(m.opset_import[0], "version", 999), "opset 999"),
  "opset 0": (lambda m: setattr(m.opset_import[0], "version", 0), "opset 0"),
  "domain without import": (lambda m: setattr(m.graph.node[1], "domain", "x.y"), "x.y"),
  "not SSA": (lambda m: m.graph.node[1].output.__setitem__(0, "m"), "SSA"),
  "two initializers": (lambda m: m.graph.initializer.append(m.graph.initializer[0]), "'w'"),
  "undefined": (lambda m: m.graph.node[0].input.__setitem__(0, "nobody"), "nobody"),
  "cycle": (lambda m: m.graph.node[0].input.__setitem__(0, "y"), "'matmul' (MatMul) ->"),
  "attribute": (lambda m: m.graph.node[0].attribute.add(name="a", type=1, f=1.0), "attribute"),
}


@parametrize("what", DAMAGE)
def test_invalid_structure(tmp_path, what):
  damage, words = DAMAGE[what]
  model = small_model()
  damage(model)
  refused(write(tmp_path / "m.onnx", model), words)


def test_unknown_operators_pass(tmp_path):
  model = small_model()
  model.graph.node[1].op_type = "NobodyKnows"  # as SimplifiedLayerNormalization of ONNX Runtime
  model.opset_import.add(domain="com.example", version=3)
  model.graph.node[0].domain = "com.example"
  assert load_model(write(tmp_path / "m.onnx", model)) == model


def test_large_models_are_checked_without_serialising_their_weights():
  model = small_model()
  model.graph.initializer[0].raw_data = bytes(2**28)
  model.graph.initializer[0].dims[0] = 2**21
  model.graph.node[0].op_type = "Identity"
  del model.graph.node[0].input[1:]
  start = time.process_time()
  assert check_tensors(model) == 2**28 + 128
  check_structure(model)
  assert time.process_time() - start < 2


# ---- writing


@parametrize("external", [False, True])
def test_what_is_written_is_what_is_read(tmp_path, external):
  model, path = small_model(), tmp_path / "out.onnx"
  before = model.SerializeToString()
  save_model(model, path, external=external)
  assert model.SerializeToString() == before
  assert load_model(path) == model
  theirs = onnx.load(path)  # onnx's own reader agrees
  for tensor in theirs.graph.initializer:
    tensor.ClearField("data_location")
  assert theirs == model
  assert [p.suffix for p in sorted(tmp_path.iterdir())] == ([".onnx", ".data"] if external else [".onnx"])


@parametrize("external", [False, True])
def test_the_same_model_gives_the_same_bytes(tmp_path, external):
  for name in ("a", "b"):
    (tmp_path / name).mkdir()
    save_model(small_model(), tmp_path / name / "out.onnx", external=external)
  first, second = (sorted((tmp_path / name).iterdir()) for name in ("a", "b"))
  assert [p.name for p in first] == [p.name for p in second]
  assert [p.read_bytes() for p in first] == [p.read_bytes() for p in second]


def test_over_the_limit_of_protobuf_weights_go_to_a_second_file(tmp_path, patch):
  patch(storage, "PROTOBUF_LIMIT", 4000)
  path = tmp_path / "out.onnx"
  save_model(small_model(), path)
  (data,) = tmp_path.glob("out.onnx.*.data")
  assert data.stat().st_size == WEIGHT.nbytes
  assert path.stat().st_size < 4000
  assert storage.load(path).data_files == (data,)
  assert load_model(path) == small_model()
  with raises(StorageError, "external data"):
    save_model(small_model(), path, external=False)


def test_weights_in_bodies_go_to_the_second_file_too(tmp_path):
  model = parsed("""(float[32,32] x, bool c) => (float[32,32] y) {
    [if] y = If(c) <body () => (float[] o) { o = Add(x, inner) },
                     other () => (float[] p) { p = Identity(x) }> }""")
  model.graph.node[0].attribute[0].g.initializer.append(numpy_helper.from_array(WEIGHT, "inner"))
  save_model(model, tmp_path / "out.onnx", external=True)
  (data,) = tmp_path.glob("*.data")
  assert data.read_bytes() == WEIGHT.tobytes()
  assert load_model(tmp_path / "out.onnx") == model


def test_the_output_must_not_be_the_input(tmp_path):
  source = write(tmp_path / "in.onnx", small_model())
  (tmp_path / "sym.onnx").symlink_to(source)
  os.link(source, tmp_path / "hard.onnx")
  (tmp_path / "sub").mkdir()
  before = source.read_bytes()
  for name in ("in.onnx", "sym.onnx", "hard.onnx", "sub/../in.onnx"):
    with raises(UsageError, "is the input"):
      save_model(small_model(), tmp_path / name, protect=[source])
  assert source.read_bytes() == before


def test_a_symbolic_link_is_no_output(tmp_path):
  (tmp_path / "target.onnx").write_bytes(b"old")
  (tmp_path / "link.onnx").symlink_to(tmp_path / "target.onnx")
  (tmp_path / "loop.onnx").symlink_to(tmp_path / "loop.onnx")
  for name in ("link.onnx", "loop.onnx"):
    with raises(UsageError, "symbolic link"):
      save_model(small_model(), tmp_path / name)
  assert (tmp_path / "target.onnx").read_bytes() == b"old"


def test_a_hard_linked_old_output_is_replaced_not_written_through(tmp_path):
  (tmp_path / "other").write_bytes(b"precious")
  os.link(tmp_path / "other", tmp_path / "out.onnx")
  save_model(small_model(), tmp_path / "out.onnx")
  assert (tmp_path / "other").read_bytes() == b"precious"
  assert load_model(tmp_path / "out.onnx") == small_model()


def test_bad_outputs(tmp_path):
  os.mkfifo(tmp_path / "pipe")
  for path, words in {
    tmp_path: "is a folder",
    tmp_path / "no" / "out.onnx": "does not exist",
    tmp_path / "pipe": "not a regular file",
    Path("/dev/null"): "not a regular file",
  }.items():
    with raises(UsageError, words):
      storage.check_output(path)


def test_an_output_that_cannot_be_examined(tmp_path):
  with raises(StorageError, "can't be examined: File name too long"):
    storage.check_output(tmp_path / ("n" * 300))


def test_a_folder_that_cannot_be_listed(tmp_path, monkeypatch):
  """The output is there; old data files may stay."""

  def refuse(_):
    raise PermissionError(13, "Permission denied")

  monkeypatch.setattr(os, "scandir", refuse)
  save_model(small_model(), tmp_path / "m.onnx")
  monkeypatch.undo()
  assert load_model(tmp_path / "m.onnx") == small_model()


def test_the_inputs_data_file_is_never_overwritten(tmp_path):
  """The output's data file would have the name of the input's."""
  save_model(small_model(), tmp_path / "m.onnx", external=True)
  (data,) = tmp_path.glob("*.data")
  source = tmp_path / "copy.onnx"
  os.rename(tmp_path / "m.onnx", source)  # refers to m.onnx.<digest>.data
  stored, before = storage.load(source), data.read_bytes()
  with raises(UsageError, "is the input"):
    save_model(stored.proto, tmp_path / "m.onnx", protect=stored.files, external=True)
  other = small_model(WEIGHT + 1)
  save_model(other, tmp_path / "m.onnx", protect=stored.files, external=True)
  assert data.read_bytes() == before
  assert load_model(source) == small_model()
  assert load_model(tmp_path / "m.onnx") == other


def test_a_new_version_removes_the_old_versions_data(tmp_path):
  path = tmp_path / "out.onnx"
  (tmp_path / "out.onnx.data").write_bytes(b"not ours")
  save_model(small_model(), path, external=True)
  save_model(small_model(WEIGHT + 1), path, external=True)
  assert len(list(tmp_path.glob("out.onnx.*.data"))) == 1
  save_model(small_model(), path)
  assert sorted(p.name for p in tmp_path.iterdir()) == ["out.onnx", "out.onnx.data"]


def test_the_data_file_is_not_written_through_a_link(tmp_path):
  save_model(small_model(), tmp_path / "out.onnx", external=True)
  (data,) = tmp_path.glob("*.data")
  data.rename(tmp_path / "elsewhere")
  data.symlink_to(tmp_path / "elsewhere")
  with raises(UsageError, "symbolic link"):
    save_model(small_model(), tmp_path / "out.onnx", external=True)


@parametrize("umask, mode", [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_new_files_follow_the_umask_and_old_ones_keep_their_mode(tmp_path, umask, mode):
  old = os.umask(umask)
  try:
    save_model(small_model(), tmp_path / "out.onnx", external=True)
    assert {stat.S_IMODE(p.stat().st_mode) for p in tmp_path.iterdir()} == {mode}
    os.chmod(tmp_path / "out.onnx", 0o640)
    save_model(small_model(), tmp_path / "out.onnx")
    assert stat.S_IMODE((tmp_path / "out.onnx").stat().st_mode) == 0o640
  finally:
    os.umask(old)


@parametrize("external", [False, True])
@parametrize("limit", [0, 100, 3000, 4100])
def test_a_full_disk_leaves_the_old_output_whole(tmp_path, external, limit):
  path = tmp_path / "out.onnx"
  save_model(small_model(), path, external=external)
  before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
  new = small_model(np.arange(4096, dtype=np.float32).reshape(32, 128))
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))
  try:
    with raises(StorageError, "nothing was changed; free some space") as caught:
      save_model(new, path, external=external)
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
  assert "\n" not in str(caught.value)
  assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_an_interruption_leaves_nothing_behind(tmp_path, patch):
  def interrupt(*_):
    raise KeyboardInterrupt

  patch(os, "fsync", interrupt)
  for external in (False, True):
    with pytest.raises(KeyboardInterrupt):
      save_model(small_model(), tmp_path / "out.onnx", external=external)
    assert not list(tmp_path.iterdir())


KILLED = """
    import os, signal, sys
    import numpy as np
    sys.path[:0] = [sys.argv[1], os.path.dirname(sys.argv[1])]
    from test_storage import small_model
    from ortplugin.model import storage

    path, external, moment = sys.argv[2], sys.argv[3] == "True", int(sys.argv[4])
    calls = 0

    def dying(function):
        def call(*arguments, **options):
            global calls
            calls += 1
            if calls == moment:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)
        return call

    os.fsync, os.replace = dying(os.fsync), dying(os.replace)
    storage.save_model(small_model(np.full((32, 64), 7, np.float32)), path, external=external)
"""


@one_in(2)
@parametrize("external", [False, True])
def test_killed_at_every_step_leaves_the_old_output_or_the_new_one(tmp_path, external):
  """SIGKILL before each flush and each rename: the output is a whole model at every moment."""
  path = tmp_path / "out.onnx"
  old, new = small_model(), small_model(np.full((32, 64), 7, np.float32))
  finished = 0
  for moment in range(1, 12):
    for leftover in tmp_path.iterdir():
      leftover.unlink()
    save_model(old, path, external=external)
    arguments = [str(Path(__file__).parent), str(path), str(external), str(moment)]
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(KILLED), *arguments], check=False)
    assert done.returncode in (-signal.SIGKILL, 0)
    found = load_model(path)
    assert found in (old, new)
    finished += done.returncode == 0
    if done.returncode == 0:
      assert found == new
      assert not list(tmp_path.glob(".*.tmp"))
      if SAMPLING:
        break
  assert 1 <= finished < 9  # some moments killed it, and the last ones came after its end
