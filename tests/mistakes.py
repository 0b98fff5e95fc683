"""What the command line owes a user who made a mistake: one line, and every file as it was."""

import numpy as np


def check_mistake(mistake, bert, folder, run):
  """Runs the command among broken files: cut.onnx and wrong.npz.

  `mistake`: a command line with {bert} and {tmp}, exit status, words of the message.
  """
  line, expected, words = mistake
  (folder / "cut.onnx").write_bytes(bert.read_bytes()[:2000])
  np.savez(folder / "wrong.npz", nobody=np.ones(3))
  before = sorted(path.name for path in folder.iterdir())
  model = bert.read_bytes()
  status, text, errors = run(*(part.format(bert=bert, tmp=folder) for part in line.split()))
  assert status == expected
  assert text == ""
  assert errors.count("\n") == 1
  assert errors.startswith("optimize-model: ")
  assert words in errors
  assert sorted(path.name for path in folder.iterdir()) == before
  assert bert.read_bytes() == model
