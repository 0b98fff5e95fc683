"""One case: the original and the optimized model run, and what is wrong with the latter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx

import ortplugin
from ortplugin.compare import compare
from ortplugin.errors import ModelError, OrtPluginError, one_line
from ortplugin.modelcheck import walk_nodes

from . import oracle
from .emulate import emulated
from .evaluate import OURS, UnfitError, make_session, run
from .generate import Case
from .graph import HALVES
from .maxima import definite
from .providers import Provider

Tell = Callable[[str], None]
Outputs = dict[str, Any]


@dataclass
class Finding:
    """What is wrong: `kind` is exception, load, run, form, values, again or restore; `guilty` the pass to blame."""

    kind: str
    message: str
    guilty: str = ""


@dataclass
class Verdict:
    """What became of a case: "same", "unfit" (nothing to compare with), "refused" or "finding".

    `captured`: whether it ran under a CUDA graph.
    """

    what: str
    message: str = ""
    finding: Finding | None = None
    rewrites: list[str] = field(default_factory=list)
    captured: bool = False


class Judge:
    """Judges cases on a provider. `tell` hears what is under way, for the case that the process dies."""

    def __init__(self, provider: Provider | None = None, tell: Tell = lambda _: None) -> None:
        self.provider = provider or Provider()
        self.tell = tell

    def judge(self, case: Case) -> Verdict:
        """The verdict on a case, without looking for the guilty pass."""
        self.tell("original")
        try:
            references = [Reference(case, feeds) for feeds in case.feeds[:1]]
            references[0].wanted  # noqa: B018, which runs the original
            if case.dtype in HALVES:
                references[0].narrow()
        except Exception as error:  # ONNX Runtime's own classes have no common base
            return Verdict("unfit", one_line(error))
        for feeds in case.feeds[1:]:  # of other values and sizes
            try:
                references.append(Reference(case, feeds))
                references[-1].wanted  # noqa: B018
            except Exception:  # as above
                references.pop()
        self.tell("optimize")
        try:
            made, report = optimize(case)
        except ModelError as error:
            if "can't be upgraded" in str(error) or "is older than" in str(error):
                return Verdict("refused", one_line(error))
            return Verdict("finding", finding=Finding("exception", f"ModelError: {one_line(error)}"))
        except OrtPluginError as error:
            return Verdict("finding", finding=Finding("exception", f"{type(error).__name__}: {one_line(error)}"))
        except Exception as error:  # a defect, whatever its class
            return Verdict("finding", finding=Finding("exception", f"{type(error).__name__}: {one_line(error)}"))
        rewrites = [change.rewrite for change in report.changes]
        try:
            found = self._compare(case, references, made) or self._check(case, references, made)
        except UnfitError as error:
            return Verdict("unfit", one_line(error), rewrites=rewrites)
        what = "finding" if found else "same"
        return Verdict(what, finding=found, rewrites=rewrites, captured=self.provider.captured)

    def _compare(self, case: Case, references: Sequence[Reference], made: onnx.ModelProto) -> Finding | None:
        self.tell("load")
        ort = "ort" in case.checks and self.provider.is_cpu
        try:
            session = self.provider.session(made, ort)
        except UnfitError:
            raise
        except Exception as error:  # ONNX Runtime's own classes have no common base
            if self.provider.lacks(case, references[0]):
                raise UnfitError(str(error)) from error
            return Finding("load", one_line(error))
        self.tell("run")
        for reference in references:
            try:
                got = self.provider.run(session, reference.feeds_of(made))
            except Exception as error:  # as above
                if self.provider.lacks(case, reference) or "data type is not supported" in str(error):
                    raise UnfitError(str(error)) from error
                ran = [bool(each) for each in reference.trials()]
                if any(ran) and not all(ran):
                    raise UnfitError("whether the original runs depends on rounding") from error
                return Finding("run", one_line(error))
            problem = self._problem(case, reference, made, got)
            if problem:
                if ort and not self._differs(case, reference, made):
                    return None  # ONNX Runtime's own optimizations did it
                return problem
        return None

    def _differs(self, case: Case, reference: Reference, made: onnx.ModelProto) -> bool:
        session = self.provider.session(made, False)
        return self._problem(case, reference, made, self.provider.run(session, reference.feeds_of(made))) is not None

    def _problem(
        self, case: Case, reference: Reference, made: onnx.ModelProto, got: Mapping[str, Any]
    ) -> Finding | None:
        """What is wrong with the outputs, but for what ONNX leaves open and ONNX Runtime does in several ways."""
        problem = reference.problem(got, self.provider)
        if problem is None or problem.kind != "values":
            return problem
        model, wide = definite(case.model), None if case.wide is None else definite(case.wide)
        if model is None or (case.wide is not None and wide is None):
            return problem
        self.tell("maxima")
        try:
            same = Reference(replace(case, model=model, wide=wide), reference.feeds)
            session = self.provider.session(definite(made) or made, False)
            return same.problem(self.provider.run(session, reference.feeds_of(made)), self.provider)
        except Exception:  # what does not run in that form is judged as it is
            return problem

    def _check(self, case: Case, references: Sequence[Reference], made: onnx.ModelProto) -> Finding | None:
        """What else a case asks for: a second run changes nothing; the restored model gives the same."""
        if "again" in case.checks and case.options.keys() <= {"layout", "skip"}:
            self.tell("again")
            try:
                _, report = ortplugin.optimize(made, **case.options)
            except Exception as error:  # a defect, whatever its class
                return Finding("again", f"{type(error).__name__}: {one_line(error)}")
            if report.changes:
                return Finding("again", f"a second run changes it by {report.changes[0].rewrite}",
                               report.changes[0].rewrite)  # fmt: skip
        if "restore" in case.checks and self.provider.is_cpu and any(node.domain == OURS for node in walk_nodes(made)):
            self.tell("restore")
            try:
                restored = ortplugin.restore(made)
                session = self.provider.session(restored, False)
                got = self.provider.run(session, references[0].feeds_of(made))
            except UnfitError:
                return None
            except Exception as error:  # a defect, whatever its class
                if "data type is not supported" in str(error):
                    return None  # of ONNX Runtime's own kernels in fp16
                return Finding("restore", f"{type(error).__name__}: {one_line(error)}")
            problem = self._problem(case, references[0], restored, got)
            if problem:
                return Finding("restore", problem.message)
        return None


def optimize(case: Case, **more: Any) -> tuple[onnx.ModelProto, Any]:
    """`ortplugin.optimize` with the case's options."""
    return ortplugin.optimize(case.model, **{**case.options, **more})


class Reference:
    """What the original gives for some feeds, in several ways, each computed when it is first asked for."""

    def __init__(self, case: Case, feeds: Mapping[str, Any]) -> None:
        self.case = case
        self.feeds = feeds
        self.names = [each.name for each in case.model.graph.output]
        self._wanted: Outputs | None = None
        self._candidates: list[Outputs] | None = None
        self._trials: list[Outputs] | None = None

    @property
    def wanted(self) -> Outputs:
        """The oracle's outputs."""
        if self._wanted is None:
            self._wanted = run(make_session(self.case.oracle.SerializeToString()), self.feeds, self.names)
        return self._wanted

    def narrow(self) -> Outputs:
        """The outputs of the model itself where the oracle is another."""
        model = emulated(self.case.model) if self.case.dtype == "bf16" else self.case.model
        return run(make_session(model.SerializeToString()), self.case.narrowed(self.feeds), self.names)

    def feeds_of(self, made: onnx.ModelProto) -> dict[str, Any]:
        """The feeds in the dtypes that the optimized model takes."""
        from ortplugin.inputs import as_wanted

        return as_wanted(self.case.narrowed(self.feeds), made)

    def problem(self, got: Mapping[str, Any], provider: Provider) -> Finding | None:
        """What is wrong with an optimized model's outputs."""
        dtypes = {each.name: each.type.tensor_type.elem_type for each in self.case.model.graph.output}
        for name in self.names:
            wanted, have = self.wanted[name], got[name]
            if not isinstance(wanted, np.ndarray) or wanted.dtype.kind == "O":  # a sequence, say
                result = compare(name, wanted, have)
                if not result.passed:
                    return Finding("values", f"'{name}': {result.message}")
                continue
            half = self.case.wide is not None
            expected = onnx.helper.tensor_dtype_to_np_dtype(dtypes[name]) if half else wanted.dtype
            if have.dtype != expected and "precision_io" not in self.case.options:
                return Finding("form", f"'{name}' is {have.dtype} and not {expected}")
            dtype = self._dtype(wanted, have)
            message = oracle.quick(wanted, have, dtype)
            if message and self._fails(name, have, dtype, provider):
                kind = "form" if message.startswith("shape") else "values"
                return Finding(kind, f"'{name}': {message}")
        return None

    def _dtype(self, wanted: Any, have: Any) -> str:
        """The name of the coarsest dtype that the output went through."""
        through = [oracle.NAMES[self.case.dtype], oracle.NAMES[self.case.options.get("precision", self.case.dtype)]]
        through += [each.dtype.name for each in (wanted, have) if each.dtype.name in oracle.TOLERANCE]
        if any(node.op_type in oracle.ROUGH_IN_DOUBLE for node in walk_nodes(self.case.model)):
            through.append("float32")
        return max(through, key=lambda name: oracle.TOLERANCE[name])

    def trials(self) -> list[Outputs]:
        """The oracle's outputs where every value is off by a little; {} where it does not run then."""
        if self._trials is None:
            unit = max((oracle.NAMES[self.case.dtype], oracle.NAMES[self.case.options.get("precision", "fp64")]),
                       key=lambda each: oracle.UNIT[each])  # fmt: skip
            self._trials = oracle.trials(self.case.oracle, self.feeds, "float32" if unit == "float64" else unit,
                                         self.names, self.case.seed)  # fmt: skip
        return self._trials

    def _fails(self, name: str, have: Any, dtype: str, provider: Provider) -> bool:
        if self._candidates is None:
            self._candidates = [self.wanted]
            for other in (self.narrow, lambda: provider.original(self.case, self)):
                try:
                    self._candidates.append(other())
                except Exception:  # what does not run explains nothing
                    continue
            self._candidates += self.trials()
        candidates = [np.asarray(each[name]) for each in self._candidates if each]
        return bool(oracle.explained(candidates, have, dtype))
