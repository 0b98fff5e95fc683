"""The exported models of tests/data as one compressed archive: exporters write the same weights again and again.

Files in it are sorted and carry no times or owners, so that the same models make the same archive.
"""

from __future__ import annotations

import io
import lzma
import tarfile
from pathlib import Path

ARCHIVE = Path(__file__).resolve().parent.parent / "tests" / "data" / "models.tar.xz"


def unpack(folder: Path) -> None:
    """Writes every model to `folder`, "lerp/<name>.onnx" into its own."""
    with tarfile.open(ARCHIVE) as archive:
        for member in archive:
            data = archive.extractfile(member)
            assert data is not None
            path = folder / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data.read())


def pack(folder: Path) -> None:
    """Makes the archive of all models in `folder`."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path in sorted(folder.rglob("*.onnx")):
            member = tarfile.TarInfo(path.relative_to(folder).as_posix())
            member.size = path.stat().st_size
            with path.open("rb") as data:
                archive.addfile(member, data)
    ARCHIVE.write_bytes(lzma.compress(raw.getvalue(), preset=9 | lzma.PRESET_EXTREME))
