"""Bad checkpoints, made here: cut, forged, with code, with sizes that lie, with numbers of other kinds."""

from __future__ import annotations

import io
import json
import os
import pickle
import socket
import struct
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as as_safetensors
from torch import Tensor, nn

from hilrp.zoo.architectures import ARCHITECTURES

State = dict[str, Tensor]


def good() -> State:
    """Weights of the architecture that all of these are for."""
    torch.manual_seed(0)
    return {name: value.clone() for name, value in ARCHITECTURES["resnet"].make().state_dict().items()}


GOOD = good()
HEAD, BIAS, FIRST = "fc.weight", "fc.bias", "conv1.weight"
COUNT, WIDTH = GOOD[HEAD].shape


def saved(found: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(found, buffer, **options)
    return buffer.getvalue()


def changed(**changes: Any) -> bytes:
    """The weights with some of them replaced, or without them; names have __ for a dot."""
    found = GOOD | {name.replace("__", "."): value for name, value in changes.items()}
    return saved({name: value for name, value in found.items() if value is not None})


def header(found: Any, data: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file with any header."""
    text = found if isinstance(found, bytes) else json.dumps(found).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensor(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def archive(members: dict[str, bytes], compress: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compress) as made:
        for name, content in members.items():
            made.writestr(f"archive/{name}", content)
    return buffer.getvalue()


def members(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as made:
        return {each.filename.partition("/")[2]: made.read(each) for each in made.infolist()}


def lying(content: bytes) -> bytes:
    """An archive whose directory says that one part has a gigabyte."""
    at = content.index(b"PK\1\2")
    return content[: at + 20] + struct.pack("<II", 10**9, 10**9) + content[at + 28 :]


class Code:
    """What runs a command where it is unpickled."""

    def __reduce__(self) -> Any:
        return os.system, ("touch code_was_run",)


class Forged:
    """A tensor that is rebuilt from one stored number, with any shape and strides."""

    def __init__(self, size: Any, stride: Any, offset: Any = 0) -> None:
        self.size, self.stride, self.offset = size, stride, offset

    def __reduce__(self) -> Any:
        storage = torch.storage.TypedStorage(wrap_storage=torch.zeros(1).untyped_storage(), dtype=torch.float32)
        options = (storage, self.offset, self.size, self.stride, False, OrderedDict())
        return torch._utils._rebuild_tensor_v2, options


def quantised() -> Tensor:
    return torch.quantize_per_tensor(GOOD[HEAD], 0.1, 0, torch.qint8)


def with_attributes() -> Tensor:
    """A tensor whose methods are hidden by attributes."""
    value = GOOD[HEAD].clone()
    for name in ("numel", "element_size", "layout_", "detach", "is_floating_point"):
        setattr(value, name, "not callable")
    return value


def nested(depth: int) -> Any:
    found: Any = GOOD
    for _ in range(depth):
        found = {"model": found}
    return found


def contents() -> dict[str, tuple[bytes, str]]:
    """Files that are refused: name -> content, and what is said of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of what is old or new in it
        return _contents()


def _contents() -> dict[str, tuple[bytes, str]]:
    plain, safe = saved(GOOD), as_safetensors(GOOD)
    more = COUNT * 100_000
    unreadable, no_safetensors, no_fit = "can't be read", "not a readable safetensors", "does not fit"
    code, again, few = "run code", "Save", 10**6
    script, zeros = io.BytesIO(), saved(GOOD | {"zeros": torch.zeros(10**7)})
    torch.jit.save(torch.jit.script(nn.Linear(2, 2)), script)
    cases = {
        "empty.pt": (b"", "empty"),
        "empty.safetensors": (b"", "empty"),
        "text.pt": (b"no weights", "no checkpoint"),
        "text.safetensors": (b"no weights at all", no_safetensors),
        "zeros.pt": (bytes(5000), "no checkpoint"),
        "half of it.pt": (plain[: len(plain) // 2], "no checkpoint"),
        "without its end.pt": (plain[:-10], "no checkpoint"),
        "without its beginning.pt": (plain[2000:], unreadable),
        "its directory alone.pt": (plain[plain.rindex(b"PK\5\6") :], unreadable),
        "half of it.safetensors": (safe[: len(safe) // 2], no_safetensors),
        "without its end.safetensors": (safe[:-4], no_safetensors),
        "more than its end.safetensors": (safe + bytes(8), no_safetensors),
        "header of 2^62 bytes.safetensors": (header({}, length=2**62), no_safetensors),
        "header of 99 MB.safetensors": (header({}, length=99_000_000), no_safetensors),
        "no header.safetensors": (header(b""), no_safetensors),
        "header is text.safetensors": (header(b"{hello"), no_safetensors),
        "header is a list.safetensors": (header([1, 2]), no_safetensors),
        "header is deep.safetensors": (header(b"[" * 100_000), no_safetensors),
        "header is no UTF-8.safetensors": (header(b'{"\xff\xfe": 1}'), no_safetensors),
        "offsets beyond.safetensors": (header({"a": tensor(offsets=(0, 8))}, b"1234"), no_safetensors),
        "offsets twice.safetensors": (header({"a": tensor(), "b": tensor()}, bytes(8)), no_safetensors),
        "offsets back.safetensors": (header({"a": tensor(offsets=(8, 0))}, bytes(8)), no_safetensors),
        "shape overflows.safetensors": (header({"a": tensor(shape=(2**40, 2**40))}, bytes(8)), no_safetensors),
        "shape lies.safetensors": (header({"a": tensor(shape=(10**9,))}, bytes(8)), no_safetensors),
        "shape below zero.safetensors": (header({"a": tensor(shape=(-2,))}, bytes(8)), no_safetensors),
        "shape of floats.safetensors": (header({"a": tensor(shape=(2.5,))}, bytes(8)), no_safetensors),
        "shape of NaN.safetensors": (header({"a": tensor(shape=(float("nan"),))}, bytes(8)), no_safetensors),
        "unknown numbers.safetensors": (header({"a": tensor("F99")}, bytes(8)), no_safetensors),
        "four bits.safetensors": (header({"a": tensor("F4", (16,))}, bytes(8)), ""),
        "no tensors.safetensors": (header({"__metadata__": {"a": "b"}}), "no weights"),
        "safetensors called.pt": (safe, "no checkpoint"),
        "torch called.safetensors": (plain, no_safetensors),
        "code.pt": (saved(GOOD | {"code": Code()}), code),
        "old code.pt": (saved(GOOD | {"code": Code()}, _use_new_zipfile_serialization=False), code),
        "bare code.pt": (pickle.dumps(Code()), code),
        "evaluated.pt": (b"\x80\x02c__builtin__\neval\nX\x04\0\0\x001 + \x85R.", code),
        "whole model.pt": (saved(nn.Linear(2, 2)), code),
        "endless pickle.pt": (b"\x80\x02" + b"]" * 1000, ""),
        "no pickle inside.pt": (archive({"data/0": bytes(8)}), unreadable),
        "another archive.pt": (archive({"hello.txt": b"hello"}), unreadable),
        "script.pt": (script.getvalue(), "TorchScript"),
        "compressed.pt": (archive(members(zeros), zipfile.ZIP_DEFLATED), "compressed"),
        "lying archive.pt": (lying(plain), "are to have"),
        "numbers.pt": (saved({"epoch": 3}), "no weights"),
        "list.pt": (saved(list(GOOD.values())), "no weights"),
        "tensor.pt": (saved(torch.ones(3)), "no weights"),
        "too deep.pt": (saved(nested(5)), "no weights"),
        "names are numbers.pt": (saved(dict(enumerate(GOOD.values()))), "no weights"),
        "another model.pt": (saved(nn.Linear(2, 2).state_dict()), no_fit),
        "one is missing.pt": (changed(conv1__weight=None), f"it lacks {FIRST}"),
        "one too many.pt": (changed(extra=torch.ones(2)), "the model has no extra"),
        "another shape.pt": (changed(conv1__weight=torch.ones(3, 3)), f"{FIRST} (3, 3)"),
        "turned.pt": (changed(fc__weight=GOOD[HEAD].T), no_fit),
        "no classes.pt": (changed(fc__weight=torch.ones(0, WIDTH), fc__bias=torch.ones(0)), no_fit),
        "integers.pt": (changed(fc__weight=GOOD[HEAD].long()), f"{HEAD} torch.int64 instead of torch.float32"),
        "bytes.pt": (changed(fc__weight=GOOD[HEAD].byte()), "torch.uint8 instead"),
        "truths.pt": (changed(fc__weight=GOOD[HEAD] > 0), "torch.bool instead"),
        "complex.pt": (changed(fc__weight=GOOD[HEAD] + 1j), "torch.complex64 instead"),
        "integers.safetensors": (as_safetensors(GOOD | {HEAD: GOOD[HEAD].long()}), "torch.int64 instead"),
        "a complex counter.pt": (changed(bn1__num_batches_tracked=torch.tensor(1j)), "torch.complex64 instead"),
        "quantised.pt": (changed(fc__weight=quantised()), "no plain tensor"),
        "sparse.pt": (changed(fc__weight=GOOD[HEAD].to_sparse()), "no plain tensor"),
        "sparse rows.pt": (changed(fc__weight=GOOD[HEAD].to_sparse_csr()), "no plain tensor"),
        "without numbers.pt": (changed(fc__weight=GOOD[HEAD].to("meta")), "no plain tensor"),
        "repeated.pt": (changed(fc__weight=Forged((more, WIDTH), (0, 0)), fc__bias=Forged((more,), (0,))), again),
        "repeated elsewhere.pt": (changed(extra=Forged((2**40,), (0,))), "are to have"),
        "overlapping.pt": (changed(fc__weight=torch.ones(10**6).as_strided((9 * 10**5, 10**5), (1, 1))), "are to have"),
        "more classes in the bias alone.pt": (changed(fc__bias=torch.ones(few)), f"{BIAS} ({few},)"),
        "beyond its numbers.pt": (changed(fc__weight=Forged((5,), (9,))), unreadable),
        "offset beyond.pt": (changed(fc__weight=Forged((1,), (1,), 10**9)), unreadable),
        "size of NaN.pt": (changed(fc__weight=Forged((float("nan"),), (1,))), unreadable),
        "size below zero.pt": (changed(fc__weight=Forged((-4,), (1,))), unreadable),
        "size of text.pt": (changed(fc__weight=Forged("many", "few")), unreadable),
        "endless prefix.pt": (saved({"module." * 200_000: torch.ones(2)}), no_fit),
        "endless name.pt": (saved(GOOD | {"x" * 10**6: torch.ones(2)}), "the model has no xxx"),
    }
    return cases


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


#: Paths that lead to no checkpoint: how each is made, and what is said of it.
PLACES: dict[str, tuple[Callable[[Path], object], str]] = {
    "pipe.pt": (os.mkfifo, "pipe"),
    "pipe.safetensors": (os.mkfifo, "pipe"),
    "socket.pt": (_socket, "socket"),
    "folder.safetensors": (Path.mkdir, "folder"),
    "zero.pt": (lambda p: p.symlink_to("/dev/zero"), "device"),
    "link to itself.pt": (lambda p: p.symlink_to(p), "symbolic links"),
    "link to nothing.pt": (lambda p: p.symlink_to("nowhere"), "no such file"),
    "not there.pt": (lambda p: None, "no such file"),
    "x" * 300 + ".pt": (lambda p: None, "name too long"),
}
