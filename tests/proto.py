"""Compiles our `.proto` files: `python -m tests.proto` writes what the wheel carries."""

from __future__ import annotations

import tempfile
from pathlib import Path

from dragoman.dialects import protobuf

HOME = Path(protobuf.__file__).parent
SOURCES = ("a2a.proto", "a2a_v0_3.proto")


def compiled() -> bytes:
    """The descriptors of our files and of those that they import, as a FileDescriptorSet."""
    import grpc_tools
    from grpc_tools import protoc

    known = Path(grpc_tools.__file__).parent / "_proto"
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder, "descriptors.binpb")
        options = [f"-I{HOME}", f"-I{known}", "--include_imports", f"--descriptor_set_out={found}"]
        if protoc.main(["protoc", *options, *SOURCES]):
            raise SystemExit("protoc failed")
        return found.read_bytes()


if __name__ == "__main__":
    (HOME / protobuf.DESCRIPTORS).write_bytes(compiled())
