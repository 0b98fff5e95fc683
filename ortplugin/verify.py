"""Original against optimized in ONNX Runtime, with the library registered, on each execution provider present.

Both sides run with ONNX Runtime's default graph optimizations, on the same inputs: generated ones in two sets of sizes
if there are dynamic dimensions, and the user's. On CUDA, sessions that are compared run without TF32, whose rounding
of fp32 products to 10 bits would hide errors; sessions that are timed run as a user's would.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto

from .compare import Tolerance, compare, compare_form
from .errors import OrtPluginError, RuntimeMissingError, VerificationError, one_line
from .input_shapes import Shapes
from .inputs import CANDIDATES, Case, cast_floating, generate, load_inputs
from .modelcheck import walk_nodes
from .ops import DOMAIN
from .report import InputComparison, OutputComparison, ProviderVerification
from .session import (
    CPU,
    CUDA,
    available_providers,
    element_type,
    library_path,
    onnxruntime,
    register,
    resolve_provider,
    run_on_host,
)
from .storage import save_model

__all__ = ["Tolerance", "Verifier", "median_times"]

_SILENT = 4  # ONNX Runtime's log level that shows fatal errors only; its errors are reported as ours
_WARM_UP, _MIN_ROUNDS, _MAX_ROUNDS, _SECONDS = 2, 5, 50, 1.0

Arrays = dict[str, Any]


@dataclass(frozen=True)
class _Reference:
    """The original on one provider: each case with its outputs, and the outputs that differ from run to run."""

    session: Any
    cases: tuple[tuple[Case, Arrays], ...]
    random_outputs: frozenset[str]


@dataclass(frozen=True)
class _Side:
    """A model on disk, and whether it needs the library."""

    path: Path
    plugin: bool


class Verifier:
    """Compares models with one original. Close it at the end (`contextlib.closing`): it keeps a temporary folder.

    Args:
        original: the model to compare with.
        path: its file, if it has one; otherwise it is written to the temporary folder.
        providers: where to compare; None takes the CPU, and CUDA where it is present.
        inputs: the user's arrays or .npz file, to compare on besides generated inputs.
        input_shapes: input name to shape, for the generated inputs.
        tolerance: the user's.
        timed: whether to time the two models as well.
        progress: called with a few words at each step.
    """

    def __init__(
        self,
        original: ModelProto,
        *,
        path: Path | None = None,
        providers: Sequence[str] | None = None,
        inputs: Mapping[str, Any] | str | os.PathLike[str] | None = None,
        input_shapes: Shapes | None = None,
        tolerance: Tolerance | None = None,
        timed: bool = True,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self._original = original
        plugin = _uses_plugin(original)
        self._original_side = None if path is None else _Side(path, plugin)
        self._chosen = providers is not None
        names = available_providers() if providers is None else [resolve_provider(name) for name in providers]
        self._providers = list(dict.fromkeys(sorted(names, key=lambda name: name != CPU)))  # the CPU first
        self._user_case = None if inputs is None else load_inputs(inputs, original)
        self._shapes = input_shapes
        self._tolerance = tolerance or Tolerance()
        self._timed = timed
        self._tell = progress or (lambda _: None)
        self._references: dict[str, _Reference] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="ortplugin-")

    def close(self) -> None:
        """Removes the temporary folder."""
        self._folder.cleanup()

    def verify(self, optimized: ModelProto) -> list[ProviderVerification]:
        """Compares `optimized` with the original on every provider. Raises VerificationError if that can't be done."""
        side = self._write(optimized, "optimized.onnx")
        results: list[ProviderVerification] = []
        for provider in self._providers:
            try:
                self._reference(provider)
            except VerificationError as error:
                # bfloat16 models, say, often have no kernels on the CPU: another provider will do, unless asked for.
                if self._chosen or len(self._providers) == 1:
                    raise
                results.append(ProviderVerification(provider, (), skipped=str(error)))
                continue
            lacking = self._lacking_kernels(provider, side)
            if lacking:
                if self._chosen or len(self._providers) == 1:
                    raise VerificationError(lacking)
                results.append(ProviderVerification(provider, (), skipped=lacking))
                continue
            results.append(self._verify_on(provider, side))
        if all(result.skipped for result in results):
            raise VerificationError(results[0].skipped)
        return results

    def agrees(self, candidate: ModelProto, provider: str) -> bool:
        """Whether `candidate` agrees with the original on `provider`, on every case."""
        side = self._write(candidate, "candidate.onnx")
        return all(comparison.passed for comparison in self._compare_on(provider, side)[0])

    # ------------------------------------------------------------------------------------------------------ the parts

    def _lacking_kernels(self, provider: str, side: _Side) -> str:
        """Why a model converted to bfloat16 can't be compared here: ONNX Runtime has few such kernels on the CPU."""
        if self._tolerance.precision != "bf16" or provider != CPU:
            return ""
        try:
            make_session(side, provider)
        except OrtPluginError:
            raise
        except Exception as error:  # as below
            if "NOT_IMPLEMENTED" in str(error):
                return (
                    f"ONNX Runtime lacks bfloat16 kernels on the CPU ({one_line(error)[-160:]}); "
                    "verify where there is a GPU, or skip the check with --no-verify"
                )
        return ""

    def _write(self, model: ModelProto, name: str) -> _Side:
        path = Path(self._folder.name) / name
        save_model(model, path, durable=False)
        return _Side(path, _uses_plugin(model))

    def _written_original(self) -> _Side:
        if self._original_side is None:
            self._original_side = self._write(self._original, "original.onnx")
        return self._original_side

    def _reference(self, provider: str) -> _Reference:
        if provider not in self._references:
            self._tell(f"running the original on {_short(provider)}")
            self._references[provider] = self._make_reference(provider)
        return self._references[provider]

    def _make_reference(self, provider: str) -> _Reference:
        try:
            session = make_session(self._written_original(), provider)
        except OrtPluginError:
            raise
        except Exception as error:  # ONNX Runtime's own classes have no common base
            raise VerificationError(
                f"the original can't be loaded on {_short(provider)}: {one_line(error)}; "
                "choose another --provider, or skip the check with --no-verify"
            ) from error
        names = [value.name for value in session.get_outputs()]
        cases: list[tuple[Case, Arrays]] = []
        if self._user_case is not None:
            try:
                cases.append((self._user_case, run_on_host(session, self._user_case.feeds, names)))
            except Exception as error:  # as above
                raise VerificationError(
                    f"the original does not run on {self._user_case.name}: {one_line(error)}"
                ) from error
        cases += self._generated_cases(session, names, needed=self._user_case is None)
        first, outputs = cases[0]
        again = run_on_host(session, first.feeds, names)
        return _Reference(
            session, tuple(cases), frozenset(name for name in names if not _same(outputs[name], again[name]))
        )

    def _generated_cases(self, session: Any, names: Sequence[str], needed: bool) -> list[tuple[Case, Arrays]]:
        """Up to two generated cases on which the original runs; `needed`: an error if there is none."""
        found: list[tuple[Case, Arrays]] = []
        problem: BaseException | None = None
        for sizes in CANDIDATES:
            try:
                case = generate(self._original, sizes, self._shapes)
                if all(case.name != other.name for other, _ in found):
                    found.append((case, run_on_host(session, case.feeds, names)))
            except Exception as error:  # as above
                problem = problem or error
            if len(found) == 2 or (found and found[0][0].name == "generated"):
                break
        if not found and needed:
            raise VerificationError(
                f"the original does not run on generated inputs: {one_line(problem or '')}; "
                "give its inputs with --inputs data.npz, their shapes with --input-shape, or --no-verify"
            ) from problem
        return found

    def _compare_on(self, provider: str, side: _Side) -> tuple[list[InputComparison], Any]:
        """(the comparison of each case, the session of `side` or None if it could not be made)."""
        reference = self._reference(provider)
        names = list(reference.cases[0][1])
        try:
            session = make_session(side, provider)
        except RuntimeMissingError:
            raise
        except Exception as error:  # as above
            return [_failure("loading", f"the optimized model can't be loaded: {one_line(error)}")], None
        results = []
        for case, expected in reference.cases:
            try:
                actual = run_on_host(session, _as_taken(case.feeds, session), names)
            except Exception as error:  # as above
                results.append(_failure(case.name, f"the optimized model does not run: {one_line(error)}"))
                continue
            outputs = tuple(
                compare_form(name, expected[name], actual[name])
                if name in reference.random_outputs
                else compare(name, expected[name], actual[name], self._tolerance)
                for name in names
            )
            results.append(InputComparison(case.name, outputs))
        return results, session

    def _verify_on(self, provider: str, side: _Side) -> ProviderVerification:
        self._tell(f"comparing on {_short(provider)}")
        comparisons, session = self._compare_on(provider, side)
        result = ProviderVerification(provider, tuple(comparisons))
        if not self._timed or not result.passed:
            return result
        self._tell(f"timing on {_short(provider)}")
        reference = self._reference(provider)
        case, outputs = reference.cases[0]
        try:
            sessions = [reference.session, session]
            if provider == CUDA:
                sessions = [make_session(each, provider, tf32=True) for each in (self._written_original(), side)]
            original, optimized = (
                _runner(each, provider, _as_taken(case.feeds, each), list(outputs)) for each in sessions
            )
            times = median_times(original, optimized)
        except Exception:  # memory for two more sessions may lack; times are not the verdict
            return result
        return replace(result, original_ms=times[0], optimized_ms=times[1])


def _as_taken(feeds: Mapping[str, Any], session: Any) -> dict[str, Any]:
    """The feeds in the dtypes that the session takes, which a conversion may have changed."""
    taken = {value.name: element_type(value.type) for value in session.get_inputs()}
    dtypes = {name: element[1] for name, element in taken.items() if element is not None}
    return {name: cast_floating(value, dtypes.get(name)) for name, value in feeds.items()}


def _short(provider: str) -> str:
    return provider.removesuffix("ExecutionProvider")


def _failure(case: str, message: str) -> InputComparison:
    return InputComparison(case, (OutputComparison("", False, message=message),))


def _uses_plugin(model: ModelProto) -> bool:
    return any(node.domain == DOMAIN for node in walk_nodes(model))


def make_session(side: _Side, provider: str, tf32: bool = False) -> Any:
    """A silent session on one provider, with the CPU behind it.

    Args:
        side: the model; where it does not need the library, that is registered if it is there.
        provider: full name.
        tf32: on CUDA, let fp32 products round to TF32, which is ONNX Runtime's default.
    """
    ort = onnxruntime()
    options = ort.SessionOptions()
    options.log_severity_level = _SILENT
    if side.plugin or _library_present():
        register(options)
    settings = [{"use_tf32": "1" if tf32 else "0"} if provider == CUDA else {}]
    providers = [provider]
    if provider != CPU:
        providers.append(CPU)
        settings.append({})
    session = ort.InferenceSession(
        str(side.path), options, providers=providers, provider_options=settings, enable_fallback=0
    )
    if provider not in session.get_providers():
        raise RuntimeMissingError(
            f"ONNX Runtime could not start {provider}; install its libraries (`pip install ortplugin[gpu]`) "
            "or choose another --provider"
        )
    return session


def _library_present() -> bool:
    try:
        library_path()
    except RuntimeMissingError:
        return False
    return True


def _same(first: Any, second: Any) -> bool:
    """Whether two runs of one session gave the same, up to the noise of a parallel sum."""
    return compare("", first, second).passed


def _runner(session: Any, provider: str, feeds: Mapping[str, Any], names: Sequence[str]) -> Callable[[], object]:
    """A function that runs the session once; on CUDA, with inputs and outputs on the device."""
    plain = all(isinstance(array, np.ndarray) and array.dtype.kind in "fiub" for array in feeds.values())
    plain = plain and all(array.dtype.isnative and array.dtype.num < 24 for array in feeds.values())
    if provider != CUDA or not plain:
        return lambda: run_on_host(session, feeds, names)
    ort = onnxruntime()
    binding = session.io_binding()
    values = {name: ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(a), "cuda", 0) for name, a in feeds.items()}
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    for name in names:
        binding.bind_output(name, "cuda", 0)
    return lambda: session.run_with_iobinding(binding)


def median_times(first: Callable[[], object], second: Callable[[], object]) -> tuple[float, float]:
    """Median milliseconds of two functions, run in turns after a warm-up so that both meet the same conditions."""
    for _ in range(_WARM_UP):
        first()
        second()
    times: tuple[list[float], list[float]] = ([], [])
    begun = time.perf_counter()
    while len(times[0]) < _MIN_ROUNDS or (len(times[0]) < _MAX_ROUNDS and time.perf_counter() - begun < _SECONDS):
        order = ((first, 0), (second, 1)) if len(times[0]) % 2 == 0 else ((second, 1), (first, 0))
        for function, index in order:
            start = time.perf_counter()
            function()
            times[index].append((time.perf_counter() - start) * 1e3)
    return statistics.median(times[0]), statistics.median(times[1])
