"""An ONNX Runtime that is too old gets a status that says so, and no crash."""

import ctypes

CreateStatus = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)
GetApi = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)
GetVersionString = ctypes.CFUNCTYPE(ctypes.c_void_p)


class ApiBase(ctypes.Structure):
  """OrtApiBase: all that a library gets of the ONNX Runtime that registers it."""

  _fields_ = (("GetApi", GetApi), ("GetVersionString", GetVersionString))


def test_an_old_runtime_is_told_what_is_needed(library):
  messages = []
  asked = []
  status, version = ctypes.create_string_buffer(1), ctypes.create_string_buffer(b"1.17.3")

  @CreateStatus
  def create_status(_, message):
    messages.append(message.decode())
    return ctypes.addressof(status)

  oldest = (ctypes.c_void_p * 1)(ctypes.cast(create_status, ctypes.c_void_p))  # of a table's functions, the first

  @GetApi
  def get_api(number):
    asked.append(number)
    return ctypes.addressof(oldest) if number <= 17 else 0

  base = ApiBase(get_api, GetVersionString(lambda: ctypes.addressof(version)))
  register = ctypes.CDLL(str(library)).RegisterCustomOps
  register.restype = ctypes.c_void_p
  register.argtypes = (ctypes.c_void_p, ctypes.POINTER(ApiBase))
  assert register(None, ctypes.byref(base)) == ctypes.addressof(status)
  assert asked[0] == 18
  (message,) = messages
  assert "needs ONNX Runtime 1.18 or later; this process has 1.17.3" in message
  assert "Upgrade onnxruntime" in message
