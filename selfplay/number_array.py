"""Immutable sequences of numbers that take few bytes. This module imports no other module of the
library.

A tuple of Python's integers takes 36 bytes for each token, and its pickle and its JSON are made
element by element. A step may have millions of tokens, which go from workers to the driver and on
to learners.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal, TypeAlias, overload

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

INTEGERS = "BHiq"
"""Type codes of integers (`array`), the shortest first: 1 and 2 bytes without a sign, 4 and 8."""
FLOATS = "fd"
"""Type codes of floats: 4 and 8 bytes."""
ONES = b"\x01" * 2**16
"""Bytes that arrays of ones share, in memory and in pickles."""
WIDTHS = {code: array(code).itemsize for code in INTEGERS + FLOATS}
"""Bytes of a number by its type code."""

Kind: TypeAlias = Literal["integers", "floats"]


class NumberArray(Sequence[Any]):
    """A sequence of integers or floats, each in as few bytes as hold all of them exactly.

    It equals a tuple of the same numbers and has its hash. A slice shares its memory, and so do
    pickled slices of one array. `np.asarray` reads it without a copy.

    `Turn` makes it from any sequence.
    """

    __slots__ = ("_bytes", "_code", "_start", "_stop")

    def __init__(self, data: bytes, code: str, start: int, stop: int) -> None:
        """Args:
        data: The numbers' bytes.
        code: Their type code (`array`).
        start: Index of the first number.
        stop: Index after the last number.
        """
        self._bytes, self._code, self._start, self._stop = data, code, start, stop

    @classmethod
    def of(cls, values: Iterable[Any], kind: Kind) -> "NumberArray":
        """Return the values as an array; an array is returned as it is.

        Raises TypeError for another kind of value, and ValueError for an integer outside of the
        signed range of 64 bits.
        """
        if isinstance(values, cls):
            return values
        listed = values if isinstance(values, tuple | list) else list(values)
        if kind == "floats":
            wide = array("d", listed)
            short = _short(wide)
            found = wide if short is None else short
            return cls(found.tobytes(), found.typecode, 0, len(found))
        for code in INTEGERS:
            try:
                found = array(code, listed)
            except OverflowError:
                continue
            return cls(found.tobytes(), code, 0, len(found))
        raise ValueError("an integer has more than 64 bits")

    @classmethod
    def ones(cls, count: int) -> "NumberArray":
        """Return an array of `count` ones."""
        return _ones(count)

    @property
    def data(self) -> tuple[str, bytes]:
        """The type code, and the bytes that this array shares with its slices."""
        return self._code, self._bytes

    @property
    def all_ones(self) -> bool:
        """True if there are numbers and all are the integer 1, as in most loss masks."""
        if self._code != "B" or not len(self):
            return False
        return self._bytes is ONES or bytes(self._raw()) == b"\x01" * len(self)

    @property
    def integers(self) -> bool:
        """True if the numbers are integers."""
        return self._code in INTEGERS

    @property
    def place(self) -> tuple[int, int]:
        """The identity of the shared bytes, and the index of the first number."""
        return id(self._bytes), self._start

    def tolist(self) -> list[Any]:
        """Return the numbers as a list of Python's own integers or floats."""
        found = array(self._code)  # several times as fast as the list of a memoryview
        found.frombytes(self._raw())
        return found.tolist()

    def within(self, longer: "NumberArray", at: int = 0) -> "NumberArray | None":
        """Return the part of `longer` from index `at` on if it equals this array, else None."""
        part = longer[at : at + len(self)]
        same = self._code == part._code and bytes(self._raw()) == bytes(part._raw())
        return part if same else None

    def _raw(self) -> memoryview:
        width = WIDTHS[self._code]
        return memoryview(self._bytes)[self._start * width : self._stop * width]

    def _view(self) -> memoryview:
        return memoryview(self._bytes).cast(self._code)[self._start : self._stop]  # type: ignore[call-overload]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        import numpy as np

        if not len(self):  # numpy refuses an empty buffer
            return np.zeros(0, dtype=dtype or self._code)
        found = np.frombuffer(self._raw(), dtype=self._code)
        return found.astype(dtype or found.dtype, copy=bool(copy))

    def __len__(self) -> int:
        return self._stop - self._start

    def __iter__(self) -> Iterator[Any]:
        return iter(self.tolist())

    @overload
    def __getitem__(self, index: int) -> Any: ...

    @overload
    def __getitem__(self, index: slice) -> "NumberArray": ...

    def __getitem__(self, index: int | slice) -> Any:
        if not isinstance(index, slice):
            return self._view()[index]
        start, stop, step = index.indices(len(self))
        if step != 1:
            found = array(self._code, self.tolist()[index])
            return NumberArray(found.tobytes(), self._code, 0, len(found))
        shared = self._start + start
        return NumberArray(self._bytes, self._code, shared, shared + max(0, stop - start))

    def __add__(self, other: Sequence[Any]) -> tuple[Any, ...]:
        return (*self.tolist(), *other)

    def __radd__(self, other: Sequence[Any]) -> tuple[Any, ...]:
        return (*other, *self.tolist())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, NumberArray):
            return len(self) == len(other) and self.tolist() == other.tolist()
        if isinstance(other, tuple):
            return len(self) == len(other) and tuple(self.tolist()) == other
        return NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self.tolist()))

    def __repr__(self) -> str:
        return repr(tuple(self.tolist()))

    def __reduce__(self) -> tuple[Any, ...]:
        if self._bytes is ONES:
            return _ones, (len(self),)
        return NumberArray, (self._bytes, self._code, self._start, self._stop)


def _ones(count: int) -> NumberArray:
    return NumberArray(ONES if count <= len(ONES) else b"\x01" * count, "B", 0, count)


def _short(wide: "array[float]") -> "array[float] | None":
    """Return doubles in 4 bytes each; None if that changes one of them."""
    try:
        short = array("f", wide)
    except OverflowError:
        return None
    return short if short == wide else None


class Compact:
    """Annotation of a field: pydantic reads it as a list and makes a `NumberArray` of it."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        kind = self.kind
        each = core_schema.int_schema() if kind == "integers" else core_schema.float_schema()
        made = core_schema.no_info_after_validator_function(
            lambda values: NumberArray.of(values, kind), core_schema.list_schema(each)
        )
        return core_schema.json_or_python_schema(
            json_schema=made,
            python_schema=core_schema.union_schema(
                [core_schema.is_instance_schema(NumberArray), made], mode="left_to_right"
            ),
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda values: values.tolist(), return_schema=core_schema.list_schema(each)
            ),
        )


TokenIds: TypeAlias = Annotated[Sequence[int], Compact("integers")]
"""Integers in few bytes, such as token ids."""

Floats: TypeAlias = Annotated[Sequence[float], Compact("floats")]
"""Floats in few bytes."""
